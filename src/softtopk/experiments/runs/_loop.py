"""The loop around every training: progress, records, checkpoints, interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from . import _processes as processes
from ._directory import Run
from ._interrupt import Interrupt, Interrupted
from ._report import Report


class Trainable(Protocol):
    """What the loop needs of a training."""

    step: int
    """Steps done."""
    steps_per_epoch: int

    @property
    def total_steps(self) -> int: ...
    def advance(self) -> dict[str, float]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def train(
    training: Trainable,
    run: Run,
    report: Report,
    interrupt: Interrupt,
    *,
    title: str,
    period: str = "epoch",
    evaluate: Callable[[], Mapping[str, float]] | None = None,
    seconds_between_checkpoints: float = 30.0,
) -> float:
    """Train to the end, from the run's checkpoint if it has one; returns the seconds it took.

    ``evaluate`` is called at the end of every epoch, and its figures go into the epoch's record.
    What it changes belongs to the training's state: an epoch's checkpoint is made after it. The
    last epoch ends with the training, even if that has fewer steps left. Where
    ``steps_per_epoch`` is not a pass through the data, ``period`` is the name of what it is.

    Of several processes all call this, and the first one writes.

    Raises `Interrupted`, with the state saved, if that is requested.
    """
    sums: dict[str, float] = {}
    seconds = 0.0
    state = processes.lead(run.load)
    if state is not None:
        training.load_state_dict(state["training"])
        sums, seconds = state["sums"], state["seconds"]
        report.say(f"{title}: resumed at step {training.step} of {training.total_steps}")
    start = time.perf_counter() - seconds

    def save() -> None:
        elapsed = time.perf_counter() - start
        if processes.is_first():
            run.save({"training": training.state_dict(), "sums": sums, "seconds": elapsed})

    saved = time.perf_counter()
    with report.task(title, training.total_steps, training.step, period) as task:
        while training.step < training.total_steps:
            if interrupt.asked():
                save()
                raise Interrupted
            for name, value in training.advance().items():
                sums[name] = sums.get(name, 0.0) + value
            epoch, rest = divmod(training.step, training.steps_per_epoch)
            means = {
                name: total / (rest or training.steps_per_epoch) for name, total in sums.items()
            }
            epoch += rest > 0  # the number of the one at hand
            task.update(training.step, epoch, means)
            ended = rest == 0 or training.step >= training.total_steps
            if ended:
                means.update(evaluate() if evaluate else {})
                elapsed = time.perf_counter() - start
                if processes.is_first():
                    run.log({period: epoch, "step": training.step, **means, "seconds": elapsed})
                task.epoch_done(epoch, means)
                sums = {}
            if ended or time.perf_counter() - saved > seconds_between_checkpoints:
                save()
                saved = time.perf_counter()
    return time.perf_counter() - start
