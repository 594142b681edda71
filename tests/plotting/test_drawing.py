"""The drawing functions, by what they put into axes, and what they refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colormaps, rc_context, rcParams
from matplotlib import pyplot as plt
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


# What someone with one of the two common kinds sees, in linear RGB (Vienot, Brettel, Mollon 1999).
BLIND = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


@pytest.mark.parametrize("kind", BLIND)
def test_colours_stay_apart_under_colour_blindness(kind: str) -> None:
    def seen(colour: str) -> np.ndarray:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]) ** 2.2
        return np.clip(np.array(BLIND[kind]) @ rgb, 0, 1) ** (1 / 2.2)

    def nearest(colours: tuple[str, ...]) -> float:
        pairs = [(a, b) for i, a in enumerate(colours) for b in colours[:i]]
        return min(float(np.linalg.norm(seen(a) - seen(b))) for a, b in pairs)

    assert nearest(style.COLOURS[:3]) > 0.3  # more are in hardly any picture
    assert nearest(style.COLOURS) > 0.1
    confused = {
        "protanopia": ("#FF0000", "#5E5E00"),
        "deuteranopia": ("#C00000", "#6B6B00"),
    }
    assert nearest(confused[kind]) < 0.1  # the test can tell


def test_more_mass_is_darker() -> None:
    """So that the map needs no sense of colour."""
    shades = [to_hex(colour) for colour in colormaps[style.MASS](np.linspace(0, 1, 50))]
    assert (np.diff([luminance(shade) for shade in shades]) < 0).all()


def test_a_figure_has_its_axes_and_leaves_the_settings_alone() -> None:
    before = dict(rcParams)
    figure = plotting.new_figure(rows=2, columns=3, size=(5.0, 4.0))
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 6
    assert figure.get_size_inches().tolist() == [5.0, 4.0]
    for axes in figure.axes:
        assert not axes.spines["top"].get_visible()
        assert axes.spines["left"].get_visible()
        assert axes.get_xgridlines()[0].get_visible()
        assert axes.get_xgridlines()[0].get_alpha() < 0.5
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
    plotting.legend_beside(axes, {"c": 0.0})
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["c", "a", "b"]


def test_the_legend_is_on_the_page_of_pyplot_too(pyplot_axes: Axes) -> None:
    pyplot_axes.plot([0, 1], label="a long name")
    plotting.legend_beside(pyplot_axes)
    figure = pyplot_axes.figure
    figure.draw_without_rendering()
    legend, plot = pyplot_axes.get_legend().get_window_extent(), pyplot_axes.get_window_extent()
    assert figure.bbox.contains(legend.x1, legend.y1)
    assert legend.x0 >= plot.x1


def test_importing_needs_no_matplotlib_and_drawing_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from softtopk import plotting\n"
        "try: plotting.new_figure()\n"
        "except ImportError as error: print(error)"
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
        lambda x: x.numpy()[::-1].copy()[::-1],
        lambda x: np.broadcast_to(x.numpy(), (1, 4))[0],
        lambda x: x.numpy().astype(">f8"),
        lambda x: x.numpy().astype(np.longdouble),
        lambda x: x.numpy().astype(object),
        lambda x: x.bfloat16(),
        lambda x: x.to_sparse(),
    ],
    ids=[
        "list",
        "array",
        "half",
        "gradient",
        "reversed",
        "read-only",
        "big-endian",
        "long",
        "object",
        "bfloat16",
        "sparse",
    ],
)
def test_data_of_any_kind_in_axes_of_pyplot(give: Any, pyplot_axes: Axes) -> None:
    selected = soft_topk(SCORES, 2, eps=1.0)
    plotting.draw_selection(pyplot_axes, give(SCORES), give(selected))
    (points,) = pyplot_axes.collections
    shown = np.stack([SCORES.numpy(), selected.numpy()], 1)
    np.testing.assert_allclose(points.get_offsets(), shown, atol=1e-2)
    assert not pyplot_axes.spines["top"].get_visible()


def test_numbers_of_a_list_keep_their_digits(axes: Axes) -> None:
    plotting.draw_selection(axes, [16777217.0, 1e300], [1e-50, 1.0])
    offsets = axes.collections[0].get_offsets()
    assert offsets.tolist() == [[16777217.0, 1e-50], [1e300, 1.0]]


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
        (
            lambda a: plotting.draw_bias(a, [1.0, 0.1], [0.1, 0.1], [1.0, 1.0]),
            "eps must be in ascending order; sort it, and bias and bound with it",
        ),
        (
            lambda a: plotting.draw_bias(a, [0.1, 0.1], [0.1, 0.1], [1.0, 1.0]),
            "eps must be in ascending order",
        ),
        (
            lambda a: plotting.draw_bias(a, [1.0], [0.5], [0.0]),
            "bound must be positive, found 0",
        ),
        (
            lambda a: plotting.draw_convergence(a, plotting.Convergence("x", 1.0, [1], [0.0])),
            "errors must have one above zero",
        ),
        (
            lambda a: plotting.draw_bias(a, [1.0], [-0.5], [1.0]),
            "bias must not be negative, found -0.5",
        ),
        (
            lambda a: plotting.draw_convergence(a, plotting.Convergence("x", 1.0, [1], [-1.0])),
            "errors must not be negative, found -1",
        ),
        (
            lambda a: plotting.draw_indicator(a, [1.0, 0.0], torch.ones(2, 2)),
            "moving must be in ascending order; sort it, and selected with it",
        ),
        (
            lambda a: plotting.draw_plan_map(a, PLAN, most=0),
            "most must be positive and finite, got 0",
        ),
        (
            lambda a: plotting.draw_votes(a, [-0.2, 1.2]),
            "votes must not be negative, found -0.2",
        ),
        (
            lambda a: plotting.draw_attention(a, [[2.0]], ["a"], ["b"]),
            "weights must be from 0 to 1, found 2",
        ),
        (
            lambda a: plotting.draw_attention(a, torch.ones(0, 1), ["a"], []),
            "source and target must have a token each at least",
        ),
        (
            lambda a: plotting.draw_selection(a, SCORES, ONES, groups=[0, 1, 0, 1], names=["x"]),
            r"names must be a list with one for each number from 0 to 1, got \['x'\]",
        ),
        (
            lambda a: plotting.draw_selection(a, np.ma.masked_less(SCORES.numpy(), 1), ONES),
            "scores must have no masked entries, leave them out",
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


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (None, "got None"),
        ("abcd", "got 'abcd'"),
        (["a"] * 4, "got list of <U1"),
        (SCORES.to(torch.complex64), "got Tensor of complex64"),
        ([1.0, [2.0], 3.0, 4.0], r"got list \("),
        ({"a": 1}, "got dict"),
    ],
    ids=str,
)
def test_what_is_no_number_is_named(values: Any, found: str, axes: Axes) -> None:
    with pytest.raises(TypeError, match=f"gradient must be .*, {found}"):
        plotting.draw_gradient(axes, SCORES, ONES, values)


def test_groups_are_no_fractions(axes: Axes) -> None:
    with pytest.raises(TypeError, match=r"groups must be boolean or integers, got Tensor of float"):
        plotting.draw_selection(axes, SCORES, SCORES, groups=SCORES)
    plotting.draw_selection(axes, SCORES, SCORES, groups=np.arange(4, dtype=np.uint64))
    assert len(axes.collections) == 4


# --------------------------------------------------------------------------------------- pictures


def plan_lines(axes: Axes) -> dict[tuple[float, str], tuple[float, float]]:
    """Of each line: score and colour, and to them the end below and the width."""
    found = {}
    for lines in axes.collections[:-2]:
        colour = to_hex(lines.get_edgecolor()[0][:3]).upper()
        for path, width in zip(lines.get_segments(), lines.get_linewidths(), strict=True):
            (start, top), (end, bottom) = path
            assert (top, bottom) == (1.0, 0.0)
            found[start, colour] = end, width
    return found


def test_lines_of_a_plan_are_as_wide_as_their_mass(axes: Axes) -> None:
    plotting.draw_plan(axes, SCORES, [0, 1], PLAN)
    found = plan_lines(axes)
    first, second = found[0, style.BLUE][0], found[2, style.VERMILION][0]
    whole = found[0, style.BLUE][1]
    assert 4 < whole < 12
    assert found == {
        (0, style.BLUE): (first, whole),
        (1, style.BLUE): (first, pytest.approx(0.6 * whole)),
        (1, style.VERMILION): (second, pytest.approx(0.4 * whole)),
        (2, style.VERMILION): (second, whole),
        (3, style.VERMILION): (second, pytest.approx(0.996 * whole)),  # and none for the rest
    }
    assert texts(axes) == ["0.4", "0.7", "2.3", "1.9", "0", "1"]
    scores, anchors = axes.collections[-2:]
    np.testing.assert_array_equal(scores.get_offsets(), [[i, 1] for i in range(4)])
    np.testing.assert_allclose(anchors.get_offsets(), [[first, 0], [second, 0]])
    assert first < second
    areas = anchors.get_sizes()
    assert areas[1] / areas[0] == pytest.approx(0.599 / 0.401)
    colours = [to_hex(colour).upper() for colour in anchors.get_facecolor()]
    assert colours == [style.BLUE, style.VERMILION]


@pytest.mark.parametrize(("n", "m"), [(1, 1), (12, 1), (12, 2), (40, 3), (300, 20)])
def test_plans_of_any_size_have_readable_labels(n: int, m: int) -> None:
    axes = plotting.new_figure().axes[0]
    scores = torch.randn(n, generator=torch.Generator().manual_seed(0))
    plotting.draw_plan(axes, scores, range(m), torch.ones(n, m))
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    # Those of the anchors are below their discs, and all are on the page.
    radius = axes.collections[-1].get_sizes().max() ** 0.5 / 2 * axes.figure.dpi / 72
    edge = axes.transData.transform((0, 0))[1] - radius
    assert all(box.y1 < edge for box in boxes[-m:])
    page = axes.figure.bbox
    assert all(page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1) for box in boxes)


def test_names_of_anchors_are_below_them(axes: Axes) -> None:
    plotting.draw_plan(axes, SCORES, [0, 1], PLAN, names=["$the others", "two\nlines"])
    assert texts(axes)[-2:] == ["$the others", "two\nlines"]
    axes.figure.draw_without_rendering()  # a dollar sign is one


def test_rounding_below_zero_is_zero(axes: Axes) -> None:
    plotting.draw_plan_map(axes, PLAN - torch.tensor([[0.0, 1e-9]]))
    assert axes.collections[0].get_array().min() == 0.0


@pytest.mark.parametrize("share", [True, False])
def test_maps_in_shared_axes_point_downwards(share: bool) -> None:
    figure = Figure()
    both = figure.subplots(1, 2, sharey=share)
    for axes in both:
        plotting.draw_plan_map(axes, PLAN)
        plotting.draw_plan_map(axes, PLAN)
    assert all(axes.get_ylim() == (2, 0) for axes in both)


def test_the_map_of_a_plan_has_an_anchor_in_each_row(axes: Axes) -> None:
    image = plotting.draw_plan_map(axes, PLAN, anchors=[0, 1], most=0.5)
    np.testing.assert_array_equal(image.get_array(), PLAN.T.double())
    assert image.get_clim() == (0.0, 0.5)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert axes.yaxis_inverted()


def test_groups_have_colours_and_markers_of_their_own(axes: Axes) -> None:
    groups = torch.tensor([0, 2, 0, 1])
    selected = torch.tensor([0.1, 0.2, 0.3, 0.4])
    plotting.draw_selection(axes, SCORES, selected, groups=groups, names=["a", "b", "c"])
    for number, points in enumerate(axes.collections):
        assert to_hex(points.get_facecolor()[0]).upper() == style.COLOURS[number]
        shown = torch.stack([SCORES, selected], -1)[groups == number]
        np.testing.assert_allclose(points.get_offsets(), shown)
    shapes = {points.get_paths()[0].vertices.tobytes() for points in axes.collections}
    assert len(shapes) == 3
    assert axes.get_legend_handles_labels()[1] == ["a", "b", "c"]
    low, high = axes.get_ylim()
    assert -0.2 < low < 0
    assert 1 < high < 1.2


def test_what_is_above_one_is_seen(axes: Axes) -> None:
    """NeuralSort's A, for example."""
    plotting.draw_selection(axes, SCORES, [0.0, -0.5, 1.5, 1.0])
    low, high = axes.get_ylim()
    assert low < -0.5
    assert high > 1.5


def test_arrows_are_in_proportion_to_the_gradient(axes: Axes) -> None:
    scores, slope = torch.arange(4.0), torch.tensor([-2.0, 1.0, 0.0, 1.0])
    selected = torch.tensor([0.9, 0.8, 0.2, 0.1])
    plotting.draw_gradient(axes, scores, selected, slope, groups=scores < 1)
    *points, arrows = axes.collections
    # The longest is a fifth of the range of the scores, 0 to 3, and points to the left.
    np.testing.assert_allclose(arrows.U, 0.2 * 3 * slope / 2, atol=1e-12)
    assert not arrows.V.any()
    assert (arrows.angles, arrows.scale_units, arrows.scale) == ("xy", "xy", 1.0)
    np.testing.assert_allclose(arrows.get_offsets(), torch.stack([scores, selected], -1))
    found = np.concatenate([part.get_offsets() for part in points])
    np.testing.assert_allclose(sorted(found[:, 1]), sorted(selected))
    colours = [to_hex(colour).upper() for colour in arrows.get_facecolor()]
    assert colours == [style.VERMILION, *[style.BLUE] * 3]
    low, high = axes.get_xlim()
    assert low < -0.6
    assert high > 3.3


def test_arrows_leave_room_for_what_was_there(axes: Axes) -> None:
    axes.plot([-50, 50], [0, 1])
    plotting.draw_gradient(axes, SCORES, ONES, ONES)
    low, high = axes.get_xlim()
    assert low < -50
    assert high > 50


def test_no_gradient_no_arrows(axes: Axes) -> None:
    plotting.draw_gradient(axes, SCORES, ONES, torch.zeros(4))
    assert not axes.collections[-1].U.any()
    axes.figure.draw_without_rendering()


def test_one_score_can_be_drawn(axes: Axes) -> None:
    plotting.draw_gradient(axes, [1.0], [0.5], [2.0])
    axes.figure.draw_without_rendering()
    assert axes.collections[-1].U > 0


def test_the_smallest_of_gradients_has_a_direction(axes: Axes) -> None:
    slope = 1e-310 * torch.tensor([-1.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    plotting.draw_gradient(axes, SCORES, ONES, slope)
    assert np.sign(axes.collections[-1].U).tolist() == [-1.0, 1.0, 1.0, 0.0]


def test_lines_of_one_point_are_seen() -> None:
    figure = plotting.new_figure(columns=2)
    plotting.draw_indicator(figure.axes[0], [0.0], [[0.2, 0.8]])
    plotting.draw_bias(figure.axes[1], [1.0], [0.1], [0.5])
    for axes in figure.axes:
        assert all(line.get_marker() == "o" for line in axes.lines)


def test_a_hard_indicator_is_not_joined_at_its_jump(axes: Axes) -> None:
    moving, hard = [-1.0, -0.5, 0.5, 1.0], [[0, 1], [0, 1], [1, 0], [1, 0]]
    plotting.draw_indicator(axes, moving, hard, hard=True)
    for line, before, after in zip(axes.lines, (0.0, 1.0), (1.0, 0.0), strict=True):
        x, y = line.get_data()
        np.testing.assert_array_equal(x, [-1.0, -0.5, np.nan, 0.5, 1.0])
        np.testing.assert_array_equal(y, [before, before, np.nan, after, after])
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--"]  # not by colour alone


def test_the_bias_and_its_bound(axes: Axes) -> None:
    plotting.draw_bias(axes, [0.1, 1.0], [0.0, 0.1], [0.5, 5.0])
    assert 5 < axes.get_ylim()[1] < 50  # what is excluded takes no room
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert lines["bound"] == [0.5, 5.0]
    np.testing.assert_array_equal(lines["bias"], [np.nan, 0.1])  # zero has no place on the axis
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (excluded,) = axes.collections
    corners = excluded.get_paths()[0].vertices[:4].tolist()
    assert corners == [[0.1, 1e300], [0.1, 0.5], [1.0, 5.0], [1.0, 1e300]]


def test_curves_of_a_temperature_share_the_colour_and_those_of_a_solver_the_line(
    axes: Axes,
) -> None:
    curves = [
        plotting.Convergence(solver, eps, [1, 2], [0.1, 0.0])
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
    for line in axes.lines:
        assert line.get_xdata().tolist() == [1, 2]
        np.testing.assert_array_equal(line.get_ydata(), [0.1, np.nan])
        filled = line.get_markerfacecolor() == line.get_color()
        assert filled == line.get_label().startswith("fast")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_one_curve_need_not_be_in_a_list(axes: Axes) -> None:
    plotting.draw_convergence(axes, plotting.Convergence("x", 1.0, [1, 2], [0.5, 0.1]))
    assert axes.lines[0].get_ydata().tolist() == [0.5, 0.1]


def test_a_query_is_joined_to_its_neighbours(axes: Axes) -> None:
    points = torch.tensor([[0.0, 1.0], [2.0, 0.0], [5.0, 5.0]])
    query = [1.0, 3.0]
    plotting.draw_neighbours(axes, points, query, [1.0, 0.0, 0.25], [0, 1, 1], names=["a", "b"])
    first, second, lines, star = axes.collections
    ends = [segment.tolist() for segment in lines.get_segments()]
    assert ends == [[query, point] for point in points[::2].tolist()]  # none for a share of zero
    widths = lines.get_linewidths()
    assert widths[1] == pytest.approx(widths[0] / 4)
    assert lines.get_alpha().tolist() == [1.0, 0.25]
    np.testing.assert_array_equal(first.get_offsets(), points[:1])
    np.testing.assert_array_equal(second.get_offsets(), points[1:])
    np.testing.assert_array_equal(star.get_offsets(), [query])
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]


def test_votes_are_bars(axes: Axes) -> None:
    plotting.draw_votes(axes, [0.25, 0.75], names=["a", "b"])
    assert [bar.get_height() for bar in axes.patches] == [0.25, 0.75]
    colours = [to_hex(bar.get_facecolor()).upper() for bar in axes.patches]
    assert colours == [style.BLUE, style.VERMILION]
    assert texts(axes) == ["0.25", "0.75"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b"]


def test_attention(axes: Axes) -> None:
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])
    image = plotting.draw_attention(axes, weights, ["$a", "b", "c"], ["x", "y"])
    np.testing.assert_allclose(image.get_array(), weights)
    assert image.get_clim() == (0.0, 1.0)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$a", "b", "c"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
    axes.figure.draw_without_rendering()


def test_a_dark_background_hides_nothing() -> None:
    with plt.style.context("dark_background"):
        figure = plotting.new_figure(columns=2)
        left, right = figure.axes
        plotting.draw_plan(left, SCORES, [0, 1], PLAN)
        plotting.draw_neighbours(right, PLAN, [0.0, 0.0], ONES, [0] * 4)
    assert to_hex(left.collections[-1].get_edgecolor()[0]) == "#ffffff"
    assert to_hex(left.collections[-2].get_facecolor()[0]) == "#000000"
    assert to_hex(right.collections[-1].get_facecolor()[0]) == "#ffffff"


def test_plain_numbers(axes: Axes) -> None:
    axes.set_xscale("log")
    style.plain_numbers(axes.xaxis)
    axes.set_xlim(0.05, 5000)
    axes.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_xticklabels(which="both")]
    assert {"0.1", "1", "1,000"} <= set(labels)
    assert all(text in ("", "0.01", "0.1", "1", "10", "100", "1,000", "10,000") for text in labels)


# ----------------------------------------------------------------------------------- axes of others


@pytest.mark.parametrize(
    "draw",
    [
        lambda a, high: plotting.draw_selection(a, [0.0, 1.0], [0.0, high]),
        lambda a, high: plotting.draw_indicator(a, [0.0, 1.0], [[0.0, high], [high, 0.0]]),
        lambda a, high: plotting.draw_votes(a, [0.0, high]),
        lambda a, high: plotting.draw_gradient(a, [0.0, 1.0], [0.0, high], [1.0, 0.0]),
    ],
    ids=["selection", "indicator", "votes", "gradient"],
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "twice"])
def test_what_was_drawn_before_stays_in_view(draw: Any, shared: bool) -> None:
    panels = Figure().subplots(1, 2, sharey=True) if shared else [plotting.new_figure().axes[0]] * 2
    draw(panels[0], 5.0)
    draw(panels[1], 1.0)
    low, high = panels[0].get_ylim()
    assert high > 5.0
    assert low <= 0.0


def test_plans_of_two_sizes_in_shared_axes() -> None:
    panels = Figure().subplots(2, 1, sharex=True)
    for axes, n in zip(panels, (30, 7), strict=True):
        plotting.draw_plan(axes, torch.arange(n), [0, 1], torch.ones(n, 2))
    low, high = panels[0].get_xlim()
    assert low < 0
    assert high > 29


def test_neighbours_in_shared_axes() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    plotting.draw_neighbours(left, [[0, 1], [2, 0]], [1, 1], [1.0, 0.5], [0, 1])
    plotting.draw_neighbours(right, [[0, 1], [2, 0]], [1, 1], [1.0, 0.5], [0, 1])
    figure.draw_without_rendering()  # where matplotlib would refuse
    for axes in (left, right):
        (one, _), (other, _) = axes.transData.transform([(0, 0), (1, 0)])
        (_, low), (_, high) = axes.transData.transform([(0, 0), (0, 1)])
        assert other - one == pytest.approx(high - low)


def test_hidden_ticks_are_not_those_of_the_others() -> None:
    figure = Figure()
    above, below = figure.subplots(2, 1, sharex=True)
    plotting.draw_plan_map(above, PLAN)
    plotting.draw_selection(below, range(4), ONES)
    figure.draw_without_rendering()
    assert any(label.get_text() for label in below.get_xticklabels())
    left, right = Figure().subplots(1, 2, sharey=True)
    plotting.draw_plan_map(left, PLAN, anchors=[0, 1])
    plotting.draw_plan_map(right, PLAN)
    assert [label.get_text() for label in left.get_yticklabels()] == ["0", "1"]


def test_attention_points_downwards_whatever_the_settings() -> None:
    with rc_context({"image.origin": "lower"}):
        axes = plotting.new_figure().axes[0]
        plotting.draw_attention(axes, [[1.0], [0.0]], ["a"], ["x", "y"])
    assert axes.get_ylim() == (1.5, -0.5)


def test_ten_classes_have_ten_colours(axes: Axes) -> None:
    plotting.draw_votes(axes, [0.1] * 10)
    assert len({bar.get_facecolor() for bar in axes.patches}) == 10
    names = [str(i) for i in range(10)]
    plotting.draw_selection(axes, SCORES, ONES, groups=[0, 1, 2, 1], names=names)  # some occur
    assert axes.get_legend_handles_labels()[1] == ["0", "1", "2"]
