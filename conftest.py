"""Shared by tests and doctests."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import softtopk

# The tensors of the tests are small: more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _doctest_setup(doctest_namespace: dict[str, Any]) -> Iterator[None]:
    """Doctests see torch and the public names, and numbers in plain notation."""
    doctest_namespace["torch"] = torch
    doctest_namespace.update({name: getattr(softtopk, name) for name in softtopk.__all__})
    torch.set_printoptions(sci_mode=False)
    yield
    torch.set_printoptions(profile="default")
