"""Tables of results, for the terminal and as Markdown, and where the figures come from."""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softtopk import _environment

from .._files import check_out
from ._files import write_atomic, write_json

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Cells of text under headings. All columns but the first are figures."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def to_markdown(self) -> str:
        """
        >>> print(Table("T", ["a", "b"], [["x", "1"]]).to_markdown())
        | a | b |
        |---|--:|
        | x | 1 |
        """
        rules = ["---"] + ["--:"] * (len(self.header) - 1)
        lines = [_line(self.header), f"|{'|'.join(rules)}|", *map(_line, self.rows)]
        return "\n".join(lines)

    def to_rich(self) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=Text(self.title), title_justify="left")
        for number, name in enumerate(self.header):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def surroundings() -> dict[str, Any]:
    """Date, hardware and versions, as a run records them."""
    environment = asdict(_environment.collect())
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        **environment,
    }


def provenance(environment: Mapping[str, Any]) -> str:
    """One line: when, on what hardware, with which versions."""
    devices = ", ".join(
        ["CPU only", *environment["accelerators"]][bool(environment["accelerators"]) :]
    )
    return (
        f"{environment['date'][:10]}, {environment['cpu']}, {environment['cores']} cores "
        f"({devices}), {environment['python']}, torch {environment['torch']}, "
        f"softtopk {environment['softtopk']}"
    )


def check_tables(path: Path) -> None:
    """Refuse, before the work, a path where `write_tables` could not write after it."""
    if path.is_dir():
        check_out(path)
    for file in _table_files(path):
        check_out(file)


def write_tables(path: Path, markdown: str, records: object) -> tuple[Path, Path]:
    """Write results as Markdown and, beside it, as JSON; returns the two files."""
    text, data = _table_files(path)
    write_atomic(text, markdown)
    write_json(data, records)
    return text, data


def _table_files(path: Path) -> tuple[Path, Path]:
    stem = path.with_suffix("") if path.suffix in (".md", ".json") else path
    return stem.with_name(f"{stem.name}.md"), stem.with_name(f"{stem.name}.json")


def duration(seconds: float) -> str:
    """
    >>> duration(3.21), duration(65), duration(7300)
    ('3.2 s', '1 min 05 s', '2 h 01 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )


def cpu_name() -> str:
    """As far as the system says."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()
