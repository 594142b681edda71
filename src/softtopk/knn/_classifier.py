"""The classifier as a scikit-learn estimator."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from .._checks import check_choice, check_integer, check_number
from .._training import DivergedError, seeded
from ..relaxations._registry import is_ours
from ._distances import Metric
from ._loss import KNNObjective, Objective, RelaxationLike, check_options
from ._neighbours import BACKENDS, INDICES, Backend, Floats, Index, Ints, Neighbours
from ._networks import drawn_network
from ._progress import Progress
from ._training import Optimizer, Recipe, Schedule, Training

#: A network, or what makes one for samples of a shape.
NetworkLike = nn.Module | Callable[[tuple[int, ...]], nn.Module]

_ROWS = 1000  # samples that pass through the network at once, outside training


class SoftKNNClassifier(
    ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator
):
    """Nearest-neighbours classifier that learns the features it compares.

    A network maps samples to features. It is trained so that the k nearest templates of a query
    vote for the query's class, through a relaxed top-k (`knn_loss`); then the features of all
    training samples are stored, and prediction is that of a k-nearest-neighbours classifier.

    Args:
        network: An ``nn.Module`` that maps (n, features) or (n, channels, height, width) samples to
            (n, d) features, or a function that makes one from the shape of a sample. A module is
            copied by every ``fit``, and the copy starts from its weights, be they trained or
            random: the module itself never changes. A function is called by every ``fit``, and
            ``random_state`` decides what random weights it makes. None is `default_network`.
        n_neighbors: How many neighbours vote. The paper has 9.
        relaxation: A name of `softtopk.relaxations`, or a function of that signature.
        eps: Temperature of the relaxation; None as in `knn_loss`.
        relaxation_options: Further arguments of the relaxation, a dict, without ``eps``.
        objective: ``"vote"`` or ``"nll"``, see `knn_loss`.
        metric: ``"euclidean"``, ``"squared"`` or ``"cosine"``: distance between features.
        image_shape: (channels, height, width), if the columns of X are the pixels of images. An X
            of four dimensions needs none.
        standardize: Shift and scale the input to mean 0 and deviation 1: every column, or every
            channel of images.
        epochs: How often the training goes through all samples.
        batch_size: Queries in a step.
        template_size: Templates in a step, drawn from the samples that are not among the queries.
        leave_one_out: Let the templates of a step be queries, too, each with all other samples of
            the step as its templates. That makes more of the features at hand.
        optimizer: ``"adamw"`` or ``"sgd"``. The paper has SGD, ``lr=1e-3`` and a constant rate.
        lr: Learning rate.
        momentum: For SGD.
        weight_decay: For either.
        schedule: ``"cosine"``, ``"linear"`` or ``"constant"``: of the learning rate.
        warmup: Share of all steps, below 1, in which the learning rate rises to ``lr`` linearly.
        early_stopping: Set ``validation_fraction`` of the samples aside (of every class the same
            share, where there are enough), measure the accuracy on them after every epoch, stop
            when it has not improved for ``patience`` epochs, and take the weights of the best
            epoch. The samples set aside are templates again in prediction.
        validation_fraction: See there.
        patience: See there.
        index: ``"exact"`` or ``"approximate"``: search for neighbours, see `Neighbours`.
        backend: ``"auto"``, ``"faiss"`` or ``"sklearn"``, see `Neighbours`.
        n_probe: For the approximate index, see `Neighbours`.
        device: ``"cpu"``, another device of torch, or ``"auto"`` for an accelerator if there is
            one.
        random_state: Decides the weights, the order of the samples and the samples set aside.
            The same number gives the same classifier, on the same machine, also if other threads
            fit others at the same time. The global generators of torch and numpy are left alone,
            with two exceptions. None draws from numpy's. And a ``network`` or ``relaxation`` of
            your own may draw from torch's: it is seeded for a while and then put back, for one
            ``fit`` at a time, and no other thread should draw from it meanwhile.
        verbose: 0 is silent, 1 shows the progress.

    Attributes:
        classes_: (n_classes,) labels, in the order of the columns of `predict_proba`.
        network_: The trained network.
        history_: A dict for every epoch: mean ``loss`` and ``accuracy`` of its steps, the latter
            among the templates of the step, and ``validation_accuracy`` with early stopping.
        n_iter_: Epochs done. There are none if all samples are of one class.
        best_epoch_: The epoch, counted from 1, whose weights were taken, with early stopping.
        n_neighbors_: ``n_neighbors``, or the number of samples if there are fewer. In training it
            is at most half the templates of a query.
        n_features_in_: Columns of X; channels × height × width for images.
        feature_names_in_: Names of the columns, if X has any.
        input_shape_: Shape of a sample as the network gets it.
        mean_, scale_: Of the standardisation. The scale of a constant column is 1, or its size
            where that is above 1e30.

    >>> from sklearn.datasets import load_wine
    >>> X, y = load_wine(return_X_y=True)
    >>> model = SoftKNNClassifier(random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.95
    True
    """

    def __init__(
        self,
        network: NetworkLike | None = None,
        *,
        n_neighbors: int = 9,
        relaxation: RelaxationLike = "soft-topk",
        eps: float | None = None,
        relaxation_options: Mapping[str, Any] | None = None,
        objective: Objective = "vote",
        metric: Metric = "euclidean",
        image_shape: Sequence[int] | None = None,
        standardize: bool = True,
        epochs: int = 40,
        batch_size: int = 100,
        template_size: int = 100,
        leave_one_out: bool = False,
        optimizer: Optimizer = "adamw",
        lr: float = 3e-3,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        schedule: Schedule = "cosine",
        warmup: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        index: Index = "exact",
        backend: Backend = "auto",
        n_probe: int | None = None,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.network = network
        self.n_neighbors = n_neighbors
        self.relaxation = relaxation
        self.eps = eps
        self.relaxation_options = relaxation_options
        self.objective = objective
        self.metric = metric
        self.image_shape = image_shape
        self.standardize = standardize
        self.epochs = epochs
        self.batch_size = batch_size
        self.template_size = template_size
        self.leave_one_out = leave_one_out
        self.optimizer = optimizer
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.warmup = warmup
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.index = index
        self.backend = backend
        self.n_probe = n_probe
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> SoftKNNClassifier:
        """Train on samples X, (n, features) or (n, channels, height, width), of classes y, (n,).

        If that fails or is interrupted, the classifier remains as it was before.
        """
        before = self.__dict__.copy()  # fit replaces attributes, it changes none in place
        try:
            self.__dict__.pop("best_epoch_", None)  # the only one that not every fit sets
            self._fit(X, y)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit(self, X: Any, y: Any) -> None:
        recipe, neighbours = self._check_parameters()
        X, shape = _flat(X)
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.input_shape_ = self._input_shape(shape)
        self.classes_, labels = np.unique(y, return_inverse=True)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self.mean_, self.scale_ = _standard(X, self.input_shape_, self.standardize)
        self.n_neighbors_ = min(int(self.n_neighbors), len(X))

        inputs = self._inputs(X)
        self.network_ = self._new_network(inputs, seed)
        self._train(inputs, torch.from_numpy(labels.astype(np.int64)), recipe, seed)
        self._labels = labels
        self._features = self._extract_trained(inputs)
        self._n_features_out = self._features.shape[1]
        self._neighbours = neighbours.fit(self._features)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class with the most votes, the first of them in case of a tie: (n,)."""
        votes = self.predict_proba(X)
        return np.asarray(self.classes_[votes.argmax(1)])

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Share of every class among the nearest neighbours: (n, n_classes)."""
        _, found = self.kneighbors(X)
        return _vote(self._labels[found], len(self.classes_))

    def transform(self, X: Any) -> Floats:
        """Features, (n, d) float32."""
        return self._transform(X)

    def _transform(self, X: Any) -> Floats:
        """An array in any case: scikit-learn wraps the result of `transform`, see set_output."""
        check_is_fitted(self)
        X, shape = _flat(X)
        X = self._validated(X, reset=False)
        if shape is not None and shape != self.input_shape_:
            raise ValueError(
                f"X must have samples of shape {self.input_shape_}, as in fit, got {shape}"
            )
        return self._extract(self._inputs(X))

    def kneighbors(
        self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Distances of the features to those of the nearest training samples, and their rows.

        Args:
            X: Samples; None for the training samples, which are then not their own neighbours.
            n_neighbors: How many, None for ``n_neighbors_``.
            return_distance: Return (distances, rows) rather than rows, (n, n_neighbors) each.
        """
        check_is_fitted(self)
        k = self.n_neighbors_ if n_neighbors is None else n_neighbors
        k = check_integer("n_neighbors", k)
        if X is None:
            k = min(k, len(self._features) - 1) if n_neighbors is None else k
            distances, found = _without_self(self._neighbours, self._features, k)
        else:
            distances, found = self._neighbours.kneighbors(self._transform(X), k)
        return (distances, found) if return_distance else found

    def _train(self, inputs: Tensor, labels: Tensor, recipe: Recipe, seed: int) -> None:
        """Train ``network_``; sets ``history_``, ``n_iter_`` and ``best_epoch_``."""
        self.history_: list[dict[str, float]] = []
        validation = None
        if self.early_stopping:
            kept, aside = self._split(labels.numpy(), seed)
            validation = _Validation(self, inputs, labels, kept, aside)
            inputs, labels = inputs[kept], labels[kept]
        if len(self.classes_) > 1:  # of one class, every vote is right
            self._run(self._training(inputs, labels, recipe, seed), validation)
        self.n_iter_ = len(self.history_)
        self.network_.eval()

    def _training(self, inputs: Tensor, labels: Tensor, recipe: Recipe, seed: int) -> Training:
        objective = KNNObjective(
            self.network_,
            recipe.training_k(self.n_neighbors_, len(inputs), bool(self.leave_one_out)),
            objective=self.objective,
            relaxation=self.relaxation,
            eps=self.eps,
            metric=self.metric,
            options=self.relaxation_options,
            leave_one_out=bool(self.leave_one_out),
        )
        return Training(
            objective,
            inputs,
            labels,
            recipe,
            seed=seed,
            device=self._device(),
            # Code that is not ours may draw from torch's global generator.
            own_generator=self.network is None and is_ours(self.relaxation),
        )

    def _run(self, training: Training, validation: _Validation | None) -> None:
        with Progress(training.recipe.epochs, int(self.verbose)) as progress:
            for _ in range(training.recipe.epochs):
                steps = [training.advance() for _ in range(training.steps_per_epoch)]
                facts = {name: float(np.mean([step[name] for step in steps])) for name in steps[0]}
                if validation is not None:
                    facts["validation_accuracy"] = validation.measure()
                self.history_.append(facts)
                progress.report(facts)
                if validation is not None and validation.stale >= self.patience:
                    break
        if validation is not None:
            self.best_epoch_ = validation.best_epoch
            self.network_.load_state_dict(validation.weights)

    def _split(self, labels: Ints, seed: int) -> tuple[Ints, Ints]:
        """Rows to train on and rows to set aside."""
        n, classes = len(labels), len(self.classes_)
        aside = math.ceil(n * self.validation_fraction)
        if n - aside < 2:
            raise ValueError(
                f"early_stopping=True leaves {n - aside} of {n} samples to train on; lower "
                f"validation_fraction={self.validation_fraction} or set early_stopping=False"
            )
        fair = np.bincount(labels).min() >= 2 and classes <= min(aside, n - aside)
        kept, held = train_test_split(
            np.arange(n), test_size=aside, random_state=seed, stratify=labels if fair else None
        )
        return np.sort(kept), np.sort(held)

    def _new_network(self, inputs: Tensor, seed: int) -> nn.Module:
        if self.network is None:
            return drawn_network(self.input_shape_, seed)
        device = self._device()
        with seeded(seed, device):
            if isinstance(self.network, nn.Module):
                network = copy.deepcopy(self.network)
            else:
                network = self._make_network(self.network)
            if not isinstance(network, nn.Module):
                raise TypeError(f"network must make an nn.Module, got {type(network).__name__}")
            network = network.to(device).eval()
            features = self._try_out(network, inputs[:1].to(device))
        if not isinstance(features, Tensor) or features.ndim != 2:
            got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise ValueError(
                f"network must map samples (n, {', '.join(map(str, self.input_shape_))}) to "
                f"features (n, d), got {got} for one sample; end it with nn.Flatten()"
            )
        return network

    def _make_network(self, make: Callable[[tuple[int, ...]], nn.Module]) -> nn.Module:
        try:
            with torch.device("cpu"):  # whatever the default device is: it moves afterwards
                return make(self.input_shape_)
        except TypeError as error:
            raise TypeError(
                f"network={make!r} cannot be called with {self.input_shape_}, the shape of a "
                f"sample ({error}); give a module, or a function of that shape"
            ) from error

    def _try_out(self, network: nn.Module, inputs: Tensor) -> Any:
        """The features of one sample; completes lazy layers too."""
        try:
            with torch.no_grad():
                return network(inputs)
        except RuntimeError as error:
            raise ValueError(
                f"network cannot take a sample of shape {self.input_shape_} ({error}); change it, "
                "or set image_shape if the columns are pixels"
            ) from error

    def _extract(self, inputs: Tensor) -> Floats:
        device = self._device()
        network = self.network_.to(device)
        training = network.training
        network.eval()
        with torch.no_grad():
            parts = [network(part.to(device)).float().cpu() for part in inputs.split(_ROWS)]
        network.train(training)
        return torch.cat(parts).numpy()

    def _extract_trained(self, inputs: Tensor) -> Floats:
        """The features of training samples, which the last step may have put out of range."""
        features = self._extract(inputs)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.square(features).sum(1)
        if not np.isfinite(norms).all():
            raise DivergedError(
                "the features of the training samples are not finite, or so large that their "
                f"distances are not, with lr={self.lr:g}: try a smaller learning rate"
            )
        return features

    def _inputs(self, X: npt.NDArray[Any]) -> Tensor:
        """Standardised samples (n, *input_shape_) as float32."""
        inputs = X.reshape(len(X), *self.input_shape_)
        with np.errstate(over="ignore"):  # the check below says more
            if self.standardize:
                unit = _unit(np.maximum(np.abs(self.mean_), self.scale_))
                inputs = (inputs * unit - self.mean_ * unit) / (self.scale_ * unit)
            inputs = np.ascontiguousarray(inputs, dtype=np.float32)
        _check_inputs(inputs.reshape(X.shape), X, self.standardize)
        return torch.from_numpy(inputs)

    def _validated(self, *data: Any, **options: Any) -> Any:
        """`validate_data`, whose sum of large numbers may overflow, without a warning of that."""
        with np.errstate(invalid="ignore"):
            return validate_data(self, *data, dtype="numeric", **options)

    def _input_shape(self, shape: tuple[int, ...] | None) -> tuple[int, ...]:
        """The shape of a sample; ``shape`` is that of images, if X has four dimensions."""
        if self.image_shape is None:
            return shape or (self.n_features_in_,)
        wanted = tuple(int(size) for size in self.image_shape)
        if len(wanted) != 3 or min(wanted) < 1:
            raise ValueError(
                f"image_shape must be (channels, height, width), got {self.image_shape!r}"
            )
        if shape is not None and shape != wanted:
            raise ValueError(f"X has images of shape {shape}, but image_shape={wanted}")
        if math.prod(wanted) != self.n_features_in_:
            raise ValueError(
                f"image_shape={wanted} needs {math.prod(wanted)} columns, "
                f"got X with {self.n_features_in_}"
            )
        return wanted

    def _device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None or not torch.accelerator.is_available():
            return torch.device("cpu")
        return accelerator

    def _check_device(self) -> None:
        try:
            torch.zeros(1, device=self._device()).cpu()
        except (RuntimeError, TypeError, AssertionError) as error:  # the last: not compiled for it
            reason = str(error).partition("\n")[0]
            raise ValueError(
                "device must be 'auto' or a device that torch can use here, such as 'cpu', "
                f"got device={self.device!r}: {reason}"
            ) from error

    def _check_parameters(self) -> tuple[Recipe, Neighbours]:
        """Before any work; the recipe, the index and the objective check what is theirs."""
        if not (self.network is None or callable(self.network)):
            raise TypeError(
                "network must be an nn.Module, a function of a sample's shape, or None, "
                f"got {self.network!r}"
            )
        check_integer("n_neighbors", self.n_neighbors)
        check_integer("patience", self.patience)
        if not isinstance(self.verbose, bool):
            check_integer("verbose", self.verbose, 0)
        for name in ("standardize", "early_stopping", "leave_one_out"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not 0 < check_number("validation_fraction", self.validation_fraction) < 1:
            raise ValueError(
                "validation_fraction must be between 0 and 1, "
                f"got validation_fraction={self.validation_fraction}"
            )
        self._check_device()
        check_options("relaxation_options", self.relaxation_options, self.relaxation)
        check_choice("index", self.index, INDICES)
        check_choice("backend", self.backend, BACKENDS)
        recipe = Recipe(
            epochs=check_integer("epochs", self.epochs),
            batch_size=check_integer("batch_size", self.batch_size),
            template_size=check_integer("template_size", self.template_size),
            optimizer=self.optimizer,
            lr=check_number("lr", self.lr),
            momentum=check_number("momentum", self.momentum),
            weight_decay=check_number("weight_decay", self.weight_decay),
            schedule=self.schedule,
            warmup=check_number("warmup", self.warmup),
        )
        neighbours = Neighbours(
            index=self.index, backend=self.backend, metric=self.metric, n_probe=self.n_probe
        )
        return recipe, neighbours

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "network_" in state:  # so that it can be loaded where there is no such device
            state["network_"] = copy.deepcopy(state["network_"]).cpu()
        return state


class _Validation:
    """Accuracy on samples set aside, and the weights for which it was best."""

    def __init__(
        self, model: SoftKNNClassifier, inputs: Tensor, labels: Tensor, kept: Ints, aside: Ints
    ) -> None:
        self._model = model
        self._templates, self._template_labels = inputs[kept], labels.numpy()[kept]
        self._queries, self._query_labels = inputs[aside], labels.numpy()[aside]
        self._k = min(model.n_neighbors_, len(kept))
        self._epoch = 0
        self.best_epoch = 0
        self.best = -math.inf
        self.weights: dict[str, Tensor] = {}

    @property
    def stale(self) -> int:
        """Epochs since the best one."""
        return self._epoch - self.best_epoch

    def measure(self) -> float:
        """The accuracy after another epoch."""
        model = self._model
        index = Neighbours(backend=model.backend, metric=model.metric)
        index.fit(model._extract_trained(self._templates))
        _, found = index.kneighbors(model._extract_trained(self._queries), self._k)
        votes = _vote(self._template_labels[found], len(model.classes_))
        accuracy = float((votes.argmax(1) == self._query_labels).mean())
        self._epoch += 1
        self._keep(accuracy)
        return accuracy

    def _keep(self, accuracy: float) -> None:
        """Keep the weights if they are the best so far."""
        if accuracy > self.best:
            self.best, self.best_epoch = accuracy, self._epoch
            self.weights = copy.deepcopy(self._model.network_.state_dict())


def _flat(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Images (n, channels, height, width) as rows, with the shape of one; other X as it is."""
    if getattr(X, "ndim", 2) <= 2:
        return X, None
    X = np.asarray(X)
    if X.ndim != 4:
        raise ValueError(
            "X must be of shape (n, features) or (n, channels, height, width), got "
            f"{X.shape}; X[:, None] adds a channel to images without one"
        )
    return X.reshape(len(X), math.prod(X.shape[1:])), X.shape[1:]


def _standard(X: npt.NDArray[Any], shape: tuple[int, ...], wanted: bool) -> tuple[Any, Any]:
    """Mean and scale, one for every column or channel, in the shape that broadcasts to a sample."""
    if not wanted:
        return 0.0, 1.0
    # Pixels need no more than float32, and large numbers of them no more memory than that.
    short = X.itemsize <= (4 if X.dtype.kind == "f" else 2)
    info = np.finfo(np.float32 if short else np.float64)
    axes = (0,) if len(shape) == 1 else (0, 2, 3)
    X = X.reshape(len(X), *shape)
    low, high = (find(X, axes, keepdims=True)[0].astype(info.dtype) for find in (np.min, np.max))
    unit = _unit(np.maximum(-low, high))
    X = X * unit
    mean = X.mean(axes, dtype=np.float64, keepdims=True)[0] / unit
    scale = X.std(axes, dtype=np.float64, keepdims=True)[0] / unit
    # The deviation of a constant column is rounding noise, if it is not zero. Its scale is 1, or
    # what brings it into the range of float32.
    size = np.abs(mean)
    scale = np.where(scale <= 10 * info.eps * size, np.where(size > 1e30, size, 1.0), scale)
    return mean.astype(info.dtype), scale.astype(info.dtype)


def _unit(size: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Powers of two that bring numbers of that size to about one, of the same dtype.

    Multiplied by them, numbers lose no digits, and neither their differences nor their squares
    overflow or vanish.
    """
    limit = np.finfo(size.dtype).maxexp - 8  # neither they nor their inverses overflow
    return np.ldexp(np.ones_like(size), np.clip(-np.frexp(size)[1], -limit, limit))


def _check_inputs(inputs: Floats, X: npt.NDArray[Any], standardized: bool) -> None:
    """The rows (n, columns) that the network is given must be finite, as those of X are."""
    if np.isfinite(inputs).all():
        return
    row, column = np.argwhere(~np.isfinite(inputs))[0]
    problem = "it is too large for float32; set standardize=True"
    if standardized:
        problem = "standardised as in fit, it is too large for float32; correct it, or fit with it"
    raise ValueError(f"X has {X[row, column]:g} in row {row}, column {column}: {problem}")


def _vote(labels: Ints, classes: int) -> npt.NDArray[np.float64]:
    """Shares of the classes among the labels of each row: (n, k) -> (n, classes)."""
    n, k = labels.shape
    cells = np.arange(n)[:, None] * classes + labels
    return np.bincount(cells.ravel(), minlength=n * classes).reshape(n, classes) / k


def _without_self(neighbours: Neighbours, features: Floats, k: int) -> tuple[Floats, Ints]:
    """Neighbours of the fitted features, none its own; equal ones may not have themselves among the
    k + 1 nearest, in which case the last is dropped."""
    if k > len(features) - 1:
        raise ValueError(
            f"n_neighbors must be at most {len(features) - 1}, the number of other training "
            f"samples, got n_neighbors={k}"
        )
    distances, found = neighbours.kneighbors(features, k + 1)
    dropped = found == np.arange(len(found))[:, None]
    dropped[~dropped.any(1), -1] = True
    return distances[~dropped].reshape(-1, k), found[~dropped].reshape(-1, k)
