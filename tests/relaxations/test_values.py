"""Values: against the definitions, written as loops over numpy arrays in float64."""

import hypothesis.strategies as st
import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from scipy.special import softmax
from torch.testing import assert_close

from softtopk import ConvergenceWarning, Sinkhorn
from softtopk.relaxations import (
    hard_topk,
    neural_sort,
    relaxed_subset,
    sinkhorn_sort,
    successive_softmax,
)


def neural_sort_by_definition(x, k, eps):
    """The first k rows of the n x n matrix, from the n x n absolute differences."""
    n = len(x)
    differences = np.abs(x[:, None] - x[None, :]).sum(1)
    rows = [softmax(((n + 1 - 2 * i) * x - differences) / eps) for i in range(1, n + 1)]
    return np.array(rows)[:k].sum(0)


def sinkhorn_sort_by_definition(x, k, eps):
    n = len(x)
    z = 1 / (1 + np.exp(-(x - x.mean()) / x.std()))
    y = np.linspace(1, 0, n)
    uniform = np.full(n, 1 / n)
    cost = (z[:, None] - y) ** 2
    plan = reference.sinkhorn_plan(cost, uniform, uniform, eps, iterations=10_000, tol=1e-12)
    return n * plan[:, :k].sum(1)


def relaxed_subset_by_definition(x, k, eps):
    keys, selection = x.copy(), np.zeros_like(x)
    for _ in range(k):
        p = softmax(keys / eps)
        selection += p
        keys += np.log1p(-p)
    return selection


def successive_softmax_by_definition(x, k, eps):
    left, selection = x.copy(), np.zeros_like(x)
    for _ in range(k):
        selection += softmax(left / eps)
        left[left.argmax()] = -np.inf
    return selection


@st.composite
def problems(draw):
    """Distinct scores, k < n (with k = n nothing is left to choose) and an eps."""
    n = draw(st.integers(2, 9))
    seed = draw(st.integers(0, 2**32 - 1))
    scores = np.random.default_rng(seed).normal(size=n)
    return scores, draw(st.integers(0, n - 1)), 10 ** draw(st.floats(-1, 2))


@pytest.mark.parametrize(
    ("relaxation", "definition", "options"),
    [
        (neural_sort, neural_sort_by_definition, {}),
        (relaxed_subset, relaxed_subset_by_definition, {"noise": False}),
        (successive_softmax, successive_softmax_by_definition, {}),
    ],
)
@given(problem=problems())
def test_the_definition(relaxation, definition, options, problem):
    scores, k, eps = problem
    result = relaxation(torch.tensor(scores), k, eps=eps, **options)
    # The loop of the subset loses 1 - p to rounding, and divides by eps what it has lost.
    assert_close(result, torch.tensor(definition(scores, k, eps)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("eps", [0.03, 0.3, 3.0])
@pytest.mark.parametrize(("n", "k"), [(2, 1), (5, 0), (8, 3)])
def test_the_definition_of_the_sort_by_transport(n, k, eps):
    scores = np.random.default_rng(n).normal(size=n)
    result = sinkhorn_sort(torch.tensor(scores), k, eps=eps)
    definition = sinkhorn_sort_by_definition(scores, k, eps)
    assert_close(result, torch.tensor(definition), rtol=0, atol=1e-10)


def test_sinkhorns_algorithm_solves_the_same_problem():
    scores = torch.randn(3, 7, dtype=torch.float64)
    solver = Sinkhorn(max_iter=20_000, tol=1e-12)
    exact = sinkhorn_sort(scores, 3, eps=0.05)
    assert_close(sinkhorn_sort(scores, 3, eps=0.05, solver=solver), exact, rtol=0, atol=1e-9)


def test_sinkhorns_algorithm_says_when_it_was_stopped():
    with pytest.warns(ConvergenceWarning, match="stopped after 2 iterations"):
        sinkhorn_sort(torch.randn(7), 3, solver=Sinkhorn(max_iter=2))


@pytest.mark.parametrize("family", reference.score_families(np.random.default_rng(0), 100))
def test_the_sort_by_transport_needs_no_warning(family):
    """At the size it is trained at; warnings are errors."""
    rng = np.random.default_rng(1)
    rows = np.stack([reference.score_families(rng, 100)[family] for _ in range(5)])
    scores = torch.tensor(rows, dtype=torch.float32)
    for eps in (1e-4, 1e-2, 1.0):
        assert_close(sinkhorn_sort(scores, 9, eps=eps).sum(-1), torch.full((5,), 9.0))


def test_noise_is_of_the_gumbel_distribution():
    """The relaxed choices of one element, cold, are those of a categorical distribution."""
    scores = torch.tensor([1.0, 0.0, -1.0, 0.5])
    expected = torch.softmax(scores, -1)
    chosen = neural_sort(scores, 1, eps=1e-6, stochastic=True, samples=20_000)
    assert_close(chosen, expected, rtol=0, atol=0.02)
    chosen = relaxed_subset(scores.expand(20_000, 4), 1, eps=1e-6).mean(0)
    assert_close(chosen, expected, rtol=0, atol=0.02)


def noisy_copies(scores, samples):
    generator = torch.Generator().manual_seed(3)
    exponential = torch.empty(samples, *scores.shape, dtype=scores.dtype)
    return scores - exponential.exponential_(generator=generator).log()


def test_samples_are_averaged():
    scores = torch.randn(2, 5, dtype=torch.float64)
    copies = noisy_copies(scores, 4)
    options = {"stochastic": True, "generator": torch.Generator().manual_seed(3)}
    result = neural_sort(scores, 2, samples=4, **options)
    assert_close(result, neural_sort(copies, 2).mean(0))


def test_noise_is_added_to_the_keys():
    scores = torch.randn(2, 5, dtype=torch.float64)
    (keys,) = noisy_copies(scores, 1)
    result = relaxed_subset(scores, 2, generator=torch.Generator().manual_seed(3))
    assert_close(result, relaxed_subset(keys, 2, noise=False))


def test_hard_is_torch_topk():
    scores = torch.randn(4, 6)
    for k in range(7):
        expected = torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)
        assert torch.equal(hard_topk(scores, k), expected)


def test_what_exceeds_one():
    """As the docstrings say; a change of this is a change of the method."""
    tied = torch.tensor([5.0, 5.0, -5.0], dtype=torch.float64)
    expected = torch.tensor([0.5, 1.5, 0.0]).double()
    assert_close(successive_softmax(tied, 2, eps=0.1).sort().values, expected.sort().values)
    odds = torch.tensor([0.9, 0.05, 0.05]).double().log()
    expected = torch.tensor([0.9 + 0.0900 / 0.185, 0.05 + 0.0475 / 0.185, 0.05 + 0.0475 / 0.185])
    assert_close(relaxed_subset(odds, 2, noise=False), expected.double(), rtol=1e-6, atol=0)
    assert neural_sort(torch.tensor([4.0, 2.0, 2.0, -9.0]), 3).max() > 1.05
