"""The unsorted operators on an accelerator: a launch of a Triton kernel each way.

The derivative is found from the scores and two numbers per row, the pivot and the offset of the
threshold: nothing of the size of the scores is kept besides these, in half precision neither. Where
the derivative is to be differentiated, plain operations take over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._checks import Count, Strength
from .._dispatch import triton_for
from ._rows import Rows, compute_dtype

if TYPE_CHECKING:
    from ..kernels._triton import Quantity

#: The plain operations for a quantity: of x (..., n) in float32 or float64, mask, k, tau, largest.
Plain = Callable[[Tensor, Tensor | None, Count, Strength, bool], Tensor]


def launch(
    quantity: Quantity, rows: Rows, k: Count, plain: Plain, offsets: Tensor | None = None
) -> Tensor:
    """The quantity of the rows, in the dtype of the scores as they were given.

    With ``offsets`` the rows are ragged: where they begin in the memory of the scores.
    """
    arguments = rows.given, rows.mask, k, rows.tau, rows.largest
    return _Launch.apply(*arguments, quantity, plain, offsets)


class _Launch(torch.autograd.Function):
    """x (..., n), mask, k, tau, largest -> the quantity (..., n), or thresholds (..., 1). Of ragged
    rows: as k and tau are, (..., rows, 1)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mask: Tensor | None,
        k: Count,
        tau: Strength,
        largest: bool,
        quantity: Quantity,
        plain: Plain,
        offsets: Tensor | None,
    ) -> Tensor:
        kernels = triton_for(x)
        assert kernels is not None
        result, state = kernels.solve(quantity, x, mask, k, tau, largest, offsets)
        tensors = (value if isinstance(value, Tensor) else None for value in (k, tau))
        ctx.save_for_backward(x, mask, state, offsets, *tensors)
        ctx.numbers = tuple(None if isinstance(value, Tensor) else value for value in (k, tau))
        ctx.largest, ctx.quantity, ctx.plain = largest, quantity, plain
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mask, state, offsets, *tensors = ctx.saved_tensors
        k, tau = (a if b is None else b for a, b in zip(ctx.numbers, tensors, strict=True))
        in_tau = ctx.needs_input_grad[3]
        arguments = (x, mask, k, tau, ctx.largest)
        kernels = None if torch.is_grad_enabled() else triton_for(x, grad)
        if kernels is None:
            grad_x, grad_tau = by_plain(ctx.plain, arguments, grad, in_tau)
        else:
            grad_x, grad_tau = kernels.pull_back(
                ctx.quantity, *arguments, state, grad, in_tau, offsets
            )
        if grad_tau is not None:
            grad_tau = grad_tau.sum_to_size(tau.shape).to(tau.dtype)
        return grad_x, None, None, grad_tau, None, None, None, None


def by_plain(
    plain: Plain, arguments: tuple[Any, ...], grad: Tensor, in_tau: bool
) -> tuple[Tensor, Tensor | None]:
    """The derivatives in the scores and in tau, by plain operations."""
    x, mask, k, tau, largest = arguments
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = [x] if again else [x.detach().requires_grad_()]
        if in_tau:
            leaves.append(tau if again else tau.detach().requires_grad_())
            tau = leaves[1]
        result = plain(leaves[0].to(compute_dtype(x.dtype)), mask, k, tau, largest)
        found = torch.autograd.grad(result, leaves, grad.to(result.dtype), create_graph=again)
    return found[0], found[1] if in_tau else None
