"""The estimator as a user of scikit-learn meets it."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pandas as pd
import pytest
import torch
from joblib import parallel_config
from paths import first
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from softtopk import soft_topk
from softtopk.knn import MLP, DivergedError, SoftKNNClassifier, Training


def blobs(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes in four columns, six more of noise."""
    return make_classification(
        n, 10, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1,
        class_sep=1.5, random_state=seed,
    )  # fmt: skip


def quick(**settings) -> SoftKNNClassifier:
    return SoftKNNClassifier(**({"epochs": 3, "random_state": 0} | settings))


@pytest.mark.parametrize("load", [load_digits, load_wine])
def test_ahead_of_plain_neighbours(load) -> None:
    X, y = load(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, random_state=0)
    ours = SoftKNNClassifier(random_state=0).fit(X, y).score(X_test, y_test)
    theirs = max(
        model.fit(X, y).score(X_test, y_test)
        for k in (5, 9)
        for model in (
            KNeighborsClassifier(k),
            make_pipeline(StandardScaler(), KNeighborsClassifier(k)),
        )
    )
    assert ours >= theirs
    assert ours > 0.97


def test_training_is_what_makes_the_difference() -> None:
    X, y = blobs(200)
    # Without the shortcut, which has the features begin as the input.
    untrained = quick(lr=0.0, network=MLP).fit(X[::2], y[::2]).score(X[1::2], y[1::2])
    trained = quick(epochs=40, network=MLP).fit(X[::2], y[::2]).score(X[1::2], y[1::2])
    assert trained > untrained + 0.05


def test_attributes() -> None:
    X, y = blobs()
    model = quick(n_neighbors=4).fit(X, y)
    assert model.n_iter_ == 3
    assert [set(epoch) for epoch in model.history_] == [{"loss", "accuracy"}] * 3
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.n_features_in_ == 10
    assert model.input_shape_ == (10,)
    assert model.n_neighbors_ == 4
    assert not model.network_.training
    assert not hasattr(model, "best_epoch_")
    assert model.get_feature_names_out()[:2].tolist() == [
        "softknnclassifier0",
        "softknnclassifier1",
    ]


def test_the_methods_agree() -> None:
    X, y = blobs()
    model = quick(n_neighbors=4, weights="uniform").fit(X, y)
    features = model.transform(X[:20])
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, quick(n_neighbors=4).fit_transform(X, y)[:20], rtol=1e-4)
    distances, found = model.kneighbors(X[:20])
    assert found.shape == (20, 4)
    np.testing.assert_array_equal(found[:, 0], np.arange(20))
    np.testing.assert_allclose(distances[:, 0], 0, atol=1e-5)
    templates = model.transform(X)
    np.testing.assert_allclose(
        distances[:, 3], np.linalg.norm(features - templates[found[:, 3]], axis=1), rtol=1e-4
    )
    votes = np.stack([(y[found] == label).mean(1) for label in range(3)], axis=1)
    np.testing.assert_allclose(model.predict_proba(X[:20]), votes)
    np.testing.assert_array_equal(model.predict(X[:20]), votes.argmax(1))
    np.testing.assert_array_equal(model.kneighbors(X[:20], 2, return_distance=False), found[:, :2])


def test_training_samples_are_not_their_own_neighbours() -> None:
    X, y = blobs(40)
    X[1] = X[0]  # two that are equal
    model = quick(n_neighbors=9).fit(X, y)
    distances, found = model.kneighbors(n_neighbors=5)
    assert (found != np.arange(40)[:, None]).all()
    assert found[0, 0] == 1
    assert found[1, 0] == 0
    with_self = model.kneighbors(X, 6)[1]
    np.testing.assert_array_equal(found[2:], with_self[2:, 1:])
    assert model.kneighbors(return_distance=False).shape == (40, 9)
    with pytest.raises(ValueError, match="n_neighbors must be at most 39"):
        model.kneighbors(n_neighbors=40)
    assert distances.shape == (40, 5)


def test_many_equal_samples() -> None:
    X, y = np.ones((30, 3)), np.arange(30) % 2
    model = quick().fit(X, y)
    found = model.kneighbors(n_neighbors=4, return_distance=False)
    assert (found != np.arange(30)[:, None]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, bool])
def test_types_of_input(dtype) -> None:
    X, y = blobs()
    X = (10 * (X - X.min())).astype(dtype)
    assert quick().fit(X, y).predict(X).shape == (90,)


def test_an_offset_and_a_scale_do_not_matter() -> None:
    X, y = blobs()
    model = quick().fit(X, y)
    shifted = 1e7 + X * np.logspace(-3, 3, 10)
    other = quick().fit(shifted, y)
    np.testing.assert_allclose(other.transform(shifted), model.transform(X), rtol=1e-2, atol=1e-2)
    raw = quick(standardize=False).fit(X, y)
    assert (raw.mean_, raw.scale_) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [
        *((np.float64, exponent) for exponent in (515, 1020, -1000)),
        *((np.float32, exponent) for exponent in (125, -99)),
    ],
)
def test_columns_of_any_size_are_standardised(dtype: type, exponent: int) -> None:
    """From 1e-300 to the largest numbers; a power of two changes no digit."""
    X, y = blobs()
    X = X.astype(dtype)
    model = quick().fit(X, y)
    scaled = np.ldexp(X, exponent)
    other = quick().fit(scaled, y)
    np.testing.assert_array_equal(other.transform(scaled), model.transform(X))
    np.testing.assert_array_equal(other.scale_, np.ldexp(model.scale_, exponent))


def test_columns_at_the_end_of_the_range() -> None:
    X, y = blobs()
    largest = np.finfo(np.float64).max
    X[:, 0] = np.where(y == 0, largest, -largest)
    X[:, 1] = 0.3 * largest  # constant: its mean is not quite that
    X[:, 2] = np.where(y == 0, 1e-310, 0)
    X[:, 3] = 5e-324
    X[:, 4] = np.where(y == 0, 5e-324, 0)  # whose deviation is rounded to zero
    model = quick().fit(X, y)
    inputs = model._inputs(X).numpy().astype(np.float64)
    np.testing.assert_allclose(inputs[:, [0, 2]].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(inputs[:, [0, 2]].std(0), 1, rtol=1e-6)
    np.testing.assert_allclose(inputs[:, [1, 3, 4]], 0, atol=1e-12)
    assert np.isfinite(model.transform(X)).all()


def test_what_is_too_large_for_the_network_is_named() -> None:
    X, y = blobs()
    model = quick().fit(X, y)
    X[3, 1] = 1e300
    with pytest.raises(ValueError, match=r"1e\+300 in row 3, column 1: standardised as in fit"):
        model.predict(X)
    with pytest.raises(ValueError, match=r"row 3, column 1: it is too large .* standardize=True"):
        quick(standardize=False).fit(X, y)
    images = X[:, :8].reshape(-1, 2, 2, 2)
    with pytest.raises(ValueError, match=r"1e\+300 in row 3, column 1"):
        quick(standardize=False).fit(images, y)


def test_a_constant_column_stays_harmless() -> None:
    X, y = blobs()
    X[:, 3] = 0.1  # whose deviation is computed as 1e-17 or so
    model = quick().fit(X, y)
    assert model.scale_[3] == 1
    assert np.isfinite(model.transform(X)).all()


def test_labels_of_any_kind() -> None:
    X, y = blobs()
    expected = quick().fit(X, y).predict(X)
    for names in (["cat", "dog", "eel"], [-5, 0, 700], [False, True, True]):
        labels = np.array(names)[y]
        if len(set(names)) == 3:
            np.testing.assert_array_equal(
                quick().fit(X, labels).predict(X), np.array(names)[expected]
            )
        assert quick().fit(X, labels).classes_.tolist() == sorted(set(names))


def test_data_frames() -> None:
    X, y = blobs()
    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(10)])
    model = quick().fit(frame, pd.Series(y).map({0: "a", 1: "b", 2: "c"}))
    assert model.feature_names_in_.tolist() == list(frame.columns)
    np.testing.assert_array_equal(
        model.predict(frame), model.classes_[quick().fit(X, y).predict(X)]
    )
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"column 0": "other"}))
    out = model.set_output(transform="pandas").transform(frame)
    assert isinstance(out, pd.DataFrame)
    assert out.columns[0] == "softknnclassifier0"
    assert model.predict(frame).shape == (90,)


def test_images() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300]
    images = X.reshape(-1, 1, 8, 8)
    flat = quick(image_shape=(1, 8, 8)).fit(X, y)
    deep = quick().fit(images, y)
    assert type(flat.network_).__name__ == "ConvNet"
    assert flat.input_shape_ == deep.input_shape_ == (1, 8, 8)
    assert flat.n_features_in_ == deep.n_features_in_ == 64
    assert flat.mean_.shape == (1, 1, 1)  # of the channel
    np.testing.assert_array_equal(flat.transform(X), deep.transform(images))
    np.testing.assert_array_equal(flat.predict(images), deep.predict(X))
    np.testing.assert_array_equal(deep.predict(torch.tensor(images)), deep.predict(images))
    assert flat.score(X, y) > 0.9
    for model, X_wrong, message in (
        (quick(), images[:, 0], r"X\[:, None\] adds a channel"),
        (quick(image_shape=(1, 4, 4)), images, r"X has images of shape \(1, 8, 8\)"),
        (quick(image_shape=(1, 4, 4)), X, "needs 16 columns, got X with 64"),
        (quick(image_shape=(8, 8)), X, r"image_shape must be \(channels, height, width\)"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(X_wrong, y)
    with pytest.raises(ValueError, match=r"samples of shape \(1, 8, 8\), as in fit"):
        deep.predict(X.reshape(-1, 1, 4, 16))


def test_the_same_seed_gives_the_same_classifier() -> None:
    X, y = blobs()
    first, second, other = (quick(random_state=seed).fit(X, y) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    assert first.history_ == second.history_
    assert np.abs(first.transform(X) - other.transform(X)).max() > 1e-2
    seeded = [quick(random_state=np.random.RandomState(3)).fit(X, y) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].transform(X), seeded[1].transform(X))
    with_dropout = [quick(early_stopping=True).fit(X, y).history_ for _ in range(2)]
    assert with_dropout[0] == with_dropout[1]


def test_the_global_generators_are_left_alone() -> None:
    X, y = blobs()
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 # this is the generator in question
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for relaxation in ("soft-topk", "relaxed-subset"):  # the latter draws noise
        model = quick(early_stopping=True, relaxation=relaxation).fit(X, y)
        model.predict(X)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def with_dropout(shape: tuple[int, ...]) -> nn.Module:
    """A network that draws from torch's global generator."""
    return nn.Sequential(nn.Linear(*shape, 8), nn.Dropout(0.5), nn.Linear(8, 4))


@pytest.mark.parametrize(
    "settings", [{}, {"relaxation": "relaxed-subset"}, {"network": with_dropout}]
)
def test_fits_in_threads_are_those_in_a_row(settings: dict) -> None:
    X, y = blobs(40)
    together = Barrier(4)

    def fit(seed: int, wait: bool = True) -> np.ndarray:
        if wait:
            together.wait(60)
        model = quick(epochs=2, random_state=seed, batch_size=5, **settings)
        return model.fit(X, y).transform(X)

    expected = [fit(seed, wait=False) for seed in range(8)]
    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(fit, range(8)))
    np.testing.assert_array_equal(found, expected)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("relaxation", ["soft-topk", "stochastic-neural-sort"])
def test_a_fit_leaves_what_other_threads_draw_alone(relaxation: str) -> None:
    X, y = blobs(40)
    torch.manual_seed(5)
    with ThreadPoolExecutor(1) as pool:
        fit = pool.submit(quick(epochs=10, relaxation=relaxation).fit, X, y)
        drawn = [torch.rand(1).item()]
        while not fit.done():
            drawn.append(torch.rand(1).item())
        fit.result()
    torch.manual_seed(5)
    assert drawn == [torch.rand(1).item() for _ in drawn]


def test_a_module_is_copied_with_its_weights() -> None:
    X, y = blobs()
    network = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 3))
    network.train()
    weights = copy.deepcopy(network.state_dict())
    model = quick(network=network).fit(X, y)
    assert all(torch.equal(network.state_dict()[name], weights[name]) for name in weights)
    assert network.training
    assert model.network_ is not network
    assert not torch.equal(model.network_[0].weight, network[0].weight)
    still = quick(network=network, lr=0.0).fit(X, y)
    torch.testing.assert_close(still.network_.state_dict(), weights)
    np.testing.assert_array_equal(quick(network=network).fit(X, y).transform(X), model.transform(X))
    assert clone(model).network is not network


def test_a_function_makes_the_network() -> None:
    shapes = []

    def make(shape: tuple[int, ...]) -> nn.Module:
        shapes.append(shape)
        return nn.Sequential(nn.LazyLinear(5), nn.BatchNorm1d(5))

    X, y = blobs()
    first, second = quick(network=make).fit(X, y), quick(network=make).fit(X, y)
    assert shapes == [(10,), (10,)]
    assert first.transform(X).shape == (90, 5)
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    one_by_one = np.concatenate([first.transform(row[None]) for row in X[:5]])
    np.testing.assert_allclose(one_by_one, first.transform(X[:5]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("index", ["exact", "ivf", "hnsw"])
def test_pickle(index: str) -> None:
    X, y = blobs(300)
    model = quick(index=index).fit(X, y)
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict_proba(X), model.predict_proba(X))
    assert copied.get_params() == model.get_params()


def test_in_a_pipeline() -> None:
    X, y = blobs()
    last = make_pipeline(StandardScaler(), quick()).fit(X, y)
    assert last.score(X, y) > 0.7
    first = make_pipeline(quick(), KNeighborsClassifier()).fit(X, y)
    assert first.score(X, y) > 0.7
    assert first[:-1].get_feature_names_out()[0] == "softknnclassifier0"


@pytest.mark.parametrize(
    "parallel",
    first([("threading", 2)], [("loky", 2)]),  # processes take seconds to begin
)
def test_in_a_grid_search(parallel: list[tuple[str, int]]) -> None:
    X, y = blobs()
    grid = {"n_neighbors": np.array([1, 5])}  # numpy's integers, too
    scores = []
    for backend, n_jobs in [("sequential", 1), *parallel]:
        search = GridSearchCV(quick(epochs=2), grid, cv=2, n_jobs=n_jobs, error_score="raise")
        with parallel_config(backend):
            search.fit(X, y)
        assert search.best_params_["n_neighbors"] in (1, 5)
        scores.append(search.cv_results_["mean_test_score"])
    assert scores[0].max() > 0.6
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize(
    "settings",
    [
        {"relaxation": "neural-sort", "eps": 1.0},
        {"relaxation": "successive-softmax"},
        {"relaxation_options": {"normalize": "batch"}, "eps": 1e-3},
        {"objective": "nll"},
        {"metric": "cosine"},
        {"metric": "squared", "eps": 1e-5},
        {"optimizer": "sgd", "lr": 1e-2, "schedule": "constant"},
        {"leave_one_out": True},
        {"warmup": 0.5},
        {"index": "ivf", "n_probe": 2},
        {"backend": "sklearn"},
        {"device": "auto"},
        {"device": torch.device("cpu")},
    ],
)
def test_settings(settings: dict) -> None:
    X, y = blobs(150)
    assert quick(**settings).fit(X[:100], y[:100]).score(X[100:], y[100:]) > 0.7


@pytest.mark.parametrize(("leave_one_out", "k"), [(False, 5), (True, 13)])
def test_settings_reach_the_training(
    monkeypatch: pytest.MonkeyPatch, leave_one_out: bool, k: int
) -> None:
    made = []

    class Spy(Training):
        def __init__(self, *args, **kwargs) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("softtopk.knn._estimator.Training", Spy)
    X, y = blobs()
    quick(
        leave_one_out=leave_one_out, warmup=0.25, n_neighbors=20, batch_size=19, template_size=10
    ).fit(X, y)
    (training,) = made
    assert training.objective.leave_one_out is leave_one_out
    assert training.recipe.warmup == 0.25
    # Five batches of 18: a query has 10 templates, or 27 with the other queries.
    assert f"k={k}," in repr(training.objective)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_few_samples_that_are_all_queries(n: int) -> None:
    X, _ = blobs()
    model = quick(leave_one_out=True).fit(X[:n], np.arange(n) % 2)
    assert np.isfinite(model.transform(X)).all()


def test_the_backends_predict_the_same() -> None:
    X, y = blobs(200)
    votes = [quick(backend=name).fit(X, y).predict_proba(X) for name in ("faiss", "sklearn")]
    np.testing.assert_array_equal(*votes)


def test_early_stopping_takes_the_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = blobs(60)
    accuracies = iter([0.5, 0.7, 0.9, 0.9, 0.8, 0.7, 1.0])
    seen = []

    def measure(self) -> float:
        """As it is, with accuracies of our choice."""
        accuracy = next(accuracies)
        seen.append(copy.deepcopy(self._model.network_.state_dict()))
        self._keep(accuracy)
        return accuracy

    monkeypatch.setattr("softtopk.knn._estimator.Validation.measure", measure)
    model = quick(early_stopping=True, patience=3, epochs=50).fit(X, y)
    assert model.n_iter_ == 6  # three epochs after the third
    assert model.best_epoch_ == 3
    assert [epoch["validation_accuracy"] for epoch in model.history_] == [
        0.5, 0.7, 0.9, 0.9, 0.8, 0.7,
    ]  # fmt: skip
    torch.testing.assert_close(model.network_.state_dict(), seen[2], rtol=0, atol=0)


def test_early_stopping_measures_on_samples_set_aside() -> None:
    X, y = blobs(200)
    model = quick(early_stopping=True, validation_fraction=0.25, epochs=4, patience=1).fit(X, y)
    accuracies = [epoch["validation_accuracy"] for epoch in model.history_]
    assert max(accuracies) == accuracies[model.best_epoch_ - 1]
    assert all(accuracy * 50 == pytest.approx(round(accuracy * 50)) for accuracy in accuracies)
    assert len(model.kneighbors(return_distance=False)) == 200  # they are templates again
    kept, aside = model._split(len(y), 0)
    assert sorted([*kept, *aside]) == list(range(200))
    np.testing.assert_allclose(np.bincount(y[aside]), np.bincount(y) / 4, atol=1)
    rare = quick(early_stopping=True).fit(X, np.where(np.arange(200) == 7, 9, y))
    assert rare.classes_.tolist() == [0, 1, 2, 9]  # which cannot be split fairly
    with pytest.raises(ValueError, match="leaves 1 of 2 samples to train on; lower"):
        quick(early_stopping=True).fit(X[:2], [0, 1])


def test_only_the_steps_of_the_training_are_in_training_mode() -> None:
    """Nothing is dropped where samples set aside are measured, or predicted."""
    modes = set()

    class Noting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            modes.add((torch.is_grad_enabled(), self.training))
            return super().forward(x)

    X, y = blobs()
    quick(network=lambda shape: Noting(*shape, 3), early_stopping=True).fit(X, y).predict(X)
    assert modes == {(True, True), (False, False)}


def test_few_samples() -> None:
    X, _ = blobs()
    for n in (2, 3, 5, 11):
        labels = np.arange(n) % 2
        for k in (None, 9):
            model = quick(early_stopping=n > 3, n_neighbors=k).fit(X[:n], labels)
            assert model.n_neighbors_ in ((min(9, n),) if k else range(1, n))
            shares = model.predict_proba(X)
            assert shares.shape == (90, 2)
            np.testing.assert_allclose(shares.sum(1), 1)
            assert np.isfinite(model.transform(X)).all()
            assert model.kneighbors(return_distance=False).shape[0] == n
    single = quick().fit(X[:1], [3])
    assert single.n_iter_ == 0
    assert (single.predict(X) == 3).all()
    one_class = quick().fit(X, np.full(90, "a"))
    assert (one_class.predict_proba(X) == 1).all()
    assert one_class.history_ == []


def test_progress_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = blobs()
    quick(early_stopping=True).fit(X, y)
    assert capsys.readouterr() == ("", "")
    quick(early_stopping=True, verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("epoch 1/3  loss 0.")
    assert "  validation_accuracy 0." in lines[0]


def test_progress_as_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = blobs()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    quick(verbose=True).fit(X, y)
    assert "3/3" in capsys.readouterr().out
    monkeypatch.setattr("softtopk.knn._progress.is_installed", lambda name: False)
    quick(verbose=True).fit(X, y)
    assert capsys.readouterr().out.startswith("epoch 1/3  loss")


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        ({"n_neighbors": 0}, ValueError, "n_neighbors must be at least 1, got n_neighbors=0"),
        ({"n_neighbors": 2.0}, TypeError, "n_neighbors must be an int, got n_neighbors=2.0"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1"),
        ({"batch_size": True}, TypeError, "batch_size must be an int"),
        ({"lr": -1}, ValueError, "lr must be finite and not negative"),
        ({"lr": "auto"}, TypeError, "lr must be a number, got lr='auto'"),
        ({"momentum": 1.0}, ValueError, "momentum must be below 1"),
        ({"optimizer": "adam"}, ValueError, "optimizer must be one of sgd, adamw, got 'adam'"),
        ({"schedule": "step"}, ValueError, "schedule must be one of"),
        ({"relaxation": "nonsense"}, ValueError, "no relaxation 'nonsense'"),
        ({"eps": 0.0}, ValueError, "eps must be positive"),
        (
            {"relaxation_options": {"eps": 0.1}},
            ValueError,
            "relaxation_options must not have 'eps'; give it as eps=0.1",
        ),
        (
            {"relaxation_options": {"tau": 1}},
            ValueError,
            "relaxation_options has 'tau', which relaxation='soft-topk' does not take",
        ),
        ({"objective": "ce"}, ValueError, "objective must be one of"),
        ({"metric": "l1"}, ValueError, "metric must be one of"),
        ({"index": "tree"}, ValueError, "index must be one of"),
        ({"backend": "scann"}, ValueError, "backend must be one of"),
        ({"validation_fraction": 1.0}, ValueError, "validation_fraction must be between 0 and 1"),
        ({"patience": 0}, ValueError, "patience must be at least 1"),
        ({"standardize": "yes"}, TypeError, "standardize must be True or False"),
        ({"verbose": -1}, ValueError, "verbose must be at least 0"),
        ({"network": "resnet"}, TypeError, "network must be an nn.Module, a function"),
        ({"network": lambda shape: "net"}, TypeError, "network must make an nn.Module, got str"),
        ({"network": nn.Unflatten(1, (2, 5))}, ValueError, r"\(n, 10\) to features \(n, d\), got"),
        ({"network": nn.Flatten()}, ValueError, "no parameters to train"),
        ({"device": "abacus"}, ValueError, "device must be .*, got device='abacus'"),
        ({"device": "meta"}, ValueError, "device must be .*, got device='meta'"),
        ({"device": None}, ValueError, "device must be .*, got device=None"),
        ({"warm_start": 1}, TypeError, "warm_start must be True or False, got 1"),
        ({"callback": "print"}, TypeError, "callback must be a function or None, got callback='pr"),
        ({"weights": "distance"}, ValueError, "weights must be one of None, 'uniform', 'soft'"),
        (
            {"weights": "soft", "relaxation": "neural-sort"},
            ValueError,
            "weights='soft' needs relaxation='soft-topk' without normalize, got relaxation='neural",
        ),
        (
            {"weights": "soft", "relaxation_options": {"normalize": "row"}},
            ValueError,
            "weights='soft' needs .* relaxation_options={'normalize': 'row'}; use weights='unif",
        ),
        ({"class_weight": "even"}, ValueError, "class_weight must be one of None, 'balanced'"),
        ({"class_weight": {0: -1.0}}, ValueError, r"class_weight must have finite .*: -1\.0}"),
        ({"leave_one_out": 1}, TypeError, "leave_one_out must be True or False, got 1"),
        ({"warmup": 1.0}, ValueError, "warmup must be below 1, got warmup=1.0"),
        ({"warmup": "some"}, TypeError, "warmup must be a number, got warmup='some'"),
    ],
)
def test_wrong_settings(settings: dict, kind: type[Exception], message: str) -> None:
    X, y = blobs()
    with pytest.raises(kind, match=message):
        quick(**settings).fit(X, y)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"early_stopping": True},
    ],
)
def test_divergence_is_called_so(settings: dict) -> None:
    X, y = blobs()
    with pytest.raises(DivergedError, match="smaller learning rate"):
        quick(**({"lr": 1e30, "optimizer": "sgd"} | settings)).fit(X, y)


@pytest.mark.parametrize("early_stopping", [False, True])
def test_divergence_in_the_last_step(monkeypatch: pytest.MonkeyPatch, early_stopping: bool) -> None:
    """After which there is no loss to tell."""

    def advance(self) -> dict[str, float]:
        with torch.no_grad():
            for parameter in self.objective.parameters():
                parameter.fill_(1e20)  # finite, but not its square
        return {"loss": -0.5, "accuracy": 0.5}

    monkeypatch.setattr("softtopk.knn._training.Training.advance", advance)
    X, y = blobs()
    with pytest.raises(DivergedError, match="the features of the training samples"):
        quick(network=nn.Linear(10, 4), early_stopping=early_stopping).fit(X, y)


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_a_fit_that_fails_changes_nothing(kind: type[BaseException]) -> None:
    class Fragile(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and broken:
                raise kind("in training")
            return super().forward(x)

    broken = True
    X, y = blobs()
    model = quick(network=lambda shape: Fragile(*shape, 4), early_stopping=True)
    with pytest.raises(kind, match="in training"):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    broken = False
    before = vars(model.fit(X, y)).copy()
    votes = model.predict_proba(X)
    broken = True
    with pytest.raises(kind, match="in training"):
        model.fit(X[:50, :7], np.where(y[:50] == 0, "a", "b"))
    assert vars(model) == before
    np.testing.assert_array_equal(model.predict_proba(X), votes)


def test_a_warm_start_goes_on() -> None:
    X, y = blobs(120)
    cold = quick(early_stopping=True).fit(X, y)
    warm = quick(early_stopping=True, warm_start=True, lr=0.0).fit(X, y)
    before, weights = vars(warm).copy(), copy.deepcopy(warm.network_.state_dict())
    warm.fit(X[:60] + 100, y[:60])
    # Nothing is learned at a rate of zero: the weights, the scale and eps are those of before.
    torch.testing.assert_close(warm.network_.state_dict(), weights, rtol=0, atol=0)
    for name in ("mean_", "scale_", "eps_"):
        assert getattr(warm, name) is before[name]
    assert len(warm.kneighbors(return_distance=False)) == 60  # the templates are the new ones
    assert warm.n_iter_ == len(warm.history_) == 6
    assert warm.best_epoch_ == 4  # the first of equals, counted from the first fit
    assert len(before["history_"]) == 3
    assert cold.fit(X[:60] + 100, y[:60]).n_iter_ == 3
    assert cold.mean_[0] > 90


def test_a_warm_start_learns_more() -> None:
    X, y = blobs(120)
    model = quick(warm_start=True).fit(X, y)
    first = model.network_
    weights = copy.deepcopy(first.state_dict())
    model.set_params(eps=0.5).fit(X, y)
    assert model.eps_ == 0.5
    assert model.history_[-1]["loss"] < model.history_[0]["loss"]
    torch.testing.assert_close(first.state_dict(), weights, rtol=0, atol=0)  # of the fit before


def test_a_warm_start_needs_the_same_classes_and_columns() -> None:
    X, y = blobs()
    model = quick(warm_start=True, image_shape=None).fit(X[:, :8], y)
    before = vars(model).copy()
    with pytest.raises(
        ValueError, match=r"the classes of the fit before, \[0, 1, 2\], got \[0, 1\]"
    ):
        model.fit(X[y < 2, :8], y[y < 2])
    with pytest.raises(ValueError, match="X has 10 features, but SoftKNNClassifier is expecting 8"):
        model.fit(X, y)
    with pytest.raises(
        ValueError, match=r"warm_start=True needs samples of shape \(8,\).*\(2, 2, 2"
    ):
        model.fit(X[:, :8].reshape(-1, 2, 2, 2), y)
    assert vars(model) == before


def test_a_callback_sees_every_epoch_and_may_stop() -> None:
    X, y = blobs()
    seen: list[dict] = []
    model = quick(callback=seen.append, early_stopping=True).fit(X, y)
    assert seen == [{"epoch": i, "epochs": 3, **facts} for i, facts in enumerate(model.history_, 1)]
    stopped = quick(callback=lambda facts: facts["epoch"] == 2).fit(X, y)
    assert stopped.n_iter_ == 2
    # Only True stops: what a logger returns does not.
    assert quick(callback=lambda facts: len(facts)).fit(X, y).n_iter_ == 3
    assert quick(callback=lambda facts: np.bool_(True)).fit(X, y).n_iter_ == 1


def test_the_temperature_has_the_scale_of_the_features() -> None:
    X, y = blobs(200)
    network = nn.Linear(10, 4)
    larger = copy.deepcopy(network)
    with torch.no_grad():
        larger.weight *= 100
        larger.bias *= 100
    eps = [quick(network=net, lr=0.0).fit(X, y).eps_ for net in (network, larger)]
    assert eps[1] == pytest.approx(100 * eps[0], rel=0.01)
    # At that temperature about 2k of the templates are undecided.
    model = quick(network=network, lr=0.0, n_neighbors=5).fit(X, y)
    features = torch.from_numpy(model.transform(X))
    scores = -torch.cdist(features[:100], features[100:])
    chosen = soft_topk(scores, 5, eps=model.eps_)
    undecided = ((chosen > 0.05) & (chosen < 0.95)).sum(1).float().mean()
    assert 5 < undecided < 20
    assert quick(eps=0.3).fit(X, y).eps_ == 0.3
    assert quick(relaxation="neural-sort").fit(X, y).eps_ is None


def test_nothing_is_left_of_an_earlier_fit() -> None:
    X, y = blobs()
    model = quick(early_stopping=True).fit(X, y)
    assert model.best_epoch_ >= 1
    model.set_params(early_stopping=False).fit(X, y)
    assert not hasattr(model, "best_epoch_")


def test_wrong_data() -> None:
    X, y = blobs()
    with pytest.raises(ValueError, match="contains NaN"):
        quick().fit(np.where(X > 0, X, np.nan), y)
    with pytest.raises(ValueError, match="contains infinity"):
        quick().fit(X, y).predict(np.where(X > 0, X, np.inf))
    with pytest.raises(ValueError, match="Unknown label type"):
        quick().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="X has 4 features, but SoftKNNClassifier is expecting 10"):
        quick().fit(X, y).predict(X[:, :4])
    with pytest.raises(ValueError, match="k must be at most 90"):
        quick().fit(X, y).kneighbors(X, 91)
    for method in ("predict", "predict_proba", "transform", "kneighbors"):
        with pytest.raises(NotFittedError):
            getattr(quick(), method)(X)


def test_a_class_as_network() -> None:
    X, y = blobs()
    assert type(quick(network=MLP).fit(X, y).network_) is MLP


@pytest.mark.parametrize(
    ("network", "kind", "message"),
    [
        (nn.Linear, TypeError, r"cannot be called with \(4,\).*give a module"),
        (nn.Linear(3, 2), ValueError, r"sample of shape \(4,\).*image_shape"),
        (nn.Conv2d(1, 2, 3), ValueError, r"sample of shape \(4,\).*image_shape"),
    ],
)
def test_a_network_that_does_not_fit_is_explained(network, kind, message) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
    with pytest.raises(kind, match=message):
        SoftKNNClassifier(network, random_state=0).fit(X, y)


def test_a_relaxation_of_the_wrong_shape_is_named() -> None:
    def half(scores, k, *, eps=1.0, mask=None):
        return scores[:, ::2]

    X, y = np.random.default_rng(0).normal(size=(40, 4)), np.arange(40) % 2
    with pytest.raises(ValueError, match="must return the shape of the scores"):
        SoftKNNClassifier(relaxation=half, random_state=0).fit(X, y)
