"""The paper's table from run records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..runs import Results, Run, Table, duration
from ..runs.rows import (
    Bundle,
    Row,
    collect_rows,
    command_lines,
    describe_settings,
    mean_and_deviation,
    mean_and_spread,
    page,
    varying,
)
from ..settings import as_options, recorded
from ._methods import ALL, METHODS, Method
from ._settings import (
    DATA,
    FILE,
    Settings,
    given_settings,
    kind_of,
    make_settings,
    method_for,
    relevant_settings,
)

TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
NOTE = (
    "Test accuracy in per cent: mean ± standard deviation over the seeds (their number in "
    "brackets). The training time is that of one seed, by the clock; {pretrained} has that "
    "of {ce}, whose features it takes."
)
PAPER = (
    " *Paper*: Table 1 of Xie et al. (2020), with a network of two convolutions for MNIST and "
    "ResNet-18 for CIFAR-10."
)
# Table 1 of the paper is about these numbers of training and test images.
CANONICAL = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}


@dataclass(frozen=True)
class MethodRow(Row):
    """One method with one choice of settings, over its seeds."""

    @property
    def method(self) -> Method:
        return method_for(self.part, self.data)

    @property
    def data(self) -> str:
        return self.settings["data"]

    @property
    def source(self) -> tuple[str, str]:
        """Tells data sets apart, also two files of one name."""
        return self.data, self.config.get("fingerprint") or ""

    @property
    def accuracies(self) -> tuple[float, ...]:
        """In per cent, one for each seed that is finished."""
        return tuple(100 * result["accuracy"] for result in self.results.values())

    @property
    def training_seconds(self) -> tuple[float, ...]:
        return tuple(result["training_seconds"] for result in self.results.values())

    @property
    def images(self) -> tuple[int, int] | None:
        """For training and for the test."""
        sizes = [(r["training_images"], r["test_images"]) for r in self.results.values()]
        return sizes[0] if sizes else None

    @property
    def paper(self) -> float | None:
        """The paper's figure, which is for all images."""
        whole = self.images == CANONICAL.get(self.data) and self.settings["holdout"] is None
        return self.method.paper.get(self.data) if whole else None

    def to_json(self) -> dict[str, Any]:
        mean, deviation = mean_and_deviation(self.accuracies)
        return {
            "method": self.part,
            "label": self.method.label,
            "data": self.data,
            "seeds": self.seeds,
            "accuracy": self.accuracies,
            "accuracy_mean": mean,
            "accuracy_std": deviation,
            "paper": self.paper,
            "training_seconds": self.training_seconds,
            "images": self.images,
            "settings": self.settings,
            "sources": self.sources,
        }


def results(runs: Iterable[Run]) -> Results:
    """A table for each data set."""
    rows = collect(runs)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.source)]
    tables = [_table(group) for group in groups]
    pages = (
        page(table, group, [_note(group[0].data)], command_lines(group, _given, _command))
        for table, group in zip(tables, groups, strict=True)
    )
    return Results(tables, "\n".join(pages), [row.to_json() for row in rows])


def collect(runs: Iterable[Run]) -> list[MethodRow]:
    """Rows in the order of the table."""
    rows = collect_rows(
        MethodRow,
        runs,
        part="method",
        settings_of=_settings_of,
        outcome="accuracy",
        identity=lambda run: run.config.get("fingerprint"),
    )
    order = list(METHODS)
    return sorted(rows, key=lambda row: (*row.source, order.index(row.part)))


def _settings_of(run: Run) -> dict[str, Any]:
    """The settings that the run's method depends on, with the temperature that it had."""
    settings = recorded(Settings, run.config)
    if run.config["relaxation"]:
        settings["eps"] = run.config["relaxation"]["eps"]
    return {
        name: settings[name]
        for name in relevant_settings(METHODS[run.config["method"]], settings["data"])
    }


def _table(rows: Sequence[MethodRow]) -> Table:
    told_apart = varying(rows, own=["eps"])  # each method has a temperature of its own
    compared = any(row.paper is not None for row in rows)
    header = ["Method", *["Settings"][: bool(told_apart)], "Accuracy"]
    header += [*["Paper"][:compared], "Training time"]
    unit = "rows" if kind_of(rows[0].data) == FILE else "images"
    sizes = dict.fromkeys(row.images for row in rows if row.images)
    size = ", ".join(f"{train:,} training and {test:,} test {unit}" for train, test in sizes)
    data = rows[0].data
    networks = {row.settings.get("network", "auto") for row in rows if row.method.is_trained}
    names = [TITLES.get(data, data), *sorted(networks - {"auto"})]
    title = f"{', '.join(names)}: {size or 'nothing finished'}"
    return Table(title, header, [_cells(row, told_apart, compared) for row in rows])


def _cells(row: MethodRow, told_apart: Sequence[str], compared: bool) -> list[str]:
    cells = [row.method.label]
    if told_apart:
        cells.append(describe_settings(row, told_apart))
    paper = ["" if row.paper is None else f"{row.paper:.1f}"][:compared]
    if not row.results:
        return [*cells, "not finished", *paper, ""]
    seconds, _ = mean_and_deviation(row.training_seconds)
    time = duration(seconds or 0.0) if row.method.is_trained else "none"
    return [*cells, mean_and_spread(row.accuracies), *paper, time]


def _note(data: str) -> str:
    labels = {name: method_for(name, data).label for name in ("pretrained", "ce")}
    return NOTE.format(**labels) + PAPER * (data in DATA)


def _given(row: MethodRow) -> Mapping[str, Any]:
    return given_settings(row.method, row.settings)


def _command(bundle: Bundle[MethodRow], out: str) -> list[str]:
    settings = bundle.settings
    start = {name: settings[name] for name in ("data", "preset")}
    names = "all" if tuple(bundle.parts) == ALL else ",".join(bundle.parts)
    parts = [
        f"softtopk knn train --data {settings['data']}",
        *["--data-dir DIR"][: settings["data"] in DATA[1:]],
        f"--preset {settings['preset']} --method {names} {bundle.seed_option}",
        *as_options(make_settings(start), settings),
        f"--out {out}",
    ]
    return [" ".join(parts)]
