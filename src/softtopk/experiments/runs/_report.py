"""The run on the terminal: a bar with the latest figures, or lines where there is no terminal."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _processes as processes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

LOG_WIDTH = 120  # where there is no terminal to ask


class Report:
    """Prints, in the first process only; with a terminal, shows progress bars."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(highlight=False, quiet=not processes.is_first())
        if not self.console.is_terminal:
            self.console.width = LOG_WIDTH

    def say(self, text: str) -> None:
        """Print a line."""
        # Without markup, which would take the name of an extra for a style.
        self.console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """Say the first warning of each category; a training can repeat one in every step."""
        said: set[type[Warning]] = set()

        def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
            if category not in said:
                said.add(category)
                text = "further warnings of this kind are not shown"
                self.say(f"{category.__name__}: {message} ({text})")

        with warnings.catch_warnings():
            warnings.showwarning = show
            yield

    @contextmanager
    def task(self, title: str, total: int, done: int = 0, period: str = "epoch") -> Iterator[Task]:
        """Show the progress of a piece of work of ``total`` steps."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining

        if not self.console.is_terminal:
            yield Task(self, title, period)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TextColumn("left:"),
            Remaining(),
        )
        with Progress(*columns, console=self.console, transient=True) as progress:
            bar = progress.add_task(title, total=total, completed=done, figures="")
            yield Task(self, title, period, progress, bar)


class Task:
    """Progress of one piece of work."""

    def __init__(
        self,
        report: Report,
        title: str,
        period: str,
        progress: Progress | None = None,
        bar: TaskID | None = None,
    ) -> None:
        self._report, self._title, self._period = report, title, period
        self._progress, self._bar = progress, bar

    def update(self, step: int, epoch: int, figures: Mapping[str, float]) -> None:
        if self._progress is not None and self._bar is not None:
            text = f"{self._period} {epoch}  {describe(figures)}"
            self._progress.update(self._bar, completed=step, figures=text)

    def epoch_done(self, epoch: int, figures: Mapping[str, float]) -> None:
        if self._progress is None:
            self._report.say(f"{self._title}: {self._period} {epoch}  {describe(figures)}")


def describe(figures: Mapping[str, float]) -> str:
    """Figures that have a value, in a line.

    >>> describe({"loss": 0.12345, "accuracy": 0.98765, "other": float("nan")})
    'loss 0.1235  accuracy 98.77 %'
    """
    parts = [
        f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4g}"
        for name, value in figures.items()
        if value == value
    ]
    return "  ".join(parts)
