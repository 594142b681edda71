"""The methods of the paper's Table 1, in its order, and its figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Features = Literal["pixels", "pca", "autoencoder", "classifier", "knn"]


@dataclass(frozen=True)
class Method:
    """How the features are found, and how the class is predicted from them."""

    name: str
    label: str
    features: Features
    paper: Mapping[str, float] = field(default_factory=dict)
    """Test accuracy in the paper, in per cent, by data set."""
    head: bool = False
    """Predict with the linear layer that was trained with the features, not with kNN."""
    relaxation: str = ""
    """For features that are trained through a relaxation of top-k."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the relaxation."""

    @property
    def is_trained(self) -> bool:
        return self.features not in ("pixels", "pca")


def _figures(mnist: float, cifar10: float) -> dict[str, float]:
    return {"mnist": mnist, "cifar10": cifar10}


TABLE = (
    Method("knn", "kNN", "pixels", _figures(97.2, 35.4)),
    Method("pca", "kNN+PCA", "pca", _figures(97.6, 40.9)),
    Method("ae", "kNN+AE", "autoencoder", _figures(97.6, 44.2)),
    Method("pretrained", "kNN+pretrained CNN", "classifier", _figures(98.4, 91.1)),
    Method(
        "relaxed-subset",
        "RelaxSubSample",
        "knn",
        _figures(99.3, 90.1),
        relaxation="relaxed-subset",
    ),
    Method("neural-sort", "kNN+NeuralSort", "knn", _figures(99.5, 90.7), relaxation="neural-sort"),
    Method(
        "sinkhorn-sort",
        "kNN+Cuturi et al.",
        "knn",
        _figures(99.0, 84.8),
        relaxation="sinkhorn-sort",
    ),
    Method(
        "successive-softmax",
        "kNN+Softmax k times",
        "knn",
        _figures(99.3, 92.2),
        relaxation="successive-softmax",
    ),
    Method("ce", "CE+CNN", "classifier", _figures(99.0, 91.3), head=True),
    Method("soft-topk", "kNN+SOFT top-k", "knn", _figures(99.4, 92.6), relaxation="soft-topk"),
)
"""The rows of the table: what ``--method all`` runs."""

OTHERS = (
    Method(
        "soft-topk-sinkhorn",
        "kNN+SOFT top-k by Sinkhorn, 200 iterations",
        "knn",
        relaxation="soft-topk",
        options={"solver": "sinkhorn"},
    ),
)
"""Run by name only."""

METHODS = {method.name: method for method in (*TABLE, *OTHERS)}


ALL = tuple(method.name for method in TABLE)
RELAXED = tuple(dict.fromkeys(m.relaxation for m in METHODS.values() if m.relaxation))
"""The relaxations that features are trained through."""


def in_order(names: Collection[str]) -> tuple[str, ...]:
    """The methods in the order of the table.

    >>> in_order(["soft-topk", "knn"])
    ('knn', 'soft-topk')
    """
    return tuple(name for name in METHODS if name in names)
