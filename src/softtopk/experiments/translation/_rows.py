"""The rows of the comparison, and what each of them is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..runs import Run
from ..runs.rows import Row, collect_rows
from ..settings import in_groups, recorded, relevant
from ._settings import ATTENTION, FIRST, MODEL, PRETRAIN, STAGES, Settings, search_options

SPLITS = ("valid", "test")
# Known by the text itself, which its name and its place do not tell.
_IDENTITY = ("data", "source", "target", "max_words", "subset")


@dataclass(frozen=True)
class StageRow(Row):
    """One stage with one choice of settings, over its seeds."""

    @property
    def corpus(self) -> dict[str, Any]:
        """Name, languages, fingerprint and numbers of sentences."""
        return self.config["corpus"]

    @property
    def init(self) -> str | None:
        """Digest of the weights that it began with, if they are not of the same run."""
        return self.config["init"]

    @property
    def pieces(self) -> dict[str, str] | None:
        """Digests of the pieces by language, if they were not learned from the same text."""
        return self.config["pieces"]

    @property
    def origin(self) -> tuple[str, str | None]:
        """The text and the weights that it began with."""
        return self.corpus["fingerprint"], self.init

    @property
    def signatures(self) -> tuple[str, ...]:
        found = (s for result in self.results.values() for s in result["signatures"].values())
        return tuple(dict.fromkeys(found))

    def bleu(self, split: str, beam: str) -> dict[int, float]:
        """By seed, of those that have it."""
        return {
            seed: result[split][beam]["bleu"]
            for seed, result in self.results.items()
            if beam in result.get(split, {})
        }

    @property
    def beams(self) -> tuple[int, ...]:
        found = (
            result[split] for result in self.results.values() for split in SPLITS if split in result
        )
        return tuple(sorted({int(beam) for scores in found for beam in scores}))

    @property
    def updates(self) -> tuple[int, ...]:
        """That were made, which can be fewer than were asked for."""
        return tuple(result["updates"] for result in self.results.values())

    def attention_tokens(self, split: str) -> list[float]:
        """Source tokens that hold 95 % of the attention, of the seeds for which it was counted."""
        found = (result.get("attention_tokens", {}) for result in self.results.values())
        return [counts[split] for counts in found if split in counts]

    def per_update(self, measure: str) -> float | None:
        """``update_seconds``, by the clock, or ``update_cpu_seconds``."""
        updates = sum(self.updates)
        seconds = sum(result[measure] for result in self.results.values())
        return seconds / updates if updates else None


def collect(runs: Iterable[Run]) -> list[StageRow]:
    """Rows in the order of the stages."""
    rows = collect_rows(
        StageRow,
        runs,
        part="stage",
        settings_of=_settings_of,
        identity=lambda run: (run.config["corpus"]["fingerprint"], run.config["init"]),
        outcome="valid",
    )
    return sorted(
        rows,
        key=lambda row: (row.corpus["name"], row.corpus["fingerprint"], STAGES.index(row.part)),
    )


def _settings_of(run: Run) -> dict[str, Any]:
    """The settings that the run's stage depends on, with the temperature that it had."""
    stage = run.config["stage"]
    settings = recorded(Settings, run.config)
    settings.update(search_options(stage, Settings(**settings)))
    left_out = {*_IDENTITY, *(in_groups(Settings, FIRST) if run.config["init"] else ())}
    names = relevant(Settings, {**settings, "objective": stage})
    return {name: settings[name] for name in names if name not in left_out}


def forcing_beside(row: StageRow, rows: Sequence[StageRow]) -> StageRow | None:
    """Teacher forcing with the same number of updates from the same weights.

    Each objective may have a learning rate of its own; of several, the best in validation counts.
    """
    if row.part in (PRETRAIN, "teacher-forcing"):
        return None
    alike = ["updates", "batch_size", "length_penalty"]
    alike += in_groups(Settings, MODEL, ATTENTION, FIRST)
    same = [
        other
        for other in rows
        if other.part == "teacher-forcing"
        and other.results
        and other.origin == row.origin
        and all(other.settings.get(name) == row.settings.get(name) for name in alike)
    ]
    return max(same, key=_validation, default=None)


def softmax_beside(row: StageRow, rows: Sequence[StageRow]) -> StageRow | None:
    """The same with the softmax of all source tokens in place of SOFT top-k."""
    if row.settings["attention"] == "softmax":
        return None
    same = (
        other
        for other in rows
        if other.settings["attention"] == "softmax"
        and _trained_alike(other) == _trained_alike(row)
        and other.results
        and (other.part, other.origin) == (row.part, row.origin)
    )
    return next(same, None)


def _trained_alike(row: StageRow) -> dict[str, Any]:
    """The settings of the training, without those of the attention."""
    left_out = {*in_groups(Settings, ATTENTION), "threads", "device"}
    return {name: value for name, value in row.settings.items() if name not in left_out}


def _validation(row: StageRow) -> float:
    found = row.bleu("valid", str(max(row.beams)))
    return fmean(found.values())


def differences(row: StageRow, baseline: StageRow | None, split: str, beam: str) -> list[float]:
    """Of the BLEU from the baseline's, by the seeds that both have."""
    if baseline is None:
        return []
    ours, theirs = row.bleu(split, beam), baseline.bleu(split, beam)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


BASELINES: dict[str, Callable[[StageRow, Sequence[StageRow]], StageRow | None]] = {
    "teacher forcing": forcing_beside,
    "softmax attention": softmax_beside,
}
"""What a row is compared with, if that is among the rows."""
