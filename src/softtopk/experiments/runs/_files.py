"""Files that are there whole or not at all, and records that tell when they were changed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._files import replacing, sha256
from ..errors import UsageError

DIGEST, END = "digest", '"\n}\n'
SEAL = re.compile(rf'(?<="{DIGEST}": ")[0-9a-f]{{64}}(?={END}\Z)'.encode())
REMEDY = "restore it from a copy, or start again in a new folder"


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file such that after a crash it is the old one or the new."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as draft:
        draft.write_bytes(data)


def write_json(path: Path, data: Any) -> None:
    write_atomic(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_sealed(path: Path, record: Mapping[str, Any]) -> None:
    write_atomic(path, sealed(record))


def sealed(record: Mapping[str, Any], *, allow_nan: bool = False) -> str:
    """The record as JSON, with a last entry that is the digest of the text without it."""
    text = json.dumps({**record, DIGEST: ""}, indent=2, allow_nan=allow_nan) + "\n"
    return text.removesuffix(END) + sha256(text.encode()) + END


def read_sealed(path: Path, remedy: str = REMEDY) -> dict[str, Any]:
    """The record of a file with `sealed` text, if no byte of it has changed."""
    data = path.read_bytes()
    seal = SEAL.search(data)
    if seal is None:
        raise UsageError(f"{path} is damaged or not of softtopk, it has no digest: {remedy}")
    check_digest(path, sha256(data[: seal.start()] + data[seal.end() :]), seal[0].decode(), remedy)
    record = json.loads(data)
    del record[DIGEST]
    return record


def check_digest(path: Path, found: str, expected: str | None, remedy: str = REMEDY) -> None:
    """Refuse a file whose digest is not the one on record."""
    if found != expected:
        raise UsageError(
            f"{path} is damaged or was changed by hand, its digest is not the one on record: "
            f"{remedy}"
        )
