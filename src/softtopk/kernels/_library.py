"""Finds and loads the native library, once, when an operator first asks for it.

The environment variable SOFTTOPK_NATIVE is read at that moment: "auto" (or unset) uses the
library if there is one, "require" (or "1", "on") makes its absence an error, "off" (or "0") leaves
it aside. "avx512", "avx2" and "baseline" require the library with this instruction set instead of
the best that the machine has.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ._calls import Native

VARIABLE = "SOFTTOPK_NATIVE"
ABI_VERSION = 6
"""What the library has to answer: the two are changed together, here and in csrc/api.cpp."""

FOLDER = Path(__file__).parent
LIBRARY = "_native.dll" if sys.platform == "win32" else "_native.so"
REASON = "_not_built.txt"
"""Written by setup.py instead of the library, if that could not be built."""

_WISHES = {
    "": "auto",
    "auto": "auto",
    "1": "require",
    "on": "require",
    "require": "require",
    "0": "off",
    "off": "off",
    "avx512": "require",
    "avx2": "require",
    "baseline": "require",
}
_INSTRUCTION_SETS = {"avx512": "AVX-512", "avx2": "AVX2", "baseline": "baseline"}


@dataclass(frozen=True)
class Status:
    """Whether kernels are in use, and why."""

    active: bool
    reason: str
    instruction_set: str | None = None
    error: bool = False
    """The environment asks for something that cannot be had: the operators raise."""

    def __str__(self) -> str:
        if self.active:
            return f"native ({self.instruction_set})" if self.instruction_set else self.reason
        return f"{'error' if self.error else 'plain PyTorch operations'}: {self.reason}"


@dataclass(frozen=True)
class _Outcome:
    """What came of the attempt to load the library."""

    library: Native | None
    status: Status


class _Unusable(Exception):
    """The library cannot be used; the message is the end of "the native library ..."."""


_outcome: _Outcome | None = None
_loading = threading.Lock()
_plain_depth = 0
_forked = False
_counting = threading.Lock()


def native() -> Native | None:
    """The native library, or None: then the plain PyTorch operations are to be used.

    Raises:
        RuntimeError: SOFTTOPK_NATIVE requires the library and it cannot be used, or the variable
            has a value without a meaning.
    """
    # Asked on every call of an operator: no lock and no lookup once the library is loaded.
    if _plain_depth:
        return None
    outcome = _outcome or _load_once()
    if outcome.status.error:
        raise RuntimeError(outcome.status.reason)
    return outcome.library


def status() -> Status:
    """Which path the operators take now, and why; it never raises."""
    if _plain_depth:
        return Status(active=False, reason="inside softtopk.kernels.plain()")
    return (_outcome or _load_once()).status


def plain_depth() -> int:
    """How many contexts of `plain` this is inside of."""
    return _plain_depth


@contextmanager
def plain() -> Iterator[None]:
    """Within this context every thread of the process takes the plain path, to compare the two."""
    global _plain_depth
    with _counting:
        _plain_depth += 1
    try:
        yield
    finally:
        with _counting:
            _plain_depth -= 1


def _load_once() -> _Outcome:
    global _outcome
    with _loading:
        if _outcome is None:
            _outcome = _attempt(FOLDER, os.environ.get(VARIABLE, ""))
        return _outcome


def _attempt(folder: Path, value: str) -> _Outcome:
    """Do what `value`, that of the environment variable, asks for with the library in `folder`."""
    wish = _WISHES.get(value.lower())
    if wish is None:
        allowed = ", ".join(filter(None, _WISHES))
        reason = f"{VARIABLE} must be one of {allowed}, not {value!r}"
        return _Outcome(None, Status(active=False, reason=reason, error=True))
    if wish == "off":
        return _Outcome(None, Status(active=False, reason=f"{VARIABLE}={value}"))
    try:
        library = _load(folder)
        _choose(library, _INSTRUCTION_SETS.get(value.lower()))
    except _Unusable as error:
        reason = f"the native library {error}"
        if wish == "require":
            reason = f"{VARIABLE}={value}, but {reason}"
        return _Outcome(None, Status(active=False, reason=reason, error=wish == "require"))
    instruction_set = library.softtopk_instruction_set().decode("ascii")
    reason = "the native library is loaded"
    return _Outcome(
        Native(library), Status(active=True, reason=reason, instruction_set=instruction_set)
    )


def _choose(library: ctypes.CDLL, instruction_set: str | None) -> None:
    if instruction_set is None:
        return
    library.softtopk_use_instruction_set.argtypes = [ctypes.c_char_p]
    if not library.softtopk_use_instruction_set(instruction_set.encode("ascii")):
        raise _Unusable(f"cannot use {instruction_set} (this machine or this build lacks it)")


def _load(folder: Path) -> ctypes.CDLL:
    path = folder / LIBRARY
    if not path.exists():
        try:
            reason = (folder / REASON).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            raise _Unusable(f"is missing (there is no {path})") from None
        raise _Unusable(f"was not built ({reason})")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _Unusable(f"does not load ({error})") from error
    try:
        library.softtopk_abi_version.restype = ctypes.c_int32
        library.softtopk_instruction_set.restype = ctypes.c_char_p
    except AttributeError:
        raise _Unusable(f"is another one ({path} lacks the functions of softtopk)") from None
    version = library.softtopk_abi_version()
    if version != ABI_VERSION:
        raise _Unusable(
            f"is of another version ({path} has interface {version}, this package needs "
            f"{ABI_VERSION}: reinstall softtopk)"
        )
    if _forked:
        library.softtopk_after_fork()
    return library


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
