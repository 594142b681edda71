"""The unsorted operator in one step, scores to A, for the usual case on the CPU.

Where only the scores need a gradient, A and its derivative are one call of the native library each
(`softtopk.kernels`); when that is missing, or the derivative is itself to be differentiated, plain
operations take over. The derivative is symmetric and needs A alone: with s = A (1 - A),

    dA = s (dx - sum(s dx) / sum(s)) / tau.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import kernels
from ._arguments import Count, Strength, is_readable, is_traced
from ._autograd import refuse_forward_mode, register_batch_first
from ._rows import Rows, places_of
from ._threshold import logits_of


def fuses(rows: Rows, k: Count) -> bool:
    """Whether `indicator_of` can be used: on the CPU, with a derivative in the scores only."""
    x = rows.scores
    tensors = [value for value in (x, rows.mask, k, rows.tau) if isinstance(value, Tensor)]
    if any(value.requires_grad for value in tensors[1:]):
        return False
    if is_traced(x):
        return all(value.device.type == "cpu" for value in tensors)
    return (
        is_readable(*tensors)
        and x.numel() > 0
        and forward_ad._current_level < 0
        and kernels.native() is not None
    )


def indicator_of(rows: Rows, k: Count) -> Tensor:
    """A (..., n), differentiable in the scores."""
    x = rows.scores
    if is_traced(x):
        refuse_forward_mode()
        column = (*rows.batch, 1)
        tau = rows.tau if isinstance(rows.tau, Tensor) else x.new_full((1,), rows.tau)
        places = places_of(k, x)
        return _soft_topk(x, rows.mask, places.expand(column), tau.expand(column), rows.largest)
    if x.requires_grad and torch.is_grad_enabled():
        return _Indicator.apply(x, rows.mask, k, rows.tau, rows.largest)
    return _solve(x, rows.mask, k, rows.tau, rows.largest)[0]


def _solve(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
) -> tuple[Tensor, bool]:
    """A (..., n), and whether some of it belongs to infinite scores that share their places."""
    library = kernels.native()
    if library is None:
        rows = Rows(x, mask, tau, 1.0, 2.0 * tau, -1, x.dtype, largest).canonical()
        return torch.sigmoid(logits_of(rows, k)), True
    x = _dense(x)
    a = torch.empty_like(x)
    shared = kernels.threshold(
        library,
        x,
        None if mask is None else mask.contiguous(),
        _per_row(k, x),
        _per_row(tau, x),
        largest,
        indicator=a,
    )
    return a, shared


def _gradient(a: Tensor, grad: Tensor, tau: Strength, largest: bool) -> Tensor:
    """The derivative of A in the scores, which is symmetric, times ``grad`` (..., n)."""
    library = kernels.native() if is_readable(a, grad) and a.numel() else None
    tau = tau if largest else -tau
    if library is None or torch.is_grad_enabled():
        s = a * (1.0 - a)
        return s * (grad - _mean(s, grad)) / tau
    a, grad = _dense(a), _dense(grad)
    grad_x = torch.empty_like(a)
    kernels.threshold_gradient(library, a, grad, _per_row(tau, a), grad_x)
    return grad_x


def _mean(s: Tensor, values: Tensor) -> Tensor:
    """Mean of ``values`` with weights ``s``, 0 where these vanish: all of A is saturated there."""
    total = s.sum(-1, keepdim=True)
    return (s * values).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)


def _dense(x: Tensor) -> Tensor:
    """As the kernels read it: contiguous, without a pending negation."""
    return x.resolve_neg().contiguous()


def _per_row(value: Count | Strength, x: Tensor) -> float | Tensor:
    if not isinstance(value, Tensor):
        return value
    return value.to(torch.float64).expand(*x.shape[:-1], 1).contiguous()


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
        grad_x = _gradient(a, grad, ctx.tau, ctx.largest)
        if infinite is not None:
            grad_x = grad_x.masked_fill(infinite, 0.0)
        return grad_x, None, None, None, None


# The same as custom operators, for compilation and export: one opaque call each.


@torch.library.custom_op("softtopk::soft_topk", mutates_args=())
def _soft_topk(
    scores: Tensor, mask: Tensor | None, k: Tensor, tau: Tensor, largest: bool
) -> Tensor:
    return _solve(scores, mask, k, tau, largest)[0]


@torch.library.custom_op("softtopk::soft_topk_gradient", mutates_args=())
def _soft_topk_gradient(a: Tensor, grad: Tensor, tau: Tensor, largest: bool) -> Tensor:
    return _gradient(a, grad, tau, largest)


def _save_soft_topk(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    scores, _, _, tau, ctx.largest = inputs
    ctx.save_for_backward(scores, output, tau)


def _soft_topk_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    scores, a, tau = ctx.saved_tensors
    grad_x = _soft_topk_gradient(a, grad, tau, ctx.largest)
    return grad_x.masked_fill(scores.isinf(), 0.0), None, None, None, None


def _save_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, grad, tau, ctx.largest = inputs
    ctx.save_for_backward(a, grad, tau)


def _gradient_backward(ctx: Any, pull: Tensor) -> tuple[Tensor | None, ...]:
    """In s the gradient is s (g - mean) / tau, whose derivative is (g - mean)(v - mean) / tau."""
    a, grad, tau = ctx.saved_tensors
    tau = tau if ctx.largest else -tau
    s = a * (1.0 - a)
    grad, pull = grad - _mean(s, grad), pull - _mean(s, pull)
    return (1.0 - 2.0 * a) * grad * pull / tau, s * pull / tau, None, None


_soft_topk.register_fake(lambda scores, *_: scores.new_empty(scores.shape))
_soft_topk.register_autograd(_soft_topk_backward, setup_context=_save_soft_topk)
_soft_topk_gradient.register_fake(lambda a, *_: a.new_empty(a.shape))
_soft_topk_gradient.register_autograd(_gradient_backward, setup_context=_save_gradient)
for _operator in (_soft_topk, _soft_topk_gradient):
    register_batch_first(_operator)
