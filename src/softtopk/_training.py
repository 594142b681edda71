"""What the trainings of all applications share: seeds, schedules, and the end of a failed one."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class DivergedError(RuntimeError):
    """The loss is no longer finite."""


def mix(seed: int, purpose: str, number: int) -> int:
    """A seed for one purpose: streams of different purposes and numbers are unrelated."""
    return random.Random(f"{seed} {purpose} {number}").getrandbits(63)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * done)),
    "linear": lambda done: 1 - done,
}
"""The share of the learning rate that is left, by the share of the steps that are done."""


_global_generators = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for what is inside; afterwards they are as they were.

    All threads share them, so only one is inside at a time: the others wait. A thread that draws
    without this is not held up, and then both draw something else. See `softtopk._random`.
    """
    devices = [] if device.type == "cpu" else [device]
    with (
        _global_generators,
        torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"),
    ):
        if devices:
            torch.manual_seed(seed)
        else:  # torch.manual_seed takes a millisecond, and seeds every device there is
            torch.default_generator.manual_seed(seed)
        yield
