"""The regressor as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from ._estimator import Doubles, SoftKNNEstimator
from ._inputs import standard, standardized


class SoftKNNRegressor(RegressorMixin, SoftKNNEstimator):
    """Nearest-neighbours regressor that learns the features it compares.

    A network maps samples to features. It is trained so that the mean target of the k nearest
    templates of a query is close to the query's: with A the relaxed indicator of those k, the loss
    is the squared error of ``sum_j A_ij y_j / k``, for targets of mean 0 and deviation 1. Then the
    features of all training samples are stored, and prediction is that of a k-nearest-neighbours
    regressor. A target may be several numbers: y is (n,) or (n, outputs).

    The parameters and the attributes are those of `SoftKNNClassifier`, without ``objective``,
    ``class_weight`` and ``classes_``. ``weights="soft"`` makes the prediction a mean that is
    weighted by the distances. Early stopping measures the root of the mean squared error:
    ``validation_error`` in ``history_``, in which there is no accuracy.

    >>> from sklearn.datasets import make_friedman1
    >>> X, y = make_friedman1(300, random_state=0)
    >>> model = SoftKNNRegressor(random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.7
    True
    """

    _Y_OPTIONS = {"multi_output": True, "y_numeric": True}  # noqa: RUF012
    _MEASURE = ("error", False)
    _OVERFITS = True

    def predict(self, X: Any) -> Doubles:
        """The mean target of the nearest neighbours: (n,), or (n, outputs)."""
        return self._predicted(X)

    def _take_targets(self, y: npt.NDArray[Any], warm: bool) -> Tensor:
        if warm and y.shape[1:] != self._targets.shape[1:]:
            raise ValueError(
                f"warm_start=True needs targets of shape {('n', *self._targets.shape[1:])}, as in "
                f"the fit before, got {('n', *y.shape[1:])}; set warm_start=False to begin anew"
            )
        self._targets = y.astype(np.float64)
        columns = self._targets.reshape(len(y), -1)
        columns = standardized(columns, *standard(columns, columns.shape[1:], True))
        return torch.from_numpy(columns.astype(np.float32))

    def _objective(self) -> str:
        return "mse"

    def _is_learnable(self) -> bool:
        return bool((self._targets != self._targets[0]).any())

    def _strata(self) -> None:
        return None

    def _combine(self, targets: Doubles, pull: Doubles) -> Doubles:
        shares = pull / pull.sum(1, keepdims=True)
        return np.asarray(np.einsum("nk,nk...->n...", shares, targets))

    def _measure(self, predicted: Doubles, targets: Doubles, weights: Doubles | None) -> float:
        errors = np.abs(predicted - targets).reshape(len(targets), -1)
        unit = errors.max() or 1.0  # whose square may be too large, or too small, for a float
        squares = np.square(errors / unit).mean(1)
        return float(unit * np.sqrt(np.average(squares, weights=weights)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
