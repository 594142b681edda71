"""Rows whose elements are spread over the ranks of a process group.

Short rows are gathered: nothing else is as quick. Of longer ones the unsorted operator needs three
things: the k-th largest element and the next one, the leaks of both sides, and, for the derivative,
some more sums (see `_unsorted`). Only these travel:

1. The ranks compare their arguments, and learn the sizes of the shards.
2. Selection. Each rank shows its k + 1 largest: the k-th and the next of all are among them. For a
   large k it shows a random sample first. Ranks count how many of their elements are above each of
   the sampled values around the k-th. One of these, the ceiling, has fewer than k above it, and few
   between it and the k-th: only those remain to be shown. The outcome is exact; the sample decides
   merely how many remain.
3. The solver's start. Each rank counts its elements in bins of their odds e, and sums the odds in
   each bin. A bin whose elements are replaced by their mean leaks the same mass up to the second
   order of its width. The equation of the bins is solved by every rank for itself.
4. Two steps of Newton's method, with sums over all ranks, make up for the bins: the error of the
   start is below 1e-3, and is squared in each step.

So there are five messages, or seven for a large k, whatever the scores. No step depends on whether
rounding was the same on two ranks, so none can wait in vain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import (
    Count,
    Strength,
    check_choice,
    check_flag,
    check_integer_k,
    check_k,
    check_scores,
)
from .._dispatch import in_forward_mode, is_ordinary, may_differentiate
from . import _unsorted as whole
from ._collectives import Ranks, ranks_of
from ._mesh import is_dtensor
from ._rows import (
    Normalize,
    Rows,
    algebra_dtype,
    extremes_of,
    largest_of,
    measured,
    normalized,
    places_of,
    rows_of,
    straight_through,
)
from ._sorted import sorted_soft_topk as sorted_whole
from ._unsorted import (
    Leaks,
    Sides,
    find_root,
    log_sigmoid,
    reciprocal_of,
    sides_of,
    slope_sums,
    sum_and_square,
    weights_of,
)

#: Rows of so many elements on all ranks are gathered: the bins below would be more.
SHORT = 1024
#: Candidates that a rank shows of a row, and values that it receives of all rows and ranks.
MOST_CANDIDATES, MOST_GATHERED = 4096, 1 << 22
#: How many values are counted around the k-th element, if more candidates would be shown, within
#: this many standard deviations of the sample.
SPLITTERS, DEVIATIONS = 1024, 6.0
#: Bins of each side, and their reach beyond the largest odds at the root, log 2 n.
BINS, BEYOND = 256, 8.0
#: Newton's steps after the bins.
STEPS = 2
#: Elements that are worked on at once: they fit into a cache, and bound the temporary memory.
BLOCK = 1 << 17


# The arguments.


class Shard(NamedTuple):
    """A rank's part of the rows: in canonical form, not empty."""

    rows: Rows
    k: Count
    ranks: Ranks
    sizes: list[int]  #: of all ranks' parts
    normalize: Normalize

    @property
    def n(self) -> int:
        return sum(self.sizes)

    @property
    def is_short(self) -> bool:
        return self.n <= SHORT or not self.rows.batch.numel()

    def restore(self, result: Tensor, axis: int = -1) -> Tensor:
        """The own elements of ``result``, in the dtype of the scores, with the axis in place."""
        size = self.sizes[self.ranks.index]
        return self.rows.restore(result.narrow(axis, 0, size), axis)


def shard_of(
    name: str,
    scores: Tensor,
    k: Count,
    *,
    group: Any,
    eps: Strength,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    normalize: Normalize,
    hard: bool = False,
    ranked: bool = False,
) -> Shard:
    """The arguments, checked, and compared between ranks. ``ranked``: for the sorted operator."""
    ranks = ranks_of(group)
    fault: Exception | None = None
    size, call = 0, name
    try:
        if is_dtensor(scores):
            raise TypeError(f"scores is a DTensor: call softtopk.{name}(scores, ...)")
        if _is_transformed(scores):
            raise NotImplementedError(
                f"distributed.{name} has no forward mode, and torch.func cannot transform it"
            )
        check_flag("hard", hard)
        check_choice("normalize", normalize, (None, "row", "batch"))
        dim = check_scores(scores, dim, may_be_empty=True)
        size = scores.shape[dim]
        if size == 0:  # an element that takes no part
            filler = scores.new_full(
                (*scores.shape[:dim], 1, *scores.shape[dim + 1 :]),
                -math.inf if largest else math.inf,
            )
            scores, mask = torch.cat([scores, filler], dim), None
        rows = rows_of(
            scores, eps=eps, dim=dim, largest=largest, mask=mask, normalize=None, last_anchor=1
        )
        rows = rows.canonical()
        shape = [*scores.shape[:dim], "any", *scores.shape[dim + 1 :]]
        call += (
            f"(shape={shape}, {_text(scores, values=False)}, k={_text(k)}, eps={_text(eps)}, "
            f"dim={dim}, {largest=}, {normalize=}, {hard=})"
        )
    except Exception as error:  # whatever it is, the other ranks wait for a message
        fault = error
    device = scores.device if isinstance(scores, Tensor) else torch.device("cpu")
    sizes = ranks.agree(call, size, device, fault)
    n = sum(sizes)
    if n == 0:
        raise ValueError("scores has no element on any rank; a top-k needs at least one")
    # The same on all ranks: they agree on k and on the batch.
    k = check_integer_k(k, n) if ranked else check_k(k, n, rows.batch)  # type: ignore[arg-type]
    return Shard(rows, k, ranks, sizes, normalize)


def _is_transformed(scores: Tensor) -> bool:
    if torch.compiler.is_compiling() or not isinstance(scores, Tensor):
        return False
    return in_forward_mode() or not is_ordinary(scores)


def _text(value: Any, values: bool = True) -> str:
    """The value, of a tensor what has to be the same on all ranks: the values by a checksum."""
    if not isinstance(value, Tensor):
        value = value.item() if hasattr(value, "item") else value  # a number of NumPy
        return repr(value)
    kind = f"{str(value.dtype).removeprefix('torch.')} on {value.device.type}"
    if may_differentiate(value):
        kind += " with a gradient"
    if not values:
        return kind
    if value.numel() <= 8:
        return f"{kind} {value.tolist()}"
    bits = value.detach().cpu().double().flatten().view(torch.int64)
    weights = 2 * torch.arange(bits.numel(), device="cpu") + 1
    checksum = ((bits ^ (bits >> 29)) * weights).sum().item()
    return f"{kind} {tuple(value.shape)}:{checksum % 2**32:08x}"


# Short rows.


def _joined(shard: Shard) -> tuple[Tensor, Count, Strength]:
    """The rows of all ranks in one, and the k and eps that the ordinary operator takes."""
    rows, k = shard.rows, shard.k
    if rows.batch.numel():
        own = rows.scores.narrow(-1, 0, shard.sizes[shard.ranks.index])
        x = shard.ranks.concatenate(own, shard.sizes, own.ndim - 1)
    else:
        x = rows.scores[..., :1].expand(*rows.batch, shard.n)
    if shard.normalize is not None:
        given = x.detach() if rows.largest else -x.detach()
        rows = normalized(rows, extremes_of(given), 1, shard.normalize)
    return x, k.squeeze(-1) if isinstance(k, Tensor) else k, _eps_of(rows.tau)


def _eps_of(tau: Strength) -> Strength:
    # In float64, in which twice the largest temperature is finite.
    return 2.0 * (tau.squeeze(-1).to(algebra_dtype(tau)) if isinstance(tau, Tensor) else tau)


def _by_joining(shard: Shard, operator: Callable[..., Tensor], **options: bool) -> Tensor:
    x, k, eps = _joined(shard)
    result = operator(x, k, eps=eps, **options)
    first = sum(shard.sizes[: shard.ranks.index])
    return shard.restore(result[..., first:])


# Selection.


class Cut(NamedTuple):
    """The elements around the place where the rows are cut, each (..., 1)."""

    before: Tensor  #: the one before the last, +inf if there is none
    last: Tensor  #: the ceil(k)-th largest
    next: Tensor  #: the one after it, -inf if there is none
    has_nan: Tensor
    extremes: Tensor  #: `extremes_of` the rows (..., 2), if they matter


def find_cut(shard: Shard) -> Cut:
    x = shard.rows.scores.detach()
    extremes = x[..., :0]
    if shard.normalize is not None:
        extremes = extremes_of(x if shard.rows.largest else -x)  # as they were given
    has_nan = x.isnan().any(-1, keepdim=True)
    x = torch.where(x.isnan(), math.inf, x)
    places = _last_place(shard)
    ceiling, above = torch.full_like(x[..., :1], math.inf), torch.zeros_like(places)
    most = min(MOST_CANDIDATES, MOST_GATHERED // (shard.ranks.count * places.numel()))
    if int(places.max()) > most:
        ceiling, above = _ceiling(x, (places - 1).clamp(min=1), shard)
        x = torch.where(x < ceiling, x, -math.inf)
    width = int((places - above).max().clamp(min=0)) + 1
    own = x.topk(min(width, x.shape[-1])).values
    own = F.pad(own, (0, min(width, max(shard.sizes)) - own.shape[-1]), value=-math.inf)
    shown = shard.ranks.stack(torch.cat([has_nan.to(x.dtype), extremes, own], -1))
    facts = shown[..., : shown.shape[-1] - own.shape[-1]].amax(0)
    candidates = shown[..., facts.shape[-1] :].movedim(0, -2).flatten(-2)
    candidates = F.pad(candidates, (0, max(0, width - candidates.shape[-1])), value=-math.inf)
    candidates = candidates.topk(width).values

    def element(rank: Tensor) -> Tensor:
        """The rank-th largest of all: if it is not a candidate, it is the ceiling."""
        candidate = candidates.gather(-1, (rank - above - 1).clamp(0, width - 1))
        return torch.where(rank <= above, ceiling, candidate)

    around = element(places - 1), element(places), element(places + 1)
    return Cut(*around, facts[..., :1] > 0, facts[..., 1:])


def _last_place(shard: Shard) -> Tensor:
    """ceil(k) (..., 1), at least one."""
    k = places_of(shard.k, shard.rows.scores).detach()
    k = k.ceil().long() if k.is_floating_point() else k
    return k.clamp(1, shard.n).expand(*shard.rows.batch, 1)


def _ceiling(x: Tensor, places: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """A value that fewer than k elements exceed, but not by many, and how many elements there are
    above it or at it, (..., 1) each.

    With m samples per rank, the number of elements above a sample is known to the standard
    deviation sqrt(n max(n_rank) / 4 m). The splitters are samples around the k-th element.
    """
    ranks, sizes, n = shard.ranks, shard.sizes, shard.n
    m = math.ceil(math.sqrt(2.0 * n / ranks.count))
    # A generator of its own: the user's random numbers stay as they are.
    generator = torch.Generator(x.device).manual_seed(ranks.index)
    at = torch.randint(x.shape[-1], (*x.shape[:-1], m), generator=generator, device=x.device)
    samples = ranks.stack(x.gather(-1, at)).movedim(0, -2).flatten(-2)
    # Whole numbers, and a stable order: all ranks have to come to the same splitters.
    samples, order = samples.sort(dim=-1, descending=True, stable=True)
    stands_for = torch.tensor(sizes, device=x.device).repeat_interleave(m)
    number = stands_for[order].cumsum(-1) // m  # about so many are above or at
    deviation = math.sqrt(n * max(sizes) / (4.0 * m))
    around = torch.linspace(-DEVIATIONS, DEVIATIONS, SPLITTERS, device=x.device) * deviation
    index = torch.searchsorted(number, places + around.long())
    splitters = samples.gather(-1, index.clamp(max=samples.shape[-1] - 1))
    ascending = F.pad(splitters.flip(-1), (0, 1), value=math.inf)

    # How many elements have j splitters below them, and how many of these are at the next one.
    counts = torch.zeros(2, *x.shape[:-1], SPLITTERS + 2, dtype=torch.int64, device=x.device)
    bounds = F.pad(ascending, (0, 1), value=math.nan)
    for (block,) in _blocks(x):
        n_below = torch.searchsorted(ascending, block.contiguous())
        counts[0].scatter_add_(-1, n_below, torch.ones_like(n_below))
        counts[1].scatter_add_(-1, n_below, (bounds.gather(-1, n_below) == block).long())
    n_between, n_at = ranks.sum(counts).unbind()
    n_above = n_between.flip(-1).cumsum(-1).flip(-1)[..., 1:]
    n_from = n_above + n_at[..., :-1]
    chosen = (n_above >= places).sum(-1, keepdim=True)  # the lowest that fewer than k exceed
    return ascending.gather(-1, chosen), n_from.gather(-1, chosen)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of limited size of tensors (..., n)."""
    n_rows = tensors[0][..., :1].numel()
    size = max(BLOCK // n_rows, 1)
    yield from zip(*(tensor.split(size, -1) for tensor in tensors), strict=True)


# The root.


class Division(NamedTuple):
    """How the pivot divides the rows, (..., 1) each but for the distances (..., n)."""

    pivot: Tensor
    d: Tensor
    best: Tensor  #: the largest distance of the rest
    k: Tensor
    tau: Strength


def divide(shard: Shard, cut: Cut) -> Division:
    rows = shard.rows
    x = rows.scores
    k = places_of(shard.k, x).expand(*rows.batch, 1)
    fixed = k.detach()
    if shard.normalize is not None:
        rows = normalized(rows, cut.extremes, 1, shard.normalize)
    shared = (cut.next == cut.last) | (
        fixed < _last_place(shard)
    )  # the pivot is in part in the rest
    all_taken = (cut.last == -math.inf) | (~shared & (cut.next == -math.inf))
    pivot = torch.where(all_taken, -math.inf, cut.last)
    pivot = torch.where(fixed <= 0, math.inf, pivot)
    pivot = torch.where(cut.has_nan, math.nan, pivot)
    crowded = shared & (cut.last == math.inf)
    d = measured(x, pivot, fixed, rows.tau, crowded).squeeze(-1)
    best = measured(cut.next, pivot, fixed, rows.tau, crowded).squeeze(-1).detach()
    best = torch.where(shared, 0.0, best).clamp(min=-0.125 * torch.finfo(d.dtype).max)
    return Division(pivot, d, best, k, rows.tau)


def solve(d: Tensor, best: Tensor, k: Tensor, shard: Shard) -> tuple[Tensor, Sides]:
    """The offset of the threshold from the pivot (..., 1), without a derivative."""
    wide = algebra_dtype(d)
    n_bins = BINS + 1  # the last has no end
    per_unit = BINS / (math.log(2 * shard.n) + BEYOND)
    number = torch.zeros(*d.shape[:-1], 2 * n_bins + 1, dtype=wide, device=d.device)
    odds, one = torch.zeros_like(number), torch.ones((), dtype=wide, device=d.device)
    e, rest = torch.empty_like(d), d < 0
    for some_d, some_e, some_rest in _blocks(d, e, rest):
        depth = torch.where(some_rest, best - some_d, some_d).nan_to_num_(math.inf)  # -log e
        torch.exp(-depth, out=some_e)
        index = depth.mul_(per_unit).clamp_(max=BINS).long().add_(some_rest, alpha=n_bins)
        index.masked_fill_(some_d == 0, 2 * n_bins)  # ties in a bin of their own
        number.scatter_add_(-1, index, one.expand(index.shape))
        odds.scatter_add_(-1, index, some_e.to(wide))
        some_e.masked_fill_(some_d == 0, 0.0)
    number, odds = shard.ranks.sum(torch.stack([number, odds]))
    n_tied, n_above = number[..., -1:], number[..., :n_bins].sum(-1, keepdim=True)
    sides = sides_of(n_above, n_tied, best, k)
    sides = sides._replace(n_tied=n_tied.to(d.dtype))
    number = number[..., :-1].unflatten(-1, (2, n_bins)).to(d.dtype)
    mean = odds[..., :-1].unflatten(-1, (2, n_bins)).to(d.dtype) / number.clamp(min=1.0)

    def leaks_of_bins(c_rest: Tensor, c_top: Tensor) -> Leaks:
        r = mean / (1.0 + torch.stack([c_top, c_rest], -2) * mean)
        top, rest = (number * r).sum(-1).split(1, -1)
        top_square, rest_square = (number * r.square()).sum(-1).split(1, -1)
        return rest, rest_square, top, top_square

    def leaks(c_rest: Tensor, c_top: Tensor) -> Leaks:
        sums = torch.zeros(*d.shape[:-1], 4, dtype=wide, device=d.device)
        for some_e, some_rest in _blocks(e, rest):
            r = some_e / torch.where(some_rest, c_rest, c_top).mul_(some_e).add_(1.0)
            r_rest = r * some_rest
            r_top = r.sub_(r_rest)
            sums += torch.cat([*sum_and_square(r_rest), *sum_and_square(r_top)], -1)
        totals = shard.ranks.sum(sums).to(d.dtype)
        return totals[..., :1], totals[..., 1:2], totals[..., 2:3], totals[..., 3:]

    start, _ = find_root(leaks_of_bins, sides)
    offset, _ = find_root(leaks, sides, start, max_steps=STEPS, stop_early=False)
    return offset, sides


class _Offset(torch.autograd.Function):
    """As in `_unsorted`, of distances that are spread over ranks.

    A rank gets the derivative in its own distances, and its own part of that in k: these have to be
    summed over ranks, as those of all that is the same everywhere.
    """

    @staticmethod
    def forward(ctx: Any, d: Tensor, k: Tensor, best: Tensor, shard: Shard) -> Tensor:
        offset, sides = solve(d, best, k, shard)
        ctx.save_for_backward(d, k, offset, *sides)
        ctx.ranks = shard.ranks
        return offset

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        d, k, offset, *parts = ctx.saved_tensors
        sides = Sides(*parts)
        slope, sums = _slope_sums(d, offset, sides)
        sums, pull = ctx.ranks.sum(torch.cat([sums, grad], -1)).split([4, 1], -1)
        grad_k = None
        if ctx.needs_input_grad[1]:
            grad_k = (-grad * reciprocal_of(sums, offset, sides.best)).to(k.dtype)
        if torch.is_grad_enabled():
            grad_d = pull * weights_of(slope, d < 0, sums, offset, k, sides.best)
        else:
            grad_d = slope
            for some, some_d in _blocks(grad_d, d):
                some.copy_(pull * weights_of(some, some_d < 0, sums, offset, k, sides.best))
        return grad_d, grad_k, None, None


def _slope_sums(d: Tensor, offset: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
    """`slope_sums`, in blocks if they have no derivative."""
    if torch.is_grad_enabled():
        return slope_sums(d, offset, sides)
    slope, sums = torch.empty_like(d), []
    for some, some_d in _blocks(slope, d):
        part, some_sums = slope_sums(some_d, offset, sides)
        some.copy_(part)
        sums.append(some_sums)
    return slope, torch.stack(sums).sum(0)


def _hard_selection(shard: Shard, cut: Cut) -> Tensor:
    """The 0/1 selection (..., n) of the round(k) largest of all; of equal ones the first, in the
    order of the ranks."""
    x = shard.rows.scores.detach()
    k = places_of(shard.k, x).detach().expand(*x.shape[:-1], 1)
    k = k.round().long() if k.is_floating_point() else k
    pivot = torch.where(k < _last_place(shard), cut.before, cut.last)
    x = torch.where(x.isnan(), math.inf, x)
    above, tied = x > pivot, x == pivot
    counts = torch.cat([above.sum(-1, keepdim=True), tied.sum(-1, keepdim=True)], -1)
    counts = shard.ranks.stack(counts)
    n_above, _ = counts.sum(0).split(1, -1)
    _, n_before = counts[: shard.ranks.index].sum(0).split(1, -1)
    chosen = above | (tied & (tied.cumsum(-1) + n_before <= k - n_above))
    chosen = chosen & (x != -math.inf) & (k > 0)
    return chosen.to(x.dtype).masked_fill(cut.has_nan, math.nan)


# The functions.


def soft_topk(
    scores: Tensor,
    k: Count,
    *,
    group: Any = None,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
) -> Tensor:
    """`softtopk.soft_topk` of scores that are spread over the ranks of a process group.

    Each rank has a part of the scores along ``dim``, of any size, zero included. All other sizes
    are the same on every rank, and so are the other arguments but the mask. A rank gets its part of
    the A that one process would compute. Rows of at most 1,024 elements on all ranks are gathered.
    Of longer ones most scores stay where they are: five messages go round (seven for a large k, one
    more if ``hard``), and one in the backward pass.

    The derivative is that of the sum of all ranks' losses. Every rank has to call ``backward``,
    also one with no scores. Of a k or eps with a gradient, each rank gets its part of it: sum these
    over ranks, as those of parameters. There is no forward mode, and no ``torch.func``.

    Args:
        scores: This rank's part. The other arguments are those of `softtopk.soft_topk`; ``k``
            counts over all ranks, and the mask broadcasts to this rank's part.
        group: The process group, by default all processes.

    >>> soft_topk(torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]), 2, eps=1.0)  # one process
    tensor([0.0713, 0.1227, 0.7744, 0.6066, 0.0226, 0.3620, 0.0404])
    """
    shard = shard_of(
        "soft_topk",
        scores,
        k,
        group=group,
        eps=eps,
        dim=dim,
        largest=largest,
        mask=mask,
        normalize=normalize,
        hard=hard,
    )
    if shard.is_short:
        return _by_joining(shard, whole.soft_topk, hard=hard)
    cut = find_cut(shard)
    if hard:
        selected = _hard_selection(shard, cut)
        if not may_differentiate(shard.rows.given, shard.rows.tau, shard.k):
            return shard.restore(selected)
    soft = torch.sigmoid(_logits(shard, cut))
    return shard.restore(straight_through(selected, soft) if hard else soft)


def log_soft_topk(
    scores: Tensor,
    k: Count,
    *,
    group: Any = None,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
) -> Tensor:
    """`softtopk.log_soft_topk` of scores that are spread over ranks, see `soft_topk` here."""
    shard = shard_of(
        "log_soft_topk",
        scores,
        k,
        group=group,
        eps=eps,
        dim=dim,
        largest=largest,
        mask=mask,
        normalize=normalize,
    )
    if shard.is_short:
        return _by_joining(shard, whole.log_soft_topk)
    return shard.restore(log_sigmoid(_logits(shard, find_cut(shard))))


def _logits(shard: Shard, cut: Cut) -> Tensor:
    """z (..., n) with A = sigmoid(z)."""
    _, d, best, places, _ = divide(shard, cut)
    return d - _Offset.apply(d, places, best, shard)


def topk_threshold(
    scores: Tensor,
    k: Count,
    *,
    group: Any = None,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
) -> Tensor:
    """`softtopk.topk_threshold` of scores that are spread over ranks, see `soft_topk` here.

    Every rank gets all thresholds.
    """
    shard = shard_of(
        "topk_threshold",
        scores,
        k,
        group=group,
        eps=eps,
        dim=dim,
        largest=largest,
        mask=mask,
        normalize=normalize,
    )
    if shard.is_short:
        x, k, eps = _joined(shard)
        threshold = whole.topk_threshold(x, k, eps=eps)
    else:
        pivot, d, best, places, tau = divide(shard, find_cut(shard))
        offset = _Offset.apply(d, places, best, shard)
        threshold = torch.where(pivot.isinf(), pivot, pivot + tau * offset).squeeze(-1)
    return (threshold if largest else -threshold).to(shard.rows.dtype)


def sorted_soft_topk(
    scores: Tensor,
    k: int,
    *,
    group: Any = None,
    eps: Strength = 0.1,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
) -> Tensor:
    """`softtopk.sorted_soft_topk` of scores that are spread over ranks, see `soft_topk` here.

    Every rank gets the rows of the plan for its own elements. Each rank shows the candidates that
    can matter, and all solve the problem of these. With d the distance below the k-th largest
    element in units of eps / 2, and n elements in all, an element leaks less than 1/n of a rounding
    into the top if it is more than 2 log(2 n) - log(precision) below the next one after the k-th:
    all others together do not show, and their rows are zero. So the message grows with eps. At an
    eps at which every element has a rank in part, every element is a candidate.

    Four messages go round (six for a large k), and one in the backward pass.
    """
    shard = shard_of(
        "sorted_soft_topk",
        scores,
        k,
        group=group,
        eps=eps,
        dim=dim,
        largest=largest,
        mask=mask,
        normalize=normalize,
        hard=hard,
        ranked=True,
    )
    rows, x = shard.rows, shard.rows.scores
    k = int(shard.k)
    if not rows.batch.numel() or k == 0:
        nothing = (x * rows.tau)[..., :0].sum(-1)  # zero, or empty, and still in the graph
        return shard.restore(nothing[..., None, None].expand(*x.shape, k), -2)
    index, sizes, tau = _candidates(shard, k)
    own = x.gather(-1, index)
    taking_part = shard.ranks.concatenate(own, sizes, x.ndim - 1)
    plan = sorted_whole(taking_part, k, eps=_eps_of(tau), hard=hard)
    first = sum(sizes[: shard.ranks.index])
    plan = plan.narrow(-2, first, own.shape[-1])
    result = torch.zeros(*x.shape, k, dtype=plan.dtype, device=plan.device)
    result = result.scatter(-2, index.unsqueeze(-1).expand_as(plan), plan)
    return shard.restore(result, -2)


def _candidates(shard: Shard, k: int) -> tuple[Tensor, list[int], Strength]:
    """The places (..., m) of the elements that matter, how many there are on each rank, and tau."""
    rows, x = shard.rows, shard.rows.scores.detach()
    cut = find_cut(shard)
    if shard.normalize is not None:
        rows = normalized(rows, cut.extremes, k, shard.normalize)
    tau = rows.tau.detach() if isinstance(rows.tau, Tensor) else rows.tau
    reach = 2.0 * math.log(2 * shard.n) - math.log(torch.finfo(x.dtype).eps)
    matters = ~(x < cut.next - reach * tau) & (x != -math.inf)
    matters = matters | cut.has_nan  # the row is NaN wherever it is shown
    most = min(max(int(matters.sum(-1).max()), k), x.shape[-1])
    sizes = shard.ranks.stack(torch.tensor(most, device=x.device)).tolist()
    return largest_of(x, most)[0], sizes, rows.tau
