"""What the estimators choose by themselves: neighbours, temperature, sizes, and when to go back."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification, make_friedman1
from sklearn.metrics import recall_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from softtopk import eps_for
from softtopk._training import SCHEDULES
from softtopk.knn import (
    SoftKNNClassifier,
    SoftKNNRegressor,
    Training,
    TrainingWarning,
    pairwise_distances,
)

CANDIDATES = (1, 3, 5, 9)


def blobs(n: int = 120, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return make_classification(
        n, 6, n_informative=4, n_classes=3, n_clusters_per_class=1, flip_y=noise, random_state=seed
    )


def quick(kind: Any = SoftKNNClassifier, **settings: Any) -> Any:
    return kind(**({"epochs": 1, "random_state": 0} | settings))


class Noting(nn.Linear):
    """A network without chance that notes the features of every step."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes, bias=False)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        features = super().forward(x)
        if self.training:
            self.seen.append(features.detach().clone())
        return features


# The number of neighbours.


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_as_many_neighbours_as_leaving_one_out_calls_for(noise: float, seed: int) -> None:
    X, y = blobs(noise=noise, seed=seed)
    scaled = StandardScaler().fit_transform(X)
    right = [
        (KNeighborsClassifier(k).fit(scaled, y).predict(None) == y).sum()  # leaves one out
        for k in CANDIDATES
    ]
    model = quick(random_state=seed).fit(X, y)
    assert model.n_neighbors_ == CANDIDATES[int(np.argmax(right))]
    assert model.n_neighbors is None
    assert quick(n_neighbors=7).fit(X, y).n_neighbors_ == 7


def test_the_choice_is_not_always_the_same() -> None:
    chosen = {
        quick().fit(*blobs(noise=noise, seed=seed)).n_neighbors_
        for noise in (0.0, 0.6)
        for seed in range(4)
    }
    assert len(chosen) > 1


def test_the_neighbours_of_a_regressor() -> None:
    for noise in (0.0, 5.0):
        X, y = make_friedman1(150, noise=noise, random_state=0)
        scaled = StandardScaler().fit_transform(X)
        errors = [
            np.square(KNeighborsRegressor(k).fit(scaled, y).predict(None) - y).mean()
            for k in CANDIDATES
        ]
        model = quick(SoftKNNRegressor).fit(X, y)
        assert model.n_neighbors_ == CANDIDATES[int(np.argmin(errors))]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_count_in_the_choice_of_the_neighbours(seed: int) -> None:
    X, y = blobs(noise=0.4, seed=seed)
    weights = np.random.default_rng(seed).exponential(size=len(y)) * (1 + 8 * (y == 2))
    scaled = StandardScaler().fit_transform(X)
    distances = np.linalg.norm(scaled[:, None] - scaled, axis=-1)
    np.fill_diagonal(distances, np.inf)
    order = distances.argsort(1)
    quality = []
    for k in CANDIDATES:
        votes = [np.bincount(y[row], weights[row], minlength=3) for row in order[:, :k]]
        quality.append(np.average(np.argmax(votes, 1) == y, weights=weights))
    assert quick().fit(X, y, weights).n_neighbors_ == CANDIDATES[int(np.argmax(quality))]


def test_weights_of_zero_decide_nothing() -> None:
    X, y = blobs(60, noise=0.3)
    nonsense = np.concatenate([X, X]), np.concatenate([y, (y + 1) % 3])
    weights = np.repeat([1.0, 0.0], 60)
    model = quick(epochs=20).fit(*nonsense, weights)
    assert np.isfinite([epoch["loss"] for epoch in model.history_]).all()
    assert model.score(X, y) > 0.8
    one = np.zeros(60)
    one[5] = 1.0  # all but one
    assert np.isfinite(quick().fit(X, y, one).predict_proba(X)).all()


# The votes of the neighbours.


def test_votes_are_soft_where_there_is_a_threshold() -> None:
    X, y = blobs()
    model = quick().fit(X, y)
    by_default = model.predict_proba(X)
    np.testing.assert_array_equal(by_default, model.set_params(weights="soft").predict_proba(X))
    assert np.abs(by_default - model.set_params(weights="uniform").predict_proba(X)).max() > 0.01
    for settings in (
        {"relaxation": "neural-sort"},
        {"relaxation_options": {"normalize": "row"}},
    ):
        other = quick(**settings).fit(X, y)
        votes = y[other.kneighbors(X, return_distance=False)]
        shares = np.stack([(votes == label).mean(1) for label in range(3)], 1)
        np.testing.assert_allclose(other.predict_proba(X), shares)


# The temperature.


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("k", [None, 4])
def test_the_features_of_the_first_step_decide_eps(leave_one_out: bool, k: int | None) -> None:
    X, y = blobs(200)
    model = quick(
        network=lambda shape: Noting(*shape, 5),
        leave_one_out=leave_one_out,
        n_neighbors=k,
        epochs=3,
    ).fit(X, y)
    first = model.network_.seen[0]
    k = k or 9
    if leave_one_out:
        scores, mask = -pairwise_distances(first, first), ~torch.eye(len(first), dtype=torch.bool)
    else:
        scores, mask = -pairwise_distances(first[:100], first[100:]), None
    assert model.eps_ == eps_for(scores, k, width=2 * k, mask=mask, per_row=False)
    assert len(model.network_.seen) == 6


def test_the_scale_of_the_columns_does_not_matter() -> None:
    """Without the standardisation; a power of two changes no digit."""
    X, y = blobs()
    network = Noting(6, 5)
    plain, scaled = (
        quick(network=network, standardize=False, lr=0.0).fit(scale * X, y) for scale in (1, 1024)
    )
    assert scaled.eps_ == 1024 * plain.eps_
    assert scaled.n_neighbors_ == plain.n_neighbors_
    assert scaled.history_ == plain.history_
    np.testing.assert_array_equal(scaled.predict_proba(1024 * X), plain.predict_proba(X))
    odd = quick(network=network, standardize=False, lr=0.0).fit(0.003 * X, y)
    assert odd.eps_ == pytest.approx(0.003 * plain.eps_, rel=0.01)
    np.testing.assert_allclose(odd.predict_proba(0.003 * X), plain.predict_proba(X), atol=0.01)


# The sizes of a training.


@pytest.mark.parametrize(
    ("n", "size", "epochs"),
    [
        (2, 100, 25),  # a query and a template in a step: 50 steps
        (150, 100, 49),  # 75 queries in a step, 8 sqrt(150) = 98 in all
        (500, 100, 36),  # 5 steps in an epoch of 178.9 in all
        (2000, 200, 36),  # 10 of 357.8
        (10_000, 400, 32),  # 25 of 800
        (1_000_000, 400, 2),  # 2500 of 4000
    ],
)
def test_the_sizes_follow_from_the_number_of_samples(n: int, size: int, epochs: int) -> None:
    for model in (SoftKNNClassifier(), SoftKNNRegressor()):
        recipe = model._recipe(n)
        assert (recipe.batch_size, recipe.template_size, recipe.epochs) == (size, size, epochs)


def test_sizes_that_are_given_are_taken() -> None:
    recipe = SoftKNNClassifier(batch_size=50, template_size=30)._recipe(1000)
    assert (recipe.batch_size, recipe.template_size) == (50, 30)
    assert recipe.epochs == math.ceil(8 * math.sqrt(1000) / 20)
    assert SoftKNNClassifier(epochs=7)._recipe(1000).epochs == 7
    X, y = blobs()
    assert quick(epochs=None).fit(X, y).n_iter_ == 44  # 60 queries in a step: 88 steps


@pytest.mark.parametrize(
    ("classes", "n_neighbors", "templates"),
    [(3, None, 9), (3, 4, 4), (3, np.int64(20), 20), (60, 40, 33), (5000, None, 0)],
)
def test_templates_of_every_class(classes: int, n_neighbors: int | None, templates: int) -> None:
    model = SoftKNNClassifier(n_neighbors=n_neighbors)
    model.classes_ = np.arange(classes)
    found = model._recipe(20_000).templates_per_class
    assert found == templates
    assert type(found) is int
    assert SoftKNNRegressor(n_neighbors=n_neighbors)._recipe(100).templates_per_class == 0


# Classes of all numbers and sizes.


def centres(classes: int, sizes: Any, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Classes around points in five columns, and five columns of noise."""
    random = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), sizes)
    points = random.normal(size=(classes, 5)) * 3
    X = random.normal(size=(len(y), 10))
    X[:, :5] += points[y]
    return X, y


def test_many_classes_of_few_rows() -> None:
    X, y = centres(60, 12)
    train = np.arange(len(y)) % 12 < 6
    # Fewer than the steps by default, for the sake of time.
    model = quick(epochs=15).fit(X[train], y[train])
    scaled = StandardScaler().fit(X[train]).transform(X)
    plain = [
        KNeighborsClassifier(k).fit(scaled[train], y[train]).score(scaled[~train], y[~train])
        for k in CANDIDATES
    ]
    assert model.score(X[~train], y[~train]) > max(plain) + 0.1
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]


def test_a_class_of_one_row() -> None:
    X, y = centres(3, [60, 60, 1])
    model = quick(epochs=30).fit(X, y)
    shares = model.predict_proba(X)
    assert shares.shape == (121, 3)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert np.isfinite([epoch["loss"] for epoch in model.history_]).all()
    assert model.score(X[:120], y[:120]) > 0.95


def test_two_classes_of_very_different_size() -> None:
    X, y = make_classification(
        1200, 10, n_informative=4, n_redundant=0, weights=[0.96], flip_y=0, random_state=3
    )
    train = np.arange(1200) % 2 == 0
    assert 10 < y[train].sum() < 30
    model = quick(epochs=25).fit(X[train], y[train])
    plain = KNeighborsClassifier(9).fit(X[train], y[train])
    recalls = [recall_score(y[~train], one.predict(X[~train])) for one in (model, plain)]
    assert recalls[0] >= recalls[1]
    assert recalls[0] > 0.2
    assert model.score(X[~train], y[~train]) >= plain.score(X[~train], y[~train])


# A training that gets worse.


@pytest.mark.parametrize("kind", [SoftKNNClassifier, SoftKNNRegressor])
def test_a_training_that_gets_worse_ends_with_its_best_weights(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def advance(self: Training) -> dict[str, float]:
        with torch.no_grad():
            for parameter in self.objective.parameters():
                parameter.fill_(float(self.step))
        self.step += 1
        return {"loss": 2 - self.step / 100 if self.step <= 60 else 6.0, "accuracy": 0.5}

    monkeypatch.setattr(Training, "advance", advance)
    X, y = blobs()
    settings: dict[str, Any] = {"network": nn.Linear(6, 3), "eps": 1.0, "epochs": 50}
    with pytest.warns(TrainingWarning, match="the loss rose from 1.4.* to .*smaller lr") as caught:
        model = quick(kind, early_stopping=False, **settings).fit(X, y)
    assert [warning.filename for warning in caught] == [__file__]
    assert 50 <= model.network_.bias[0].item() <= 60
    assert model.n_iter_ == 50
    with warnings.catch_warnings():  # early stopping has weights of its own to take
        warnings.simplefilter("error")
        model = quick(kind, early_stopping=True, patience=50, **settings).fit(X, y)
    assert model.best_epoch_ >= 1


def test_no_collapse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learning rate that becomes absurd loses nothing of what was learned."""
    X, y = blobs(300, noise=0.05)
    settings = {"epochs": 40, "schedule": "constant", "warmup": 0.0}
    expected = quick(**settings).fit(X[::2], y[::2])
    monkeypatch.setitem(SCHEDULES, "constant", lambda done: 1.0 if done < 0.75 else 300.0)
    with pytest.warns(TrainingWarning):
        model = quick(**settings).fit(X[::2], y[::2])
    assert model.history_[-1]["loss"] > 2 * model.history_[25]["loss"]
    score = model.score(X[1::2], y[1::2])
    assert score > expected.score(X[1::2], y[1::2]) - 0.05
    assert score > 0.8


def test_a_training_without_learning_is_not_called_worse() -> None:
    """However much the losses of its batches scatter."""
    X, y = blobs(noise=0.3)
    for epochs in (1, 5):
        quick(lr=0.0, eps=1e-6, epochs=epochs, batch_size=10).fit(X, y)
