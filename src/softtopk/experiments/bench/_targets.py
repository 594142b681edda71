"""The acceptance table: what the operators are meant to cost, and whether they do.

Every row is a ratio of medians from one run, float32 and standard normal scores. "ours" is
`A = soft_topk(scores, k, eps=eps)` and `torch.autograd.grad(A, scores, g)`, forward and backward
together, unless the row says otherwise; `torch.topk(scores, k)` is the forward pass alone, on
scores that need no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from . import _adapters as adapt
from ._cases import Case, Operator
from ._peers import OURS, PEERS, Peer
from ._results import CaseResult, Timing

COLD, HOT = 1e-4, 10.0  # a thousandth and a hundredfold of eps = 0.1

_ours = partial(Peer, operator="unsorted", output="mask", package=OURS)

# Contestants that only this table needs.
TARGET_PEERS: tuple[Peer, ...] = (
    _ours("cold", f"softtopk, eps = {COLD:g}", prepare=partial(adapt.soft_topk, eps=COLD)),
    _ours("hot", f"softtopk, eps = {HOT:g}", prepare=partial(adapt.soft_topk, eps=HOT)),
    _ours("forward", "softtopk, forward", prepare=adapt.soft_topk_forward, gradient=False),
    _ours(
        "hard",
        "torch.topk, forward",
        output="values",
        prepare=adapt.topk_forward,
        gradient=False,
    ),
    _ours(
        "floor",
        "torch.topk + torch.softmax, forward",
        prepare=adapt.topk_and_softmax_forward,
        gradient=False,
    ),
)


def find_peer(key: str, operator: Operator) -> Peer:
    """The peer of this operator with this key."""
    return next(p for p in PEERS + TARGET_PEERS if (p.key, p.operator) == (key, operator))


def _case(operator: Operator, rows: int, n: int, k: int, *peers: str) -> Case:
    return Case(operator, rows, n, k, series="targets", peers=peers, check=False)


# Rows, n and k, with the most that our time may be of that of torch.topk.
AGAINST_TOPK = (
    (_case("unsorted", 100, 100, 9, "softtopk", "hard", "cold", "hot"), 2.0),
    (_case("unsorted", 128, 1_000, 10, "softtopk", "hard", "cold", "hot"), 2.0),
    (_case("unsorted", 64, 10_000, 64, "softtopk", "hard", "cold", "hot"), 1.0),
    (_case("unsorted", 16, 50_000, 500, "softtopk", "hard", "cold", "hot"), 0.8),
    (_case("unsorted", 4, 1_000_000, 100, "softtopk", "hard", "cold", "hot"), 1.5),
)
# 10^7 scores at every n, of which one in a hundred is selected: the same distribution around the
# threshold at every n, so that only n changes.
PER_ELEMENT = tuple(
    _case("unsorted", 10**7 // n, n, n // 100, "softtopk") for n in (10**e for e in range(3, 8))
)
AGAINST_SINKHORN = (
    (_case("unsorted", 128, 1_000, 10, "softtopk", "sinkhorn"), 500.0),
    (_case("sorted", 128, 1_000, 10, "softtopk", "sinkhorn"), 100.0),
)
AGAINST_ENTMAX = (
    (_case("unsorted", 64, 1_000, 10, "softtopk", "entmax"), 8.0),
    (_case("unsorted", 4, 65_536, 64, "softtopk", "entmax"), 8.0),
    (_case("unsorted", 64, 10_000, 64, "softtopk", "entmax"), 8.0),
)
OVERHEAD = _case("unsorted", 1, 16, 4, "forward", "floor")

TARGET_CASES: tuple[Case, ...] = (
    OVERHEAD,
    *(case for case, _ in AGAINST_TOPK),
    *PER_ELEMENT,
    *(case for case, _ in AGAINST_ENTMAX),
    *(case for case, _ in AGAINST_SINKHORN),
)


@dataclass(frozen=True)
class Value:
    """A ratio, and the quartiles of the ratios of one repetition each."""

    ratio: float
    low: float
    high: float


Results = Mapping[Case, CaseResult]


class NotMeasured(Exception):
    """Says what is missing, and why."""


@dataclass(frozen=True)
class Target:
    """A row of the table."""

    label: str
    bound: float
    at_most: bool
    """Whether the bound is from above."""
    value: Callable[[Results], Value]


@dataclass(frozen=True)
class Outcome:
    """A row of the table with its value."""

    target: Target
    value: Value | None
    message: str = ""
    """Why there is no value."""

    @property
    def met(self) -> bool | None:
        """None if there is no value."""
        if self.value is None:
            return None
        if self.target.at_most:
            return self.value.ratio <= self.target.bound
        return self.value.ratio >= self.target.bound


def assess(results: Results) -> list[Outcome]:
    """The table, from the results of a run."""
    outcomes = []
    for target in TARGETS:
        try:
            outcomes.append(Outcome(target, target.value(results)))
        except NotMeasured as missing:
            outcomes.append(Outcome(target, None, str(missing)))
    return outcomes


def _timing(results: Results, case: Case, peer: str) -> Timing:
    done = results.get(case)
    result = done.of(peer) if done else None
    if result is None:
        raise NotMeasured(f"{case.name} was not run")
    if result.both is None:
        raise NotMeasured(f"{result.label} {result.status}: {result.reason}")
    return result.both


def _ratio(results: Results, case: Case, above: str, below: str) -> Value:
    over, under = _timing(results, case, above), _timing(results, case, below)
    # The repetitions were taken in turn, so the first of one belongs to the first of the other.
    low, high = Timing(
        tuple(a / b for a, b in zip(over.samples, under.samples, strict=False))
    ).quartiles
    return Value(over.median / under.median, low, high)


def _flatness(results: Results) -> Value:
    """Largest time per element over the smallest."""
    timings = [(_timing(results, case, "softtopk"), case.rows * case.n) for case in PER_ELEMENT]
    middle = [timing.median / size for timing, size in timings]
    low = [timing.quartiles[0] / size for timing, size in timings]
    high = [timing.quartiles[1] / size for timing, size in timings]
    return Value(max(middle) / min(middle), max(low) / min(high), max(high) / min(low))


def _size(case: Case) -> str:
    return f"{case.rows:,} x {case.n:,}, k = {case.k:,}"


def _rows() -> list[Target]:
    rows = []
    for case, bound in AGAINST_TOPK:
        value = partial(_ratio, case=case, above="softtopk", below="hard")
        rows.append(Target(f"ours / torch.topk, {_size(case)}", bound, True, value))
    for case, _ in AGAINST_TOPK:
        for peer, eps in (("cold", COLD), ("hot", HOT)):
            label = f"eps = {eps:g} / eps = {case.eps:g}, {_size(case)}"
            value = partial(_ratio, case=case, above=peer, below="softtopk")
            rows.append(Target(label, 2.0, True, value))
    label = "time per element, largest / smallest, n = 10^3 .. 10^7"
    rows.append(Target(label, 2.0, True, _flatness))
    for case, bound in AGAINST_SINKHORN:
        value = partial(_ratio, case=case, above="sinkhorn", below="softtopk")
        label = f"200 Sinkhorn iterations / ours, {case.operator}, {_size(case)}"
        rows.append(Target(label, bound, False, value))
    for case, bound in AGAINST_ENTMAX:
        value = partial(_ratio, case=case, above="entmax", below="softtopk")
        rows.append(Target(f"entmax.budget_bisect / ours, {_size(case)}", bound, False, value))
    value = partial(_ratio, case=OVERHEAD, above="forward", below="floor")
    label = f"ours / (torch.topk + torch.softmax), forward, {_size(OVERHEAD)}"
    rows.append(Target(label, 3.0, True, value))
    return rows


TARGETS: tuple[Target, ...] = tuple(_rows())
