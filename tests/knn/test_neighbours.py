"""Neighbours against brute force, and the backends against each other."""

import pickle

import faiss
import numpy as np
import pytest
from paths import first
from scipy.spatial.distance import cdist

from softtopk.knn import Neighbours

SCIPY = {"euclidean": "euclidean", "squared": "sqeuclidean", "cosine": "cosine"}


def features(n: int, d: int = 8, seed: int = 0, offset: float = 0.0) -> np.ndarray:
    """Clusters, as features are."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(offset, 3, (10, d))
    return (centres[rng.integers(10, size=n)] + rng.normal(size=(n, d))).astype(np.float32)


@pytest.mark.parametrize("backend", ["faiss", "sklearn", "auto"])
@pytest.mark.parametrize(
    ("metric", "offset"),
    # Not the cosine far from the origin: all directions are the same there, up to rounding.
    [("euclidean", 0.0), ("euclidean", 3e4), ("squared", 3e4), ("cosine", 0.0)],
)
def test_against_brute_force(
    monkeypatch: pytest.MonkeyPatch, backend: str, metric: str, offset: float
) -> None:
    # By matrix products, which faiss would take to with more queries.
    monkeypatch.setattr(faiss.cvar, "distance_compute_blas_threshold", 20)
    templates, queries = features(500, 64, offset=offset), features(70, 64, 1, offset)
    found = Neighbours(backend=backend, metric=metric).fit(templates)
    distances, indices = found.kneighbors(queries, 7)
    brute = cdist(queries.astype(float), templates.astype(float), SCIPY[metric])
    np.testing.assert_array_equal(indices, brute.argsort(1)[:, :7])
    np.testing.assert_allclose(distances, np.sort(brute, 1)[:, :7], rtol=1e-4, atol=1e-6)
    assert distances.dtype == np.float32
    assert indices.dtype == np.int64
    alone = found.kneighbors(queries[:1], 7)
    np.testing.assert_array_equal(alone[0], distances[:1])
    assert len(found) == 500


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
def test_narrow_classes_far_apart(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """As a trained network makes them; in single precision |q|² + |t|² - 2 q·t is blind here."""
    monkeypatch.setattr(faiss.cvar, "distance_compute_blas_threshold", 20)
    rng = np.random.default_rng(0)
    centres = 50 * rng.normal(size=(10, 64))
    templates = np.repeat(centres, 12, axis=0) + 0.01 * rng.normal(size=(120, 64))
    queries = np.repeat(centres, 5, axis=0) + 0.01 * rng.normal(size=(50, 64))
    templates, queries = templates.astype(np.float32), queries.astype(np.float32)
    indices = Neighbours(backend=backend).fit(templates).kneighbors(queries, 5)[1]
    brute = cdist(queries.astype(float), templates.astype(float))
    np.testing.assert_array_equal(indices, brute.argsort(1)[:, :5])


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
def test_ties_that_are_found_are_in_the_order_of_the_rows(backend: str) -> None:
    templates = np.repeat(np.eye(3), 4, axis=0)
    distances, indices = Neighbours(backend=backend).fit(templates).kneighbors(np.eye(3), 4)
    np.testing.assert_array_equal(indices, np.arange(12).reshape(3, 4))
    assert (distances == 0).all()


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
def test_ties_for_the_last_places_are_any_of_those_equally_distant(backend: str) -> None:
    templates = np.repeat(np.eye(3), 40, axis=0)[np.random.default_rng(0).permutation(120)]
    nearest = np.array([[row @ query for row in templates] for query in np.eye(3)]) == 1
    distances, indices = Neighbours(backend=backend).fit(templates).kneighbors(np.eye(3), 4)
    assert (distances == 0).all()
    assert np.take_along_axis(nearest, indices, 1).all()
    assert (np.diff(indices, axis=1) > 0).all()  # in the order of the rows, and none twice


@pytest.mark.parametrize("backend", ["faiss", "sklearn"])
def test_a_feature_of_zero_has_no_direction(backend: str) -> None:
    templates = np.array([[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    index = Neighbours(backend=backend, metric="cosine").fit(templates)
    distances, indices = index.kneighbors(np.array([[2.0, 0.0], [0.0, 0.0]]), 3)
    np.testing.assert_allclose(distances, [[0, 1, 2], [1, 1, 1]], atol=1e-6)
    np.testing.assert_array_equal(indices, [[0, 1, 2], [0, 1, 2]])


@pytest.mark.parametrize("metric", first("euclidean", "cosine"))
@pytest.mark.parametrize(("index", "few", "all_of_it"), [("ivf", 1, 10_000), ("hnsw", 1, 6000)])
def test_an_approximate_index(index: str, few: int, all_of_it: int, metric: str) -> None:
    templates, queries = features(6000, 32), features(300, 32, seed=1)
    exact = Neighbours(metric=metric).fit(templates).kneighbors(queries, 9)[1]
    searched = Neighbours(index=index, metric=metric).fit(templates)
    found, recall = {}, {}
    for searched.n_probe in (None, few, all_of_it):
        found[searched.n_probe] = searched.kneighbors(queries, 9)[1]
        recall[searched.n_probe] = np.mean(
            [len({*a} & {*b}) / 9 for a, b in zip(exact, found[searched.n_probe], strict=True)]
        )
    assert recall[all_of_it] > 0.999
    assert recall[None] > 0.9
    assert recall[few] < recall[None]
    threads = faiss.omp_get_max_threads()
    again = Neighbours(index=index, metric=metric).fit(templates).kneighbors(queries, 9)
    np.testing.assert_array_equal(again[1], found[None])
    assert faiss.omp_get_max_threads() == threads


@pytest.mark.parametrize("index", ["ivf", "hnsw"])
def test_k_are_found_even_if_too_few_are_reached(index: str) -> None:
    """By cells that hold fewer, or in a graph that copies of one row have cut into pieces."""
    templates, queries = features(400), features(20, seed=1)
    templates[:200] = templates[0]
    indices = Neighbours(index=index, n_probe=1).fit(templates).kneighbors(queries, 300)[1]
    assert indices.min() >= 0
    assert all(len(set(row)) == 300 for row in indices.tolist())


@pytest.mark.parametrize("index", ["ivf", "hnsw"])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_few_templates(index: str, n: int) -> None:
    templates = features(n)
    exact = Neighbours().fit(templates).kneighbors(templates, min(n, 5))
    found = Neighbours(index=index).fit(templates).kneighbors(templates, min(n, 5))
    np.testing.assert_array_equal(exact[1], found[1])


@pytest.mark.parametrize("index", ["exact", "ivf", "hnsw"])
def test_pickle(index: str) -> None:
    templates, queries = features(2000), features(50, seed=1)
    fitted = Neighbours(index=index).fit(templates)
    copy = pickle.loads(pickle.dumps(fitted))
    for ours, theirs in zip(
        fitted.kneighbors(queries, 5), copy.kneighbors(queries, 5), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    pickle.loads(pickle.dumps(Neighbours()))


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Neighbours(index="tree"), ValueError, "index must be one of"),
        (lambda: Neighbours(backend="scipy"), ValueError, "backend must be one of"),
        (lambda: Neighbours(metric="l1"), ValueError, "metric must be one of"),
        (lambda: Neighbours(n_probe=3), ValueError, "n_probe=3 has no effect on index='exact'"),
        (
            lambda: Neighbours(index="ivf", n_probe=0),
            ValueError,
            "n_probe must be at least",
        ),
        (
            lambda: Neighbours(index="ivf", backend="sklearn").fit(features(5)),
            ValueError,
            "index='ivf' needs backend='faiss', or use index='exact'",
        ),
        (lambda: Neighbours().kneighbors(features(5), 1), ValueError, "call fit first"),
        (lambda: Neighbours().fit(features(0)), ValueError, "at least one row"),
        (lambda: Neighbours().fit(np.full((2, 2), np.nan)), ValueError, "must be finite"),
        (lambda: Neighbours().fit(np.zeros(3)), ValueError, r"shape \(rows, columns\), got \(3,\)"),
        (
            lambda: Neighbours().fit(features(5)).kneighbors(features(5), 6),
            ValueError,
            "k must be at most 5, the number of fitted rows, got k=6",
        ),
        (
            lambda: Neighbours().fit(features(5)).kneighbors(features(5, d=3), 1),
            ValueError,
            r"must have 8 columns, as in fit, got shape \(5, 3\)",
        ),
    ],
)
def test_errors(make, kind, message) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_n_probe_is_checked_when_it_is_changed() -> None:
    index = Neighbours(index="ivf")
    with pytest.raises(ValueError, match="n_probe must be at least 1, got n_probe=-3"):
        index.n_probe = -3
    with pytest.raises(ValueError, match="has no effect on index='exact'"):
        Neighbours().n_probe = 4
