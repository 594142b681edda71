"""The k largest elements as indices, with their soft weights: for code that gathers by itself."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import Strength, check_scores
from ._rows import chosen_of, indices_of, unsorted_rows
from ._unsorted import soft_topk


class TopKIndices(NamedTuple):
    """Result of `select_topk`: each has an axis of the largest k in place of ``dim``."""

    indices: Tensor
    """Places of the k largest elements along ``dim``, in ascending order; 0 where ``mask`` is
    False."""
    weights: Tensor
    """What `soft_topk` gives them; 0 where ``mask`` is False."""
    mask: Tensor
    """False where a row has fewer: its own k is smaller, or fewer elements take part."""


def select_topk(
    scores: Tensor,
    k: int | Tensor,
    *,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    hard: bool = False,
) -> TopKIndices:
    """Exactly the k largest elements, by their indices, with the weights of the soft selection.

    For code that gathers what it has selected, and shall learn what to select. A relaxation of
    ``indices = scores.topk(k).indices`` with weights of one: the indices are the same, and
    the weights are `soft_topk` at these places. So a loss that depends on the weights has a
    gradient in all scores, also in those that are not selected. As eps -> 0 the weights become one.

    Args:
        scores: As in `soft_topk`, like ``eps``, ``largest``, ``mask`` and ``dim``, which is one
            dimension here.
        k: How many: an int, or an integer tensor that broadcasts to the batch shape. Of a tensor
            the largest value is read, which waits for a GPU.
        hard: Weights of one with the gradient of the soft ones (straight-through).

    Returns:
        indices, weights and mask, each (..., k) if ``dim`` is the last. The order is that of the
        places, not that of the scores. Of equal scores the first are selected.

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> indices, weights, mask = select_topk(scores, 2, eps=1.0)
    >>> indices, weights
    (tensor([2, 3]), tensor([0.7744, 0.6066]))
    >>> select_topk(torch.stack([scores, -scores]), torch.tensor([1, 2])).mask
    tensor([[ True, False],
            [ True,  True]])
    """
    if isinstance(k, float) or (isinstance(k, Tensor) and k.is_floating_point()):
        raise TypeError(f"k must be an int or an integer tensor for select_topk, got {k}")
    options: dict[str, Any] = {"dim": dim, "largest": largest, "mask": mask}
    return selection(scores, k, _largest(k), eps=eps, hard=hard, **options)


def selection(
    scores: Tensor, k: int | Tensor, size: int, *, eps: Strength, hard: bool, **options: Any
) -> TopKIndices:
    """`select_topk` with room for ``size`` elements of a row, the largest k or more."""
    dim = check_scores(scores, options["dim"])
    weights = soft_topk(scores, k, eps=eps, hard=hard, **options)
    rows, places = unsorted_rows(scores.detach(), k, eps=1.0, normalize=None, **options)
    x = rows.canonical().scores
    chosen = chosen_of(x, places) & (x != -math.inf)
    taken = torch.arange(size, device=x.device) < chosen.sum(-1, keepdim=True)
    indices, taken = (each.movedim(-1, dim) for each in (indices_of(chosen, size), taken))
    return TopKIndices(indices, weights.gather(dim, indices).where(taken, 0.0), taken)


def _largest(k: int | Tensor) -> int:
    if not isinstance(k, Tensor):
        return k
    if k.is_meta:
        raise ValueError("k on device meta has no largest value, which is a size here; use an int")
    return int(k.max()) if k.numel() else 0
