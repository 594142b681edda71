"""The paper's comparison of training objectives, from run records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..errors import UsageError
from ..runs import Run, Table, as_option, provenance
from ._settings import (
    HABITS,
    MODEL,
    PRETRAIN,
    PRETRAIN_ONLY,
    SELECTION,
    STAGES,
    Settings,
    changes_of,
    relevant_settings,
    search_options,
    settings_in,
)

PAPER = {
    "teacher forcing": "Table 2 of Xie et al. (2020), on WMT'14 English to French, has 35.38 BLEU "
    "for teacher forcing and 36.27 for the hybrid with soft beam search.",
    "softmax attention": "Table 3 of Xie et al. (2020), on WMT'16 English to German, has 36.54 "
    "BLEU for softmax attention and 37.30 for top-k attention.",
}
"""By what the paper compares with."""
ELSEWHERE = (
    "Those figures are of other data and of a larger model, and cannot be compared with these."
)
SPLITS = ("valid", "test")
# Known by the text itself, which its name and its place do not tell.
_IDENTITY = ("data", "source", "target", "max_words", "subset")


@dataclass(frozen=True)
class Row:
    """One stage with one choice of settings, over its seeds."""

    stage: str
    corpus: dict[str, Any]
    """Name, languages, fingerprint and numbers of sentences."""
    init: str | None
    """Digest of the weights that it began with, if they are not of the same run."""
    pieces: dict[str, str] | None
    """Digests of the pieces by language, if they were not learned from the same text."""
    settings: dict[str, Any]
    """Those that the stage depends on."""
    results: dict[int, dict[str, Any]]
    """By seed."""
    sources: tuple[str, ...]
    """Date, hardware and versions of the runs."""
    signatures: tuple[str, ...]

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

    def to_json(self, rows: Sequence[Row]) -> dict[str, Any]:
        baselines = {name: find(self, rows) for name, find in BASELINES.items()}
        return {
            "stage": self.stage,
            "corpus": self.corpus,
            "init": self.init,
            "pieces": self.pieces,
            "settings": self.settings,
            "seeds": list(self.results),
            "updates": self.updates,
            "best_updates": [result["best_update"] for result in self.results.values()],
            **{
                split: {
                    str(beam): {
                        **_summary(list(self.bleu(split, str(beam)).values())),
                        "chrf": [
                            result[split][str(beam)]["chrf"]
                            for result in self.results.values()
                            if str(beam) in result.get(split, {})
                        ],
                        **{
                            f"over_{name.replace(' ', '_')}": _summary(
                                differences(self, baseline, split, str(beam))
                            )
                            for name, baseline in baselines.items()
                        },
                    }
                    for beam in self.beams
                }
                for split in SPLITS
            },
            "attention_tokens": {split: self.attention_tokens(split) for split in SPLITS},
            "seconds_per_update": self.per_update("update_seconds"),
            "cpu_seconds_per_update": self.per_update("update_cpu_seconds"),
            "signatures": self.signatures,
            "sources": self.sources,
        }


def collect(runs: Iterable[Run]) -> list[Row]:
    """Rows in the order of the stages; runs that differ in the seed only share one."""
    groups: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in runs:
        stage = run.config["stage"]
        settings = _settings_of(run)
        group = groups.setdefault(
            (stage, run.config["corpus"]["fingerprint"], run.config["init"], *settings.items()), {}
        )
        other = group.setdefault(run.config["seed"], run)
        if other.result is None:  # of an unfinished and a finished one, the latter
            group[run.config["seed"]] = run
        elif run.result and run.result["valid"] != other.result["valid"]:
            raise UsageError(f"{run.path} and {other.path} differ in their result only: give one")
    rows = [
        _row(stage, init, dict(items), group) for (stage, _, init, *items), group in groups.items()
    ]
    return sorted(
        rows,
        key=lambda row: (row.corpus["name"], row.corpus["fingerprint"], STAGES.index(row.stage)),
    )


def _row(stage: str, init: str | None, settings: dict[str, Any], runs: dict[int, Run]) -> Row:
    done = {seed: run.result for seed, run in sorted(runs.items()) if run.result}
    sources = (
        f"{provenance(runs[seed].environment)}, threads: {runs[seed].config['threads']}"
        for seed in done
    )
    signatures = (sign for result in done.values() for sign in result["signatures"].values())
    return Row(
        stage=stage,
        corpus=next(iter(runs.values())).config["corpus"],
        init=init,
        pieces=next(iter(runs.values())).config.get("pieces"),
        settings=settings,
        results=done,
        sources=tuple(dict.fromkeys(sources)),
        signatures=tuple(dict.fromkeys(signatures)),
    )


def _settings_of(run: Run) -> dict[str, Any]:
    """The settings that the run's stage depends on, with the temperature that it had."""
    stage = run.config["stage"]
    settings = settings_in(run.config)
    settings.update(search_options(stage, Settings(**settings)))
    names = [name for name in relevant_settings(stage, settings) if name not in _IDENTITY]
    if run.config["init"]:
        names = [name for name in names if name not in PRETRAIN_ONLY]
    return {name: _frozen(settings[name]) for name in names}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def forcing_beside(row: Row, rows: Sequence[Row]) -> Row | None:
    """Teacher forcing with the same number of updates from the same weights.

    Each objective may have a learning rate of its own; of several, the best in validation counts.
    """
    if row.stage in (PRETRAIN, "teacher-forcing"):
        return None
    same = [
        other
        for other in rows
        if other.stage == "teacher-forcing"
        and other.results
        and (other.corpus["fingerprint"], other.init) == (row.corpus["fingerprint"], row.init)
        and all(
            other.settings.get(name) == row.settings.get(name)
            for name in ("updates", "batch_size", "length_penalty", *MODEL, *PRETRAIN_ONLY)
        )
    ]
    return max(same, key=_validation, default=None)


def softmax_beside(row: Row, rows: Sequence[Row]) -> Row | None:
    """The same with the softmax of all source tokens in place of SOFT top-k."""
    if row.settings["attention"] == "softmax":
        return None
    same = (
        other
        for other in rows
        if other.settings["attention"] == "softmax"
        and _trained_alike(other) == _trained_alike(row)
        and other.results
        and (other.stage, other.corpus["fingerprint"], other.init)
        == (row.stage, row.corpus["fingerprint"], row.init)
    )
    return next(same, None)


def _trained_alike(row: Row) -> dict[str, Any]:
    """The settings of the training, without those of the attention."""
    left_out = {"attention", *SELECTION, "threads", "device"}
    return {name: value for name, value in row.settings.items() if name not in left_out}


BASELINES: dict[str, Callable[[Row, Sequence[Row]], Row | None]] = {
    "teacher forcing": forcing_beside,
    "softmax attention": softmax_beside,
}
"""What a row is compared with, if that is among the rows."""


def _validation(row: Row) -> float:
    found = row.bleu("valid", str(max(row.beams)))
    return statistics.fmean(found.values())


def differences(row: Row, baseline: Row | None, split: str, beam: str) -> list[float]:
    """Of the BLEU from the baseline's, by the seeds that both have."""
    if baseline is None:
        return []
    ours, theirs = row.bleu(split, beam), baseline.bleu(split, beam)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each corpus."""
    return [_table(group) for group in _by_corpus(rows)]


def _table(rows: Sequence[Row]) -> Table:
    varying = _varying(rows)
    beams = sorted({beam for row in rows for beam in row.beams})
    columns = [(split, str(beam)) for split in SPLITS for beam in beams]
    columns = [c for c in columns if any(row.bleu(*c) for row in rows)]
    compared = _compared(rows) if columns else []
    split = _counted(rows)
    header = ["Objective", *["Settings"][: bool(varying)], "Updates"]
    header += [f"{split}, beam {beam}" for split, beam in columns]
    header += [f"Over {name}" for name in compared]
    header += ["Tokens with 95 %"][: bool(split)]
    corpus = rows[0].corpus
    counts = ", ".join(f"{corpus['pairs'][part]:,} {part}" for part in ("train", "valid", "test"))
    title = f"{corpus['name']}, {corpus['source']} to {corpus['target']}: {counts} pairs"
    return Table(
        title,
        [*header, "Seconds per update"],
        [_cells(row, rows, varying, columns, compared, split) for row in rows],
    )


def _compared(rows: Sequence[Row]) -> list[str]:
    """What some of the rows are compared with."""
    return [name for name, find in BASELINES.items() if any(find(row, rows) for row in rows)]


def _counted(rows: Sequence[Row]) -> str | None:
    """The split in which the tokens that hold the attention were counted."""
    splits = [split for split in SPLITS if any(row.attention_tokens(split) for row in rows)]
    return splits[-1] if splits else None


def _cells(
    row: Row,
    rows: Sequence[Row],
    varying: Sequence[str],
    columns: Sequence[tuple[str, str]],
    compared: Sequence[str],
    split: str | None,
) -> list[str]:
    cells = [row.stage]
    if varying:
        shown = [name for name in varying if name in row.settings]
        init = [f"init {row.init[:7]}"] if "init" in varying and row.init else []
        cells.append(", ".join([*init, *(f"{name} {row.settings[name]}" for name in shown)]))
    if not row.results:
        width = len(columns) + len(compared) + (split is not None)
        return [*cells, "not finished", *[""] * width, ""]
    made = sorted(set(row.updates))
    cells.append(f"{made[0]:,}" if len(made) == 1 else f"{made[0]:,} to {made[-1]:,}")
    cells += [mean_and_spread(list(row.bleu(*column).values())) for column in columns]
    for name in compared:
        found = differences(row, BASELINES[name](row, rows), *columns[-1])
        cells.append(mean_and_spread(found, sign="+"))
    if split is not None:
        cells.append(mean_and_spread(row.attention_tokens(split)))
    seconds = row.per_update("update_seconds")
    return [*cells, f"{seconds:.3f}" if seconds else ""]


def mean_and_spread(values: Sequence[float], sign: str = "") -> str:
    """
    >>> mean_and_spread([1.0, 2.0]), mean_and_spread([-0.001], sign="+"), mean_and_spread([])
    ('1.50 ± 0.71 (2)', '+0.00', '')
    """
    if not values:
        return ""
    text = f"{round(statistics.fmean(values), 2) + 0.0:{sign}.2f}"  # no minus before a zero
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.2f} ({len(values)})"


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [row.to_json(rows) for row in rows]


def to_markdown(rows: Sequence[Row]) -> str:
    """The tables with what made them."""
    parts = []
    for group in _by_corpus(rows):
        table, compared = _table(group), _compared(group)
        signatures = dict.fromkeys(sign for row in group for sign in row.signatures)
        parts += [
            f"## {table.title}",
            table.to_markdown(),
            "BLEU: mean ± standard deviation over the seeds (their number in brackets), of the "
            "weights that were best in validation. *Over ...*: the difference in the last column "
            "of BLEU from a model trained by teacher forcing, or with softmax attention, with the "
            "same number of updates, seed by seed. *Tokens with 95 %*: of the source, the largest "
            "weights of each head, on average over the tokens of the references. The seconds are "
            "by the clock, without validations.",
            " ".join([*(PAPER[name] for name in compared), ELSEWHERE]) if compared else "",
            "\n".join(["```", *_commands(group), "```"]),
            "\n".join(f"- {sign}" for sign in signatures),
            "\n".join(dict.fromkeys(f"- {source}" for row in group for source in row.sources)),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _by_corpus(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row.corpus["fingerprint"])]


def _varying(rows: Sequence[Row]) -> list[str]:
    """What tells the rows apart, beside the objective, whose own temperature does not count."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    varying = ["init"] if len({row.init for row in rows}) > 1 else []
    for name in names:
        by_stage: dict[str, set[str]] = {}
        for row in rows:
            if name in row.settings:
                by_stage.setdefault(row.stage, set()).add(str(row.settings[name]))
        own = name in ("eps", "updates")  # the number of updates is a column
        everywhere = set().union(*by_stage.values())
        if max(map(len, by_stage.values())) > 1 or (len(everywhere) > 1 and not own):
            varying.append(name)
    if "attention" in varying:  # where it is the softmax there are none of these
        varying += [name for name in ("attention_k", "attention_eps") if name not in varying]
    return [name for name in varying if name != "updates"]


@dataclass(frozen=True)
class _Command:
    """A command that makes rows again."""

    stages: list[str]
    seeds: tuple[int, ...]
    init: str | None
    pieces: dict[str, str] | None
    settings: dict[str, Any]
    corpus: dict[str, Any]

    def admits(self, row: Row) -> bool:
        return (self.seeds, self.init, self.pieces) == (
            tuple(row.results),
            row.init,
            row.pieces,
        ) and all(self.settings.get(name, value) == value for name, value in _given(row).items())

    def lines(self, out: str) -> list[str]:
        """As it is given, after what has to be put in the place of its names."""
        corpus, settings = self.corpus, changes_of(self.settings)
        names = []
        parts = ["softtopk translate train"]
        if not corpus["builtin"]:
            parts.append(f"--data DIR --source {corpus['source']} --target {corpus['target']}")
        parts += [as_option(name, corpus[name]) for name in ("max_words", "subset") if corpus[name]]
        if self.init:
            parts.append("--init WEIGHTS")
            names.append(f"# WEIGHTS: a file with the SHA-256 {self.init}")
        if self.init or self.pieces:
            parts.append("--pieces PIECES")
            names += [
                f"# PIECES: a folder with pieces.{language}.model, which has the SHA-256 {digest}"
                for language, digest in (self.pieces or {}).items()
            ]
            # They are what the pieces have.
            settings = {k: v for k, v in settings.items() if k not in ("vocab", "normalization")}
        objectives = [stage for stage in self.stages if stage != PRETRAIN]
        parts.append(f"--objective {','.join(objectives)}" if objectives else "--updates 0")
        parts.append(f"--seed {','.join(map(str, self.seeds))}")
        if self.init:  # whose weights bring these with them
            settings |= {name: self.settings[name] for name in HABITS if name in self.settings}
        parts += [as_option(name, value) for name, value in settings.items()]
        return [*names, " ".join([*parts, f"--out {out}"])]


def _commands(rows: Sequence[Row]) -> list[str]:
    """The commands that make these rows again; rows that do not contradict each other share one."""
    shared: list[_Command] = []
    for row in rows:
        if not row.results:
            continue
        known = next((command for command in shared if command.admits(row)), None)
        if known:
            known.stages.append(row.stage)
            known.settings.update(_given(row))
        else:
            seeds = tuple(row.results)
            shared.append(
                _Command([row.stage], seeds, row.init, row.pieces, _given(row), row.corpus)
            )
    lines = (
        line
        for number, command in enumerate(shared, 1)
        for line in command.lines("RUN" if len(shared) == 1 else f"RUN{number}")
    )
    return list(dict.fromkeys(lines))  # several may begin with the same weights and pieces


def _given(row: Row) -> dict[str, Any]:
    """The settings of a row, with a temperature only if it had to be given."""
    settings = dict(row.settings)
    own = search_options(row.stage, Settings())
    if own and own["eps"] == settings["eps"]:
        settings["eps"] = None
    if settings["schedule"] == "constant":  # which has no use for them
        settings.pop("final_lr", None)
        settings.pop("pretrain_final_lr", None)
    return settings


def _summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "bleu": list(values),
        "mean": statistics.fmean(values) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
    }
