"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def sha256(data: bytes) -> str:
    """The digest that tells whether a file is still what was written."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write, which takes the place of `path` at the end, all at once.

    A reader never meets half a file, and an error or a crash leaves what there was before. What is
    done next is on the disk after it: a file can vouch for one that was written earlier. Makes the
    folder if there is none, but none above it.
    """
    with naming(path):
        path.parent.mkdir(exist_ok=True)
        # One name for each process: two that write the same file do not write into each other's.
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            yield draft
            with draft.open("rb+") as file:
                os.fsync(file.fileno())  # else the name can reach the disk before the content does
            os.replace(draft, path)
            _settle(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def _settle(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # where a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not every file system can
            raise
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let the errors of the system name the file: those of a full disk name none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
