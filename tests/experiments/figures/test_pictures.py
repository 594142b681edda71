"""What the figures show: read back from the picture and compared with the numbers, by panel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from softtopk.experiments.figures import CATALOGUE, _convergence
from softtopk.plotting import Convergence
from softtopk.plotting.style import BLUE, GREEN, VERMILION

DOCS = Path(__file__).parents[3] / "docs" / "figures"


def drawn(name: str) -> tuple[Any, Figure]:
    exhibit = CATALOGUE[name]
    data = exhibit.make()
    return data, exhibit.draw(data)


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def points(axes: Axes) -> dict[str, np.ndarray]:
    """Where the points of each colour are, from left to right."""
    found = {}
    for part in axes.collections:
        offsets = np.asarray(part.get_offsets())
        if len(offsets) and len(part.get_facecolor()) == 1:
            found[to_hex(part.get_facecolor()[0]).upper()] = offsets[offsets[:, 0].argsort()]
    return found


def test_indicator() -> None:
    data, figure = drawn("indicator")
    assert titles(figure) == ["hard top-1", "SOFT top-1, eps = 0.5", "SOFT top-1, eps = 2"]
    hard, *soft = figure.axes
    for i, line in enumerate(hard.lines):
        x, y = line.get_data()
        gap = np.isnan(y)
        assert gap.sum() == 1  # not joined at the jump
        assert_array_equal(x[~gap], data.moving)
        assert_array_equal(y[~gap], data.hard[:, i])
    assert [text.get_text() for text in hard.get_legend().get_texts()] == ["$A_{1}$", "$A_{2}$"]
    for axes, selected in zip(soft, data.soft.values(), strict=True):
        for i, line in enumerate(axes.lines):
            assert_array_equal(line.get_data(), [data.moving, selected[:, i]])
    for axes in figure.axes:
        assert [line.get_color() for line in axes.lines] == [BLUE, VERMILION]


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("plan", ["0\nthe 5 smallest", "1\nthe others"]),
        ("sorted_plan", ["0\nthe smallest", "1\nthe second", "2\nthe others"]),
    ],
)
def test_plans(name: str, below: list[str]) -> None:
    data, figure = drawn(name)
    assert titles(figure) == ["without regularisation", "eps = 0.5"]
    for axes, plan in zip(figure.axes, (data.hard, data.soft), strict=True):
        assert [text.get_text() for text in axes.texts[:7]] == [f"{x:g}" for x in data.scores]
        assert [text.get_text() for text in axes.texts[7:]] == below
        places = axes.collections[-1].get_offsets()[:, 0].tolist()
        assert places == sorted(places)
        shown = np.zeros(plan.shape)
        for lines in axes.collections[:-2]:
            colour = to_hex(lines.get_edgecolor()[0][:3]).upper()
            for ((start, _), (end, _)), width in zip(
                lines.get_segments(), lines.get_linewidths(), strict=True
            ):
                j = int(np.argmin(np.abs(np.array(places) - end)))
                assert colour == (BLUE, VERMILION, GREEN)[j]
                shown[int(start), j] = width
        shown /= shown.sum(1).max()
        assert_allclose(shown, 7 * plan, atol=0.02)  # the thinnest are left out


def test_temperatures() -> None:
    data, figure = drawn("temperatures")
    above, below, (bar,) = figure.axes[:4], figure.axes[4:8], figure.axes[8:]
    assert [a.get_title() for a in above] == [
        "eps = 0.001",
        "eps = 0.005",
        "eps = 0.01",
        "eps = 0.05",
    ]
    assert bar.get_ylabel() == "mass"
    for axes, eps in zip(above, data.plans, strict=True):
        image = axes.collections[0]
        assert_allclose(image.get_array(), data.plans[eps].T)
        assert image.get_clim() == (0.0, 0.02)
        assert axes.get_ylim() == (2, 0)  # the anchor 0 above
    assert [label.get_text() for label in above[0].get_yticklabels()] == ["0", "1"]
    for axes, selected in zip(below, data.selected.values(), strict=True):
        shown = np.stack([data.scores, selected], -1)
        found = points(axes)
        assert_allclose(found[BLUE], shown[:5])  # the smallest
        assert_allclose(found[VERMILION], shown[5:])


def test_knn() -> None:
    data, figure = drawn("knn")
    plane, selection, vote = figure.axes
    for label, colour in enumerate((BLUE, VERMILION, GREEN)):
        chosen = data.labels == label
        for axes, x, y in (
            (plane, *data.templates[chosen].T),
            (selection, data.distances[chosen], data.selected[chosen]),
        ):
            shown = np.stack([x, y], -1)
            assert_allclose(points(axes)[colour], shown[shown[:, 0].argsort()])
    lines, star = plane.collections[-2:]
    assert_allclose(star.get_offsets(), [data.query])
    assert len(lines.get_segments()) == (data.selected >= 0.01).sum()
    assert_allclose([bar.get_height() for bar in vote.patches], data.votes)
    names = [text.get_text() for text in plane.get_legend().get_texts()]
    assert names == [label.get_text() for label in vote.get_xticklabels()] == ["a", "b", "c"]


def test_gradient() -> None:
    data, figure = drawn("gradient")
    assert titles(figure) == ["I = {0, 1, 2}", "I = {2, 3, 4}"]
    for axes, push in zip(figure.axes, data.pushes, strict=True):
        arrows = axes.collections[-1]
        assert_allclose(arrows.U / abs(arrows.U).max(), push.gradient / push.gradient.abs().max())
        assert_allclose(arrows.get_offsets(), np.stack([data.scores, data.selected], -1))
        inside = [to_hex(c).upper() == VERMILION for c in arrows.get_facecolor()]
        assert [i for i in range(10) if inside[i]] == list(push.members)
        assert_array_equal(points(axes)[VERMILION][:, 0], push.members)
    left, right = figure.axes
    assert left.get_xlim() == right.get_xlim()


def test_bias() -> None:
    data, figure = drawn("bias")
    for axes, part in zip(figure.axes, data, strict=True):
        assert axes.get_title() == f"{part.title}\nk = {part.k}, gap {part.gap:.2g}"
        lines = {line.get_label(): line for line in axes.lines}
        assert set(lines) == {"bias", "bound", "Theorem 2 of the paper"}
        assert_allclose(lines["bound"].get_data(), [part.eps, part.bound])
        stated = lines["Theorem 2 of the paper"].get_data()
        assert_allclose(stated, [part.eps, part.theorem_2])
        bias = np.where(part.bias > 0, part.bias, np.nan)
        assert_allclose(lines["bias"].get_data(), [part.eps, bias])
        low, high = axes.get_ylim()
        assert low < 1e-7
        assert high > max(part.bound.max(), part.theorem_2.max())


@pytest.fixture(scope="module")
def published() -> _convergence.Errors:
    """What the docs show."""
    old = json.loads((DOCS / "convergence.json").read_text())
    curves = [Convergence(**curve) for curve in old.pop("curves")]
    return _convergence.Errors(**old, curves=curves)


def test_convergence(published: _convergence.Errors) -> None:
    (axes,) = _convergence.draw(published).axes
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    for line, curve in zip(lines, published.curves, strict=True):
        eps = {1e-1: "0.1", 1e-3: "0.001", 1e-5: "1e-5"}[curve.eps]
        assert line.get_label() == f"{curve.solver}, eps = {eps}"
        assert_array_equal(line.get_data(), [curve.iterations, curve.errors])
    (default,) = (line for line in axes.lines if line not in lines)
    assert_array_equal(default.get_xdata(), [200, 200])


def test_the_words_of_the_docs_are_those_of_the_numbers(published: _convergence.Errors) -> None:
    caption = (DOCS / "convergence.caption.md").read_text()
    assert caption.split() == _convergence.caption(published).split()
    exact = [curve for curve in published.curves if curve.solver == "exact solver"]
    sinkhorn = {curve.eps: curve for curve in published.curves if curve.solver == "Sinkhorn"}
    assert f"takes at most {max(len(c.errors) for c in exact)} steps" in " ".join(caption.split())
    assert f"error of about {max(c.errors[-1] for c in exact):.0e};" in " ".join(caption.split())
    page = " ".join((DOCS.parent / "benchmark_results.md").read_text().split())
    assert f"done after at most {max(len(c.errors) for c in exact)}," in page
    # "200 iterations are enough at the highest only", also for far less than what is reached here
    at_200 = {eps: c.errors[sum(i <= 200 for i in c.iterations) - 1] for eps, c in sinkhorn.items()}
    assert at_200[1e-1] < 1e-6
    assert min(at_200[1e-3], at_200[1e-5]) > 0.1
