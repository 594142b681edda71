"""The formulas of docs/maths.md hold for the operators. Others are tested with the operators."""

import math

import pytest
import torch

from softtopk import balanced_soft_topk, eps_for, soft_topk, sorted_soft_topk, topk_threshold

EPS, K = 0.7, 4
TAU = EPS / 2


@pytest.fixture
def x():
    return torch.randn(12, dtype=torch.float64)


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)


def test_one_unknown(x):
    t = topk_threshold(x, K, eps=EPS)
    close(soft_topk(x, K, eps=EPS), torch.sigmoid((x - t) / TAU))


def test_the_slope_of_the_balance_lies_between_minus_two_and_minus_one(x):
    d = (x - x.topk(K).values[-1]) / TAU
    top = d >= 0
    root = (topk_threshold(x, K, eps=EPS) - x.topk(K).values[-1]) / TAU
    for u in (-30.0, -1.0, 0.0, root.item(), 2.0, 30.0):
        offset = torch.tensor(u, dtype=torch.float64, requires_grad=True)
        out, into = torch.sigmoid(offset - d[top]), torch.sigmoid(d[~top] - offset)
        h = into.sum().log() - out.sum().log()
        (slope,) = torch.autograd.grad(h, offset)
        assert -2 <= slope <= -1
        assert u + min(h / 2, h) - 1e-9 <= root <= u + max(h / 2, h) + 1e-9


def test_derivatives_in_k_and_tau(x):
    k = torch.tensor(float(K), dtype=torch.float64)
    eps = torch.tensor(EPS, dtype=torch.float64)
    in_k, in_eps = torch.autograd.functional.jacobian(lambda k, e: soft_topk(x, k, eps=e), (k, eps))
    a = soft_topk(x, K, eps=EPS)
    s, z = a * (1 - a), a.logit()
    w = s / s.sum()
    close(in_k, w)
    close(2 * in_eps, -(s / TAU) * (z - (w * z).sum()))


def test_the_gradient_of_the_sorted_operator(x):
    x.requires_grad_()
    plan = sorted_soft_topk(x, K, eps=EPS)
    up_to = plan.detach().cumsum(-1)
    j = torch.arange(K)
    low, high = torch.minimum(j[:, None], j), torch.maximum(j[:, None], j)
    covariance = up_to[:, low] * (1 - up_to[:, high])  # (n, K, K)
    jacobian = torch.autograd.functional.jacobian(lambda x: sorted_soft_topk(x, K, eps=EPS), x)
    dx = torch.randn(12, dtype=torch.float64)
    right = (covariance.sum(-1) * dx[:, None]).sum(0)
    dt = torch.linalg.solve(covariance.sum(0), right)
    moved = (covariance * (dx[:, None, None] - dt)).sum(-1) / TAU
    close((jacobian @ dx).cumsum(-1), moved)


def test_prices():
    x = torch.randn(20, 5, dtype=torch.float64)
    x[:, 0] += 2.0  # which all want
    found = balanced_soft_topk(x, 2, capacity=9, eps=EPS)
    assert found.prices[0] > 0
    assert (found.prices >= 0).all()
    # What is left of the logits is a number for each row.
    row = x - found.prices - TAU * found.selection.logit()
    torch.testing.assert_close(row, row[:, :1].expand_as(row), rtol=1e-6, atol=1e-6)


def test_the_width_of_evenly_spaced_scores():
    x = torch.linspace(0, 1, 201, dtype=torch.float64)
    eps = eps_for(x, 100, width=20, per_row=False)
    # The search finds the least eps that has as many, and the window ends between two scores.
    between_gaps = [(x[100 + m] - x[100 - m]).item() / math.log(19) for m in (9, 11)]
    assert between_gaps[0] <= eps <= between_gaps[1]
