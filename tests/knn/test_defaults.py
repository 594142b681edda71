"""What torch's default device and dtype are makes no difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from softtopk import relaxations
from softtopk.knn import SoftKNNClassifier, knn_loss, pairwise_distances, soft_vote

FEATURES = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(20) % 3
X, Y = load_digits(return_X_y=True)
X, Y = X[:60], Y[:60]
MODULE = nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 4))


def made(shape: tuple[int, ...]) -> nn.Module:
    """In float32; the device is the default."""
    return nn.Sequential(nn.Linear(*shape, 8, dtype=torch.float32), nn.BatchNorm1d(8).float())


def derived(function: Any) -> list[Tensor]:
    """The value at the features, and its gradient; the noise is that of a seed."""
    torch.manual_seed(3)
    features = FEATURES.clone().requires_grad_()
    value = function(features)
    return [value, *torch.autograd.grad(value.square().sum(), features)]


@pytest.mark.parametrize("name", relaxations.names())
@pytest.mark.parametrize("objective", ["vote", "nll"])
def test_losses(name: str, objective: Any, other_defaults: Any) -> None:
    def loss(features: Tensor) -> Tensor:
        return knn_loss(features, LABELS, features, LABELS, 3, objective=objective, relaxation=name)

    expected = derived(loss)
    with other_defaults():
        found = derived(loss)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: soft_vote(x[:5], x[5:], LABELS[5:], 3),
        lambda x: soft_vote(x, x, LABELS, 3, metric="cosine", query_ids=LABELS),
        *(lambda x, m=m: pairwise_distances(x, x, m) for m in ("euclidean", "squared", "cosine")),
    ],
)
def test_votes_and_distances(function: Any, other_defaults: Any) -> None:
    expected = derived(function)
    with other_defaults():
        found = derived(function)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"early_stopping": True},
        {"image_shape": (1, 8, 8), "optimizer": "sgd", "leave_one_out": True},
        {"relaxation": "stochastic-neural-sort", "objective": "nll"},
        {"network": MODULE},
        {"network": made, "index": "ivf"},
    ],
)
def test_the_classifier(settings: dict, other_defaults: Any) -> None:
    def run() -> list[np.ndarray]:
        model = SoftKNNClassifier(epochs=2, batch_size=20, random_state=0, **settings).fit(X, Y)
        return [model.transform(X), model.predict_proba(X), *model.kneighbors()]

    expected = run()
    with other_defaults():
        found = run()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
