"""The command `softtopk figures`, without its parsing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softtopk.experiments._drawing import FORMATS, save_figure
from softtopk.experiments._files import replacing
from softtopk.experiments.errors import UsageError, require
from softtopk.experiments.runs import Report
from softtopk.plotting.style import standard_look

from ._catalogue import CATALOGUE
from ._exhibit import Exhibit, plain
from ._index import NAME, write_index

INTERRUPTED = 130  # as a shell reports it
COLUMNS = 100


def main(out: Path, only: Sequence[str] = (), formats: Sequence[str] = ("png",)) -> int:
    """Draw the figures, by default all, into a folder with an index; return the exit code."""
    require("rich", "the command", "cli")
    require("matplotlib", "a picture", "plot")
    names = _chosen("only", only, list(CATALOGUE)) or list(CATALOGUE)
    kinds = _chosen("format", formats, list(FORMATS))
    if not kinds:
        raise UsageError(f"--format: give one or more of {', '.join(FORMATS)}")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: it is a file; give a folder")
    report = Report()
    try:
        for name in names:
            with report.console.status(f"drawing {name}"):  # on a terminal
                written = write_exhibit(CATALOGUE[name], out, kinds)
            for path in written:
                report.say(f"figure: {path}")
            # After each figure, so that an interrupt leaves an index of what there is.
            _write_text(out / NAME, write_index(out))
    except KeyboardInterrupt:
        report.say(f"interrupted; what is finished is in {out}")
        return INTERRUPTED
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"--out {out}: cannot be written ({reason}); give another") from error
    report.say(f"index: {out / NAME}")
    return 0


def write_exhibit(exhibit: Exhibit[Any], out: Path, kinds: Sequence[str]) -> list[Path]:
    """Write the picture in each format, and its caption and numbers beside it."""
    data = exhibit.make()
    _write_text(out / f"{exhibit.name}.json", json.dumps(plain(data)) + "\n")
    caption = textwrap.fill(
        exhibit.caption(data), COLUMNS, break_long_words=False, break_on_hyphens=False
    )
    _write_text(out / f"{exhibit.name}.md", caption + "\n")
    with standard_look():
        figure = exhibit.draw(data)
        return [save_figure(figure, out / f"{exhibit.name}.{kind}") for kind in kinds]


def _chosen(option: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names in comma-separated lists, each once."""
    names = list(dict.fromkeys(name.strip() for text in given for name in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"--{option} {name!r}: there is none; give {', '.join(known)}")
    return names


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
