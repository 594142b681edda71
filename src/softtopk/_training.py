"""What the trainings of all applications share: seeds by purpose, and the end of a failed one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DivergedError(RuntimeError):
    """The loss is no longer finite."""


def mix(seed: int, purpose: str, number: int) -> int:
    """A seed for one purpose: streams of different purposes and numbers are unrelated."""
    return random.Random(f"{seed} {purpose} {number}").getrandbits(63)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from generators of that seed inside; those outside are left as they were."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        if devices:
            torch.manual_seed(seed)
        else:  # torch.manual_seed takes a millisecond, and seeds every device there is
            torch.default_generator.manual_seed(seed)
        yield
