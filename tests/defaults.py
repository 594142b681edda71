"""Defaults of torch that a user may have changed, and that results must not depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CHANGES = ("device", "dtype")


@contextmanager
def changed(which: str) -> Iterator[None]:
    """A default device without memory, or float64 as the default dtype."""
    if which == "device":
        with torch.device("meta"):
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
