"""Derivatives in the scores, against finite differences in float64."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from softtopk import Sinkhorn
from softtopk.relaxations import hard_topk, neural_sort, relaxed_subset, sinkhorn_sort

MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 0, 1, 1, 1, 0]]).bool()


def leaf(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("k", [2, 6])
def test_scores(any_relaxation, k, mask):
    def function(x):
        return any_relaxation(x, k, eps=0.7, mask=mask)

    assert gradcheck(function, leaf(2, 6), check_forward_ad=True)
    assert gradgradcheck(function, leaf(2, 6))


def test_ties_have_the_derivative_for_the_order_of_the_sort():
    tied = torch.tensor([1.0, 0.3, 1.0, -0.2, 0.3], dtype=torch.float64)
    apart = tied - 1e-9 * torch.arange(5)
    weights = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    slopes = [
        torch.func.grad(lambda x: (neural_sort(x, 2, eps=0.7) * weights).sum())(scores)
        for scores in (tied, apart)
    ]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-6)


def test_the_sort_by_sinkhorns_algorithm():
    solver = Sinkhorn(max_iter=5000, tol=1e-13)
    assert gradcheck(lambda x: sinkhorn_sort(x, 2, eps=0.1, solver=solver), leaf(2, 5))


def test_the_hard_selection_has_a_gradient_of_zero():
    scores = leaf(2, 5)
    (slope,) = torch.autograd.grad(hard_topk(scores, 2).square().sum(), scores)
    assert torch.equal(slope, torch.zeros_like(slope))


def test_the_subset_has_its_gradient_in_every_transform():
    scores = leaf(3, 5).detach()

    def function(x):
        return relaxed_subset(x, 2, eps=0.5, noise=False)

    reverse = torch.func.vmap(torch.func.jacrev(function))(scores)
    forward = torch.func.vmap(torch.func.jacfwd(function))(scores)
    torch.testing.assert_close(forward, reverse)
