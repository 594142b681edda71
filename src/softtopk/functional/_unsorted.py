"""The unsorted operator: one scalar equation per row.

With two anchors the transport plan depends on one unknown, a threshold. Measured in units of the
temperature from a pivot, the k-th largest score, it is the root ``offset`` of

    sum_i sigmoid(d_i - offset) = k,        d_i = (x_i - pivot) / tau.

Solved as it stands, the equation cancels and is flat at low temperature. Call *top* the k largest
elements; then the same equation says that the mass leaked out of the top equals the mass leaked
into the rest, and its logarithm

    h(offset) = log sum_{rest} sigmoid(d_i - offset) - log sum_{top} sigmoid(offset - d_i) = 0

is nearly linear in the hot and in the cold limit. Its slope is -2 plus a weighted mean of the
sigmoids of each sum. The pivot (d = 0) separates the two sets, so these means are at most
sigmoid(-offset) and sigmoid(offset), and the slope lies in [-2, -1] everywhere: from any point the
root is bracketed by [offset + h/2, offset + h], and Newton's method never runs off.

Elements tied with the pivot, b of them with a above, belong to the top with weight (k - a) / b and
to the rest with the complement. Tied scores then get equal results, and k may be fractional.

A = sigmoid(d - offset) alone has the derivatives in the scores and in the temperature. With
s = A (1 - A) and z = d - offset = logit A, and means weighted by s,

    dA = s (dx - mean(dx)) / tau,        dA / dtau = -s (z - mean(z)) / tau.

So where nothing more is asked for, the operator is one call that keeps A and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from .._checks import (
    COUNTS,
    REALS,
    Count,
    Dims,
    Strength,
    check_flag,
    check_range,
    check_rows,
    operand,
)
from .._dispatch import (
    dense,
    is_readable,
    is_traced,
    library_for,
    may_differentiate,
    path_of,
    refuse_forward_mode,
    triton_for,
)
from ._autograd import batch_first, opaque
from ._launch import launch
from ._mesh import takes_dtensors
from ._nested import is_nested
from ._rows import (
    Normalize,
    Rows,
    canonical,
    column,
    distances,
    hard_selection,
    per_row,
    pivot_of,
    places_of,
    straight_through,
    unsorted_rows,
    without_negligible,
)
from ._sinkhorn import Solver, sinkhorn_of
from ._transport import indicator_by_sinkhorn, log_indicator_by_sinkhorn, threshold_by_sinkhorn

#: What Newton needs at most, measured over the whole documented range (see tests), and the limit.
NEEDED_STEPS, MAX_STEPS = 6, 12

# The solver.


class Sides(NamedTuple):
    """How the pivot divides a row, each (..., 1)."""

    n_tied: Tensor  #: the number of elements tied with the pivot
    in_top: Tensor  #: their share of the top
    in_rest: Tensor  #: 1 - in_top, which would have lost the digits of a small one
    best: Tensor  #: the largest distance of the rest


def solve_offset(d: Tensor, k: Tensor, max_steps: int = MAX_STEPS) -> tuple[Tensor, int]:
    """The root without derivatives, and the number of Newton steps it took, one at least.

    Fewer than the default show how it converges.
    """
    sides = _sides(d, k)
    d = without_negligible(d, d, sides.best)

    # Scale each tail by its largest term, so that neither underflows: with e = exp(d - best),
    # sigmoid(d - t) = c e / (1 + c e), c = exp(best - t). One exp per element serves all steps.
    e_rest = torch.exp(torch.where(d < 0, d - sides.best, -math.inf))
    e_top = torch.exp(torch.where(d > 0, -d, -math.inf))
    one = torch.ones_like(sides.best)

    def leaks(c_rest: Tensor, c_top: Tensor) -> Leaks:
        r_rest = e_rest / torch.addcmul(one, c_rest, e_rest)
        r_top = e_top / torch.addcmul(one, c_top, e_top)
        return sum_and_square(r_rest) + sum_and_square(r_top)

    return find_root(leaks, sides, max_steps=max_steps)


#: Sums of r = e / (1 + c e) and of r^2 over the rest, and over the top, ties left out.
Leaks = tuple[Tensor, Tensor, Tensor, Tensor]


def sum_and_square(r: Tensor) -> tuple[Tensor, Tensor]:
    square = torch.linalg.vector_norm(r, dim=-1, keepdim=True).square()
    return r.sum(-1, keepdim=True), square


def find_root(
    leaks: Callable[[Tensor, Tensor], Leaks],
    sides: Sides,
    start: Tensor | None = None,
    *,
    max_steps: int = MAX_STEPS,
    stop_early: bool = True,
) -> tuple[Tensor, int]:
    """The root (..., 1) by Newton's method, and the number of steps it took.

    ``leaks`` are given the odds c of both sides. Without a ``start``, they are asked once more.
    """
    best, info = sides.best, torch.finfo(sides.best.dtype)
    tied_top, tied_rest = sides.n_tied * sides.in_top, sides.n_tied * sides.in_rest

    def with_ties(total: Tensor, square: Tensor, tied: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The sum, ties (e = 1) included, and the part of c e that has saturated."""
        r_tied = 1.0 / (1.0 + c)
        total = (total + tied * r_tied).clamp(min=info.tiny)
        return total, c * (square + tied * r_tied.square()) / total

    def measure(c_rest: Tensor, c_top: Tensor) -> Leaks:
        rest, rest_square, top, top_square = leaks(c_rest, c_top)
        return with_ties(rest, rest_square, tied_rest, c_rest) + with_ties(
            top, top_square, tied_top, c_top
        )

    t = start
    if t is None:  # in the cold limit c -> 0 both tails are pure exponentials, the root is explicit
        cold = torch.zeros_like(best)
        rest, _, top, _ = measure(cold, cold)
        t = 0.5 * (best + torch.log(rest) - torch.log(top))
    low, high = torch.full_like(t, -math.inf), torch.full_like(t, math.inf)
    active = torch.ones_like(t, dtype=torch.bool)
    for steps in range(1, max_steps + 1):  # noqa: B007
        rest, rest_saturated, top, top_saturated = measure(_odds(best - t), _odds(t))
        h = (best - t) - t + torch.log(rest) - torch.log(top)
        slope = (2.0 - rest_saturated - top_saturated).clamp(1.0, 2.0)
        low = torch.maximum(low, t + torch.minimum(0.5 * h, h))
        high = torch.minimum(high, t + torch.maximum(0.5 * h, h))
        t = torch.where(active, (t + h / slope).clamp(low, high), t)
        # Convergence is quadratic: a step from within the root of the precision reaches it. Far
        # below the pivot h is only known to the rounding of its own terms.
        active = active & (h.abs() > 0.25 * math.sqrt(info.eps) - 4.0 * info.eps * best)
        if stop_early and is_readable(active) and not bool(active.any()):
            break
    return t.nan_to_num(nan=0.0), steps


def _sides(d: Tensor, k: Tensor) -> Sides:
    n_above, n_tied = (d > 0).sum(-1, keepdim=True), (d == 0).sum(-1, keepdim=True)
    best = torch.where(d < 0, d, -math.inf).amax(-1, keepdim=True)
    return sides_of(n_above, n_tied, best, k)


def sides_of(n_above: Tensor, n_tied: Tensor, below: Tensor, k: Tensor) -> Sides:
    """From the numbers of elements above the pivot and tied with it, and the largest distance
    below it."""
    some, dtype = n_tied.clamp(min=1), below.dtype
    in_top, in_rest = (k - n_above).to(dtype) / some, (n_above + n_tied - k).to(dtype) / some
    best = torch.where(n_tied * in_rest > 0, 0.0, below)
    return Sides(n_tied, in_top, in_rest, best.clamp(min=-0.125 * torch.finfo(dtype).max))


def _solve_offset(d: Tensor, k: Tensor) -> Tensor:
    """The root by a kernel where that is possible."""
    library, accelerator = library_for(d, k), triton_for(d, k)
    if library is not None:
        offset = d.new_empty(*d.shape[:-1], 1)
        places = k.to(torch.float64).contiguous()
        library.threshold(d.contiguous(), None, places, 1.0, True, offset=offset)
    elif accelerator is not None:
        _, state = accelerator.solve("threshold", d, None, k, 1.0, True)
        offset = state[1].view(*d.shape[:-1], 1)
    else:
        return solve_offset(d, k)[0]
    # Where everything or nothing is selected; finite, since distances may be infinite there.
    return offset.nan_to_num(0.0, posinf=0.0, neginf=-0.125 * torch.finfo(d.dtype).max)


# The derivative of the root.


def log_slope(z: Tensor) -> Tensor:
    """log sigmoid'(z), finite also where z is infinite."""
    limit = 0.125 * torch.finfo(z.dtype).max
    z = z.clamp(-limit, limit)
    return 2.0 * F.logsigmoid(z) - z


def _weights(d: Tensor, offset: Tensor, k: Tensor) -> Tensor:
    """w_i = s_i / sum_j s_j, the derivative of the offset in d, for s = sigmoid'(d - offset).

    When cold, s underflows, and log s is as large as the offset, whose rounding alone would move
    weight between the top and the rest. But these leak equal masses at the root. So the elements
    of each are divided by their own leak, in the units of the solver, in which neither happens:
    with c e the odds of a leak, it is c e / (1 + c e), and s = c e / (1 + c e)^2.

    Elements tied with the pivot are counted with the top. Where they belong to the rest in part,
    that part of their leak is added to the rest's. For constant shares the leak of the rest less
    that of the top is k less the places of the top: zero, with a derivative in k.
    """
    sides = _sides(d.detach(), k.detach())
    slope, sums = slope_sums(d, offset, sides)
    return weights_of(slope, d < 0, sums, offset, k, sides.best)


def slope_sums(d: Tensor, offset: Tensor, sides: Sides) -> tuple[Tensor, Tensor]:
    """s / c (..., n) and, of the rest and of the top, the leaks / c and the sums of s / c
    (..., 4)."""
    n_tied, in_top, in_rest, best = sides
    rest, tied = d < 0, d == 0
    c_rest, c_top = _odds(best - offset), _odds(offset)
    # What is below the normal numbers takes a CPU ten times longer, and does not count.
    e = torch.exp(torch.where(rest, d - best, -d))
    e = F.threshold(e, torch.finfo(d.dtype).tiny, 0.0)
    kept = 1.0 / (1.0 + torch.where(rest, c_rest, c_top) * e)
    leak = e * kept
    slope = leak * kept
    leak_top = (leak * torch.where(tied, in_top, 1.0)).masked_fill(rest, 0.0).sum(-1, keepdim=True)
    leak_rest = leak.masked_fill(~rest, 0.0).sum(-1, keepdim=True)
    if not is_readable(d) or bool((n_tied * in_rest > 0).any()):
        also_rest = in_rest / (torch.exp(-d.masked_fill(~tied, 0.0)) + c_rest)
        leak_rest = leak_rest + also_rest.masked_fill(~tied, 0.0).sum(-1, keepdim=True)
    slope_rest = slope.masked_fill(~rest, 0.0).sum(-1, keepdim=True)
    slope_top = slope.masked_fill(rest, 0.0).sum(-1, keepdim=True)
    return slope, torch.cat([leak_rest, leak_top, slope_rest, slope_top], -1)


def weights_of(
    slope: Tensor, rest: Tensor, sums: Tensor, offset: Tensor, k: Tensor, best: Tensor
) -> Tensor:
    """w (..., n) from what `slope_sums` returns."""
    tiny = torch.finfo(slope.dtype).tiny
    leak_rest, leak_top, slope_rest, slope_top = sums.split(1, -1)
    if k.is_floating_point():
        leak_rest = leak_rest + (k.detach() - k).to(slope.dtype) * capped_exp(offset - best)
    leak_rest, leak_top = leak_rest.clamp(min=tiny), leak_top.clamp(min=tiny)
    total = (slope_rest / leak_rest + slope_top / leak_top).clamp(min=tiny)
    return slope / torch.where(rest, leak_rest, leak_top) / total


def _odds(exponent: Tensor) -> Tensor:
    return torch.exp(exponent.clamp(max=math.log(torch.finfo(exponent.dtype).max) - 1.0))


def capped_exp(value: Tensor) -> Tensor:
    """exp, but at most 1 / precision."""
    return torch.exp(value.clamp(max=-math.log(torch.finfo(value.dtype).eps)))


def reciprocal_of(sums: Tensor, offset: Tensor, best: Tensor) -> Tensor:
    """`_reciprocal` (..., 1) from the sums of `slope_sums`."""
    _, _, slope_rest, slope_top = sums.clamp(min=torch.finfo(sums.dtype).tiny).log().split(1, -1)
    return capped_exp(-torch.logaddexp(best - offset + slope_rest, offset + slope_top))


def _reciprocal(d: Tensor, offset: Tensor) -> Tensor:
    """1 / sum_j s_j, the derivative of the offset in -k.

    At low temperature it truly has no bound, as the root jumps from one element to the next where k
    passes an integer. It is capped.
    """
    return capped_exp(-torch.logsumexp(log_slope(d - offset), -1, keepdim=True))


class _Offset(torch.autograd.Function):
    """d (..., n), k (..., 1) -> offset (..., 1), with the implicit derivative.

    The derivative is written in ordinary operations on d, k and the *output*, so that it can itself
    be differentiated.
    """

    @staticmethod
    def forward(d: Tensor, k: Tensor) -> Tensor:
        return _solve_offset(d, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        d, k, offset = ctx.saved_tensors
        grad_k = None
        if ctx.needs_input_grad[1]:
            grad_k = (-grad * _reciprocal(d, offset)).to(k.dtype)
        return grad * _weights(d, offset, k), grad_k

    @staticmethod
    def jvp(ctx: Any, d_tangent: Tensor | None, k_tangent: Tensor | None) -> Tensor:
        d, k, offset = ctx.saved_tensors
        tangent = torch.zeros_like(offset)
        if d_tangent is not None:
            tangent = tangent + (_weights(d, offset, k) * d_tangent).sum(-1, keepdim=True)
        if k_tangent is not None:
            tangent = tangent - _reciprocal(d, offset) * k_tangent.to(offset.dtype)
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_Offset.apply, info.batch_size, in_dims, inputs)


def _checked_offset(d: Tensor, k: Tensor) -> Tensor:
    check_rows(d)
    k = operand("k", k, (*d.shape[:-1], 1), *COUNTS)
    check_range("k", k, 0, d.shape[-1])
    return _solve_offset(d, k)


def _unrolled_offset(d: Tensor, k: Tensor) -> Tensor:
    if d.dtype is torch.float64:
        raise NotImplementedError(
            "the soft selection of float64 scores cannot be exported to ONNX, because torch's "
            "exporter rounds the numbers in it to float32; use scores.float(), or the hard "
            "selection: hard_eval=True and .eval()"
        )
    return solve_offset(d, k, NEEDED_STEPS)[0]


_offset_op = opaque(
    "softtopk::offset",
    "(Tensor d, Tensor k) -> Tensor",
    _checked_offset,
    fake=lambda d, k: d.new_empty(*d.shape[:-1], 1),
    setup_context=_Offset.setup_context,
    backward=_Offset.backward,
    unrolled=_unrolled_offset,
)


def threshold_of(x: Tensor, k: Count, tau: Strength) -> tuple[Tensor, Tensor, Tensor]:
    """Pivot (..., 1), offset of the threshold from it in units of tau (..., 1), and distances
    (..., n), of scores in canonical form. Differentiable in all three arguments."""
    places = places_of(k, x)
    fixed = places.detach()
    pivot = pivot_of(x.detach(), fixed if isinstance(k, Tensor) else k)
    d, pivot = distances(x, pivot, fixed, tau)
    d = d.squeeze(-1)
    places = places.expand(*d.shape[:-1], 1)
    if not is_traced(d):
        return pivot, _Offset.apply(d, places), d
    refuse_forward_mode()
    return pivot, _offset_op(d, places), d


def _logits(x: Tensor, k: Count, tau: Strength) -> Tensor:
    """z (..., n) with A = sigmoid(z), of scores in canonical form."""
    _, offset, d = threshold_of(x, k, tau)
    return d - offset


# The indicator A in one step, with the derivatives that A alone has.


def indicator(rows: Rows, k: Count) -> Tensor:
    """A (..., n) by the exact solver."""
    mask, tau, largest = rows.mask, rows.tau, rows.largest
    path = path_of(rows.given, tau, fixed=(mask, k))
    if path == "triton":
        return launch("indicator", rows, k, _plain_indicator)
    x = rows.scores
    if path == "native":
        if may_differentiate(x, tau):
            return _Indicator.apply(x, mask, k, tau, largest)
        return _solve(x, mask, k, tau, largest)[0]
    if path == "opaque":
        refuse_forward_mode()
        places = places_of(k, x).expand(*rows.batch, 1)
        return _soft_topk_op(x, mask, places, column(tau, x), largest)
    return _plain_indicator(x, mask, k, tau, largest)


def _plain_indicator(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
) -> Tensor:
    return torch.sigmoid(_logits(canonical(x, mask, largest), k, tau))


def _solve(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
) -> tuple[Tensor, bool]:
    """A (..., n), and whether some of it may belong to infinite scores that share their places."""
    accelerator = triton_for(x)
    if accelerator is not None:
        return accelerator.solve("indicator", x, mask, k, tau, largest)[0], True
    library = kernels.native() if x.is_cpu and x.numel() else None
    if library is None:
        return _plain_indicator(x, mask, k, tau, largest), True
    x = dense(x)
    a = torch.empty_like(x)
    mask = None if mask is None else mask.contiguous()
    return a, library.threshold(x, mask, per_row(k, x), per_row(tau, x), largest, indicator=a)


def _sum_of_row(values: Tensor) -> Tensor:
    return values.sum(-1, keepdim=True)


def slopes(a: Tensor, total_of: Callable[[Tensor], Tensor] = _sum_of_row) -> tuple[Tensor, Tensor]:
    """s = A (1 - A), and each as a share of their sum, by which means are weighted.

    The shares are zero in rows where s has all but vanished: all of A is saturated there. The root
    of the smallest number leaves room for the squares that second derivatives divide by.
    """
    a = F.threshold(a, torch.finfo(a.dtype).tiny, 0.0)  # what is below takes a CPU ten times longer
    s = a * (1.0 - a)
    total = total_of(s)
    alive = total > math.sqrt(torch.finfo(s.dtype).tiny)
    return s, s / torch.where(alive, total, math.inf)


def from_mean(share: Tensor, values: Tensor) -> Tensor:
    """How far ``values`` (..., n) are from their mean with the shares from `slopes`."""
    return values - (share * values).sum(-1, keepdim=True)


def gradient_in_scores(a: Tensor, grad: Tensor, tau: Strength, largest: bool = True) -> Tensor:
    """The derivative of A in the scores, which is symmetric, times ``grad`` (..., n)."""
    tau = tau if largest else -tau
    library = None if torch.is_grad_enabled() else library_for(a, grad)
    if library is None:
        s, share = slopes(a)
        return torch.where(share > 0.0, s * from_mean(share, grad) / tau, 0.0)
    return library.threshold_gradient(dense(a), dense(grad), per_row(tau, a))


def gradient_in_tau(a: Tensor, pull: Tensor, tau: Tensor) -> Tensor:
    """The sum (..., 1) of ``pull`` (..., n) times the derivative of z = logit A in tau.

    Saturated elements have no part in it.
    """
    _, share = slopes(a)
    free = share > 0.0
    z = torch.where(free, torch.logit(torch.where(free, a, 0.5)), 0.0)
    moved = torch.where(free, pull * from_mean(share, z), 0.0)
    return -moved.sum(-1, keepdim=True) / tau


def _gradients(
    ctx: Any, a: Tensor, grad: Tensor, tau: Strength
) -> tuple[Tensor | None, None, None, Tensor | None, None]:
    """In the scores and in tau, of the arguments x, mask, k, tau, largest."""
    grad_x = gradient_in_scores(a, grad, tau, ctx.largest) if ctx.needs_input_grad[0] else None
    grad_tau = None
    if isinstance(tau, Tensor) and ctx.needs_input_grad[3]:
        grad_tau = gradient_in_tau(a, grad * a * (1.0 - a), tau).sum_to_size(tau.shape)
    return grad_x, None, None, grad_tau, None


class _Indicator(torch.autograd.Function):
    """x (..., n), mask, k, tau, largest -> A (..., n), by the native library.

    Saves A, its result, and nothing else of that size.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
    ) -> Tensor:
        a, shared = _solve(x, mask, k, tau, largest)
        # Infinite scores have no derivative. It matters only where they share places: 0 < A < 1.
        infinite = x.isinf() if shared else None
        learned = isinstance(tau, Tensor)
        ctx.save_for_backward(a, infinite, tau if learned else None)
        ctx.tau, ctx.largest = None if learned else tau, largest
        return a

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, infinite, tau = ctx.saved_tensors
        a = a if infinite is None else a.masked_fill(infinite, 0.0)
        return _gradients(ctx, a, grad, ctx.tau if tau is None else tau)


def _checked_indicator(
    scores: Tensor, mask: Tensor | None, k: Tensor, tau: Tensor, largest: bool
) -> Tensor:
    check_rows(scores)
    one = (*scores.shape[:-1], 1)
    mask = None if mask is None else operand("mask", mask, scores.shape, torch.bool)
    k, tau = operand("k", k, one, *COUNTS), operand("tau", tau, one, *REALS)
    check_range("k", k, 0, scores.shape[-1])
    check_range("tau", tau, torch.finfo(tau.dtype).tiny)
    return _solve(scores, mask, k, tau, largest)[0]


def _setup_indicator(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, _, tau, ctx.largest = inputs
    ctx.save_for_backward(x, output, tau)


def _pull_indicator(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, a, tau = ctx.saved_tensors
    return _gradients(ctx, a.masked_fill(x.isinf(), 0.0), grad, tau)


_soft_topk_op = opaque(
    "softtopk::soft_topk",
    "(Tensor scores, Tensor? mask, Tensor k, Tensor tau, bool largest) -> Tensor",
    _checked_indicator,
    fake=lambda scores, *_: scores.new_empty(scores.shape),
    setup_context=_setup_indicator,
    backward=_pull_indicator,
)


def log_indicator(rows: Rows, k: Count, solver: Solver) -> Tensor:
    """log A (..., n)."""
    sinkhorn = sinkhorn_of(solver)
    if sinkhorn is not None:
        return log_indicator_by_sinkhorn(rows.canonical(), k, sinkhorn)
    if path_of(rows.given, rows.tau, fixed=(rows.mask, k)) == "triton":
        return launch("log_indicator", rows, k, plain_log_indicator)
    return plain_log_indicator(rows.scores, rows.mask, k, rows.tau, rows.largest)


def plain_log_indicator(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
) -> Tensor:
    return log_sigmoid(_logits(canonical(x, mask, largest), k, tau))


def log_sigmoid(logits: Tensor) -> Tensor:
    # As a softplus, which keeps less for backward than logsigmoid. At -inf its slope is 1, which
    # would let the constant -inf move the threshold.
    return torch.where(logits == -math.inf, -math.inf, -F.softplus(-logits, threshold=50.0))


def _plain_threshold(
    x: Tensor, mask: Tensor | None, k: Count, tau: Strength, largest: bool
) -> Tensor:
    """(..., 1)"""
    pivot, offset, _ = threshold_of(canonical(x, mask, largest), k, tau)
    threshold = torch.where(pivot.isinf(), pivot, pivot + tau * offset)
    return threshold if largest else -threshold


# The public functions.


@takes_dtensors
def soft_topk(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    hard: bool = False,
    solver: Solver = "exact",
    offsets: Tensor | None = None,
) -> Tensor:
    r"""SOFT top-k: the soft indicator of the k largest elements.

    A relaxation of the hard selection
    ``torch.zeros_like(scores).scatter(dim, scores.topk(k, dim).indices, 1.0)``, namely n times the
    first column of the plan of

    .. math::
        \min_{\Gamma \ge 0} \sum_{ij} (x_i - y_j)^2 \Gamma_{ij}
        + \epsilon \sum_{ij} \Gamma_{ij} \log \Gamma_{ij}
        \quad\text{s.t.}\quad \Gamma 1 = \tfrac1n 1,\
        \Gamma^\top 1 = [\tfrac kn, \tfrac{n-k}n], \quad y = [1, 0],

    which is :math:`A_i = \sigma(2 (x_i - t) / \epsilon)` with the threshold t that makes A sum to
    k. The threshold is solved for directly, to machine precision at every eps.

    Args:
        scores: Any shape and floating dtype; float16 and bfloat16 are computed in float32.
        k: How many to select, 0 <= k <= n: an int, a float, or a tensor that broadcasts to the
            batch shape (the shape of scores without ``dim``). The values of a tensor are checked
            on the CPU only, and not inside ``torch.compile``; this goes for eps too. For rows that
            may have fewer elements than places, ``k.clamp(max=n)`` says that all are wanted.
        eps: Regularisation strength, positive: a float or a tensor that broadcasts to the batch
            shape. As eps -> 0 the result becomes the hard selection, as eps grows it becomes k/n.
        dim: The dimension to select along, or a tuple: the elements of these are one row.
        largest: Select the largest elements, else the smallest.
        mask: Boolean, broadcasts to scores; True takes part. A masked element is treated exactly
            as if it were deleted: A = 0 and no gradient. So is a score of -inf (+inf if not
            ``largest``). A row with fewer than k elements left selects all of them. A NaN that
            takes part makes its row NaN.
        normalize: ``"row"`` divides the cost of each row by its largest entry, ``"batch"`` that of
            all rows by the largest of all, as the paper's code does: its values of eps refer to
            that. The divisor is detached. It grows with the square of the scores, so larger scores
            give a softer selection.
        hard: Return the exact selection, as ``torch.topk`` does, with the gradient of the soft one
            (straight-through). Of equal scores the first are selected. A fractional k is rounded.
        solver: ``"exact"``, or ``"sinkhorn"`` or a `Sinkhorn` for the paper's algorithm.
        offsets: For rows of different lengths, joined along the last dimension of scores
            (..., total): int64 or int32 of shape (rows + 1,), where row i goes from ``offsets[i]``
            to ``offsets[i + 1]``. A row may be empty. k and eps broadcast to (..., rows), and a k
            above the length of a row selects all of it. A jagged nested tensor as scores does the
            same, and has a nested result. Nothing is padded, except for Sinkhorn's algorithm. The
            values are checked on the CPU only.

    Returns:
        A, of the shape and dtype of scores, in [0, 1], with sum k along ``dim``. Differentiable in
        scores, in eps, and in a floating k: in reverse mode to any order, in forward mode, and in
        forward over reverse mode. (Forward over forward mode is wrong for every
        ``torch.autograd.Function`` with a jvp, and forward mode inside ``torch.compile`` raises.)

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> soft_topk(scores, 2, eps=1.0)
    tensor([0.0713, 0.1227, 0.7744, 0.6066, 0.0226, 0.3620, 0.0404])
    >>> soft_topk(scores, 2, eps=0.01).round(decimals=4)
    tensor([0., 0., 1., 1., 0., 0., 0.])
    >>> soft_topk(scores, 5, eps=0.01, largest=False).round(decimals=4)
    tensor([1., 1., 0., 0., 1., 1., 1.])
    >>> soft_topk(scores, 2, eps=0.01, offsets=torch.tensor([0, 1, 4, 7])).round(decimals=4)
    tensor([1., 0., 1., 1., 0., 1., 1.])

    References:
        Xie et al., Differentiable Top-k Operator with Optimal Transport, NeurIPS 2020.
    """
    check_flag("hard", hard)
    options: dict[str, Any] = {"eps": eps, "dim": dim, "largest": largest, "mask": mask}
    options["normalize"] = normalize
    if offsets is not None or is_nested(scores):
        from . import _ragged

        return _ragged.soft_topk(scores, k, offsets, hard=hard, solver=solver, **options)
    sinkhorn = sinkhorn_of(solver)
    rows, k = unsorted_rows(scores, k, **options)
    if hard:
        selected = hard_selection(rows.canonical().scores, k)
        if not may_differentiate(rows.scores, rows.tau, k):
            return rows.restore(selected)
    if sinkhorn is None:
        soft = indicator(rows, k)
    else:
        soft = indicator_by_sinkhorn(rows.canonical(), k, sinkhorn)
    return rows.restore(straight_through(selected, soft) if hard else soft)


@takes_dtensors
def log_soft_topk(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    solver: Solver = "exact",
    offsets: Tensor | None = None,
) -> Tensor:
    """Logarithm of `soft_topk`, exact also where the latter underflows to 0 or rounds to 1.

    A relaxation of ``torch.log(hard_indicator)``. Arguments as for `soft_topk`. An element that
    takes no part has -inf; every other one is finite, unless k = 0.

    >>> log_soft_topk(torch.tensor([0.0, 1.0, 2.0]), 1, eps=1 / 128)
    tensor([-384., -128.,   -0.])
    """
    options: dict[str, Any] = {"eps": eps, "dim": dim, "largest": largest, "mask": mask}
    options["normalize"] = normalize
    if offsets is not None or is_nested(scores):
        from . import _ragged

        return _ragged.log_soft_topk(scores, k, offsets, solver=solver, **options)
    rows, k = unsorted_rows(scores, k, **options)
    return rows.restore(log_indicator(rows, k, solver))


@takes_dtensors
def topk_threshold(
    scores: Tensor,
    k: Count,
    *,
    eps: Strength = 0.1,
    dim: Dims = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    normalize: Normalize = None,
    solver: Solver = "exact",
    offsets: Tensor | None = None,
) -> Tensor:
    """The soft threshold between the k largest elements and the rest.

    A relaxation of the midpoint between the k-th and the (k+1)-th element, that is of
    ``scores.quantile((n - k) / n, dim, interpolation="midpoint")``: the t of
    ``soft_topk = sigmoid(2 (scores - t) / eps)``. Arguments as for `soft_topk`.

    Returns:
        t, of the shape of scores without ``dim``, or (..., rows) with ``offsets``: -inf where
        everything is selected, +inf where nothing is (the other way round if not ``largest``).

    >>> scores = torch.tensor([0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1])
    >>> topk_threshold(scores, 2, eps=0.01)
    tensor(1.6500)
    """
    options: dict[str, Any] = {"eps": eps, "dim": dim, "largest": largest, "mask": mask}
    options["normalize"] = normalize
    if offsets is not None or is_nested(scores):
        from . import _ragged

        return _ragged.topk_threshold(scores, k, offsets, solver=solver, **options)
    rows, k = unsorted_rows(scores, k, **options)
    sinkhorn = sinkhorn_of(solver)
    if sinkhorn is not None:
        threshold = threshold_by_sinkhorn(rows.canonical(), k, sinkhorn)
        threshold = threshold if largest else -threshold
    elif path_of(rows.given, rows.tau, fixed=(rows.mask, k)) == "triton":
        threshold = launch("threshold", rows, k, _plain_threshold)
    else:
        threshold = _plain_threshold(rows.scores, rows.mask, k, rows.tau, largest)
    return threshold.to(rows.dtype).squeeze(-1)
