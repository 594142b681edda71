"""The run on the terminal: progress, a table for each case, and the table of the targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..runs import Report, Table, provenance
from ._cases import Case
from ._device import in_words
from ._results import CaseResult, Record, Result, Timing
from ._targets import Outcome

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

OURS = "softtopk"


class RichReport(Report):
    """Shows a line of progress while a case runs, and its table when it is done."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.status import Status

        super().__init__(console)
        self._status = Status("", console=self.console)
        self._place = ""

    def __enter__(self) -> RichReport:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def peers(self, present: Mapping[str, str], absent: Mapping[str, tuple[str, str]]) -> None:
        """Which peers take part, with their versions, and why the others do not."""
        found = ", ".join(f"{name} {version}" for name, version in present.items())
        self.say(f"peers: {found}")
        for name, (status, reason) in absent.items():
            self.say(f"{status}: {name} ({reason})")

    def case(self, number: int, total: int, case: Case) -> None:
        self._place = f"case {number} of {total}: {case.name}"
        if not self.console.is_terminal:
            self.say(self._place)

    def step(self, text: str) -> None:
        from rich.text import Text

        self._status.update(Text(f"{self._place}: {text}"))

    def finished(self, result: CaseResult, reused: bool) -> None:
        self.console.print(case_table(result, reused))
        for one in result.results:
            if one.status != "measured":
                self.say(f"  {one.label}: {one.status}: {one.reason}")
        self.say("")


def case_table(done: CaseResult, reused: bool = False) -> RichTable:
    """Times of one case in milliseconds, fastest first."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    suffix = " (from an earlier run)" if reused else ""
    title = Text(f"{done.case.name}; milliseconds{suffix}")
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("peer", no_wrap=True)
    columns = ("forward", "backward", "both", "quartiles", "× softtopk", "peak MB", "error")
    for name in columns:
        table.add_column(name, justify="right")
    ours = done.of(OURS)
    measured = [result for result in done.results if result.both is not None]
    for result in sorted(measured, key=lambda r: r.both.median if r.both else 0.0):
        table.add_row(
            Text(result.label, style="bold" if result.peer == OURS else ""), *_cells(result, ours)
        )
    return table


def _cells(result: Result, ours: Result | None) -> Iterable[str]:
    assert result.both is not None
    low, high = result.both.quartiles
    yield _milliseconds(result.forward)
    yield _milliseconds(result.backward)
    yield _milliseconds(result.both)
    yield f"{digits(1e3 * low)} .. {digits(1e3 * high)}"
    yield "" if ours is None or ours.both is None else digits(result.both.median / ours.both.median)
    yield "" if result.memory is None else f"{result.memory / 1e6:,.1f}"
    yield "" if result.error is None else f"{result.error:.0e}"


def to_markdown(record: Record) -> str:
    """All cases in one table, with the machine above it."""
    results = [result for done in record.cases for result in done.results]
    measured = {result.peer for result in results if result.both is not None}
    peers = {result.peer: result.label for result in results if result.peer in measured}
    rows = [[done.case.name, *(_times(done.of(peer)) for peer in peers)] for done in record.cases]
    left_out = [
        f"- {done.case.name}: {result.label}: {result.status}: {result.reason}"
        for done in record.cases
        for result in done.results
        if result.status != "measured"
    ]
    lines = [
        f"# softtopk bench: {record.environment['device']['name']}",
        f"{in_words(record.environment['device'])}; {provenance(record.environment)}",
        "Medians in milliseconds: forward, and forward + backward.",
        Table("", ["", *peers.values()], rows).to_markdown(),
        "\n".join(left_out),
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _times(result: Result | None) -> str:
    if result is None or result.both is None:
        return ""
    return f"{_milliseconds(result.forward)}, {_milliseconds(result.both)}"


def target_table(outcomes: Iterable[Outcome]) -> RichTable:
    """The acceptance table."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    title = "Targets (ratios of medians)"
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("ratio", no_wrap=True)
    for name in ("target", "value", "quartiles"):
        table.add_column(name, justify="right")
    table.add_column("")
    words = {True: Text("met", "green"), False: Text("not met", "red")}
    for outcome in outcomes:
        sign = "≤" if outcome.target.at_most else "≥"
        if outcome.value is None:
            cells: list[str | Text] = ["", "", Text("not measured", "yellow")]
        else:
            assert outcome.met is not None
            value = outcome.value
            spread = f"{digits(value.low)} .. {digits(value.high)}"
            cells = [digits(value.ratio), spread, words[outcome.met]]
        table.add_row(Text(outcome.target.label), f"{sign} {outcome.target.bound:g}", *cells)
    return table


def _milliseconds(timing: Timing | None) -> str:
    return "" if timing is None else digits(1e3 * timing.median)


def digits(value: float) -> str:
    """Three significant digits, without an exponent.

    >>> digits(0.012345), digits(1.0), digits(12345.6)
    ('0.0123', '1.00', '12,346')
    """
    if value >= 100:
        return f"{value:,.0f}"
    text = f"{value:#.3g}"
    return text.rstrip(".") if "e" not in text else f"{value:.6f}"
