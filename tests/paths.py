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
import torch

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


def is_rounded(result: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is the ``exact`` float32 in its own dtype, to the bit."""
    same = result == exact.to(result.dtype)
    if kernels.is_interpreting() and result.dtype is torch.bfloat16:
        # Triton's interpreter cuts the digits off.
        same |= result == (exact.view(torch.int32) & -65536).view(torch.float32)
    return bool(same.all())


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
