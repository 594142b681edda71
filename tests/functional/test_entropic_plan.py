"""The general layer: any cost, any marginals."""

import math
import warnings

import numpy as np
import pytest
import reference
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from softtopk import ConvergenceWarning, entropic_plan


def problem(*batch, n=5, m=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(*batch, n, m, dtype=torch.float64, generator=generator)
    mu = torch.rand(*batch, n, dtype=torch.float64, generator=generator)
    nu = torch.rand(*batch, m, dtype=torch.float64, generator=generator)
    return cost, mu / mu.sum(-1, keepdim=True), nu / nu.sum(-1, keepdim=True)


@pytest.mark.parametrize("eps", [0.01, 0.3, 10.0])
@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_values(eps, gradient):
    cost, mu, nu = problem(3)
    result = entropic_plan(cost, mu, nu, eps, tol=1e-12, max_iter=100_000, gradient=gradient)
    for row in range(3):
        args = cost[row].numpy(), mu[row].numpy(), nu[row].numpy(), eps
        truth = reference.sinkhorn_plan(*args, 1_000_000, tol=1e-13)
        np.testing.assert_allclose(result.plan[row].numpy(), truth, rtol=0, atol=1e-11)
    potentials = result.row_potential.unsqueeze(-1) + result.col_potential.unsqueeze(-2)
    assert_close(result.plan, torch.exp((potentials - cost) / eps))
    assert_close(result.plan.sum(-2), nu)
    assert result.converged.all()
    assert (result.residual <= 1e-12).all()
    assert (result.iterations >= 1).all()
    anchor = nu.argmax(-1, keepdim=True)
    assert (result.col_potential.gather(-1, anchor) == 0).all()


def test_sums_that_differ_by_a_rounding():
    cost, mu, nu = problem()
    options = {"tol": 1e-12, "max_iter": 1000}
    result = entropic_plan(cost, mu, nu * (1 + 1e-8), 0.3, **options)
    assert_close(result.plan, entropic_plan(cost, mu, nu, 0.3, **options).plan)


def test_marginals_broadcast_and_problems_stop_by_themselves():
    cost, _, _ = problem(4)
    cost[1:] *= torch.tensor([1.0, 10.0, 30.0]).view(3, 1, 1).double()
    mu, nu = torch.full((5,), 0.2).double(), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    eps = torch.tensor([0.5, 0.4, 0.5, 0.6]).double()
    together = entropic_plan(cost, mu, nu, eps, max_iter=20_000)
    for row in range(4):
        alone = entropic_plan(cost[row], mu, nu, eps[row].item(), max_iter=20_000)
        assert torch.equal(together.plan[row], alone.plan)
        assert together.iterations[row] == alone.iterations
    assert together.iterations.unique().numel() > 1


@pytest.mark.parametrize("gradient", ["implicit", "unrolled"])
def test_derivatives_in_everything(gradient):
    cost, mu, nu = problem(2)
    cost.requires_grad_()
    logits = [t.log().requires_grad_() for t in (mu, nu)]
    eps = torch.tensor([1.0, 3.0], dtype=torch.float64, requires_grad=True)

    def function(cost, mu, nu, eps):
        mu, nu = mu.softmax(-1), nu.softmax(-1)
        options = {"tol": 1e-14, "max_iter": 3000, "gradient": gradient}
        result = entropic_plan(cost, mu, nu, eps, **options)
        return result.plan, result.row_potential, result.col_potential

    inputs = cost, *logits, eps
    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs)


def test_implicit_and_unrolled_gradients_agree():
    cost, mu, nu = problem(3)
    cost.requires_grad_()
    grads = []
    for gradient in ("implicit", "unrolled"):
        options = {"tol": 1e-13, "max_iter": 10_000, "gradient": gradient}
        plan = entropic_plan(cost, mu, nu, 0.2, **options).plan
        grads.append(torch.autograd.grad(plan.square().sum(), cost)[0])
    assert_close(*grads, rtol=1e-8, atol=1e-10)


def test_rows_and_columns_without_mass():
    cost, mu, nu = problem()
    mu[1] = nu[2] = 0.0
    mu, nu = mu / mu.sum(), nu / nu.sum()
    cost.requires_grad_()
    rows, cols = [0, 2, 3, 4], [0, 1, 3]
    options = {"eps": 0.3, "tol": 1e-13, "max_iter": 5000}
    plan = entropic_plan(cost, mu, nu, **options).plan
    inner = entropic_plan(cost[rows][:, cols], mu[rows], nu[cols], **options).plan
    assert_close(plan[rows][:, cols], inner)
    assert (plan[1] == 0).all()
    assert (plan[:, 2] == 0).all()
    grads = [torch.autograd.grad(p.square().sum(), cost)[0] for p in (plan, inner)]
    assert_close(*grads)


def test_forbidden_pairs():
    cost, mu, nu = problem()
    mu, nu = torch.full((5,), 0.2).double(), torch.full((4,), 0.25).double()
    forbidden = cost.clone()
    forbidden[0, 1] = forbidden[3, 3] = math.inf
    expensive = torch.where(forbidden.isinf(), 1e3, forbidden)
    options = {"eps": 0.5, "tol": 1e-12, "max_iter": 5000}
    result = entropic_plan(forbidden, mu, nu, **options)
    assert result.plan[0, 1] == result.plan[3, 3] == 0
    assert_close(result.plan, entropic_plan(expensive, mu, nu, **options).plan)


def test_nan_stays_in_its_problem():
    cost, mu, nu = problem(2)
    clean = entropic_plan(cost[1], mu[1], nu[1], 0.5)
    cost[0, 0, 0] = math.nan
    result = entropic_plan(cost, mu, nu, 0.5)
    assert result.plan[0].isnan().all()
    assert result.converged.tolist() == [False, True]
    assert torch.equal(result.plan[1], clean.plan)


def test_stopping_early_warns_and_says_so():
    cost, mu, nu = problem(2)
    with pytest.warns(ConvergenceWarning, match=r"after 3 iterations .* in 2 of 2 problems"):
        result = entropic_plan(cost, mu, nu, 0.01, max_iter=3)
    assert not result.converged.any()
    assert (result.iterations == 3).all()
    violation = (result.plan.sum(-1) - mu).abs().sum(-1)
    assert_close(result.residual, violation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entropic_plan(cost, mu, nu, 5.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    cost, mu, nu = (t.to(dtype) for t in problem())
    if dtype != torch.float32:
        mu, nu = torch.full((5,), 0.2).to(dtype), torch.full((4,), 0.25).to(dtype)
    result = entropic_plan(cost, mu, nu, 0.5, tol=1e-3)
    assert result.plan.dtype == dtype
    exact = [t.double() / t.double().sum() for t in (mu, nu)]
    truth = entropic_plan(cost.double(), *exact, 0.5, tol=1e-3).plan
    assert_close(result.plan.double(), truth, rtol=0, atol=torch.finfo(dtype).eps)
