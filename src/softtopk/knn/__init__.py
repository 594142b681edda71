"""Prediction by k nearest neighbours, with features that are trained through the top-k.

`SoftKNNClassifier` and `SoftKNNRegressor` are the whole of it as scikit-learn estimators.
`knn_loss` is the loss, for a training loop of your own. The estimators and `Neighbours`, their
search, need the extra: ``pip install 'softtopk[knn]'``. All else needs torch alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .._optional import require
from .._training import DivergedError
from ._distances import pairwise_distances
from ._loss import KNNObjective, knn_loss, soft_vote
from ._networks import MLP, ConvNet, ResNet, default_network, resnet8, resnet18, resnet20
from ._training import Outcome, Recipe, Training, TrainingWarning, sizes_for

if TYPE_CHECKING:
    from ._classifier import SoftKNNClassifier
    from ._neighbours import Neighbours
    from ._regressor import SoftKNNRegressor

__all__ = [
    "MLP",
    "ConvNet",
    "DivergedError",
    "KNNObjective",
    "Neighbours",
    "Outcome",
    "Recipe",
    "ResNet",
    "SoftKNNClassifier",
    "SoftKNNRegressor",
    "Training",
    "TrainingWarning",
    "default_network",
    "knn_loss",
    "pairwise_distances",
    "resnet8",
    "resnet18",
    "resnet20",
    "sizes_for",
    "soft_vote",
]

# Imported when they are first asked for, with what each needs.
_LATE = {
    "Neighbours": ("_neighbours", ("numpy",)),
    "SoftKNNClassifier": ("_classifier", ("numpy", "sklearn")),
    "SoftKNNRegressor": ("_regressor", ("numpy", "sklearn")),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, needed = _LATE[name]
    for dependency in needed:
        require(dependency, f"softtopk.knn.{name}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
