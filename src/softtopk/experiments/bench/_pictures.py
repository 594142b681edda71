"""The pictures: time against n, error against time, and the sizes of a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softtopk.experiments._drawing import save_figure
from softtopk.plotting import style
from softtopk.plotting.style import (
    LineStyle,
    legend_beside,
    new_figure,
    plain_numbers,
    standard_look,
)

from ._cases import ON_DEVICE, Case, Operator
from ._results import CaseResult, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ERRORS = (1e-9, 3.0)  # from below what float32 can do to as wrong as can be

# A colour and a marker of its own for each. Solid: this package; dashed: solvers of the same
# problem; dash-dotted: other relaxations; dotted greys: torch's own.
STYLES = {
    "softtopk": LineStyle(style.BLUE, "-", "o"),
    "plain": LineStyle(style.TEAL, "-", "8"),
    "sinkhorn": LineStyle(style.VERMILION, "--", "s"),
    "pot": LineStyle(style.ORANGE, "--", "^"),
    "qfeval": LineStyle(style.PURPLE, "--", "v"),
    "ott": LineStyle(style.WINE, "--", "D"),
    "softtorch": LineStyle(style.BROWN, "--", "*"),
    "entmax": LineStyle(style.GREEN, "-.", "P"),
    "colt5": LineStyle(style.SKY, "-.", "X"),
    "difftopk": LineStyle(style.FOREST, "-.", "<"),
    "torchsort": LineStyle(style.OLIVE, "-.", ">"),
    "sort": LineStyle(style.LIGHT_GREY, ":", "h"),
    "topk": LineStyle(style.BLACK, ":", "d"),
    "softmax": LineStyle(style.DARK_GREY, ":", "p"),
}


@standard_look()
def draw_pictures(cases: Sequence[CaseResult], folder: Path, device: str) -> list[Path]:
    """Draw what the cases have data for, and say which files were written.

    ``device`` is the name of what they were measured on.
    """
    operators: tuple[Operator, ...] = ("unsorted", "sorted")
    suffix = {"unsorted": "", "sorted": "_sorted"}
    pictures = {"time_on_device.png": _draw_sizes(_of_series(cases, ON_DEVICE, "unsorted"))}
    for operator in operators:
        pictures |= {
            f"time_against_n{suffix[operator]}.png": _draw_time(
                _of_series(cases, "time against n", operator)
            ),
            f"error_against_time{suffix[operator]}.png": _draw_error(
                _of_series(cases, "error against time", operator)
            ),
        }
    written = []
    for name, figure in pictures.items():
        if figure is not None:
            figure.supxlabel(device, x=1.0, ha="right", fontsize=style.SMALL, color=style.GREY)
            written.append(save_figure(figure, folder / name))
    return written


def _of_series(cases: Iterable[CaseResult], series: str, operator: Operator) -> list[CaseResult]:
    return [c for c in cases if (c.case.series, c.case.operator) == (series, operator)]


def _draw_time(cases: Sequence[CaseResult]) -> Figure | None:
    """One line per peer; None if there are fewer than two sizes, or no peers."""
    cases = sorted(cases, key=lambda done: done.case.n)
    peers = _peers(cases)
    if len(cases) < 2 or not peers:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    heights = {}
    for peer, label in peers:
        points = [
            (done.case.n, 1e3 * result.both.median)
            for done in cases
            if (result := done.of(peer)) is not None and result.both is not None
        ]
        look = STYLES[peer]
        axes.plot(
            *zip(*points, strict=True),
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            ms=5,
            lw=2.4 if peer == "softtopk" else 1.3,
            zorder=3 if peer == "softtopk" else 2,
            label=label,
        )
        heights[label] = points[0][1]
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="milliseconds")
    plain_numbers(axes.yaxis)
    case = cases[0].case
    figure.suptitle(
        f"Forward + backward, {_title(case)}, {case.rows} rows, k = {case.k}, eps = {case.eps:g}",
        fontsize=style.TITLE,
    )
    legend_beside(axes, heights)
    return figure


def _draw_sizes(cases: Sequence[CaseResult]) -> Figure | None:
    """A mark for each peer at each size, in axes for each dtype."""
    dtypes = list(dict.fromkeys(done.case.dtype for done in cases))
    peers = _peers(cases)
    if not peers:
        return None
    figure = new_figure(columns=len(dtypes))
    for axes, dtype in zip(figure.axes, dtypes, strict=True):
        here = [done for done in cases if done.case.dtype == dtype]
        for peer, label in peers:
            points = [
                (place, 1e3 * result.both.median)
                for place, done in enumerate(here)
                if (result := done.of(peer)) is not None and result.both is not None
            ]
            look = STYLES[peer]
            axes.plot(*zip(*points, strict=True), look.marker, color=look.colour, ms=6, label=label)
        sizes = [f"{done.case.rows:,} x {done.case.n:,}" for done in here]
        axes.set_xticks(range(len(here)), sizes, rotation=35, ha="right")
        axes.set(yscale="log", title=dtype)
        plain_numbers(axes.yaxis)
        axes.sharey(figure.axes[0])
    figure.axes[0].set_ylabel("milliseconds")
    case = cases[0].case
    figure.suptitle(f"Forward + backward, {_title(case)}, eps = {case.eps:g}", fontsize=style.TITLE)
    legend_beside(figure.axes[-1])
    return figure


def _draw_error(cases: Sequence[CaseResult]) -> Figure | None:
    """A point for each peer that solves the same problem, and each temperature."""
    cases = sorted(cases, key=lambda done: -done.case.eps)
    solved = [(peer, label) for peer, label in _peers(cases) if _points(cases, peer)]
    if not solved:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    heights = {}
    for peer, label in solved:
        look = STYLES[peer]
        points = _points(cases, peer)
        times, errors = [time for time, _, _ in points], [error for _, error, _ in points]
        axes.plot(times, errors, color=look.colour, lw=1, alpha=0.6, zorder=1)
        for number, (time, error, warm) in enumerate(points):
            axes.plot(
                time,
                error,
                look.marker,
                color=look.colour,
                mfc=look.colour if warm else "white",
                ms=8,
                mew=1.5,
                label=None if number else label,
            )
        heights[label] = errors[0]
    axes.set(xscale="log", yscale="log", ylabel="largest error in A", ylim=ERRORS)
    axes.set_xlabel("milliseconds, forward + backward")
    plain_numbers(axes.xaxis)
    case = cases[0].case
    temperatures = f"filled: eps = {case.eps:g}"
    if len(cases) > 1:
        temperatures += f", hollow: eps = {cases[-1].case.eps:g}"
    size = f"{case.rows} x {case.n}, k = {case.k}"
    figure.suptitle(
        f"Error and time, {_title(case)}, {size} ({temperatures})", fontsize=style.TITLE
    )
    legend_beside(axes, heights)
    return figure


def _points(cases: Sequence[CaseResult], peer: str) -> list[tuple[float, float, bool]]:
    """Milliseconds, error, and whether it is the highest of the temperatures."""
    points = []
    for done in cases:
        result = done.of(peer)
        if result is not None and result.both is not None and result.error is not None:
            error = max(result.error, ERRORS[0])  # no place for zero on a logarithmic axis
            points.append((1e3 * result.both.median, error, done is cases[0]))
    return points


def _peers(cases: Sequence[CaseResult]) -> list[tuple[str, str]]:
    """Key and label of every peer that was measured in some case."""

    def measured(result: Result) -> bool:
        return result.both is not None and result.peer in STYLES

    found = {r.peer: r.label for done in cases for r in done.results if measured(r)}
    return list(found.items())


def _title(case: Case) -> str:
    return "soft top-k" if case.operator == "unsorted" else "sorted soft top-k"
