"""Softmax among the soft top k, for attention.

Where only the scores and eps need a gradient, it is a call of the native library, as is its
derivative in the scores.
With u = w (g - sum(w g)), the derivative of a softmax w times g, s = A (1 - A) and r = u / A, that
is

    u + s (r - sum(s r) / sum(s)) / tau.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from .._checks import Count, Dims, Strength, check_flag
from .._dispatch import dense, library_for, may_differentiate, path_of
from ._launch import launch
from ._mesh import takes_dtensors
from ._nested import is_nested
from ._rows import (
    Normalize,
    Rows,
    canonical,
    compute_dtype,
    hard_selection,
    largest_of,
    per_row,
    straight_through,
    unsorted_rows,
)
from ._sinkhorn import Solver, sinkhorn_of
from ._unsorted import (
    from_mean,
    gradient_in_scores,
    gradient_in_tau,
    log_indicator,
    plain_log_indicator,
    slopes,
)

PIECE = 2**16  # elements


@takes_dtensors
def soft_topk_softmax(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
    solver: Solver = "exact",
    offsets: Tensor | None = None,
) -> Tensor:
    """Softmax that has most of its weight on the k largest elements: softmax(scores + log A).

    A relaxation of the softmax over the k largest elements alone, where A is `soft_topk`. The
    attention of the paper, whose weights have a gradient for elements outside of the top k too.

    Args:
        hard: Return the softmax over exactly the k largest elements, with the gradient of the soft
            one (straight-through). Of equal scores the first are taken. A fractional k is rounded.

    The other arguments are those of `soft_topk`. A row of at most k elements, those that a mask or
    -inf excludes not counted, has its ordinary softmax.

    Returns:
        Weights of the shape and dtype of scores, which sum to one along ``dim``, or are all zero
        where no element takes part.

    >>> scores = torch.tensor([2.0, 1.8, 1.0, 0.9, -3.0])
    >>> torch.softmax(scores, -1).round(decimals=3)
    tensor([0.3960, 0.3240, 0.1460, 0.1320, 0.0030])
    >>> soft_topk_softmax(scores, 2, eps=0.5).round(decimals=3)
    tensor([0.5430, 0.4010, 0.0340, 0.0220, 0.0000])
    """
    check_flag("hard", hard)
    options: dict[str, Any] = {"eps": eps, "dim": dim, "mask": mask, "normalize": normalize}
    if offsets is not None or is_nested(scores):
        from . import _ragged

        return _ragged.soft_topk_softmax(scores, k, offsets, hard=hard, solver=solver, **options)
    by_sinkhorn = sinkhorn_of(solver) is not None
    rows, k = unsorted_rows(scores, k, largest=True, **options)
    if hard:
        kept = _hard_softmax(rows, k)
        if not may_differentiate(rows.scores, rows.tau, k):
            return rows.restore(kept)
    path = path_of(rows.given, rows.tau, fixed=(rows.mask, k))
    if by_sinkhorn:
        log_a = log_indicator(rows, k, solver)
        weights = softmax_or_zero(_from_largest(rows.canonical().scores) + log_a)
    elif path == "native":
        weights = _softmax(rows, k)
    elif path == "triton":
        weights = launch("softmax", rows, k, _plain_softmax)
    else:
        weights = _plain_softmax(rows.scores, rows.mask, k, rows.tau)
    return rows.restore(straight_through(kept, weights) if hard else weights)


def _plain_softmax(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool = True
) -> Tensor:
    log_a = plain_log_indicator(x, mask, k, tau, largest)
    return softmax_or_zero(_from_largest(canonical(x, mask, largest)) + log_a)


def softmax_of_largest(scores: Tensor, mask: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The softmax over the k largest of the rows (..., n), and their places: (..., k).

    Without derivatives. Where a row has fewer than k elements, the others have a weight of zero.
    """
    scores = scores.detach()
    single = scores.to(compute_dtype(scores.dtype))
    library = library_for(single, *([] if mask is None else [mask])) if k > 0 else None
    if library is not None:
        mask = None if mask is None else mask.expand(scores.shape).contiguous()
        weights, index = library.hard_softmax(dense(single), mask, k)
        return weights.to(scores.dtype), index
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    index, best = largest_of(scores, k)
    return softmax_or_zero(best), index


def _hard_softmax(rows: Rows, k: Count) -> Tensor:
    if isinstance(k, Tensor):
        x = rows.canonical().scores.detach()
        return softmax_or_zero(x.masked_fill(hard_selection(x, k) == 0, -math.inf))
    weights, index = softmax_of_largest(rows.scores, rows.mask, round(k))
    kept = torch.zeros_like(rows.scores).scatter(-1, index, weights)
    broken = rows.scores.isnan() if rows.mask is None else rows.scores.isnan() & rows.mask
    return kept.masked_fill(broken.any(-1, keepdim=True), math.nan)


def softmax_or_zero(scores: Tensor) -> Tensor:
    """Softmax over the last axis, zero in rows that are -inf everywhere."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    # Filled before and after: a NaN in between would get into the gradient.
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def _from_largest(x: Tensor) -> Tensor:
    """Scores measured from the largest: beside a large constant log A would lose its digits."""
    largest = x.detach().amax(-1, keepdim=True)
    return x - torch.where(largest.isfinite(), largest, 0.0)


def _softmax(rows: Rows, k: Count) -> Tensor:
    """The weights by the native library."""
    x = rows.scores
    if may_differentiate(x, rows.tau):
        return _Softmax.apply(x, rows.mask, k, rows.tau)[0]
    return _solve(x, rows.mask, k, rows.tau, None)


def _solve(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, indicator: Tensor | None
) -> Tensor:
    library = kernels.native()
    assert library is not None
    x, mask = dense(x), None if mask is None else mask.contiguous()
    return library.softmax(x, mask, per_row(k, x), per_row(tau, x), indicator=indicator)


class _Softmax(torch.autograd.Function):
    """x (..., n), mask, k, tau -> the weights (..., n), and A, which the derivative needs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, k: Count, tau: Strength
    ) -> tuple[Tensor, Tensor]:
        a = torch.empty_like(x, memory_format=torch.contiguous_format)
        w = _solve(x, mask, k, tau, a)
        held = tau if isinstance(tau, Tensor) else None
        ctx.save_for_backward(w, a, held)
        ctx.tau = None if held is not None else tau
        ctx.set_materialize_grads(False)
        return w, a

    @staticmethod
    def backward(
        ctx: Any, grad_w: Tensor | None, grad_a: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        w, a, held = ctx.saved_tensors
        tau = ctx.tau if held is None else held
        grad_x, grad_tau = None, None
        if grad_w is not None:
            grad_x = _gradient(w, a, grad_w, tau)
        if grad_a is not None:  # in the derivative of the derivative
            through_a = gradient_in_scores(a, grad_a, tau)
            grad_x = through_a if grad_x is None else grad_x + through_a
        if ctx.needs_input_grad[3]:
            grad_tau = _gradient_in_tau(w, a, grad_w, grad_a, tau)
        return grad_x, None, None, grad_tau


def _gradient(w: Tensor, a: Tensor, grad: Tensor, tau: Strength) -> Tensor:
    library = None if torch.is_grad_enabled() else library_for(w, grad)
    if library is not None:
        return library.softmax_gradient(w, a, dense(grad), per_row(tau, w))
    centred = grad - (w * grad).sum(-1, keepdim=True)
    quotient, (s, share) = w / torch.where(a > 0.0, a, 1.0), slopes(a)
    # From the steepest element, and so that its own distance is exactly zero: see the kernel.
    steepest = s.detach().argmax(-1, keepdim=True)
    first = quotient.gather(-1, steepest)
    distance = (quotient - first) * centred + first * (grad - grad.gather(-1, steepest))
    moved = s * from_mean(share, distance) / tau
    return w * centred + torch.where(share > 0.0, moved, 0.0)


def _gradient_in_tau(
    w: Tensor, a: Tensor, grad_w: Tensor | None, grad_a: Tensor | None, tau: Tensor
) -> Tensor:
    """Of the shape of tau."""
    batch = a.shape[:-1]
    rows = [
        None if value is None else value.expand(*batch, -1).reshape(-1, value.shape[-1])
        for value in (w, a, grad_w, grad_a, tau)
    ]
    # In pieces that stay in a cache: there are many temporaries.
    pieces = zip(*(_pieces(value, a.shape[-1], math.prod(batch)) for value in rows), strict=True)
    found = [_gradient_in_tau_of_rows(*piece) for piece in pieces]
    return torch.cat(found).view(*batch, 1).sum_to_size(tau.shape)


def _pieces(rows: Tensor | None, n: int, count: int) -> Sequence[Tensor | None]:
    size = max(1, PIECE // n)
    return [None] * -(-count // size) if rows is None else rows.split(size)


def _gradient_in_tau_of_rows(
    w: Tensor, a: Tensor, grad_w: Tensor | None, grad_a: Tensor | None, tau: Tensor
) -> Tensor:
    pull = torch.zeros_like(a) if grad_a is None else grad_a * a * (1.0 - a)
    if grad_w is not None:
        pull = pull + w * (grad_w - (w * grad_w).sum(-1, keepdim=True)) * (1.0 - a)
    return gradient_in_tau(a, pull, tau)
