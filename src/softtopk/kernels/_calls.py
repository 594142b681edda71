"""The functions of the native library, on tensors.

Tensors are contiguous, on the CPU, float32 or float64, and not empty: the caller sees to that. The
calls release the GIL and use as many threads as torch does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

_INT, _SIZE, _REAL, _ARRAY = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
#: The values of Status in csrc/kernels.hpp other than "done".
_OUT_OF_MEMORY, _SHARED = 1, 2


class Native:
    """The native library, for tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        def declare(name: str, *arguments: type) -> dict[torch.dtype, Callable[..., int]]:
            functions = {}
            for dtype, suffix in ((torch.float32, "f32"), (torch.float64, "f64")):
                function = getattr(library, f"softtopk_{name}_{suffix}")
                function.argtypes = arguments
                function.restype = ctypes.c_int32
                functions[dtype] = function
            return functions

        scores = (_ARRAY, _ARRAY, _SIZE, _SIZE)  # x, mask, rows, n
        per_row = (_REAL, _ARRAY)  # one for all rows, or an array
        self._threshold = declare(
            *("threshold", *scores, *per_row, *per_row, _INT, _ARRAY, _ARRAY, _ARRAY, _INT)
        )
        self._threshold_gradient = declare(
            *("threshold_gradient", _ARRAY, _ARRAY, _SIZE, _SIZE, *per_row, _ARRAY, _INT)
        )
        self._softmax = declare(*("softmax", *scores, *per_row, *per_row, _ARRAY, _ARRAY, _INT))
        self._hard_softmax = declare(*("hard_softmax", *scores, _SIZE, _ARRAY, _ARRAY, _INT))
        self._softmax_gradient = declare(
            *("softmax_gradient", _ARRAY, _ARRAY, _ARRAY, _SIZE, _SIZE, *per_row, _ARRAY, _INT)
        )
        self._ranking = declare(
            *("ranking", *scores, _SIZE, *per_row, _INT, _ARRAY, _ARRAY, _ARRAY, _ARRAY, _INT)
        )
        self._ranking_gradient = declare(
            *("ranking_gradient", _ARRAY, _ARRAY, _ARRAY, _ARRAY, _ARRAY, _SIZE, _SIZE, _SIZE),
            *(*per_row, _INT, _ARRAY, _INT),
        )

    def threshold(
        self,
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
        """Solve for the thresholds pivot + tau * offset of the rows ``x`` (..., n), and write
        whichever of ``indicator`` (..., n), ``pivot`` and ``offset`` (..., 1) is given.

        ``k`` and ``tau`` are numbers, or float64 with one element per row. Returns whether infinite
        scores share places in some row: they have no derivative, though 0 < A < 1.
        """
        n = x.shape[-1]
        status = self._threshold[x.dtype](
            _pointer(x),
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

    def threshold_gradient(self, a: Tensor, grad: Tensor, tau: float | Tensor) -> Tensor:
        """The derivative of the indicator ``a`` (..., n) in the scores, times ``grad`` (..., n)."""
        n = a.shape[-1]
        grad_x = torch.empty_like(a)
        status = self._threshold_gradient[a.dtype](
            _pointer(a),
            _pointer(grad),
            a.numel() // n,
            n,
            *_per_row(tau),
            _pointer(grad_x),
            torch.get_num_threads(),
        )
        _check(status)
        return grad_x

    def softmax(
        self,
        x: Tensor,
        mask: Tensor | None,
        k: float | Tensor,
        tau: float | Tensor,
        *,
        indicator: Tensor | None = None,
    ) -> Tensor:
        """The softmax among the soft top k of the rows ``x`` (..., n).

        Writes ``indicator`` (..., n) too if it is given.
        """
        n = x.shape[-1]
        w = torch.empty_like(x)
        status = self._softmax[x.dtype](
            _pointer(x),
            _pointer(mask),
            x.numel() // n,
            n,
            *_per_row(k),
            *_per_row(tau),
            _pointer(indicator),
            _pointer(w),
            torch.get_num_threads(),
        )
        _check(status)
        return w

    def hard_softmax(self, x: Tensor, mask: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        """The softmax over the k largest of the rows ``x`` (..., n), and their places: (..., k)."""
        n = x.shape[-1]
        w = x.new_empty(*x.shape[:-1], k)
        index = torch.empty_like(w, dtype=torch.int64)
        status = self._hard_softmax[x.dtype](
            _pointer(x),
            _pointer(mask),
            x.numel() // n,
            n,
            k,
            _pointer(w),
            _pointer(index),
            torch.get_num_threads(),
        )
        _check(status)
        return w, index

    def softmax_gradient(self, w: Tensor, a: Tensor, grad: Tensor, tau: float | Tensor) -> Tensor:
        """The derivative of the softmax ``w`` (..., n) with the indicator ``a``, times ``grad``."""
        n = w.shape[-1]
        grad_x = torch.empty_like(w)
        status = self._softmax_gradient[w.dtype](
            _pointer(w),
            _pointer(a),
            _pointer(grad),
            w.numel() // n,
            n,
            *_per_row(tau),
            _pointer(grad_x),
            torch.get_num_threads(),
        )
        _check(status)
        return grad_x

    def ranking(
        self, x: Tensor, mask: Tensor | None, k: int, tau: float | Tensor, largest: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve for the thresholds between the first k ranks of the rows ``x`` (..., n).

        Returns the first k columns of the plan (..., n, k), the pivots (..., k + 1) and offsets
        (..., k) that the derivative needs, and which rows converged (...).
        """
        batch, n = x.shape[:-1], x.shape[-1]
        plan, pivots = x.new_empty(*x.shape, k), x.new_empty(*batch, k + 1)
        offsets = x.new_empty(*batch, k, dtype=torch.float64)
        converged = x.new_empty(batch, dtype=torch.bool)
        status = self._ranking[x.dtype](
            _pointer(x),
            _pointer(mask),
            x.numel() // n,
            n,
            k,
            *_per_row(tau),
            largest,
            _pointer(plan),
            _pointer(pivots),
            _pointer(offsets),
            _pointer(converged),
            torch.get_num_threads(),
        )
        _check(status)
        return plan, pivots, offsets, converged

    def ranking_gradient(
        self,
        x: Tensor,
        mask: Tensor | None,
        pivots: Tensor,
        offsets: Tensor,
        grad: Tensor,
        tau: float | Tensor,
        largest: bool,
    ) -> Tensor:
        """The derivative of the plan in the scores, times ``grad`` (..., n, k)."""
        n, k = grad.shape[-2:]
        grad_x = torch.empty_like(x)
        status = self._ranking_gradient[x.dtype](
            _pointer(x),
            _pointer(mask),
            _pointer(pivots),
            _pointer(offsets),
            _pointer(grad),
            x.numel() // n,
            n,
            k,
            *_per_row(tau),
            largest,
            _pointer(grad_x),
            torch.get_num_threads(),
        )
        _check(status)
        return grad_x


def _pointer(tensor: Tensor | None) -> int | None:
    """Where the library finds the tensor. What is not in the CPU's memory would end the process."""
    if tensor is None:
        return None
    if not tensor.is_cpu:
        raise RuntimeError(
            f"a tensor on the device {tensor.device} reached the native library, which works on "
            "the CPU; please report this call"
        )
    return tensor.data_ptr()


def _per_row(value: float | Tensor) -> tuple[float, int | None]:
    return (0.0, _pointer(value)) if isinstance(value, Tensor) else (value, None)


def _check(status: int) -> None:
    if status == _OUT_OF_MEMORY:
        raise MemoryError("there is no memory for the scratch space of a row")
