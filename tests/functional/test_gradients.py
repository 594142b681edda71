"""Derivatives: against finite differences in float64, and bounded at every temperature."""

import warnings

import numpy as np
import pytest
import reference
import torch
from paths import both_paths
from torch.autograd import gradcheck, gradgradcheck

from softtopk import (
    Sinkhorn,
    log_soft_topk,
    soft_topk,
    sorted_soft_topk,
    topk_threshold,
)

MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0]]).bool()
TIGHT = Sinkhorn(max_iter=5000, tol=1e-14)
OPERATORS = [
    pytest.param(soft_topk, id="soft"),
    pytest.param(log_soft_topk, id="log"),
    pytest.param(topk_threshold, id="threshold"),
    pytest.param(sorted_soft_topk, id="sorted"),
]


def leaf(*shape, seed=0, scale=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, dtype=torch.float64, generator=generator)
    return (scale * values + shift).requires_grad_()


def check(function, *inputs):
    """First derivatives in both modes, second derivatives in reverse over reverse."""
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    ("dim", "largest"),
    [
        (-1, True),
        (0, False),
        pytest.param(-1, False, marks=pytest.mark.slow),
        pytest.param(0, True, marks=pytest.mark.slow),
    ],
)
def test_scores_and_eps(operator, dim, largest):
    eps = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    scores = leaf(2, 6) if dim == -1 else leaf(6, 2)
    check(lambda x, e: operator(x, 2, eps=e, dim=dim, largest=largest), scores, eps)


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("k", [1, pytest.param(3, marks=pytest.mark.slow), 4, 6])
def test_masked_rows(operator, k):
    """Including rows with as many and with fewer elements than k."""

    def finite(x, e):
        result = operator(x, k, eps=e, mask=MASK)
        return torch.where(result.isfinite(), result, 0.0)

    check(finite, leaf(2, 6), torch.tensor(0.6, dtype=torch.float64, requires_grad=True))


def test_the_constant_logarithm_of_a_masked_element_moves_nothing(solver):
    """Whatever cotangent arrives at its -inf: the gradient is that with the element deleted."""
    scores, mask = leaf(6), MASK[0]
    log_a = log_soft_topk(scores, 2, eps=1.0, mask=mask, solver=solver)
    deleted = log_soft_topk(scores[mask], 2, eps=1.0, solver=solver)
    weight = torch.arange(1.0, 7.0, dtype=torch.float64)
    grads = [
        torch.autograd.grad(log_a, scores, weight)[0],
        torch.autograd.grad(deleted, scores, weight[mask])[0],
    ]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("operator", [soft_topk, log_soft_topk, topk_threshold])
@pytest.mark.parametrize("solver", ["exact", TIGHT], ids=["exact", "sinkhorn"])
def test_k(operator, solver):
    k = torch.tensor([1.3, 3.0], dtype=torch.float64, requires_grad=True)
    check(lambda x, k: operator(x, k, eps=3.0, solver=solver), leaf(2, 6), k)


@pytest.mark.parametrize("operator", OPERATORS)
def test_sinkhorn(operator):
    eps = torch.tensor([3.0, 5.0], dtype=torch.float64, requires_grad=True)
    check(lambda x, e: operator(x, 2, eps=e, solver=TIGHT), leaf(2, 6), eps)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("normalize", ["row", "batch"])
def test_normalised_cost_has_a_detached_divisor(operator, normalize, solver):
    """The same gradient as with the divisor put into eps by hand."""
    scores = leaf(2, 6)
    last = 2 if operator is sorted_soft_topk else 1
    cost = (scores.detach().unsqueeze(-1) - torch.arange(last + 1)).square()
    scale = cost.amax((1, 2)) if normalize == "row" else cost.amax().expand(2)
    options = {"largest": True, "solver": solver}
    ours = operator(scores, 2, eps=0.3, normalize=normalize, **options)
    by_hand = operator(scores, 2, eps=0.3 * scale, **options)
    torch.testing.assert_close(ours, by_hand, rtol=1e-9, atol=1e-10)
    weight = leaf(*ours.shape, seed=3).detach()
    grads = [torch.autograd.grad((weight * a).sum(), scores)[0] for a in (ours, by_hand)]
    torch.testing.assert_close(*grads, rtol=1e-7, atol=1e-9)


def test_third_derivative():
    scores = leaf(5)

    def second(x):
        (first,) = torch.autograd.grad(soft_topk(x, 2, eps=2.0).pow(3).sum(), x, create_graph=True)
        (result,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        return result

    assert gradcheck(second, (scores,))


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
def test_gradient_of_ties(operator):
    """At a tie the hard selection jumps; the soft one is smooth, and its gradient symmetric."""
    scores = torch.tensor([[1.0, 0.0, 0.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    check(lambda x: operator(x, 2, eps=0.7), scores)
    soft = soft_topk(scores, 2, eps=0.7)
    jacobian = torch.stack([torch.autograd.grad(a, scores, retain_graph=True)[0] for a in soft[0]])
    torch.testing.assert_close(jacobian[1, 0, 2], jacobian[2, 0, 1])


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("family", ["normal", "cauchy", "tied", "clustered"])
def test_gradients_are_finite_and_bounded_at_every_temperature(operator, family):
    """Also where all is saturated. Any first derivative of A in the scores is below 1 / tau."""
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor(reference.score_families(np.random.default_rng(0), 200)[family])
        spread = (x.max() - x.min()).item()
        for exponent in range(-6, 4):
            scores = x.to(dtype).requires_grad_()
            eps = torch.tensor(10.0**exponent * spread, dtype=dtype, requires_grad=True)
            inputs = [scores, eps]
            k = 7
            if operator is not sorted_soft_topk:
                k = torch.tensor(7.0, dtype=dtype, requires_grad=True)
                inputs.append(k)
            result = operator(scores, k, eps=eps)
            weight = torch.rand(result.shape, dtype=dtype)
            grads = torch.autograd.grad((weight * result).sum(), inputs, create_graph=True)
            assert all(grad.isfinite().all() for grad in grads), (dtype, exponent)
            if operator in (soft_topk, sorted_soft_topk):
                assert grads[0].abs().max() <= 2.0 / eps * 1.01
            second = torch.autograd.grad(grads[0].sum(), scores)[0]
            assert not second.isnan().any(), (dtype, exponent)


@both_paths
@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_single_precision_gradients_are_right(operator):
    """Against double precision: to rounding of the largest that derivatives can be, 1 / tau."""
    x = torch.randn(3, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for eps in (1e-3, 1e-2, 0.1, 1.0, 100.0):
        grads = []
        for dtype in (torch.float32, torch.float64):
            scores = x.float().to(dtype).requires_grad_()
            result = operator(scores, 10, eps=eps)
            weight = torch.linspace(-1, 1, result.numel(), dtype=dtype).reshape(result.shape)
            grads.append(torch.autograd.grad((weight * result).sum(), scores)[0].double())
        assert (grads[0] - grads[1]).abs().max() <= 1e-6 * 2 / eps


def test_unconverged_sinkhorn_still_has_a_finite_gradient():
    scores = torch.randn(10, 100, requires_grad=True)
    for operator in (soft_topk, sorted_soft_topk):
        for eps in (1e-1, 1e-3, 1e-5):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = operator(scores, 9, eps=eps, normalize="batch", solver="sinkhorn")
            (grad,) = torch.autograd.grad(result.square().sum(), scores)
            assert grad.isfinite().all()
