"""The sorted operator in one step (`_fusion`).

The native library finds its derivative from the scores and the thresholds, making the plan anew.
Where that is to be differentiated, or traced, the plain derivative takes over (`_ranking`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ._arguments import REALS, Strength, check_rows, is_traced, operand
from ._autograd import batch_first, opaque, refuse_forward_mode
from ._fusion import column, dense, native_for, per_row
from ._ranking import pull_back, ranking_of, solve_ranking, warn_unless_converged
from ._rows import Rows, rank_distances


def rank_indicator_of(rows: Rows, k: int) -> Tensor:
    """A (..., n, k), differentiable in the scores, if the rows `fuses`; k > 0."""
    x = rows.scores
    if is_traced(x):
        refuse_forward_mode()
        # A view: Dynamo does not see that the argument of torch.func.grad requires a gradient.
        x, tau = x.view_as(x), column(rows.tau, x)
        return _TracedRankIndicator.apply(x, rows.mask, k, tau, rows.largest)[0]
    if x.requires_grad and torch.is_grad_enabled():
        return _RankIndicator.apply(x, rows.mask, k, rows.tau, rows.largest)
    return _solve(x, rows.mask, k, rows.tau, rows.largest)[0]


def _solve(
    x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A (..., n, k), pivots (..., k + 1) and offsets (..., k) of the thresholds.

    The latter are for the derivative by the native library; without it the offsets
    are infinite.
    """
    library = kernels.native() if x.is_cpu and x.numel() else None
    if library is None:
        plan, _, converged = solve_ranking(_distances(x, mask, k, tau, largest))
        warn_unless_converged(converged)
        return plan[..., :k].contiguous(), *_thresholds(x, k)
    mask = None if mask is None else mask.contiguous()
    a, pivots, offsets, converged = library.ranking(dense(x), mask, k, per_row(tau, x), largest)
    warn_unless_converged(converged)
    return a, pivots, offsets


def _thresholds(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    batch = x.shape[:-1]
    offsets = x.new_full((*batch, k), math.inf, dtype=torch.float64)
    return x.new_zeros(*batch, k + 1), offsets


def _distances(x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool) -> Tensor:
    rows = Rows(x, mask, tau, 1.0, 2.0 * tau, -1, x.dtype, largest).canonical()
    return rank_distances(rows, k)


def _gradient(
    x: Tensor,
    mask: Tensor | None,
    thresholds: tuple[Tensor, Tensor],
    grad: Tensor,
    tau: Strength,
    largest: bool,
) -> Tensor:
    """The derivative of A in the scores, times ``grad`` (..., n, k)."""
    if torch.is_grad_enabled():
        a = ranking_of(_distances(x, mask, grad.shape[-1], tau, largest))[..., :-1]
        return torch.autograd.grad(a, x, grad, create_graph=True)[0]
    library = native_for(x, grad)
    if library is None or bool(thresholds[1].isinf().all()):
        d = _distances(x, mask, grad.shape[-1], tau, largest)
        grad_d = pull_back(solve_ranking(d)[0], F.pad(grad, (0, 1)))
        grad_d = grad_d.masked_fill(d.isinf() | x.isinf().unsqueeze(-1), 0.0)  # decided already
        return grad_d.sum(-1) / (tau if largest else -tau)
    mask = None if mask is None else mask.contiguous()
    return library.ranking_gradient(
        dense(x), mask, *thresholds, dense(grad), per_row(tau, x), largest
    )


class _RankIndicator(torch.autograd.Function):
    """x (..., n), mask, k, tau, largest -> A (..., n, k).

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


class _TracedRankIndicator(torch.autograd.Function):
    """The same for the compiler: A (..., n, k) and the thresholds, in one opaque call each way."""

    @staticmethod
    def forward(
        x: Tensor, mask: Tensor | None, k: int, tau: Tensor, largest: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if is_traced(x):
            return _sorted_soft_topk_op(x, mask, k, tau, largest)
        return _solve(x, mask, k, tau, largest)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        x, mask, _, tau, ctx.largest = inputs
        ctx.save_for_backward(x, mask, *output[1:], tau)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        x, mask, pivots, offsets, tau = ctx.saved_tensors
        grad_x = _sorted_soft_topk_gradient(x, mask, pivots, offsets, grad, tau, ctx.largest)
        return grad_x, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_TracedRankIndicator.apply, info.batch_size, in_dims, inputs)


def _checked_solve(
    scores: Tensor, mask: Tensor | None, k: int, tau: Tensor, largest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    mask, tau = _checked(scores, mask, k, tau)
    return _solve(scores, mask, k, tau, largest)


def _checked(
    scores: Tensor, mask: Tensor | None, k: int, tau: Tensor
) -> tuple[Tensor | None, Tensor]:
    check_rows(scores)
    if not 0 < k <= scores.shape[-1]:
        raise ValueError(f"k must be between 1 and n={scores.shape[-1]}, got k={k}")
    mask = None if mask is None else operand("mask", mask, scores.shape, torch.bool)
    return mask, operand("tau", tau, (*scores.shape[:-1], 1), *REALS)


_sorted_soft_topk_op = opaque(
    "softtopk::sorted_soft_topk",
    "(Tensor scores, Tensor? mask, int k, Tensor tau, bool largest) -> (Tensor, Tensor, Tensor)",
    _checked_solve,
    _TracedRankIndicator,
    lambda scores, mask, k, *_: (scores.new_empty(*scores.shape, k), *_thresholds(scores, k)),
)


@torch.library.custom_op("softtopk::sorted_soft_topk_gradient", mutates_args=())
def _sorted_soft_topk_gradient(
    scores: Tensor,
    mask: Tensor | None,
    pivots: Tensor,
    offsets: Tensor,
    grad: Tensor,
    tau: Tensor,
    largest: bool,
) -> Tensor:
    k, batch = offsets.shape[-1], scores.shape[:-1]
    mask, tau = _checked(scores, mask, k, tau)
    thresholds = (
        operand("pivots", pivots, (*batch, k + 1), scores.dtype),
        operand("offsets", offsets, (*batch, k), torch.float64),
    )
    grad = operand("grad", grad, (*scores.shape, k), scores.dtype)
    with torch.no_grad():
        return _gradient(scores, mask, thresholds, grad, tau, largest)


_sorted_soft_topk_gradient.register_fake(lambda scores, *_: scores.new_empty(scores.shape))
_sorted_soft_topk_gradient.register_vmap(
    lambda info, in_dims, *inputs: batch_first(
        _sorted_soft_topk_gradient, info.batch_size, in_dims, inputs
    )
)
