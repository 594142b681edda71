"""The relaxations as cases: deterministic, or with noise from a generator seeded at every call."""

from functools import partial

import pytest
import torch

from softtopk.relaxations import (
    hard_topk,
    neural_sort,
    relaxed_subset,
    sinkhorn_sort,
    soft_topk,
    successive_softmax,
)


def seeded(relaxation, **options):
    def run(scores, k, **others):
        generator = torch.Generator().manual_seed(5)
        return relaxation(scores, k, generator=generator, **options, **others)

    return run


DETERMINISTIC = {
    "soft_topk": soft_topk,
    "neural_sort": neural_sort,
    "sinkhorn_sort": sinkhorn_sort,
    "relaxed_subset": partial(relaxed_subset, noise=False),
    "successive_softmax": successive_softmax,
    "hard_topk": hard_topk,
}
NOISY = {
    "neural_sort with noise": seeded(neural_sort, stochastic=True, samples=3),
    "relaxed_subset with noise": seeded(relaxed_subset),
}


@pytest.fixture(params=DETERMINISTIC)
def relaxation(request):
    return DETERMINISTIC[request.param]


@pytest.fixture(params=[*DETERMINISTIC, *NOISY])
def any_relaxation(request):
    return {**DETERMINISTIC, **NOISY}[request.param]


@pytest.fixture(params=[*DETERMINISTIC, *NOISY])
def bounded(request):
    """A relaxation, and whether it promises A <= 1."""
    cases = {**DETERMINISTIC, **NOISY}
    return cases[request.param], request.param in ("soft_topk", "sinkhorn_sort", "hard_topk")
