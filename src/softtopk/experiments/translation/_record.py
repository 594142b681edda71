"""The record of a prepared folder, which vouches for the text and the pieces in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..runs import read_sealed

FORMAT = 2
RECORD = "prepared.json"


def is_prepared(folder: str | Path) -> bool:
    return (Path(folder) / RECORD).is_file()


def read_record(folder: Path) -> dict[str, Any]:
    """What ``prepared.json`` says."""
    path = folder / RECORD
    if not path.is_file():
        raise UsageError(f"{folder}: there is no {RECORD}; prepare the data again")
    record = read_sealed(path)
    if record.get("format") != FORMAT:
        raise UsageError(f"{path} is not of this version: prepare, or train, in a new folder")
    return record
