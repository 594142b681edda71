"""Nearest neighbours on learned features against plain ones, by five-fold cross-validation.

    python examples/knn_cross_validation.py

prints the table of docs/knn_results.md, in about two minutes on one core. Needs softtopk[knn].
"""

from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from softtopk.knn import SoftKNNClassifier

DATA = {
    "digits": load_digits,
    "wine": load_wine,
    "breast cancer": load_breast_cancer,
    "iris": load_iris,
}
MODELS = {
    "plain": KNeighborsClassifier(n_neighbors=9),
    "standardised": make_pipeline(StandardScaler(), KNeighborsClassifier(n_neighbors=9)),
    "learned": SoftKNNClassifier(random_state=0),
    "learned, as images": SoftKNNClassifier(image_shape=(1, 8, 8), random_state=0),
}


def main() -> None:
    print("| data | " + " | ".join(MODELS) + " |")
    print("|---|" + "---|" * len(MODELS))
    for name, load in DATA.items():
        X, y = load(return_X_y=True)
        cells = []
        for title, model in MODELS.items():
            if title.endswith("images") and name != "digits":
                cells.append("")
                continue
            folds = StratifiedKFold(5, shuffle=True, random_state=0)
            cells.append(f"{cross_val_score(model, X, y, cv=folds).mean():.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
