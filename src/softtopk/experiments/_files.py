"""Reading and writing files."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import UsageError

DRAFT = re.compile(r"\..+\.(\d{1,9})\.tmp")
GZIP = b"\x1f\x8b"
DEFLATE = 1032  # bytes that one byte can stand for at most: 258 for two bits


def remove_drafts(files: Iterable[Path]) -> None:
    """Remove those of these files that are drafts of processes that were killed."""
    for file in files:
        draft = DRAFT.fullmatch(file.name)
        if draft and not _is_alive(int(draft[1])):
            file.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    """Whether another process with this number is running."""
    if os.name == "nt":  # where the question would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return process != os.getpid()  # what has our number and is not ours was of an earlier one


def check_out(path: Path, option: str = "--out", *, folder: bool = False) -> None:
    """Refuse, before the work, a file or a folder that could not be written after it.

    The folder that it lies in has to be there: a wrong path does not become a row of folders.
    """
    if path.exists() and not (path.is_dir() if folder else path.is_file()):
        found = "folder" if path.is_dir() else "file" if path.is_file() else "device or a pipe"
        wanted = "folder" if folder else "file"
        raise UsageError(f"{option} {path}: it is a {found}; give a {wanted}")
    home = path if path.is_dir() else path.parent
    if not home.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {home}; make it, or give another")
    if not os.access(home, os.W_OK | os.X_OK):
        raise UsageError(f"{option} {path}: nothing can be written in {home}; give another")


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
