"""For the tests of all experiments."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    """Commands set torch's number of threads; afterwards it is as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
