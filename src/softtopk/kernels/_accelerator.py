"""Which accelerators have kernels: NVIDIA and AMD GPUs, by Triton.

The environment variable SOFTTOPK_TRITON is read when an operator is first called on a device:
"auto" (or unset) uses the kernels where they can be had, "require" (or "1", "on") makes it an error
if they cannot, "off" (or "0") leaves them aside.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

import torch

from . import _library
from ._library import Status

if TYPE_CHECKING:
    from ._triton import Triton

VARIABLE = "SOFTTOPK_TRITON"
#: The oldest NVIDIA GPUs that the kernels are compiled for in the tests.
OLDEST = (8, 0)
_WISHES = {
    "": "auto",
    "auto": "auto",
    "1": "require",
    "on": "require",
    "require": "require",
    "0": "off",
    "off": "off",
}
_interpreting = False


def triton_for(device: torch.device) -> Triton | None:
    """The Triton kernels for tensors of this device, or None: then plain operations are used.

    Raises:
        RuntimeError: SOFTTOPK_TRITON requires the kernels and the device cannot have them, or the
            variable has a value without a meaning.
    """
    if _library.plain_depth() or (device.type == "cpu" and not _interpreting):
        return None
    status = _interpreter() if device.type == "cpu" else _look(device)
    if status.error:
        raise RuntimeError(status.reason)
    return _kernels() if status.active else None


def covers(device: torch.device) -> bool:
    """Whether there are kernels for tensors of this device, or on the CPU a custom operator."""
    return device.type == "cpu" or triton_for(device) is not None


# As torch.compiler.assume_constant_result does, which would import the whole compiler for it.
covers._dynamo_marked_constant = True  # type: ignore[attr-defined]


def accelerator_status(device: torch.device) -> Status:
    """Which path the operators take on a device that is not the CPU, and why; it never raises."""
    if _library.plain_depth():
        return Status(active=False, reason="inside softtopk.kernels.plain()")
    return _look(device)


def is_interpreting() -> bool:
    """Whether tensors of the CPU are to be treated as those of an accelerator."""
    return _interpreting


@contextmanager
def interpreted() -> Iterator[None]:
    """Within this context the CPU is treated as an accelerator: the operators run their Triton
    kernels, by Triton's interpreter. To test the kernels where there is no GPU.

    The environment variable TRITON_INTERPRET must be 1 before triton is first imported.
    """
    global _interpreting
    status = _interpreter()
    if status.error:
        raise RuntimeError(status.reason)
    before, _interpreting = _interpreting, True
    try:
        yield
    finally:
        _interpreting = before


@cache
def _look(device: torch.device) -> Status:
    value = os.environ.get(VARIABLE, "")
    wish = _WISHES.get(value.lower())
    if wish is None:
        allowed = ", ".join(filter(None, _WISHES))
        reason = f"{VARIABLE} must be one of {allowed}, not {value!r}"
        return Status(active=False, reason=reason, error=True)
    if wish == "off":
        return Status(active=False, reason=f"{VARIABLE}={value}")
    obstacle = _obstacle(device)
    if obstacle is None:
        return Status(active=True, reason="Triton")
    if wish == "require" and device.type == "cuda":
        return Status(active=False, reason=f"{VARIABLE}={value}, but {obstacle}", error=True)
    return Status(active=False, reason=obstacle)


def _obstacle(device: torch.device) -> str | None:
    """Why the kernels cannot be used on a device."""
    if device.type != "cuda":  # AMD's GPUs have this name too
        return f"there are no kernels for the device {device.type}"
    missing = _missing()
    if missing is None and not torch.version.hip:
        capability = torch.cuda.get_device_capability(device)
        if capability < OLDEST:
            major, minor = OLDEST
            return f"the GPU is older than compute capability {major}.{minor}"
    return missing


def _missing() -> str | None:
    try:
        importlib.import_module("triton.language")
    except ImportError as error:
        return f"triton cannot be imported ({error}); pip install triton"
    return None


@cache
def _interpreter() -> Status:
    obstacle = _missing()
    if obstacle is None and not importlib.import_module("triton").knobs.runtime.interpret:
        obstacle = "the interpreter is off; set TRITON_INTERPRET=1 before triton is imported"
    if obstacle is not None:
        return Status(active=False, reason=obstacle, error=True)
    return Status(active=True, reason="Triton's interpreter")


@cache
def _kernels() -> Triton:
    from ._triton import Triton

    return Triton()
