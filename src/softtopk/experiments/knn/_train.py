"""The commands `softtopk knn train | table`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .. import images
from ..errors import UsageError, require_modules
from ..runs import Experiment, Interrupt, Report, Run, attempt, check_device, open_run
from ..settings import Declared, TableOptions, TrainOptions, parse_given, recorded, setting
from ._execute import Samples, execute, relaxation_options
from ._methods import ALL, METHODS, in_order
from ._settings import PRESETS, Settings, make_settings
from ._tables import results

EXPERIMENT = Experiment("knn train", "method", "methods", tuple(METHODS), results)
# May change when a run is resumed; the digest of the images is checked when they are read.
FREE = ("data_dir", "device", "images")


@dataclass(frozen=True, kw_only=True)
class FromFiles(Declared):
    """What a command is given that reads images."""

    data_dir: Path | None = setting(
        None, "Folder with the files of mnist, fashion-mnist or cifar10."
    )


@dataclass(frozen=True, kw_only=True)
class Train(FromFiles, TrainOptions):
    """Train methods of the paper's Table 1, classify the test images, and print the table.

    The folder gets a run for each method and seed, table.md and table.json. Ctrl-C stops after
    the step at hand; --resume goes on to the same result.

    Example: softtopk knn train --data digits --method knn,soft-topk --out run
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
    images: str | None = None
    """The digest of the images, None before they were read for the first time."""

    def to_config(self) -> dict[str, Any]:
        return {
            "command": EXPERIMENT.command,
            "methods": list(self.methods),
            "seeds": list(self.seeds),
            "data_dir": self.data_dir,
            "images": self.images,
            **asdict(self.settings),
        }


def make_plan(options: Train, given: Mapping[str, Any]) -> Plan:
    """What was asked for, and with ``--resume`` the rest as the run in ``--out`` has it."""
    given = parse_given(Settings, given)
    here = str(options.data_dir.resolve()) if options.data_dir else None
    if not (options.resume and (options.out / "config.json").exists()):
        settings = make_settings({"threads": torch.get_num_threads(), **given})
        return Plan(settings, in_order(options.method or ["soft-topk"]), options.seed or (0,), here)
    before = EXPERIMENT.config(options.out)
    kept = recorded(Settings, before)
    if "preset" in given:
        kept |= PRESETS[kept["data"]][given["preset"]]
    return Plan(
        settings=Settings(**{**kept, **given}),
        methods=in_order([*options.method, *before["methods"]]),
        seeds=tuple(sorted({*options.seed, *before["seeds"]})),
        data_dir=here or before["data_dir"],
        images=before.get("images"),
    )


def train(options: Train, given: Mapping[str, Any]) -> int:
    """Run all methods with all seeds, print and write the table, and return the exit code."""
    plan, out = make_plan(options, given), options.out
    require_modules("rich", "sklearn", "safetensors")
    report = Report()
    check_device(plan.settings.device)
    # In the order of the table, but kNN+pretrained CNN after CE+CNN, whose features it takes.
    todo = [
        (method, seed)
        for seed in plan.seeds
        for method in sorted(plan.methods, key=lambda name: name == "pretrained")
        if Run(EXPERIMENT.folder(out, method, seed)).result is None
    ]

    @lru_cache(maxsize=1)
    def samples(seed: int) -> Samples:
        return Samples.of(load_images(plan.settings, plan.data_dir, seed, plan.images))

    if todo:  # before anything is written: the data may be missing, damaged, or too few
        first = load_images(plan.settings, plan.data_dir, todo[0][1], plan.images)
        _check_size(plan.settings, len(first.train))
        plan = replace(plan, images=first.digest)

    def work(interrupt: Interrupt) -> int:
        open_run(out, plan.to_config(), resume=options.resume, free=("methods", "seeds", *FREE))
        code = 0
        for method, seed in todo:
            interrupt.check()
            code |= _run_one(out, plan, method, seed, samples(seed), report, interrupt)
        return code

    return EXPERIMENT.train(out, work, report, resume=options.resume, threads=plan.settings.threads)


def table(options: Table) -> int:
    """Print the table of these runs, and write it if that is asked for."""
    require_modules("rich")
    return EXPERIMENT.tabulate(options.runs, options.out)


def _run_one(
    out: Path,
    plan: Plan,
    name: str,
    seed: int,
    samples: Samples,
    report: Report,
    interrupt: Interrupt,
) -> int:
    method = METHODS[name]
    config = {
        "command": EXPERIMENT.command,
        "method": name,
        "features": method.features,
        "relaxation": relaxation_options(method, plan.settings) if method.relaxation else None,
        "seed": seed,
        "data_dir": plan.data_dir,
        "images": plan.images,
        **asdict(plan.settings),
    }
    run = open_run(EXPERIMENT.folder(out, name, seed), config, resume=True, free=FREE)
    relatives = [Run(EXPERIMENT.folder(out, other, seed)) for other in METHODS]
    relatives = [other for other in relatives if (other.path / "config.json").exists()]

    def work() -> str:
        result = execute(method, plan.settings, seed, samples, run, report, interrupt, relatives)
        return f"test accuracy {100 * result['accuracy']:.2f} %"

    return attempt(f"{method.label}, seed {seed}", work, report)


def _check_size(settings: Settings, n: int) -> None:
    templates = n - min(settings.batch_size, n // 2)
    if settings.k > templates:
        raise UsageError(
            f"--k {settings.k}: of {n} training images {templates} are left as templates; give a "
            "smaller --k or more images"
        )


def load_images(
    settings: Settings, data_dir: str | Path | None, seed: int, digest: str | None
) -> images.ImageData:
    """The images that the settings name, if they are those of the ``digest`` on record."""
    folder = Path(data_dir) if data_dir else None
    data = images.load(settings.data, folder, subset=settings.subset, seed=seed)
    if digest not in (None, data.digest):
        raise UsageError(
            f"{folder or settings.data}: these are not the images that the run was made with, "
            "their digest is not the one on record: restore the files, or give the folder that "
            "has them as --data-dir"
        )
    if settings.holdout is None:
        return data
    try:
        return data.holdout(settings.holdout, seed)
    except UsageError as error:
        raise UsageError(f"--holdout {settings.holdout}: {error}") from error
