"""The unsorted operator: one scalar equation per row.

With two anchors the transport plan depends on one unknown, a threshold. Measured in units of the
temperature from a pivot, the k-th largest score, it is the root ``offset`` of

    sum_i sigmoid(d_i - offset) = k,        d_i = (x_i - pivot) / tau.

Solved as it stands, the equation cancels and is flat at low temperature. Call *top* the k largest
elements; then the same equation says that the mass leaked out of the top equals the mass leaked
into the rest, and its logarithm

    h(offset) = log sum_{rest} sigmoid(d_i - offset) - log sum_{top} sigmoid(offset - d_i) = 0

is nearly linear in the hot and in the cold limit. The slope is a difference of weighted means of
sigmoids, and as the pivot (d = 0) separates the two sets, it lies in [-2, -1/2] everywhere: the
root is bracketed by [offset + h/2, offset + 2h] from any point, and Newton's method never runs off.

Elements tied with the pivot, b of them with a above, belong to the top with weight (k - a) / b and
to the rest with the complement. Tied scores then get equal results, and k may be fractional.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import is_concrete, is_traced
from ._batching import batch_first

#: Newton needs at most 6 steps (measured over the whole documented range, see tests).
MAX_STEPS = 12


def offset_of(d: Tensor, k: Tensor) -> Tensor:
    """Differentiable root ``offset`` (..., 1) of sum_i sigmoid(d_i - offset) = k.

    ``d`` (..., n) are distances from `gaps`, ``k`` (..., 1) or (1,) the number of places.
    """
    k = k.expand(*d.shape[:-1], 1)
    # Dynamo traces no autograd.Function that defines a jvp.
    function = _Offset if torch.compiler.is_compiling() else _OffsetForwardMode
    offset: Tensor = function.apply(d, k)
    return offset


def solve_offset(d: Tensor, k: Tensor) -> tuple[Tensor, int]:
    """The root without derivatives, and the number of Newton steps it took."""
    info = torch.finfo(d.dtype)
    above, tied = d > 0, d == 0
    n_above, n_tied = above.sum(-1, keepdim=True), tied.sum(-1, keepdim=True)
    share = (k - n_above).to(d.dtype) / n_tied.clamp(min=1)
    w_top = torch.where(above, 1.0, torch.where(tied, share, 0.0))
    w_rest = 1.0 - w_top

    # Scale each tail by its largest term, so that neither underflows: with e = exp(d - best),
    # sigmoid(d - t) = c e / (1 + c e), c = exp(best - t). One exp per element serves all steps.
    best = torch.where(w_rest > 0, d, -math.inf).amax(-1, keepdim=True).clamp(min=-0.125 * info.max)
    e_rest = torch.exp(torch.where(w_rest > 0, d - best, -math.inf))
    e_top = torch.exp(torch.where(w_top > 0, -d, -math.inf))

    def leak(w: Tensor, e: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of w e / (1 + c e), and the part of c w e / (1 + c e) that has saturated."""
        r = e / (1.0 + c * e)
        total = (w * r).sum(-1, keepdim=True).clamp(min=info.tiny)
        return total, c * (w * r * r).sum(-1, keepdim=True) / total

    # In the cold limit c -> 0 both tails are pure exponentials and the root is explicit.
    cold = [leak(w, e, torch.zeros_like(best))[0] for w, e in ((w_rest, e_rest), (w_top, e_top))]
    t = 0.5 * (best + torch.log(cold[0]) - torch.log(cold[1]))
    low, high = torch.full_like(t, -math.inf), torch.full_like(t, math.inf)
    active = torch.ones_like(t, dtype=torch.bool)
    for steps in range(1, MAX_STEPS + 1):  # noqa: B007
        rest, rest_saturated = leak(w_rest, e_rest, torch.exp((best - t).clamp(max=60.0)))
        top, top_saturated = leak(w_top, e_top, torch.exp(t.clamp(max=60.0)))
        h = (best - t) - t + torch.log(rest) - torch.log(top)
        slope = (2.0 - rest_saturated - top_saturated).clamp(0.5, 2.0)
        low = torch.maximum(low, t + torch.minimum(0.5 * h, 2.0 * h))
        high = torch.minimum(high, t + torch.maximum(0.5 * h, 2.0 * h))
        newton = t + h / slope
        inside = (newton >= low) & (newton <= high)
        newton = torch.where(inside, newton, 0.5 * low + 0.5 * high)
        t = torch.where(active, newton, t)
        # Convergence is quadratic: a step from within the root of the precision reaches it. Far
        # below the pivot h is only known to the rounding of its own terms.
        active = active & (h.abs() > 0.25 * math.sqrt(info.eps) - 4.0 * info.eps * best)
        if is_concrete(active) and not bool(active.any()):
            break
    return t.nan_to_num(nan=0.0), steps


def log_slope(z: Tensor) -> Tensor:
    """log of sigmoid'(z), finite also where z is infinite."""
    return (F.logsigmoid(z) + F.logsigmoid(-z)).clamp(min=-0.125 * torch.finfo(z.dtype).max)


def _slopes(d: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """Weights w_i = s_i / sum_j s_j with s = sigmoid'(d - offset), and 1 / sum_j s_j.

    The weights are the derivative of the offset in d; in logarithms they survive an underflow of
    all s. The reciprocal, its derivative in -k, truly has no bound at low temperature: the root
    jumps from one element to the next as k passes an integer. It is capped at 1 / precision.
    """
    log_s = log_slope(d - offset)
    cap = -math.log(torch.finfo(d.dtype).eps)
    reciprocal = torch.exp((-torch.logsumexp(log_s, -1, keepdim=True)).clamp(max=cap))
    return torch.softmax(log_s, -1), reciprocal


@torch.library.custom_op("softtopk::offset", mutates_args=())
def _offset_op(d: Tensor, k: Tensor) -> Tensor:
    """An opaque call for the compiler, which would unroll the loop and could not stop it early."""
    return solve_offset(d, k)[0]


@_offset_op.register_fake
def _(d: Tensor, k: Tensor) -> Tensor:
    return d.new_empty(*d.shape[:-1], 1)


class _Offset(torch.autograd.Function):
    """d (..., n), k (..., 1) -> offset (..., 1), with the implicit derivative.

    The derivative is written in ordinary operations on d and the *output*, so that it can itself be
    differentiated, to any order.
    """

    @staticmethod
    def forward(d: Tensor, k: Tensor) -> Tensor:
        if is_traced(d):
            return _offset_op(d, k)
        return solve_offset(d, k)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.k_dtype = inputs[1].dtype
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        weights, reciprocal = _slopes(*ctx.saved_tensors)
        grad_k = (-grad * reciprocal).to(ctx.k_dtype) if ctx.needs_input_grad[1] else None
        return grad * weights, grad_k

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], d: Tensor, k: Tensor
    ) -> tuple[Tensor, int]:
        return offset_of(*batch_first(info.batch_size, in_dims, (d, k))), 0


class _OffsetForwardMode(_Offset):
    @staticmethod
    def jvp(ctx: Any, d_tangent: Tensor | None, k_tangent: Tensor | None) -> Tensor:
        d, offset = ctx.saved_tensors
        weights, reciprocal = _slopes(d, offset)
        tangent = torch.zeros_like(offset)
        if d_tangent is not None:
            tangent = tangent + (weights * d_tangent).sum(-1, keepdim=True)
        if k_tangent is not None:
            tangent = tangent - reciprocal * k_tangent.to(offset.dtype)
        return tangent
