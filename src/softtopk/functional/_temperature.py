"""Which eps: the one that leaves a given number of elements undecided, and what a given one does.

eps has the unit of the scores, so no number suits all. What people know is how many elements should
still have a choice. An element is undecided if 0.05 < A < 0.95, that is if it is nearer to the
threshold than log(19) tau, so around the threshold the number grows with eps.

Order statistics give eps in one step where as many elements lie on either side of the cut: the
window of the elements k - width/2 to k + width/2 is 2 log(19) tau long. Near the ends of a row, as
for a small k, that is off by a factor of two to ten, since the threshold moves away from the cut.
So eps is searched for, with the operator itself, between limits that order statistics give: the
smallest gap of the row, and its range.

The search looks at the same temperatures whatever the width, and takes the first one at which
there are enough. So a larger width has an eps that is at least as large. Since A sums to k, no more
than 20 k elements can be undecided, and no more than 20 (n - k). Where no eps reaches the width, it
is the one with the most undecided elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import Count, Dims, Strength, check_flag, check_number, check_positive, check_ranks
from ._nested import is_nested, takes_nested
from ._ragged import Ragged, Segments, find_pivots, places_of_rows, quantity, ragged_of
from ._ragged import hard_selection as ragged_hard_selection
from ._rows import Normalize, algebra_dtype, hard_selection, pivot_of, unsorted_rows
from ._sorted import sorted_soft_topk
from ._unsorted import indicator, slopes, soft_topk

#: An element is decided if its A is this near to 0 or 1.
DECIDED = 0.05
#: The share of the gradient that `Sharpness.receiving` counts the elements of.
MOST = 0.95
#: The search: temperatures from the smallest gap to the range, then bisections between two of them.
_COARSE, _BISECTIONS = 13, 8


def eps_for(
    scores: Tensor,
    k: Count,
    *,
    width: float,
    dim: Dims = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    per_row: bool = True,
    sorted: bool = False,
    offsets: Tensor | None = None,
) -> Tensor | float:
    """The eps at which about ``width`` elements are undecided: 0.05 < A < 0.95.

    It scales with the scores and does not change when they are shifted. It grows with the width.
    Where no eps leaves that many undecided, it is the one that leaves the most: their number is
    below 20 k and 20 (n - k), and often below 5 k. Rows in which eps does not matter, because all
    scores are equal or no more than k take part, have some positive one.

    It costs about twenty calls of the operator, without derivatives: made to be called once, on the
    first batch, or now and then. The result is a constant.

    Args:
        width: How many elements, a number with 0 < width <= n. 2 is nearly hard; 2 k reaches as far
            on either side of the cut as there are selected elements.
        per_row: An eps for every row, else the median of all rows that have one.
        sorted: For `sorted_soft_topk`, where the number is the mean over the k thresholds between
            neighbouring ranks: 0.05 < P(rank <= j) < 0.95.

    The other arguments are those of `soft_topk`. Of ragged rows a width may be above the length.

    Returns:
        A tensor of the shape of scores without ``dim``, for ``eps=``; or a float. With ``offsets``
        (..., rows).

    >>> scores = torch.linspace(0, 1, 101)  # evenly spaced
    >>> eps = eps_for(scores, 50, width=20)
    >>> selected = soft_topk(scores, 50, eps=eps)
    >>> ((selected > 0.05) & (selected < 0.95)).sum()
    tensor(20)
    >>> bool((eps_for(8 * scores, 50, width=20) == 8 * eps).all())
    True
    """
    check_flag("per_row", per_row)
    options: dict[str, Any] = {"width": width, "dim": dim, "largest": largest, "mask": mask}
    options["offsets"] = offsets
    if per_row:
        return _eps_of_rows(scores, k, **options, sorted=sorted)[0]
    found = common_eps(scores, k, **options, sorted=sorted)
    if found.is_meta:
        raise ValueError("per_row=False asks for a number, and scores on device meta have none")
    return float(found.nan_to_num(nan=1.0))


def common_eps(scores: Tensor, k: Count, **options: Any) -> Tensor:
    """`eps_for` as one number for all rows, in a tensor: a device is not waited for. NaN if in no
    row eps matters."""
    eps, matters = _eps_of_rows(scores, k, **options)
    return torch.where(matters, eps, math.nan).flatten().nanmedian()


def _eps_of_rows(
    scores: Tensor,
    k: Count,
    *,
    width: float,
    dim: Dims,
    largest: bool,
    mask: Tensor | None,
    sorted: bool,
    offsets: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """eps (...), and in which rows it matters (...)."""
    check_flag("sorted", sorted)
    if offsets is not None or is_nested(scores):
        if sorted:
            raise NotImplementedError("the sorted operator takes no ragged rows; use sorted=False")
        return _eps_of_ragged_rows(
            scores, k, offsets, width=width, dim=dim, largest=largest, mask=mask
        )
    rows, k = unsorted_rows(scores, k, eps=1.0, dim=dim, largest=largest, mask=mask, normalize=None)
    width = check_number("width", width)
    if not 0 < width <= rows.n:
        raise ValueError(
            f"width must be above 0 and at most n={rows.n}, the size along dim, got width={width:g}"
        )
    with torch.no_grad():
        x = rows.canonical().scores.detach()
        k = k.detach() if isinstance(k, Tensor) else k
        places = k.squeeze(-1) if isinstance(k, Tensor) else k
        over, ranks = _Even(), 0
        count = partial(_undecided, x, places, over, None)
        if sorted:
            check_ranks(places, rows.n, rows.batch)  # type: ignore[arg-type]
            ranks = int(torch.as_tensor(k).max()) if x.numel() else 0
            count = partial(_undecided_ranks, x, places)
        low, high, known = _limits(x, pivot_of(_quarter(x), k).squeeze(-1), ranks, over)
        eps = torch.where(known, _search(count, low, high, width, x.dtype), 1.0)
        return eps, known & _has_choice(x, places, over)


@partial(takes_nested, per_row=True)
def _eps_of_ragged_rows(
    scores: Tensor, k: Count, offsets: Tensor, *, width: float, **options: Any
) -> tuple[Tensor, Tensor]:
    """The same, with rows (..., rows)."""
    width = check_positive("width", width)
    ragged = ragged_of(scores, k, offsets, eps=1.0, normalize=None, **options)
    with torch.no_grad():
        x, offsets = ragged.rows.canonical().scores.detach(), ragged.offsets
        over = _Uneven(ragged)
        k = places_of_rows(ragged.k, x, offsets).detach()
        places = k.squeeze(-1)
        pivot = find_pivots(_quarter(x), k, offsets)[0].squeeze(-1)
        low, high, known = _limits(x, pivot, 0, over)
        count = partial(_undecided, x, places, over, offsets)
        eps = torch.where(known, _search(count, low, high, width, x.dtype), 1.0)
        return eps, known & _has_choice(x, places, over)


class _Even:
    """Numbers of the rows (...) of values (..., n)."""

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(-1)

    def largest(self, values: Tensor) -> Tensor:
        return values.amax(-1)

    def spread(self, numbers: Tensor) -> Tensor:
        """As they broadcast to the elements."""
        return numbers.unsqueeze(-1)

    def fewest(self, shares: Tensor) -> Tensor:
        """The fewest elements that have `MOST` of the sum of a row, which is one."""
        shares = shares.sort(-1, descending=True).values
        before = shares.cumsum(-1) - shares
        return self.sum((before < MOST) & (shares > 0))


class _Uneven(_Even):
    """Numbers of the ragged rows (..., rows) of values (..., total)."""

    def __init__(self, ragged: Ragged) -> None:
        self._segments = Segments(ragged.offsets, ragged.rows.n)

    def sum(self, values: Tensor) -> Tensor:
        return self._segments.sum(values.unsqueeze(-1)).squeeze(-1)

    def largest(self, values: Tensor) -> Tensor:
        return self._segments.largest(values.unsqueeze(-1)).squeeze(-1)

    def spread(self, numbers: Tensor) -> Tensor:
        return self._segments.spread(numbers.unsqueeze(-1)).squeeze(-1)

    def fewest(self, shares: Tensor) -> Tensor:
        shares = shares.to(algebra_dtype(shares)).gather(-1, self._segments.order(shares))
        up_to = F.pad(shares.cumsum(-1), (1, 0))
        before = up_to[..., :-1] - self.spread(up_to[..., self._segments.offsets[:-1]])
        return self.sum((before < MOST) & (shares > 0))


def _has_choice(x: Tensor, k: Count, over: _Even) -> Tensor:
    """Rows (...) in which some elements that take part are selected and others are not."""
    ahead, part = over.sum(x == math.inf), over.sum(x != -math.inf)
    return (ahead < k) & (k < part) & (over.sum(x.isnan()) == 0)


def _undecided(x: Tensor, k: Count, over: _Even, offsets: Tensor | None, eps: Tensor) -> Tensor:
    """How many elements of the rows are undecided: (...)."""
    return over.sum(_is_undecided(soft_topk(x, k, eps=eps, offsets=offsets)))


def _undecided_ranks(x: Tensor, k: Count, eps: Tensor) -> Tensor:
    """How many are undecided at the threshold after a rank, the mean over the ranks: (...)."""
    up_to = sorted_soft_topk(x, k, eps=eps).cumsum(-1)  # type: ignore[arg-type]
    k = torch.as_tensor(k, device=x.device).unsqueeze(-1)
    empty = torch.arange(up_to.shape[-1], device=x.device) >= k
    undecided = _is_undecided(up_to).sum(-2).masked_fill(empty, 0)
    return undecided.sum(-1) / k.squeeze(-1).clamp(min=1)


def _is_undecided(a: Tensor) -> Tensor:
    return (a > DECIDED) & (a < 1.0 - DECIDED)


def _quarter(x: Tensor) -> Tensor:
    """A quarter of the finite scores, since the difference of two may be too large to represent; in
    float64 where there is one."""
    return torch.where(x.isfinite(), 0.25 * x.to(algebra_dtype(x)), -math.inf)


def _limits(x: Tensor, pivot: Tensor, ranks: int, over: _Even) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of the least and the largest eps to look at (...), in float64 where there is one,
    and which rows have two different finite scores. ``pivot`` (...) is that of a quarter."""
    x = _quarter(x)
    span = over.largest(x) + over.largest(torch.where(x == -math.inf, x, -x))
    known = (span > 0) & span.isfinite()
    gaps = (x - over.spread(pivot)).abs()
    if ranks > 1:
        gaps = torch.cat([gaps, -x.topk(ranks).values.diff(dim=-1)], -1)
    gap = torch.minimum(-over.largest(torch.where(gaps > 0, -gaps, -math.inf)), span)
    # The window of a quarter of the smallest gap holds no element beside the ties. At four times
    # the range, A is uniform up to a factor of about 1.6.
    low, high = (torch.where(known, each, 1.0).log2() for each in (gap, span))
    return low, high + 4.0, known


def _search(
    count: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, width: float, dtype: torch.dtype
) -> Tensor:
    """The least eps (...) at which the count reaches the width, or else its largest value."""
    step = (high - low) / (_COARSE - 1)
    right, most = low, torch.full_like(low, -1.0)
    reached = torch.zeros_like(low, dtype=torch.bool)
    for i in range(_COARSE):
        found = count(_power(low + i * step, dtype))
        right = torch.where(~reached & (found > most), low + i * step, right)
        most = torch.where(reached, most, torch.maximum(most, found.to(most.dtype)))
        reached = most >= width
    left = torch.maximum(right - step, low)
    goal = most.clamp(max=width)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (left + right)
        enough = count(_power(middle, dtype)) >= goal
        left, right = torch.where(enough, left, middle), torch.where(enough, middle, right)
    return _power(right, dtype)


def _power(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent, where an eps may be: the operator halves it, and divides by it."""
    info = torch.finfo(dtype)
    limits = math.log2(info.tiny) + 2, math.log2(info.max) - 2
    return torch.exp2(exponent.clamp(*limits)).to(dtype)


class Sharpness(NamedTuple):
    """How soft a selection is, for every row (...); ``str()`` says it in words."""

    undecided: Tensor
    """Elements with 0.05 < A < 0.95."""
    misplaced: Tensor
    """Places that the k largest do not have: k less the sum of their A. 0 is a hard selection, and
    k (n - k) / n a uniform one."""
    receiving: Tensor
    """Elements that get 95 % of the gradient: the fewest that have that share of A (1 - A)."""
    k: Tensor
    """Places in all, the sum of A."""
    choice: Tensor
    """Whether there is something to decide: neither all nor none are selected, and no NaN."""

    def __str__(self) -> str:
        rows = self.undecided.numel()
        if rows == 0:
            return "no rows"
        if not self.choice.any():
            return "nothing to decide: all or none of the elements of a row are selected, or NaN"
        undecided, misplaced, receiving, k = (
            float(each[self.choice].double().mean())
            for each in (self.undecided, self.misplaced, self.receiving, self.k)
        )
        rows = int(self.choice.sum())
        # A uniform A of k / n < 0.05 counts as decided, too, but most of it is in the wrong place.
        idle = int(((self.undecided == 0) & (self.misplaced < 0.5) & self.choice).sum())
        text = (
            f"{undecided:.1f} elements undecided, {misplaced:.1f} of {k:g} places misplaced, "
            f"95 % of the gradient on {receiving:.1f} elements"
        )
        if self.undecided.numel() != 1:
            text += f" (mean of {rows} rows)"
        if 2 * idle > rows:
            where = f" in {idle} of them" if rows > 1 else ""
            text += f"; nothing is undecided{where}: raise eps, there is no gradient"
        elif 2 * misplaced > k:
            text += "; most places are misplaced: lower eps, the selection is nearly uniform"
        return text


def sharpness(
    scores: Tensor,
    k: Count,
    eps: Strength,
    *,
    dim: Dims = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    offsets: Tensor | None = None,
) -> Sharpness:
    """How soft `soft_topk` is at ``eps``, row by row: what to look at when training stalls.

    Arguments as for `soft_topk`. Without derivatives; it costs one call of the operator and a sort.

    >>> scores = torch.linspace(0, 1, 101)
    >>> print(sharpness(scores, 10, eps=0.1))
    24.0 elements undecided, 3.1 of 10 places misplaced, 95 % of the gradient on 25.0 elements
    """
    options: dict[str, Any] = {"eps": eps, "dim": dim, "largest": largest, "mask": mask}
    options["normalize"] = normalize
    if offsets is not None or is_nested(scores):
        return _ragged_sharpness(scores, k, offsets, **options)
    with torch.no_grad():
        rows, places = unsorted_rows(scores, k, **options)
        x = rows.canonical().scores
        a, hard = indicator(rows, places), hard_selection(x, places)
        places = places.squeeze(-1) if isinstance(places, Tensor) else places
        return _sharpness(x, a, hard, places, _Even())


@partial(takes_nested, per_row=True)
def _ragged_sharpness(scores: Tensor, k: Count, offsets: Tensor, **options: Any) -> Sharpness:
    ragged = ragged_of(scores, k, offsets, **options)
    with torch.no_grad():
        x, over = ragged.rows.canonical().scores, _Uneven(ragged)
        a, hard = quantity("indicator", ragged), ragged_hard_selection(ragged)
        places = places_of_rows(ragged.k, x, ragged.offsets).squeeze(-1)
        return _sharpness(x, a, hard, places, over)


def _sharpness(x: Tensor, a: Tensor, hard: Tensor, k: Count, over: _Even) -> Sharpness:
    _, share = slopes(a, lambda values: over.spread(over.sum(values)))
    return Sharpness(
        undecided=over.sum(_is_undecided(a)),
        misplaced=over.sum(hard * (1.0 - a)),
        receiving=over.fewest(share),
        k=over.sum(a),
        choice=_has_choice(x, k, over),
    )
