"""The soft top-k operators in float64, by methods that share no code with the package.

Both solve the transport problem with unit temperature `tau` = eps / 2: the unsorted operator by
bisection, the sorted one by a damped Newton method that checks its marginals.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Halves an interval of any width met here to the spacing of float64 numbers.
BISECTIONS = 64


def true_selection(scores: Tensor, k: int, tau: float | Tensor) -> Tensor:
    """A = sigmoid((x - t) / tau) with sum k, by bisection for t: (rows, n) -> (rows, n).

    `tau` is a number or has the shape (rows, 1).
    """
    x = scores.double()
    # At these ends A sums to more than n - 1 and to less than 1.
    margin = tau * math.log(x.shape[-1])
    low, high = x.amin(-1, keepdim=True) - margin, x.amax(-1, keepdim=True) + margin
    for _ in range(BISECTIONS):
        t = (low + high) / 2
        too_many = torch.sigmoid((x - t) / tau).sum(-1, keepdim=True) > k
        low, high = torch.where(too_many, t, low), torch.where(too_many, high, t)
    return torch.sigmoid((x - (low + high) / 2) / tau)


def true_ranking(scores: Tensor, k: int, tau: float) -> Tensor:
    """The sorted operator: (rows, n) -> (rows, n, k)."""
    return torch.stack([_true_ranks(row, k, tau) for row in scores.double()])


def _true_ranks(x: Tensor, k: int, tau: float) -> Tensor:
    """Newton's method for the k thresholds between the ranks of one row: (n,) -> (n, k).

    The plan is the softmax over ranks j = 0..k of the sum over l >= j of (x_i - threshold_l) / tau,
    and j + 1 elements come before threshold j. That is the minimum of a convex function of the
    thresholds, so a short enough step along Newton's direction shortens the residual.
    """
    ranks = torch.arange(1, k + 1).double()
    best = x.topk(k + 1).values
    distance = (x.unsqueeze(-1) - (best[:-1] + best[1:]) / 2) / tau  # from the answer at eps = 0

    def solve(shift: Tensor) -> tuple[Tensor, Tensor]:
        logits = (distance - shift).flip(-1).cumsum(-1).flip(-1)
        plan = torch.cat([logits, torch.zeros_like(logits[:, :1])], -1).softmax(-1)
        return plan, plan.cumsum(-1)[:, :k].sum(0) - ranks

    shift = torch.zeros_like(ranks)
    plan, residual = solve(shift)
    for _ in range(100):
        if residual.norm() < 1e-9:  # and about so large is the error in A
            return plan[:, :k]
        step = _newton_step(plan, residual, k)
        for _ in range(50):
            trial, trial_residual = solve(shift + step)
            if trial_residual.norm() < residual.norm():
                break
            step = step / 2
        shift, plan, residual = shift + step, trial, trial_residual
    raise RuntimeError(f"the true ranks are off by {residual.norm():.2g} at tau={tau:g}")


def _newton_step(plan: Tensor, residual: Tensor, k: int) -> Tensor:
    """The step of the k thresholds for a plan (n, k + 1) and its residual (k,)."""
    before, after = plan.cumsum(-1)[:, :k], plan.flip(-1).cumsum(-1).flip(-1)[:, 1:]
    upper = (before.mT @ after).triu()
    # A threshold that moves less than this has a residual of rounding only: it stays.
    scale = upper.diagonal().clamp(min=1e-12).rsqrt()
    hessian = scale.unsqueeze(-1) * (upper + upper.triu(1).mT) * scale
    hessian.fill_diagonal_(1.0)  # changes the clamped ones only
    return scale * torch.linalg.solve(hessian, scale * residual)
