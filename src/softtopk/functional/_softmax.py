"""Softmax among the soft top k, for attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._arguments import Count, Strength, check_flag
from ._operators import (
    Normalize,
    Solver,
    hard_selection,
    log_indicator_of,
    sinkhorn_setting,
    straight_through,
    unsorted_rows,
)


def soft_topk_softmax(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
    solver: Solver = "exact",
) -> Tensor:
    """Softmax that has most of its weight on the k largest elements: softmax(scores + log A).

    A relaxation of the softmax over the k largest elements alone, where A is `soft_topk`. The
    attention of the paper, whose weights have a gradient for elements outside of the top k too.

    Args:
        hard: Return the softmax over exactly the k elements that ``torch.topk`` selects, with the
            gradient of the soft one (straight-through).

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
    rows, k = unsorted_rows(
        scores, k, eps=eps, dim=dim, largest=True, mask=mask, normalize=normalize
    )
    sinkhorn = sinkhorn_setting(solver)
    rows = rows.canonical()
    if hard:
        chosen = hard_selection(rows, k) > 0
        kept = softmax_or_zero(rows.scores.detach().masked_fill(~chosen, -math.inf))
        if not _needs_gradient(rows.scores, rows.tau, k):
            return rows.restore(kept)
    weights = softmax_or_zero(rows.scores + log_indicator_of(rows, k, sinkhorn))
    return rows.restore(straight_through(kept, weights) if hard else weights)


def softmax_or_zero(scores: Tensor) -> Tensor:
    """Softmax over the last axis, zero in rows that are -inf everywhere."""
    empty = (scores == -math.inf).all(-1, keepdim=True)
    # Filled before and after: a NaN in between would get into the gradient.
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def _needs_gradient(*values: Tensor | float) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )
