"""The commands `softtopk knn plot | predict`."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._files import check_out
from .._splits import Data
from ..errors import UsageError, require_modules
from ..runs import Report, Run, write_atomic
from ..settings import recorded, setting
from ._data import load, own_data
from ._execute import Model, Samples
from ._methods import METHODS, in_order
from ._pictures import Curve, Panel, Projection, draw_curves, draw_features
from ._settings import Settings, method_for
from ._train import EXPERIMENT, FromFiles


@dataclass(frozen=True, kw_only=True)
class Plot(FromFiles):
    """Draw the feature space (features.png) and the training curves (curves.png) of a run.

    Example: softtopk knn plot run --method knn,soft-topk
    """

    run: Path = setting(help="Folder with a run.", argument=True)
    method: tuple[str, ...] = setting(
        (), "The methods to show.", choices=tuple(METHODS), shown="all curves, features of two"
    )
    projection: Projection = setting("tsne", "Of the features to a plane.")
    out: Path | None = setting(None, "Folder for the pictures.", shown="that of the run")


@dataclass(frozen=True, kw_only=True)
class Predict(FromFiles):
    """Classify samples with a trained classifier: prints number, class and probability as CSV.

    The columns of a table may be in another order; others than those of the training are not used.

    Example: softtopk knn predict run new.csv
    """

    run: Path = setting(help="Folder with a run.", argument=True)
    file: Path = setting(
        help="A table, or images: a folder, .png, .jpg, .npy or IDX (also gzipped).", argument=True
    )
    method: str | None = setting(None, "One of the run's methods.", shown="soft-topk")
    out: Path | None = setting(None, "Write CSV to this file, not to the terminal.")


def plot(options: Plot) -> int:
    """Draw the feature spaces of a run's methods and their training curves."""
    require_modules("rich", "sklearn", "safetensors", "matplotlib")
    report = Report()
    runs = _first_seeds(options.run)
    wanted = in_order(options.method) or tuple(runs)
    missing = [name for name in wanted if name not in runs]
    if missing:
        raise UsageError(f"--method {','.join(missing)}: {options.run} has {', '.join(runs)} only")
    folder = options.out or options.run
    check_out(folder, folder=True)
    panels = []
    shown = wanted
    if not options.method:  # what there is to see: the images as they are and the features of ours
        shown = tuple(name for name in ("knn", "soft-topk") if name in runs) or wanted
    for name in shown:
        model, data = _trained(runs[name], options.data_dir)
        features = model.features(model.samples.test).numpy()
        panels.append(Panel(model.method.label, features, data.test.labels.numpy()))
    picture = folder / "features.png"
    written = [draw_features(panels, data.classes, picture, projection=options.projection)]
    curves = {
        method_for(name, runs[name].config["data"]).label: _curve(metrics)
        for name in wanted
        if (metrics := runs[name].metrics)
    }
    if curves:
        written.append(draw_curves(curves, folder / "curves.png"))
    for picture in written:
        report.say(f"picture: {picture}")
    return 0


def predict(options: Predict) -> int:
    """Classify the samples of a file: lines of number, class and probability, as CSV."""
    require_modules("sklearn", "safetensors")
    runs, method, out = _first_seeds(options.run), options.method, options.out
    name = method or ("soft-topk" if "soft-topk" in runs else next(iter(runs)))
    if method is None and name != "soft-topk" and len(runs) > 1:
        raise UsageError(f"--method: give one of those that {options.run} has: {', '.join(runs)}")
    if name not in runs:
        raise UsageError(f"--method {name}: {options.run} has {', '.join(runs)} only")
    if out is not None:
        check_out(out)
    model, data = _trained(runs[name], options.data_dir)
    names, inputs, note = data.read(options.file)
    if note:
        print(note, file=sys.stderr)
    best = model.probabilities(data.normalise(inputs)).max(-1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([data.unit, "class", "probability"])
    for sample, probability, index in zip(names, *best, strict=True):
        writer.writerow([sample, data.classes[int(index)], f"{float(probability):.4f}"])
    if out is None:
        print(text.getvalue(), end="")
    else:
        write_atomic(out, text.getvalue())
        print(f"written: {out}")
    return 0


def _curve(metrics: Sequence[Mapping[str, Any]]) -> Curve:
    return Curve(
        [record["epoch"] for record in metrics],
        [record["loss"] for record in metrics],
        [record.get("accuracy", math.nan) for record in metrics],  # an autoencoder has none
    )


def _trained(run: Run, data_dir: Path | None) -> tuple[Model, Data]:
    """The model of a finished run, with its data."""
    # On the CPU, also if it was trained on a device that this machine may not have.
    settings = Settings(**{**recorded(Settings, run.config), "device": "cpu"})
    seed = run.config["seed"]
    own = own_data(run.path.resolve().parents[1], run.config)
    folder, fingerprint = data_dir or run.config["data_dir"], run.config.get("fingerprint")
    data = load(settings, folder, own, seed, fingerprint)
    model = Model(method_for(run.config["method"], settings.data), settings, Samples.of(data), seed)
    if model.objective is not None:
        model.objective.load_state_dict(run.load_weights())
    return model, data


def _first_seeds(path: Path) -> dict[str, Run]:
    """The finished run of the smallest seed, by method, in the order of the table."""
    first: dict[str, Run] = {}
    for run in EXPERIMENT.finished(path):
        other = first.setdefault(run.config["method"], run)
        if other is not run and other.config["seed"] == run.config["seed"]:
            raise UsageError(
                f"{other.path} and {run.path} are of the same method: give one of them"
            )
    return first
