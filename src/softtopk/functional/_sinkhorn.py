"""Entropic optimal transport between any two discrete distributions: Sinkhorn's algorithm.

    plan = argmin <cost, plan> + eps * sum_ij plan_ij log plan_ij,   plan 1 = mu,   plan^T 1 = nu

This is the general layer of the paper (its Algorithm 1, with the gradient of its Algorithm 4), run
in the log domain throughout, where it neither over- nor underflows at any eps. The two top-k
operators are special cases with faster solvers of their own; ``solver="sinkhorn"`` sends them here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._checks import (
    Strength,
    check_broadcast,
    check_choice,
    check_eps,
    check_integer,
    check_not_negative,
    check_rows,
    operand,
)
from .._dispatch import is_readable, is_traced, refuse_forward_mode
from ._autograd import batch_first, opaque
from ._rows import algebra_dtype, compute_dtype
from ._warnings import warn_of_convergence


@dataclass(frozen=True)
class Sinkhorn:
    """Solver setting: Sinkhorn's algorithm, as in the paper, whose 200 iterations are the default.

    Stops when the marginals are met to ``tol`` (L1 norm, of a total mass of one) or after
    ``max_iter`` iterations, then with a `ConvergenceWarning`.

    >>> Sinkhorn(max_iter=1000)
    Sinkhorn(max_iter=1000, tol=1e-06)
    """

    max_iter: int = 200
    tol: float = 1e-6

    def __post_init__(self) -> None:
        check_integer("max_iter", self.max_iter)
        check_not_negative("tol", self.tol)


Solver = Literal["exact", "sinkhorn"] | Sinkhorn


def sinkhorn_of(solver: Solver) -> Sinkhorn | None:
    """The setting that ``solver`` stands for, None for the exact solver."""
    if isinstance(solver, Sinkhorn):
        return solver
    if solver == "sinkhorn":
        return Sinkhorn()
    if solver != "exact":
        raise ValueError(f"solver must be 'exact', 'sinkhorn' or a Sinkhorn(...), got {solver!r}")
    return None


class EntropicPlan(NamedTuple):
    """Result of `entropic_plan`.

    plan (..., n, m); row_potential (..., n) and col_potential (..., m), with
    plan_ij = exp((row_potential_i + col_potential_j - cost_ij) / eps); for every problem of the
    batch the number of iterations, the residual (L1 distance of the row sums to mu), and whether it
    is within the tolerance.
    """

    plan: Tensor
    row_potential: Tensor
    col_potential: Tensor
    iterations: Tensor
    residual: Tensor
    converged: Tensor


def entropic_plan(
    cost: Tensor,
    mu: Tensor,
    nu: Tensor,
    eps: Strength,
    *,
    tol: float = 1e-6,
    max_iter: int = 1000,
    gradient: str = "implicit",
) -> EntropicPlan:
    r"""Entropic optimal transport plan, by Sinkhorn's algorithm.

    .. math::
        \Gamma = \arg\min_{\Gamma \ge 0} \langle C, \Gamma\rangle
        + \epsilon \sum_{ij} \Gamma_{ij} \log \Gamma_{ij}
        \quad\text{s.t.}\quad \Gamma 1 = \mu,\ \Gamma^\top 1 = \nu

    Args:
        cost: (..., n, m), floating. An entry of +inf forbids the pair.
        mu: (n,) or (..., n), not negative. An entry of zero takes the row out.
        nu: (m,) or (..., m), not negative, with the same sum as mu (to rounding, which is scaled
            away).
        eps: Regularisation, positive; a float or a tensor of shape (...).
        tol: Stop when the L1 norm of plan 1 - mu is at most this.
        max_iter: Stop after this many iterations, with a `ConvergenceWarning`.
        gradient: ``"implicit"`` differentiates the optimality conditions (the paper's appendix):
            O(n m) memory, whatever the number of iterations. ``"unrolled"`` differentiates
            through the iterations: O(n m) memory for each of them.

    Returns:
        An `EntropicPlan`. Plan and potentials carry gradients to cost, mu, nu and eps; the
        column potential is zero at the column of largest mass, which makes them unique.

    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> half = torch.tensor([0.5, 0.5])
    >>> result = entropic_plan(cost, half, half, eps=0.5)
    >>> result.plan
    tensor([[0.4404, 0.0596],
            [0.0596, 0.4404]])
    >>> result.iterations, result.converged
    (tensor(1), tensor(True))
    """
    Sinkhorn(max_iter, tol)  # checks both
    check_choice("gradient", gradient, ("implicit", "unrolled"))
    _check_problem(cost, mu, nu)
    batch = torch.broadcast_shapes(cost.shape[:-2], mu.shape[:-1], nu.shape[:-1])
    eps = check_eps(eps, batch)
    dtype = compute_dtype(cost.dtype)
    if not isinstance(eps, Tensor):
        eps = torch.full((1,), eps, dtype=dtype, device=cost.device)
    # Autograd functions do not broadcast by themselves.
    c = cost.to(dtype).expand(*batch, *cost.shape[-2:])
    rows = mu.to(dtype).expand(*batch, mu.shape[-1])
    cols = nu.to(dtype).expand(*batch, nu.shape[-1])
    # The sums may differ by a rounding, and no plan would meet both to better than that.
    total = cols.sum(-1, keepdim=True)
    cols = cols * (rows.sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0))
    strength = eps.to(dtype).expand(*batch, 1)

    solve = _solve if gradient == "unrolled" else _solve_implicit
    plan, f, g, iterations, residual = solve(c, rows, cols, strength, tol, max_iter)
    converged = residual <= tol
    own = cost.dtype
    return EntropicPlan(plan.to(own), f.to(own), g.to(own), iterations, residual.to(own), converged)


def _check_problem(cost: Tensor, mu: Tensor, nu: Tensor) -> None:
    if not isinstance(cost, Tensor) or not cost.is_floating_point() or cost.ndim < 2:
        found = f"{cost.dtype} of shape {tuple(cost.shape)}" if isinstance(cost, Tensor) else cost
        raise TypeError(f"cost must be a floating tensor of shape (..., n, m), got {found}")
    if 0 in cost.shape[-2:]:
        raise ValueError(f"cost must have n >= 1 and m >= 1, got shape {tuple(cost.shape)}")
    for name, marginal, size in (("mu", mu, cost.shape[-2]), ("nu", nu, cost.shape[-1])):
        if not isinstance(marginal, Tensor) or not marginal.is_floating_point():
            raise TypeError(f"{name} must be a floating tensor, got {marginal!r}")
        if marginal.ndim < 1 or marginal.shape[-1] != size:
            raise ValueError(
                f"{name} must have a last axis of size {size} to fit cost of shape "
                f"{tuple(cost.shape)}, got shape {tuple(marginal.shape)}"
            )
        check_broadcast(name, marginal.shape[:-1], cost.shape[:-2])
        if is_readable(marginal) and not bool(((marginal >= 0) & marginal.isfinite()).all()):
            raise ValueError(
                f"{name} must be finite and not negative, got values from "
                f"{marginal.min().item():g} to {marginal.max().item():g}"
            )
    if is_readable(mu) and is_readable(nu):
        total_mu, total_nu = mu.double().sum(-1), nu.double().sum(-1)
        gap = (total_mu - total_nu).abs() / torch.maximum(total_mu, total_nu).clamp(min=1e-300)
        rounding = max(torch.finfo(mu.dtype).eps, torch.finfo(nu.dtype).eps, 1e-7)
        if bool((gap > 10 * rounding).any()):
            raise ValueError(
                f"mu and nu must have the same sum, they differ by up to {gap.max().item():.2g} "
                "of it; divide each by its sum"
            )


def _plan(cost: Tensor, f: Tensor, g: Tensor, eps: Tensor) -> Tensor:
    # Potentials of -inf (no mass) meet costs of +inf (forbidden): both mean zero, never NaN.
    return torch.exp((f.unsqueeze(-1) + g.unsqueeze(-2) - cost) / eps.unsqueeze(-1))


def _solve(
    cost: Tensor, mu: Tensor, nu: Tensor, eps: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plan, potentials, iterations and residual; warns of problems that did not converge."""
    f, g, iterations, residual = _iterate(cost, mu, nu, eps, tol, max_iter)
    stopped = ~(residual <= tol) & ~cost.isnan().any(-1).any(-1)
    if is_readable(stopped) and bool(stopped.any()):
        warn_of_convergence(
            f"Sinkhorn stopped after {max_iter} iterations with a residual of "
            f"{residual[stopped].max().item():.2g} > tol={tol:g} in {int(stopped.sum())} of "
            f"{stopped.numel()} problems; raise max_iter or eps, or use the exact solver"
        )
    return _plan(cost, f, g, eps), f, g, iterations, residual


def _solve_implicit(cost: Tensor, *others: Any) -> Any:
    """`_solve` with the implicit derivative."""
    if not is_traced(cost):
        return _Implicit.apply(cost, *others)
    refuse_forward_mode()
    return _implicit_op(cost, *others)


def _iterate(
    cost: Tensor, mu: Tensor, nu: Tensor, eps: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Potentials (..., n), (..., m), iterations (...) and residual (...) of Sinkhorn's algorithm.

    Every problem stops by itself: what the others in the batch need does not change it.
    """
    score = -cost / eps.unsqueeze(-1)
    broken = score.isnan().any(-1).any(-1)
    log_q = torch.zeros_like(nu).masked_fill(broken.unsqueeze(-1), math.nan)
    log_p = _balance(score + log_q.unsqueeze(-2), mu, -1)
    iterations = torch.zeros(cost.shape[:-2], dtype=torch.int64, device=cost.device)
    residual = torch.full_like(iterations, math.nan, dtype=cost.dtype)
    active = ~broken
    for step in range(1, max_iter + 1):
        balanced = _balance(score + log_p.unsqueeze(-1), nu, -2)
        log_q = torch.where(active.unsqueeze(-1), balanced, log_q)
        next_p = _balance(score + log_q.unsqueeze(-2), mu, -1)
        # The next update knows the row sums of the present plan: mu_i p_i / next_p_i.
        ratio = torch.exp(torch.where(mu > 0, log_p - next_p, 0.0).detach())
        error = (mu.detach() * (ratio - 1.0).abs()).sum(-1)
        iterations = iterations + active
        residual = torch.where(active, error, residual)
        active = active & ~(error <= tol)
        if step == max_iter or (is_readable(active) and not bool(active.any())):
            break  # p stays the one that q was made from: the column sums are exact
        log_p = torch.where(active.unsqueeze(-1), next_p, log_p)
    # One constant is free. Fix it where there is most mass, so that the potentials are unique.
    anchor = log_q.gather(-1, nu.argmax(-1, keepdim=True))
    anchor = torch.where(anchor == -math.inf, 0.0, anchor)  # a problem without mass
    return eps * (log_p + anchor), eps * (log_q - anchor), iterations, residual


def _balance(score: Tensor, marginal: Tensor, dim: int) -> Tensor:
    """The scaling, in logarithms, that gives exp(score) the marginal along ``dim``."""
    positive = marginal > 0
    log_marginal = torch.log(torch.where(positive, marginal, 1.0))
    return torch.where(positive, log_marginal - torch.logsumexp(score, dim), -math.inf)


def _solve_kkt(
    plan: Tensor, nu: Tensor, right_mu: Tensor, right_nu: Tensor
) -> tuple[Tensor, Tensor]:
    """Solve [[diag mu, plan], [plan^T, diag nu]] [a; b] = [right_mu; right_nu], b anchored at 0.

    mu is taken from the plan itself: where Sinkhorn was stopped early the equations would otherwise
    contradict each other, and the solution of a nearly singular system would be without bound.
    Eliminating a leaves the paper's matrix diag(nu) - plan^T diag(1/mu) plan, of the size of nu.
    It is the Laplacian of a graph on the columns, so its diagonal is the sum of the other entries
    of the row, which does not cancel as the paper's difference does when the plan is nearly 0-1.
    """
    dtype = algebra_dtype(plan)
    mu = plan.sum(-1)
    inverse_mu = torch.where(mu > 0, 1.0 / torch.where(mu > 0, mu, 1.0), 0.0)
    wide = plan.to(dtype)
    link = (wide * inverse_mu.to(dtype).unsqueeze(-1)).mT @ wide
    link = link - torch.diag_embed(link.diagonal(dim1=-2, dim2=-1))
    degree = link.sum(-1)
    # Columns that have lost contact with the others, one by one or in groups, would make the matrix
    # singular. What passes between them is below rounding, and so is the derivative.
    rounding = torch.finfo(plan.dtype).eps
    matrix = torch.diag_embed(degree * (1.0 + rounding)) - link
    column = torch.arange(nu.shape[-1], device=nu.device)
    fixed = (column == nu.argmax(-1, keepdim=True)) | (degree <= rounding * nu)
    matrix = matrix.masked_fill(fixed.unsqueeze(-1) | fixed.unsqueeze(-2), 0.0)
    matrix = matrix + torch.diag_embed(fixed.to(dtype))
    right = right_nu - (plan * (right_mu * inverse_mu).unsqueeze(-1)).sum(-2)
    right = right.masked_fill(fixed, 0.0)
    b = torch.linalg.solve_ex(matrix, right.to(dtype)).result.to(plan.dtype)
    a = (right_mu - (plan * b.unsqueeze(-2)).sum(-1)) * inverse_mu
    return a, b


class _Implicit(torch.autograd.Function):
    """cost, mu, nu, eps (..., 1) -> plan, both potentials, iterations, residual.

    The derivative is written in ordinary operations on inputs and the *output* plan, so that it can
    itself be differentiated.
    """

    @staticmethod
    def forward(
        cost: Tensor, mu: Tensor, nu: Tensor, eps: Tensor, tol: float, max_iter: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return _solve(cost, mu, nu, eps, tol, max_iter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, _, nu, eps, _, _ = inputs
        plan, _, _, iterations, residual = output
        ctx.mark_non_differentiable(iterations, residual)
        ctx.save_for_backward(plan, nu, eps)
        ctx.save_for_forward(plan, nu, eps)

    @staticmethod
    def backward(
        ctx: Any, grad_plan: Tensor, grad_f: Tensor, grad_g: Tensor, *_: Any
    ) -> tuple[Tensor | None, ...]:
        plan, nu, eps = ctx.saved_tensors
        weighted = grad_plan * plan / eps.unsqueeze(-1)
        a, b = _solve_kkt(plan, nu, weighted.sum(-1) + grad_f, weighted.sum(-2) + grad_g)
        grad_cost = plan * (a.unsqueeze(-1) + b.unsqueeze(-2)) - weighted
        grad_eps = (grad_cost * _log(plan)).sum((-2, -1)).unsqueeze(-1)
        return grad_cost, eps * a, eps * b, grad_eps, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_Implicit.apply, info.batch_size, in_dims, inputs)

    @staticmethod
    def jvp(
        ctx: Any, d_cost: Tensor, d_mu: Tensor, d_nu: Tensor, d_eps: Tensor, *_: None
    ) -> tuple[Tensor | None, ...]:
        plan, nu, eps = ctx.saved_tensors
        moved = plan * (d_cost + _log(plan) * d_eps.unsqueeze(-1))
        a, b = _solve_kkt(plan, nu, moved.sum(-1) + eps * d_mu, moved.sum(-2) + eps * d_nu)
        d_plan = (plan * (a.unsqueeze(-1) + b.unsqueeze(-2)) - moved) / eps.unsqueeze(-1)
        return d_plan, a, b, None, None


def _log(plan: Tensor) -> Tensor:
    """log plan, and 0 where there is no mass and so no derivative."""
    return torch.log(torch.where(plan > 0, plan, 1.0))


def _checked_solve(
    cost: Tensor, mu: Tensor, nu: Tensor, eps: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    check_rows(cost, axes=2)
    (*batch, n, m), dtype = cost.shape, cost.dtype
    mu, nu = operand("mu", mu, (*batch, n), dtype), operand("nu", nu, (*batch, m), dtype)
    eps = operand("eps", eps, (*batch, 1), dtype)
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    return _solve(cost, mu, nu, eps, tol, max_iter)


def _fake_plan(
    cost: Tensor, mu: Tensor, nu: Tensor, eps: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, ...]:
    batch = cost.shape[:-2]
    iterations = cost.new_empty(batch, dtype=torch.int64)
    plan, residual = cost.new_empty(cost.shape), cost.new_empty(batch)
    return plan, cost.new_empty(mu.shape), cost.new_empty(nu.shape), iterations, residual


_implicit_op = opaque(
    "softtopk::entropic_plan",
    "(Tensor cost, Tensor mu, Tensor nu, Tensor eps, float tol, int max_iter)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _checked_solve,
    fake=_fake_plan,
    setup_context=_Implicit.setup_context,
    backward=_Implicit.backward,
)
