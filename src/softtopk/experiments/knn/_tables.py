"""The paper's table from run records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..errors import UsageError
from ..runs import Run, Table, as_option, duration, provenance
from ._methods import METHODS, TABLE, Method
from ._settings import (
    changes_of,
    given_settings,
    relevant_settings,
    setting_names,
    settings_in,
)

TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}


# Table 1 of the paper is about these numbers of training and test images.
CANONICAL = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}


@dataclass(frozen=True)
class Row:
    """One method with one choice of settings, over its seeds."""

    method: Method
    settings: dict[str, Any]
    """Those that the method depends on."""
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """In per cent, one for each seed that is finished."""
    training_seconds: tuple[float, ...]
    images: tuple[int, int] | None
    """For training and for the test."""
    sources: tuple[str, ...]
    """Date, hardware and versions of the runs."""

    @property
    def data(self) -> str:
        return self.settings["data"]

    @property
    def paper(self) -> float | None:
        """The paper's figure, which is for all images."""
        whole = self.images == CANONICAL.get(self.data) and self.settings["holdout"] is None
        return self.method.paper.get(self.data) if whole else None

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "label": self.method.label,
            "data": self.data,
            "seeds": self.seeds,
            "accuracy": self.accuracies,
            "accuracy_mean": statistics.fmean(self.accuracies) if self.accuracies else None,
            "accuracy_std": statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None,
            "paper": self.paper,
            "training_seconds": self.training_seconds,
            "images": self.images,
            "settings": self.settings,
            "sources": self.sources,
        }


def collect(runs: Iterable[Run]) -> list[Row]:
    """Rows in the order of the table; runs that differ in the seed only share one."""
    groups: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in runs:
        if run.config.get("method") not in METHODS:
            raise UsageError(f"{run.path} is not a run of softtopk knn train")
        settings = _settings_of(run)
        group = groups.setdefault((run.config["method"], *settings.items()), {})
        other = group.setdefault(run.config["seed"], run)
        if other.result is None:  # of an unfinished and a finished one, the latter
            group[run.config["seed"]] = run
        elif run.result and run.result["accuracy"] != other.result["accuracy"]:
            raise UsageError(f"{run.path} and {other.path} differ in their result only: give one")
    order = list(METHODS)
    rows = [_row(METHODS[name], dict(items), group) for (name, *items), group in groups.items()]
    return sorted(rows, key=lambda row: (row.data, order.index(row.method.name)))


def _row(method: Method, settings: dict[str, Any], runs: dict[int, Run]) -> Row:
    done = [(seed, run, run.result) for seed, run in sorted(runs.items()) if run.result]
    results = [result for _, _, result in done if result]
    sizes = [(result["training_images"], result["test_images"]) for result in results]
    sources = (
        f"{provenance(run.environment)}, threads: {run.config['threads']}" for _, run, _ in done
    )
    return Row(
        method=method,
        settings=settings,
        seeds=tuple(seed for seed, _, _ in done),
        accuracies=tuple(100 * result["accuracy"] for result in results),
        training_seconds=tuple(result["training_seconds"] for result in results),
        images=sizes[0] if sizes else None,
        sources=tuple(dict.fromkeys(sources)),
    )


def _settings_of(run: Run) -> dict[str, Any]:
    """The settings that the run's method depends on, with the temperature that it had."""
    settings = settings_in(run.config)
    if run.config.get("relaxation"):
        settings["eps"] = run.config["relaxation"]["eps"]
    return {name: settings[name] for name in relevant_settings(METHODS[run.config["method"]])}


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each data set."""
    out = []
    for data, group in groupby(rows, key=lambda row: row.data):
        of_data = list(group)
        varying = _varying(of_data)
        compared = any(row.paper is not None for row in of_data)
        header = ["Method", *["Settings"][: bool(varying)], "Accuracy"]
        header += [*["Paper"][:compared], "Training time"]
        sizes = dict.fromkeys(row.images for row in of_data if row.images)
        size = ", ".join(f"{train:,} training and {test:,} test images" for train, test in sizes)
        out.append(
            Table(
                f"{TITLES[data]}: {size or 'nothing finished'}",
                header,
                [_cells(row, varying, compared) for row in of_data],
            )
        )
    return out


def to_markdown(rows: Sequence[Row]) -> str:
    """The tables with what made them."""
    parts = []
    for table, (_, group) in zip(
        tables(rows), groupby(rows, key=lambda row: row.data), strict=True
    ):
        of_data = list(group)
        parts += [
            f"## {table.title}",
            table.to_markdown(),
            "Test accuracy in per cent: mean ± standard deviation over the seeds (their number in "
            "brackets). The training time is that of one seed, by the clock; kNN+pretrained CNN "
            "has that of CE+CNN, whose features it takes. *Paper*: Table 1 of Xie et al. (2020).",
            "\n".join(["```", *_commands(of_data), "```"]),
            "\n".join(dict.fromkeys(f"- {source}" for row in of_data for source in row.sources)),
        ]
    return "\n\n".join(parts) + "\n"


def _cells(row: Row, varying: Sequence[str], compared: bool) -> list[str]:
    cells = [row.method.label]
    if varying:
        shown = [name for name in varying if name in row.settings]
        cells.append(", ".join(f"{name} {row.settings[name]}" for name in shown))
    paper = [_paper(row)] if compared else []
    if not row.accuracies:
        return [*cells, "not finished", *paper, ""]
    accuracy = f"{statistics.fmean(row.accuracies):.2f}"
    if len(row.accuracies) > 1:
        accuracy += f" ± {statistics.stdev(row.accuracies):.2f} ({len(row.accuracies)})"
    seconds = statistics.fmean(row.training_seconds)
    return [*cells, accuracy, *paper, duration(seconds) if row.method.is_trained else "none"]


def _paper(row: Row) -> str:
    return "" if row.paper is None else f"{row.paper:.1f}"


def _varying(rows: Sequence[Row]) -> list[str]:
    """The settings in which rows differ, other than the temperatures that are each method's own."""
    varying = []
    for name in setting_names():
        values = {str(row.settings[name]) for row in rows if name in row.settings}
        own = name == "eps" and len({row.method.name for row in rows}) == len(rows)
        if len(values) > 1 and not own:
            varying.append(name)
    return varying


def _commands(rows: Sequence[Row]) -> list[str]:
    """The commands that make these rows again; rows that do not contradict each other share one."""
    shared: list[tuple[list[str], tuple[int, ...], dict[str, Any]]] = []
    for row in rows:
        settings = given_settings(row.method, row.settings)
        for names, seeds, known in shared:
            agrees = all(known.get(name, value) == value for name, value in settings.items())
            if agrees and seeds == row.seeds:
                names.append(row.method.name)
                known.update(settings)
                break
        else:
            shared.append(([row.method.name], row.seeds, settings))
    names = ["RUN"] if len(shared) == 1 else [f"RUN{i}" for i in range(1, len(shared) + 1)]
    return [_command(*group, out) for group, out in zip(shared, names, strict=True)]


def _command(names: Sequence[str], seeds: Sequence[int], settings: dict[str, Any], out: str) -> str:
    parts = [f"softtopk knn train --data {settings['data']}"]
    if settings["data"] != "digits":
        parts.append("--data-dir DIR")
    parts.append(f"--preset {settings['preset']} --method {_names(names)}")
    parts.append(f"--seed {','.join(map(str, seeds)) or 0}")
    parts += [as_option(name, value) for name, value in changes_of(settings).items()]
    return " ".join([*parts, f"--out {out}"])


def _names(names: Sequence[str]) -> str:
    return "all" if list(names) == [method.name for method in TABLE] else ",".join(names)
