"""What the commands of all experiments do alike: find parts of runs, train them, show the table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from softtopk._training import DivergedError

from ..errors import UsageError
from ._directory import Run, find_runs, locked
from ._interrupt import INTERRUPTED, Interrupt, Interrupted
from ._report import Report
from ._tables import Table, check_tables, write_tables


@dataclass(frozen=True)
class Results:
    """What the records of some runs say."""

    tables: Sequence[Table]
    markdown: str
    records: Sequence[Any]


@dataclass(frozen=True)
class Experiment:
    """A command that trains parts of a run, each with every seed.

    A part with a seed is a run of its own, in the folder ``<part>/seed-<seed>`` of the whole.
    """

    command: str
    part: str
    """The entry that names the part in the record of one."""
    parts: str
    """The entry that names them all in the record of the whole."""
    order: Sequence[str]
    results: Callable[[Sequence[Run]], Results]
    """Of runs of parts."""

    def folder(self, out: Path, part: str, seed: int) -> Path:
        return out / part / f"seed-{seed}"

    def config(self, out: Path) -> dict[str, Any]:
        """The record of the run in ``out``, which has to be a whole one."""
        config = Run(out).config
        if config.get("command") != self.command:
            raise UsageError(f"--out {out}: this is not a run of softtopk {self.command}")
        if self.parts not in config:
            raise UsageError(f"--out {out}: this is a part of a run; give the folder that holds it")
        return config

    def find(self, *paths: Path) -> list[Run]:
        """The runs of parts in these folders."""
        runs = [run for run in find_runs(paths) if run.config.get("command") == self.command]
        found = [run for run in runs if self.part in run.config]
        if not found:
            names = ", ".join(map(str, paths))
            raise UsageError(f"{names}: there is no run of softtopk {self.command} in it")
        return found

    def finished(self, path: Path) -> list[Run]:
        """Those of them that are finished, in the order of the table and of their seeds."""
        runs = [run for run in self.find(path) if run.result]
        if not runs:
            raise UsageError(f"{path}: nothing in it is finished; go on with --resume")
        return sorted(runs, key=lambda r: (self.order.index(r.config[self.part]), r.config["seed"]))

    def tabulate(self, paths: Sequence[Path], out: Path | None) -> int:
        """Print the table of these runs; with ``out``, write it as Markdown and as JSON."""
        if out is not None:
            check_tables(out)
        self._show(paths, out, Report(), "written")
        return 0

    def train(
        self,
        out: Path,
        work: Callable[[Interrupt], int],
        report: Report,
        *,
        resume: bool,
        threads: int,
    ) -> int:
        """Do the ``work`` in the folder of a run, then make the table; returns the exit code.

        No two processes work in one folder. Ctrl-C stops after the step at hand.
        """
        if resume and not (out / "config.json").exists():
            report.say(f"there is no run in {out} yet: starting one")
        torch.set_num_threads(threads)
        with locked(out), Interrupt() as interrupt:
            try:
                code = work(interrupt)
                self._show([out], out / "table", report, "results")
            except (Interrupted, KeyboardInterrupt):
                report.say(f"stopped; {self._how_to_go_on(out)}")
                return INTERRUPTED
        return code

    def _show(self, paths: Sequence[Path], out: Path | None, report: Report, what: str) -> None:
        results = self.results(self.find(*paths))
        for table in results.tables:
            report.console.print(table.to_rich())
        if out is not None:
            written = write_tables(out, results.markdown, results.records)
            report.say(f"{what}: {', '.join(map(str, written))}")

    def _how_to_go_on(self, out: Path) -> str:
        if not (out / "config.json").exists():
            return "there is no run yet: start it again with the same command"
        again = shlex.join(["softtopk", *self.command.split(), "--out", str(out), "--resume"])
        return f"go on with: {again}"


def attempt(title: str, work: Callable[[], str], report: Report) -> int:
    """Train a part, and say what came out; a failure leaves the other parts alone."""
    try:
        with report.warnings():
            said = work()
    except DivergedError as error:
        report.say(f"{title}: {error}")
        return 1
    report.say(f"{title}: {said}")
    return 0
