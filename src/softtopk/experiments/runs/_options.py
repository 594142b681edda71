"""Options that every command has that computes on a device."""

from __future__ import annotations

import torch

from softtopk import _environment

from ..errors import UsageError


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        torch.empty(0, device=device).cpu()  # the meta device can only be written to
    except (RuntimeError, AssertionError) as error:  # how torch reports one that is not there
        reason = str(error).splitlines()[0].split(". ")[0]
        here = ", ".join(("cpu", *_environment.collect().accelerators))
        raise UsageError(
            f"--device {device}: {reason}; give one of {here}, or install torch for that device"
        ) from error
