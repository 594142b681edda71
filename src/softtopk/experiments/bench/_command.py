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
from softtopk.experiments.runs import INTERRUPTED, write_atomic
from softtopk.experiments.settings import Declared, setting

from ._cases import EPS, cases_of_size, fitted, parse_size
from ._correctness import failures
from ._device import Device, device_of, in_words
from ._measure import pinned_threads
from ._pictures import draw_pictures
from ._presets import PRESETS
from ._results import Record
from ._runner import Settings, run, survey
from ._tables import RichReport, target_table, to_markdown
from ._targets import TARGET_CASES, TARGET_PEERS, assess

SHOWN = 10  # lines, of checks that failed


@dataclass(frozen=True, kw_only=True)
class Options(Declared):
    """Measure time, memory and error against every peer that is installed.

    Example: softtopk bench --preset quick --out bench
    """

    preset: str = setting(
        "full",
        "The cases: full has all peers and takes 15 minutes, quick takes 2. gpu has the sizes "
        "of an accelerator.",
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
    values = {"repeats": chosen.repeats, "budget": chosen.budget, **given}
    if "memory" not in given:
        values["memory"] = device_of(given.get("device", "cpu")).free_memory() / 2 / 2**30
    if options.size:
        sizes = map(parse_size, options.size)
        cases = [case for size in sizes for case in cases_of_size(*size, options.eps or EPS)]
        return Settings(tuple(cases), **values)
    if not chosen.fit:
        return Settings(chosen.cases, **values)
    memory = Settings((), **values).memory * 2**30  # checked
    return Settings(tuple(fitted(case, memory) for case in chosen.cases), **values)


def main(options: Options, given: Mapping[str, Any]) -> int:
    """Check the operators, run, print, draw, and return the exit code."""
    settings = make_settings(options, given)
    device = device_of(settings.device)
    images = options.images or settings.out
    require_modules("rich", "matplotlib")
    check_out(settings.out, folder=True)
    settings.out.mkdir(exist_ok=True)  # the pictures may lie in it
    check_out(images, "--images", folder=True)
    remove_drafts(settings.out.glob(".*.tmp"))
    code = 0
    report = RichReport()
    _print_header(settings, device, report)
    with device.current(), pinned_threads(settings.threads):
        wrong = list(failures(device.where))
    if wrong:
        report.say(f"wrong on {settings.device}, compared with float64 on the CPU:")
        for line in wrong[:SHOWN]:
            report.say(f"  {line}")
        report.say(f"{len(wrong)} checks failed, so nothing is timed")
        return 1
    try:
        with report:
            record = run(settings, report)
    except KeyboardInterrupt:
        record = Record.read(settings.record)
        report.say(f"interrupted with {len(record.cases)} cases done; --resume does the others")
        code = INTERRUPTED
    _print_summary(record, settings, images, report)
    return code


def _print_header(settings: Settings, device: Device, report: RichReport) -> None:
    report.say(
        f"softtopk {softtopk.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"threads: {settings.threads}, kernels: {_environment.collect().native}"
    )
    report.say(f"device: {in_words(device.describe())}")
    present, absent = survey(settings)
    report.peers(
        {p.key: p.package.version() or "" for p in present if p not in TARGET_PEERS}, absent
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
    table = settings.out / "results.md"
    write_atomic(table, to_markdown(record))
    report.say(f"table: {table}")
    for path in draw_pictures(record.cases, images, record.environment["device"]["name"]):
        report.say(f"picture: {path}")
