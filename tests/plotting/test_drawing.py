"""The drawing functions, by what they put into axes, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from softtopk import plotting, soft_topk
from softtopk.plotting import style

SCORES = torch.tensor([0.4, 0.7, 2.3, 1.9])
PLAN = torch.tensor([[0.25, 0.0], [0.15, 0.1], [0.0, 0.25], [0.001, 0.249]])


@pytest.fixture
def axes() -> Axes:
    return plotting.new_figure().axes[0]


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


# ------------------------------------------------------------------------------------------ style


def luminance(colour: str) -> float:
    """Of the colour on a screen, relative to white (ITU-R BT.709)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_colours_can_be_seen_on_white() -> None:
    """1.8 to 1 is what the palest of Okabe and Ito's, the orange and the sky blue, have."""
    for colour in style.COLOURS:
        assert 1.05 / (luminance(colour) + 0.05) > 1.8
    assert len(set(style.COLOURS)) == len(style.COLOURS)
    assert len(set(style.CLASS_COLOURS)) == len(style.CLASS_COLOURS)
    assert len(set(style.MARKERS)) == len(style.MARKERS)


# What someone without one kind of cones sees, in linear RGB (Vienot, Brettel and Mollon, 1999).
BLIND = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


@pytest.mark.parametrize("kind", BLIND)
def test_the_first_colours_stay_apart_under_colour_blindness(kind: str) -> None:
    """Those of the lines that are drawn in one picture. Red and green do not."""

    def seen(colour: str) -> np.ndarray:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) ** 2.2
        return np.clip(np.array(BLIND[kind]) @ rgb, 0, 1) ** (1 / 2.2)

    def nearest(colours: tuple[str, ...]) -> float:
        pairs = [(a, b) for i, a in enumerate(colours) for b in colours[:i]]
        return min(float(np.linalg.norm(seen(a) - seen(b))) for a, b in pairs)

    assert nearest(style.COLOURS[:3]) > 0.3
    assert nearest(("#FF0000", "#008000")) < 0.25


def test_a_figure_has_its_axes_and_leaves_the_settings_alone() -> None:
    before = dict(rcParams)
    figure = plotting.new_figure(3, 2, size=(5.0, 4.0))
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 6
    assert figure.get_size_inches().tolist() == [5.0, 4.0]
    for axes in figure.axes:
        assert not axes.spines["top"].get_visible()
        assert axes.spines["left"].get_visible()
    assert dict(rcParams) == before
    assert plt.get_fignums() == []  # none that pyplot would keep in memory


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (1e-5, "1e-5"), (2.0, "2"), (1e8, "1e8"), (1e-12, "1e-12")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert style.short(value) == text


def test_the_legend_is_in_the_order_of_the_heights(axes: Axes) -> None:
    for name in "abc":
        axes.plot([0, 1], label=name)
    plotting.legend_beside(axes, {"a": 2.0, "b": 3.0, "c": 1.0})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["b", "a", "c"]
    plotting.legend_beside(axes)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "c"]


def test_importing_needs_no_matplotlib_and_drawing_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from softtopk import plotting\n"
        "try: plotting.new_figure()\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "a figure needs matplotlib: pip install 'softtopk[plot]'\n"


# ------------------------------------------------------------------------------------------- data


@pytest.fixture
def pyplot_axes() -> Iterator[Axes]:
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


@pytest.mark.parametrize(
    "give",
    [
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.half(),
        lambda x: x.clone().requires_grad_(),
    ],
    ids=["list", "array", "half", "gradient"],
)
def test_data_of_any_kind_in_axes_of_pyplot(give: Any, pyplot_axes: Axes) -> None:
    selected = soft_topk(SCORES, 2, eps=1.0)
    plotting.draw_selection(pyplot_axes, give(SCORES), give(selected))
    (points,) = pyplot_axes.collections
    shown = np.stack([SCORES.numpy(), selected.numpy()], 1)
    np.testing.assert_allclose(points.get_offsets(), shown, atol=1e-3)
    assert not pyplot_axes.spines["top"].get_visible()


ONES = torch.ones(4)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda a: plotting.draw_selection(a, SCORES, torch.ones(3)),
            r"selected must have the shape \(4,\), got \(3,\)",
        ),
        (
            lambda a: plotting.draw_selection(a, [], []),
            r"scores must have the shape \(n,\), got \(0,\)",
        ),
        (
            lambda a: plotting.draw_selection(a, SCORES, [0.0, float("nan"), 1.0, 1.0]),
            "selected must be finite to be drawn, found nan",
        ),
        (
            lambda a: plotting.draw_selection(a, SCORES, ONES, groups=[0, 0, -1, 0]),
            "groups must not be negative, found -1",
        ),
        (
            lambda a: plotting.draw_selection(a, SCORES, ONES, groups=[True]),
            r"groups must have the shape \(4,\), got \(1,\)",
        ),
        (
            lambda a: plotting.draw_plan(a, SCORES, [0, 1], PLAN.T),
            r"plan must have the shape \(4, 2\), got \(2, 4\)",
        ),
        (
            lambda a: plotting.draw_plan(a, SCORES, [0, 1], -PLAN),
            "plan must not be negative, found -0.25",
        ),
        (
            lambda a: plotting.draw_plan(a, SCORES, [0, 1], torch.zeros(4, 2)),
            "plan must have some mass",
        ),
        (
            lambda a: plotting.draw_plan(a, SCORES, [0, 1], PLAN, names=["first"]),
            r"names must be a list with one for each of 2 anchors, got \['first'\]",
        ),
        (
            lambda a: plotting.draw_plan(a, SCORES, [0, 1], PLAN, names="ab"),
            "names must be a list with one for each of 2 anchors, got 'ab'",
        ),
        (
            lambda a: plotting.draw_plan_map(a, PLAN, anchors=[0, 1, 2]),
            r"anchors must have the shape \(2,\), got \(3,\)",
        ),
        (
            lambda a: plotting.draw_indicator(a, [0, 1], torch.ones(3, 2)),
            r"selected must have the shape \(2, n\), got \(3, 2\)",
        ),
        (
            lambda a: plotting.draw_bias(a, [0.0, 1.0], [0, 1], [0, 1]),
            "eps must be positive, found 0",
        ),
        (lambda a: plotting.draw_convergence(a, []), "curves must have one at least, got none"),
        (
            lambda a: plotting.draw_convergence(a, [plotting.Convergence("x", 1.0, [0], [1.0])]),
            "iterations must be at least 1, found 0",
        ),
        (
            lambda a: plotting.draw_neighbours(a, torch.ones(4, 3), [0, 0], ONES, [0] * 4),
            r"points must have the shape \(n, 2\), got \(4, 3\)",
        ),
        (
            lambda a: plotting.draw_votes(a, [0.5, 0.5], names=["a"]),
            r"names must be a list with one for each of 2 classes",
        ),
        (
            lambda a: plotting.draw_attention(a, PLAN, ["a"], ["b"]),
            r"weights must have the shape \(1, 1\), got \(4, 2\)",
        ),
    ],
)
def test_wrong_data_is_named(draw: Any, message: str, axes: Axes) -> None:
    with pytest.raises(ValueError, match=message):
        draw(axes)
    assert not axes.has_data()


def test_groups_are_no_fractions(axes: Axes) -> None:
    with pytest.raises(TypeError, match=r"groups must be boolean or integers, got torch.float32"):
        plotting.draw_selection(axes, SCORES, SCORES, groups=SCORES)


# --------------------------------------------------------------------------------------- pictures


def test_lines_of_a_plan_are_as_wide_as_their_mass(axes: Axes) -> None:
    plotting.draw_plan(axes, SCORES, [0, 1], PLAN)
    found = {(line.get_color(), line.get_xdata()[0]): line.get_linewidth() for line in axes.lines}
    whole = found[style.BLUE, 0]
    assert found == {
        (style.BLUE, 0): whole,
        (style.BLUE, 1): pytest.approx(0.6 * whole),
        (style.VERMILION, 1): pytest.approx(0.4 * whole),
        (style.VERMILION, 2): whole,
        (style.VERMILION, 3): pytest.approx(0.996 * whole),  # and no line for the rest of it
    }
    assert texts(axes) == ["0.4", "0.7", "2.3", "1.9", "0", "1"]
    _, anchors = axes.collections
    areas = anchors.get_sizes()
    assert areas[1] / areas[0] == pytest.approx(0.599 / 0.401)


def test_labels_of_a_plan_do_not_touch(axes: Axes) -> None:
    plotting.draw_plan(axes, SCORES, [0, 1], PLAN, names=["0\nthe others", "1\nthe 2 largest"])
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    frame = axes.figure.bbox
    assert all(frame.contains(b.x0, b.y0) and frame.contains(b.x1, b.y1) for b in boxes)


def test_the_map_of_a_plan_has_an_anchor_in_each_row(axes: Axes) -> None:
    image = plotting.draw_plan_map(axes, PLAN, anchors=[0, 1], most=0.5)
    np.testing.assert_array_equal(image.get_array(), PLAN.T.double())
    assert image.get_clim() == (0.0, 0.5)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert axes.yaxis_inverted()


def test_groups_have_colours_and_markers_of_their_own(axes: Axes) -> None:
    groups = torch.tensor([0, 2, 0, 1])
    plotting.draw_selection(axes, SCORES, ONES, groups=groups)
    for number, points in enumerate(axes.collections):
        assert to_hex(points.get_facecolor()[0]).upper() == style.COLOURS[number]
        np.testing.assert_allclose(points.get_offsets()[:, 0], SCORES[groups == number])
    assert len({points.get_paths()[0].vertices.shape for points in axes.collections}) > 1


def test_arrows_are_in_proportion_to_the_gradient(axes: Axes) -> None:
    scores, slope = torch.arange(4.0), torch.tensor([-2.0, 1.0, 0.0, 1.0])
    plotting.draw_gradient(axes, scores, ONES / 2, slope, groups=scores < 1)
    arrows = axes.collections[0]
    np.testing.assert_allclose(arrows.U / arrows.U[1], slope, atol=1e-12)
    assert not arrows.V.any()
    assert [to_hex(c).upper() for c in arrows.get_facecolor()[:2]] == [style.VERMILION, style.BLUE]
    low, high = axes.get_xlim()
    assert low < (scores + torch.from_numpy(arrows.U)).min()
    assert high > (scores + torch.from_numpy(arrows.U)).max()


def test_no_gradient_no_arrows(axes: Axes) -> None:
    plotting.draw_gradient(axes, SCORES, ONES, torch.zeros(4))
    assert not axes.collections[0].U.any()
    axes.figure.draw_without_rendering()


def test_one_score_can_be_drawn(axes: Axes) -> None:
    plotting.draw_gradient(axes, [1.0], [0.5], [2.0])
    axes.figure.draw_without_rendering()


def test_a_hard_indicator_is_not_joined_at_its_jump(axes: Axes) -> None:
    moving, hard = [-1.0, -0.5, 0.5, 1.0], [[0, 1], [0, 1], [1, 0], [1, 0]]
    plotting.draw_indicator(axes, moving, hard, hard=True)
    for line, before, after in zip(axes.lines, (0.0, 1.0), (1.0, 0.0), strict=True):
        x, y = line.get_data()
        np.testing.assert_array_equal(x, [-1.0, -0.5, np.nan, 0.5, 1.0])
        np.testing.assert_array_equal(y, [before, before, np.nan, after, after])


def test_the_bias_is_drawn_below_its_bound(axes: Axes) -> None:
    plotting.draw_bias(axes, [0.1, 1.0], [0.0, 0.1], [0.5, 5.0])
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert (lines["bias"] < lines["bound"]).all()
    assert (lines["bias"] > 0).all()  # zero has no place on the axis
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_curves_of_a_temperature_share_the_colour_and_those_of_a_solver_the_line(
    axes: Axes,
) -> None:
    curves = [
        plotting.Convergence(solver, eps, [1, 2], [1.0, 0.1])
        for solver in ("fast", "slow")
        for eps in (0.1, 1e-5)
    ]
    plotting.draw_convergence(axes, curves)
    looks = {
        line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in axes.lines
    }
    assert looks == {
        "fast, eps = 0.1": (style.BLUE, "o", "-"),
        "fast, eps = 1e-5": (style.VERMILION, "D", "-"),
        "slow, eps = 0.1": (style.BLUE, "o", "--"),
        "slow, eps = 1e-5": (style.VERMILION, "D", "--"),
    }


def test_a_query_is_joined_to_its_neighbours(axes: Axes) -> None:
    points = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    plotting.draw_neighbours(axes, points, [1.0, 1.0], [1.0, 0.25], [0, 1])
    widths = [line.get_linewidth() for line in axes.lines]
    assert widths[1] == pytest.approx(widths[0] / 4)
    for line, (x, y) in zip(axes.lines, points.tolist(), strict=True):
        assert [list(values) for values in line.get_data()] == [[1.0, x], [1.0, y]]


def test_votes_are_bars(axes: Axes) -> None:
    plotting.draw_votes(axes, [0.25, 0.75], names=["a", "b"])
    assert [bar.get_height() for bar in axes.patches] == [0.25, 0.75]
    assert texts(axes) == ["0.25", "0.75"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]
