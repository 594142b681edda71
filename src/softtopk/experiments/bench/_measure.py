"""Timing, in turn: one repetition of each peer, then the next of each.

A busy second of the machine then hits all of them, and the ratio of two medians means more than
the medians.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ._adapters import Run
from ._device import Cpu, Device
from ._results import Timing

MIN_REPEATS = 3
# A sample of a short call is the mean of as many as fill this time, so that neither the clock nor
# one interrupt decides it.
SAMPLE_SECONDS = 2e-3
WARM_UP_SECONDS = 2e-2


@dataclass
class Contestant:
    """A peer that is being timed."""

    run: Run
    gradient: bool
    calls: int = 1
    """In one sample."""
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    spent: float = 0.0
    failure: str = ""
    """What it raised, which ends its part."""

    def timings(self) -> tuple[Timing, Timing | None, Timing]:
        """Forward, backward and both."""
        forward = Timing(tuple(self.forward))
        if not self.gradient:
            return forward, None, forward
        both = tuple(f + b for f, b in zip(self.forward, self.backward, strict=True))
        return forward, Timing(tuple(self.backward)), Timing(both)


def time_in_turn(
    contestants: Sequence[Contestant],
    repeats: int,
    budget: float,
    tell: Callable[[int], None] = lambda repetition: None,
    device: Device | None = None,
) -> None:
    """Fill in the samples of all contestants.

    One that has spent its `budget` of seconds gets no more than MIN_REPEATS repetitions.
    """
    device = device or Cpu()
    for contestant in contestants:
        _guarded(warm_up, contestant, device)
    with _quiet_collector():
        for repetition in range(repeats):
            tell(repetition)
            for contestant in contestants:
                done = repetition >= MIN_REPEATS and contestant.spent > budget
                if done or contestant.failure:
                    continue
                _guarded(sample, contestant, device)
                gc.collect()  # a graph with a cycle would stay, as the collector is off


def _guarded(
    step: Callable[[Contestant, Device], None], contestant: Contestant, device: Device
) -> None:
    """A peer that fails, though it did not when it was tried, does not end the run."""
    try:
        step(contestant, device)
    except Exception as error:
        contestant.failure = f"{type(error).__name__}: {error}"


def warm_up(contestant: Contestant, device: Device) -> None:
    """Pay for what a first call sets up, and choose the number of calls in a sample."""
    while contestant.spent < WARM_UP_SECONDS:
        last = max(sum(_seconds(device, _forward_backward(contestant, device))), 1e-9)
        contestant.spent += last
    contestant.calls = max(1, math.ceil(SAMPLE_SECONDS / last))


def sample(contestant: Contestant, device: Device) -> None:
    """Add one sample: the means over its calls."""
    # Waited for after the last: an accelerator has to have the next call before this one ends.
    marks = [_forward_backward(contestant, device) for _ in range(contestant.calls)]
    forward, backward = map(sum, zip(*(_seconds(device, each) for each in marks), strict=True))
    contestant.spent += forward + backward
    contestant.forward.append(forward / contestant.calls)
    if contestant.gradient:
        contestant.backward.append(backward / contestant.calls)


def _forward_backward(contestant: Contestant, device: Device) -> tuple[Any, Any, Any]:
    """Marks before, between and after the passes; releasing their results is a part of the last."""
    run = contestant.run
    device.flush()
    start = device.mark()
    state = run.forward()
    if not contestant.gradient:
        del state
        end = device.mark()
        return start, end, end
    middle = device.mark()
    gradient = run.backward(state)
    del state, gradient
    return start, middle, device.mark()


def _seconds(device: Device, marks: tuple[Any, Any, Any]) -> tuple[float, float]:
    """Of the forward and of the backward pass."""
    start, middle, end = marks
    return device.seconds(start, middle), device.seconds(middle, end)


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """No garbage collection by itself; and one by hand looks at new objects only."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def pinned_threads(threads: int) -> Iterator[None]:
    """Give every library the same number of threads.

    torch is told directly. For those that are loaded later, and for other processes, there are
    environment variables. What heeds neither is kept to as many cores where the system allows it.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cores is not None:
        os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        with variables(**dict.fromkeys(names, str(threads))):
            yield
    finally:
        torch.set_num_threads(before)
        if cores is not None:
            os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
