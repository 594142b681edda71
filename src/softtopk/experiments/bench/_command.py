"""The command `softtopk bench`, without its parsing."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import softtopk
from softtopk import _environment
from softtopk.experiments._files import check_out, remove_drafts
from softtopk.experiments.errors import UsageError, require_modules
from softtopk.experiments.runs import INTERRUPTED
from softtopk.experiments.settings import Declared, setting

from ._cases import EPS, cases_of_size, parse_size
from ._pictures import draw_pictures
from ._presets import PRESETS
from ._results import Record
from ._runner import Settings, run, survey
from ._tables import RichReport, target_table
from ._targets import TARGET_CASES, TARGET_PEERS, assess


@dataclass(frozen=True, kw_only=True)
class Options(Declared):
    """Measure time, memory and error against every peer that is installed.

    Example: softtopk bench --preset quick --out bench
    """

    preset: str = setting(
        "full",
        "The cases: full has all peers and takes 15 minutes, quick takes 2.",
        choices=tuple(PRESETS),
    )
    size: tuple[str, ...] = setting((), "ROWSxNxK instead of the preset's cases; may be repeated.")
    eps: float | None = setting(None, "Temperature, with --size.", above=0, shown=f"{EPS:g}")
    images: Path | None = setting(None, "Folder for the pictures.", shown="that of --out")


def make_settings(options: Options, given: Mapping[str, Any]) -> Settings:
    """The settings of a preset, with what was given instead."""
    if options.eps is not None and not options.size:
        raise UsageError(f"--eps {options.eps:g}: the presets have their own; give it with --size")
    chosen = PRESETS[options.preset]
    cases = tuple(
        case
        for text in options.size
        for case in cases_of_size(*parse_size(text), options.eps or EPS)
    )
    values = {"repeats": chosen.repeats, "budget": chosen.budget, **given}
    return Settings(cases or chosen.cases, **values)


def main(options: Options, given: Mapping[str, Any]) -> int:
    """Run, print, draw, and return the exit code."""
    settings = make_settings(options, given)
    images = options.images or settings.out
    require_modules("rich", "matplotlib")
    check_out(settings.out, folder=True)
    settings.out.mkdir(exist_ok=True)  # the pictures may lie in it
    check_out(images, "--images", folder=True)
    remove_drafts(settings.out.glob(".*.tmp"))
    code = 0
    report = RichReport()
    _print_header(settings, report)
    try:
        with report:
            record = run(settings, report)
    except KeyboardInterrupt:
        record = Record.read(settings.record)
        report.say(f"interrupted with {len(record.cases)} cases done; --resume does the others")
        code = INTERRUPTED
    _print_summary(record, settings, images, report)
    return code


def _print_header(settings: Settings, report: RichReport) -> None:
    report.say(
        f"softtopk {softtopk.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"threads: {settings.threads}, float32, kernels: {_environment.collect().native}"
    )
    present, missing = survey(settings)
    report.peers(
        {p.key: p.package.version() or "" for p in present if p not in TARGET_PEERS}, missing
    )
    # Includes nothing of this run yet, so it is the load by others.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > (os.cpu_count() or 1) - settings.threads + 0.5:
        report.say(f"WARNING: the load is {load:.1f} before the start: expect noise")


def _print_summary(record: Record, settings: Settings, images: Path, report: RichReport) -> None:
    done = {result.case: result for result in record.cases}
    if any(case in done for case in TARGET_CASES):
        outcomes = assess(done)
        report.console.print(target_table(outcomes))
        for message in dict.fromkeys(o.message for o in outcomes if o.message):
            report.say(f"not measured: {message}")
        met = sum(outcome.met is True for outcome in outcomes)
        report.say(f"{met} of {len(outcomes)} targets met")
    report.say(f"results: {settings.record}")
    for path in draw_pictures(record.cases, images):
        report.say(f"picture: {path}")
