"""The ways to compute the operators: the native library, Triton kernels, plain PyTorch operations,
and Sinkhorn.

There need not be a GPU for the Triton kernels: they run in Triton's interpreter. That has to be
said before triton is imported, as conftest.py does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from softtopk import Sinkhorn, kernels


@contextmanager
def taking(path: str) -> Iterator[None]:
    """The exact solver takes this path, "native", "triton" or "plain"."""
    if path == "plain":
        with kernels.plain():
            yield
    elif path == "triton":
        pytest.importorskip("triton")
        # NumPy, which does the arithmetic, warns of infinities and their differences.
        with kernels.interpreted(), np.errstate(all="ignore"):
            yield
    elif kernels.status().active:
        yield
    else:
        pytest.skip(f"no native library: {kernels.status().reason}")


#: The interpreter takes its time.
TRITON = pytest.param("triton", marks=pytest.mark.slow)


def first(*values: Any) -> list[Any]:
    """Values for a test of which the others wait for a release: one would notice most faults."""
    return [*values[:1], *(pytest.param(value, marks=pytest.mark.slow) for value in values[1:])]


@pytest.fixture(params=["native", "plain", TRITON])
def path(request):
    with taking(request.param):
        yield request.param


#: Runs a test on each path. For tests whose results could differ between them.
both_paths = pytest.mark.usefixtures("path")


@pytest.fixture(params=["native", "plain", TRITON, "sinkhorn"])
def solver(request):
    """Every solver: the exact one on each path, and Sinkhorn's algorithm, which has one path."""
    if request.param == "sinkhorn":
        yield Sinkhorn(max_iter=20_000, tol=1e-13)
    else:
        with taking(request.param):
            yield "exact"
