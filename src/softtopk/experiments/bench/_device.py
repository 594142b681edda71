"""Where a benchmark runs: the clock, the memory and the name of the CPU or of an accelerator.

A call on an accelerator returns before its work is done. So the times are those of events, which
the device records between its kernels. What the call before has left in the cache is overwritten,
since a training step finds other data there. On the CPU there are no such events, and the caches
are left as they are.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch

from softtopk.experiments.runs import check_device, cpu_name

FLUSHED = 256 * 2**20  # bytes, where the size of the cache is not known
NAMES = ("device", "name")  # in a description; the others are versions
UNKNOWN_MEMORY = 8 * 2**30  # free bytes, where the system does not say


class Device(Protocol):
    """What a measurement asks of the device it runs on."""

    where: torch.device

    def mark(self) -> Any:
        """This moment of the device's work."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks; waits for the second."""

    def flush(self) -> None:
        """Empty the cache."""

    def reset_peak(self) -> int | None:
        """Forget the peak of the memory so far; bytes in use now, None if there is no way."""

    def peak(self) -> int:
        """The largest number of bytes in use since `reset_peak`."""

    def free_memory(self) -> int:
        """Bytes that can be had."""

    def release(self) -> None:
        """Give back what is kept for later allocations."""

    def current(self) -> contextlib.AbstractContextManager[object]:
        """Work goes to this device, if there are several of its kind."""

    def describe(self) -> dict[str, str]:
        """Its name, and the versions that decide its speed."""


def device_of(name: str) -> Device:
    """The device with torch's name; refuses one that is not there."""
    check_device(name)
    where = torch.empty(0, device=name).device  # with its number
    return Cpu() if where.type == "cpu" else Accelerator(where)


class Cpu:
    where = torch.device("cpu")

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def flush(self) -> None: ...

    def reset_peak(self) -> int | None:
        """Of the resident set of this process, on Linux."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
            return status_bytes("VmRSS")
        except OSError:
            return None

    def peak(self) -> int:
        return status_bytes("VmHWM")

    def free_memory(self) -> int:
        """Without swapping, as far as the system says."""
        with contextlib.suppress(OSError):
            for line in Path("/proc/meminfo").read_text().splitlines():
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return UNKNOWN_MEMORY

    def release(self) -> None: ...

    def current(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()

    def describe(self) -> dict[str, str]:
        return {"device": "cpu", "name": cpu_name()}


class Accelerator:
    """A card, by the interface that torch has for all of them."""

    def __init__(self, where: torch.device) -> None:
        self.where = where
        module = torch.get_device_module(where)
        found = getattr(module, "get_device_properties", None)  # not for mps
        self._properties: Any = found(where) if found else None

    @cached_property
    def _flushed(self) -> torch.Tensor:
        cache = getattr(self._properties, "L2_cache_size", 0)
        return torch.empty(2 * cache or FLUSHED, dtype=torch.uint8, device=self.where)

    def mark(self) -> torch.Event:
        event = torch.Event(self.where, enable_timing=True)
        event.record()
        return event

    def seconds(self, start: torch.Event, end: torch.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def flush(self) -> None:
        self._flushed.zero_()

    def reset_peak(self) -> int | None:
        """Of what the allocator has given to tensors."""
        if not torch.accelerator.memory_stats(self.where):  # it keeps no account
            return None
        torch.accelerator.reset_peak_memory_stats(self.where)
        return torch.accelerator.memory_allocated(self.where)

    def peak(self) -> int:
        torch.accelerator.synchronize(self.where)
        return torch.accelerator.max_memory_allocated(self.where)

    def free_memory(self) -> int:
        try:
            return torch.accelerator.get_memory_info(self.where)[0]
        except RuntimeError:  # mps
            return UNKNOWN_MEMORY

    def release(self) -> None:
        torch.accelerator.empty_cache()

    def current(self) -> contextlib.AbstractContextManager[object]:
        return torch.accelerator.device_index(self.where.index)

    def describe(self) -> dict[str, str]:
        return {
            "device": str(self.where),
            "name": getattr(self._properties, "name", self.where.type),
            **dict(self._versions()),
        }

    def _versions(self) -> Iterator[tuple[str, str]]:
        for label, name in (("CUDA", "cuda"), ("ROCm", "hip"), ("XPU", "xpu")):
            version = getattr(torch.version, name, None)
            if version is not None:
                yield label, version
        driver = getattr(self._properties, "driver_version", None) or _nvidia_driver()
        if driver:
            yield "driver", driver
        for package in ("triton", "pytorch-triton-rocm", "pytorch-triton-xpu"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                yield "triton", metadata.version(package)


def in_words(description: Mapping[str, str]) -> str:
    """
    >>> in_words({"device": "cuda:0", "name": "A card", "CUDA": "13.0", "driver": "580"})
    'A card (cuda:0), CUDA 13.0, driver 580'
    """
    versions = [f"{key} {value}" for key, value in description.items() if key not in NAMES]
    return ", ".join([f"{description['name']} ({description['device']})", *versions])


def _nvidia_driver() -> str:
    """torch does not know it, the tool that comes with the driver does."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.partition("\n")[0].strip()


def status_bytes(name: str) -> int:
    """A size in the status of this process, on Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)
