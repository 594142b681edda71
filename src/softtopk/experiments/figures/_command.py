"""The command `softtopk figures`, without its parsing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softtopk._files import replacing
from softtopk.experiments._drawing import FORMATS, save_figure
from softtopk.experiments._files import check_out
from softtopk.experiments.errors import UsageError, require_modules
from softtopk.experiments.runs import INTERRUPTED, Report
from softtopk.experiments.settings import Declared, setting
from softtopk.plotting.style import standard_look

from ._catalogue import CATALOGUE
from ._exhibit import Exhibit, plain
from ._index import INDEX, TITLE, caption_file, index_page

COLUMNS = 100


@dataclass(frozen=True, kw_only=True)
class Options(Declared):
    """Draw figures of the paper, and two more, from the operators (half a minute).

    Example: softtopk figures --only plan,knn --format png,svg --out figures
    """

    out: Path = setting(Path("figures"), "Folder for the pictures and their index.")
    only: tuple[str, ...] = setting(
        (),
        "Only these. Separate several by commas, or repeat the option.",
        choices=tuple(CATALOGUE),
        shown="all",
    )
    format: tuple[str, ...] = setting(("png",), "One or several likewise.", choices=tuple(FORMATS))


def main(options: Options) -> int:
    """Draw the figures, by default all, into a folder with an index; return the exit code."""
    require_modules("rich", "matplotlib")
    out, names = options.out, options.only or tuple(CATALOGUE)
    _check_folder(out)
    report = Report()
    done = 0
    try:
        for name in names:
            with report.console.status(f"drawing {name}"):  # on a terminal
                written = write_exhibit(CATALOGUE[name], out, options.format)
                # Each time, so that an interrupt finds it complete.
                _write_text(out / INDEX, index_page(out))
            for path in written:
                report.say(f"figure: {path}")
            done += 1
    except KeyboardInterrupt:
        report.say(f"interrupted; {done} of {len(names)} figures are in {out}")
        return INTERRUPTED
    report.say(f"index: {out / INDEX}")
    return 0


def write_exhibit(exhibit: Exhibit[Any], out: Path, kinds: Sequence[str]) -> list[Path]:
    """Write the picture in each format, and its caption and numbers beside it."""
    # All before anything is written: an error leaves the old files, which belong together.
    data = exhibit.make()
    caption = textwrap.fill(
        exhibit.caption(data), COLUMNS, break_long_words=False, break_on_hyphens=False
    )
    numbers = json.dumps(plain(data))
    with standard_look():
        figure = exhibit.draw(data)
        written = [save_figure(figure, out / f"{exhibit.name}.{kind}") for kind in kinds]
    _write_text(out / caption_file(exhibit.name), caption + "\n")
    _write_text(out / f"{exhibit.name}.json", numbers + "\n")
    return written


def _check_folder(out: Path) -> None:
    check_out(out, folder=True)
    index = out / INDEX
    if index.is_file() and not index.read_bytes().startswith(TITLE.encode()):
        raise UsageError(
            f"--out {out}: its {INDEX} is not one of this command, which would replace it; give "
            "another folder"
        )


def _write_text(path: Path, text: str) -> None:
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
