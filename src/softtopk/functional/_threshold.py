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
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import COUNTS, Count, check_rows, is_readable, is_traced, operand
from ._autograd import batch_first, opaque, refuse_forward_mode
from ._fusion import native_for
from ._rows import Rows, distances, pivot_of, places_of

#: Newton needs at most 6 steps (measured over the whole documented range, see tests).
MAX_STEPS = 12


def logits_of(rows: Rows, k: Count) -> Tensor:
    """z (..., n) with A = sigmoid(z), of rows in canonical form."""
    _, offset, d = threshold_of(rows, k)
    return d - offset


def threshold_of(rows: Rows, k: Count) -> tuple[Tensor, Tensor, Tensor]:
    """Pivot (..., 1), offset of the threshold from it in units of tau, and distances (..., n)."""
    x, places = rows.scores, places_of(k, rows.scores)
    fixed_places = places.detach()
    pivot = pivot_of(x.detach(), fixed_places if isinstance(k, Tensor) else k)
    d, pivot = distances(x, pivot, fixed_places, rows.tau)
    d = d.squeeze(-1)
    return pivot, offset_of(d, places), d


def offset_of(d: Tensor, k: Tensor) -> Tensor:
    """Differentiable root ``offset`` (..., 1) of sum_i sigmoid(d_i - offset) = k.

    ``d`` (..., n) are distances from `distances`, ``k`` (..., 1) or (1,) the number of places.
    """
    k = k.expand(*d.shape[:-1], 1)
    if is_traced(d):
        refuse_forward_mode()
        return _Offset.apply(d, k)
    return _OffsetForwardMode.apply(d, k)


def solve_offset(d: Tensor, k: Tensor, max_steps: int = MAX_STEPS) -> tuple[Tensor, int]:
    """The root without derivatives, and the number of Newton steps it took, one at least.

    Fewer than the default show how it converges.
    """
    info = torch.finfo(d.dtype)
    hottest = math.log(info.max) - 1.0
    n_above, n_tied = (d > 0).sum(-1, keepdim=True), (d == 0).sum(-1, keepdim=True)
    share = (k - n_above).to(d.dtype) / n_tied.clamp(min=1)
    tied_top, tied_rest = n_tied * share, n_tied * (1.0 - share)
    best = torch.where(d < 0, d, -math.inf).amax(-1, keepdim=True)
    best = torch.where(tied_rest > 0, 0.0, best).clamp(min=-0.125 * info.max)
    d = without_negligible(d, d, best)

    # Scale each tail by its largest term, so that neither underflows: with e = exp(d - best),
    # sigmoid(d - t) = c e / (1 + c e), c = exp(best - t). One exp per element serves all steps.
    e_rest = torch.exp(torch.where(d < 0, d - best, -math.inf))
    e_top = torch.exp(torch.where(d > 0, -d, -math.inf))

    def leak(e: Tensor, tied: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of e / (1 + c e), ties (e = 1) included, and the part of c e that has saturated."""
        r, r_tied = e / torch.addcmul(one, c, e), 1.0 / (1.0 + c)
        total = (r.sum(-1, keepdim=True) + tied * r_tied).clamp(min=info.tiny)
        square = torch.linalg.vector_norm(r, dim=-1, keepdim=True).square()
        return total, c * (square + tied * r_tied.square()) / total

    # In the cold limit c -> 0 both tails are pure exponentials and the root is explicit.
    one, cold = torch.ones_like(best), torch.zeros_like(best)
    rest, top = leak(e_rest, tied_rest, cold)[0], leak(e_top, tied_top, cold)[0]
    t = 0.5 * (best + torch.log(rest) - torch.log(top))
    low, high = torch.full_like(t, -math.inf), torch.full_like(t, math.inf)
    active = torch.ones_like(t, dtype=torch.bool)
    for steps in range(1, max_steps + 1):  # noqa: B007
        rest, rest_saturated = leak(e_rest, tied_rest, torch.exp((best - t).clamp(max=hottest)))
        top, top_saturated = leak(e_top, tied_top, torch.exp(t.clamp(max=hottest)))
        h = (best - t) - t + torch.log(rest) - torch.log(top)
        slope = (2.0 - rest_saturated - top_saturated).clamp(1.0, 2.0)
        low = torch.maximum(low, t + torch.minimum(0.5 * h, h))
        high = torch.minimum(high, t + torch.maximum(0.5 * h, h))
        t = torch.where(active, (t + h / slope).clamp(low, high), t)
        # Convergence is quadratic: a step from within the root of the precision reaches it. Far
        # below the pivot h is only known to the rounding of its own terms.
        active = active & (h.abs() > 0.25 * math.sqrt(info.eps) - 4.0 * info.eps * best)
        if is_readable(active) and not bool(active.any()):
            break
    return t.nan_to_num(nan=0.0), steps


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


def log_slope(z: Tensor) -> Tensor:
    """log sigmoid'(z), finite also where z is infinite."""
    z = _finite(z)
    return 2.0 * F.logsigmoid(z) - z


def _finite(z: Tensor) -> Tensor:
    limit = 0.125 * torch.finfo(z.dtype).max
    return z.clamp(-limit, limit)


def _weights(d: Tensor, offset: Tensor, k: Tensor) -> Tensor:
    """w_i = s_i / sum_j s_j, the derivative of the offset in d, for s = sigmoid'(d - offset).

    In logarithms it survives an underflow of all s. But when cold, log s is as large as the offset,
    whose rounding alone would move weight between the top and the rest. These leak equal masses at
    the root, so each is divided by its own leak, in which the offset cancels. With an element's
    share p of the top,

        s_i / leak = (1 - A_i) (1 - p_i) A_i / leak_rest + A_i p_i (1 - A_i) / leak_top.

    For constant p the leak of the rest less that of the top is k - sum p, a difference of zero that
    has a derivative in k.
    """
    z, fixed = _finite(d - offset), k.detach()
    n_above, n_tied = (d > 0).sum(-1, keepdim=True), (d == 0).sum(-1, keepdim=True)
    tied = (fixed - n_above).to(d.dtype) / n_tied.clamp(min=1)
    share = torch.where(d == 0, tied, (d > 0).to(d.dtype))
    log_a = F.logsigmoid(z)
    top, rest = log_a - z + _log(share), log_a + _log(1.0 - share)
    weight_rest = torch.softmax(rest, -1) * torch.sigmoid(-z)
    if k.is_floating_point():
        leak = torch.logsumexp(rest, -1, keepdim=True)
        weight_rest = weight_rest / (1.0 + (fixed - k).to(d.dtype) * _capped_exp(-leak))
    weight = weight_rest + torch.softmax(top, -1) * torch.sigmoid(z)
    return weight / weight.sum(-1, keepdim=True)


def _log(share: Tensor) -> Tensor:
    """log p, finite also for p = 0."""
    return _finite(torch.where(share > 0, torch.log(torch.where(share > 0, share, 1.0)), -math.inf))


def _capped_exp(value: Tensor) -> Tensor:
    """exp, but at most 1 / precision."""
    return torch.exp(value.clamp(max=-math.log(torch.finfo(value.dtype).eps)))


def _reciprocal(d: Tensor, offset: Tensor) -> Tensor:
    """1 / sum_j s_j, the derivative of the offset in -k.

    At low temperature it truly has no bound, as the root jumps from one element to the next where k
    passes an integer. It is capped.
    """
    return _capped_exp(-torch.logsumexp(log_slope(d - offset), -1, keepdim=True))


class _Offset(torch.autograd.Function):
    """d (..., n), k (..., 1) -> offset (..., 1), with the implicit derivative.

    The derivative is written in ordinary operations on d and the *output*, so that it can itself be
    differentiated.
    """

    @staticmethod
    def forward(d: Tensor, k: Tensor) -> Tensor:
        return _offset_op(d, k) if is_traced(d) else _solve(d, k)

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
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(offset_of, info.batch_size, in_dims, inputs)


class _OffsetForwardMode(_Offset):
    @staticmethod
    def jvp(ctx: Any, d_tangent: Tensor | None, k_tangent: Tensor | None) -> Tensor:
        d, k, offset = ctx.saved_tensors
        tangent = torch.zeros_like(offset)
        if d_tangent is not None:
            tangent = tangent + (_weights(d, offset, k) * d_tangent).sum(-1, keepdim=True)
        if k_tangent is not None:
            tangent = tangent - _reciprocal(d, offset) * k_tangent.to(offset.dtype)
        return tangent


def _solve(d: Tensor, k: Tensor) -> Tensor:
    """Offset (..., 1) of the distances ``d`` (..., n), without derivatives."""
    library = native_for(d, k)
    if library is None:
        return solve_offset(d, k)[0]
    offset = d.new_empty(*d.shape[:-1], 1)
    places = k.to(torch.float64).contiguous()
    library.threshold(d.contiguous(), None, places, 1.0, True, offset=offset)
    # Where everything or nothing is selected; finite, since distances may be infinite there.
    return offset.nan_to_num(0.0, posinf=0.0, neginf=-0.125 * torch.finfo(d.dtype).max)


def _checked_solve(d: Tensor, k: Tensor) -> Tensor:
    check_rows(d)
    return _solve(d, operand("k", k, (*d.shape[:-1], 1), *COUNTS))


_offset_op = opaque(
    "softtopk::offset",
    "(Tensor d, Tensor k) -> Tensor",
    _checked_solve,
    _Offset,
    lambda d, k: d.new_empty(*d.shape[:-1], 1),
)
