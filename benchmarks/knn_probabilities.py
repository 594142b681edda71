"""Are the soft votes of `SoftKNNClassifier` better probabilities than shares of nine neighbours?

    python benchmarks/knn_probabilities.py

The same trained classifier predicts with weights="uniform" and with weights="soft", on tables of
scikit-learn: repeated stratified splits into two halves, mean and standard deviation over them.

- log-loss, of probabilities clipped to [1e-3, 1]: a share of nine neighbours is often 0
- ECE, the expected calibration error of the predicted class, ten bins of equal width
- accuracy

Prints a Markdown table, plain kNN (k = 9, standardised) beside it. Four minutes on one core; the
tables are small, and those with overlapping classes matter most.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_wine,
    make_classification,
)
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from softtopk.knn import SoftKNNClassifier

Table = tuple[np.ndarray, np.ndarray]
FLOOR, BINS = 1e-3, 10


def overlapping(n: int) -> Table:
    """Three classes with a tenth of the labels wrong."""
    return make_classification(
        n, 20, n_informative=6, n_redundant=4, n_classes=3, flip_y=0.1, random_state=0
    )


TABLES: dict[str, Callable[[], Table]] = {
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "made, 500 rows": lambda: overlapping(500),
    "made, 4000 rows": lambda: overlapping(4000),
}


def calibration_error(probabilities: np.ndarray, y: np.ndarray) -> float:
    """Mean gap between confidence and accuracy, weighted by the number of samples in each bin."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == y
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(confidence[bins == b].sum() - right[bins == b].sum()) for b in range(BINS)]
    return float(sum(gaps) / len(y))


def figures(model: Any, X: np.ndarray, y: np.ndarray) -> list[float]:
    found = model.predict_proba(X)
    clipped = found.clip(FLOOR)
    clipped /= clipped.sum(1, keepdims=True)
    accuracy = float((found.argmax(1) == y).mean())
    return [float(log_loss(y, clipped)), calibration_error(found, y), accuracy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--objective", choices=["vote", "nll"], default="nll")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| table | votes | log-loss | ECE | accuracy |\n|---|---|--:|--:|--:|")
    for name, load in TABLES.items():
        X, y = load()
        rows: dict[str, list[list[float]]] = {"kNN": [], "uniform": [], "soft": []}
        splits = StratifiedShuffleSplit(args.repeats, test_size=0.5, random_state=0)
        for seed, (train, test) in enumerate(splits.split(X, y)):
            plain = make_pipeline(StandardScaler(), KNeighborsClassifier(9)).fit(X[train], y[train])
            rows["kNN"].append(figures(plain, X[test], y[test]))
            model = SoftKNNClassifier(objective=args.objective, random_state=seed)
            model.fit(X[train], y[train])
            for weights in ("uniform", "soft"):
                model.set_params(weights=weights)
                rows[weights].append(figures(model, X[test], y[test]))
        for votes, found in rows.items():
            mean, deviation = np.mean(found, 0), np.std(found, 0)
            cells = " | ".join(f"{m:.3f} ± {d:.3f}" for m, d in zip(mean, deviation, strict=True))
            print(f"| {name} | {votes} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
