"""What the trainings of all applications share: seeds, schedules and steps."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn


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


class Steps:
    """A training by steps that can be stopped and taken up again, whatever it trains.

    All randomness of a step is a function of the seed and the number of the step. So the state
    between two steps is the weights, the optimiser's moments and that number; a training that is
    loaded from there goes on exactly as if it had never stopped, and the global generators are left
    as they were.
    """

    seeded: Callable[[int, torch.device], AbstractContextManager[None]] = staticmethod(seeded)

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, seed: int, device: torch.device
    ) -> None:
        self.module, self.optimizer, self.seed, self.device = module, optimizer, seed, device
        self.forward: Callable[..., Any] = module
        """What a step calls: the module, or what shares it out over several processes."""
        self.step = 0
        """Steps done."""

    def differentiate(self, lr: float, loss_of: Callable[[], Tensor]) -> float:
        """Compute the gradient of the next step, to be taken with ``lr``; returns the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.module.train()
        with self.seeded(mix(self.seed, "step", self.step), self.device):
            loss = loss_of()
            self.optimizer.zero_grad()
            loss.backward()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes in training, as tensors and plain values."""
        return {
            "step": self.step,
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the training that made ``state`` was."""
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
