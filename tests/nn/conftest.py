"""Every test here runs on both paths."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import pytest
import torch
from paths import path  # noqa: F401


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


@pytest.fixture(params=["meta", "float64"])
def other_defaults(request: pytest.FixtureRequest) -> Callable[[], AbstractContextManager[object]]:
    """In which torch makes tensors on another device, or of another dtype, unless it is told."""
    if request.param == "meta":
        return partial(torch.device, "meta")
    return partial(_default_dtype, torch.float64)
