"""Reading and writing files."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import UsageError

GZIP = b"\x1f\x8b"
DEFLATE = 1032  # bytes that one byte can stand for at most: 258 for two bits


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write, which takes the place of `path` at the end, all at once.

    A reader never meets half a file, and an error or a crash leaves what there was before. Makes
    the folder if there is none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # One name for each process: two that write the same file do not write into each other's.
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        with draft.open("rb+") as file:
            os.fsync(file.fileno())  # else the name can reach the disk before the content does
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def opened(path: Path, *, unpack: bool = True) -> Iterator[tuple[IO[bytes], int]]:
    """The bytes of a file, by default unpacked if it is gzip, and how many there can be at most.

    The contents decide whether it is gzip, because browsers unpack files and leave the name.
    """
    if not path.exists() or path.is_dir():  # pipes and devices will do
        found = "a folder" if path.is_dir() else "nothing"
        raise UsageError(f"{path}: found {found}, expected a file")
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            packed = unpack and raw.peek(len(GZIP))[: len(GZIP)] == GZIP  # a pipe cannot be rewound
            if packed:
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield stream, DEFLATE * size  # type: ignore[misc]  # it is IO[bytes]
            else:
                yield raw, size
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"{path}: found gzip that is cut off or damaged ({error}), expected all of it"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from error
