"""The sorted operator: k thresholds per row, one between each rank and the next.

Element i has rank j with probability P_ij, the softmax over ranks j = 0..k ("k" stands for all the
places after the last) of

    L_ij = sum_{l = j}^{k-1} a_il,    L_ik = 0,    a_il = (x_i - threshold_l) / tau.

With M_ij = P(rank of i <= j) and N_ij = 1 - M_ij, the marginals ask for sum_i M_ij = j + 1. As for
the unsorted operator (`_unsorted`), each threshold is measured from its own pivot, the (j+1)-th
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

The native library finds the derivative in the scores from these and the thresholds, making the plan
anew. Where that is to be differentiated, or eps has a derivative, plain operations take over.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from .._checks import (
    REALS,
    Dims,
    Strength,
    check_dims,
    check_flag,
    check_range,
    check_ranks,
    check_rows,
    operand,
)
from .._dispatch import (
    dense,
    in_onnx_export,
    is_immediate,
    is_readable,
    is_traced,
    library_for,
    may_differentiate,
    path_of,
    refuse_forward_mode,
    triton_for,
)
from ._autograd import batch_first, opaque
from ._mesh import takes_dtensors
from ._rows import (
    Normalize,
    Rows,
    algebra_dtype,
    batch_of,
    canonical,
    column,
    compute_dtype,
    distances,
    largest_of,
    per_row,
    rows_of,
    size_of,
    straight_through,
    without_negligible,
)
from ._sinkhorn import Sinkhorn, Solver, sinkhorn_of
from ._transport import ranking_by_sinkhorn
from ._warnings import warn_of_convergence

if TYPE_CHECKING:
    from ..kernels._triton import Triton

MAX_STEPS = 40
#: On an accelerator, look at the state of convergence (a synchronisation) once in this many steps.
CHECK_EVERY = 8

# The solver.


def rank_distances(x: Tensor, k: int, tau: Strength) -> Tensor:
    """Distances (..., n, k) from the pivot of every rank, of scores in canonical form."""
    pivots = x.detach().topk(k, dim=-1).values
    return distances(x, pivots, torch.arange(1, k + 1, device=x.device), tau)[0]


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


class Ranking(NamedTuple):
    """What the solver found."""

    plan: Tensor  #: P (..., n, k + 1)
    offsets: Tensor  #: of the thresholds from their pivots, in units of tau (..., k)
    steps: int
    converged: Tensor  #: (...)


def solve_ranking(d: Tensor) -> Ranking:
    """The plan of the distances ``d`` (..., n, k) from `rank_distances`, without derivatives."""
    precision = torch.finfo(d.dtype).eps
    far, near = 1.0, 0.25 * math.sqrt(precision)
    whole = d
    start = _middle_of_gaps(d)
    d = without_negligible(d, d[..., -1], 2.0 * start[..., -1:])
    w_top, mass = _membership(d)
    t = _sweep(d, start, mass)
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
            new = torch.where(norm > far, _sweep(d, new, mass), new)
        h, jacobian = _residual(d, new, w_top)
        better = (h.abs().amax(-1, keepdim=True) < norm) | ~active
        if (d.is_cpu or step % CHECK_EVERY == 0) and not bool(better.all()):
            # Not seen in practice. A sweep by itself always makes progress, so replace the step.
            sweep = _sweep(d, t, mass)
            sweep_h, sweep_jacobian = _residual(d, sweep, w_top)
            new, h = torch.where(better, new, sweep), torch.where(better, h, sweep_h)
            jacobian = torch.where(better.unsqueeze(-1), jacobian, sweep_jacobian)
        t = torch.where(active, new, t)
        norm = h.abs().amax(-1, keepdim=True)
    t, converged = t.nan_to_num(nan=0.0), ~active.squeeze(-1)
    _warn_unless(converged)
    plan = _touch_up(plan_of(whole - t.unsqueeze(-2)), mass[..., :-1])
    return Ranking(plan, t, step, converged)


def _warn_unless(converged: Tensor) -> None:
    if is_readable(converged) and not bool(converged.all()):
        warn_of_convergence(
            f"sorted_soft_topk did not converge in {int((~converged).sum())} rows; please report "
            "the scores"
        )


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


# The derivative.


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


def _pull_back(plan: Tensor, grad: Tensor) -> Tensor:
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


class _Ranking(torch.autograd.Function):
    """d (..., n, k) -> P (..., n, k + 1), with the implicit derivative.

    The derivative is written in ordinary operations on the *output* alone: P is the only tensor
    this function saves, and the derivative can itself be differentiated.
    """

    @staticmethod
    def forward(d: Tensor) -> Tensor:
        return solve_ranking(d).plan

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (plan,) = ctx.saved_tensors
        return _pull_back(plan, grad)

    @staticmethod
    def jvp(ctx: Any, d_tangent: Tensor) -> Tensor:
        (plan,) = ctx.saved_tensors
        upper, lower = tails_of(plan)
        pull = _covariance_times(upper, lower, d_tangent).sum(-2)
        a_tangent = d_tangent - _solve_covariance(upper, lower, pull).unsqueeze(-2)
        # From the likeliest rank on, as in `plan_of`: elsewhere the long sums would cancel.
        ranks = torch.arange(a_tangent.shape[-1], device=plan.device)
        before = ranks < plan.detach().argmax(-1, keepdim=True)
        below = a_tangent.masked_fill(~before, 0.0).flip(-1).cumsum(-1).flip(-1)
        above = a_tangent.masked_fill(before, 0.0).cumsum(-1)
        l_tangent = F.pad(below, (0, 1)) - F.pad(above, (1, 0))
        return plan * (l_tangent - (plan * l_tangent).sum(-1, keepdim=True))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_Ranking.apply, info.batch_size, in_dims, inputs)


def _checked_ranking(d: Tensor) -> Tensor:
    check_rows(d, axes=2)
    if d.shape[-1] > d.shape[-2]:
        raise ValueError(f"d must have at most as many ranks as elements, got {tuple(d.shape)}")
    return solve_ranking(d).plan


_ranking_op = opaque(
    "softtopk::ranking",
    "(Tensor d) -> Tensor",
    _checked_ranking,
    fake=lambda d: d.new_empty(*d.shape[:-1], d.shape[-1] + 1),
    setup_context=_Ranking.setup_context,
    backward=_Ranking.backward,
)


def _plain_indicator(x: Tensor, k: int, tau: Strength) -> Tensor:
    """A (..., n, k) of scores in canonical form, differentiable in the scores and in tau."""
    d = rank_distances(x, k, tau)
    if not is_traced(d):
        return _Ranking.apply(d)[..., :k]
    refuse_forward_mode()
    return _ranking_op(d)[..., :k]


# The indicator A in one step, differentiable in the scores.


def rank_indicator(rows: Rows, k: int) -> Tensor:
    """A (..., n, k) by the exact solver; k > 0."""
    mask, tau, largest = rows.mask, rows.tau, rows.largest
    path = path_of(rows.given, fixed=(mask, tau))
    if path == "triton" and _accelerator_for(k, rows.given) is not None:
        return _RankIndicator.apply(rows.given, mask, k, tau, largest)
    x = rows.scores
    if path == "native":
        if may_differentiate(x):
            return _RankIndicator.apply(x, mask, k, tau, largest)
        return _solve(x, mask, k, tau, largest)[0]
    if path == "opaque":
        refuse_forward_mode()
        return _sorted_soft_topk_op(x, mask, k, column(tau, x), largest)[0]
    return _plain_indicator(rows.canonical().scores, k, tau)


def _accelerator_for(k: int, *tensors: Tensor) -> Triton | None:
    """The Triton kernels if they can work on these tensors now, with so many ranks."""
    accelerator = triton_for(*tensors)
    return None if accelerator is None or k > accelerator.most_ranks else accelerator


def _solve(
    x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A (..., n, k), and what the derivative by the native library needs of the thresholds: the
    k + 1 best scores in canonical form (..., k + 1), and the offsets (..., k) from the first k."""
    library = _accelerator_for(k, x) or (kernels.native() if x.is_cpu and x.numel() else None)
    if library is not None:
        mask = None if mask is None else mask.contiguous()
        a, pivots, offsets, converged = library.ranking(dense(x), mask, k, per_row(tau, x), largest)
        _warn_unless(converged)
        return a, pivots, offsets
    x = canonical(x, mask, largest)
    found = solve_ranking(rank_distances(x, k, tau))
    return found.plan[..., :k].contiguous(), _pivots(x, k), found.offsets.to(torch.float64)


def _pivots(x: Tensor, k: int) -> Tensor:
    """The k + 1 best scores (..., k + 1), all -inf where nothing is left to solve."""
    best = F.pad(x, (0, 1), value=-math.inf).topk(k + 1, dim=-1).values
    infinite = (x == math.inf).sum(-1, keepdim=True)
    decided = (infinite >= k) | (x.isfinite().sum(-1, keepdim=True) <= 1)
    return best.masked_fill(decided | x.isnan().any(-1, keepdim=True), -math.inf)


def _gradient(
    x: Tensor,
    mask: Tensor | None,
    thresholds: tuple[Tensor, Tensor],
    grad: Tensor,
    tau: Strength,
    largest: bool,
) -> Tensor:
    """The derivative of A in the scores, times ``grad`` (..., n, k)."""
    k = grad.shape[-1]
    wide = x.to(compute_dtype(x.dtype))
    if torch.is_grad_enabled():
        a = _plain_indicator(canonical(wide, mask, largest), k, tau)
        return torch.autograd.grad(a, x, grad.to(wide.dtype), create_graph=True)[0]
    library = _accelerator_for(k, x, grad) or library_for(wide, grad)
    if library is not None:
        mask = None if mask is None else mask.contiguous()
        return library.ranking_gradient(
            dense(x), mask, *thresholds, dense(grad), per_row(tau, x), largest
        )
    d = rank_distances(canonical(wide, mask, largest), k, tau)
    grad_d = _pull_back(solve_ranking(d).plan, F.pad(grad, (0, 1)))
    grad_d = grad_d.masked_fill(d.isinf() | x.isinf().unsqueeze(-1), 0.0)  # decided already
    return (grad_d.sum(-1) / (tau if largest else -tau)).to(x.dtype)


class _RankIndicator(torch.autograd.Function):
    """x (..., n), mask, k, tau, largest -> A (..., n, k), by kernels.

    Saves the scores and the thresholds, nothing of the size of A.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool
    ) -> Tensor:
        a, *thresholds = _solve(x, mask, k, tau, largest)
        ctx.save_for_backward(x, mask, *thresholds)
        ctx.tau, ctx.largest = tau, largest
        return a

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mask, *thresholds = ctx.saved_tensors
        grad_x = _gradient(x, mask, thresholds, grad, ctx.tau, ctx.largest)
        return grad_x, None, None, None, None


def _checked(
    scores: Tensor, mask: Tensor | None, k: int, tau: Tensor
) -> tuple[Tensor | None, Tensor]:
    check_rows(scores)
    if not 0 < k <= scores.shape[-1]:
        raise ValueError(f"k must be between 1 and n={scores.shape[-1]}, got k={k}")
    mask = None if mask is None else operand("mask", mask, scores.shape, torch.bool)
    tau = operand("tau", tau, (*scores.shape[:-1], 1), *REALS)
    check_range("tau", tau, torch.finfo(tau.dtype).tiny)
    return mask, tau


def _checked_solve(
    scores: Tensor, mask: Tensor | None, k: int, tau: Tensor, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    mask, tau = _checked(scores, mask, k, tau)
    return _solve(scores, mask, k, tau, largest)


def _checked_gradient(
    scores: Tensor,
    mask: Tensor | None,
    pivots: Tensor,
    offsets: Tensor,
    grad: Tensor,
    tau: Tensor,
    largest: bool,
) -> Tensor:
    k, batch = offsets.shape[-1] if offsets.ndim else 0, scores.shape[:-1]
    mask, tau = _checked(scores, mask, k, tau)
    thresholds = (
        operand("pivots", pivots, (*batch, k + 1), scores.dtype).contiguous(),
        operand("offsets", offsets, (*batch, k), torch.float64).contiguous(),
    )
    grad = operand("grad", grad, (*scores.shape, k), scores.dtype)
    with torch.no_grad():
        return _gradient(scores, mask, thresholds, grad, tau, largest)


_gradient_op = opaque(
    "softtopk::sorted_soft_topk_gradient",
    "(Tensor scores, Tensor? mask, Tensor pivots, Tensor offsets, Tensor grad, Tensor tau, "
    "bool largest) -> Tensor",
    _checked_gradient,
    fake=lambda scores, *_: scores.new_empty(scores.shape),
)


def _fake_solve(
    scores: Tensor, mask: Tensor | None, k: int, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    batch = scores.shape[:-1]
    offsets = scores.new_empty(*batch, k, dtype=torch.float64)
    return scores.new_empty(*scores.shape, k), scores.new_empty(*batch, k + 1), offsets


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, mask, _, tau, ctx.largest = inputs
    ctx.save_for_backward(x, mask, *output[1:], tau)
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, mask, pivots, offsets, tau = ctx.saved_tensors
    grad_x = _gradient_op(x, mask, pivots, offsets, grad, tau, ctx.largest)
    return grad_x, None, None, None, None


_sorted_soft_topk_op = opaque(
    "softtopk::sorted_soft_topk",
    "(Tensor scores, Tensor? mask, int k, Tensor tau, bool largest) -> (Tensor, Tensor, Tensor)",
    _checked_solve,
    fake=_fake_solve,
    setup_context=_setup,
    backward=_backward,
)

# The public function.


@takes_dtensors
def sorted_soft_topk(
    scores: Tensor,
    k: int | Tensor,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
    solver: Solver = "exact",
) -> Tensor:
    r"""Sorted SOFT top-k: the soft indicator of "element i has rank l", for the k largest.

    A relaxation of ``one_hot(scores.topk(k, dim).indices, n).mT``, namely n times the first k
    columns of the plan of

    .. math::
        \min_{\Gamma \ge 0} \sum_{ij} (x_i - y_j)^2 \Gamma_{ij}
        + \epsilon \sum_{ij} \Gamma_{ij} \log \Gamma_{ij}
        \quad\text{s.t.}\quad \Gamma 1 = \tfrac1n 1,\
        \Gamma^\top 1 = [\tfrac1n, \dots, \tfrac1n, \tfrac{n-k}n], \quad y = [k, \dots, 1, 0].

    Args:
        k: How many ranks, an int with 0 <= k <= n; k = n is a soft sort. Or an integer tensor that
            broadcasts to the batch shape: the result has as many ranks as its largest value, and
            those above a row's own k are empty. Rows of equal k are solved together, so it costs a
            call for every value. The values are read: that waits for a device, and breaks the
            graph of ``torch.compile``.
        hard: Return the exact ranking, with the gradient of the soft one. Of equal scores the
            first has the first rank.

    The other arguments are those of `soft_topk`, except that the normalised cost refers to the
    anchors 0..k.

    Returns:
        Of the shape of scores with a last axis of size k added. Sums to one over ``dim`` for every
        rank (to zero for the ranks that a row with fewer than k elements cannot fill), and to at
        most one over the ranks.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> ranks = sorted_soft_topk(scores, 2, eps=0.1)
    >>> ranks.round(decimals=2)
    tensor([[0.0000, 0.0000],
            [0.0000, 0.0000],
            [0.9800, 0.0200],
            [0.0200, 0.9800],
            [0.0000, 0.0000],
            [0.0000, 0.0100],
            [0.0000, 0.0000]])
    >>> (ranks * scores.unsqueeze(-1)).sum(-2)  # soft values of the two largest
    tensor([2.2928, 1.9039])
    """
    check_flag("hard", hard)
    sinkhorn = sinkhorn_of(solver)
    dims = check_dims(scores, dim)
    k = check_ranks(k, size_of(scores, dims), batch_of(scores, dims))
    rows = rows_of(
        scores,
        eps=eps,
        dim=dims,
        largest=largest,
        mask=mask,
        normalize=normalize,
        last_anchor=k.clamp(min=1) if isinstance(k, Tensor) else max(k, 1),
    )
    solve = _rankings if isinstance(k, Tensor) else _ranking
    return rows.restore(solve(rows, k, hard, sinkhorn), -2)  # type: ignore[arg-type]


def _ranking(rows: Rows, k: int, hard: bool, sinkhorn: Sinkhorn | None) -> Tensor:
    """A (..., n, k), hard or soft."""
    if hard:
        selected = _hard_ranking(rows.canonical().scores, k)
        if not may_differentiate(rows.scores, rows.tau):
            return selected
    if k == 0:
        soft = rows.scores[..., :0] * rows.tau  # empty, and still in the graph
        soft = soft.unsqueeze(-2).expand(*rows.scores.shape, 0)
    elif sinkhorn is not None:
        soft = ranking_by_sinkhorn(rows.canonical(), k, sinkhorn)
    else:
        soft = rank_indicator(rows, k)
    return straight_through(selected, soft) if hard else soft


def _rankings(rows: Rows, k: Tensor, hard: bool, sinkhorn: Sinkhorn | None) -> Tensor:
    """A (..., n, largest k) of rows with an own k (..., 1) each; those of equal k are solved
    together, in a call for every value that k has."""
    if not is_immediate(k) and not torch.compiler.is_compiling():
        raise ValueError(
            "k as a tensor decides the shape of the result, and this one has no values that can be "
            "read: it is meta, or mapped by torch.vmap; use an int"
        )
    k = k.expand(*rows.batch, 1).flatten()
    values = k.unique().tolist()
    if len(values) < 2:
        return _ranking(rows, max(values, default=0), hard, sinkhorn)
    where = [(k == value).nonzero().squeeze(-1) for value in values]
    found = [
        F.pad(_ranking(rows.at(index), value, hard, sinkhorn), (0, values[-1] - value))
        for index, value in zip(where, values, strict=True)
    ]
    back = torch.cat(where).argsort()
    return torch.cat(found)[back].unflatten(0, rows.batch)


def _hard_ranking(x: Tensor, k: int) -> Tensor:
    """The 0/1 ranking (..., n, k) of scores in canonical form."""
    x = x.detach()
    index, best = largest_of(x, k)
    if not in_onnx_export():  # sorted there, and ONNX has no stable sort
        index = index.gather(-1, best.argsort(dim=-1, descending=True, stable=True))
    selected = torch.zeros(*x.shape, k, dtype=x.dtype, device=x.device)
    selected = selected.scatter(-2, index.unsqueeze(-2), 1.0)
    selected = selected.masked_fill((x == -math.inf).unsqueeze(-1), 0.0)
    return selected.masked_fill(x.isnan().any(-1, keepdim=True).unsqueeze(-1), math.nan)
