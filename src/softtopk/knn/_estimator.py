"""What the classifier and the regressor share: everything but what a neighbour's vote means."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from .._checks import check_choice, check_integer, check_number, check_positive
from .._training import DivergedError
from ..functional import soft_topk
from ..relaxations import get
from ..relaxations._registry import is_ours
from . import _saving
from ._distances import Metric
from ._inputs import check_inputs, flat, standard, standardized
from ._loss import KNNObjective, RelaxationLike, check_options
from ._neighbours import BACKENDS, INDICES, Backend, Floats, Index, Ints, Neighbours
from ._networks import NetworkLike, drawn_network, given_network
from ._progress import Progress
from ._training import (
    NEIGHBOURS,
    Guard,
    Optimizer,
    Recipe,
    Schedule,
    Training,
    TrainingWarning,
    sizes_for,
)
from ._validation import Validation

if TYPE_CHECKING:
    from typing_extensions import Self

#: Is told about an epoch; True stops the training.
Callback = Callable[[dict[str, float]], Any]
Weights = Literal["uniform", "soft"]
Doubles = npt.NDArray[np.float64]

_TO_SPARE = 100  # samples, so that some can be set aside
_ROWS = 1000  # samples that pass through the network at once, outside training
# The choice of the neighbours that predict: candidates, samples to judge by, samples to look among.
_CANDIDATES, _QUERIES, _TEMPLATES = (1, 3, 5, NEIGHBOURS), 2000, 20_000


class SoftKNNEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    """A network whose features are trained so that the nearest neighbours predict well.

    `SoftKNNClassifier` documents the parameters and the attributes.
    """

    network_: nn.Module
    input_shape_: tuple[int, ...]
    history_: list[dict[str, float]]
    eps_: float | None
    _targets: npt.NDArray[Any]

    #: Arguments of scikit-learn's `validate_data` for y.
    _Y_OPTIONS: Mapping[str, Any] = {}
    #: What early stopping measures, and whether more of it is better.
    _MEASURE: tuple[str, bool]
    #: Whether early stopping is the default.
    _OVERFITS = False

    def __init__(
        self,
        network: NetworkLike | None = None,
        *,
        n_neighbors: int | None = None,
        weights: Weights | None = None,
        relaxation: RelaxationLike = "soft-topk",
        eps: float | None = None,
        relaxation_options: Mapping[str, Any] | None = None,
        metric: Metric = "euclidean",
        image_shape: Sequence[int] | None = None,
        standardize: bool = True,
        epochs: int | None = None,
        batch_size: int | None = None,
        template_size: int | None = None,
        leave_one_out: bool = True,
        optimizer: Optimizer = "adamw",
        lr: float = 3e-3,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        schedule: Schedule = "cosine",
        warmup: float = 0.05,
        early_stopping: bool | None = None,
        validation_fraction: float = 0.1,
        patience: int = 10,
        warm_start: bool = False,
        callback: Callback | None = None,
        index: Index = "exact",
        backend: Backend = "auto",
        n_probe: int | None = None,
        device: str | torch.device = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.network = network
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.relaxation = relaxation
        self.eps = eps
        self.relaxation_options = relaxation_options
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
        self.warm_start = warm_start
        self.callback = callback
        self.index = index
        self.backend = backend
        self.n_probe = n_probe
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # What a kind of targets has to say.

    @abstractmethod
    def _take_targets(self, y: npt.NDArray[Any], warm: bool) -> Tensor:
        """Set ``_targets``, which predictions are made of; returns what the objective gets."""

    @abstractmethod
    def _objective(self) -> Any:
        """That of `KNNObjective`."""

    @abstractmethod
    def _is_learnable(self) -> bool:
        """Whether the targets differ: else every prediction is right."""

    @abstractmethod
    def _strata(self) -> Ints | None:
        """Groups (n,) of which early stopping sets equal shares aside."""

    @abstractmethod
    def _combine(self, targets: npt.NDArray[Any], pull: Doubles) -> Doubles:
        """The prediction from neighbours' targets (m, c, ...) that count as ``pull`` (m, c)."""

    @abstractmethod
    def _measure(
        self, predicted: Doubles, targets: npt.NDArray[Any], weights: Doubles | None
    ) -> float:
        """How good predictions are, in the unit of ``_MEASURE``."""

    def _class_weights(self, y: npt.NDArray[Any]) -> Doubles | None:
        """Weights (n,) that follow from the targets."""
        return None

    # Fitting.

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on samples X, (n, features) or (n, channels, height, width), with targets y.

        Args:
            sample_weight: (n,) weights, not negative; None for equal ones. See ``class_weight`` of
                `SoftKNNClassifier` for what they do.

        If that fails or is interrupted, the estimator remains as it was before.
        """
        before = self.__dict__.copy()  # fit replaces attributes, it changes none in place
        try:
            self.__dict__.pop("best_epoch_", None)  # the only one that not every fit sets
            self._fit(X, y, sample_weight)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        neighbours = self._check_parameters()
        warm = bool(self.warm_start) and hasattr(self, "network_")
        X, shape = flat(X)
        X, y = self._validated(X, y, reset=not warm, **self._Y_OPTIONS)
        self._take_shape(self._input_shape(shape), warm)
        targets = self._take_targets(y, warm)
        self._sample_weights = self._weights_of(X, y, sample_weight)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        if not warm:
            self.mean_, self.scale_ = standard(X, self.input_shape_, self.standardize)
        inputs = self._inputs(X)
        self.n_neighbors_ = self._neighbors_for(inputs, seed)
        if warm:
            self.network_ = copy.deepcopy(self.network_)
            self.history_ = self.history_.copy()
        else:
            self.network_ = self._new_network(inputs, seed)
            self.history_ = []
        self._train(inputs, targets, seed, warm)
        self._features = self._extract_trained(inputs)
        self._n_features_out = self._features.shape[1]
        self._neighbours = neighbours.fit(self._features)

    def _take_shape(self, shape: tuple[int, ...], warm: bool) -> None:
        if warm and shape != self.input_shape_:
            raise ValueError(
                f"warm_start=True needs samples of shape {self.input_shape_}, as in the fit "
                f"before, got {shape}; set warm_start=False to begin anew"
            )
        self.input_shape_ = shape

    def _weights_of(self, X: Any, y: npt.NDArray[Any], sample_weight: Any) -> Doubles | None:
        """The weights of the samples (n,), those of their classes included; None if all are 1."""
        weights = self._class_weights(y)
        if sample_weight is not None:
            given = _check_sample_weight(sample_weight, X, dtype=np.float64)
            if (given < 0).any():
                row = int(given.argmin())
                raise ValueError(
                    f"sample_weight must not be negative, got {given[row]:g} in row {row}"
                )
            weights = given if weights is None else weights * given
        return weights

    def _neighbors_for(self, inputs: Tensor, seed: int) -> int:
        """The neighbours that predict: ``n_neighbors``, or as many as serve plain kNN best.

        That is judged by leaving one out, on the inputs: features that were trained on the samples
        would always call for one neighbour.
        """
        if self.n_neighbors is not None:
            return min(int(self.n_neighbors), len(inputs))
        rows = np.random.RandomState(seed).permutation(len(inputs))[:_TEMPLATES]
        x, targets = inputs[torch.from_numpy(rows)].flatten(1).numpy(), self._targets[rows]
        weights = None if self._sample_weights is None else self._sample_weights[rows]
        most = min(max(_CANDIDATES), len(x) - 1)
        if most < 1:
            return 1
        found = _without_self(self._new_index().fit(x), x, most, _QUERIES)[1]
        counted = None if weights is None else weights[: len(found)]
        if counted is not None and not counted.any():
            counted = None
        quality = {}
        for k in (k for k in _CANDIDATES if k <= most):
            near = found[:, :k]
            pull = _counting(np.ones(near.shape), weights, near)
            predicted = self._combine(targets[near], pull)
            value = self._measure(predicted, targets[: len(near)], counted)
            quality[k] = value if self._MEASURE[1] else -value
        return max(quality, key=quality.__getitem__)

    def _train(self, inputs: Tensor, targets: Tensor, seed: int, warm: bool) -> None:
        """Train ``network_``; sets ``history_``, ``n_iter_``, ``eps_`` and ``best_epoch_``."""
        validation, weights = None, self._sample_weights
        if self._stops_early(len(inputs)):
            kept, aside = self._split(len(inputs), seed)
            validation = Validation(self, inputs, kept, aside)
            inputs, targets = inputs[kept], targets[kept]
            weights = None if weights is None else weights[kept]
        recipe = self._recipe(len(inputs))
        eps = self.eps_ if warm and self.eps is None else self.eps
        self.eps_ = 1.0 if eps is None and self._has_threshold() else eps
        if self._is_learnable():
            self._run(self._training(inputs, targets, weights, recipe, eps, seed), validation)
        self.n_iter_ = len(self.history_)
        self.network_.eval()

    def _has_threshold(self) -> bool:
        """Whether the weights of neighbours follow from their distances, a threshold and eps_."""
        normalize = (self.relaxation_options or {}).get("normalize")
        return get(self.relaxation) is soft_topk and normalize is None

    def _draws_from_ours(self) -> bool:
        return self.network is None and is_ours(self.relaxation)

    def _training(
        self,
        inputs: Tensor,
        targets: Tensor,
        weights: Doubles | None,
        recipe: Recipe,
        eps: float | None,
        seed: int,
    ) -> Training:
        k = int(self.n_neighbors or NEIGHBOURS)
        if self._n_classes():  # of each there are as many templates, or one by chance
            k = min(k, max(1, recipe.templates_per_class))
        k = recipe.training_k(k, len(inputs), bool(self.leave_one_out))
        objective = KNNObjective(
            self.network_,
            k,
            objective=self._objective(),
            relaxation=self.relaxation,
            eps=eps,
            metric=self.metric,
            options=self.relaxation_options,
            leave_one_out=bool(self.leave_one_out),
        )
        return Training(
            objective,
            inputs,
            targets,
            recipe,
            weights=None if weights is None else torch.from_numpy(weights),
            seed=seed,
            device=self._device(),
            own_generator=self._draws_from_ours(),
        )

    def _run(self, training: Training, validation: Validation | None) -> None:
        epochs = training.recipe.epochs
        guard = Guard(self.network_, training.total_steps)
        with Progress(epochs, int(self.verbose)) as progress:
            for epoch in range(1, epochs + 1):
                steps = []
                for _ in range(training.steps_per_epoch):
                    steps.append(training.advance())
                    if validation is None:  # which has weights of its own to take
                        guard.follow(steps[-1]["loss"])
                if training.objective.width is not None:  # a step has decided, if it had a choice
                    found = float(training.objective.eps)  # type: ignore[arg-type]
                    self.eps_ = 1.0 if math.isnan(found) else found
                facts = {name: float(np.mean([step[name] for step in steps])) for name in steps[0]}
                facts = {name: value for name, value in facts.items() if not math.isnan(value)}
                if validation is not None:
                    facts[f"validation_{self._MEASURE[0]}"] = validation.measure()
                self.history_.append(facts)
                progress.report(facts)
                stop = validation is not None and validation.stale >= self.patience
                if self.callback is not None:
                    answer = self.callback({"epoch": epoch, "epochs": epochs, **facts})
                    stop |= isinstance(answer, bool | np.bool_) and bool(answer)
                if stop:
                    break
        if validation is not None:
            self.best_epoch_ = len(self.history_) - validation.stale
            self.network_.load_state_dict(validation.weights)
        elif guard.worse:
            warnings.warn(
                f"the loss rose from {guard.best:.3g} to {guard.average:.3g}: the weights of the"
                " lowest are taken. Try a smaller lr, or early_stopping=True",
                TrainingWarning,
                stacklevel=5,
            )
            guard.restore()

    def _stops_early(self, n: int) -> bool:
        if self.early_stopping is not None:
            return bool(self.early_stopping)
        return self._OVERFITS and n >= _TO_SPARE

    def _split(self, n: int, seed: int) -> tuple[Ints, Ints]:
        """Rows to train on and rows to set aside."""
        aside = math.ceil(n * self.validation_fraction)
        if n - aside < 2:
            raise ValueError(
                f"early_stopping=True leaves {n - aside} of {n} samples to train on; lower "
                f"validation_fraction={self.validation_fraction} or set early_stopping=False"
            )
        strata = self._strata()
        if strata is not None:
            sizes = np.bincount(strata)
            fair = sizes.min() >= 2 and len(sizes) <= min(aside, n - aside)
            strata = strata if fair else None
        kept, held = train_test_split(
            np.arange(n), test_size=aside, random_state=seed, stratify=strata
        )
        return np.sort(kept), np.sort(held)

    # Prediction.

    def _predicted(self, X: Any) -> Doubles:
        """What the neighbours of samples say."""
        features = self._transform(X)
        return self._predicted_by(
            self._neighbours, features, self.n_neighbors_, self._targets, self._sample_weights
        )

    def _predicted_by(
        self,
        index: Neighbours,
        features: Floats,
        k: int,
        targets: npt.NDArray[Any],
        weights: Doubles | None,
    ) -> Doubles:
        """The prediction for features, from templates with these targets and weights."""
        self._check_votes()  # weights may be set after fit
        if self.weights != "uniform" and self._has_threshold():
            distances, found = index.kneighbors(features, min(len(index), 4 * k + 16))
            scores = -torch.from_numpy(distances).double()
            assert self.eps_ is not None  # there is a threshold
            pull = soft_topk(scores, k, eps=self.eps_).numpy()
        else:
            _, found = index.kneighbors(features, k)
            pull = np.ones(found.shape)
        return self._combine(targets[found], _counting(pull, weights, found))

    def transform(self, X: Any) -> Floats:
        """Features, (n, d) float32."""
        return self._transform(X)

    def _transform(self, X: Any) -> Floats:
        """An array in any case: scikit-learn wraps the result of `transform`, see set_output."""
        check_is_fitted(self)
        X, shape = flat(X)
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

    # Files.

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one safetensors file, without pickle.

        It holds the weights of the network, the features and targets of the training samples, and,
        as JSON, all else: fitted attributes, and those parameters that are plain values. Of the
        others there is a warning: a ``callback``, a ``relaxation`` that is a function, a
        ``random_state`` that is a generator. They have their defaults after `load`. The file is
        written all at once, and has a digest.
        """
        check_is_fitted(self)
        _saving.save(self, path)

    @classmethod
    def load(cls, path: str | Path, *, network: NetworkLike | None = None) -> Self:
        """Read what `save` wrote; its predictions are the same. Nothing in the file is executed.

        Args:
            network: Needed if the one that was trained is not of `softtopk.knn`: a module of its
                architecture, or the function that made it. It becomes the parameter ``network``.
                For networks of `softtopk.knn` leave it out. If such a network was given as the
                parameter, that is the trained one now, and another ``fit`` would go on from there.
        """
        return _saving.load(cls, path, network)

    # The network and its input.

    def _new_network(self, inputs: Tensor, seed: int) -> nn.Module:
        if self.network is None:
            return drawn_network(self.input_shape_, seed)
        return given_network(self.network, inputs[:1], self._device(), seed)

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
                inputs = standardized(inputs, self.mean_, self.scale_)
            inputs = np.ascontiguousarray(inputs, dtype=np.float32)
        check_inputs(inputs.reshape(X.shape), X, self.standardize)
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

    # The rest.

    def _check_parameters(self) -> Neighbours:
        """Before any work; the recipe, the index and the objective check what is theirs."""
        if not (self.network is None or callable(self.network)):
            raise TypeError(
                "network must be an nn.Module, a function of a sample's shape, or None, "
                f"got {self.network!r}"
            )
        for name in ("n_neighbors", "epochs", "batch_size", "template_size"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        check_integer("patience", self.patience)
        if not isinstance(self.verbose, bool):
            check_integer("verbose", self.verbose, 0)
        for name in ("standardize", "early_stopping", "leave_one_out", "warm_start"):
            if name == "early_stopping" and self.early_stopping is None:
                continue
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not 0 < check_number("validation_fraction", self.validation_fraction) < 1:
            raise ValueError(
                "validation_fraction must be between 0 and 1, "
                f"got validation_fraction={self.validation_fraction}"
            )
        if not (self.callback is None or callable(self.callback)):
            raise TypeError(f"callback must be a function or None, got callback={self.callback!r}")
        self._check_device()
        check_options("relaxation_options", self.relaxation_options, self.relaxation)
        check_choice("weights", self.weights, (None, "uniform", "soft"))
        self._check_votes()
        check_choice("index", self.index, INDICES)
        check_choice("backend", self.backend, BACKENDS)
        if self.eps is not None:
            check_positive("eps", self.eps)
        self._recipe(2)
        return self._new_index()

    def _recipe(self, n: int) -> Recipe:
        """How to train on n samples."""
        sizes = sizes_for(n, self._n_classes(), int(self.n_neighbors or NEIGHBOURS))
        if self.batch_size is not None:  # as many steps, whatever their size
            steps = sizes["epochs"] * math.ceil(n / max(1, min(sizes["batch_size"], n // 2)))
            batch = max(1, min(int(self.batch_size), n // 2))
            sizes["epochs"] = math.ceil(steps / math.ceil(n / batch))
        for name in ("epochs", "batch_size", "template_size"):
            if getattr(self, name) is not None:
                sizes[name] = int(getattr(self, name))
        return Recipe(
            **sizes,
            optimizer=self.optimizer,
            lr=check_number("lr", self.lr),
            momentum=check_number("momentum", self.momentum),
            weight_decay=check_number("weight_decay", self.weight_decay),
            schedule=self.schedule,
            warmup=check_number("warmup", self.warmup),
        )

    def _n_classes(self) -> int:
        """0 if there are none."""
        return 0

    def _check_votes(self) -> None:
        if self.weights == "soft" and not self._has_threshold():
            raise ValueError(
                "weights='soft' needs relaxation='soft-topk' without normalize, got "
                f"relaxation={self.relaxation!r}, relaxation_options={self.relaxation_options!r}; "
                "use weights='uniform'"
            )

    def _new_index(self) -> Neighbours:
        return Neighbours(
            index=self.index, backend=self.backend, metric=self.metric, n_probe=self.n_probe
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        if "network_" in state:  # so that it can be loaded where there is no such device
            state["network_"] = copy.deepcopy(state["network_"]).cpu()
        return state


def _counting(pull: Doubles, weights: Doubles | None, found: Ints) -> Doubles:
    """The pull of neighbours (m, k) times the weights (n,) that the samples have, unless all of a
    row are zero."""
    if weights is None:
        return pull
    weighted = pull * weights[found]
    return np.where(weighted.any(1, keepdims=True), weighted, pull)


def _without_self(
    neighbours: Neighbours, features: Floats, k: int, queries: int | None = None
) -> tuple[Floats, Ints]:
    """Neighbours of the first fitted features, all by default, none its own; equal ones may not
    have themselves among the k + 1 nearest, in which case the last is dropped."""
    if k > len(features) - 1:
        raise ValueError(
            f"n_neighbors must be at most {len(features) - 1}, the number of other training "
            f"samples, got n_neighbors={k}"
        )
    distances, found = neighbours.kneighbors(features[:queries], k + 1)
    dropped = found == np.arange(len(found))[:, None]
    dropped[~dropped.any(1), -1] = True
    return distances[~dropped].reshape(-1, k), found[~dropped].reshape(-1, k)
