"""Rows of a table of results: parts of runs that differ in the seed only share one."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import UsageError
from ._directory import Run
from ._tables import Table, provenance


@dataclass(frozen=True)
class Row:
    """One part of an experiment with one choice of settings, over its seeds."""

    part: str
    settings: dict[str, Any]
    """Those that the part depends on, with the values that it used."""
    config: dict[str, Any]
    """The record of one of its runs."""
    results: dict[int, dict[str, Any]]
    """By seed, of the runs that are finished."""
    sources: tuple[str, ...]
    """Date, hardware and versions of these runs."""

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.results)


R = TypeVar("R", bound=Row)


def collect_rows(
    kind: type[R],
    runs: Iterable[Run],
    *,
    part: str,
    settings_of: Callable[[Run], Mapping[str, Any]],
    identity: Callable[[Run], Hashable] = lambda run: None,
    outcome: str,
) -> list[R]:
    """The rows that these runs make.

    Args:
        kind: The class of the rows.
        runs: Of single parts.
        part: The entry of their records that names the part.
        settings_of: The settings that a run depends on.
        identity: What else has to be equal in the runs of a row.
        outcome: The entry of the results that two runs cannot have different values of.
    """
    groups: dict[Hashable, tuple[dict[str, Any], dict[int, Run]]] = {}
    for run in runs:
        settings = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in settings_of(run).items()
        }
        key = (run.config[part], identity(run), *settings.items())
        group = groups.setdefault(key, (settings, {}))[1]
        other = group.setdefault(run.config["seed"], run)
        if other.result is None:  # of an unfinished and a finished one, the latter
            group[run.config["seed"]] = run
        elif run.result and run.result[outcome] != other.result[outcome]:
            raise UsageError(f"{run.path} and {other.path} differ in their result only: give one")
    return [_row(kind, part, settings, group) for settings, group in groups.values()]


def _row(kind: type[R], part: str, settings: dict[str, Any], runs: Mapping[int, Run]) -> R:
    done = {seed: run.result for seed, run in sorted(runs.items()) if run.result}
    config = next(iter(runs.values())).config
    sources = (
        f"{provenance(runs[seed].environment)}, threads: {runs[seed].config['threads']}"
        for seed in done
    )
    return kind(config[part], settings, config, done, tuple(dict.fromkeys(sources)))


def varying(rows: Sequence[Row], own: Collection[str]) -> list[str]:
    """The settings that tell rows apart. Those in ``own`` count only within a part."""
    found = []
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        by_part: dict[str, set[str]] = {}
        for row in rows:
            if name in row.settings:
                by_part.setdefault(row.part, set()).add(str(row.settings[name]))
        everywhere = set().union(*by_part.values())
        if max(map(len, by_part.values())) > 1 or (len(everywhere) > 1 and name not in own):
            found.append(name)
    return found


def describe_settings(row: Row, names: Iterable[str]) -> str:
    """Those of the settings that the row has, for a cell."""
    return ", ".join(f"{name} {row.settings[name]}" for name in names if name in row.settings)


def mean_and_spread(values: Sequence[float], sign: str = "") -> str:
    """
    >>> mean_and_spread([1.0, 2.0]), mean_and_spread([-0.001], sign="+"), mean_and_spread([])
    ('1.50 ± 0.71 (2)', '+0.00', '')
    """
    if not values:
        return ""
    text = f"{round(statistics.fmean(values), 2) + 0.0:{sign}.2f}"  # no minus before a zero
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.2f} ({len(values)})"


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """For a record: None where there are too few values."""
    return (
        statistics.fmean(values) if values else None,
        statistics.stdev(values) if len(values) > 1 else None,
    )


@dataclass(frozen=True)
class Bundle(Generic[R]):
    """Rows that one command makes again."""

    rows: list[R]
    settings: dict[str, Any]
    """That this command has to be given."""

    @property
    def parts(self) -> list[str]:
        return [row.part for row in self.rows]

    @property
    def seed_option(self) -> str:
        return f"--seed {','.join(map(str, self.rows[0].seeds))}"


def command_lines(
    rows: Iterable[R],
    given: Callable[[R], Mapping[str, Any]],
    lines: Callable[[Bundle[R], str], Sequence[str]],
    alike: Callable[[R], Any] = lambda row: None,
) -> list[str]:
    """The commands that make the finished rows again.

    Rows share a command if they have the same seeds, agree in ``alike``, and the settings that are
    to be ``given`` do not contradict each other. ``lines`` writes it, with the name of its folder.
    """
    bundles: list[Bundle[R]] = []
    for row in rows:
        if not row.results:
            continue
        settings = given(row)
        for known in bundles:
            first = known.rows[0]
            if (first.seeds, alike(first)) == (row.seeds, alike(row)) and all(
                known.settings.get(name, value) == value for name, value in settings.items()
            ):
                known.rows.append(row)
                known.settings.update(settings)
                break
        else:
            bundles.append(Bundle([row], dict(settings)))
    written = (
        line
        for number, bundle in enumerate(bundles, 1)
        for line in lines(bundle, "RUN" if len(bundles) == 1 else f"RUN{number}")
    )
    return list(dict.fromkeys(written))  # several may begin with the same explanation


def page(table: Table, rows: Sequence[Row], notes: Sequence[str], commands: Sequence[str]) -> str:
    """A table as Markdown, with notes, the commands that make it again, and its sources."""
    parts = [
        f"## {table.title}",
        table.to_markdown(),
        *notes,
        "\n".join(["```", *commands, "```"]) if commands else "",
        "\n".join(dict.fromkeys(f"- {source}" for row in rows for source in row.sources)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
