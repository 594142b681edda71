"""Progress of a training: a bar on a terminal, else a line of text for every epoch."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from .._optional import is_installed


class Progress:
    """``with Progress(epochs, verbose) as progress: progress.report({"loss": ...})``.

    A bar needs rich; text does without.
    """

    def __init__(self, epochs: int, verbose: int) -> None:
        self._epochs, self._done = epochs, 0
        self._shown = verbose > 0
        self._bar: Any = None
        if self._shown and sys.stdout.isatty() and is_installed("rich"):
            self._bar = _bar()
            self._task = self._bar.add_task("training", total=epochs, facts="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def report(self, facts: dict[str, float]) -> None:
        """An epoch is done."""
        self._done += 1
        text = "  ".join(f"{name} {value:.4f}" for name, value in facts.items())
        if self._bar is not None:
            self._bar.update(self._task, advance=1, facts=text)
        elif self._shown:
            print(f"epoch {self._done}/{self._epochs}  {text}", flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    return Progress(
        TextColumn("epoch"),
        MofNCompleteColumn(),
        BarColumn(),
        Remaining(),
        TextColumn("{task.fields[facts]}"),
    )
