"""The form every operator starts from: rows of scores whose largest elements are wanted.

Users may choose a dimension, the smallest instead of the largest, a mask, infinite scores, half
precision, a normalised cost. All of that is settled here, once, so that the solvers see rows
``(..., n)`` of float32 or float64 in which -inf means "takes no part" and +inf "comes first". (The
native kernels apply mask and direction themselves, those for accelerators read half precision too.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .._checks import (
    Count,
    Dims,
    Strength,
    check_choice,
    check_dims,
    check_eps,
    check_flag,
    check_k,
    check_mask,
)
from .._dispatch import in_onnx_export, is_readable

Normalize = Literal["row", "batch"] | None

# So far below the largest number that scores whose difference overflows are decided.
_HUGE = {dtype: torch.finfo(dtype).max / 1024 for dtype in (torch.float32, torch.float64)}
_TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}


class Rows(NamedTuple):
    """The arguments that all operators share: checked, the dimension moved to the end, several
    joined there."""

    given: Tensor  #: (..., n), the scores in their own dtype
    mask: Tensor | None  #: (..., n)
    tau: Strength  #: temperature eps * scale / 2, a float or (..., 1)
    scale: Strength  #: divisor of the cost, 1.0 or (..., 1)
    eps: Strength  #: a float or (..., 1)
    dims: tuple[int, ...]  #: where the dimensions to select along were
    sizes: tuple[int, ...]  #: and how large
    dtype: torch.dtype
    largest: bool

    @property
    def n(self) -> int:
        return self.given.shape[-1]

    @property
    def batch(self) -> torch.Size:
        return self.given.shape[:-1]

    @property
    def scores(self) -> Tensor:
        """(..., n), float32 or float64."""
        return self.given.to(compute_dtype(self.given.dtype))

    def canonical(self) -> Rows:
        """The same with scores whose largest are wanted, -inf where the mask excludes them.

        ``largest`` still says what was asked for.
        """
        x = canonical(self.scores, self.mask, self.largest)
        return self._replace(given=x, mask=None)

    def at(self, index: Tensor) -> Rows:
        """The rows with this number (m,) alone: the batch shape becomes (m,)."""

        def taken(value: object) -> Any:
            if not isinstance(value, Tensor):
                return value
            return value.expand(*self.batch, -1).reshape(-1, value.shape[-1])[index]

        names = ("given", "mask", "tau", "scale", "eps")
        return self._replace(**{name: taken(getattr(self, name)) for name in names})

    def restore(self, result: Tensor, axis: int = -1) -> Tensor:
        """``result`` in the dtype of the scores, with its ``axis`` of size n back in place."""
        if result.dtype is not self.dtype:
            result = result.to(self.dtype)
        if self.dims == (result.ndim + axis,):
            return result
        count = len(self.dims)
        if count > 1:
            result = result.unflatten(axis, self.sizes)
        return result.movedim(tuple(range(axis - count + 1, axis + 1)), self.dims)


def rows_of(
    scores: Tensor,
    *,
    eps: Strength,
    dim: Dims,
    largest: bool,
    mask: Tensor | None,
    normalize: Normalize,
    last_anchor: int | Tensor,
) -> Rows:
    """Check the arguments.

    ``last_anchor`` is the largest anchor of the transport problem, 1 for the unsorted operator
    and k for the sorted one, a number or (..., 1): the normalised cost depends on it.
    """
    dims = check_dims(scores, dim)
    batch = batch_of(scores, dims)
    eps = check_eps(eps, batch)
    check_flag("largest", largest)
    check_mask(mask, scores)
    check_choice("normalize", normalize, (None, "row", "batch"))

    dtype = scores.dtype
    sizes = tuple(scores.shape[dim] for dim in dims)
    if mask is not None:
        mask = _joined_last(mask.expand(scores.shape), dims)
    if dims != (scores.ndim - 1,):
        scores = _joined_last(scores, dims)
    tau = temperature(eps, 1.0, compute_dtype(dtype))
    rows = Rows(scores, mask, tau, 1.0, eps, dims, sizes, dtype, largest)
    if normalize is None:
        return rows
    wide = scores.detach().to(compute_dtype(dtype))
    taking_part = canonical(wide, mask, largest=True)  # only infinity has a sign
    return normalized(rows, extremes_of(taking_part), last_anchor, normalize)


def batch_of(scores: Tensor, dims: tuple[int, ...]) -> torch.Size:
    """The shape of ``scores`` without these dimensions."""
    return torch.Size(size for dim, size in enumerate(scores.shape) if dim not in dims)


def size_of(scores: Tensor, dims: tuple[int, ...]) -> int:
    """How many elements a row along these dimensions has."""
    n = 1
    for dim in dims:  # not math.prod: sizes may be symbols of a compiler
        n = n * scores.shape[dim]
    return n


def _joined_last(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """``x`` with these dimensions as one, the last."""
    x = x.movedim(dims, tuple(range(-len(dims), 0)))
    return x if len(dims) == 1 else x.flatten(-len(dims))


def normalized(rows: Rows, extremes: Tensor, last_anchor: int | Tensor, normalize: str) -> Rows:
    """The same with a cost that is divided by its largest entry."""
    scale = largest_cost(extremes, last_anchor, normalize)
    tau = temperature(rows.eps, scale, compute_dtype(rows.dtype))
    return rows._replace(tau=tau, scale=scale)


def unsorted_rows(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength,
    dim: Dims,
    largest: bool,
    mask: Tensor | None,
    normalize: Normalize,
) -> tuple[Rows, Count]:
    """The arguments of an unsorted operator, checked."""
    rows = rows_of(
        scores, eps=eps, dim=dim, largest=largest, mask=mask, normalize=normalize, last_anchor=1
    )
    return rows, check_k(k, rows.n, rows.batch)


def canonical(x: Tensor, mask: Tensor | None, largest: bool) -> Tensor:
    """Scores whose largest are wanted, -inf where the mask excludes them."""
    # Filling before anything else makes a masked element equal to a deleted one, NaN included.
    if mask is not None:
        x = x.masked_fill(~mask, -math.inf if largest else math.inf)
    return x if largest else -x


def temperature(eps: Strength, scale: Strength, dtype: torch.dtype) -> Strength:
    """tau = eps * scale / 2, kept among the normal numbers.

    Below them a tie would be 0/0; the selection is hard long before.
    """
    tau = 0.5 * eps * scale
    if isinstance(tau, Tensor):
        return tau.to(dtype).clamp(_TINY[dtype], _HUGE[dtype])
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


def extremes_of(x: Tensor) -> Tensor:
    """The largest finite score of every row, and minus the least, (..., 2)."""
    finite = x.isfinite()
    high = torch.where(finite, x, -math.inf).amax(-1, keepdim=True)
    return torch.cat([high, torch.where(finite, -x, -math.inf).amax(-1, keepdim=True)], -1)


def largest_cost(extremes: Tensor, last_anchor: int | Tensor, normalize: str) -> Tensor:
    """The largest (x_i - y_j)^2 over anchors y = 0..last_anchor, per row or over all: (..., 1).

    The square is convex, so the extremes of x and of the anchors suffice.
    """
    high, minus_low = extremes.split(1, -1)
    low = -minus_low
    ends = torch.cat([low, high, low - last_anchor, high - last_anchor], -1)
    distance = ends.abs().amax(-1, keepdim=True)
    distance = torch.where(distance.isfinite(), distance, 0.0)  # no element takes part
    if normalize == "batch" and distance.numel():
        distance = distance.amax().expand_as(distance)
    distance = torch.where(distance > 0, distance, 1.0)
    return distance.square().clamp(max=torch.finfo(distance.dtype).max)


def places_of(k: Count, x: Tensor) -> Tensor:
    """``k`` as a tensor beside the rows ``x``, kept exact: only k minus a count is ever rounded."""
    if isinstance(k, Tensor):
        return k
    dtype = torch.int64 if isinstance(k, int) else algebra_dtype(x)
    return torch.full((1,), k, dtype=dtype, device=x.device)


def whole_number(k: Tensor, rounded: Callable[[Tensor], Tensor]) -> Tensor:
    """ONNX cannot round an integer."""
    return rounded(k) if k.is_floating_point() else k


def pivot_of(x: Tensor, k: Count) -> Tensor:
    """The ceil(k)-th largest element of every row, (..., 1); k outside of (0, n) is clamped."""
    n = x.shape[-1]
    if isinstance(k, Tensor):
        index = whole_number(k, torch.ceil).long().clamp(1, n) - 1
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
    if in_onnx_export() and not isinstance(k, Tensor):
        return torch.zeros_like(x, dtype=torch.bool).scatter(-1, largest_of(x, int(k))[0], True)
    x = torch.where(x.isnan(), math.inf, x)
    pivot = pivot_of(x, k)
    chosen = x >= pivot
    if is_readable(x) and bool((chosen.sum(-1, keepdim=True) == k).all()):
        return chosen  # no tie across the cut
    above, tied = x > pivot, x == pivot
    return above | (tied & (tied.cumsum(-1) <= k - above.sum(-1, keepdim=True)))


def largest_of(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Places and values (..., k) of the k largest of every row, in the order of their places.

    In ONNX in the order of their values: its TopK sorts, and takes the first of equal ones first.
    """
    if in_onnx_export():
        index = torch.where(x.isnan(), math.inf, x).topk(k).indices
        return index, x.gather(-1, index)
    chosen = chosen_of(x, k)
    if is_readable(x):
        index = chosen.nonzero()[:, -1].view(*x.shape[:-1], k)
        return index, x.gather(-1, index)
    index = indices_of(chosen, k)
    return index, x.gather(-1, index)


def indices_of(chosen: Tensor, size: int) -> Tensor:
    """Places (..., size) of the chosen elements, in order, of which there are ``size`` at most; 0
    where there are fewer."""
    place = torch.where(chosen, chosen.cumsum(-1) - 1, size)  # the others: a column of no use
    index = torch.zeros(*chosen.shape[:-1], size + 1, dtype=torch.int64, device=chosen.device)
    at = torch.arange(chosen.shape[-1], device=chosen.device).expand(chosen.shape)
    return index.scatter(-1, place, at)[..., :size]


def distances(x: Tensor, pivot: Tensor, places: Tensor, tau: Strength) -> tuple[Tensor, Tensor]:
    """Scaled distances (x_i - pivot_j) / tau, infinite where the selection is decided already.

    Measured from the pivot, the difference is correctly rounded near the threshold, which is where
    it matters; x / tau - pivot / tau would have lost all digits at a small tau.

    ``x`` (..., n), ``pivot`` (..., m), ``places`` (..., m) or (m,) -> distances (..., n, m), and
    pivots (..., m), at infinity for rows in which nothing is left to solve. The pivots carry no
    gradient: the operators are shift-invariant.
    """
    fixed = x.detach()  # unlike no_grad this stops forward mode too
    if _nothing_decided(fixed, places, tau):
        row_tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
        return (x.unsqueeze(-1) - pivot.unsqueeze(-2)) / row_tau, pivot
    taking_part = (fixed != -math.inf).sum(-1, keepdim=True)
    pivot = settled(pivot, places, taking_part, fixed.isnan().any(-1, keepdim=True))
    crowded = places < (fixed == math.inf).sum(-1, keepdim=True)
    return measured(x, pivot, places, tau, crowded), pivot


def measured(x: Tensor, pivot: Tensor, places: Tensor, tau: Strength, crowded: Tensor) -> Tensor:
    """Distances (..., n, m) from settled pivots. ``crowded`` says where more infinite scores than
    places are (..., m)."""
    row_tau = tau.unsqueeze(-1) if isinstance(tau, Tensor) else tau
    if _nothing_far(x.detach(), pivot, tau):
        return (x.unsqueeze(-1) - pivot.unsqueeze(-2)) / row_tau
    raw, decided = _outcome(x.detach(), pivot, places, row_tau, crowded)
    free = (x.unsqueeze(-1) - pivot.unsqueeze(-2)).masked_fill(decided, 0.0)
    return torch.where(decided, raw, free / row_tau)


def _nothing_decided(x: Tensor, places: Tensor, tau: Strength) -> bool:
    """Whether all scores are finite, near enough for the quotient, and 0 < k < n: a common case.

    A short cut only, taken where looking at the values is free.
    """
    if not is_readable(places):
        return False
    return _nothing_far(x, x, tau) and bool(((places > 0) & (places < x.shape[-1])).all())


def _nothing_far(x: Tensor, pivot: Tensor, tau: Strength) -> bool:
    """Whether all scores and pivots are finite, and near enough for the quotient; see above."""
    tensors = (x, pivot, tau) if isinstance(tau, Tensor) else (x, pivot)
    if not is_readable(*tensors) or not x.numel():
        return False
    low, high = x.aminmax()
    if pivot is not x:
        low, high = torch.minimum(low, pivot.amin()), torch.maximum(high, pivot.amax())
    bound = _overflow_bound(x, tau)
    lowest = bound.min() if isinstance(bound, Tensor) else bound
    return bool((high - low) <= lowest)


def settled(pivot: Tensor, places: Tensor, taking_part: Tensor, has_nan: Tensor) -> Tensor:
    """Pivots (..., m) moved to -inf where all elements that take part are selected, to +inf where
    none is, and to NaN where the row has a NaN."""
    pivot = torch.where(places >= taking_part, -math.inf, pivot)
    pivot = torch.where(places <= 0, math.inf, pivot)
    return torch.where(has_nan, math.nan, pivot)


def _outcome(
    x: Tensor, pivot: Tensor, places: Tensor, tau: Strength, crowded: Tensor
) -> tuple[Tensor, Tensor]:
    """Distances (..., n, m) of the elements that are decided, and which are.

    Taken out of the division by tau, they cannot put 0 * inf into its derivative.
    """
    x, pivot = x.unsqueeze(-1), pivot.unsqueeze(-2)
    ahead = x == math.inf
    raw = torch.where(x == -math.inf, -math.inf, x - pivot)
    # Infinite scores share the places when there are too few, else each has one of its own.
    tie = torch.where(crowded, 0.0, math.inf).to(x.dtype)
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
    return limit * small * small if tau.requires_grad else limit * small  # no square underflows


def without_negligible(values: Tensor, d: Tensor, best: Tensor) -> Tensor:
    """``values`` (..., n) or (..., n, k) less the elements whose leak is below rounding, if many.

    ``d`` (..., n) are distances from the last pivot, ``best`` (..., 1) is the largest of the rest.
    The root lies at most log(2 n) below it, since n elements leak no more out of the top. So an
    element further below than ``reach`` leaks less than 1/n of a rounding: all of them together can
    be left out of the solve. At low temperature that is nearly every element.
    """
    n = d.shape[-1]
    if not is_readable(d) or n < 64 or d.numel() == 0:
        return values
    reach = 2.0 * math.log(2 * n) - math.log(torch.finfo(d.dtype).eps)
    kept = int((d >= best - reach).sum(-1).max())
    if 3 * kept > n:
        return values
    index = d.topk(kept, dim=-1, sorted=False).indices
    if values.ndim > d.ndim:
        return torch.take_along_dim(values, index.unsqueeze(-1), -2)
    return values.gather(-1, index)


def per_row(value: Count | Strength, x: Tensor) -> float | Tensor:
    """As the kernels read it: a number, or float64 with one element for every row of ``x``."""
    if not isinstance(value, Tensor):
        return value
    return value.to(torch.float64).expand(*x.shape[:-1], 1).contiguous()


def flat_offsets(offsets: Tensor, x: Tensor) -> Tensor:
    """The offsets in the memory of ``x`` (..., total), all of its rows one after the other."""
    batch, total = math.prod(x.shape[:-1]), x.shape[-1]
    if not is_readable(offsets):  # and so not checked: no kernel shall leave the memory
        offsets = offsets.clamp(0, total)
    if batch == 1:
        return offsets.contiguous()
    starts = total * torch.arange(batch, device=x.device)
    flat = (starts.unsqueeze(-1) + offsets[:-1]).flatten()
    return torch.cat([flat, starts.new_full((1,), batch * total)])


def column(value: Strength, x: Tensor) -> Tensor:
    """As a custom operator takes it: a tensor (..., 1)."""
    if not isinstance(value, Tensor):
        value = x.new_full((1,), value)
    return value.expand(*x.shape[:-1], 1)


def hard_selection(x: Tensor, k: Count) -> Tensor:
    """The 0/1 selection (..., n) of the round(k) largest, of scores in canonical form.

    Elements that take no part are never selected. A row with a NaN is NaN.
    """
    x = x.detach()
    k = whole_number(k.detach(), torch.round) if isinstance(k, Tensor) else round(k)
    chosen = chosen_of(x, k)
    selected = (chosen & (x != -math.inf)).to(x.dtype)
    return selected.masked_fill(x.isnan().any(-1, keepdim=True), math.nan)


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of ``hard`` with the derivative of ``soft``."""
    return hard + (soft - soft.detach())
