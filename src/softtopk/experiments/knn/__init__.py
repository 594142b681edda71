"""The kNN experiment of the paper: every method of its Table 1 on four data sets.

    softtopk knn train --data mnist --data-dir DIR --method all --out RUN

trains, and ends with the table. One method with one seed is one run, in the sense of
`softtopk.experiments.runs`, in RUN/<method>/seed-<seed>; methods and seeds can be added later.
"""

from ._settings import Settings
from ._train import Table, Train, table, train
from ._use import Plot, Predict, plot, predict

__all__ = [
    "Plot",
    "Predict",
    "Settings",
    "Table",
    "Train",
    "plot",
    "predict",
    "table",
    "train",
]
