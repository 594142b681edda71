"""What the operators share that take scores to their result in one step, on the CPU.

Where only the scores need a gradient, such an operator and its derivative are one call each of the
native library (`softtopk.kernels`). Under compilation it is one opaque call, with the library or
without.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import kernels
from ._arguments import Count, Strength, is_readable, is_traced
from ._rows import Rows


def fuses(rows: Rows, k: Count) -> bool:
    """Whether the operator can be one step: on the CPU, with a derivative in the scores only."""
    x = rows.scores
    tensors = [value for value in (x, rows.mask, k, rows.tau) if isinstance(value, Tensor)]
    if any(value.requires_grad for value in tensors[1:]):
        return False
    if is_traced(x):
        return all(value.device.type == "cpu" for value in tensors)
    return native_for(*tensors) is not None


def native_for(*tensors: Tensor) -> kernels.Native | None:
    """The native library if it can work on these tensors now, else None."""
    if not is_readable(*tensors) or forward_ad._current_level >= 0 or tensors[0].numel() == 0:
        return None
    return kernels.native()


def dense(x: Tensor) -> Tensor:
    """As the kernels read it: contiguous, without a pending negation, in memory."""
    if x.is_neg():
        x = x.resolve_neg()
    if x._is_zerotensor():
        x = x.clone()
    return x if x.is_contiguous() else x.contiguous()


def per_row(value: Count | Strength, x: Tensor) -> float | Tensor:
    """As the kernels read it: a number, or float64 with one element for every row of ``x``."""
    if not isinstance(value, Tensor):
        return value
    return value.to(torch.float64).expand(*x.shape[:-1], 1).contiguous()


def column(value: Strength, x: Tensor) -> Tensor:
    """As a custom operator takes it: a tensor (..., 1)."""
    if not isinstance(value, Tensor):
        value = x.new_full((1,), value)
    return value.expand(*x.shape[:-1], 1)
