"""The pictures: what the features look like, and how the training went."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from softtopk.experiments._drawing import save_figure
from softtopk.experiments.errors import require_modules
from softtopk.plotting.style import (
    CLASS_COLOURS,
    COLOURS,
    HEIGHT,
    LINES,
    SMALL,
    TEXT,
    TITLE,
    WIDTH,
    legend_beside,
    new_figure,
    standard_look,
)

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    Array = np.ndarray[Any, np.dtype[Any]]

Projection = Literal["tsne", "pca"]
PROJECTIONS: dict[Projection, str] = {"tsne": "t-SNE", "pca": "PCA"}
PERPLEXITY = 30.0  # of t-SNE, as its authors propose; less if there are few points

CLASS_MARKERS = "os^"  # the second is for the classes that the colours do not suffice for


@dataclass(frozen=True, eq=False)
class Panel:
    """The features of one representation."""

    title: str
    features: Array
    """(N, d)."""
    labels: Array
    """(N,), positions in the classes."""

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or min(self.features.shape) < 2:
            raise ValueError(
                f"features of shape {self.features.shape} in panel {self.title!r}: give (N, d) "
                "with N >= 2 and d >= 2"
            )
        if self.labels.shape != self.features.shape[:1]:
            raise ValueError(
                f"labels of shape {self.labels.shape} in panel {self.title!r}: give "
                f"{self.features.shape[:1]}, one for each row of the features"
            )


@dataclass(frozen=True)
class Curve:
    """How the training of one method went."""

    epochs: Sequence[int]
    loss: Sequence[float]
    """Mean over the batches of each epoch."""
    accuracy: Sequence[float]
    """From 0 to 1, of each epoch."""

    def __post_init__(self) -> None:
        lengths = len(self.epochs), len(self.loss), len(self.accuracy)
        if len(set(lengths)) != 1 or not lengths[0]:
            raise ValueError(
                f"epochs, loss and accuracy of lengths {lengths}: give one loss and one accuracy "
                "for each epoch, and one epoch at least"
            )


def draw_features(
    panels: Sequence[Panel],
    classes: Sequence[str],
    path: Path,
    *,
    projection: Projection = "tsne",
    title: str = "",
    seed: int = 0,
    limit: int = 2000,
) -> Path:
    """Draw features in the plane, a colour for each class, and return the path.

    Args:
        panels: To draw side by side.
        classes: Their names. They are beside the points if they do not cover each other there,
            and otherwise in a legend.
        path: Where to write it.
        projection: How to get to two dimensions.
        title: Above all panels.
        seed: Of the choice of the points, and of t-SNE.
        limit: Draw this many points of each panel, chosen at random, the same in all panels of the
            same length.
    """
    if not panels:
        raise ValueError("no panels: give one at least")
    if projection not in PROJECTIONS:
        raise ValueError(f"projection = {projection!r}: give {' or '.join(map(repr, PROJECTIONS))}")
    require_modules("matplotlib", what="a picture")
    require_modules("sklearn", what=f"a picture by {PROJECTIONS[projection]}")
    with standard_look():
        figure = _features_figure(
            panels, classes, projection=projection, title=title, seed=seed, limit=limit
        )
        return save_figure(figure, path)


def draw_curves(
    curves: Mapping[str, Curve], path: Path, *, accuracy: str = "accuracy on the training batches"
) -> Path:
    """Draw loss and accuracy against the epoch, a line for each method, and return the path.

    Args:
        curves: By the name of the method.
        path: Where to write it.
        accuracy: What the accuracies are, to write above them.
    """
    if not curves:
        raise ValueError("no curves: give one at least")
    require_modules("matplotlib", what="a picture")
    with standard_look():
        return save_figure(_curves_figure(curves, accuracy), path)


def _features_figure(
    panels: Sequence[Panel],
    classes: Sequence[str],
    *,
    projection: Projection,
    title: str,
    seed: int,
    limit: int,
) -> Figure:
    width = WIDTH * max(1.0, len(panels) / 2)
    figure = new_figure(columns=len(panels), size=(width, min(HEIGHT, width / len(panels) + 0.4)))
    names = []
    for panel, axes in zip(panels, figure.axes, strict=True):
        chosen = _choose(len(panel.labels), limit, seed)
        labels = panel.labels[chosen]
        points = _in_plane(panel.features[chosen], projection, seed)
        _scatter(axes, points, labels, classes)
        axes.set_title(panel.title, fontsize=TEXT)
        axes.set(xticks=[], yticks=[])  # the axes of an embedding mean nothing
        names.append(_name_classes(axes, points, labels, classes))
    if title:
        figure.suptitle(title, fontsize=TITLE)
    # Room for the names is known only when everything has its place.
    figure.draw_without_rendering()
    if any(_overlap(texts) for texts in names):
        for text in (text for texts in names for text in texts):
            text.remove()
        _class_legend(figure, classes)
    return figure


def _choose(n: int, limit: int, seed: int) -> Array:
    """Indices of at most `limit` of `n` points, in ascending order."""
    import numpy as np

    return np.sort(np.random.default_rng(seed).permutation(n)[:limit])


def _in_plane(features: Array, projection: Projection, seed: int) -> Array:
    """(N, d) -> (N, 2)."""
    import numpy as np
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    if not np.ptp(features, axis=0).any():  # all the same, as after a training that collapsed
        return np.zeros((len(features), 2))
    if projection == "pca":
        return PCA(2, random_state=seed).fit_transform(features)
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
    # Its loops are so short that the threads wait for each other: on a machine with other work to
    # do two of them take many times as long as one.
    with threadpool_limits(1):
        return tsne.fit_transform(features)


def _class_style(index: int) -> dict[str, Any]:
    colours = len(CLASS_COLOURS)
    return {
        "color": CLASS_COLOURS[index % colours],
        "marker": CLASS_MARKERS[index // colours % len(CLASS_MARKERS)],
    }


def _scatter(axes: Axes, points: Array, labels: Array, classes: Sequence[str]) -> None:
    size = 14 if len(points) <= 500 else 6
    for index, name in enumerate(classes):
        x, y = points[labels == index].T
        axes.scatter(x, y, s=size, lw=0, alpha=0.8, label=name, **_class_style(index))


def _name_classes(axes: Axes, points: Array, labels: Array, classes: Sequence[str]) -> list[Text]:
    """Write the name of each class that has points in the middle of them."""
    import numpy as np

    texts = []
    for index, name in enumerate(classes):
        if not (labels == index).any():
            continue
        x, y = np.median(points[labels == index], axis=0)
        # The frame tells the colour where the classes lie among each other.
        frame = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": _class_style(index)["color"]}
        texts.append(axes.text(x, y, name, fontsize=SMALL, ha="center", va="center", bbox=frame))
    return texts


def _overlap(texts: Sequence[Text]) -> bool:
    frames = [text.get_bbox_patch() for text in texts]
    boxes = [frame.get_window_extent() for frame in frames if frame is not None]
    return any(a.overlaps(b) for a, b in combinations(boxes, 2))


def _class_legend(figure: Figure, classes: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], ls="", ms=6, label=name, **_class_style(index))
        for index, name in enumerate(classes)
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=SMALL)


def _curves_figure(curves: Mapping[str, Curve], accuracy: str) -> Figure:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = new_figure(columns=2)
    left, right = figure.axes
    styles = zip(cycle(COLOURS), cycle(LINES), strict=False)
    for (name, curve), (colour, line) in zip(curves.items(), styles, strict=False):
        for axes, values in ((left, curve.loss), (right, curve.accuracy)):
            axes.plot(
                curve.epochs,
                values,
                color=colour,
                linestyle=line,
                marker="o" if len(curve.epochs) == 1 else "",  # a line of one point is not seen
                ms=4,
                lw=1.5,
                label=name,
            )
    for axes, label in ((left, "training loss"), (right, accuracy)):
        axes.set_title(label, fontsize=TEXT)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_formatter(PercentFormatter(1.0))
    last = {name: curve.accuracy[-1] for name, curve in curves.items()}
    legend_beside(right, {name: -1.0 if math.isnan(x) else x for name, x in last.items()})
    return figure
