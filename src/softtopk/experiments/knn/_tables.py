"""The paper's table from run records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..errors import UsageError
from ..runs import Run, Table, provenance
from ._methods import METHODS, Method
from ._settings import Settings, changes_of, setting_names, settings_in

TITLES = {
    "digits": "Digits",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}


@dataclass(frozen=True)
class Row:
    """One method with one choice of settings, over its seeds."""

    method: Method
    settings: dict[str, Any]
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """In per cent, one for each seed that is finished."""
    training_seconds: tuple[float, ...]
    training_images: int
    test_images: int
    environment: dict[str, Any]

    @property
    def data(self) -> str:
        return self.settings["data"]

    @property
    def paper(self) -> float | None:
        """The paper's figure, which is for all images."""
        whole = self.settings["subset"] is None and self.settings["holdout"] is None
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
            "training_images": self.training_images,
            "test_images": self.test_images,
            "settings": self.settings,
            "environment": self.environment,
        }


def collect(runs: Iterable[Run]) -> list[Row]:
    """Rows in the order of the table; runs that differ in the seed only share one."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        if run.config.get("method") not in METHODS:
            raise UsageError(f"{run.path} is not a run of softtopk knn train")
        settings = settings_in(run.config)
        groups.setdefault((run.config["method"], *settings.items()), []).append(run)
    rows = []
    for (name, *items), group in groups.items():
        # The same run may be given twice, as its folder and as the folder above.
        distinct = {run.config["seed"]: run for run in group}
        done = [(seed, run.result) for seed, run in sorted(distinct.items()) if run.result]
        results = [result for _, result in done if result]
        rows.append(
            Row(
                method=METHODS[name],
                settings=dict(items),
                seeds=tuple(seed for seed, _ in done),
                accuracies=tuple(100 * result["accuracy"] for result in results),
                training_seconds=tuple(result["training_seconds"] for result in results),
                training_images=results[0]["training_images"] if results else 0,
                test_images=results[0]["test_images"] if results else 0,
                environment=group[0].environment,
            )
        )
    order = list(METHODS)
    return sorted(rows, key=lambda row: (row.data, order.index(row.method.name)))


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each data set."""
    out = []
    for data, group in groupby(rows, key=lambda row: row.data):
        of_data = list(group)
        varying = _varying(of_data)
        header = ["Method", "Accuracy", "Paper", "Training time"]
        if varying:
            header.insert(1, "Settings")
        sizes = {(row.training_images, row.test_images) for row in of_data if row.accuracies}
        size = ", ".join(f"{train:,} training and {test:,} test images" for train, test in sizes)
        out.append(
            Table(
                f"{TITLES[data]}: {size or 'nothing finished'}",
                header,
                [_cells(row, varying) for row in of_data],
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
        commands = dict.fromkeys(_command(of_data, settings) for settings in _distinct(of_data))
        sources = dict.fromkeys(
            f"{provenance(row.environment)}, threads: {row.settings['threads']}" for row in of_data
        )
        parts += [
            f"## {table.title}",
            table.to_markdown(),
            "Test accuracy in per cent: mean ± standard deviation over the seeds (their number in "
            "brackets). The training time is that of one seed, by the clock; *Paper* is Table 1 of "
            "Xie et al. (2020).",
            "\n".join(["```", *commands, "```"]),
            "\n".join(f"- {source}" for source in sources),
        ]
    return "\n\n".join(parts) + "\n"


def _cells(row: Row, varying: Sequence[str]) -> list[str]:
    cells = [row.method.label]
    if varying:
        cells.append(", ".join(f"{name} {row.settings[name]}" for name in varying))
    if not row.accuracies:
        return [*cells, "not finished", _paper(row), ""]
    accuracy = f"{statistics.fmean(row.accuracies):.2f}"
    if len(row.accuracies) > 1:
        accuracy += f" ± {statistics.stdev(row.accuracies):.2f} ({len(row.accuracies)})"
    seconds = statistics.fmean(row.training_seconds)
    return [*cells, accuracy, _paper(row), duration(seconds) if row.method.is_trained else "none"]


def _paper(row: Row) -> str:
    return "" if row.paper is None else f"{row.paper:.1f}"


def duration(seconds: float) -> str:
    """
    >>> duration(3.21), duration(65), duration(7300)
    ('3.2 s', '1 min 05 s', '2 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def _distinct(rows: Sequence[Row]) -> list[dict[str, Any]]:
    distinct: list[dict[str, Any]] = []
    for row in rows:
        if row.settings not in distinct:
            distinct.append(row.settings)
    return distinct


def _varying(rows: Sequence[Row]) -> list[str]:
    """The settings that tell rows apart, where several rows are of one method."""
    names = [row.method.name for row in rows]
    if len(set(names)) == len(names):
        return []
    return [name for name in setting_names() if len({str(row.settings[name]) for row in rows}) > 1]


def _command(rows: Sequence[Row], settings: dict[str, Any]) -> str:
    """The command that makes these rows again."""
    same = [row for row in rows if row.settings == settings]
    names = [row.method.name for row in same]
    methods = "all" if names == [m.name for m in METHODS.values() if m.paper] else ",".join(names)
    seeds = sorted({seed for row in same for seed in row.seeds})
    parts = [f"softtopk knn train --data {settings['data']}"]
    if settings["data"] != "digits":
        parts.append("--data-dir DIR")
    parts.append(
        f"--preset {settings['preset']} --method {methods} --seed {','.join(map(str, seeds)) or 0}"
    )
    parts += [_option(name, value) for name, value in changes_of(Settings(**settings)).items()]
    return " ".join([*parts, "--out RUN"])


def _option(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {'none' if value is None else value}"
