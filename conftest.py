"""Shared by tests and doctests."""

from typing import Any

import pytest
import torch

import softtopk

# The tensors of the tests are small: more threads only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """Doctests see torch and the public names."""
    doctest_namespace["torch"] = torch
    doctest_namespace.update({name: getattr(softtopk, name) for name in softtopk.__all__})
