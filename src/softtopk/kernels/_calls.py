"""The functions of the native library, on tensors.

Tensors are contiguous, on the CPU, float32 or float64, and not empty: the caller sees to that. The
calls release the GIL and use as many threads as torch does.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

SUFFIX = {torch.float32: "f32", torch.float64: "f64"}

_INT, _SIZE, _REAL, _ARRAY = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_PROTOTYPES = {
    # x, mask, rows, n, k, ks, tau, taus, largest, a, pivot, offset, threads
    "threshold": [
        *(_ARRAY, _ARRAY, _SIZE, _SIZE, _REAL, _ARRAY, _REAL, _ARRAY, _INT),
        *(_ARRAY, _ARRAY, _ARRAY, _INT),
    ],
    # a, grad, rows, n, tau, taus, grad_x, threads
    "threshold_gradient": [_ARRAY, _ARRAY, _SIZE, _SIZE, _REAL, _ARRAY, _ARRAY, _INT],
}
_THRESHOLD = {dtype: f"softtopk_threshold_{suffix}" for dtype, suffix in SUFFIX.items()}
_THRESHOLD_GRADIENT = {
    dtype: f"softtopk_threshold_gradient_{suffix}" for dtype, suffix in SUFFIX.items()
}
#: The values of Status in csrc/kernels.hpp other than "done".
_OUT_OF_MEMORY, _SHARED = 1, 2


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the argument types of all functions."""
    for name, arguments in _PROTOTYPES.items():
        for suffix in SUFFIX.values():
            function = getattr(library, f"softtopk_{name}_{suffix}")
            function.argtypes = arguments
            function.restype = ctypes.c_int32


def threshold(
    library: ctypes.CDLL,
    x: Tensor,
    mask: Tensor | None,
    k: float | Tensor,
    tau: float | Tensor,
    largest: bool,
    *,
    indicator: Tensor | None = None,
    pivot: Tensor | None = None,
    offset: Tensor | None = None,
) -> bool:
    """Solve for the thresholds pivot + tau * offset of the rows ``x`` (..., n), and write whichever
    of ``indicator`` (..., n), ``pivot`` and ``offset`` (..., 1) is given.

    ``k`` and ``tau`` are numbers, or float64 with one element per row. Returns whether infinite
    scores share places in some row: they have no derivative, though 0 < A < 1.
    """
    n = x.shape[-1]
    status = getattr(library, _THRESHOLD[x.dtype])(
        x.data_ptr(),
        _pointer(mask),
        x.numel() // n,
        n,
        *_per_row(k),
        *_per_row(tau),
        largest,
        _pointer(indicator),
        _pointer(pivot),
        _pointer(offset),
        torch.get_num_threads(),
    )
    _check(status)
    return status == _SHARED


def threshold_gradient(
    library: ctypes.CDLL, a: Tensor, grad: Tensor, tau: float | Tensor, grad_x: Tensor
) -> None:
    """The derivative of the indicator ``a`` (..., n) in the scores, applied to ``grad`` (..., n)."""
    n = a.shape[-1]
    status = getattr(library, _THRESHOLD_GRADIENT[a.dtype])(
        a.data_ptr(),
        grad.data_ptr(),
        a.numel() // n,
        n,
        *_per_row(tau),
        grad_x.data_ptr(),
        torch.get_num_threads(),
    )
    _check(status)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _per_row(value: float | Tensor) -> tuple[float, int | None]:
    return (0.0, value.data_ptr()) if isinstance(value, Tensor) else (value, None)


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("there is no memory for the scratch space of a row")
