"""The classifier as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from .._checks import check_choice
from ._distances import Metric
from ._estimator import Callback, Doubles, SoftKNNEstimator, Weights
from ._loss import Objective, RelaxationLike
from ._neighbours import Backend, Index, Ints
from ._networks import NetworkLike
from ._training import Optimizer, Schedule


class SoftKNNClassifier(ClassifierMixin, SoftKNNEstimator):
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
        n_neighbors: How many neighbours vote. None takes 9 in training, as the paper does, and in
            prediction as many as serve plain kNN on X best, out of 1, 3, 5 and 9: see
            ``n_neighbors_``.
        weights: ``"uniform"``: each of the k nearest has one vote, so that probabilities are
            multiples of 1 / k. ``"soft"``: the votes are the soft top-k A of the distances at the
            temperature ``eps_``, as in training. They sum to k and fall off with the distance, also
            beyond the k-th neighbour. The nearest 4k + 16 templates are looked at; those further
            away have no vote. None is ``"soft"``, where the relaxation has such a temperature.
        relaxation: A name of `softtopk.relaxations`, or a function of that signature.
        eps: Temperature of the relaxation, in the unit of the distances. None calibrates that of
            ``"soft-topk"`` on a batch before the training, so that about 2k of its templates are
            undecided; it is then kept. Other relaxations have a default of their own, and so has a
            normalised cost, ``relaxation_options={"normalize": ...}``: see `knn_loss`.
        relaxation_options: Further arguments of the relaxation, a dict, without ``eps``.
        objective: ``"vote"`` or ``"nll"``, see `knn_loss`.
        class_weight: For uneven classes: a dict of weights by class (1 if it is not there), or
            ``"balanced"``, n / (n_classes × size of the class). The weight of a sample is that of
            its class times its ``sample_weight`` in `fit`. It counts twice: in the mean of the
            loss, and in prediction, where the sample's vote as a neighbour is multiplied by it, so
            that probabilities are those of the weighted classes. It does not count in what is drawn
            for a step, in the vote of templates there, in the standardisation and in which
            neighbours are found. So a weight of 2 is not quite the same as the sample twice.
        metric: ``"euclidean"``, ``"squared"`` or ``"cosine"``: distance between features.
        image_shape: (channels, height, width), if the columns of X are the pixels of images. An X
            of four dimensions needs none.
        standardize: Shift and scale the input to mean 0 and deviation 1: every column, or every
            channel of images.
        epochs: How often the training goes through all samples. None is as many as make 8 √n
            steps, but 50 to 4000.
        batch_size: Queries in a step. None is n / 10, but 100 to 400.
        template_size: Templates in a step, drawn from the samples that are not among the queries.
            None is n / 10, but 100 to 400. To these come more of the classes that have too few: at
            least as many of each as there are neighbours, or 2000 / n_classes.
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
            epoch. The samples set aside are templates again in prediction. Weights count in that
            accuracy. None is False for the classifier, and True for the regressor if there are 100
            samples: a noisy target is learned by heart.
        validation_fraction: See there.
        patience: See there.
        warm_start: Go on from the weights, the standardisation and the ``eps_`` of the fit before,
            if there was one. The columns and the classes must be the same; the samples need not be,
            and are the templates afterwards. ``history_`` goes on; the schedule of the learning
            rate begins anew.
        callback: Called after every epoch with a dict: ``epoch``, counted from 1, ``epochs``, and
            what ``history_`` has of it. If it returns True, the training stops there.
        index: ``"exact"``, or ``"ivf"`` or ``"hnsw"``, which are faster and miss some neighbours:
            see `Neighbours`.
        backend: ``"auto"``, ``"faiss"`` or ``"sklearn"``, see `Neighbours`.
        n_probe: How much of ``"ivf"`` or ``"hnsw"`` is searched, see `Neighbours`.
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
        eps_: The temperature: ``eps``, or the calibrated one; None if it is the relaxation's own.
        n_iter_: Epochs done. There are none if all samples are of one class.
        best_epoch_: The epoch, counted from 1, whose weights were taken, with early stopping.
        n_neighbors_: The neighbours that vote in prediction, at most the number of samples. In
            training there are at most half the templates of a query, and at most 2000 / n_classes,
            but 2 in any case.
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

    classes_: npt.NDArray[Any]

    def __init__(
        self,
        network: NetworkLike | None = None,
        *,
        n_neighbors: int | None = None,
        weights: Weights | None = None,
        relaxation: RelaxationLike = "soft-topk",
        eps: float | None = None,
        relaxation_options: Mapping[str, Any] | None = None,
        objective: Objective = "nll",
        class_weight: Mapping[Any, float] | str | None = None,
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
        super().__init__(
            network,
            n_neighbors=n_neighbors,
            weights=weights,
            relaxation=relaxation,
            eps=eps,
            relaxation_options=relaxation_options,
            metric=metric,
            image_shape=image_shape,
            standardize=standardize,
            epochs=epochs,
            batch_size=batch_size,
            template_size=template_size,
            leave_one_out=leave_one_out,
            optimizer=optimizer,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            schedule=schedule,
            warmup=warmup,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            patience=patience,
            warm_start=warm_start,
            callback=callback,
            index=index,
            backend=backend,
            n_probe=n_probe,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.objective = objective
        self.class_weight = class_weight

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class with the most votes, the first of them in case of a tie: (n,)."""
        votes = self.predict_proba(X)
        return np.asarray(self.classes_[votes.argmax(1)])

    def predict_proba(self, X: Any) -> Doubles:
        """Share of every class in the votes of the nearest neighbours: (n, n_classes)."""
        return self._predicted(X)

    def _take_targets(self, y: npt.NDArray[Any], warm: bool) -> Tensor:
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if warm and not np.array_equal(classes, self.classes_):
            raise ValueError(
                "warm_start=True needs the classes of the fit before, "
                f"{self.classes_.tolist()}, got {classes.tolist()}; set warm_start=False to begin "
                "anew"
            )
        self.classes_, self._targets = classes, labels.astype(np.int64)
        return torch.from_numpy(self._targets)

    def _class_weights(self, y: npt.NDArray[Any]) -> Doubles | None:
        if self.class_weight is None:
            return None
        if not isinstance(self.class_weight, Mapping):
            check_choice("class_weight", self.class_weight, (None, "balanced", "a dict"))
        weights: Doubles = compute_sample_weight(self.class_weight, y)
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
            raise ValueError(
                "class_weight must have finite weights that are not negative, and not all zero, "
                f"got class_weight={self.class_weight!r}"
            )
        return weights

    def _n_classes(self) -> int:
        return len(self.classes_) if hasattr(self, "classes_") else 1  # before fit has seen y

    def _objective(self) -> Objective:
        return self.objective

    def _is_learnable(self) -> bool:
        return len(self.classes_) > 1

    def _strata(self) -> Ints:
        return self._targets

    def _combine(self, targets: Ints, pull: Doubles) -> Doubles:
        n, classes = len(targets), len(self.classes_)
        cells = np.arange(n)[:, None] * classes + targets
        votes = np.bincount(cells.ravel(), pull.ravel(), minlength=n * classes)
        votes = votes.reshape(n, classes)
        # Not by the sum of the pulls, which is rounded otherwise: no share is above one.
        return np.asarray(votes / votes.sum(1, keepdims=True))

    _MEASURE = ("accuracy", True)

    def _measure(self, predicted: Doubles, targets: Ints, weights: Doubles | None) -> float:
        return float(np.average(predicted.argmax(1) == targets, weights=weights))
