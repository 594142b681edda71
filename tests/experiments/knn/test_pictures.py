"""The pictures, by what is in the figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from softtopk.experiments import _drawing
from softtopk.experiments.errors import UsageError
from softtopk.experiments.knn import _pictures
from softtopk.experiments.knn._pictures import Curve, Panel, draw_curves, draw_features
from softtopk.plotting.style import CLASS_COLOURS, COLOURS

CLASSES = tuple("abcd")
LABELS = np.arange(80) % 4
CORNERS = 50.0 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])
NOISE = np.random.default_rng(0).normal(size=(80, 3))
APART = Panel("apart", CORNERS[LABELS] + NOISE, LABELS)
TOGETHER = Panel("together", NOISE, LABELS)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were written."""
    seen = []

    def save(figure: Figure, path: Path) -> Path:
        seen.append(figure)
        return _drawing.save_figure(figure, path)

    monkeypatch.setattr(_pictures, "save_figure", save)
    return seen


def counts(axes: Axes) -> list[int]:
    return [len(points.get_offsets()) for points in axes.collections]


@pytest.mark.parametrize("projection", ["pca", "tsne"])
def test_features(projection: Any, figures: list[Figure], tmp_path: Path) -> None:
    path = tmp_path / "new" / "features.png"
    assert draw_features([APART], CLASSES, path, projection=projection, title="Title") == path
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["features.png"]
    (axes,) = figures[0].axes
    assert (axes.get_title(), figures[0].get_suptitle()) == ("apart", "Title")
    assert counts(axes) == [20] * 4
    colours = [to_hex(points.get_facecolor()[0]).upper() for points in axes.collections]
    assert colours == list(CLASS_COLOURS[:4])


def test_names_are_in_the_middle_of_their_class(figures: list[Figure], tmp_path: Path) -> None:
    draw_features([APART], CLASSES, tmp_path / "x.png", projection="pca")
    (axes,) = figures[0].axes
    assert [text.get_text() for text in axes.texts] == list(CLASSES)
    assert not figures[0].legends
    for text, points in zip(axes.texts, axes.collections, strict=True):
        middle = np.median(np.asarray(points.get_offsets()), axis=0)
        np.testing.assert_allclose(text.get_position(), middle)


def test_names_that_would_cover_each_other_are_in_a_legend(
    figures: list[Figure], tmp_path: Path
) -> None:
    draw_features([APART, TOGETHER], CLASSES, tmp_path / "x.png", projection="pca")
    (figure,) = figures
    assert [axes.get_title() for axes in figure.axes] == ["apart", "together"]
    assert not any(axes.texts for axes in figure.axes)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(CLASSES)


def test_the_points_are_a_choice(figures: list[Figure], tmp_path: Path) -> None:
    def drawn(seed: int, limit: int = 30) -> list[np.ndarray]:
        panels = [APART, Panel("again", APART.features, LABELS)]
        path = tmp_path / "x.png"
        draw_features(panels, CLASSES, path, projection="pca", seed=seed, limit=limit)
        parts = [[p.get_offsets() for p in axes.collections] for axes in figures[-1].axes]
        # Each with its own label: the classes are far apart, and stay so.
        assert all(group.std(0).max() < 5 for part in parts for group in part)
        return [np.concatenate(part) for part in parts]

    left, right = drawn(0)
    assert len(left) == 30
    np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(left, drawn(0)[0])
    assert not np.array_equal(left, drawn(1)[0])
    assert len(drawn(0, limit=1000)[0]) == 80


def test_pca_is_that_of_the_chosen_points(figures: list[Figure], tmp_path: Path) -> None:
    draw_features([APART], CLASSES, tmp_path / "x.png", projection="pca")
    offsets = np.concatenate([p.get_offsets() for p in figures[0].axes[0].collections])
    centred = APART.features - APART.features.mean(0)
    variances = np.linalg.svd(centred, compute_uv=False)[:2] ** 2 / len(centred)
    np.testing.assert_allclose(offsets.var(0), variances, rtol=1e-6)


def test_tsne_separates_what_is_apart(figures: list[Figure], tmp_path: Path) -> None:
    draw_features([APART], CLASSES, tmp_path / "x.png", projection="tsne")
    groups = [np.asarray(p.get_offsets()) for p in figures[0].axes[0].collections]
    centres = np.array([group.mean(0) for group in groups])
    for index, group in enumerate(groups):
        distances = np.linalg.norm(group[:, None] - centres, axis=2)
        assert (distances.argmin(1) == index).all()


@pytest.mark.parametrize("projection", ["pca", "tsne"])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_few_points_and_absent_classes(
    projection: Any, n: int, figures: list[Figure], tmp_path: Path
) -> None:
    panel = Panel("few", NOISE[:n], np.zeros(n, int))
    draw_features([panel], CLASSES, tmp_path / "x.png", projection=projection)
    assert counts(figures[0].axes[0]) == [n, 0, 0, 0]
    assert [text.get_text() for text in figures[0].axes[0].texts] == ["a"]


@pytest.mark.parametrize("projection", ["pca", "tsne"])
def test_collapsed_features(projection: Any, figures: list[Figure], tmp_path: Path) -> None:
    panel = Panel("collapsed", np.ones((80, 3)), LABELS)
    draw_features([panel], CLASSES, tmp_path / "x.png", projection=projection)
    for points in figures[0].axes[0].collections:
        assert not points.get_offsets().any()
    assert figures[0].legends


def test_more_classes_than_colours(figures: list[Figure], tmp_path: Path) -> None:
    assert len(set(CLASS_COLOURS)) == 10
    styles = [tuple(_pictures._class_style(index).items()) for index in range(30)]
    assert len(set(styles)) == 30
    labels = np.arange(80) % 13
    panel = Panel("many", NOISE, labels)
    draw_features([panel], list(map(str, range(13))), tmp_path / "x.png", projection="pca")
    assert len(counts(figures[0].axes[0])) == 13


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (NOISE[:, :1], LABELS, r"features of shape \(80, 1\) in panel 'x': give \(N, d\) with"),
        (NOISE[:1], LABELS[:1], r"features of shape \(1, 3\) in panel 'x'"),
        (NOISE[:, 0], LABELS, r"features of shape \(80,\)"),
        (NOISE, LABELS[1:], r"labels of shape \(79,\) in panel 'x': give \(80,\)"),
    ],
)
def test_wrong_panels(features: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Panel("x", features, labels)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no panels: give one at least"):
        draw_features([], CLASSES, tmp_path / "x.png")
    with pytest.raises(ValueError, match="projection = 'umap': give 'tsne' or 'pca'"):
        draw_features([APART], CLASSES, tmp_path / "x.png", projection="umap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no curves: give one at least"):
        draw_curves({}, tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"of lengths \(2, 1, 2\): give one loss"):
        Curve([1, 2], [0.5], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"of lengths \(0, 0, 0\)"):
        Curve([], [], [])
    assert list(tmp_path.iterdir()) == []


CURVES = {
    "worse": Curve([1, 2, 3], [2.0, 1.5, 1.2], [0.3, 0.5, 0.6]),
    "lost": Curve([1, 2], [2.0, float("nan")], [0.1, float("nan")]),
    "better": Curve([1, 2, 3], [2.0, 1.0, 0.5], [0.3, 0.8, 0.9]),
}


def test_curves(figures: list[Figure], tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    assert draw_curves(CURVES, path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    left, right = figures[0].axes
    assert left.get_title() == "training loss"
    assert right.get_title() == "accuracy on the training batches"
    for axes, name in ((left, "loss"), (right, "accuracy")):
        assert axes.get_xlabel() == "epoch"
        lines = {line.get_label(): line for line in axes.lines}
        assert list(lines) == list(CURVES)
        for label, curve in CURVES.items():
            np.testing.assert_array_equal(lines[label].get_xdata(), curve.epochs)
            np.testing.assert_array_equal(lines[label].get_ydata(), getattr(curve, name))
        assert [line.get_color() for line in axes.lines] == list(COLOURS[:3])
    legend = right.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["better", "worse", "lost"]
    assert right.yaxis.get_major_formatter()(0.5) == "50%"


def test_one_epoch_is_seen(figures: list[Figure], tmp_path: Path) -> None:
    draw_curves({"x": Curve([1], [2.0], [0.5])}, tmp_path / "x.png", accuracy="test accuracy")
    assert all(axes.lines[0].get_marker() == "o" for axes in figures[0].axes)
    assert figures[0].axes[1].get_title() == "test accuracy"


def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"old")

    def fail(self: Figure, draft: Path, **_: Any) -> None:
        draft.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space left"):
        draw_curves(CURVES, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("matplotlib", r"needs matplotlib: pip install 'softtopk\[plot\]'"),
        ("sklearn", r"t-SNE needs scikit-learn: pip install 'softtopk\[knn\]'"),
    ],
)
def test_without_optional_modules(
    module: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=message):
        draw_features([APART], CLASSES, tmp_path / "x.png")


def test_importing_loads_no_optional_dependency() -> None:
    import subprocess

    code = (
        "import softtopk.experiments.knn._pictures, softtopk.experiments.images, sys; "
        "print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(loaded) & {"matplotlib", "sklearn", "PIL", "scipy"}
