"""The Triton kernels of the sorted operator, on tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import _triton_ranks as kernels

MAX_RANKS = 64


class Configuration(NamedTuple):
    k: int
    block: int
    warps: int


def columns_of(k: int) -> int:
    return max(16, triton.next_power_of_2(k))


def _common(x, mask, tau, largest):
    values, value = (tau, 1.0) if isinstance(tau, Tensor) else (None, tau)
    dtype = tl.float64 if x.dtype == torch.float64 else tl.float32
    return values, value, {"LARGEST": largest, "DTYPE": dtype}


def ranking(x, mask, k, tau, largest, block=32):
    rows, n = x.shape
    values, value, options = _common(x, mask, tau, largest)
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    plan, pivots = x.new_empty(rows, n, k), x.new_empty(rows, k + 1)
    offsets = x.new_empty(rows, k, dtype=torch.float64)
    converged = x.new_empty(rows, dtype=torch.bool)
    places = x.new_empty(rows, k, dtype=torch.int32)
    outsiders = x.new_empty(rows, n, dtype=compute)
    census = x.new_empty(rows, 5, dtype=torch.int32)
    P = max(2, triton.next_power_of_2(k + 1))
    kernels.sort_out[(rows,)](
        x, mask, values, pivots, places, outsiders, census, n, k, value,
        PIVOTS=P, BLOCK=max(P, 128), **options,
    )
    kernels.solve[(rows,)](
        x, mask, values, pivots, places, outsiders, census, plan, offsets, converged, n, k, value,
        K=columns_of(k), BLOCK=block, PRECISION="ieee", **options,
    )
    return plan, pivots, offsets, converged


def ranking_gradient(x, mask, pivots, offsets, grad, tau, largest, block=32):
    rows, n = x.shape
    k = grad.shape[-1]
    values, value, options = _common(x, mask, tau, largest)
    grad_x = torch.empty_like(x)
    kernels.gradient[(rows,)](
        x, mask, values, pivots, offsets, grad, grad_x, n, k, value,
        K=columns_of(k), BLOCK=block, **options,
    )
    return grad_x
