"""Inputs at the edge: cold gaps with large cotangents, ties, subclasses, defaults of torch, and the
custom operators called by anyone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from paths import both_paths
from torch.testing import assert_close

from softtopk import (
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)

INF = math.inf
OPERATORS = {
    "soft": soft_topk,
    "log": log_soft_topk,
    "threshold": topk_threshold,
    "softmax": soft_topk_softmax,
    "sorted": sorted_soft_topk,
}
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())


def derivatives(operator, x, k, eps, weight, direction):
    """First derivatives in scores and eps, and the derivatives of the first along ``direction``."""
    x, eps = x.clone().requires_grad_(), torch.tensor(eps, dtype=x.dtype, requires_grad=True)
    y = operator(x, k, eps=eps)
    y = torch.where(y.isfinite(), y, 0.0)
    first = torch.autograd.grad(
        (weight * y).sum(), (x, eps), create_graph=True, materialize_grads=True
    )
    slope = (direction * first[0]).sum()
    if not slope.requires_grad:  # everything is selected
        return first
    return *first, *torch.autograd.grad(slope, (x, eps), materialize_grads=True)


@st.composite
def cold_rows(draw):
    """Scores with gaps of up to 400 temperatures, where float32 holds nothing but its smallest
    numbers, and ties."""
    n = draw(st.integers(2, 8))
    gap = st.sampled_from([0.0, 1.0, 40.0, 88.0, 95.0, 104.0, 168.0, 208.0]) | st.floats(0, 400)
    gaps = torch.tensor(draw(st.lists(gap, min_size=n, max_size=n)))
    order = torch.tensor(draw(st.permutations(range(n))))
    return gaps.cumsum(0)[order], draw(st.integers(1, n))


@both_paths
@every_operator
@given(row=cold_rows(), log_size=st.floats(0, 8), seed=st.integers(0, 99))
def test_single_precision_derivatives_at_cold_gaps(operator, row, log_size, seed):
    """They are finite, and those of double precision to rounding."""
    scores, k = row
    generator = torch.Generator().manual_seed(seed)
    shape = operator(scores, k).shape
    weight = 10**log_size * torch.randn(shape, generator=generator)
    direction = torch.randn(len(scores), generator=generator)
    single = derivatives(operator, scores, k, 2.0, weight, direction)
    double = derivatives(operator, scores.double(), k, 2.0, weight.double(), direction.double())
    # The rounding of a distance is in units of the largest.
    size = float(weight.abs().max()) * (1.0 + float(scores.abs().max()))
    for found, truth in zip(single, double, strict=True):
        assert found.isfinite().all()
        assert_close(found.double(), truth, rtol=0, atol=2e-6 * size)


def test_the_sorted_gradient_by_torch_func_at_cold_gaps():
    scores = torch.tensor([0.0, 1.0, 2.0, 210.0, 211.0, 212.0])
    weight = 1e3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(19))

    def gradient(x):
        return torch.func.grad(
            lambda z: (sorted_soft_topk(z, 4, eps=2.0) * weight.to(x.dtype)).sum()
        )(x)

    assert_close(gradient(scores).double(), gradient(scores.double()), rtol=1e-5, atol=1e-3)


@both_paths
def test_the_higher_derivatives_of_nearly_saturated_rows():
    scores = torch.tensor([0.0, 168.0, 400.0], requires_grad=True)
    weight = torch.tensor([1e3, 0.0, 0.0])
    slope = soft_topk(scores, 2, eps=2.0)
    for _ in range(3):
        (slope,) = torch.autograd.grad(slope, scores, weight, create_graph=True)
        assert_close(slope, torch.zeros(3))


@both_paths
@pytest.mark.parametrize("eps", [1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("k", [1, 2, 3, 2.5])
@pytest.mark.parametrize("operator", [log_soft_topk, topk_threshold])
def test_cold_gradients_with_ties(operator, k, eps):
    """In units of cotangent / tau; tied neighbours of the threshold share the weight equally."""
    scores = torch.tensor([0.0, 0.1, 0.1, 0.1, 0.5, 0.5, 0.8])
    found = []
    for dtype in (torch.float32, torch.float64):
        x = scores.to(dtype).requires_grad_()
        y = operator(x, k, eps=eps)
        weight = torch.linspace(-1.0, 2.0, y.numel()).to(dtype).view(y.shape)
        tau = 0.5 * eps if operator is log_soft_topk else 1.0
        found.append(tau * torch.autograd.grad(y, x, weight)[0])
    assert_close(found[0].double(), found[1], rtol=0, atol=1e-6)


@both_paths
@pytest.mark.parametrize("offset", [1e4, 1e6, -1e6])
@pytest.mark.parametrize("eps", [0.1, 20.0])
def test_the_softmax_does_not_change_with_a_shift(offset, eps):
    scores, weight = torch.arange(8.0), torch.linspace(-1.0, 1.0, 8)
    results = []
    for shift in (0.0, offset):
        x = (shift + scores).requires_grad_()
        w = soft_topk_softmax(x, 3, eps=eps)
        results.append((w.detach(), torch.autograd.grad(w, x, weight)[0]))
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, rtol=0, atol=1e-6)


class Sub(torch.Tensor):
    """A subclass that changes nothing, as libraries use them to carry a name."""


class Wrapper(torch.Tensor):
    """A subclass that takes every operation over, and passes it on to a tensor inside."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args, kwargs = torch.utils._pytree.tree_map_only(
            Wrapper, lambda wrapped: wrapped.inner, (args, kwargs or {})
        )
        return torch.utils._pytree.tree_map_only(torch.Tensor, Wrapper, function(*args, **kwargs))


@both_paths
@every_operator
def test_a_plain_subclass_is_an_ordinary_tensor(operator):
    scores = torch.randn(3, 6, requires_grad=True)
    named = scores.detach().as_subclass(Sub).requires_grad_()
    found, expected = operator(named, 2), operator(scores, 2)
    assert type(found) is Sub
    assert_close(found.as_subclass(torch.Tensor), expected, rtol=0, atol=0)
    weight = torch.randn(expected.shape)
    (slope,) = torch.autograd.grad(expected, scores, weight)
    found.backward(weight)
    assert_close(named.grad.as_subclass(torch.Tensor), slope, rtol=1e-6, atol=1e-7)


@both_paths
@every_operator
def test_a_wrapper_gets_the_operator(operator):
    scores = torch.randn(3, 6)
    found = operator(Wrapper(scores), 2)
    assert isinstance(found, Wrapper)
    assert_close(found.inner, operator(scores, 2))


@both_paths
@every_operator
@pytest.mark.parametrize(
    "options",
    [{}, {"hard": True}, {"solver": "sinkhorn"}, {"normalize": "row"}],
    ids=["exact", "hard", "sinkhorn", "normalised"],
)
def test_the_defaults_of_torch_do_not_matter(operator, options, other_defaults):
    if operator in (log_soft_topk, topk_threshold):
        options = {name: value for name, value in options.items() if name != "hard"}
    scores = torch.randn(3, 6, requires_grad=True)
    eps = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    mask = torch.rand(3, 6) > 0.1

    def results():
        y = operator(scores, 2, eps=eps, mask=mask, **options)
        y = torch.where(y.isfinite(), y, 0.0)
        first = torch.autograd.grad(y.square().sum(), (scores, eps), create_graph=True)
        return y.detach(), *first, *torch.autograd.grad(first[0].square().sum(), (scores, eps))

    expected = results()
    with other_defaults():
        found_there = results()
    for found, truth in zip(found_there, expected, strict=True):
        assert found.dtype is torch.float32
        assert_close(found, truth, rtol=0, atol=0)


OPS = torch.ops.softtopk


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, one: OPS.sorted_soft_topk(x, None, 0, one, True), "k must be"),
        (lambda x, one: OPS.sorted_soft_topk(x, None, 7, one, True), "k must be"),
        (lambda x, one: OPS.sorted_soft_topk(x, None, 2, one[:2], True), "tau of shape"),
        (lambda x, one: OPS.sorted_soft_topk(x.half(), None, 2, one, True), "float16"),
        (lambda x, one: OPS.soft_topk(x, x[:2] > 0, one, one, True), "mask of shape"),
        (lambda x, one: OPS.soft_topk(x, x, one, one, True), "mask must be torch.bool"),
        (lambda x, one: OPS.soft_topk(x, None, one[:2], one, True), "k of shape"),
        (lambda x, one: OPS.soft_topk(x[:, :0], None, one, one, True), "not empty"),
        (lambda x, one: OPS.offset(x, one[:2]), "k of shape"),
        (lambda x, one: OPS.offset(x, 7 * one), "k must be between 0 and 6"),
        (lambda x, one: OPS.offset(x, math.nan * one), "k must be between 0 and 6"),
        (lambda x, one: OPS.soft_topk(x, None, -one, one, True), "k must be between 0 and 6"),
        (lambda x, one: OPS.soft_topk(x, None, 7 * one, one, True), "k must be between 0 and 6"),
        (lambda x, one: OPS.soft_topk(x, None, one, 0 * one, True), "tau must be between"),
        (lambda x, one: OPS.soft_topk(x, None, one, one.to("meta"), True), "on one device"),
        (lambda x, one: OPS.sorted_soft_topk(x, None, 2, -one, True), "tau must be between"),
        (lambda x, one: OPS.ranking(x[0]), "last 2 axes not empty"),
        (lambda x, one: OPS.ranking(x), "as many ranks as elements"),
        (lambda x, one: OPS.entropic_plan(x, x[0], x[0], one[0], 1e-6, 9), "mu of shape"),
        (lambda x, one: OPS.entropic_plan(x, x[:, 0], x[0], one[0], 1e-6, 0), "max_iter"),
    ],
)
def test_custom_operators_check_their_arguments(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(torch.randn(3, 6), torch.ones(3, 1))


def test_the_gradient_operator_checks_its_arguments():
    scores, tau = torch.randn(3, 6), torch.ones(3, 1)
    a, pivots, offsets = OPS.sorted_soft_topk(scores, None, 2, tau, True)
    good = OPS.sorted_soft_topk_gradient(scores, None, pivots, offsets, a, tau, True)
    assert good.shape == scores.shape
    for pivots_, offsets_, grad in [
        (pivots[:2], offsets, a),
        (pivots, offsets[:, :1], a),
        (pivots, offsets[:, :0], a),
        (pivots, offsets[0, 0], a),
        (pivots, offsets, a[:2]),
        (pivots, offsets, a.double()),
    ]:
        with pytest.raises((ValueError, TypeError), match=r"of shape|must be"):
            OPS.sorted_soft_topk_gradient(scores, None, pivots_, offsets_, grad, tau, True)


def test_custom_operators_broadcast():
    scores, tau = torch.randn(3, 6), torch.full((1,), 0.5)
    mask = torch.tensor([True, True, False, True, True, False])
    found = OPS.soft_topk(scores, mask, torch.tensor([2]), tau, True)
    assert_close(found, soft_topk(scores, 2, eps=1.0, mask=mask))
    found = OPS.sorted_soft_topk(scores, mask, 2, tau, True)[0]
    assert_close(found, sorted_soft_topk(scores, 2, eps=1.0, mask=mask))


@pytest.mark.parametrize("in_dim", [0, 1])
def test_custom_operators_map_over_any_axis(in_dim):
    scores, one = torch.randn(3, 6), torch.ones(1)
    mapped = torch.vmap(lambda x: OPS.soft_topk(x, None, 2 * one, one, True), in_dims=in_dim)
    assert_close(mapped(scores.T if in_dim else scores), soft_topk(scores, 2, eps=2.0))


def test_no_rank_at_all_is_still_a_function_of_the_scores(solver):
    scores = torch.randn(3, 6, requires_grad=True)
    ranks = sorted_soft_topk(scores, 0, solver=solver)
    assert ranks.shape == (3, 6, 0)
    (slope,) = torch.autograd.grad(ranks.sum(), scores)
    assert_close(slope, torch.zeros(3, 6))


@both_paths
@pytest.mark.parametrize("largest", [True, False])
@given(data=st.data())
def test_hard_takes_the_first_of_equal_scores(largest, data):
    n = data.draw(st.integers(1, 40), "n")
    k = data.draw(st.integers(0, n), "k")
    values = st.lists(st.sampled_from([0.0, 1.0, 2.0, INF, -INF]), min_size=n, max_size=n)
    scores = torch.tensor(data.draw(values, "scores"))
    excluded = scores == (-INF if largest else INF)
    order = sorted(range(n), key=lambda i: -scores[i] if largest else scores[i])[:k]
    ranking = torch.zeros(n, k)
    ranking[order, range(k)] = 1.0
    ranking[excluded] = 0.0
    for count in (k, torch.tensor(k)):
        found = soft_topk(scores, count, hard=True, largest=largest)
        assert_close(found, ranking.sum(-1))
    found = sorted_soft_topk(scores, k, hard=True, largest=largest)
    assert_close(found, ranking)
    if largest and k and torch.isfinite(scores).all():
        kept = scores.masked_fill(ranking.sum(-1) == 0, -INF).softmax(-1)
        for count in (k, torch.tensor(k)):
            assert_close(soft_topk_softmax(scores, count, hard=True), kept)


@both_paths
def test_a_differentiable_eps_at_a_small_scale():
    """Its square is no number of float32."""
    scores, scale = torch.tensor([1.0, 2.0, 3.0]), 1e-25
    eps = torch.tensor(scale, requires_grad=True)
    found = log_soft_topk(scale * scores, 1, eps=eps)
    torch.testing.assert_close(found.detach(), log_soft_topk(scores, 1, eps=1.0))
