"""The commands `softtopk knn train | table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from softtopk._files import sha256

from .._splits import Data
from ..errors import UsageError, require_modules
from ..images import ImageData
from ..runs import (
    Experiment,
    Interrupt,
    Report,
    Run,
    announce,
    attempt,
    check_device,
    open_run,
    processes,
    write_atomic,
)
from ..settings import (
    Declared,
    TableOptions,
    TrainOptions,
    parse_given,
    recorded,
    refuse_idle,
    setting,
)
from ._data import COPY, load, own_data, pack, read
from ._execute import Samples, execute, relaxation_options
from ._methods import ALL, METHODS, in_order
from ._settings import DATA, Settings, kind_of, make_settings, method_for, preset_of, sized
from ._tables import results

EXPERIMENT = Experiment("knn train", "method", "methods", tuple(METHODS), results)
# May change when a run is resumed; the fingerprint is checked when the data are read.
FREE = ("data_dir", "device", "fingerprint")


@dataclass(frozen=True, kw_only=True)
class FromFiles(Declared):
    """What a command is given that reads images."""

    data_dir: Path | None = setting(
        None, "Folder with the files of mnist, fashion-mnist or cifar10."
    )


@dataclass(frozen=True, kw_only=True)
class Train(FromFiles, TrainOptions):
    """Train methods of the paper's Table 1, classify the test samples, and print the table.

    The data are images, or a table of your own with a column of classes. The folder gets a run for
    each method and seed, table.md and table.json. Ctrl-C stops after the step at hand; --resume
    goes on to the same result.

    Example: softtopk knn train --data table.csv --target species --method knn,soft-topk --out run
    """

    method: tuple[str, ...] = setting(
        (),
        "Names with commas between them; all is those of the paper's table.",
        choices=tuple(METHODS),
        all_of=ALL,
        shown="soft-topk",
    )


@dataclass(frozen=True, kw_only=True)
class Table(TableOptions):
    """Make the table again from the records of one or several runs.

    Example: softtopk knn table run another-run --out table.md
    """


@dataclass(frozen=True)
class Plan:
    """All that a call of the training command is to do."""

    settings: Settings
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    data_dir: str | None
    fingerprint: str | None = None
    """Of the data; None before a data set with a name was read for the first time."""
    own: Data | None = None
    """The user's own data, if the run has no copy of them yet."""

    def to_config(self) -> dict[str, Any]:
        return {
            "command": EXPERIMENT.command,
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            **self.origin,
            **asdict(self.settings),
        }

    @property
    def origin(self) -> dict[str, Any]:
        """Where the samples come from, for records."""
        return {"data_dir": self.data_dir, "fingerprint": self.fingerprint}


def make_plan(options: Train, given: Mapping[str, Any]) -> Plan:
    """What was asked for, and with ``--resume`` the rest as the run in ``--out`` has it."""
    given = parse_given(Settings, given)
    here = str(options.data_dir.resolve()) if options.data_dir else None
    if options.resume and (options.out / "config.json").exists():
        return _resumed(options, given, here)
    if options.resume and "data" not in given:
        raise UsageError(
            f"--resume: there is no run in {options.out} to go on with; give the --out of one, or "
            "--data to start a new one"
        )
    own = None
    if given.get("data", DATA[0]) not in DATA:
        own = read(given["data"], given.get("target"), given.get("ignore"))
        if len(own.test) and "test_share" in given:
            raise UsageError(
                f"--test-share {given['test_share']:g}: {own.name} has a folder test; leave it out"
            )
        given["data"] = own.name
    settings = make_settings(
        {"threads": torch.get_num_threads(), **(given if own is None else sized(given, own))}
    )
    refuse_idle(Settings, given, {"data": kind_of(settings.data)})
    if own is not None and here:
        raise UsageError(f"--data-dir {here}: it is for {', '.join(DATA[1:])}; leave it out")
    return Plan(
        settings=settings,
        methods=in_order(options.method or ["soft-topk"]),
        seeds=options.seed or (0,),
        data_dir=here,
        fingerprint=sha256(pack(own)) if own is not None else None,
        own=own,
    )


def _resumed(options: Train, given: dict[str, Any], here: str | None) -> Plan:
    before = EXPERIMENT.config(options.out)
    kept = recorded(Settings, before)
    fingerprint = before.get("fingerprint")
    if kept["data"] not in DATA and "data" in given:  # the same may have moved, or may be gone
        source = given["data"]
        found = None if source in DATA else read(source, kept["target"], kept["ignore"])
        if found is None or sha256(pack(found)) != fingerprint:
            raise UsageError(
                f"--data {source}: the run in {options.out} has other data, from "
                f"{kept['data']}; leave it out, or give another --out"
            )
        given["data"] = kept["data"]
    if "preset" in given:
        kept |= preset_of(kept["data"], given["preset"])
    return Plan(
        settings=Settings(**{**kept, **given}),
        methods=in_order([*options.method, *before["methods"]]),
        seeds=tuple(sorted({*options.seed, *before["seeds"]})),
        data_dir=here or before["data_dir"],
        fingerprint=fingerprint,
    )


def train(options: Train, given: Mapping[str, Any]) -> int:
    """Run all methods with all seeds, print and write the table, and return the exit code."""
    plan = make_plan(options, given)
    require_modules("rich", "sklearn", "safetensors")
    check_device(plan.settings.device)
    with processes.joined(plan.settings.device):
        return _train(options, plan)


def _train(options: Train, plan: Plan) -> int:
    out, report = options.out, Report()
    todo = processes.lead(lambda: _missing(out, plan))

    def data(seed: int) -> Data:
        own = plan.own or own_data(out, plan.to_config())
        return load(plan.settings, plan.data_dir, own, seed, plan.fingerprint)

    @lru_cache(maxsize=1)
    def samples(seed: int) -> Samples:
        return Samples.of(data(seed))

    if todo:  # before anything is written: the data may be missing, damaged, or too few
        first = data(todo[0][1])
        _check_size(plan.settings, len(first.train))
        if isinstance(first, ImageData) and first.digest:
            plan = replace(plan, fingerprint=first.digest)
        processes.check_agreement(plan.to_config(), data=lambda: pack(first))

    def open_whole() -> None:
        started = processes.is_restarted() and (out / "config.json").exists()
        if plan.own is not None and not started:
            announce(out, (COPY,))
            write_atomic(out / COPY, pack(plan.own))
        free = ("methods", "seeds", *FREE) if options.resume else FREE
        open_run(out, plan.to_config(), resume=options.resume or started, free=free)

    def work(interrupt: Interrupt) -> int:
        processes.lead(open_whole)
        code = 0
        for method, seed in todo:
            interrupt.check()
            # Another command may have finished it before this one had the lock.
            part = Run(EXPERIMENT.folder(out, method, seed))
            if processes.lead(lambda part=part: part.result) is None:  # type: ignore[misc]
                code |= _run_one(out, plan, method, seed, samples(seed), report, interrupt)
        return code

    return EXPERIMENT.train(out, work, report, resume=options.resume, threads=plan.settings.threads)


def table(options: Table) -> int:
    """Print the table of these runs, and write it if that is asked for."""
    require_modules("rich")
    return EXPERIMENT.tabulate(options.runs, options.out)


def _missing(out: Path, plan: Plan) -> list[tuple[str, int]]:
    """Methods and seeds without a result, in the order of the table, but kNN+pretrained CNN after
    CE+CNN, whose features it takes."""
    return [
        (method, seed)
        for seed in plan.seeds
        for method in sorted(plan.methods, key=lambda name: name == "pretrained")
        if Run(EXPERIMENT.folder(out, method, seed)).result is None
    ]


def _run_one(
    out: Path,
    plan: Plan,
    name: str,
    seed: int,
    samples: Samples,
    report: Report,
    interrupt: Interrupt,
) -> int:
    method = method_for(name, plan.settings.data)
    config = {
        "command": EXPERIMENT.command,
        "method": name,
        "features": method.features,
        "relaxation": relaxation_options(method, plan.settings) if method.relaxation else None,
        "seed": seed,
        **plan.origin,
        **asdict(plan.settings),
    }
    folder = EXPERIMENT.folder(out, name, seed)
    run = processes.lead(lambda: open_run(folder, config, resume=True, free=FREE))
    relatives = [Run(EXPERIMENT.folder(out, other, seed)) for other in METHODS]

    def work() -> str:
        result = execute(method, plan.settings, seed, samples, run, report, interrupt, relatives)
        return f"test accuracy {100 * result['accuracy']:.2f} %"

    return attempt(f"{method.label}, seed {seed}", work, report)


def _check_size(settings: Settings, n: int) -> None:
    templates = n - min(settings.batch_size, n // 2)
    if settings.k > templates:
        raise UsageError(
            f"--k {settings.k}: of {n} training samples {templates} are left as templates; give a "
            "smaller --k or more samples"
        )
