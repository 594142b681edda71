"""The functions of the native library, on tensors.

Tensors are contiguous, on the CPU, float32 or float64, and not empty: the caller sees to that. The
calls release the GIL and use as many threads as torch does.

With ``offsets``, int64 (rows + 1), the rows of all elements are ragged: each is from one offset to
the next, and there is one number of each kind per row.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import torch
from torch import Tensor

#: The structs of csrc/kernels.hpp, as the module `struct` writes them: the library gets the bytes.
#: ctypes would take several times as long for as many arguments.
_SIZE = "qqqP"  # rows, n, threads, offsets
_SCORES = f"{_SIZE} PPq"  # x, mask, largest
_PER_ROW = "dP"  # one number for all rows, or an array
_LAYOUTS = {
    "threshold": f"{_SCORES} {_PER_ROW} {_PER_ROW} PPP",  # k, tau, a, pivot, offset
    "threshold_gradient": f"{_SIZE} {_PER_ROW} PPP",  # tau, a, grad, grad_x
    "softmax": f"{_SCORES} {_PER_ROW} {_PER_ROW} PP",  # k, tau, a, w
    "hard_softmax": f"{_SCORES} q PP",  # k, w, index
    "softmax_gradient": f"{_SIZE} {_PER_ROW} PPPP",  # tau, w, a, grad, grad_x
    "softmax_in_place": f"{_SIZE} {_PER_ROW} {_PER_ROW} PP",  # k, tau, x, root
    "softmax_backward": f"{_SIZE} {_PER_ROW} PPP",  # tau, root, x, grad
    "ranking": f"{_SCORES} q {_PER_ROW} PPPP",  # k, tau, plan, pivot, offset, converged
    "ranking_gradient": f"{_SCORES} q {_PER_ROW} PPPP",  # k, tau, pivot, offset, grad, grad_x
}
_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}
_IN_PLACE = ("softmax_in_place", "softmax_backward")  # also for bfloat16
IN_PLACE_DTYPES = (*_SUFFIXES, torch.bfloat16)
#: The values of Status in csrc/kernels.hpp other than "done".
_OUT_OF_MEMORY, _SHARED = 1, 2


class Native:
    """The native library, for tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {
            (name, dtype): _function(library, name, suffix)
            for name in _LAYOUTS
            for dtype, suffix in _SUFFIXES.items()
        } | {(name, torch.bfloat16): _function(library, name, "bf16") for name in _IN_PLACE}
        self._pack = {name: struct.Struct(layout).pack for name, layout in _LAYOUTS.items()}

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
        offsets: Tensor | None = None,
    ) -> bool:
        """Solve for the thresholds of the rows ``x`` (..., n), and write ``indicator`` (..., n),
        ``pivot`` and ``offset`` (..., 1) if they are given. A pivot is the element of rank ceil(k),
        or at infinity where nothing is left to solve. An offset is the distance of a threshold from
        it, in units of tau.

        ``k`` and ``tau`` are numbers, or float64 with one element per row. Returns whether infinite
        scores share places in some row: they have no derivative, though 0 < A < 1.
        """
        outputs = _pointer(indicator), _pointer(pivot), _pointer(offset)
        scores = _scores(x, mask, largest, offsets)
        status = self._call("threshold", x, *scores, *_per_row(k), *_per_row(tau), *outputs)
        return status == _SHARED

    def threshold_gradient(
        self, a: Tensor, grad: Tensor, tau: float | Tensor, offsets: Tensor | None = None
    ) -> Tensor:
        """The derivative of the indicator ``a`` (..., n) in the scores, times ``grad`` (..., n)."""
        grad_x = torch.empty_like(a)
        arrays = _pointer(a), _pointer(grad), _pointer(grad_x)
        self._call("threshold_gradient", a, *_size(a, offsets), *_per_row(tau), *arrays)
        return grad_x

    def softmax(
        self,
        x: Tensor,
        mask: Tensor | None,
        k: float | Tensor,
        tau: float | Tensor,
        *,
        indicator: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """The softmax among the soft top k of the rows ``x`` (..., n).

        Writes ``indicator`` (..., n) too if it is given.
        """
        w = torch.empty_like(x)
        outputs = _pointer(indicator), _pointer(w)
        scores = _scores(x, mask, True, offsets)
        self._call("softmax", x, *scores, *_per_row(k), *_per_row(tau), *outputs)
        return w

    def hard_softmax(self, x: Tensor, mask: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
        """The softmax over the k largest of the rows ``x`` (..., n), and their places: (..., k)."""
        w = x.new_empty(*x.shape[:-1], k)
        index = torch.empty_like(w, dtype=torch.int64)
        self._call("hard_softmax", x, *_scores(x, mask), k, _pointer(w), _pointer(index))
        return w, index

    def softmax_gradient(
        self,
        w: Tensor,
        a: Tensor,
        grad: Tensor,
        tau: float | Tensor,
        offsets: Tensor | None = None,
    ) -> Tensor:
        """The derivative of the softmax ``w`` (..., n) with the indicator ``a``, times ``grad``."""
        grad_x = torch.empty_like(w)
        arrays = _pointer(w), _pointer(a), _pointer(grad), _pointer(grad_x)
        self._call("softmax_gradient", w, *_size(w, offsets), *_per_row(tau), *arrays)
        return grad_x

    def softmax_in_place(self, x: Tensor, k: float | Tensor, tau: float | Tensor) -> Tensor:
        """Make the softmax among the soft top k of the rows ``x`` (..., n), which may be bfloat16.

        Returns their roots (..., 2), by which `softmax_backward` need not solve again.
        """
        dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        root = x.new_empty(*x.shape[:-1], 2, dtype=dtype)
        arrays = _pointer(x), _pointer(root)
        self._call("softmax_in_place", x, *_size(x), *_per_row(k), *_per_row(tau), *arrays)
        return root

    def softmax_backward(self, x: Tensor, root: Tensor, grad: Tensor, tau: float | Tensor) -> None:
        """Make the weights of the scores ``x`` (..., n), and of ``grad``, the gradient in these,
        the one in the scores: in place, in what `softmax_in_place` takes."""
        arrays = _pointer(root), _pointer(x), _pointer(grad)
        self._call("softmax_backward", x, *_size(x), *_per_row(tau), *arrays)

    def ranking(
        self, x: Tensor, mask: Tensor | None, k: int, tau: float | Tensor, largest: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve for the thresholds between the first k ranks of the rows ``x`` (..., n).

        Returns the first k columns of the plan (..., n, k), the pivots (..., k + 1) and offsets
        (..., k) that the derivative needs, and which rows converged (...).
        """
        batch = x.shape[:-1]
        plan, pivots = x.new_empty(*x.shape, k), x.new_empty(*batch, k + 1)
        offsets = x.new_empty(*batch, k, dtype=torch.float64)
        converged = x.new_empty(batch, dtype=torch.bool)
        outputs = _pointer(plan), _pointer(pivots), _pointer(offsets), _pointer(converged)
        self._call("ranking", x, *_scores(x, mask, largest), k, *_per_row(tau), *outputs)
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
        grad_x = torch.empty_like(x)
        arrays = _pointer(pivots), _pointer(offsets), _pointer(grad), _pointer(grad_x)
        scores, k = _scores(x, mask, largest), grad.shape[-1]
        self._call("ranking_gradient", x, *scores, k, *_per_row(tau), *arrays)
        return grad_x

    def _call(self, name: str, x: Tensor, *arguments: float) -> int:
        status = self._functions[name, x.dtype](self._pack[name](*arguments))
        if status == _OUT_OF_MEMORY:
            raise MemoryError("there is no memory for the scratch space of a row")
        return status


def _function(library: ctypes.CDLL, name: str, suffix: str) -> Callable[[bytes], int]:
    function = getattr(library, f"softtopk_{name}_{suffix}")
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int32
    return function


def _size(x: Tensor, offsets: Tensor | None = None) -> tuple[int, int, int, int]:
    threads = torch.get_num_threads()
    if offsets is not None:
        return offsets.numel() - 1, x.numel(), threads, _pointer(offsets)
    n = x.shape[-1]
    return x.numel() // n, n, threads, 0


def _scores(
    x: Tensor, mask: Tensor | None, largest: bool = True, offsets: Tensor | None = None
) -> tuple[int, ...]:
    return *_size(x, offsets), _pointer(x), _pointer(mask), largest


def _per_row(value: float | Tensor) -> tuple[float, int]:
    return (0.0, _pointer(value)) if isinstance(value, Tensor) else (value, 0)


def _pointer(tensor: Tensor | None) -> int:
    """Where the library finds the tensor. What is not in the CPU's memory would end the process."""
    if tensor is None:
        return 0
    if not tensor.is_cpu:
        raise RuntimeError(
            f"a tensor on the device {tensor.device} reached the native library, which works on "
            "the CPU; please report this call"
        )
    return tensor.data_ptr()
