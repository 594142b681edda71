"""Runs the tests of a folder on both paths: its conftest.py imports the fixture."""

import pytest

from softtopk import kernels


@pytest.fixture(autouse=True, params=["native", "plain"])
def path(request):
    """The kernels that the operators use; a test asks for it if its bounds depend on it."""
    if request.param == "plain":
        with kernels.plain():
            yield request.param
    elif kernels.status().active:
        yield request.param
    else:
        pytest.skip(f"no native library: {kernels.status().reason}")
