"""The paper's comparison of training objectives, from run records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ..runs import Results, Run, Table
from ..runs.rows import describe_settings, mean_and_deviation, mean_and_spread, page, varying
from ._commands import commands
from ._rows import BASELINES, SPLITS, StageRow, collect, differences

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
NOTE = (
    "BLEU: mean ± standard deviation over the seeds (their number in brackets), of the weights "
    "that were best in validation. *Over ...*: the difference in the last column of BLEU from a "
    "model trained by teacher forcing, or with softmax attention, with the same number of updates, "
    "seed by seed. *Tokens with 95 %*: of the source, the largest weights of each head, on average "
    "over the tokens of the references. The seconds are by the clock, without validations."
)


def results(runs: Iterable[Run]) -> Results:
    """A table for each corpus."""
    rows = collect(runs)
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.corpus["fingerprint"])]
    tables = [_table(group) for group in groups]
    pages = (
        page(table, group, _notes(group), commands(group))
        for table, group in zip(tables, groups, strict=True)
    )
    return Results(tables, "\n".join(pages), [_record(row, rows) for row in rows])


def _notes(rows: Sequence[StageRow]) -> list[str]:
    compared = _compared(rows)
    signatures = dict.fromkeys(sign for row in rows for sign in row.signatures)
    return [
        NOTE,
        " ".join([*(PAPER[name] for name in compared), ELSEWHERE]) if compared else "",
        "\n".join(f"- {sign}" for sign in signatures),
    ]


def _table(rows: Sequence[StageRow]) -> Table:
    told_apart = _told_apart(rows)
    beams = sorted({beam for row in rows for beam in row.beams})
    columns = [(split, str(beam)) for split in SPLITS for beam in beams]
    columns = [c for c in columns if any(row.bleu(*c) for row in rows)]
    compared = _compared(rows) if columns else []
    split = _counted(rows)
    header = ["Objective", *["Settings"][: bool(told_apart)], "Updates"]
    header += [f"{split}, beam {beam}" for split, beam in columns]
    header += [f"Over {name}" for name in compared]
    header += ["Tokens with 95 %"][: bool(split)]
    corpus = rows[0].corpus
    counts = ", ".join(f"{corpus['pairs'][part]:,} {part}" for part in ("train", "valid", "test"))
    title = f"{corpus['name']}, {corpus['source']} to {corpus['target']}: {counts} pairs"
    return Table(
        title,
        [*header, "Seconds per update"],
        [_cells(row, rows, told_apart, columns, compared, split) for row in rows],
    )


def _compared(rows: Sequence[StageRow]) -> list[str]:
    """What some of the rows are compared with."""
    return [name for name, find in BASELINES.items() if any(find(row, rows) for row in rows)]


def _counted(rows: Sequence[StageRow]) -> str | None:
    """The split in which the tokens that hold the attention were counted."""
    splits = [split for split in SPLITS if any(row.attention_tokens(split) for row in rows)]
    return splits[-1] if splits else None


def _cells(
    row: StageRow,
    rows: Sequence[StageRow],
    told_apart: Sequence[str],
    columns: Sequence[tuple[str, str]],
    compared: Sequence[str],
    split: str | None,
) -> list[str]:
    cells = [row.part]
    if told_apart:
        init = [f"init {row.init[:7]}"] if "init" in told_apart and row.init else []
        shown = describe_settings(row, told_apart)
        cells.append(", ".join([*init, *([shown] if shown else [])]))
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


def _told_apart(rows: Sequence[StageRow]) -> list[str]:
    """What tells the rows apart, beside the objective, whose own temperature does not count."""
    names = ["init"] if len({row.init for row in rows}) > 1 else []
    names += varying(rows, own=["eps", "rho", "updates"])
    if "attention" in names:  # where it is the softmax there are none of these
        names += [name for name in ("attention_k", "attention_eps") if name not in names]
    return [name for name in names if name != "updates"]  # which is a column


def _record(row: StageRow, rows: Sequence[StageRow]) -> dict[str, Any]:
    baselines = {name: find(row, rows) for name, find in BASELINES.items()}
    return {
        "stage": row.part,
        "corpus": row.corpus,
        "init": row.init,
        "pieces": row.pieces,
        "settings": row.settings,
        "seeds": row.seeds,
        "updates": row.updates,
        "best_updates": [result["best_update"] for result in row.results.values()],
        **{
            split: {
                str(beam): {
                    **_summary(list(row.bleu(split, str(beam)).values())),
                    "chrf": [
                        result[split][str(beam)]["chrf"]
                        for result in row.results.values()
                        if str(beam) in result.get(split, {})
                    ],
                    **{
                        f"over_{name.replace(' ', '_')}": _summary(
                            differences(row, baseline, split, str(beam))
                        )
                        for name, baseline in baselines.items()
                    },
                }
                for beam in row.beams
            }
            for split in SPLITS
        },
        "attention_tokens": {split: row.attention_tokens(split) for split in SPLITS},
        "seconds_per_update": row.per_update("update_seconds"),
        "cpu_seconds_per_update": row.per_update("update_cpu_seconds"),
        "signatures": row.signatures,
        "sources": row.sources,
    }


def _summary(values: Sequence[float]) -> dict[str, Any]:
    mean, deviation = mean_and_deviation(values)
    return {"bleu": list(values), "mean": mean, "std": deviation}
