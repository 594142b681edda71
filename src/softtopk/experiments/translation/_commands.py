"""The commands that make the rows of the comparison again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..runs.rows import Bundle, command_lines
from ..settings import as_options, in_groups
from ._rows import StageRow
from ._settings import ATTENTION, OWN, PRETRAIN, Settings


def commands(rows: Iterable[StageRow]) -> list[str]:
    """As they are given, each after what has to be put in the place of its names."""
    return command_lines(rows, _given, _lines, alike=lambda row: (row.init, row.pieces))


def _given(row: StageRow) -> dict[str, Any]:
    """The settings of a row, without those that its objective has by default."""
    settings = dict(row.settings)
    own = OWN.get(row.part, {}).items()
    return settings | {name: None for name, value in own if settings[name] == value}


def _lines(bundle: Bundle[StageRow], out: str) -> list[str]:
    first, settings = bundle.rows[0], dict(bundle.settings)
    corpus, names = first.corpus, []
    parts = ["softtopk translate train"]
    if not corpus["builtin"]:
        parts.append(f"--data DIR --source {corpus['source']} --target {corpus['target']}")
    parts += as_options(Settings(), {name: corpus[name] for name in ("max_words", "subset")})
    if first.init:
        parts.append("--init WEIGHTS")
        names.append(f"# WEIGHTS: a file with the SHA-256 {first.init}")
    if first.init or first.pieces:
        parts.append("--pieces PIECES")
        names += [
            f"# PIECES: a folder with pieces.{language}.model, which has the SHA-256 {digest}"
            for language, digest in (first.pieces or {}).items()
        ]
        for name in ("vocab", "normalization"):  # they are what the pieces have
            settings.pop(name, None)
    objectives = [stage for stage in bundle.parts if stage != PRETRAIN]
    parts.append(f"--objective {','.join(objectives)}" if objectives else "--updates 0")
    parts.append(bundle.seed_option)
    # Weights bring these with them, so they are given even where they are the defaults.
    brought = ("dropout", *in_groups(Settings, ATTENTION)) if first.init else ()
    parts += as_options(Settings(), settings, always=brought)
    return [*names, " ".join([*parts, f"--out {out}"])]
