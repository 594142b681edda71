"""The unsorted operator in one step (`_fusion`).

The derivative is symmetric and needs A alone: with s = A (1 - A),

    dA = s (dx - sum(s dx) / sum(s)) / tau.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ._arguments import COUNTS, REALS, Count, Strength, check_rows, is_traced, operand
from ._autograd import batch_first, opaque, refuse_forward_mode
from ._fusion import column, dense, native_for, per_row
from ._rows import Rows, places_of
from ._threshold import logits_of


def is_direct(scores: Tensor, k: Count, eps: Strength, dim: int) -> bool:
    """Whether nothing is left to check or to bring into form before `indicator` is called.

    Small inputs are bound by the overhead of a call, and most calls are of this kind.
    """
    return (
        not torch.compiler.is_compiling()
        and isinstance(scores, Tensor)
        and type(k) is int
        and type(eps) is float
        and type(dim) is int
        and dim in (-1, scores.ndim - 1)
        and scores.ndim > 0
        and 0 <= k <= scores.shape[-1]
        and 0.0 < eps < math.inf
        and scores.dtype in (torch.float32, torch.float64)
        and scores.layout is torch.strided
        and native_for(scores) is not None
    )


def indicator_of(rows: Rows, k: Count) -> Tensor:
    """A (..., n), differentiable in the scores, if the rows `fuses`."""
    x = rows.scores
    if not is_traced(x):
        return indicator(x, rows.mask, k, rows.tau, rows.largest)
    refuse_forward_mode()
    places, tau = places_of(k, x).expand(*rows.batch, 1), column(rows.tau, x)
    # A view: Dynamo does not see that the argument of torch.func.grad requires a gradient.
    return _TracedIndicator.apply(x.view_as(x), rows.mask, places, tau, rows.largest)


def indicator(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool = True
) -> Tensor:
    if x.requires_grad and torch.is_grad_enabled():
        return _Indicator.apply(x, mask, k, tau, largest)
    return _solve(x, mask, k, tau, largest)[0]


def _solve(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
) -> tuple[Tensor, bool]:
    """A (..., n), and whether some of it may belong to infinite scores that share their places."""
    library = kernels.native() if x.is_cpu and x.numel() else None
    if library is None:
        rows = Rows(x, mask, tau, 1.0, 2.0 * tau, -1, x.dtype, largest).canonical()
        return torch.sigmoid(logits_of(rows, k)), True
    x = dense(x)
    a = torch.empty_like(x)
    shared = library.threshold(
        x,
        None if mask is None else mask.contiguous(),
        per_row(k, x),
        per_row(tau, x),
        largest,
        indicator=a,
    )
    return a, shared


def indicator_gradient(a: Tensor, grad: Tensor, tau: Strength, largest: bool = True) -> Tensor:
    """The derivative of A in the scores, which is symmetric, times ``grad`` (..., n)."""
    tau = tau if largest else -tau
    library = None if torch.is_grad_enabled() else native_for(a, grad)
    if library is None:
        s = slopes(a)
        return torch.where(s > 0.0, s * (grad - weighted_mean(s, grad)) / tau, 0.0)
    return library.threshold_gradient(dense(a), dense(grad), per_row(tau, a))


def slopes(a: Tensor) -> Tensor:
    """s = A (1 - A), zero in rows where it has all but vanished: all of A is saturated there.

    The root of the smallest number leaves room for the squares that second derivatives divide by.
    """
    s = a * (1.0 - a)
    vanished = s.sum(-1, keepdim=True) < math.sqrt(torch.finfo(s.dtype).tiny)
    return s.masked_fill(vanished, 0.0)


def weighted_mean(s: Tensor, values: Tensor) -> Tensor:
    """Mean of ``values`` with weights ``s`` from `slopes`, 0 where these vanish."""
    total = s.sum(-1, keepdim=True)
    return (s * values).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)


class _Indicator(torch.autograd.Function):
    """x (..., n), mask, k, tau, largest -> A (..., n).

    Saves A, its result, and nothing else of that size.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
    ) -> Tensor:
        a, shared = _solve(x, mask, k, tau, largest)
        # Infinite scores have no derivative. It matters only where they share places: 0 < A < 1.
        infinite = x.isinf() if shared else None
        ctx.save_for_backward(a, infinite)
        ctx.tau, ctx.largest = tau, largest
        return a

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, infinite = ctx.saved_tensors
        grad_x = indicator_gradient(a, grad, ctx.tau, ctx.largest)
        if infinite is not None:
            grad_x = grad_x.masked_fill(infinite, 0.0)
        return grad_x, None, None, None, None


class _TracedIndicator(torch.autograd.Function):
    """The same for the compiler: the forward is one opaque call, the backward can be traced.

    Here ``k`` and ``tau`` are tensors (..., 1).
    """

    @staticmethod
    def forward(x: Tensor, mask: Tensor | None, k: Tensor, tau: Tensor, largest: bool) -> Tensor:
        if is_traced(x):
            return _soft_topk_op(x, mask, k, tau, largest)
        return _solve(x, mask, k, tau, largest)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, _, tau, ctx.largest = inputs
        ctx.save_for_backward(x, output, tau)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, a, tau = ctx.saved_tensors
        grad_x = indicator_gradient(a, grad, tau, ctx.largest)
        return grad_x.masked_fill(x.isinf(), 0.0), None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_TracedIndicator.apply, info.batch_size, in_dims, inputs)


def _checked_solve(
    scores: Tensor, mask: Tensor | None, k: Tensor, tau: Tensor, largest: bool
) -> Tensor:
    check_rows(scores)
    column = (*scores.shape[:-1], 1)
    mask = None if mask is None else operand("mask", mask, scores.shape, torch.bool)
    k, tau = operand("k", k, column, *COUNTS), operand("tau", tau, column, *REALS)
    return _solve(scores, mask, k, tau, largest)[0]


_soft_topk_op = opaque(
    "softtopk::soft_topk",
    "(Tensor scores, Tensor? mask, Tensor k, Tensor tau, bool largest) -> Tensor",
    _checked_solve,
    _TracedIndicator,
    lambda scores, *_: scores.new_empty(scores.shape),
)
