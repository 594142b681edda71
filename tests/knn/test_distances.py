"""Distances against their definitions, and their derivatives where features coincide."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from softtopk.knn import pairwise_distances

SCIPY = {"euclidean": "euclidean", "squared": "sqeuclidean", "cosine": "cosine"}


@pytest.mark.parametrize("metric", SCIPY)
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_against_scipy(metric: str, offset: float) -> None:
    rng = np.random.default_rng(0)
    queries, templates = rng.normal(offset, 1, (7, 5)), rng.normal(offset, 1, (9, 5))
    found = pairwise_distances(torch.tensor(queries), torch.tensor(templates), metric)
    np.testing.assert_allclose(found, cdist(queries, templates, SCIPY[metric]), atol=1e-9)


@pytest.mark.parametrize("metric", ["euclidean", "squared"])
def test_single_precision_far_from_the_origin(metric: str) -> None:
    rng = np.random.default_rng(0)
    queries = rng.normal(1000, 1, (50, 20)).astype(np.float32)
    templates = rng.normal(1000, 1, (60, 20)).astype(np.float32)
    found = pairwise_distances(torch.tensor(queries), torch.tensor(templates), metric)
    np.testing.assert_allclose(found, cdist(queries, templates, SCIPY[metric]), rtol=1e-4)


@pytest.mark.parametrize("metric", SCIPY)
def test_derivatives(metric: str) -> None:
    torch.manual_seed(0)
    queries = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    templates = torch.randn(5, 4, dtype=torch.double, requires_grad=True)

    def f(q: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return pairwise_distances(q, t, metric)

    assert torch.autograd.gradcheck(f, (queries, templates))
    assert torch.autograd.gradgradcheck(f, (queries, templates))


@pytest.mark.parametrize("metric", SCIPY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_where_features_coincide(metric: str, dtype: torch.dtype) -> None:
    """Those of the other pairs alone; as torch.cdist has it."""
    torch.manual_seed(0)
    x = torch.randn(6, 3, dtype=dtype)
    x[1] = x[0]
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    pairwise_distances(ours, ours, metric).sum().backward()
    if metric == "cosine":
        reference = 1 - torch.cosine_similarity(theirs.unsqueeze(1), theirs, dim=-1)
    else:
        reference = torch.cdist(theirs, theirs) ** (2 if metric == "squared" else 1)
    reference.sum().backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("metric", SCIPY)
def test_all_features_equal(metric: str) -> None:
    for value in (0.0, 0.3):
        x = torch.full((4, 3), value, requires_grad=True)
        distances = pairwise_distances(x, x, metric)
        distances.sum().backward()
        expected = 1.0 if metric == "cosine" and value == 0.0 else 0.0
        torch.testing.assert_close(distances, torch.full((4, 4), expected), atol=1e-3, rtol=0)
        assert x.grad.isfinite().all()


def test_a_subnormal_feature_has_no_direction() -> None:
    query, templates = torch.ones(1, 1).half(), torch.full((1, 1), 1.5e-5).half()
    distances = pairwise_distances(query, templates.requires_grad_(), "cosine")
    assert distances.item() == 1.0
    assert torch.autograd.grad(distances, templates)[0].item() == 0.0


@pytest.mark.parametrize("metric", SCIPY)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_visible(metric: str, value: float) -> None:
    """As NaN: infinity minus infinity has no better answer."""
    x = torch.ones(4, 3)
    x[2, 1] = value
    distances = pairwise_distances(x, torch.zeros(5, 3), metric)
    if math.isnan(value) or metric == "cosine":
        assert distances[2].isnan().all()
    assert not distances[2].isfinite().any()
    assert distances[:2].isfinite().all()
    assert pairwise_distances(x, x, metric)[2].isnan().all()


@pytest.mark.parametrize(
    ("queries", "templates", "metric", "kind", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 4), "euclidean", ValueError, r"\(2, 3\) and \(2, 4\)"),
        (torch.zeros(3), torch.zeros(2, 3), "euclidean", ValueError, "query must be of shape"),
        (torch.zeros(2, 3), torch.ones(2, 3).int(), "euclidean", TypeError, "templates must be"),
        (np.zeros((2, 3)), torch.zeros(2, 3), "euclidean", TypeError, "got ndarray"),
        (torch.zeros(2, 3), torch.zeros(2, 3), "manhattan", ValueError, "got 'manhattan'"),
    ],
)
def test_errors(queries, templates, metric, kind, message) -> None:
    with pytest.raises(kind, match=message):
        pairwise_distances(queries, templates, metric)
