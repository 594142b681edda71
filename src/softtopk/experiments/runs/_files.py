"""Files that are there whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._files import replacing
from ..errors import UsageError


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file such that after a crash it is the old one or the new."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as draft:
        draft.write_bytes(data)


def write_json(path: Path, data: Any) -> None:
    write_atomic(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON: {error}") from error
