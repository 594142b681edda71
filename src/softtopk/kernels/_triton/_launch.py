"""The kernels on tensors of an accelerator: an operator, and its derivative, is one launch each.

Nothing here waits for the device: no value of a tensor is read on the host.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Literal

import torch
import triton.language as tl
from torch import Tensor

from . import _long, _ranks, _short
from ._configuration import Device, Long, configuration, options, rank_configuration

#: What is computed of a row: A, log A, the threshold, or the softmax among the soft top k.
Quantity = Literal["indicator", "log_indicator", "threshold", "softmax"]

#: The leading bits in which numbers of a dtype, as float32 or float64, differ.
_BITS = {torch.float16: 19, torch.bfloat16: 16, torch.float32: 32, torch.float64: 64}


class Triton:
    """The kernels, for tensors that are on one device and not empty."""

    def solve(
        self,
        quantity: Quantity,
        x: Tensor,
        mask: Tensor | None,
        k: float | Tensor,
        tau: float | Tensor,
        largest: bool,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The quantity of the rows ``x`` (..., n), in their dtype: (..., n), thresholds (..., 1).
        And what `pull_back` needs of every row: first the pivots, then the offsets of the
        thresholds from these in units of tau.

        ``k`` and ``tau`` are numbers, or tensors that broadcast to (..., 1). ``mask`` (..., n).
        """
        call = _Call(quantity, x, mask, k, tau, largest)
        result = torch.empty_like(call.x)
        if quantity == "threshold":
            result = x.new_empty(*x.shape[:-1], 1)
        state = x.new_empty(call.numbers_of_state, call.rows, dtype=call.dtype)
        outputs = {"out": result, "state": state, "BITS": _BITS[x.dtype]}
        if isinstance(call.cut, Long):
            digits = -(-_BITS[x.dtype] // _long.DIGIT.value)
            bins = (call.rows, digits, _long.BINS.value)
            histograms = None
            if call.cut.programs > 1:
                histograms = torch.zeros(bins, dtype=torch.int32, device=x.device)
            call.run(_long.forward, **outputs, histograms=histograms)
        else:
            call.run(_short.forward, **outputs)
        return result, state

    def pull_back(
        self,
        quantity: Quantity,
        x: Tensor,
        mask: Tensor | None,
        k: float | Tensor,
        tau: float | Tensor,
        largest: bool,
        state: Tensor,
        grad: Tensor,
        in_tau: bool,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The derivatives in the scores (..., n) and, if asked for, in the tau of every row
        (..., 1), times ``grad`` of the shape of the quantity."""
        call = _Call(quantity, x, mask, k, tau, largest)
        grad_x = torch.empty_like(call.x)
        grad_tau = x.new_empty(*x.shape[:-1], 1, dtype=call.dtype) if in_tau else None
        kernel = _long.backward if isinstance(call.cut, Long) else _short.backward
        call.run(kernel, state=state, grad=grad.contiguous(), grad_x=grad_x, grad_tau=grad_tau)
        return grad_x, grad_tau

    #: The sorted operator keeps matrices of its ranks in registers.
    most_ranks = 32

    def ranking(
        self, x: Tensor, mask: Tensor | None, k: int, tau: float | Tensor, largest: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The plan of the first k ranks of the rows ``x`` (..., n), and what the derivative needs:
        see `Native.ranking`. Two launches: one finds the elements that matter, one solves."""
        batch = x.shape[:-1]
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        plan, pivots = x.new_empty(*x.shape, k), x.new_empty(*batch, k + 1, dtype=wide)
        offsets = x.new_empty(*batch, k, dtype=torch.float64)
        converged = x.new_empty(batch, dtype=torch.bool)
        found = {
            "pivots": pivots,
            "sorted_elements": x.new_empty(*batch, k, dtype=torch.int32),
            "outsiders": x.new_empty(x.shape, dtype=wide),
            "census": x.new_empty(*batch, _ranks.CENSUS.value, dtype=torch.int32),
        }
        ranks = rank_configuration(k, device_of(x.device))
        self._run_ranks(
            _ranks.sort_out,
            (x, mask, k, tau, largest),
            4,
            **found,
            PIVOTS=ranks.pivots,
            BLOCK=max(ranks.pivots, 128),
        )
        self._run_ranks(
            _ranks.solve,
            (x, mask, k, tau, largest),
            ranks.warps,
            **found,
            plan=plan,
            offsets=offsets,
            converged=converged,
            K=ranks.columns,
            BLOCK=ranks.block,
            PRECISION="ieee",
        )
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
        """The derivative of the plan in the scores, times ``grad`` (..., n, k): one launch."""
        k = grad.shape[-1]
        grad_x, ranks = torch.empty_like(x), rank_configuration(k, device_of(x.device))
        self._run_ranks(
            _ranks.gradient,
            (x, mask, k, tau, largest),
            ranks.warps,
            pivots=pivots,
            offsets=offsets,
            grad=grad,
            grad_x=grad_x,
            K=ranks.columns,
            BLOCK=ranks.block,
        )
        return grad_x

    def _run_ranks(
        self,
        kernel: Any,
        problem: tuple[Tensor, Tensor | None, int, float | Tensor, bool],
        warps: int,
        **others: Any,
    ) -> None:
        x, mask, k, tau, largest = problem
        with torch.cuda.device_of(x):
            kernel[(x.numel() // x.shape[-1],)](
                x=x,
                mask=mask,
                tau_values=_per_row(tau, x),
                n=x.shape[-1],
                k=k,
                tau_value=1.0 if isinstance(tau, Tensor) else tau,
                LARGEST=largest,
                DTYPE=tl.float64 if x.dtype is torch.float64 else tl.float32,
                **others,
                **options(warps, device_of(x.device)),
                enable_fp_fusion=True,
            )


class _Call:
    """The arguments that the kernels of the unsorted operators share."""

    def __init__(
        self,
        quantity: Quantity,
        x: Tensor,
        mask: Tensor | None,
        k: float | Tensor,
        tau: float | Tensor,
        largest: bool,
    ) -> None:
        n = x.shape[-1]
        self.x, self.rows = x.contiguous(), x.numel() // n
        self.dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
        self.device = device_of(x.device)
        self.cut = configuration(n, self.rows, self.dtype, self.device)
        mask, inner, count = (None, 1, 1) if mask is None else repeated_rows(mask)
        self._arguments: dict[str, Any] = {
            "x": self.x,
            "mask": mask,
            "rows": self.rows,
            "n": n,
            "mask_inner": inner,
            "mask_count": count,
            "k_values": _per_row(k, x),
            "tau_values": _per_row(tau, x),
            "k_value": 1.0 if isinstance(k, Tensor) else float(k),
            "tau_value": 1.0 if isinstance(tau, Tensor) else tau,
            "MODE": quantity,
            "LARGEST": largest,
            "DOUBLE": self.dtype is torch.float64,
        }

    @property
    def numbers_of_state(self) -> int:
        return _long.STATE if isinstance(self.cut, Long) else 2

    def run(self, kernel: Any, **others: Any) -> None:
        cut, cooperative = self.cut, False
        if isinstance(cut, Long):
            programs, cooperative = self.rows * cut.programs, cut.programs > 1
            others |= {"P": cut.programs, "PP": cut.padded, "BLOCK": cut.block}
            others |= {"sums": None, "meetings": None}
            if cooperative:
                sums = (self.rows, 2, _long.SLOTS.value, cut.programs)
                others["sums"] = self.x.new_empty(sums, dtype=torch.float64)
                others["meetings"] = torch.zeros_like(others["sums"][:, 0, 0, 0], dtype=torch.int32)
        else:
            programs = -(-self.rows // cut.rows)
            others |= {"R": cut.rows, "N": cut.columns}
        taken = kernel.arg_names
        arguments = {
            name: value for name, value in (self._arguments | others).items() if name in taken
        }
        with torch.cuda.device_of(self.x):
            kernel[(programs,)](
                **arguments,
                **options(cut.warps, self.device),
                launch_cooperative_grid=cooperative,
                enable_fp_fusion=True,
            )


@cache
def device_of(device: torch.device) -> Device:
    """What decides about launches on a device; the interpreter's is the smallest there is."""
    if device.type == "cpu":
        return Device(multiprocessors=1, threads_per_warp=32)
    properties = torch.cuda.get_device_properties(device)
    return Device(properties.multi_processor_count, 64 if torch.version.hip else 32)


def repeated_rows(mask: Tensor) -> tuple[Tensor, int, int]:
    """The rows of a mask (..., n) that is expanded, without their repetitions: contiguous (..., n),
    how often each is repeated in a row, and how many there are."""
    shape, strides = mask.shape[:-1], mask.stride()[:-1]
    repeats = [size == 1 or stride == 0 for size, stride in zip(shape, strides, strict=True)]
    first, last = 0, len(repeats)
    while first < last and repeats[first]:
        first += 1
    while first < last and repeats[last - 1]:
        last -= 1
    own = mask[(0,) * first + (slice(None),) * (last - first) + (0,) * (len(shape) - last)]
    return own.contiguous(), math.prod(shape[last:]), math.prod(shape[first:last])


def _per_row(value: float | Tensor, x: Tensor) -> Tensor | None:
    if not isinstance(value, Tensor):
        return None
    return value.detach().expand(*x.shape[:-1], 1).contiguous()
