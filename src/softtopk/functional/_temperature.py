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
from torch import Tensor

from .._checks import Count, Dims, Strength, check_flag, check_number, check_ranks
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

    The other arguments are those of `soft_topk`.

    Returns:
        A tensor of the shape of scores without ``dim``, for ``eps=``; or a float.

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
) -> tuple[Tensor, Tensor]:
    """eps (...), and in which rows it matters (...)."""
    check_flag("sorted", sorted)
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
        ranks, undecided = 0, _undecided
        if sorted:
            check_ranks(places, rows.n, rows.batch)  # type: ignore[arg-type]
            ranks, undecided = int(torch.as_tensor(k).max()) if x.numel() else 0, _undecided_ranks
        low, high, known = _limits(x, k, ranks)
        count = partial(undecided, x, places)
        eps = torch.where(known, _search(count, low, high, width, x.dtype), 1.0)
        return eps, known & _has_choice(x, k)


def _has_choice(x: Tensor, k: Count) -> Tensor:
    """Rows (...) in which some elements that take part are selected and others are not."""
    ahead, part = (x == math.inf).sum(-1, keepdim=True), (x != -math.inf).sum(-1, keepdim=True)
    choice = (ahead < k) & (k < part) & ~x.isnan().any(-1, keepdim=True)
    return choice.squeeze(-1)


def _undecided(x: Tensor, k: Count, eps: Tensor) -> Tensor:
    """How many elements of the rows (..., n) are undecided: (...)."""
    return _is_undecided(soft_topk(x, k, eps=eps)).sum(-1)


def _undecided_ranks(x: Tensor, k: Count, eps: Tensor) -> Tensor:
    """How many are undecided at the threshold after a rank, the mean over the ranks: (...)."""
    up_to = sorted_soft_topk(x, k, eps=eps).cumsum(-1)  # type: ignore[arg-type]
    k = torch.as_tensor(k, device=x.device).unsqueeze(-1)
    empty = torch.arange(up_to.shape[-1], device=x.device) >= k
    undecided = _is_undecided(up_to).sum(-2).masked_fill(empty, 0)
    return undecided.sum(-1) / k.squeeze(-1).clamp(min=1)


def _is_undecided(a: Tensor) -> Tensor:
    return (a > DECIDED) & (a < 1.0 - DECIDED)


def _limits(x: Tensor, k: Count, ranks: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of the least and the largest eps to look at (...), in float64 where there is one,
    and which rows have two different finite scores."""
    # A quarter of the scores, since the difference of two may be too large to represent.
    x = torch.where(x.isfinite(), 0.25 * x.to(algebra_dtype(x)), math.nan)
    lowest = x.nan_to_num(nan=math.inf).amin(-1, keepdim=True)
    x = x.nan_to_num(nan=-math.inf)
    span = x.amax(-1, keepdim=True) - lowest
    known = (span > 0) & span.isfinite()
    gaps = (x - pivot_of(x, k)).abs()
    if ranks > 1:
        gaps = torch.cat([gaps, -x.topk(ranks).values.diff(dim=-1)], -1)
    gaps = torch.where(gaps > 0, gaps, math.inf)
    gap = torch.minimum(gaps.amin(-1, keepdim=True), span)
    # The window of a quarter of the smallest gap holds no element beside the ties. At four times
    # the range, A is uniform up to a factor of about 1.6.
    low, high = (torch.where(known, each, 1.0).log2().squeeze(-1) for each in (gap, span))
    return low, high + 4.0, known.squeeze(-1)


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
        idle = int(((self.undecided == 0) & self.choice).sum())
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
) -> Sharpness:
    """How soft `soft_topk` is at ``eps``, row by row: what to look at when training stalls.

    Arguments as for `soft_topk`. Without derivatives; it costs one call of the operator and a sort.

    >>> scores = torch.linspace(0, 1, 101)
    >>> print(sharpness(scores, 10, eps=0.1))
    24.0 elements undecided, 3.1 of 10 places misplaced, 95 % of the gradient on 25.0 elements
    """
    with torch.no_grad():
        rows, places = unsorted_rows(
            scores, k, eps=eps, dim=dim, largest=largest, mask=mask, normalize=normalize
        )
        a = indicator(rows, places)
        hard = hard_selection(rows.canonical().scores, places)
        share = slopes(a)[1].sort(-1, descending=True).values
        before = share.cumsum(-1) - share
        return Sharpness(
            undecided=_is_undecided(a).sum(-1),
            misplaced=(hard * (1.0 - a)).sum(-1),
            receiving=((before < MOST) & (share > 0)).sum(-1),
            k=a.sum(-1),
            choice=_has_choice(rows.canonical().scores, places),
        )
