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
from ._configuration import (
    Device,
    Long,
    Short,
    configuration,
    options,
    ragged_configurations,
    rank_configuration,
)

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

        With ``offsets``, int64, the rows in the memory of ``x`` (..., total) are ragged: each is
        from one offset to the next. What has one number per row is then (..., rows, 1).
        """
        call = _Call(quantity, x, mask, k, tau, largest, offsets)
        result = torch.empty_like(call.x)
        if quantity == "threshold":
            result = x.new_empty(call.shape)
        state = x.new_empty(call.numbers_of_state, call.rows, dtype=call.dtype)
        call.run("forward", out=result, state=state, BITS=_BITS[x.dtype])
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
        call = _Call(quantity, x, mask, k, tau, largest, offsets)
        grad_x = torch.empty_like(call.x)
        grad_tau = x.new_empty(call.shape, dtype=call.dtype) if in_tau else None
        call.run("backward", state=state, grad=grad.contiguous(), grad_x=grad_x, grad_tau=grad_tau)
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
                tau_values=_per_row(tau, (*x.shape[:-1], 1)),
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
        offsets: Tensor | None,
    ) -> None:
        batch, n = x.shape[:-1], x.shape[-1]
        self.x, self.rows = x.contiguous(), x.numel() // n
        self.shape = (*batch, 1)  #: of numbers per row
        self.dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
        self.device = device_of(x.device)
        self.cuts: list[tuple[int, Short | Long]]
        inner, count = 1, 1
        if offsets is None:
            self.cuts = [(0, configuration(n, self.rows, self.dtype, self.device))]
            if mask is not None:
                mask, inner, count = repeated_rows(mask)
        else:
            rows = offsets.numel() - 1
            self.shape, self.rows = (*batch, rows // self.rows, 1), rows
            self.cuts = ragged_configurations(n, rows, self.dtype, self.device)
            mask = None if mask is None else mask.contiguous()
        self._arguments: dict[str, Any] = {
            "x": self.x,
            "mask": mask,
            "offsets": offsets,
            "rows": self.rows,
            "n": n,
            "mask_inner": inner,
            "mask_count": count,
            "k_values": _per_row(k, self.shape),
            "tau_values": _per_row(tau, self.shape),
            "k_value": 1.0 if isinstance(k, Tensor) else float(k),
            "tau_value": 1.0 if isinstance(tau, Tensor) else tau,
            "MODE": quantity,
            "LARGEST": largest,
            "DOUBLE": self.dtype is torch.float64,
        }

    @property
    def numbers_of_state(self) -> int:
        return _long.STATE if isinstance(self.cuts[-1][1], Long) else 2

    def run(self, name: Literal["forward", "backward"], **others: Any) -> None:
        for shorter, cut in self.cuts:
            kernel = getattr(_long if isinstance(cut, Long) else _short, name)
            arguments = self._arguments | others | {"shorter": shorter}
            if isinstance(cut, Long):
                programs = self.rows * cut.programs
                arguments |= {"P": cut.programs, "PP": cut.padded, "BLOCK": cut.block}
                arguments |= self._exchange(cut, others.get("BITS", 0))
            else:
                programs = -(-self.rows // cut.rows)
                arguments |= {"R": cut.rows, "N": cut.columns}
            with torch.cuda.device_of(self.x):
                kernel[(programs,)](
                    **{
                        name: value for name, value in arguments.items() if name in kernel.arg_names
                    },
                    **options(cut.warps, self.device),
                    launch_cooperative_grid=isinstance(cut, Long) and cut.programs > 1,
                    enable_fp_fusion=True,
                )

    def _exchange(self, cut: Long, bits: int) -> dict[str, Tensor | None]:
        """What the programs of a long row tell each other."""
        if cut.programs == 1:
            return dict.fromkeys(("sums", "meetings", "histograms"))
        sums = (self.rows, 2, _long.SLOTS.value, cut.programs)
        bins = (self.rows, -(-bits // _long.DIGIT.value), _long.BINS.value)
        new = self.x.new_zeros
        return {
            "sums": self.x.new_empty(sums, dtype=torch.float64),
            "meetings": new(self.rows, dtype=torch.int32),
            "histograms": new(bins, dtype=torch.int32),
        }


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


def _per_row(value: float | Tensor, shape: tuple[int, ...]) -> Tensor | None:
    if not isinstance(value, Tensor):
        return None
    return value.detach().expand(shape).contiguous()
