"""Files of fitted estimators."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits, make_classification
from sklearn.exceptions import NotFittedError
from torch import nn

from softtopk.knn import MLP, ResNet, SoftKNNClassifier, SoftKNNRegressor

X, Y = make_classification(60, 6, n_informative=4, n_classes=3, random_state=0)


def quick(kind=SoftKNNClassifier, **settings):
    return kind(**({"epochs": 2, "random_state": 0} | settings))


def make(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(*shape, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize(
    "names",
    [
        np.array(["cat", "dog", "axolotl"]),
        np.array(["a", "b", "ü"], dtype=object),
        np.array([-5, 0, 2**40]),
        np.array([1, 2, 200], dtype=np.uint8),
        np.array([0.1, 0.5, 1e300]),
        np.array([True, False, True]),
    ],
    ids=lambda names: names.dtype.str,
)
def test_everything_is_there_again(names: np.ndarray, path: Path, monkeypatch) -> None:
    if names.dtype == float:  # which scikit-learn takes for targets of a regression otherwise
        names = np.array([0.0, 1.0, 2.0])
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = quick(early_stopping=True, class_weight="balanced", weights="soft")
    model.fit(frame, names[Y], np.linspace(0.5, 1, 60)).save(path)
    monkeypatch.setattr(pickle, "loads", None)
    before = torch.get_rng_state()
    again = SoftKNNClassifier.load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert again.get_params() == model.get_params()
    assert vars(again).keys() == vars(model).keys()
    for method in ("predict", "predict_proba", "transform"):
        np.testing.assert_array_equal(getattr(again, method)(frame), getattr(model, method)(frame))
    np.testing.assert_array_equal(again.kneighbors()[1], model.kneighbors()[1])
    assert again.classes_.dtype == model.classes_.dtype
    for name in (
        "history_",
        "eps_",
        "n_iter_",
        "n_neighbors_",
        "best_epoch_",
        "input_shape_",
        "n_features_in_",
    ):
        assert getattr(again, name) == getattr(model, name)
    assert again.feature_names_in_.tolist() == list("abcdef")
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize(
    "settings",
    [
        {"image_shape": (1, 8, 8)},
        {"network": ResNet(1, 8, blocks=(1, 1)), "image_shape": (1, 8, 8), "standardize": False},
        {"network": MLP((64,), hidden=(5, 4), features=3, dropout=0.5), "metric": "cosine"},
        {"index": "ivf", "n_probe": 2, "class_weight": {0: 1.0, 3: 2.5}},
        {"index": "hnsw", "n_probe": 20},
        {"relaxation_options": {"normalize": "row"}, "device": torch.device("cpu")},
    ],
)
def test_networks_of_ours_and_settings(settings: dict, path: Path, other_defaults) -> None:
    images, y = load_digits(return_X_y=True)
    model = quick(**settings).fit(images[:300], y[:300])
    model.save(path)
    with other_defaults():
        again = SoftKNNClassifier.load(path)
    np.testing.assert_array_equal(again.transform(images), model.transform(images))
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))
    assert str(again.network_) == str(model.network_)
    same = {"network", "device"}
    for name, value in model.get_params().items():
        assert name in same or again.get_params()[name] == value
    assert again.network is (again.network_ if "network" in settings else None)
    assert again.set_params(warm_start=True, epochs=1).fit(images[:300], y[:300]).n_iter_ == 3


@pytest.mark.parametrize("network", [make, make((6,))], ids=["function", "module"])
def test_a_network_of_ones_own_is_given_again(network, path: Path) -> None:
    model = quick(network=network).fit(X, Y)
    model.save(path)
    with pytest.raises(ValueError, match=r"your own \(Sequential\).*load\(path, network=\.\.\.\)"):
        SoftKNNClassifier.load(path)
    again = SoftKNNClassifier.load(path, network=network)
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    assert again.network is network
    with pytest.raises(ValueError, match=r"network=Linear.* does not fit the weights in .*model"):
        SoftKNNClassifier.load(path, network=nn.Linear(6, 4))


def test_a_regressor(path: Path) -> None:
    y = np.stack([X[:, 0], X[:, 1]], axis=1)
    model = quick(SoftKNNRegressor, weights="soft").fit(X, y)
    model.save(path)
    np.testing.assert_array_equal(SoftKNNRegressor.load(path).predict(X), model.predict(X))
    with pytest.raises(ValueError, match=r"not a file that SoftKNNClassifier\.save wrote"):
        SoftKNNClassifier.load(path)


def test_what_is_not_a_plain_value_is_named(path: Path) -> None:
    generator = np.random.RandomState(0)  # the kind that scikit-learn takes
    model = quick(callback=print, random_state=generator).fit(X, Y)
    with pytest.warns(UserWarning, match="is not a plain value and is not saved") as caught:
        model.save(path)
    assert sorted(str(warning.message).partition("=")[0] for warning in caught) == [
        "callback",
        "random_state",
    ]
    assert caught[0].filename == __file__
    again = SoftKNNClassifier.load(path)
    assert again.callback is None
    assert again.random_state is None
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_classes_that_cannot_be_saved(path: Path) -> None:
    model = quick().fit(X, np.array(["2001", "2002", "2003"], dtype="datetime64[Y]")[Y])
    with pytest.raises(TypeError, match="classes_ cannot be saved: datetime64"):
        model.save(path)
    assert not path.exists()
    with pytest.raises(NotFittedError):
        quick().save(path)


def test_damage_is_noticed(path: Path) -> None:
    quick().fit(X, Y).save(path)
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for place in (8 + length + 100, len(content) - 1, content.index(b"history_") + 60):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"model\.safetensors (does not describe|is not a file)"
        ):
            SoftKNNClassifier.load(path)
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match=r"is not a file that SoftKNNClassifier\.save wrote"):
        SoftKNNClassifier.load(path)
    with pytest.raises(FileNotFoundError):
        SoftKNNClassifier.load(path.with_name("nothing"))


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"parameters": {}, "attributes": {}, "network": {}},
        {"parameters": {"later": 1}, "attributes": {}, "network": {}},
        {"parameters": {}, "attributes": {}, "network": {"kind": "Linear", "arguments": {}}},
    ],
)
def test_files_of_others(description: dict, path: Path) -> None:
    metadata = {"softtopk.SoftKNNClassifier 1": json.dumps(description)}
    save_file({"_features": torch.zeros(2, 2)}, path, metadata)
    with pytest.raises(ValueError, match="does not describe a model that this version"):
        SoftKNNClassifier.load(path)


def test_the_index_is_saved_as_it_was_fitted(tmp_path: Path) -> None:
    """Parameters that are set after `fit` would make another one."""
    X, y = make_classification(500, random_state=0)
    model = SoftKNNClassifier(epochs=1, index="ivf", n_probe=3, random_state=0).fit(X, y)
    expected = model.kneighbors(X)
    model.set_params(n_probe=1).save(tmp_path / "model.safetensors")
    loaded = SoftKNNClassifier.load(tmp_path / "model.safetensors")
    assert loaded.n_probe == 3
    for found, wanted in zip(loaded.kneighbors(X), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
