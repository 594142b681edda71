"""Soft sort, soft ranks and soft quantiles."""

import math

import numpy as np
import pytest
import reference
import torch
from paths import first
from scipy.stats import rankdata
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from softtopk import soft_quantile, soft_rank, soft_sort

INF, NAN = math.inf, math.nan
X = torch.tensor([[0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1], [3.0, -2, -2, 5, 0, 0, 0]]).double()
FUNCTIONS = {
    "sort": soft_sort,
    "sort 3": lambda x, **options: soft_sort(x, 3, descending=True, **options),
    "rank": soft_rank,
    "rank 3": lambda x, **options: soft_rank(x, 3, descending=True, **options),
    "quantile": lambda x, **options: soft_quantile(x, 0.3, **options),
    "quantiles": lambda x, **options: soft_quantile(x, torch.tensor([0.0, 0.5]), **options),
}
each = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def nearest(row, q):
    """The limit of a quantile: of the nearest places in the order, the middle of their scores."""
    row, place = np.sort(row), q * (len(row) - 1)
    distance = np.abs(np.arange(len(row)) - place)
    return row[distance <= distance.min() + 1e-12].mean()


# Values.


@pytest.mark.parametrize("k", first(None, 1, 3, 7))
@pytest.mark.parametrize("eps", [0.02, 0.5, 20.0])
def test_values_follow_from_the_plan(eps, k):
    for descending in (False, True):
        options = {"eps": eps, "descending": descending}
        values, ranks = soft_sort(X, k, **options), soft_rank(X, k, **options)
        for row, value, rank in zip(X.numpy(), values, ranks, strict=True):
            plan = reference.sorted_soft_topk(row if descending else -row, k or 7, eps)
            assert_close(value, torch.from_numpy(plan.T @ row), rtol=0, atol=1e-10)
            places = np.arange(1, plan.shape[1] + 2)
            rest = 1 - plan.sum(1, keepdims=True)
            expected = np.concatenate([plan, rest], 1) @ places
            assert_close(rank, torch.from_numpy(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("eps", [0.02, 0.5, 20.0])
def test_quantiles_are_thresholds(eps):
    q = [0.0, 0.1, 0.25, 0.5, 1.0]
    found = soft_quantile(X, torch.tensor(q, dtype=torch.float64), eps=eps)
    for i, share in enumerate(q):
        expected = [reference.soft_topk(row, 6.5 - 6 * share, eps)[1] for row in X.numpy()]
        assert_close(found[i], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
        assert_close(soft_quantile(X, share, eps=eps), found[i])


def test_the_limit_is_hard():
    cold = {"eps": 1e-6}
    assert_close(soft_sort(X, **cold), X.sort().values)
    assert_close(soft_sort(X, 3, descending=True, **cold), X.topk(3).values)
    assert_close(soft_rank(X, **cold), torch.from_numpy(rankdata(X, axis=-1)))
    descending = torch.from_numpy(rankdata(-X, axis=-1))
    assert_close(soft_rank(X, descending=True, **cold), descending)
    assert_close(soft_rank(X[:1], 3, descending=True, **cold), descending[:1].clamp(max=4))
    q = torch.linspace(0, 1, 25, dtype=torch.float64)
    expected = [[nearest(row, share.item()) for row in X.numpy()] for share in q]
    assert_close(soft_quantile(X, q, **cold), torch.tensor(expected).to(X), rtol=0, atol=1e-4)
    plain = X.quantile(q[::4], dim=-1, interpolation="nearest")  # at whole places
    assert_close(soft_quantile(X, q[::4], **cold), plain, rtol=0, atol=1e-4)


def test_an_offset_of_all_scores_costs_no_digits():
    x = (64 * torch.randn(50, 30)).round() / 64
    moved = soft_sort(x + 8192, eps=0.5) - 8192  # the sum is exact
    assert_close(moved, soft_sort(x, eps=0.5), rtol=0, atol=torch.finfo(x.dtype).eps * 4100)


# Shapes, masks, special values.


@each
def test_dim(function):
    x = torch.stack([X, 2 * X, X - 1])
    expected = function(x, eps=0.5)
    over_rows = function(x.movedim(-1, 1), eps=0.5, dim=1)
    lost = expected.shape[-1] == 2  # a quantile has no such dimension
    assert_close(over_rows, expected if lost else expected.movedim(-1, 1))
    assert_close(function(x[1, 0], eps=0.5), expected[..., 1, 0] if lost else expected[1, 0])


def test_several_quantiles_come_first_as_in_torch():
    x = torch.randn(3, 4, 5)
    for q in (torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([0.1, 0.9]), torch.ones(0)):
        for dim in (0, 1, -1):
            assert soft_quantile(x, q, dim=dim).shape == x.quantile(q, dim).shape


@each
@pytest.mark.parametrize("fill", [NAN, INF, 1.0])
def test_masked_is_deleted(function, fill):
    kept = torch.tensor([True, False, True, True, False, True, False])
    x = X.masked_fill(~kept, fill).requires_grad_()
    short = X[:, kept].clone().requires_grad_()
    found, expected = function(x, eps=0.5, mask=kept), function(short, eps=0.5)
    if function in (FUNCTIONS["rank"], FUNCTIONS["rank 3"]):
        found = torch.cat([found[:, kept], found[:, ~kept]], -1)
    same, empty = found.tensor_split([expected.shape[-1]], -1)
    assert_close(same, expected)
    assert (empty == 0).all()
    grad = torch.autograd.grad(found.square().sum(), x)[0]
    assert_close(grad[:, kept], torch.autograd.grad(expected.square().sum(), short)[0])
    assert (grad[:, ~kept] == 0).all()


@each
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e30, 3e38])
def test_no_nan_comes_from_finite_scores(function, scale):
    for shape in [(2, 7), (0, 7), (2, 3, 4)]:
        for mask in (None, torch.rand(shape) > 0.5, torch.zeros(shape, dtype=torch.bool)):
            x = (torch.randn(shape).clamp(-1, 1) * scale).requires_grad_()
            result = function(x, mask=mask)
            grad = torch.autograd.grad(result.clamp(-1, 1).sum(), x)[0]
            assert result.isfinite().all()
            assert grad.isfinite().all()


def test_infinite_scores_keep_their_place():
    x = torch.tensor([1.0, INF, -INF, 3.0, INF, 2.0])
    cold = {"eps": 1e-3}
    assert soft_sort(x, descending=True, **cold).tolist() == [INF, INF, 3, 2, 1, 0]
    assert soft_sort(x, **cold).tolist() == [-INF, 1, 2, 3, 0, 0]
    assert_close(soft_rank(x, descending=True, **cold), torch.tensor([5, 1.5, 0, 3, 1.5, 4]))
    quantiles = soft_quantile(x, torch.linspace(0, 1, 6), **cold)
    assert_close(quantiles, torch.tensor([-INF, 1, 2, 3, INF, INF]))
    assert soft_sort(torch.tensor([INF, -INF]), descending=True).tolist() == [INF, 0]
    assert soft_sort(torch.tensor([1.0, NAN, -INF])).isnan().all()


def test_one_element():
    for q in (0.0, 0.3, 1.0):
        assert soft_quantile(torch.tensor([3.0]), q).item() == 3
    assert soft_sort(torch.tensor([3.0])).item() == 3
    assert soft_rank(torch.tensor([3.0])).item() == 1


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(function, dtype):
    x = X.to(dtype)
    result = function(x, eps=0.5)
    assert result.dtype is dtype
    assert_close(result.float(), function(x.float(), eps=0.5).to(dtype).float())


# Derivatives.


@each
def test_gradients(function):
    x = X[:, :5].clone().requires_grad_()
    eps = torch.tensor([0.7, 2.0]).double().requires_grad_()
    assert gradcheck(lambda x, e: function(x, eps=e), (x, eps))
    assert gradcheck(lambda x: function(x, eps=1.0), x)


@each
def test_second_derivatives(function):
    x = X[:1, :4].clone().requires_grad_()
    assert gradgradcheck(lambda x: function(x, eps=1.0), x)


def test_the_derivative_in_q():
    x = X[:1, :4].clone().requires_grad_()
    q = torch.tensor([0.1, 0.4, 0.9]).double().requires_grad_()
    assert gradcheck(lambda x, q: soft_quantile(x, q, eps=1.0), (x, q))
    assert gradgradcheck(lambda x, q: soft_quantile(x, q, eps=1.0), (x, q))


@pytest.mark.parametrize("name", first("quantile", "quantiles", "sort", "rank 3"))
def test_compile(name):
    function = FUNCTIONS[name]
    mask = torch.arange(7) != 2
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    found, expected = compiled(x, eps=0.5, mask=mask), function(y, eps=0.5, mask=mask)
    assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(x.grad, y.grad)


# Wrong arguments.


@pytest.mark.parametrize("function", [soft_sort, soft_rank])
def test_arguments_of_an_order(function):
    for name, wrong, kind in (
        ("scores", X.int(), TypeError),
        ("k", 8, ValueError),
        ("k", torch.tensor(2), TypeError),
        ("eps", 0.0, ValueError),
        ("dim", 2, ValueError),
        ("descending", 1, TypeError),
        ("mask", X, TypeError),
    ):
        with pytest.raises(kind, match=rf"^{name}\b"):
            function(**{"scores": X, name: wrong})


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (1.1, "q must be between 0 and 1, got q=1.1"),
        (torch.tensor([0.5, -0.1]), "q must be between 0 and 1, got values from -0.1"),
        (torch.tensor([NAN]), "q must be between 0 and 1, got values from nan"),
        (
            torch.ones(1, 1),
            r"q must be .* at most one dimension, got torch.float32 of shape",
        ),
        (torch.tensor(1), "q must be .* floating tensor .*, got torch.int64"),
    ],
)
def test_q(q, message):
    with pytest.raises(ValueError, match=message):
        soft_quantile(X, q)


@pytest.mark.parametrize("function", [soft_sort, soft_rank])
def test_forward_mode_keeps_single_precision(function):
    """Sums over all ranks that cancel would not."""
    generator = torch.Generator().manual_seed(0)
    x, tangent = torch.randn(2, 150, generator=generator)

    def derivative(dtype):
        call = (lambda z: function(z, eps=1e-3)), (x.to(dtype),), (tangent.to(dtype),)
        return torch.func.jvp(*call)[1].double()

    exact = derivative(torch.float64)
    assert (derivative(torch.float32) - exact).norm() < 1e-4 * exact.norm()
