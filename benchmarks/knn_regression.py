"""How good is `SoftKNNRegressor` with its defaults, beside regressors of scikit-learn with theirs?

    python benchmarks/knn_regression.py

R² on the test half of repeated splits, mean and standard deviation, for diabetes, 442 rows with a
noisy target that is nearly linear in the columns, and for two made tables. Prints a Markdown table.
Two minutes on one core.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_friedman1, make_friedman2
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.model_selection import ShuffleSplit
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from softtopk.knn import SoftKNNRegressor

TABLES = {
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "friedman1, 1000 rows": lambda: make_friedman1(1000, noise=1.0, random_state=0),
    "friedman2, 1000 rows": lambda: make_friedman2(1000, noise=50.0, random_state=0),
}


def models(seed: int) -> dict[str, Any]:
    return {
        "SoftKNNRegressor": SoftKNNRegressor(random_state=seed),
        'the same, weights="uniform"': SoftKNNRegressor(weights="uniform", random_state=seed),
        "kNN, k = 9": make_pipeline(StandardScaler(), KNeighborsRegressor(9)),
        "random forest": RandomForestRegressor(random_state=seed),
        "gradient boosting": HistGradientBoostingRegressor(random_state=seed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| R² |", " | ".join(models(0)), "|\n|---" + "|--:" * len(models(0)) + "|")
    for name, load in TABLES.items():
        X, y = load()
        scores: list[list[float]] = []
        splits = ShuffleSplit(args.repeats, test_size=0.5, random_state=0)
        for seed, (train, test) in enumerate(splits.split(X)):
            fitted = [model.fit(X[train], y[train]) for model in models(seed).values()]
            scores.append([model.score(X[test], y[test]) for model in fitted])
        pairs = zip(np.mean(scores, 0), np.std(scores, 0), strict=True)
        cells = [f"{mean:.3f} ± {deviation:.3f}" for mean, deviation in pairs]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
