"""Options that every training command has."""

from __future__ import annotations

import torch

from ..errors import UsageError


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # how torch reports one that is not there
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from error
