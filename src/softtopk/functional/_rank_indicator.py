"""The sorted operator in one step (`_fusion`).

The native library finds its derivative from the scores and the thresholds, making the plan anew.
Where that is to be differentiated, or traced, the plain derivative takes over (`_ranking`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ._arguments import Strength, is_readable, is_traced
from ._autograd import batch_first, opaque, refuse_forward_mode
from ._fusion import column, dense, per_row
from ._ranking import pull_back, ranking_of, warn_unless_converged
from ._rows import Rows, rank_distances


def rank_indicator_of(rows: Rows, k: int) -> Tensor:
    """A (..., n, k), differentiable in the scores, if the rows `fuses`; k > 0."""
    x = rows.scores
    if is_traced(x):
        refuse_forward_mode()
        # A view: Dynamo does not see that the argument of torch.func.grad requires a gradient.
        x, tau = x.view_as(x), column(rows.tau, x)
        return _TracedRankIndicator.apply(x, rows.mask, k, tau, rows.largest)
    if x.requires_grad and torch.is_grad_enabled():
        return _RankIndicator.apply(x, rows.mask, k, rows.tau, rows.largest)
    return _solve(x, rows.mask, k, rows.tau, rows.largest)[0]


def _solve(
    x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """A (..., n, k) and the thresholds of the native library, None without it."""
    library = kernels.native()
    if library is None:
        return _plain(x, mask, k, tau, largest), None, None
    mask = None if mask is None else mask.contiguous()
    a, pivots, offsets, converged = library.ranking(dense(x), mask, k, per_row(tau, x), largest)
    warn_unless_converged(converged)
    return a, pivots, offsets


def _plain(x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool) -> Tensor:
    """A (..., n, k) by plain operations, each of which can be differentiated."""
    rows = Rows(x, mask, tau, 1.0, 2.0 * tau, -1, x.dtype, largest).canonical()
    return ranking_of(rank_distances(rows, k))[..., :k]


class _RankIndicator(torch.autograd.Function):
    """x (..., n), mask, k, tau, largest -> A (..., n, k).

    Saves the scores and the thresholds, nothing of the size of A.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, k: int, tau: Strength, largest: bool
    ) -> Tensor:
        a, pivots, offsets = _solve(x, mask, k, tau, largest)
        ctx.save_for_backward(x, mask, pivots, offsets)
        ctx.k, ctx.tau, ctx.largest = k, tau, largest
        return a

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mask, pivots, offsets = ctx.saved_tensors
        differentiable = torch.is_grad_enabled() or not is_readable(x, grad)
        library = None if differentiable else kernels.native()
        if library is None:
            with torch.enable_grad():
                a = _plain(x, mask, ctx.k, ctx.tau, ctx.largest)
                (grad_x,) = torch.autograd.grad(a, x, grad, create_graph=differentiable)
        else:
            mask = None if mask is None else mask.contiguous()
            grad_x = library.ranking_gradient(
                dense(x), mask, pivots, offsets, dense(grad), per_row(ctx.tau, x), ctx.largest
            )
        return grad_x, None, None, None, None


class _TracedRankIndicator(torch.autograd.Function):
    """The same for the compiler: the forward is one opaque call, the backward can be traced."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor | None, k: int, tau: Tensor, largest: bool) -> Tensor:
        if is_traced(x):
            return _sorted_soft_topk_op(x, mask, k, tau, largest)
        return _solve(x, mask, k, tau, largest)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, mask, _, tau, ctx.largest = inputs
        ctx.save_for_backward(x, mask, output, tau)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mask, a, tau = ctx.saved_tensors
        rest = (1.0 - a.sum(-1, keepdim=True)).clamp(min=0.0)
        grad_a = pull_back(torch.cat([a, rest], -1), F.pad(grad, (0, 1)))
        grad_x = grad_a.sum(-1) / (tau if ctx.largest else -tau)
        grad_x = grad_x.masked_fill(x.isinf() if mask is None else x.isinf() | ~mask, 0.0)
        return grad_x, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_TracedRankIndicator.apply, info.batch_size, in_dims, inputs)


_sorted_soft_topk_op = opaque(
    "softtopk::sorted_soft_topk",
    "(Tensor scores, Tensor? mask, int k, Tensor tau, bool largest) -> Tensor",
    _TracedRankIndicator,
    lambda scores, mask, k, *_: scores.new_empty(*scores.shape, k),
)
