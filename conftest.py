"""Shared by tests and doctests."""

import os

# The kernels for GPUs run in Triton's interpreter. torch may import triton.
os.environ.setdefault("TRITON_INTERPRET", "1")

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
import torch
from defaults import default_dtype
from hypothesis import settings
from paths import path, solver  # noqa: F401

import softtopk

# The tensors of the tests are small: more threads only wait for each other.
torch.set_num_threads(1)
# CI tries the same examples every time; elsewhere each run looks for new ones.
for profile, examples in {"change": 60, "release": 200}.items():
    settings.register_profile(
        profile, deadline=None, max_examples=examples, derandomize="CI" in os.environ
    )
settings.load_profile("change")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """A test does not depend on the ones before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """Doctests see torch and the public names."""
    doctest_namespace["torch"] = torch
    doctest_namespace.update({name: getattr(softtopk, name) for name in softtopk.__all__})


@pytest.fixture(params=["meta", "float64"])
def other_defaults(request: pytest.FixtureRequest) -> Callable[[], AbstractContextManager[object]]:
    """In which torch makes tensors on another device, or of another dtype, unless it is told."""
    if request.param == "meta":
        return partial(torch.device, "meta")
    return partial(default_dtype, torch.float64)
