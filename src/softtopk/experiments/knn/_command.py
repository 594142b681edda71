"""The commands `softtopk knn train | table | plot | predict`, without their parsing."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from softtopk.knn import DivergedError

from .. import images
from .._files import check_out
from ..errors import UsageError, require
from ..runs import (
    INTERRUPTED,
    Interrupt,
    Interrupted,
    Report,
    Run,
    check_device,
    check_tables,
    find_runs,
    locked,
    open_run,
    parse_seeds,
    write_atomic,
    write_tables,
)
from ._execute import Model, Samples, execute, relaxation_options
from ._methods import METHODS, Method, parse_methods
from ._pictures import PROJECTIONS, Curve, Panel, draw_curves, draw_features
from ._settings import Settings, make_settings, settings_in
from ._tables import collect, tables, to_markdown

COMMAND = "knn train"
WHERE = "data_dir"
WHAT = ("methods", "seeds")
FREE = (WHERE, "device")  # may change when a run is resumed
ABSENT = settings_in({})


@dataclass(frozen=True)
class Plan:
    """All that a call of the training command is to do."""

    settings: Settings
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    data_dir: str | None

    def to_config(self) -> dict[str, Any]:
        return {
            "command": COMMAND,
            "methods": [method.name for method in self.methods],
            "seeds": list(self.seeds),
            WHERE: self.data_dir,
            **asdict(self.settings),
        }


def make_plan(
    out: Path,
    *,
    resume: bool,
    preset: str | None,
    methods: str | None,
    seeds: str | None,
    data_dir: Path | None,
    given: Mapping[str, Any],
) -> Plan:
    """What was asked for, and with ``resume`` the rest as the run in ``out`` has it."""
    here = str(data_dir.resolve()) if data_dir else None
    chosen = parse_methods(methods) if methods else ()
    numbers = parse_seeds(seeds) if seeds else ()
    if resume and (out / "config.json").exists():
        before = _config(out)
        kept = settings_in(before)
        if preset:
            kept.update(asdict(make_settings(kept["data"], preset, {"threads": kept["threads"]})))
        return Plan(
            settings=Settings(**{**kept, **given}),
            methods=_union(chosen, before["methods"]),
            seeds=tuple(sorted({*numbers, *before["seeds"]})),
            data_dir=here or before[WHERE],
        )
    given = {"threads": torch.get_num_threads(), **given}
    settings = make_settings(given.get("data", "digits"), preset, given)
    return Plan(settings, chosen or parse_methods("soft-topk"), numbers or (0,), here)


def train(out: Path, plan: Plan, *, resume: bool) -> int:
    """Run all methods with all seeds, print and write the table, and return the exit code."""
    _require("rich", "sklearn", "safetensors")
    report = Report()
    check_device(plan.settings.device)
    todo = [
        (method, seed)
        for seed in plan.seeds
        for method in _by_dependency(plan.methods)
        if Run(_folder(out, method, seed)).result is None
    ]

    @lru_cache(maxsize=1)
    def samples(seed: int) -> Samples:
        return Samples.of(_load(plan.settings, plan.data_dir, seed))

    if todo:  # before anything is written: the data may be missing, or too few
        _check_size(plan.settings, len(samples(todo[0][1]).train))
    if resume and not (out / "config.json").exists():
        report.say(f"there is no run in {out} yet: starting one")
    torch.set_num_threads(plan.settings.threads)
    code = 0
    with locked(out), Interrupt() as interrupt:
        open_run(out, plan.to_config(), resume=resume, free=(*WHAT, *FREE), absent=ABSENT)
        try:
            for method, seed in todo:
                code |= _run_one(out, plan, method, seed, samples(seed), report, interrupt)
        except (Interrupted, KeyboardInterrupt):
            again = shlex.join(["softtopk", "knn", "train", "--out", str(out), "--resume"])
            report.say(f"stopped; go on with: {again}")
            return INTERRUPTED
        rows = collect(_units(out))
        for table in tables(rows):
            report.console.print(table.to_rich())
        written = write_tables(out / "table", to_markdown(rows), [row.to_json() for row in rows])
        report.say(f"results: {', '.join(map(str, written))}")
    return code


def table(paths: Sequence[Path], out: Path | None) -> int:
    """Print the table of these runs; with ``out``, write it as Markdown and beside it as JSON."""
    _require("rich")
    if out is not None:
        check_tables(out)
    rows = collect(_units(*paths))
    report = Report()
    for one in tables(rows):
        report.console.print(one.to_rich())
    if out is not None:
        written = write_tables(out, to_markdown(rows), [row.to_json() for row in rows])
        report.say(f"written: {', '.join(map(str, written))}")
    return 0


def plot(
    path: Path,
    *,
    methods: str | None,
    projection: str,
    data_dir: Path | None,
    out: Path | None,
) -> int:
    """Draw the feature spaces of a run's methods and their training curves."""
    _require("rich", "sklearn", "safetensors", "matplotlib")
    if projection not in PROJECTIONS:
        raise UsageError(f"--projection {projection!r}: give one of {', '.join(PROJECTIONS)}")
    report = Report()
    runs = _first_seeds(_units(path))
    wanted = [method.name for method in parse_methods(methods)] if methods else list(runs)
    missing = [name for name in wanted if name not in runs]
    if missing:
        raise UsageError(f"--method {','.join(missing)}: {path} has {', '.join(runs)} only")
    folder = out or path
    check_out(folder, folder=True)
    panels = []
    # Without a choice: what there is to see, the images as they are and the features of ours.
    shown = wanted if methods else [name for name in ("knn", "soft-topk") if name in runs] or wanted
    for name in shown:
        model, data = _trained(runs[name], data_dir)
        features = model.features(model.samples.test).numpy()
        panels.append(Panel(model.method.label, features, data.test.labels.numpy()))
    written = [draw_features(panels, data.classes, folder / "features.png", projection=projection)]
    curves = {
        METHODS[name].label: _curve(metrics) for name in wanted if (metrics := runs[name].metrics)
    }
    if curves:
        written.append(draw_curves(curves, folder / "curves.png"))
    for picture in written:
        report.say(f"picture: {picture}")
    return 0


def predict(
    path: Path, file: Path, *, method: str | None, data_dir: Path | None, out: Path | None
) -> str:
    """Classify the images of a file: lines of number, class and probability, as CSV."""
    _require("sklearn", "safetensors")
    runs = _first_seeds(_units(path))
    name = method or ("soft-topk" if "soft-topk" in runs else next(iter(runs)))
    if method is None and name != "soft-topk" and len(runs) > 1:
        raise UsageError(f"--method: give one of those that {path} has: {', '.join(runs)}")
    if name not in runs:
        raise UsageError(f"--method {name}: {path} has {', '.join(runs)} only")
    if out is not None:
        check_out(out)
    model, data = _trained(runs[name], data_dir)
    inputs = data.normalise(images.read_images(file, data.shape, maximum=data.maximum))
    best = model.probabilities(inputs).max(-1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "class", "probability"])
    for number, (probability, index) in enumerate(zip(*best, strict=True)):
        writer.writerow([number, data.classes[int(index)], f"{float(probability):.4f}"])
    if out is not None:
        write_atomic(out, text.getvalue())
        return f"written: {out}\n"
    return text.getvalue()


def _run_one(
    out: Path,
    plan: Plan,
    method: Method,
    seed: int,
    samples: Samples,
    report: Report,
    interrupt: Interrupt,
) -> int:
    interrupt.check()
    config = {
        "command": COMMAND,
        "method": method.name,
        "features": method.features,
        "relaxation": relaxation_options(method, plan.settings) if method.relaxation else None,
        "seed": seed,
        WHERE: plan.data_dir,
        **asdict(plan.settings),
    }
    folder = _folder(out, method, seed)
    run = open_run(folder, config, resume=True, free=FREE, absent=ABSENT)
    relatives = [Run(_folder(out, other, seed)) for other in METHODS.values()]
    relatives = [other for other in relatives if (other.path / "config.json").exists()]
    try:
        with report.warnings():
            result = execute(
                method, plan.settings, seed, samples, run, report, interrupt, relatives
            )
    except DivergedError as error:
        report.say(f"{method.label}, seed {seed}: {error}")
        return 1
    report.say(f"{method.label}, seed {seed}: test accuracy {100 * result['accuracy']:.2f} %")
    return 0


def _folder(out: Path, method: Method, seed: int) -> Path:
    return out / method.name / f"seed-{seed}"


def _check_size(settings: Settings, n: int) -> None:
    templates = n - min(settings.batch_size, n // 2)
    if settings.k > templates:
        raise UsageError(
            f"--k {settings.k}: of {n} training images {templates} are left as templates; give a "
            "smaller --k or more images"
        )


def _curve(metrics: Sequence[Mapping[str, Any]]) -> Curve:
    return Curve(
        [record["epoch"] for record in metrics],
        [record["loss"] for record in metrics],
        [record.get("accuracy", math.nan) for record in metrics],  # an autoencoder has none
    )


def _by_dependency(methods: Sequence[Method]) -> list[Method]:
    """In the order of the table, but kNN+pretrained CNN after CE+CNN, whose features it takes."""
    return sorted(methods, key=lambda method: method.name == "pretrained")


def _union(chosen: Sequence[Method], names: Sequence[str]) -> tuple[Method, ...]:
    return tuple(m for m in METHODS.values() if m in chosen or m.name in names)


def _load(settings: Settings, data_dir: str | Path | None, seed: int) -> images.ImageData:
    folder = Path(data_dir) if data_dir else None
    data = images.load(settings.data, folder, subset=settings.subset, seed=seed)
    if settings.holdout is None:
        return data
    try:
        return data.holdout(settings.holdout, seed)
    except UsageError as error:
        raise UsageError(f"--holdout {settings.holdout}: {error}") from error


def _trained(run: Run, data_dir: Path | None) -> tuple[Model, images.ImageData]:
    """The model of a finished run, with its data."""
    # On the CPU, also if it was trained on a device that this machine may not have.
    settings = Settings(**{**settings_in(run.config), "device": "cpu"})
    seed = run.config["seed"]
    data = _load(settings, data_dir or run.config[WHERE], seed)
    model = Model(METHODS[run.config["method"]], settings, Samples.of(data), seed)
    if model.objective is not None:
        model.objective.load_state_dict(run.load_weights())
    return model, data


def _units(*paths: Path) -> list[Run]:
    """The runs of single methods in these folders."""
    runs = [run for run in find_runs(paths) if run.config.get("command") == COMMAND]
    units = [run for run in runs if "method" in run.config]
    if not units:
        names = ", ".join(map(str, paths))
        raise UsageError(f"{names}: there is no run of softtopk knn train in it")
    return units


def _first_seeds(runs: Sequence[Run]) -> dict[str, Run]:
    """The finished run of the smallest seed, by method, in the order of the table."""
    done = sorted((r for r in runs if r.result), key=lambda run: -run.config["seed"])
    first: dict[str, Run] = {}
    for run in done:
        other = first.get(run.config["method"])
        if other and other.config["seed"] == run.config["seed"]:
            raise UsageError(
                f"{other.path} and {run.path} are of the same method: give one of them"
            )
        first[run.config["method"]] = run
    if not first:
        raise UsageError("no method of this run is finished: go on with --resume")
    return {name: first[name] for name in METHODS if name in first}


def _config(out: Path) -> dict[str, Any]:
    config = Run(out).config
    if config.get("command") != COMMAND:
        raise UsageError(f"--out {out}: this is not a run of softtopk knn train")
    if "methods" not in config:
        raise UsageError(f"--out {out}: this is a part of a run; give the folder that holds it")
    return config


def _require(*modules: str) -> None:
    extras = {"rich": "cli", "sklearn": "knn", "safetensors": "knn", "matplotlib": "plot"}
    packages = {"sklearn": "scikit-learn"}
    for module in modules:
        require(module, "this command", extras[module], packages.get(module))
