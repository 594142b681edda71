"""torch.func, torch.compile, autocast, fake tensors, and what is kept for backward."""

import math

import pytest
import torch
from paths import both_paths
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close

from softtopk import (
    ConvergenceWarning,
    Sinkhorn,
    SoftTopK,
    entropic_plan,
    log_soft_topk,
    soft_topk,
    sorted_soft_topk,
    topk_threshold,
)

OPERATORS = [
    pytest.param(soft_topk, id="soft"),
    pytest.param(log_soft_topk, id="log"),
    pytest.param(topk_threshold, id="threshold"),
    pytest.param(sorted_soft_topk, id="sorted"),
]
SOLVERS = ["exact", pytest.param(Sinkhorn(max_iter=5000, tol=1e-13), id="sinkhorn")]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("in_dim", [0, 1])
def test_vmap(operator, solver, in_dim):
    scores, mask = randn(3, 7), randn(3, 7, seed=1) > -1
    options = {"eps": 1.5, "solver": solver}
    mapped = vmap(lambda x, m: operator(x, 2, mask=m, **options), in_dims=(in_dim, in_dim))
    expected = operator(scores, 2, mask=mask, **options)
    turn = (lambda t: t) if in_dim == 0 else (lambda t: t.T)
    assert_close(mapped(turn(scores), turn(mask)), expected)


@pytest.mark.parametrize("solver", SOLVERS)
def test_vmap_over_k_and_eps(solver):
    scores = randn(7)
    k, eps = torch.tensor([1.0, 2.5, 4.0]).double(), torch.tensor([0.5, 1.0, 3.0]).double()
    mapped = vmap(lambda k, e: soft_topk(scores, k, eps=e, solver=solver))(k, eps)
    assert_close(mapped, soft_topk(scores.expand(3, 7), k, eps=eps, solver=solver))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_jacobians_of_both_modes_agree(operator, solver):
    def function(x):
        return operator(x, 3, eps=1.5, solver=solver)

    scores = randn(6)
    assert_close(jacrev(function)(scores), jacfwd(function)(scores), rtol=1e-7, atol=1e-10)
    rows = randn(4, 6)
    assert_close(vmap(jacrev(function))(rows), vmap(jacfwd(function))(rows), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_vmap_over_eps_alone(operator, solver):
    scores, eps = randn(6), torch.tensor([0.5, 2.0]).double()
    mapped = vmap(lambda e: operator(scores, 2, eps=e, solver=solver))(eps)
    assert_close(mapped, operator(scores.expand(2, 6), 2, eps=eps, solver=solver))


def test_vmap_over_an_unrolled_plan():
    cost, marginal = torch.rand(3, 4, 4).double(), torch.full((4,), 0.25).double()
    options = {"eps": 1.0, "gradient": "unrolled", "max_iter": 60, "tol": 1e-9}
    mapped = vmap(lambda c: entropic_plan(c, marginal, marginal, **options).plan)(cost)
    assert_close(mapped, entropic_plan(cost, marginal, marginal, **options).plan, rtol=0, atol=1e-8)


@pytest.mark.parametrize("operator", OPERATORS)
def test_forward_over_reverse(operator):
    def loss(x):
        return operator(x, 2, eps=1.0).square().sum()

    scores = randn(5)
    assert_close(hessian(loss)(scores), jacrev(jacrev(loss))(scores))


@both_paths
def test_jvp_with_tangents_of_every_argument():
    inputs = randn(2, 6), torch.tensor([1.5, 3.0]).double(), torch.tensor([0.4, 2.0]).double()
    tangents = randn(2, 6, seed=1), randn(2, seed=2), randn(2, seed=3)

    def function(x, k, eps):
        return soft_topk(x, k, eps=eps)

    value, tangent = jvp(function, inputs, tangents)
    step = 1e-6
    ahead, behind = (
        function(*(i + s * step * t for i, t in zip(inputs, tangents, strict=True)))
        for s in (1, -1)
    )
    assert_close(value, function(*inputs))
    assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-8)


def assert_compiles(function, *inputs, wanted, **options):
    """In one graph, with the values and the gradients in ``wanted`` of the function itself."""
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, **options)
    results = [f(*inputs) for f in (function, compiled)]
    assert_close(*results)
    weight = randn(*results[0].shape, seed=2)
    assert_close(*(torch.autograd.grad(result, wanted, weight) for result in results))


def compile_in_one_graph(operators, options, backend):
    scores, mask = randn(5, 6).requires_grad_(), randn(5, 6, seed=1) > -1

    def function(x, m):
        results = [operator(x, 2, mask=m, **options) for operator in operators]
        return torch.cat([torch.where(y.isfinite(), y, 0.0).flatten() for y in results])

    assert_compiles(function, scores, mask, wanted=scores, backend=backend)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="exact"),
        pytest.param({"normalize": "row", "largest": False, "dim": 0}, id="options"),
        pytest.param({"solver": "sinkhorn", "eps": 2.0}, id="sinkhorn"),
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile_in_one_graph(operator, options, backend):
    compile_in_one_graph([operator], options, backend)


@pytest.mark.parametrize(
    ("operators", "options"),
    [
        pytest.param([soft_topk, sorted_soft_topk], {}, id="exact"),
        # One opaque operator too, which other tests compile by aot_eager.
        pytest.param(
            [soft_topk],
            {"solver": "sinkhorn", "eps": 2.0},
            id="sinkhorn",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_compile_by_the_default_backend(operators, options):
    compile_in_one_graph(operators, options, "inductor")


def test_compile_hard_with_tensors_for_k_and_eps():
    scores = randn(5, 6).requires_grad_()
    k = torch.rand(5).double().requires_grad_()
    eps = torch.rand(5).double().add(0.1).requires_grad_()

    def function(x, k, eps):
        return soft_topk(x, 4 * k, eps=eps, hard=True)

    wanted = scores, k, eps
    assert_compiles(function, *wanted, wanted=wanted, backend="aot_eager")


@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_compile_with_dynamic_shapes(operator):
    torch._dynamo.reset()

    def function(x):
        return operator(x, x.shape[-1] // 2)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((3, 8), (5, 12), (2, 7)):
        scores = randn(*shape).requires_grad_()
        results = [f(scores) for f in (function, compiled)]
        assert_close(*results)
        grads = [torch.autograd.grad(result.square().sum(), scores)[0] for result in results]
        assert_close(*grads)


def test_export():
    module = SoftTopK(2)
    scores = torch.randn(3, 8)
    exported = torch.export.export(module, (scores,)).module()
    scores.requires_grad_()
    results = exported(scores), module(scores)
    assert_close(*results)
    assert_close(*(torch.autograd.grad(result.square().sum(), scores)[0] for result in results))


@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_transforms_inside_compile(operator, solver):
    def function(x):
        return operator(x, 2, eps=5.0, solver=solver)

    rows = randn(3, 6)
    for transformed in (vmap(function), torch.func.grad(lambda x: function(x).square().sum())):
        torch._dynamo.reset()
        compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
        assert_close(compiled(rows), transformed(rows))


@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_forward_mode_inside_compile_is_refused(operator):
    """Tangents would be lost without a word."""
    torch._dynamo.reset()

    def tangent(x):
        return jvp(lambda z: operator(z, 2), (x,), (x,))[1]

    with pytest.raises(Exception, match=r"no forward-mode derivative|Observed exception"):
        torch.compile(tangent, fullgraph=True, backend="aot_eager")(randn(5))


def test_sinkhorn_warns_inside_compile():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: soft_topk(x, 2, eps=1e-4, solver="sinkhorn"), fullgraph=True, backend="aot_eager"
    )
    with pytest.warns(ConvergenceWarning, match="after 200 iterations"):
        compiled(randn(3, 8))


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_changes_nothing(operator):
    """The products in the sorted solver would lose all accuracy in bfloat16."""
    scores = torch.randn(4, 30, requires_grad=True)
    plain = operator(scores, 5, eps=0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = operator(scores, 5, eps=0.5)
        (cast_grad,) = torch.autograd.grad(cast.square().sum(), scores)
    (grad,) = torch.autograd.grad(plain.square().sum(), scores)
    assert cast.dtype == torch.float32
    assert_close(cast, plain, rtol=0, atol=1e-6)
    assert_close(cast_grad, grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_fake_and_meta_tensors(operator, solver):
    """Shapes can be found without values, as tools for export and memory planning do."""
    expected = operator(torch.randn(3, 8), 2, eps=5.0, solver=solver).shape
    with FakeTensorMode():
        assert operator(torch.randn(3, 8), 2, solver=solver).shape == expected
    assert operator(torch.randn(3, 8, device="meta"), 2, solver=solver).shape == expected


def test_custom_operators_keep_their_promises():
    """Schema, fake outputs, registered derivative, and tracing with dynamic shapes."""
    scores = randn(3, 6)
    pivots = scores.topk(2).values
    marginals = (torch.full((2, m), 1 / m, dtype=torch.float64) for m in (4, 3))
    calls = {
        "offset": ((scores - pivots[:, 1:]).requires_grad_(), torch.full((3, 1), 2)),
        "soft_topk": (
            scores.clone().requires_grad_(),
            scores < 1,
            torch.full((3, 1), 2),
            torch.full((3, 1), 0.5).double(),
            False,
        ),
        "sorted_soft_topk": (
            scores.clone().requires_grad_(),
            scores < 1,
            2,
            torch.full((3, 1), 0.5).double(),
            False,
        ),
        "ranking": ((scores.unsqueeze(-1) - pivots.unsqueeze(-2)).requires_grad_(),),
        "entropic_plan": (
            randn(2, 4, 3).requires_grad_(),
            *marginals,
            torch.ones(2, 1).double(),
            1e-9,
            500,
        ),
    }
    for name, inputs in calls.items():
        outcome = torch.library.opcheck(getattr(torch.ops.softtopk, name).default, inputs)
        assert set(outcome.values()) == {"SUCCESS"}


def saved_bytes(function):
    """Bytes of distinct storages kept for backward."""
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    return sum(storages.values()), result.numel() * result.element_size()


@both_paths
@pytest.mark.parametrize("eps_grad", [False, True])
@pytest.mark.parametrize("operator", [soft_topk, log_soft_topk, sorted_soft_topk])
def test_at_most_two_outputs_are_kept_for_backward(operator, eps_grad):
    scores = torch.randn(64, 500, requires_grad=True)
    eps = torch.tensor(0.3, requires_grad=True) if eps_grad else 0.3
    saved, output = saved_bytes(lambda: operator(scores, 10, eps=eps))
    # Two, and masks of a quarter each; the derivative in eps needs the distances before and after.
    assert saved <= (3.6 if eps_grad else 2.6) * output


def test_memory_of_the_implicit_gradient_does_not_grow_with_the_iterations():
    cost = torch.rand(4, 50, 6, requires_grad=True)
    mu, nu = torch.full((50,), 1 / 50), torch.full((6,), 1 / 6)

    def plan(gradient, max_iter):
        options = {"tol": 0.0, "max_iter": max_iter, "gradient": gradient}
        with pytest.warns(UserWarning, match="stopped"):
            return entropic_plan(cost, mu, nu, 0.01, **options).plan

    implicit = [saved_bytes(lambda n=n: plan("implicit", n))[0] for n in (10, 100)]
    unrolled = [saved_bytes(lambda n=n: plan("unrolled", n))[0] for n in (10, 100)]
    assert implicit[0] == implicit[1]
    assert unrolled[1] > 5 * unrolled[0] > 5 * implicit[0]


@both_paths
def test_nothing_is_kept_without_a_gradient():
    saved, _ = saved_bytes(lambda: soft_topk(torch.randn(8, 9), 2, eps=math.pi))
    assert saved == 0
