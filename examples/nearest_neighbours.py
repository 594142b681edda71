"""Nearest neighbours: do learned features help, and from how many samples on?

`SoftKNNClassifier` learns features through the choice of the neighbours. scikit-learn's classifier
takes the pixels as they are. Test accuracy on digits, mean of three splits.
"""

import argparse
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from softtopk.knn import SoftKNNClassifier
from softtopk.plotting import new_figure, style

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."), help="folder of the picture")
out = parser.parse_args().out

SIZES, SPLITS = (50, 200, 1000), 3
x, y = load_digits(return_X_y=True)
models = {
    "KNeighborsClassifier": KNeighborsClassifier(),
    "SoftKNNClassifier": SoftKNNClassifier(random_state=0),
}

print("training samples     " + "".join(f"{size:8d}" for size in SIZES))
(axes,) = (figure := new_figure(size=(5, 2.8))).axes
for (name, model), colour, marker in zip(models.items(), style.COLOURS, "oD", strict=False):
    row = []
    for size in SIZES:
        options = {"train_size": size, "stratify": y}
        splits = [train_test_split(x, y, random_state=i, **options) for i in range(SPLITS)]
        scores = [model.fit(a, b).score(a_test, b_test) for a, a_test, b, b_test in splits]
        row.append(sum(scores) / SPLITS)
    print(f"{name:21s}" + "".join(f"{accuracy:8.3f}" for accuracy in row))
    axes.plot(SIZES, row, color=colour, marker=marker, label=name)
axes.set(xlabel="training samples", ylabel="test accuracy", xscale="log")
axes.set_xticks(SIZES, SIZES)
axes.legend(frameon=False)
figure.savefig(out / "nearest_neighbours.png", dpi=140)
