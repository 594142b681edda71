"""Ctrl-C between two steps instead of in the middle of one."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from . import _processes as processes

INTERRUPTED = 130  # the exit code, as a shell reports it


class Interrupted(Exception):
    """A run was stopped on request, with its state saved."""


class Interrupt:
    """While entered, the first Ctrl-C (or SIGTERM) only sets `requested`; the second one acts.

    An update of the weights that is cut in half could not be resumed. Processes that train together
    stop at the same step: `asked` is true in all of them if the signal came to one.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        # Python delivers signals to the main thread only, and lets no other install a handler.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def asked(self) -> bool:
        """Whether it was requested, of any process; all have to call it."""
        return processes.agreed(self.requested)

    def check(self) -> None:
        """Raise `Interrupted` if it was requested; for work that has nothing to save."""
        if self.asked():
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not print, which may be what was interrupted and cannot be entered twice.
        if processes.is_first():
            os.write(2, b"\nstopping after this step; once more stops at once\n")
