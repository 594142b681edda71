"""The classes for code in circulation, against the published algorithms in float64."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from softtopk import soft_topk, sorted_soft_topk
from softtopk.compat import SmallestTopK_custom, TopK, TopK_custom

INF = math.inf
ENOUGH = 400  #: iterations, for convergence at the eps of these tests


def scores(rows=3, n=8):
    x = torch.randn(rows, n, dtype=torch.float64)
    x[0, 2] = x[1, 5] = -INF
    return x


def filled(x):
    """The paper's listing, the treatment of -inf."""
    known = x[x > -INF].detach()
    return torch.where(x == -INF, 2 * known.min() - known.max(), x)


def published(x, anchors, places, epsilon, iterations):
    """The paper's listing as a function: the plan (rows, n, m), differentiated by autograd."""
    x, n = filled(x), x.shape[-1]
    cost = (x[:, :, None] - torch.tensor(anchors, dtype=x.dtype)) ** 2
    cost = cost / cost.max().detach()
    log_nu = torch.tensor(places, dtype=x.dtype).div(n).log()[None]
    g = torch.zeros_like(cost[:, 0])
    for _ in range(iterations):
        f = -math.log(n) - torch.logsumexp(g[:, None] - cost / epsilon, -1)
        g = log_nu - torch.logsumexp(f[:, :, None] - cost / epsilon, -2)
    return torch.exp(f[:, :, None] + g[:, None] - cost / epsilon)


def largest(x, k, epsilon, iterations=ENOUGH):
    n = x.shape[-1]
    anchors, places = list(range(k, -1, -1)), [1] * k + [n - k]
    return n * published(x, anchors, places, epsilon, iterations)[..., :k]


def smallest(x, k, epsilon, iterations=ENOUGH):
    return published(x, [0, 1], [k, x.shape[-1] - k], epsilon, iterations)


def bisected(x, k, alpha=1.0):
    """sigmoid(alpha (x + t)) with sum k, and its derivative by the implicit function theorem."""
    low, high = -x.detach().amax(1, keepdim=True) - 99, -x.detach().amin(1, keepdim=True) + 99
    for _ in range(200):
        t = (low + high) / 2
        few = torch.sigmoid(alpha * (x.detach() + t)).sum(1, keepdim=True) < k
        low, high = torch.where(few, t, low), torch.where(few, high, t)
    s = torch.sigmoid(alpha * (x + t))
    slope = (s * (1 - s)).detach()
    moved = x - (slope * x).sum(1, keepdim=True) / slope.sum(1, keepdim=True)
    return s.detach() + alpha * slope * (moved - moved.detach())


CASES = {
    "largest": (lambda x: TopK_custom(2, 0.1)(x)[0], lambda x: largest(x, 2, 0.1)),
    "largest 1": (lambda x: TopK_custom(1, 0.2)(x)[0], lambda x: largest(x, 1, 0.2)),
    "smallest": (SmallestTopK_custom(3, 0.1), lambda x: 8 * smallest(x, 3, 0.1)[..., 0]),
    "plan": (SmallestTopK_custom(3, plan=True), lambda x: smallest(x, 3, 0.1)),
    "bisected": (lambda x: TopK.apply(filled(x), 3), lambda x: bisected(filled(x), 3)),
    "alpha": (lambda x: TopK.apply(filled(x), 3, 2.5), lambda x: bisected(filled(x), 3, 2.5)),
}


@pytest.mark.parametrize(("ours", "theirs"), CASES.values(), ids=CASES)
def test_the_numbers_and_gradients_of_the_original_when_it_has_converged(ours, theirs):
    x = scores().requires_grad_()
    y = x.detach().clone().requires_grad_()
    found, expected = ours(x), theirs(y)
    assert_close(found, expected, rtol=0, atol=1e-9)
    weight = torch.randn_like(found)
    (weight * found).sum().backward()
    (weight * expected).sum().backward()
    assert_close(x.grad, y.grad, rtol=0, atol=1e-8)


@pytest.mark.parametrize("iterations", [1, 3, 40])
@pytest.mark.parametrize("epsilon", [0.1, 1e-3])
def test_sinkhorn_stops_where_the_original_stops(epsilon, iterations):
    """Without a warning, which the original does not give either."""
    x, setting = scores(), (epsilon, iterations)
    a, nothing = TopK_custom(2, *setting, solver="sinkhorn")(x)
    assert nothing is None
    assert_close(a, largest(x, 2, *setting))
    plan = smallest(x, 3, *setting)
    assert_close(SmallestTopK_custom(3, *setting, solver="sinkhorn")(x), 8 * plan[..., 0])
    assert_close(SmallestTopK_custom(3, *setting, solver="sinkhorn", plan=True)(x), plan)


def test_the_gradient_of_sinkhorn_is_implicit():
    x = scores().requires_grad_()
    for module in (TopK_custom, SmallestTopK_custom):
        exact, iterated = module(2), module(2, max_iter=ENOUGH, solver="sinkhorn")
        results = [layer(x)[0] for layer in (exact, iterated)]  # of the smallest, one row
        weight = torch.randn_like(results[0])
        grads = [torch.autograd.grad((weight * result).sum(), x)[0] for result in results]
        assert_close(*grads, rtol=0, atol=1e-8)


def test_the_calls_that_take_their_place():
    x = torch.randn(3, 8)
    options = {"eps": 0.02, "normalize": "batch"}
    assert_close(TopK_custom(2, 0.02)(x)[0], sorted_soft_topk(x, 2, **options))
    expected = soft_topk(x, 2, largest=False, **options)
    assert_close(SmallestTopK_custom(2, 0.02)(x), expected)
    assert_close(
        TopK.apply(x, torch.tensor([1, 2, 8])), soft_topk(x, torch.tensor([1, 2, 8]), eps=2)
    )


def test_which_end_is_selected():
    x = torch.tensor([[3.0, -INF, 1.0, 2.0]])
    assert TopK_custom(2, 1e-4)(x)[0].round().nonzero().tolist() == [[0, 0, 0], [0, 3, 1]]
    assert SmallestTopK_custom(2, 1e-4)(x).round().tolist() == [[0, 1, 1, 0]]
    assert TopK.apply(x, 2, 1e3).round().tolist() == [[1, 0, 0, 1]]


@pytest.mark.parametrize("module", [TopK_custom, SmallestTopK_custom])
def test_as_a_module(module):
    layer = module(2, 0.5, 7)
    assert (layer.k, layer.epsilon, layer.max_iter) == (2, 0.5, 7)
    assert layer.anchors.flatten().tolist() == ([2, 1, 0] if module is TopK_custom else [0, 1])
    assert not layer.state_dict()
    assert "k=2, epsilon=0.5, max_iter=7, solver='exact'" in repr(layer)
    layer.epsilon = 0.01  # people anneal it
    x = torch.randn(2, 5)
    assert_close(layer(x)[0], module(2, 0.01)(x)[0])


@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
@pytest.mark.parametrize("module", [TopK_custom, SmallestTopK_custom])
def test_special_scores(module, solver):
    layer = module(2, solver=solver)

    def indicator(x):
        result = layer(x)
        return result[0] if module is TopK_custom else result

    for dtype in (torch.bfloat16, torch.float16):
        x = scores().to(dtype)
        assert indicator(x).dtype is dtype
        assert_close(indicator(x).float(), indicator(x.float()), rtol=0, atol=1e-2)
    nothing = torch.full((2, 4), -INF)
    assert_close(indicator(nothing).sum(1), indicator(torch.zeros(2, 4)).sum(1))
    for x in (torch.full((2, 2), 1e30), torch.zeros(2, 3), torch.tensor([[-INF, 3e38, -3e38]])):
        x.requires_grad_()
        result = indicator(x)
        assert result.isfinite().all()
        assert torch.autograd.grad(result.square().sum(), x)[0].isfinite().all()
    x = torch.randn(2, 3, 5)
    assert_close(indicator(x).flatten(0, 1), indicator(x.flatten(0, 1)))
    assert indicator(torch.zeros(0, 5)).shape[:2] == (0, 5)


def test_derivatives():
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    # The divisor of the cost has no gradient: a row that fixes it takes none.
    far = torch.tensor([[9.0, -9, 3, 1]]).double()
    for layer in (lambda s: TopK_custom(2, 0.1)(s)[0], SmallestTopK_custom(2, 0.1)):
        function = lambda x, layer=layer: layer(torch.cat([x, far]))[:2]  # noqa: E731
        assert gradcheck(function, x)
        assert gradgradcheck(function, x)


@pytest.mark.slow
@pytest.mark.parametrize("module", [SmallestTopK_custom, TopK_custom])
def test_compile(module):
    x = scores()
    layer = module(2)
    assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x))


def test_wrong_arguments():
    for arguments, name in (
        ({"k": -1}, "k"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"max_iter": 0}, "max_iter"),
        ({"solver": "newton"}, "solver"),
        ({"plan": 1}, "plan"),
    ):
        with pytest.raises((TypeError, ValueError), match=rf"^{name}\b"):
            SmallestTopK_custom(**{"k": 2, **arguments})
    with pytest.raises(ValueError, match=r"k must be between 0 and n=3, .* got k=4"):
        TopK_custom(4, solver="sinkhorn")(torch.ones(2, 3))
    with pytest.raises(ValueError, match="alpha must be positive"):
        TopK.apply(torch.ones(2, 3), 1, 0.0)


@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_scores_without_a_batch(solver):
    scores = torch.randn(8)
    found, _ = TopK_custom(2, solver=solver)(scores)
    torch.testing.assert_close(found, TopK_custom(2, solver=solver)(scores[None])[0][0])
