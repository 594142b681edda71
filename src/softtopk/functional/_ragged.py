"""Rows of different lengths: joined along the last dimension, and cut apart by offsets.

Nothing is padded. The kernels are told where each row begins and ends. For plain operations every
element is a row of its own: the functions of `_unsorted` that go element by element then serve
ragged rows too, once the numbers of a row are spread over its elements. Only what sums over a row
is written anew (`Segments`), as `_sharded` does with sums over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from .._checks import (
    COUNTS,
    REALS,
    Count,
    Strength,
    check_choice,
    check_eps,
    check_flag,
    check_k,
    check_mask,
    check_offsets,
    check_scores,
    operand,
)
from .._dispatch import (
    dense,
    is_traced,
    library_for,
    may_differentiate,
    path_of,
    refuse_forward_mode,
    triton_for,
)
from ._autograd import batch_first, opaque
from ._launch import Plain, by_plain, launch
from ._nested import takes_nested
from ._rows import (
    Normalize,
    Rows,
    algebra_dtype,
    canonical,
    compute_dtype,
    flat_offsets,
    measured,
    normalized,
    places_of,
    settled,
    straight_through,
    temperature,
    whole_number,
)
from ._sinkhorn import Sinkhorn, Solver, sinkhorn_of
from ._transport import indicator_by_sinkhorn, log_indicator_by_sinkhorn, threshold_by_sinkhorn
from ._unsorted import (
    Leaks,
    Sides,
    find_root,
    log_sigmoid,
    reciprocal_of,
    sides_of,
    slope_sums,
    weights_of,
)

# Sums over rows.


class Segments:
    """Which elements (..., total) belong to which of the rows (..., rows)."""

    def __init__(self, offsets: Tensor, total: int) -> None:
        self.offsets, self.rows, self.total = offsets, offsets.shape[-1] - 1, total
        numbers = torch.arange(self.rows, device=offsets.device)
        #: the row of every element (total,)
        self.row = torch.repeat_interleave(numbers, offsets.diff(), output_size=total)

    def sum(self, values: Tensor) -> Tensor:
        """Sums over the rows of ``values`` (..., total, c): (..., rows, c), exact to rounding."""
        floating = values.is_floating_point()
        wide = values.to(algebra_dtype(values) if floating else torch.int64)
        sums = wide.new_zeros(*wide.shape[:-2], self.rows, wide.shape[-1])
        sums = sums.scatter_add(-2, self._index(wide), wide)
        return sums.to(values.dtype) if floating else sums

    def largest(self, values: Tensor) -> Tensor:
        """The largest of every row (..., rows, 1), -inf if it is empty. Without a derivative."""
        largest = values.new_full((*values.shape[:-2], self.rows, 1), -math.inf)
        return largest.scatter_reduce(-2, self._index(values), values.detach(), "amax")

    def spread(self, numbers: Tensor) -> Tensor:
        """A number of every row (..., rows, c), at each of its elements: (..., total, c)."""
        if not may_differentiate(numbers):
            return numbers.index_select(-2, self.row)
        # The derivative is a sum, which has to be exact too.
        wide = numbers.to(algebra_dtype(numbers))
        return wide.gather(-2, self._index(wide)).to(numbers.dtype)

    def order(self, values: Tensor) -> Tensor:
        """Places (..., total) of values (..., total): row after row, from the largest to the
        least."""
        order = values.argsort(dim=-1, descending=True)
        return order.gather(-1, self.row[order].argsort(dim=-1, stable=True))

    def _index(self, like: Tensor) -> Tensor:
        return self.row.unsqueeze(-1).expand(*like.shape[:-2], self.total, like.shape[-1])


# The arguments.


class Ragged(NamedTuple):
    """The arguments that all operators share, checked."""

    rows: Rows  #: scores and mask (..., total), the numbers of a row (..., rows, 1)
    k: Count
    offsets: Tensor  #: (rows + 1), int64


def ragged_of(
    scores: Tensor,
    k: Count,
    offsets: Tensor,
    *,
    eps: Strength,
    dim: int,
    largest: bool,
    mask: Tensor | None,
    normalize: Normalize,
) -> Ragged:
    """Check the arguments of an unsorted operator."""
    dim = check_scores(scores, dim, may_be_empty=True)
    if dim != scores.ndim - 1:
        raise ValueError(
            f"with offsets the rows lie along the last dimension, got dim={dim} for scores of "
            f"shape {tuple(scores.shape)}; use scores.movedim({dim}, -1)"
        )
    offsets = check_offsets(offsets, scores)
    batch = torch.Size((*scores.shape[:-1], offsets.shape[0] - 1))
    eps = check_eps(eps, batch)
    k = check_k(k, math.inf, batch)
    check_flag("largest", largest)
    check_mask(mask, scores)
    check_choice("normalize", normalize, (None, "row", "batch"))
    mask = None if mask is None else mask.expand(scores.shape)
    tau = temperature(eps, 1.0, compute_dtype(scores.dtype))
    rows = Rows(scores, mask, tau, 1.0, eps, dim, scores.dtype, largest)
    if normalize is not None:
        segments = Segments(offsets, scores.shape[-1])
        x = canonical(rows.scores.detach(), mask, largest=True).unsqueeze(-1)
        high, low = (torch.where(x.isfinite(), each, -math.inf) for each in (x, -x))
        extremes = torch.cat([segments.largest(high), segments.largest(low)], -1)
        rows = normalized(rows, extremes, 1, normalize)
    return Ragged(rows, k, offsets)


# The solver.


def places_of_rows(k: Count, x: Tensor, offsets: Tensor) -> Tensor:
    """k as a tensor (..., rows, 1)."""
    return places_of(k, x).expand(*x.shape[:-1], offsets.shape[-1] - 1, 1)


def find_pivots(x: Tensor, k: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The ceil(k)-th largest element of every row of ``x`` (..., total), at infinity where nothing
    is left to solve; and whether infinite scores share the places. Both (..., rows, 1)."""
    return (_pivots_op if is_traced(x) else _find_pivots)(x, k, offsets)


def _find_pivots(x: Tensor, k: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    library, accelerator = library_for(x, k, offsets), triton_for(x, k, offsets)
    shape = (*x.shape[:-1], offsets.shape[-1] - 1, 1)
    if library is not None:
        pivot, offset = x.new_empty(shape), x.new_empty(shape)
        ends, places = flat_offsets(offsets, x), _flat(k, x, offsets)
        library.threshold(
            dense(x), None, places, 1.0, True, pivot=pivot, offset=offset, offsets=ends
        )
        return pivot, (pivot == math.inf) & offset.isfinite()
    segments = Segments(offsets, x.shape[-1])
    if accelerator is not None:
        _, state = accelerator.solve("threshold", x, None, k, 1.0, True, flat_offsets(offsets, x))
        pivot = state[0].view(shape)
    else:
        pivot = _pivots_by_sorting(x, k, segments)
    return pivot, k < segments.sum((x == math.inf).unsqueeze(-1))


def _pivots_by_sorting(x: Tensor, k: Tensor, segments: Segments) -> Tensor:
    order = segments.order(x)
    lengths = segments.offsets.diff().unsqueeze(-1)
    rank = whole_number(k, torch.ceil).long().clamp(min=1).minimum(lengths)
    index = segments.offsets[:-1].unsqueeze(-1) + rank - 1
    pivot = x.new_full(k.shape, -math.inf)
    if segments.total:
        index = order.gather(-1, index.clamp(0, segments.total - 1).squeeze(-1))
        pivot = x.gather(-1, index).unsqueeze(-1)
    elements = x.unsqueeze(-1)
    taking_part = segments.sum(elements != -math.inf)
    return settled(pivot, k, taking_part, segments.sum(elements.isnan()) > 0)


_pivots_op = opaque(
    "softtopk::ragged_pivots",
    "(Tensor x, Tensor k, Tensor offsets) -> (Tensor, Tensor)",
    lambda x, k, offsets: _find_pivots(*_checked(x, k, offsets)),
    fake=lambda x, k, offsets: (x.new_empty(k.shape), k.new_empty(k.shape, dtype=torch.bool)),
)


def _checked(x: Tensor, k: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if x.dtype not in REALS:
        raise TypeError(f"the first argument must be float32 or float64, got {x.dtype}")
    offsets = check_offsets(offsets, x)
    return x, operand("k", k, (*x.shape[:-1], offsets.shape[0] - 1, 1), *COUNTS), offsets


def _solve_offset(d: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
    """The roots (..., rows, 1) of distances ``d`` (..., total), without derivatives."""
    library, accelerator = library_for(d, k, offsets), triton_for(d, k, offsets)
    if library is not None:
        offset, ends = d.new_empty(k.shape), flat_offsets(offsets, d)
        library.threshold(
            d.contiguous(), None, _flat(k, d, offsets), 1.0, True, offset=offset, offsets=ends
        )
    elif accelerator is not None:
        _, state = accelerator.solve("threshold", d, None, k, 1.0, True, flat_offsets(offsets, d))
        offset = state[1].view(k.shape)
    else:
        return _plain_offset(d.unsqueeze(-1), k, Segments(offsets, d.shape[-1]))
    # As in `_unsorted`.
    return offset.nan_to_num(0.0, posinf=0.0, neginf=-0.125 * torch.finfo(d.dtype).max)


def _plain_offset(d: Tensor, k: Tensor, segments: Segments) -> Tensor:
    """The same of distances (..., total, 1)."""
    sides, rest = _sides(d, k, segments), d < 0
    e = torch.exp(torch.where(rest, d - segments.spread(sides.best), -d)).masked_fill(d == 0, 0.0)

    def leaks(c_rest: Tensor, c_top: Tensor) -> Leaks:
        c_rest, c_top = segments.spread(torch.cat([c_rest, c_top], -1)).split(1, -1)
        r = e / (1.0 + torch.where(rest, c_rest, c_top) * e)
        parts = torch.cat([r, r * r], -1)
        sums = segments.sum(torch.cat([parts * rest, parts * ~rest], -1))
        return sums[..., :1], sums[..., 1:2], sums[..., 2:3], sums[..., 3:]

    return find_root(leaks, sides)[0]


def _sides(d: Tensor, k: Tensor, segments: Segments) -> Sides:
    n_above, n_tied = segments.sum(torch.cat([d > 0, d == 0], -1)).split(1, -1)
    best = segments.largest(torch.where(d < 0, d, -math.inf))
    return sides_of(n_above, n_tied, best, k)


class _Offset(torch.autograd.Function):
    """d (..., total), k (..., rows, 1), offsets (rows + 1) -> offset (..., rows, 1), with the
    derivative of `_unsorted`."""

    @staticmethod
    def forward(d: Tensor, k: Tensor, offsets: Tensor) -> Tensor:
        return _solve_offset(d, k, offsets)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        weights, reciprocal, segments = _derivative(*ctx.saved_tensors)
        k, grad_k = ctx.saved_tensors[1], None
        if ctx.needs_input_grad[1]:
            grad_k = (-grad * reciprocal).to(k.dtype)
        return (segments.spread(grad) * weights).squeeze(-1), grad_k, None

    @staticmethod
    def jvp(ctx: Any, d_tangent: Tensor | None, k_tangent: Tensor | None, _: None) -> Tensor:
        weights, reciprocal, segments = _derivative(*ctx.saved_tensors)
        tangent = torch.zeros_like(reciprocal)
        if d_tangent is not None:
            tangent = tangent + segments.sum(weights * d_tangent.unsqueeze(-1))
        if k_tangent is not None:
            tangent = tangent - reciprocal * k_tangent.to(tangent.dtype)
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        *dims, of_offsets = in_dims
        *batched, offsets = inputs
        if of_offsets is not None:
            raise NotImplementedError("torch.vmap cannot map over offsets: all rows share them")

        def solve(d: Tensor, k: Tensor) -> Tensor:
            return _Offset.apply(d, k, offsets)

        return batch_first(solve, info.batch_size, dims, batched)


def _derivative(
    d: Tensor, k: Tensor, offsets: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Segments]:
    """The derivative of the offset in d (..., total, 1) and in -k (..., rows, 1)."""
    segments, d = Segments(offsets, d.shape[-1]), d.unsqueeze(-1)
    sides = _sides(d.detach(), k.detach(), segments)
    of_elements = Sides(*(segments.spread(number) for number in sides))
    slope, parts = slope_sums(d, segments.spread(offset), of_elements)
    sums = segments.sum(parts)
    weights = weights_of(
        slope,
        d < 0,
        segments.spread(sums),
        segments.spread(offset),
        segments.spread(k),
        of_elements.best,
    )
    return weights, reciprocal_of(sums, offset, sides.best), segments


_offset_op = opaque(
    "softtopk::ragged_offset",
    "(Tensor d, Tensor k, Tensor offsets) -> Tensor",
    lambda d, k, offsets: _solve_offset(*_checked(d, k, offsets)),
    fake=lambda d, k, offsets: d.new_empty(k.shape),
    setup_context=_Offset.setup_context,
    backward=_Offset.backward,
)


def _threshold_of(
    x: Tensor, k: Count, tau: Strength, offsets: Tensor
) -> tuple[Tensor, Tensor, Tensor, Segments]:
    """Pivots and offsets of the thresholds (..., rows, 1), and distances (..., total, 1), of scores
    in canonical form. Differentiable in the first three arguments."""
    segments, places = Segments(offsets, x.shape[-1]), places_of_rows(k, x, offsets)
    fixed, traced = places.detach(), is_traced(x)
    pivot, crowded = find_pivots(x.detach(), fixed, offsets)
    pivots, taken, shared = (segments.spread(each) for each in (pivot, fixed, crowded))
    taus = segments.spread(tau.expand(*pivot.shape)) if isinstance(tau, Tensor) else tau
    d = measured(x.unsqueeze(-1), pivots, taken, taus, shared).squeeze(-1)
    if traced:
        refuse_forward_mode()
    solve = _offset_op if traced else _Offset.apply
    return pivot, solve(d.squeeze(-1), places, offsets), d, segments


# The quantities. All take x (..., total) in float32 or float64, and what belongs to it.


def _plain_logits(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool, *, offsets: Tensor
) -> Tensor:
    """z (..., total) with A = sigmoid(z)."""
    _, offset, d, segments = _threshold_of(canonical(x, mask, largest), k, tau, offsets)
    return (d - segments.spread(offset)).squeeze(-1)


def _plain_indicator(*arguments: Any, offsets: Tensor) -> Tensor:
    return torch.sigmoid(_plain_logits(*arguments, offsets=offsets))


def _plain_log_indicator(*arguments: Any, offsets: Tensor) -> Tensor:
    return log_sigmoid(_plain_logits(*arguments, offsets=offsets))


def _plain_threshold(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool, *, offsets: Tensor
) -> Tensor:
    """(..., rows, 1)"""
    pivot, offset, _, _ = _threshold_of(canonical(x, mask, largest), k, tau, offsets)
    threshold = torch.where(pivot.isinf(), pivot, pivot + tau * offset)
    return threshold if largest else -threshold


def _plain_softmax(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool, *, offsets: Tensor
) -> Tensor:
    log_a = _plain_log_indicator(x, mask, k, tau, largest, offsets=offsets)
    return _softmax(canonical(x, mask, largest), log_a, Segments(offsets, x.shape[-1]))


def _softmax(x: Tensor, log_a: Tensor, segments: Segments) -> Tensor:
    """softmax(x + log A) of every row, zero where it is -inf everywhere."""
    # From the largest score: beside a large constant log A would lose its digits.
    x = x.unsqueeze(-1)
    largest = segments.largest(x)
    z = x - segments.spread(torch.where(largest.isfinite(), largest, 0.0)) + log_a.unsqueeze(-1)
    largest = segments.largest(z)
    e = torch.exp(z - segments.spread(torch.where(largest == -math.inf, 0.0, largest)))
    total = segments.sum(e)
    return (e / segments.spread(torch.where(total == 0, 1.0, total))).squeeze(-1)


# By the native library.


def _flat(value: Count | Strength, x: Tensor, offsets: Tensor) -> float | Tensor:
    """As the library reads it: a number, or one in float64 for every row."""
    if not isinstance(value, Tensor):
        return value
    rows = (*x.shape[:-1], offsets.shape[-1] - 1, 1)
    return value.detach().to(torch.float64).expand(rows).contiguous()


class _Native(torch.autograd.Function):
    """x (..., total), mask, k, tau, largest -> A, or the softmax: (..., total).

    Where the derivative is itself differentiated, or asked for in tau, plain operations take over.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor | None,
        k: Count,
        tau: Strength,
        largest: bool,
        quantity: str,
        plain: Plain,
        offsets: Tensor,
    ) -> Tensor:
        library = kernels.native()
        assert library is not None
        ends, own_x, own_mask = flat_offsets(offsets, x), dense(x), mask
        if mask is not None:
            own_mask = mask.contiguous()
        own_k, own_tau = _flat(k, x, offsets), _flat(tau, x, offsets)
        state = result = torch.empty_like(own_x)
        if quantity == "softmax":
            result = library.softmax(own_x, own_mask, own_k, own_tau, indicator=state, offsets=ends)
        elif library.threshold(
            own_x, own_mask, own_k, own_tau, largest, indicator=result, offsets=ends
        ):
            # Infinite scores have no derivative. It matters only where they share places.
            state = result.masked_fill(x.isinf(), 0.0)
        tensors = (value if isinstance(value, Tensor) else None for value in (k, tau))
        ctx.save_for_backward(x, mask, state, result, offsets, *tensors)
        ctx.numbers = tuple(None if isinstance(value, Tensor) else value for value in (k, tau))
        ctx.largest, ctx.quantity, ctx.plain = largest, quantity, plain
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mask, a, result, offsets, *tensors = ctx.saved_tensors
        k, tau = (c if b is None else b for c, b in zip(ctx.numbers, tensors, strict=True))
        in_tau = ctx.needs_input_grad[3]
        library = None if torch.is_grad_enabled() or in_tau else library_for(a, grad)
        if library is None:
            arguments = (x, mask, k, tau, ctx.largest)
            grad_x, grad_tau = by_plain(ctx.plain, arguments, grad, in_tau)
            if grad_tau is not None:
                grad_tau = grad_tau.sum_to_size(tau.shape)
            return grad_x, None, None, grad_tau, None, None, None, None
        rate, ends = _flat(tau, x, offsets), flat_offsets(offsets, x)
        if ctx.quantity == "indicator":
            sign = 1.0 if ctx.largest else -1.0
            grad_x = library.threshold_gradient(a, dense(grad), sign * rate, ends)
        else:
            grad_x = library.softmax_gradient(result, a, dense(grad), rate, ends)
        return grad_x, None, None, None, None, None, None, None


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "indicator": _plain_indicator,
    "log_indicator": _plain_log_indicator,
    "threshold": _plain_threshold,
    "softmax": _plain_softmax,
}
#: What the native library has of its own.
_NATIVE = ("indicator", "softmax")


def quantity(name: Any, ragged: Ragged) -> Tensor:
    """(..., total), or thresholds (..., rows, 1), by the exact solver."""
    rows, k, offsets = ragged
    plain = partial(_PLAIN[name], offsets=offsets)
    path = path_of(rows.given, rows.tau, fixed=(rows.mask, k, offsets))
    if path == "triton":
        return launch(name, rows, k, plain, flat_offsets(offsets, rows.given))
    arguments = rows.scores, rows.mask, k, rows.tau, rows.largest
    if path == "native" and name in _NATIVE:
        return _Native.apply(*arguments, name, plain, offsets)
    return plain(*arguments)


def _padded(ragged: Ragged) -> tuple[Rows, Tensor]:
    """Rows of the same length, and where their elements are among those of all rows joined."""
    rows, offsets = ragged.rows, ragged.offsets
    x, total = rows.canonical().scores, rows.n
    segments = Segments(offsets, total)
    n = max(int(offsets.diff().max()), 1) if segments.rows else 1
    at = torch.arange(total, device=x.device) - offsets[:-1][segments.row] + n * segments.row
    padded = x.new_full((*x.shape[:-1], segments.rows * n), -math.inf)
    padded = padded.scatter(-1, at.expand(x.shape), x).unflatten(-1, (segments.rows, n))
    return rows._replace(given=padded, mask=None), at


def _by_sinkhorn(solve: Any, ragged: Ragged, setting: Sinkhorn) -> Tensor:
    rows, at = _padded(ragged)
    result = solve(rows, ragged.k, setting)
    return result.flatten(-2)[..., at]


def _log_indicator(ragged: Ragged, solver: Solver) -> Tensor:
    setting = sinkhorn_of(solver)
    if setting is not None:
        return _by_sinkhorn(log_indicator_by_sinkhorn, ragged, setting)
    return quantity("log_indicator", ragged)


def _weigh(ragged: Ragged, log_a: Tensor) -> Tensor:
    x = ragged.rows.canonical().scores
    return _softmax(x, log_a, Segments(ragged.offsets, x.shape[-1]))


def hard_selection(ragged: Ragged) -> Tensor:
    """The 0/1 selection (..., total) of the round(k) largest; of equal ones the first."""
    x, offsets = ragged.rows.canonical().scores.detach(), ragged.offsets
    k = whole_number(places_of_rows(ragged.k, x, offsets).detach(), torch.round)
    segments = Segments(offsets, x.shape[-1])
    pivot, _ = find_pivots(x, k, offsets)
    elements, pivots = x.unsqueeze(-1), segments.spread(pivot)
    above, tied = elements > pivots, elements == pivots
    n_above = segments.sum(above)
    # Whole numbers: a difference of sums is exact.
    number = torch.nn.functional.pad(tied.long().cumsum(-2), (0, 0, 1, 0))
    before = number.index_select(-2, offsets[:-1])
    chosen = tied & (number[..., 1:, :] <= segments.spread(before + (k - n_above).long()))
    selected = ((above | chosen) & (elements != -math.inf)).to(x.dtype)
    return selected.masked_fill(pivots.isnan(), math.nan).squeeze(-1)


# The functions, as those in `_unsorted` and `_softmax` call them.


@takes_nested
def soft_topk(
    scores: Tensor,
    k: Count,
    offsets: Tensor,
    *,
    hard: bool,
    solver: Solver,
    **options: Any,
) -> Tensor:
    setting = sinkhorn_of(solver)
    ragged = ragged_of(scores, k, offsets, **options)
    rows = ragged.rows
    if hard:
        selected = hard_selection(ragged)
        if not may_differentiate(rows.scores, rows.tau, ragged.k):
            return rows.restore(selected)
    if setting is None:
        soft = quantity("indicator", ragged)
    else:
        soft = _by_sinkhorn(indicator_by_sinkhorn, ragged, setting)
    return rows.restore(straight_through(selected, soft) if hard else soft)


@takes_nested
def log_soft_topk(
    scores: Tensor, k: Count, offsets: Tensor, *, solver: Solver, **options: Any
) -> Tensor:
    ragged = ragged_of(scores, k, offsets, **options)
    return ragged.rows.restore(_log_indicator(ragged, solver))


@partial(takes_nested, per_row=True)
def topk_threshold(
    scores: Tensor, k: Count, offsets: Tensor, *, solver: Solver, **options: Any
) -> Tensor:
    setting = sinkhorn_of(solver)
    ragged = ragged_of(scores, k, offsets, **options)
    if setting is None:
        threshold = quantity("threshold", ragged)
    else:
        threshold = threshold_by_sinkhorn(_padded(ragged)[0], ragged.k, setting)
        threshold = threshold if ragged.rows.largest else -threshold
    return threshold.to(ragged.rows.dtype).squeeze(-1)


@takes_nested
def soft_topk_softmax(
    scores: Tensor, k: Count, offsets: Tensor, *, hard: bool, solver: Solver, **options: Any
) -> Tensor:
    setting = sinkhorn_of(solver)
    ragged = ragged_of(scores, k, offsets, largest=True, **options)
    rows = ragged.rows
    if hard:
        selected = hard_selection(ragged)
        kept = _weigh(ragged, torch.zeros_like(selected).masked_fill(selected == 0, -math.inf))
        kept = kept.detach()
        if not may_differentiate(rows.scores, rows.tau, ragged.k):
            return rows.restore(kept)
    if setting is None:
        weights = quantity("softmax", ragged)
    else:
        weights = _weigh(ragged, _log_indicator(ragged, solver))
    return rows.restore(straight_through(kept, weights) if hard else weights)
