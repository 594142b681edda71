"""The sorted operator: k thresholds per row, one between each rank and the next.

Element i has rank j with probability P_ij, the softmax over ranks j = 0..k ("k" stands for all the
places after the last) of

    L_ij = sum_{l = j}^{k-1} a_il,    L_ik = 0,    a_il = (x_i - threshold_l) / tau.

With M_ij = P(rank of i <= j) and N_ij = 1 - M_ij, the marginals ask for sum_i M_ij = j + 1. As for
the unsorted operator (`_threshold`), each threshold is measured from its own pivot, the (j+1)-th
largest score, and each equation is put as a balance of two leaks, summed directly, in logarithms:

    h_j(offset) = log sum_{i not in top_j} M_ij - log sum_{i in top_j} N_ij = 0.

Two things make Newton's method on h converge in 6 steps or fewer wherever we looked (see tests).

The start. In the middle of its gap a threshold is right when cold, and by symmetry also when
evenly spaced neighbours blur over many ranks; what is left comes from the two ends, where one
Sinkhorn sweep deals with it. (Balancing the leaks of each threshold by itself is a bad start: an
element reaches rank j only past all the thresholds in between, so the errors add up.)

The safeguard. Where a row is cold at its top and hot in its bulk (heavy tails), a Newton step can
leave some rank with no element, and the Jacobian is then singular. One sweep after the step gives
every rank its mass back. So far from the root a step is a Newton step and a sweep.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import check_rows, is_readable, is_traced
from ._autograd import batch_first, opaque, refuse_forward_mode
from ._rows import algebra_dtype
from ._threshold import without_negligible
from ._warnings import warn_of_convergence

MAX_STEPS = 40
#: On an accelerator, look at the state of convergence (a synchronisation) once in so many steps.
CHECK_EVERY = 8


def ranking_of(d: Tensor) -> Tensor:
    """Differentiable plan P (..., n, k + 1) of the distances ``d`` (..., n, k) from `distances`."""
    if is_traced(d):
        refuse_forward_mode()
        return _Ranking.apply(d)
    return _RankingForwardMode.apply(d)


def plan_of(a: Tensor) -> Tensor:
    """P (..., n, k + 1) of the distances ``a`` (..., n, k) from the thresholds.

    L itself would be a sum of large numbers of both signs. Up to a constant per element it equals
    the following, which is 0 at the likeliest rank and adds up terms of one sign from there.
    """
    below = a.clamp(max=0.0).flip(-1).cumsum(-1).flip(-1)
    above = a.clamp(min=0.0).cumsum(-1)
    return torch.softmax(F.pad(below, (0, 1)) - F.pad(above, (1, 0)), -1)


def tails_of(plan: Tensor) -> tuple[Tensor, Tensor]:
    """M and N (..., n, k), each a sum of positive terms: 1 - M would have lost a small N."""
    return plan.cumsum(-1)[..., :-1], plan.flip(-1).cumsum(-1).flip(-1)[..., 1:]


def solve_ranking(d: Tensor) -> tuple[Tensor, int, Tensor]:
    """P (..., n, k + 1) without derivatives, the number of steps, and which rows converged."""
    precision = torch.finfo(d.dtype).eps
    far, near = 1.0, 0.25 * math.sqrt(precision)
    whole = d
    start = _middle_of_gaps(d)
    d = without_negligible(d, d[..., -1], 2.0 * start[..., -1:])
    w_top, column = _membership(d)
    t = _sweep(d, start, column)
    h, jacobian = _residual(d, t, w_top)
    norm = h.abs().amax(-1, keepdim=True)
    active = norm > precision
    for step in range(1, MAX_STEPS + 1):
        # Convergence is quadratic: a step from within the root of the precision reaches it.
        last = active & (norm <= near)
        new = t + _newton_step(jacobian, h)
        t = torch.where(last, new, t)
        active = active & ~last
        if (d.is_cpu or step % CHECK_EVERY == 0) and not bool(active.any()):
            break
        if not is_readable(norm) or bool((norm > far).any()):
            new = torch.where(norm > far, _sweep(d, new, column), new)
        h, jacobian = _residual(d, new, w_top)
        better = (h.abs().amax(-1, keepdim=True) < norm) | ~active
        if (d.is_cpu or step % CHECK_EVERY == 0) and not bool(better.all()):
            # Not seen in practice. A sweep by itself always makes progress, so replace the step.
            sweep = _sweep(d, t, column)
            sweep_h, sweep_jacobian = _residual(d, sweep, w_top)
            new, h = torch.where(better, new, sweep), torch.where(better, h, sweep_h)
            jacobian = torch.where(better.unsqueeze(-1), jacobian, sweep_jacobian)
        t = torch.where(active, new, t)
        norm = h.abs().amax(-1, keepdim=True)
    plan = plan_of(whole - t.nan_to_num(nan=0.0).unsqueeze(-2))
    return _touch_up(plan, column[..., :-1]), step, ~active.squeeze(-1)


def _membership(d: Tensor) -> tuple[Tensor, Tensor]:
    """Weight of every element in every top_j (..., n, k), and the mass of every rank (..., k + 1).

    Elements tied with a pivot share its place. A threshold without pivot (all distances infinite)
    has everything decided: its top are the elements at +inf.
    """
    above, tied = d > 0, d == 0
    n_above, n_tied = above.sum(-2), tied.sum(-2)
    places = torch.arange(1, d.shape[-1] + 1, device=d.device)
    share = (places - n_above).to(d.dtype) / n_tied.clamp(min=1)
    w_top = torch.where(above, 1.0, torch.where(tied, share.unsqueeze(-2), 0.0))
    filled = torch.where(n_tied > 0, places, n_above)
    first, last = torch.zeros_like(filled[..., :1]), torch.full_like(filled[..., :1], d.shape[-2])
    return w_top, torch.cat([first, filled, last], -1).diff(dim=-1).to(d.dtype)


def _middle_of_gaps(d: Tensor) -> Tensor:
    """Offsets (..., k) halfway between each pivot (d = 0) and the best element of the rest."""
    places = torch.arange(1, d.shape[-1] + 1, device=d.device)
    shared = (d >= 0).sum(-2) > places  # the pivot itself is in part in the rest
    below = torch.where(d < 0, d, -math.inf).amax(-2)
    lowest = -0.125 * torch.finfo(d.dtype).max
    return 0.5 * torch.where(shared & (d == 0).any(-2), 0.0, below).clamp(min=lowest)


def _sweep(d: Tensor, t: Tensor, column: Tensor) -> Tensor:
    """One Sinkhorn iteration in terms of thresholds: rows to one, then columns to their mass."""
    mass = plan_of(d - t.unsqueeze(-2)).sum(-2).clamp(min=torch.finfo(d.dtype).tiny)
    excess = torch.where(column > 0, torch.log(mass / column.clamp(min=1.0)), 0.0)
    return t - excess.diff(dim=-1)


def _touch_up(plan: Tensor, column: Tensor) -> Tensor:
    """A Sinkhorn iteration on the plan itself, for the last digits.

    The roundings of the k thresholds add up in L, and the columns of a hot row show it.
    """
    mass = plan[..., :-1].sum(-2)
    factor = torch.where(mass > 0, column / torch.where(mass > 0, mass, 1.0), 1.0)
    plan = plan * F.pad(factor, (0, 1), value=1.0).unsqueeze(-2)
    return plan / plan.sum(-1, keepdim=True)


def _residual(d: Tensor, t: Tensor, w_top: Tensor) -> tuple[Tensor, Tensor]:
    """h (..., k) and the negative of its Jacobian (..., k, k), which has positive entries.

    d M_ij / d t_l = -M_i,min(j,l) N_i,max(j,l): a product of two tails, never a difference.
    """
    tiny = torch.finfo(d.dtype).tiny
    upper, lower = tails_of(plan_of(d - t.unsqueeze(-2)))
    w_rest = 1.0 - w_top
    rest = (w_rest * upper).sum(-2).clamp(min=tiny)
    top = (w_top * lower).sum(-2).clamp(min=tiny)
    weight = w_rest / rest.unsqueeze(-2) + w_top / top.unsqueeze(-2)
    jacobian = torch.tril(_gram(weight * lower, upper))
    jacobian = jacobian + torch.triu(_gram(weight * upper, lower), 1)
    return torch.log(rest) - torch.log(top), jacobian


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """Sum over elements of a_ij b_il, (..., n, k) twice -> (..., k, k)."""
    dtype = algebra_dtype(a)
    return a.to(dtype).mT @ b.to(dtype)


def _newton_step(jacobian: Tensor, h: Tensor) -> Tensor:
    diagonal = jacobian.diagonal(dim1=-2, dim2=-1)
    regular = jacobian + torch.diag_embed((diagonal <= 0).to(jacobian.dtype))
    return torch.linalg.solve_ex(regular, h.to(jacobian.dtype)).result.to(h.dtype)


def _solve_covariance(upper: Tensor, lower: Tensor, right: Tensor) -> Tensor:
    """Solve H u = right (..., k) with H_jl = sum_i M_i,min(j,l) N_i,max(j,l).

    Scaled to a unit diagonal the matrix is well conditioned at every temperature: where a threshold
    is cold, its row and column vanish together. One that has all but vanished has no derivative;
    the root of the smallest number leaves room for the powers that second derivatives take.
    """
    half = torch.triu(_gram(upper, lower))
    matrix = half + torch.triu(half, 1).mT
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    alive = diagonal > math.sqrt(torch.finfo(upper.dtype).tiny)
    scale = torch.where(alive, torch.where(alive, diagonal, 1.0).rsqrt(), 0.0)
    scaled = scale.unsqueeze(-1) * matrix * scale.unsqueeze(-2)
    scaled = scaled + torch.diag_embed((~alive).to(matrix.dtype))
    solution = torch.linalg.solve_ex(scaled, scale * right.to(matrix.dtype)).result
    return (scale * solution).to(right.dtype)


def _covariance_times(upper: Tensor, lower: Tensor, u: Tensor) -> Tensor:
    """For every element the product of its own k x k matrix M_min N_max with u, in O(k)."""
    before = (upper * u).cumsum(-1)
    after = (lower * u).flip(-1).cumsum(-1).flip(-1)[..., 1:]
    return lower * before + upper * F.pad(after, (0, 1))


def pull_back(plan: Tensor, grad: Tensor) -> Tensor:
    """The derivative of the plan (..., n, k + 1) in the distances (..., n, k), times ``grad``.

    That in the distances from fixed thresholds is, with G_ij = sum_{l <= j} P_il grad_il and the
    rest of that sum, N_ij G_ij - M_ij (sum_l P_il grad_il - G_ij): products of small tails where a
    threshold is cold. A sum over ranks that has to cancel would leave noise, which the small
    matrix entries of such a threshold then divide.
    """
    upper, lower = tails_of(plan)
    before, after = tails_of(plan * grad)
    grad_a = lower * before - upper * after
    u = _solve_covariance(upper, lower, grad_a.sum(-2))
    return grad_a - _covariance_times(upper, lower, u.unsqueeze(-2))


def warn_unless_converged(converged: Tensor) -> None:
    if is_readable(converged) and not bool(converged.all()):
        warn_of_convergence(
            f"sorted_soft_topk did not converge in {int((~converged).sum())} rows; please report "
            "the scores"
        )


class _Ranking(torch.autograd.Function):
    """d (..., n, k) -> P (..., n, k + 1), with the implicit derivative.

    The derivative is written in ordinary operations on the *output* alone: P is the only tensor
    this function saves, and the derivative can itself be differentiated.
    """

    @staticmethod
    def forward(d: Tensor) -> Tensor:
        return _ranking_op(d) if is_traced(d) else _solve(d)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (plan,) = ctx.saved_tensors
        return pull_back(plan, grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(ranking_of, info.batch_size, in_dims, inputs)


class _RankingForwardMode(_Ranking):
    @staticmethod
    def jvp(ctx: Any, d_tangent: Tensor) -> Tensor:
        (plan,) = ctx.saved_tensors
        upper, lower = tails_of(plan)
        pull = _covariance_times(upper, lower, d_tangent).sum(-2)
        a_tangent = d_tangent - _solve_covariance(upper, lower, pull).unsqueeze(-2)
        l_tangent = F.pad(a_tangent.flip(-1).cumsum(-1).flip(-1), (0, 1))
        return plan * (l_tangent - (plan * l_tangent).sum(-1, keepdim=True))


def _solve(d: Tensor) -> Tensor:
    plan, _, converged = solve_ranking(d)
    warn_unless_converged(converged)
    return plan


def _checked_solve(d: Tensor) -> Tensor:
    check_rows(d, axes=2)
    return _solve(d)


_ranking_op = opaque(
    "softtopk::ranking",
    "(Tensor d) -> Tensor",
    _checked_solve,
    _Ranking,
    lambda d: d.new_empty(*d.shape[:-1], d.shape[-1] + 1),
)
