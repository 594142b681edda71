"""What all losses share: queries and their positives, cutoffs, the temperature, the mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._checks import (
    Strength,
    check_broadcast,
    check_choice,
    check_eps,
    check_integer,
    check_mask,
    check_not_negative,
    check_range,
    check_scores,
)
from ..distributed import mean
from ..functional._rows import compute_dtype

#: One cutoff, or several at once.
Cutoffs = int | Sequence[int]
Reduction = Literal["mean", "sum", "none"]

#: The default eps in standard deviations of a query's scores, chosen on MNIST by
#: `benchmarks/losses.py --spreads`: between 0.2 and 0.4, which were as good as each other.
SPREAD = 0.3


class Queries(NamedTuple):
    """Scores and what they should be, checked."""

    scores: Tensor  #: (..., n), float32 or float64
    gains: Tensor  #: (..., n), of that dtype: 1 for a positive, or the relevance; 0 where masked
    mask: Tensor | None  #: (..., n)

    @property
    def valid(self) -> Tensor:
        """Whether there is a positive (...)."""
        return (self.gains > 0).any(-1)

    @property
    def positives(self) -> Tensor:
        """The number of positives (...), but at least one, in the dtype of the scores."""
        return (self.gains > 0).sum(-1).clamp(min=1).to(self.scores.dtype)


def valid_queries(positives: Tensor, mask: Tensor | None = None) -> Tensor:
    """Which queries have a positive: the losses are means over these.

    A query without one has no recall, nor any other of the metrics. Its loss is 0 with
    ``reduction="none"``, and it does not count in the mean. This function tells which ones count,
    and its sum how many.

    Args:
        positives: (..., n), booleans, or a relevance, which is above 0 for a positive.
        mask: Boolean, broadcasts to positives; True takes part.

    Returns:
        Booleans (...).

    >>> valid_queries(torch.tensor([[True, False, False], [False, False, False]]))
    tensor([ True, False])
    """
    if not isinstance(positives, Tensor):
        raise TypeError(f"positives must be a torch.Tensor, got {type(positives).__name__}")
    if positives.ndim == 0:
        raise ValueError("positives must have at least one dimension, got a 0-d tensor")
    check_mask(mask, positives)
    found = positives > 0
    return (found if mask is None else found & mask).any(-1)


def queries_of(
    scores: Tensor, positives: Tensor, mask: Tensor | None, name: str = "positives"
) -> Queries:
    """The arguments of a loss with positives, checked; the caller knows these by their ``name``."""
    if isinstance(positives, Tensor) and positives.dtype is not torch.bool:
        raise TypeError(f"{name} must be boolean, got {positives.dtype}; use {name} > 0")
    return graded_queries(scores, positives, mask, name)


def graded_queries(
    scores: Tensor, relevance: Tensor, mask: Tensor | None, name: str = "relevance"
) -> Queries:
    """The same with a relevance."""
    check_scores(scores, -1)
    check_mask(mask, scores)
    if not isinstance(relevance, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(relevance).__name__}")
    if relevance.is_complex():
        raise TypeError(f"{name} must be of a real dtype, got {relevance.dtype}")
    check_broadcast(name, relevance.shape, scores.shape, what="the shape of scores")
    if mask is not None:  # first, so that what is masked may be anything
        mask = mask.expand(scores.shape)
        relevance = torch.where(mask, relevance, torch.zeros_like(relevance))
    x = scores.to(compute_dtype(scores.dtype))
    check_range(name, relevance, 0, torch.finfo(x.dtype).max)
    return Queries(x, relevance.to(x.dtype).expand(x.shape), mask)


def cutoffs_of(k: Cutoffs, weights: Sequence[float] | None) -> tuple[list[int], list[float]]:
    """The cutoffs, and the weight of each; these sum to one."""
    given = list(k) if isinstance(k, (list, tuple, range)) else [k]
    ks = [check_integer("k", each) for each in given]
    if not ks:
        raise ValueError(f"k must be an int or several of them, got k={k!r}")
    if weights is None:
        return ks, [1.0 / len(ks)] * len(ks)
    if not isinstance(weights, (list, tuple)) or len(weights) != len(ks):
        raise ValueError(f"weights must be a number for each of k={k!r}, got weights={weights!r}")
    total = sum(check_not_negative("weights", weight) for weight in weights)
    if not 0 < total < math.inf:
        raise ValueError(f"weights must have a positive sum, got weights={weights!r}")
    return ks, [weight / total for weight in weights]


def weighted(values: Tensor, weights: Sequence[float]) -> Tensor:
    """The mean over the last axis, that of the cutoffs."""
    return (values * values.new_tensor(weights)).sum(-1)


def eps_of(eps: Strength | None, scores: Tensor, mask: Tensor | None) -> Strength:
    """``eps`` after a check, or the default: a share of the deviation of a query's scores (...)."""
    if eps is not None:
        check_eps(eps, scores.shape[:-1])
        return eps
    x, info = scores.detach(), torch.finfo(scores.dtype)
    part = x.isfinite() if mask is None else x.isfinite() & mask
    part = part & ~_far_off(x, part)
    x, count = x.masked_fill(~part, 0.0), part.sum(-1, keepdim=True).clamp(min=1)
    scale = x.abs().amax(-1, keepdim=True).clamp(min=info.tiny)  # whose square may not be a number
    x = x / scale
    centred = (x - x.sum(-1, keepdim=True) / count).masked_fill(~part, 0.0)
    deviation = (centred.square().sum(-1, keepdim=True) / count).sqrt()
    # Scores that are equal share the places at any eps, but their gradient is divided by it.
    tied = deviation <= 16.0 * info.eps
    unit = torch.where(scale > info.tiny, scale, 1.0)
    found = torch.where(tied, unit, SPREAD * scale * deviation)
    return found.clamp(min=math.sqrt(info.tiny)).squeeze(-1)


def _far_off(x: Tensor, part: Tensor) -> Tensor:
    """Items that are no part of a scale, such as those at -1e9: a thousand times as far from the
    best as a tenth of the items are."""
    distance = x.masked_fill(~part, -math.inf).amax(-1, keepdim=True) - x
    distance = distance.masked_fill(~part, math.inf)
    near = distance.topk(min(2 + x.shape[-1] // 10, x.shape[-1]), largest=False).values[..., -1:]
    return (distance > 1e3 * near) & (near > 0)


def selected(
    operator: Callable[..., Tensor],
    scores: Tensor,
    ks: Sequence[int],
    eps: Strength | None,
    mask: Tensor | None,
) -> Tensor:
    """The ``operator``, `soft_topk` or its logarithm, at all cutoffs in one call:
    (..., cutoffs, n)."""
    n = scores.shape[-1]
    eps = eps_of(eps, scores, mask)
    if isinstance(eps, Tensor):
        eps = eps.expand(scores.shape[:-1]).unsqueeze(-1)
    if mask is not None:
        mask = mask.expand(scores.shape).unsqueeze(-2)
    places = [min(k, n) for k in ks]
    k = places[0] if len(ks) == 1 else torch.tensor(places, device=scores.device)
    x = scores.unsqueeze(-2).expand(*scores.shape[:-1], len(ks), n)
    return operator(x, k, eps=eps, mask=mask)


def reduced(losses: Tensor, valid: Tensor, reduction: Reduction, group: Any) -> Tensor:
    """The losses (...) of valid queries, their sum, or their mean over all ranks of the group."""
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    if group is not None and reduction != "mean":
        raise ValueError(
            f"group is for the mean over its ranks, got reduction={reduction!r}; leave group out"
        )
    losses = torch.where(valid, losses, 0.0)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if group is None:
        return losses.sum() / valid.sum().clamp(min=1)
    # Both are means over all queries of all ranks: their ratio is the mean over the valid ones.
    share = mean(valid.to(losses.dtype), group=group)
    return mean(losses, group=group) / share.clamp(min=torch.finfo(share.dtype).tiny)
