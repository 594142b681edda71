"""The form every operator starts from: rows of scores whose largest elements are wanted.

Users may choose a dimension, the smallest instead of the largest, a mask, infinite scores, half
precision, a normalised cost. All of that is settled here, once, so that the solvers see rows
``(..., n)`` of float32 or float64 in which -inf means "takes no part" and +inf "comes first". (The
native kernels apply mask and direction themselves.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ._arguments import (
    Count,
    Strength,
    check_choice,
    check_eps,
    check_flag,
    check_mask,
    check_scores,
    is_readable,
)

_HUGE = {dtype: torch.finfo(dtype).max for dtype in (torch.float32, torch.float64)}
_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}


class Rows(NamedTuple):
    """The arguments that all operators share: checked, the dimension moved to the end."""

    scores: Tensor  #: (..., n), float32 or float64, otherwise as given
    mask: Tensor | None  #: (..., n)
    tau: Strength  #: temperature eps * scale / 2, a float or (..., 1)
    scale: Strength  #: divisor of the cost, 1.0 or (..., 1)
    eps: Strength  #: a float or (..., 1)
    dim: int
    dtype: torch.dtype
    largest: bool

    @property
    def n(self) -> int:
        return self.scores.shape[-1]

    @property
    def batch(self) -> torch.Size:
        return self.scores.shape[:-1]

    def canonical(self) -> Rows:
        """The same with scores whose largest are wanted, -inf where the mask excludes them.

        ``largest`` still says what was asked for.
        """
        x = _masked(self.scores, self.mask, self.largest)
        return self._replace(scores=x if self.largest else -x, mask=None)

    def restore(self, result: Tensor, axis: int = -1) -> Tensor:
        """``result`` in the dtype of the scores, with its ``axis`` of size n back in place."""
        if result.dtype is not self.dtype:
            result = result.to(self.dtype)
        return result if self.dim == result.ndim + axis else result.movedim(axis, self.dim)


def rows_of(
    scores: Tensor,
    *,
    eps: Strength,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    normalize: str | None,
    last_anchor: int,
) -> Rows:
    """Check the arguments.

    ``last_anchor`` is the largest anchor of the transport problem, 1 for the unsorted operator
    and k for the sorted one: the normalised cost depends on it.
    """
    dim = check_scores(scores, dim)
    batch = scores.shape[:dim] + scores.shape[dim + 1 :]
    eps = check_eps(eps, batch)
    check_flag("largest", largest)
    check_mask(mask, scores)
    check_choice("normalize", normalize, (None, "row", "batch"))

    dtype = scores.dtype
    if mask is not None:
        mask = mask.expand(scores.shape).movedim(dim, -1)
    if dim != scores.ndim - 1:
        scores = scores.movedim(dim, -1)
    if dtype is not compute_dtype(dtype):
        scores = scores.to(compute_dtype(dtype))
    scale: Strength = 1.0
    if normalize is not None:
        scale = largest_cost(_masked(scores.detach(), mask, largest), last_anchor, normalize)
    tau = temperature(eps, scale, scores.dtype)
    return Rows(scores, mask, tau, scale, eps, dim, dtype, largest)


def _masked(x: Tensor, mask: Tensor | None, largest: bool) -> Tensor:
    # Filling before anything else makes a masked element equal to a deleted one, NaN included.
    return x if mask is None else x.masked_fill(~mask, -math.inf if largest else math.inf)


def temperature(eps: Strength, scale: Strength, dtype: torch.dtype) -> Strength:
    """tau = eps * scale / 2, kept among the normal numbers.

    Below them a tie would be 0/0; the selection is hard long before.
    """
    tau = 0.5 * eps * scale
    if isinstance(tau, Tensor):
        info = torch.finfo(dtype)
        return tau.to(dtype).clamp(info.tiny, info.max)
    return min(max(tau, _TINY[dtype]), _HUGE[dtype])


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 and float32 compute in themselves, the half types in float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def algebra_dtype(like: Tensor) -> torch.dtype:
    """float64 for small linear algebra where the device has it, else the dtype of ``like``.

    float64 products are also exempt from autocast, which would round them to bfloat16.
    """
    try:
        torch.empty(0, dtype=torch.float64, device=like.device)
    except (TypeError, RuntimeError):
        return like.dtype
    return torch.float64


def largest_cost(x: Tensor, last_anchor: int, normalize: str) -> Tensor:
    """The largest (x_i - y_j)^2 over anchors y = 0..last_anchor, per row or over all: (..., 1).

    The square is convex, so the extremes of x and of the anchors suffice.
    """
    finite = x.isfinite()
    low = torch.where(finite, x, math.inf).amin(-1, keepdim=True)
    high = torch.where(finite, x, -math.inf).amax(-1, keepdim=True)
    ends = torch.cat([low, high, low - last_anchor, high - last_anchor], -1)
    distance = ends.abs().amax(-1, keepdim=True)
    distance = torch.where(distance.isfinite(), distance, 0.0)  # no element takes part
    if normalize == "batch" and distance.numel():
        distance = distance.amax().expand_as(distance)
    distance = torch.where(distance > 0, distance, 1.0)
    return distance.square().clamp(max=torch.finfo(x.dtype).max)


def places_of(k: Count, x: Tensor) -> Tensor:
    """``k`` as a tensor beside the rows ``x``, kept exact: only k minus a count is ever rounded."""
    if isinstance(k, Tensor):
        return k
    dtype = torch.int64 if isinstance(k, int) else algebra_dtype(x)
    return torch.full((1,), k, dtype=dtype, device=x.device)


def pivot_of(x: Tensor, k: Count) -> Tensor:
    """The ceil(k)-th largest element of every row, (..., 1); k outside of (0, n) is clamped."""
    n = x.shape[-1]
    if isinstance(k, Tensor):
        index = k.ceil().long().clamp(1, n) - 1
        longest = int(index.max()) + 1 if is_readable(index) and index.numel() else n
        ordered = x.topk(longest, dim=-1).values
        return ordered.gather(-1, index.expand(*x.shape[:-1], 1))
    rank = min(max(math.ceil(k), 1), n)
    if 2 * rank <= n:  # select from the shorter side
        return x.topk(rank, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return x.topk(n - rank + 1, dim=-1, largest=False, sorted=False).values.amax(-1, keepdim=True)


def chosen_of(x: Tensor, k: Count) -> Tensor:
    """Which k elements of every row are the largest (..., n); of equal ones the first.

    ``torch.topk`` does not say which of equal ones it takes. A NaN counts as infinite.
    """
    x = torch.where(x.isnan(), math.inf, x)
    pivot = pivot_of(x, k)
    above, tied = x > pivot, x == pivot
    return above | (tied & (tied.cumsum(-1) <= k - above.sum(-1, keepdim=True)))


def largest_of(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Places and values (..., k) of the k largest of every row, in the order of their places."""
    chosen = chosen_of(x, k)
    place = torch.where(chosen, chosen.cumsum(-1) - 1, k)  # the others go into a column of no use
    index = torch.zeros(*x.shape[:-1], k + 1, dtype=torch.int64, device=x.device)
    at = torch.arange(x.shape[-1], device=x.device).expand(x.shape)
    index = index.scatter(-1, place, at)[..., :k]
    return index, x.gather(-1, index)


def distances(x: Tensor, pivot: Tensor, places: Tensor, tau: Strength) -> tuple[Tensor, Tensor]:
    """Scaled distances (x_i - pivot_j) / tau, infinite where the selection is decided already.

    Measured from the pivot, the difference is correctly rounded near the threshold, which is where
    it matters; x / tau - pivot / tau would have lost all digits at a small tau.

    ``x`` (..., n), ``pivot`` (..., m), ``places`` (..., m) or (m,) -> distances (..., n, m), and
    pivots (..., m), at infinity for rows in which nothing is left to solve. The pivots carry no
    gradient: the operators are shift-invariant.
    """
    fixed = x.detach()  # unlike no_grad this stops forward mode too
    row_tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
    if _nothing_decided(fixed, places, tau):
        return (x.unsqueeze(-1) - pivot.unsqueeze(-2)) / row_tau, pivot
    pivot = _settle(fixed, pivot, places)
    raw, decided = _outcome(fixed, pivot, places, row_tau)
    free = (x.unsqueeze(-1) - pivot.unsqueeze(-2)).masked_fill(decided, 0.0)
    return torch.where(decided, raw, free / row_tau), pivot


def rank_distances(rows: Rows, k: int) -> Tensor:
    """Distances (..., n, k) from the pivot of every rank, of rows in canonical form."""
    x = rows.scores
    pivots = x.detach().topk(k, dim=-1).values
    return distances(x, pivots, torch.arange(1, k + 1, device=x.device), rows.tau)[0]


def _nothing_decided(x: Tensor, places: Tensor, tau: Strength) -> bool:
    """Whether all scores are finite, near enough for the quotient, and 0 < k < n: a common case.

    A short cut only, taken where looking at the values is free.
    """
    tensors = (x, places, tau) if isinstance(tau, Tensor) else (x, places)
    if not (is_readable(*tensors) and x.numel()):
        return False
    low, high = x.aminmax()
    bound = _overflow_bound(x, tau)
    lowest = bound.min() if isinstance(bound, Tensor) else bound
    return bool(((high - low) <= lowest) & ((places > 0) & (places < x.shape[-1])).all())


def _settle(x: Tensor, pivot: Tensor, places: Tensor) -> Tensor:
    """Pivots (..., m) moved to -inf where all elements that take part are selected, to +inf where
    none is, and to NaN where the row has a NaN."""
    taking_part = (x != -math.inf).sum(-1, keepdim=True)
    pivot = torch.where(places >= taking_part, -math.inf, pivot)
    pivot = torch.where(places <= 0, math.inf, pivot)
    return torch.where(x.isnan().any(-1, keepdim=True), math.nan, pivot)


def _outcome(x: Tensor, pivot: Tensor, places: Tensor, tau: Strength) -> tuple[Tensor, Tensor]:
    """Distances (..., n, m) of the elements that are decided, and which are.

    Taken out of the division by tau, they cannot put 0 * inf into its derivative.
    """
    x, pivot = x.unsqueeze(-1), pivot.unsqueeze(-2)
    ahead = x == math.inf
    raw = torch.where(x == -math.inf, -math.inf, x - pivot)
    # Infinite scores share the places when there are too few, else each has one of its own.
    tie = torch.where(places < ahead.sum(-2), 0.0, math.inf).to(x.dtype)
    tie = torch.where(places <= 0, -math.inf, tie).unsqueeze(-2)
    raw = torch.where(ahead & (pivot == math.inf), tie, raw)
    decided = ~(raw.abs() <= _overflow_bound(x, tau)) | ahead
    return torch.where(raw == 0, 0.0, raw * math.inf), decided


def _overflow_bound(x: Tensor, tau: Strength) -> Strength:
    """How large x - pivot may be for the quotient by tau, and its derivative quotient / tau."""
    limit = 0.125 * torch.finfo(x.dtype).max
    if not isinstance(tau, Tensor):
        return limit * min(tau, 1.0)
    small = tau.detach().clamp(max=1.0)
    return limit * (small.square() if tau.requires_grad else small)
