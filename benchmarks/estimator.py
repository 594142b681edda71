"""How good is `SoftKNNClassifier` with its defaults, next to the classifiers of scikit-learn?

    python benchmarks/estimator.py                    # the tables that scikit-learn brings or makes
    python benchmarks/estimator.py --data FOLDER      # and those of FOLDER: NAME.csv.gz or NAME.csv
    python benchmarks/estimator.py --tables wine iris --methods "soft kNN" kNN --repeats 2

Prints a Markdown table of test accuracies in percent, mean and standard deviation over repeated
stratified splits, with the mean rank of every method, and writes it to OUT/results.md and, with
single splits and CPU times, to OUT/results.json. Every finished fit is a line of OUT/records.jsonl;
a second call measures what is missing there. All tables take some hours of a core, those of
scikit-learn without the largest some minutes.

A file of FOLDER has a header; the last column is the class, all others are numbers.

The defaults of `SoftKNNClassifier` were chosen on the tables of CHOSEN_ON. The others were looked
at only after that, and have a mean rank of their own.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from softtopk.knn import SoftKNNClassifier

Array = npt.NDArray[Any]

TEST_SHARE = 0.3
REPEATS = ((2_000, 5), (10_000, 3), (1_000_000, 1))  # up to so many rows; large tests vary less
NEIGHBOURS = (1, 3, 5, 7, 9, 15, 25)  # that cross-validation chooses from, for plain kNN
FOLDS = 5
# Methods whose time grows faster than the number of rows learn from a part of a large table.
NCA_ROWS = 3_000  # its memory and time grow with the square
SVC_ROWS = 10_000  # likewise its time
BOOSTING_TREES = 1_000_000  # rows x classes: 100 iterations make 100 trees for every class
FAMILIES = ("iris", "wine", "breast_cancer", "digits")  # of scikit-learn, in its package
MADE = {  # by make_classification: (rows, classes), with 2 % of the labels at random
    "made-500": (500, 3),
    "made-5000": (5_000, 26),
    "made-50000": (50_000, 100),
}
CHOSEN_ON = (
    *("satellite", "vowel", "vehicle", "glass", "pimaindiansdiabetes"),
    *("wine", "made-500", "made-5000"),
)


class Method(NamedTuple):
    make: Callable[[int], Any]
    """An estimator for a random_state."""
    rows: Callable[[int], float] = lambda classes: float("inf")
    """How many rows it learns from at most, by the number of classes."""
    neighbours: bool = False
    """Whether it predicts by neighbours."""


def scaled(estimator: Any) -> Any:
    return make_pipeline(StandardScaler(), estimator)


def plain_knn(seed: int) -> Any:
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    grid = {"kneighborsclassifier__n_neighbors": NEIGHBOURS}
    return GridSearchCV(scaled(KNeighborsClassifier()), grid, cv=folds)


class SampledNCA(NeighborhoodComponentsAnalysis):  # type: ignore[misc] # scikit-learn has no types
    """Learns the map from NCA_ROWS rows; the neighbours that vote are among all of them."""

    def fit(self, X: Array, y: Array) -> SampledNCA:
        rows = sample(y, NCA_ROWS, self.random_state)
        super().fit(X[rows], y[rows])
        return self


METHODS = {
    "soft kNN": Method(lambda seed: SoftKNNClassifier(random_state=seed), neighbours=True),
    "kNN": Method(plain_knn, neighbours=True),
    "NCA + kNN": Method(
        lambda seed: make_pipeline(
            StandardScaler(), SampledNCA(random_state=seed), KNeighborsClassifier()
        ),
        neighbours=True,
    ),
    "SVC": Method(lambda seed: scaled(SVC(random_state=seed)), rows=lambda classes: SVC_ROWS),
    "gradient boosting": Method(
        lambda seed: HistGradientBoostingClassifier(random_state=seed),
        rows=lambda classes: BOOSTING_TREES // classes,
    ),
    "random forest": Method(lambda seed: RandomForestClassifier(random_state=seed)),
    "MLP": Method(lambda seed: scaled(MLPClassifier(random_state=seed))),
}


def made(rows: int, classes: int) -> tuple[Array, Array]:
    many = classes > 50  # which need more dimensions to lie apart in
    X, y = datasets.make_classification(
        rows,
        n_features=40 if many else 20,
        n_informative=15 if many else 10,
        n_redundant=4,
        n_classes=classes,
        n_clusters_per_class=1 if many else 2,
        flip_y=0.02,
        class_sep=1.5,
        random_state=1,
    )
    return X, y


def read(path: Path) -> tuple[Array, Array]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        header, *rows = list(csv.reader(file))
    try:
        X = np.array([row[:-1] for row in rows], dtype=float)
    except ValueError as error:
        raise SystemExit(f"{path}: all columns but the last must be numbers ({error})") from error
    if X.shape[1:] != (len(header) - 1,):
        raise SystemExit(f"{path}: every row must have {len(header)} columns, as the header has")
    return X, np.unique([row[-1] for row in rows], return_inverse=True)[1]


def tables(folder: Path | None) -> dict[str, Callable[[], tuple[Array, Array]]]:
    """What loads each table, by name."""
    found: dict[str, Callable[[], tuple[Array, Array]]] = {}
    for name in FAMILIES:
        found[name] = lambda name=name: getattr(datasets, f"load_{name}")(return_X_y=True)
    for name, size in MADE.items():
        found[name] = lambda size=size: made(*size)
    if folder is not None:
        paths = sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])
        if not paths:
            raise SystemExit(f"--data {folder}: no files *.csv or *.csv.gz there")
        for path in paths:
            found[path.name.partition(".")[0]] = lambda path=path: read(path)
    return found


def repeats_of(rows: int) -> int:
    return next(count for limit, count in REPEATS if rows <= limit)


def sample(y: Array, rows: float, seed: int) -> Array:
    """Rows of a part of the table, of every class the same share; all rows if they are no more."""
    everything = np.arange(len(y))
    if len(y) <= rows:
        return everything
    classes = np.bincount(y)
    fair = classes[classes > 0].min() > 1
    part, _ = train_test_split(
        everything, train_size=int(rows), random_state=seed, stratify=y if fair else None
    )
    return part


def measure(name: str, X: Array, y: Array, seed: int) -> dict[str, Any]:
    """Accuracy of a method on one split, and CPU seconds."""
    method = METHODS[name]
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=TEST_SHARE, stratify=y, random_state=seed
    )
    rows = sample(y, method.rows(len(np.unique(y))), seed)
    estimator = method.make(seed)
    with warnings.catch_warnings():
        # Of an MLP that has not converged in its default number of iterations, and of a class of
        # fewer rows than folds.
        warnings.filterwarnings("ignore", module="sklearn")
        start = time.process_time()
        estimator.fit(X[rows], y[rows])
        fitted = time.process_time()
        accuracy = float(np.mean(estimator.predict(X_test) == y_test))
    return {
        "accuracy": accuracy,
        "fit_seconds": round(fitted - start, 3),
        "predict_seconds": round(time.process_time() - fitted, 3),
        "rows": len(rows),
        "rows_of_table": len(y),
    }


class Records:
    """The finished fits, a line of JSON each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[tuple[str, str, int], dict[str, Any]] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:  # half a line, of a run that was killed
                continue
            self.found[record["table"], record["method"], record["split"]] = record

    def add(self, record: dict[str, Any]) -> None:
        self.found[record["table"], record["method"], record["split"]] = record
        before = self.path.read_bytes()[-1:] if self.path.exists() else b"\n"
        with self.path.open("a") as file:
            file.write("\n" * (before not in (b"", b"\n")) + json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def settings_of(name: str) -> str:
    """What a record was made with: others are measured again."""
    return " ".join(repr(METHODS[name].make(0).get_params()).split())


def ranks(means: dict[str, float]) -> dict[str, float]:
    """1 is the best; equal accuracies share the mean of their ranks."""
    values = np.array(list(means.values()))
    return {
        name: 0.5 + 0.5 * float((values > value).sum() + (values >= value).sum())
        for name, value in means.items()
    }


def summary(records: Iterable[dict[str, Any]], methods: list[str]) -> dict[str, Any]:
    """Of every table that all methods are finished with on the same splits."""
    splits: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for record in records:
        by_method = splits.setdefault(record["table"], {})
        by_method.setdefault(record["method"], {})[record["split"]] = record
    found: dict[str, Any] = {"tables": {}}
    for table, by_method in splits.items():
        if set(by_method) < set(methods):
            continue
        shared = sorted(set.intersection(*(set(by_method[name]) for name in methods)))
        if not shared:
            continue
        row = {}
        for name in methods:
            part = [by_method[name][split] for split in shared]
            accuracies = [record["accuracy"] for record in part]
            row[name] = {
                "accuracies": accuracies,
                "mean": float(np.mean(accuracies)),
                "deviation": float(np.std(accuracies, ddof=1)) if len(part) > 1 else None,
                "fit_seconds": float(np.mean([record["fit_seconds"] for record in part])),
                "predict_seconds": float(np.mean([record["predict_seconds"] for record in part])),
                "sampled": part[0]["rows"] < part[0]["rows_of_table"],
            }
        place = ranks({name: row[name]["mean"] for name in methods})
        for name in methods:
            row[name]["rank"] = place[name]
        found["tables"][table] = {
            "chosen_on": table in CHOSEN_ON,
            "splits": len(shared),
            "rows": next(iter(by_method[methods[0]].values()))["rows_of_table"],
            "methods": row,
        }
    for label, wanted in (("all", None), ("reported", False), ("chosen_on", True)):
        rows = [t for t in found["tables"].values() if wanted is None or t["chosen_on"] is wanted]
        found[f"mean_rank_{label}"] = {
            name: float(np.mean([t["methods"][name]["rank"] for t in rows])) if rows else None
            for name in methods
        }
    return found


def markdown(found: dict[str, Any], methods: list[str]) -> str:
    lines = [
        f"| table | rows | splits | {' | '.join(methods)} |",
        "|---|--:|--:|" + "--:|" * len(methods),
    ]
    ordered = sorted(found["tables"].items(), key=lambda item: (item[1]["chosen_on"], item[0]))
    for table, facts in ordered:
        cells = []
        best = max(cell["mean"] for cell in facts["methods"].values())
        for name in methods:
            cell = facts["methods"][name]
            text = f"{100 * cell['mean']:.1f}"
            text = f"**{text}**" if cell["mean"] == best else text
            if cell["deviation"] is not None:
                text += f" ± {100 * cell['deviation']:.1f}"
            cells.append(text + (" †" if cell["sampled"] else ""))
        mark = " *" if facts["chosen_on"] else ""
        lines.append(f"| {table}{mark} | {facts['rows']} | {facts['splits']} | {_row(cells)}")
    for label, text in (
        ("reported", "mean rank, reported half"),
        ("chosen_on", "mean rank, half of the choice (*)"),
        ("all", "mean rank, all"),
    ):
        values = found[f"mean_rank_{label}"]
        if None not in values.values():
            lines.append(f"| {text} | | | {_row([f'{values[name]:.2f}' for name in methods])}")
    seconds = {
        name: [t["methods"][name]["fit_seconds"] for t in found["tables"].values()]
        for name in methods
    }
    if found["tables"]:
        lines.append(
            f"| CPU seconds of a fit, longest | | | "
            f"{_row([f'{max(seconds[name]):.1f}' for name in methods])}"
        )
    lines += [
        "",
        "Test accuracy in percent, mean ± standard deviation over the splits. Rows: those of the "
        "training part.",
        "\\* The defaults of soft kNN were chosen on these tables.",
        "† Learned from a part of the rows, as the time grows faster than their number.",
    ]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return " | ".join(cells) + " |"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--methods", nargs="+", metavar="NAME", choices=list(METHODS))
    parser.add_argument(
        "--repeats", type=int, help="splits of every table; by its rows if not given"
    )
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="further tables")
    parser.add_argument("--out", type=Path, default=Path("estimator-benchmark"), metavar="FOLDER")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    torch.set_num_threads(1)
    known = tables(options.data)
    names = options.tables or list(known)
    for name in names:
        if name not in known:
            raise SystemExit(f"--tables {name}: there are {', '.join(known)}")
    methods = options.methods or list(METHODS)
    settings = {name: settings_of(name) for name in methods}
    options.out.mkdir(parents=True, exist_ok=True)
    records = Records(options.out / "records.jsonl")
    for table in names:
        X, y = known[table]()
        for split in range(options.repeats or repeats_of(len(y))):
            for method in methods:
                done = records.found.get((table, method, split))
                if done is not None and done["settings"] == settings[method]:
                    continue
                with threadpool_limits(1):  # so that CPU seconds are those of one core
                    result = measure(method, X, y, split)
                key = {"table": table, "method": method, "split": split}
                records.add({**key, **result, "settings": settings[method]})
                print(
                    f"{table:20} {method:18} split {split}: {100 * result['accuracy']:.1f} %, "
                    f"{result['fit_seconds']:.1f} s",
                    flush=True,
                )
    wanted = [r for r in records.found.values() if r["table"] in names and r["method"] in methods]
    found = summary(wanted, methods)
    text = markdown(found, methods)
    (options.out / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.out / "results.md").write_text(text + "\n")
    print(f"\n{text}")


if __name__ == "__main__":
    main()
