"""What works with torch alone, and what a user is told who lacks the rest."""

import subprocess
import sys

import numpy as np
import pytest

from softtopk import knn


def test_torch_alone_is_enough_for_the_rest() -> None:
    code = """
import sys
for name in ("sklearn", "faiss", "safetensors", "rich"):
    sys.modules[name] = None
import torch, softtopk.knn as knn
x, y = torch.randn(20, 3), torch.arange(20) % 2
assert knn.knn_loss(x, y, x, y, 3).shape == ()
assert {"SoftKNNClassifier", "Neighbours"} <= {*dir(knn)}
print(*sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "scipy" not in result.stdout.split()


@pytest.mark.parametrize(
    ("attempt", "blocked", "message"),
    [
        (
            lambda: knn.SoftKNNClassifier,
            "sklearn",
            r"softtopk\.knn\.SoftKNNClassifier needs scikit-learn: pip install 'softtopk\[knn\]'",
        ),
        (
            lambda: knn.Neighbours,
            "numpy",
            r"softtopk\.knn\.Neighbours needs numpy: pip install 'softtopk\[knn\]'",
        ),
        (
            lambda: knn.Neighbours(backend="sklearn").fit(np.eye(3)),
            "sklearn",
            r"backend='sklearn' needs scikit-learn: pip install 'softtopk\[knn\]'",
        ),
        (
            lambda: knn.Neighbours(backend="faiss").fit(np.eye(3)),
            "faiss",
            r"backend='faiss' needs faiss-cpu: pip install 'softtopk\[knn\]'",
        ),
        (
            lambda: knn.Neighbours(index="ivf").fit(np.eye(3)),
            "faiss",
            r"index='ivf' needs faiss-cpu: pip install 'softtopk\[knn\]', or use index",
        ),
    ],
)
def test_messages(monkeypatch: pytest.MonkeyPatch, attempt, blocked: str, message: str) -> None:
    attempt()
    monkeypatch.setitem(sys.modules, blocked, None)
    with pytest.raises(ImportError, match=message):
        attempt()


def test_a_broken_dependency_is_not_taken_for_a_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    with pytest.raises(ModuleNotFoundError, match=r"sklearn\.base"):
        knn.SoftKNNClassifier()


def test_no_such_name() -> None:
    with pytest.raises(AttributeError, match=r"'softtopk\.knn' has no attribute 'KNN'"):
        knn.KNN  # noqa: B018


def test_without_faiss_the_search_is_that_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(knn.Neighbours().fit(np.eye(3))._search).__name__ == "_Faiss"
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert type(knn.Neighbours().fit(np.eye(3))._search).__name__ == "_Sklearn"
