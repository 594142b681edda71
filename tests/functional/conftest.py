"""Every test of the operators runs on both paths."""

import pytest

from softtopk import kernels


@pytest.fixture(autouse=True, params=["native", "plain"])
def path(request):
    """The kernels that the operators use; a test asks for it if its bounds depend on it."""
    if request.param == "native":
        assert kernels.status().active, kernels.status()
        yield request.param
    else:
        with kernels.plain():
            yield request.param
