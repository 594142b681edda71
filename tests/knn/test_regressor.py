"""The regressor: what it does not share with the classifier."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import make_friedman1
from sklearn.neighbors import KNeighborsRegressor
from torch import nn

from softtopk.knn import KNNObjective, SoftKNNRegressor

RAW = {"normalize": None}


def data(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    return make_friedman1(n, random_state=0)


def quick(**settings) -> SoftKNNRegressor:
    return SoftKNNRegressor(**({"epochs": 3, "random_state": 0} | settings))


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_on_fixed_features_it_is_that_of_scikit_learn(shape: tuple[int, ...]) -> None:
    X, y = data()
    y = y if not shape else np.stack([y * (i + 1) + X[:, i] for i in range(*shape)], axis=1)
    model = quick(lr=0.0, n_neighbors=4, weights="uniform").fit(X[:200], y[:200])
    plain = KNeighborsRegressor(4).fit(model.transform(X[:200]), y[:200])
    predicted = model.predict(X[200:])
    assert predicted.shape == (100, *shape)
    np.testing.assert_allclose(predicted, plain.predict(model.transform(X[200:])))


def test_training_makes_the_difference() -> None:
    X, y = data(600)
    plain = KNeighborsRegressor(9).fit(X[:400], y[:400]).score(X[400:], y[400:])
    scores = [
        quick(epochs=20, lr=lr).fit(X[:400], y[:400]).score(X[400:], y[400:]) for lr in (0.0, 3e-3)
    ]
    assert scores[1] > max(plain, scores[0]) + 0.1


def test_the_loss_is_the_squared_error_of_the_mean() -> None:
    """At a temperature so low that the choice is hard."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(30, 3).double(), torch.randn(30, 2).double()
    objective = KNNObjective(nn.Identity(), 4, objective="mse", eps=1e-7, options=RAW)
    outcome = objective(inputs, targets, 10)
    plain = KNeighborsRegressor(4).fit(inputs[10:], targets[10:]).predict(inputs[:10])
    expected = np.square(plain - targets[:10].numpy()).mean()
    assert outcome.loss.item() == pytest.approx(expected)
    assert torch.isnan(outcome.accuracy)


def test_the_gradient_is_that_of_the_loss() -> None:
    torch.manual_seed(0)
    targets = torch.randn(12, 1).double()
    objective = KNNObjective(nn.Identity(), 3, objective="mse", eps=0.3, options=RAW)
    inputs = torch.randn(12, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: objective(x, targets, 5).loss, inputs)


@pytest.mark.parametrize("power", [1e-200, 1.0, 1e200])
def test_the_unit_of_the_target_does_not_matter(power: float) -> None:
    X, y = data(100)
    expected = quick().fit(X, y)
    model = quick().fit(X, power * y)
    np.testing.assert_allclose(model.transform(X), expected.transform(X), rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(model.predict(X) / power, expected.predict(X), rtol=0.2)


def test_early_stopping_takes_the_smallest_error() -> None:
    X, y = data()
    seen: list[dict] = []
    model = quick(
        early_stopping=True, epochs=8, callback=seen.append, n_neighbors=9, weights="uniform"
    ).fit(X, y)
    errors = [facts["validation_error"] for facts in model.history_]
    assert np.argmin(errors) == model.best_epoch_ - 1
    assert set(seen[0]) == {"epoch", "epochs", "loss", "validation_error"}
    kept, aside = model._split(300, int(np.random.RandomState(0).randint(np.iinfo(np.int32).max)))
    plain = KNeighborsRegressor(9).fit(model.transform(X[kept]), y[kept])
    found = plain.predict(model.transform(X[aside]))
    assert min(errors) == pytest.approx(np.sqrt(np.mean((found - y[aside]) ** 2)), rel=1e-3)


def test_few_and_equal_targets() -> None:
    X, y = data(20)
    constant = quick().fit(X, np.full(20, 7))
    assert constant.n_iter_ == 0
    np.testing.assert_allclose(constant.predict(X), 7)
    assert quick(weights="soft").fit(X[:1], y[:1]).predict(X) == pytest.approx(np.full(20, y[0]))
    for n in (2, 3):
        assert np.isfinite(quick(leave_one_out=True).fit(X[:n], y[:n]).predict(X)).all()


def test_a_warm_start_needs_as_many_outputs() -> None:
    X, y = data(60)
    model = quick(warm_start=True).fit(X, y)
    first = copy.deepcopy(model.network_.state_dict())
    assert model.fit(X, 2 * y).n_iter_ == 6
    assert not torch.equal(first["2.weight"], model.network_.state_dict()["2.weight"])
    with pytest.raises(ValueError, match=r"warm_start=True needs targets of .*'n',\).*'n', 2"):
        model.fit(X, np.stack([y, y], axis=1))


def test_pickle_and_what_a_regressor_has_not() -> None:
    X, y = data(60)
    model = quick().fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    assert "class_weight" not in model.get_params()
    assert not hasattr(model, "predict_proba")
    with pytest.raises(ValueError, match="contains NaN"):
        quick().fit(X, np.where(y > 10, y, np.nan))
