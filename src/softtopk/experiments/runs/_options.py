"""Options that every training command has."""

from __future__ import annotations

import torch

from ..errors import UsageError


def parse_seeds(text: str) -> tuple[int, ...]:
    """
    >>> parse_seeds("0,1,2")
    (0, 1, 2)
    """
    try:
        seeds = tuple(int(part) for part in text.split(","))
    except ValueError:
        seeds = (-1,)
    if min(seeds) < 0 or max(seeds) >= 2**32:
        raise UsageError(f"--seed {text!r}: give one or more integers of 0 or above, as in 0,1,2")
    return tuple(dict.fromkeys(seeds))


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # how torch reports one that is not there
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from error


def as_option(name: str, value: object) -> str:
    """A setting as it is given on the command line.

    >>> as_option("leave_one_out", False), as_option("eps", None), as_option("beams", (1, 5))
    ('--no-leave-one-out', '--eps none', '--beams 1,5')
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    if isinstance(value, tuple | list):
        return f"--{flag} {','.join(map(str, value))}"
    return f"--{flag} {'none' if value is None else value}"
