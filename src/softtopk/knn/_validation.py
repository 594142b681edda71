"""Early stopping: what it measures, and the weights that it keeps."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from torch import Tensor

from ._neighbours import Ints, Neighbours

if TYPE_CHECKING:
    from ._estimator import SoftKNNEstimator


class Validation:
    """How good the predictions are on samples set aside, and the weights for which it was best."""

    def __init__(self, model: SoftKNNEstimator, inputs: Tensor, kept: Ints, aside: Ints) -> None:
        self._model = model
        self._templates, self._queries = inputs[kept], inputs[aside]
        self._known, self._wanted = model._targets[kept], model._targets[aside]
        weights = model._sample_weights
        self._known_weights = None if weights is None else weights[kept]
        self._wanted_weights = None  # also if nothing counts that was set aside
        if weights is not None and weights[aside].any():
            self._wanted_weights = weights[aside]
        self._best = -math.inf
        self.stale = 0
        """Epochs since the best one."""
        self.weights: dict[str, Tensor] = {}

    def measure(self) -> float:
        """The quality after another epoch."""
        model = self._model
        index = Neighbours(backend=model.backend, metric=model.metric)
        index.fit(model._extract_trained(self._templates))
        features = model._extract_trained(self._queries)
        k = min(model.n_neighbors_, len(index))
        predicted = model._predicted_by(index, features, k, self._known, self._known_weights)
        quality = model._measure(predicted, self._wanted, self._wanted_weights)
        self._keep(quality)
        return quality

    def _keep(self, quality: float) -> None:
        """Keep the weights if they are the best so far."""
        self.stale += 1
        quality = quality if self._model._MEASURE[1] else -quality
        if quality > self._best:
            self._best, self.stale = quality, 0
            self.weights = copy.deepcopy(self._model.network_.state_dict())
