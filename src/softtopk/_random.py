"""Random numbers for one thread: torch's global generator is one for all threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class _Thread(threading.local):
    generator: torch.Generator | None = None


_thread = _Thread()


def source() -> torch.Generator | None:
    """The generator that this thread draws from; None is torch's global one."""
    return _thread.generator


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, `source` is a new generator of that seed."""
    before = _thread.generator
    _thread.generator = torch.Generator(device).manual_seed(seed)
    try:
        yield
    finally:
        _thread.generator = before
