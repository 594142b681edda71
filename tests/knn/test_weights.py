"""Weights of samples, of classes, and of neighbours by their distance."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import balanced_accuracy_score
from torch import nn

from softtopk.knn import KNNObjective, SoftKNNClassifier, SoftKNNRegressor, Training


def uneven(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that overlap, one in ten of the second."""
    return make_classification(
        n, 6, n_informative=4, weights=[0.9], class_sep=0.7, random_state=seed
    )


def quick(kind=SoftKNNClassifier, **settings):
    return kind(**({"epochs": 2, "random_state": 0} | settings))


@pytest.mark.parametrize("objective", ["vote", "nll", "mse"])
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_a_weight_counts_like_so_many_queries(objective: str, leave_one_out: bool) -> None:
    torch.manual_seed(0)
    network = nn.Linear(5, 3).double()
    inputs, labels = torch.randn(14, 5).double(), torch.arange(14) % 3
    if objective == "mse":
        labels = torch.randn(14, 2).double()
    weights = torch.tensor([2, 0, 1, 3, 1, 1, 2, 5, 1, 1, 2, 0, 0, 1])
    loss = KNNObjective(network, 3, objective=objective, eps=0.1, leave_one_out=leave_one_out)
    ours = loss(inputs, labels, 6, weights=weights).loss
    queries = range(14 if leave_one_out else 6)
    one = KNNObjective(network, 3, objective=objective, eps=0.1)
    losses = []
    for i in queries:
        others = [j for j in range(14) if j != i] if leave_one_out else range(6, 14)
        rows = [i, *others]
        losses += [one(inputs[rows], labels[rows], 1).loss] * int(weights[i])
    torch.testing.assert_close(ours, torch.stack(losses).mean())


def test_the_training_gets_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Spy(Training):
        def __init__(self, *args, **settings) -> None:
            super().__init__(*args, **settings)
            seen.append(settings["weights"])

    monkeypatch.setattr("softtopk.knn._estimator.Training", Spy)
    X, y = uneven(60)
    given = np.arange(60.0)
    quick().fit(X, y)
    quick(class_weight="balanced").fit(X, y, given)
    assert seen[0] is None
    balanced = 60 / (2 * np.bincount(y))[y]
    np.testing.assert_allclose(seen[1], given * balanced)


def test_weights_make_a_difference_to_what_is_learned() -> None:
    X, y = uneven(60)
    plain, equal, other = (
        quick().fit(X, y, weights).transform(X)
        for weights in (None, np.full(60, 3.0), np.where(y == 0, 1, 20))
    )
    np.testing.assert_allclose(equal, plain, rtol=1e-3, atol=1e-4)
    assert np.abs(other - plain).max() > 1e-2


def test_a_vote_counts_as_much_as_its_weight() -> None:
    X, y = uneven(80)
    weights = np.random.default_rng(0).uniform(0, 3, 80)
    model = quick(n_neighbors=5, weights="uniform", class_weight={0: 1.0, 1: 4.0}).fit(
        X, y, weights
    )
    found = model.kneighbors(X, return_distance=False)
    counts = weights * np.array([1.0, 4.0])[y]
    votes = np.stack([(counts * (y == c))[found].sum(1) for c in (0, 1)], axis=1)
    expected = votes / votes.sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(X), expected)
    target = X[:, 0] + 5
    regressor = quick(SoftKNNRegressor, n_neighbors=5, weights="uniform").fit(X, target, weights)
    found = regressor.kneighbors(X, return_distance=False)
    mean = [np.average(target[row], weights=weights[row]) for row in found]
    np.testing.assert_allclose(regressor.predict(X), mean)


def test_without_a_neighbour_that_counts_all_count() -> None:
    X, y = uneven(80)
    weights = np.zeros(80)
    weights[0] = 1
    model = quick(n_neighbors=3, weights="uniform").fit(X, y, weights)
    found = model.kneighbors(X, return_distance=False)
    shares = model.predict_proba(X)
    counted = (found == 0).any(1)
    assert 0 < counted.sum() < 80
    np.testing.assert_array_equal(shares[counted].argmax(1), y[0])
    np.testing.assert_allclose(shares[~counted, 1], y[found].mean(1)[~counted])


@pytest.mark.parametrize("k", [None, 9])
def test_balanced_classes_are_found_more_evenly(k: int | None) -> None:
    X, y = uneven(1200, seed=1)
    scores = []
    for class_weight in (None, "balanced"):
        model = quick(epochs=10, n_neighbors=k, class_weight=class_weight).fit(X[::2], y[::2])
        scores.append(balanced_accuracy_score(y[1::2], model.predict(X[1::2])))
    assert scores[1] > scores[0] + 0.03


def test_early_stopping_counts_weights() -> None:
    X, y = uneven(200)
    model = quick(early_stopping=True, validation_fraction=0.5).fit(X, y, np.where(y == 0, 1, 0))
    # All of the other class that count nothing are wrong, and nobody minds.
    assert model.history_[-1]["validation_accuracy"] == 1
    first = np.zeros(200)
    first[model._split(200, 0)[0][0]] = 1
    assert np.isfinite(quick(early_stopping=True).fit(X, y, first).best_epoch_)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.arange(60.0), "sample_weight must not be negative, got -59 in row 59"),
        (np.zeros(60), "non-zero"),
        (np.full(60, np.nan), "NaN"),
        (np.ones(59), "sample_weight.shape"),
    ],
)
def test_wrong_weights(weights: np.ndarray, message: str) -> None:
    X, y = uneven(60)
    with pytest.raises(ValueError, match=message):
        quick().fit(X, y, weights)


@pytest.mark.parametrize("metric", ["euclidean", "squared", "cosine"])
def test_soft_votes_are_those_of_the_operator(metric: str) -> None:
    """Of all templates, as k is large enough for all of them to be looked at."""
    X, y = uneven(60)
    model = quick(n_neighbors=11, weights="soft", metric=metric).fit(X, y)
    queries, templates = (model.transform(part).astype(np.float64) for part in (X[:20] + 0.1, X))
    if metric == "cosine":
        queries, templates = (
            part / np.linalg.norm(part, axis=1, keepdims=True) for part in (queries, templates)
        )
    distances = np.square(queries[:, None] - templates).sum(-1)
    distances = {"euclidean": np.sqrt(distances), "cosine": distances / 2}.get(metric, distances)
    chosen = np.stack([reference.soft_topk(-row, 11, model.eps_)[0] for row in distances])
    shares = model.predict_proba(X[:20] + 0.1)
    np.testing.assert_allclose(shares[:, 1], chosen[:, y == 1].sum(1) / 11, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert len(np.unique(shares)) > 30  # not multiples of 1 / k


def test_soft_votes_at_a_low_temperature_are_hard() -> None:
    X, y = uneven(300)
    votes = [
        quick(weights=weights, eps=1e-6, lr=0.0).fit(X, y).predict_proba(X)
        for weights in ("uniform", "soft")
    ]
    np.testing.assert_allclose(votes[0], votes[1], atol=1e-3)


def test_soft_means() -> None:
    X, _ = uneven(60)
    y = np.stack([X[:, 0], X[:, 1] ** 2], axis=1)
    model = quick(SoftKNNRegressor, n_neighbors=11, weights="soft").fit(X, y)
    features = model.transform(X).astype(np.float64)
    distances = np.linalg.norm(features[:5, None] - features, axis=-1)
    chosen = np.stack([reference.soft_topk(-row, 11, model.eps_)[0] for row in distances])
    np.testing.assert_allclose(model.predict(X[:5]), chosen @ y / 11, rtol=1e-3, atol=1e-4)
