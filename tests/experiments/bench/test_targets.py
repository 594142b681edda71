"""The acceptance table, from times that are made up."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from softtopk.experiments.bench import TARGETS, Case, CaseResult, Outcome, Result, Timing, assess
from softtopk.experiments.bench._tables import target_table
from softtopk.experiments.bench._targets import (
    AGAINST_ENTMAX,
    AGAINST_SINKHORN,
    AGAINST_TOPK,
    OVERHEAD,
    PER_ELEMENT,
    TARGET_CASES,
    find_peer,
)


def measured(peer: str, seconds: float) -> Result:
    timing = Timing((0.9 * seconds, seconds, 1.2 * seconds))
    return Result(peer, peer, forward=timing, both=timing)


def results(seconds: Mapping[tuple[Case, str], float]) -> dict[Case, CaseResult]:
    """Of all target cases; a peer takes a microsecond if nothing is said."""
    return {
        case: CaseResult(case, tuple(measured(p, seconds.get((case, p), 1e-6)) for p in case.peers))
        for case in TARGET_CASES
    }


def one(outcomes: list[Outcome], start: str, contains: str = "") -> Outcome:
    found = [o for o in outcomes if o.target.label.startswith(start) and contains in o.target.label]
    assert len(found) == 1, [o.target.label for o in found]
    return found[0]


def test_every_contestant_exists() -> None:
    for case in TARGET_CASES:
        for peer in case.peers:
            assert find_peer(peer, case.operator)
    assert len(set(TARGET_CASES)) == len(TARGET_CASES)


def test_the_sizes_per_element() -> None:
    assert [case.n for case in PER_ELEMENT] == [10**e for e in range(3, 8)]
    assert {case.rows * case.n for case in PER_ELEMENT} == {10**7}


@pytest.mark.parametrize(("factor", "met"), [(0.99, True), (1.01, False)])
def test_against_topk(factor: float, met: bool) -> None:
    seconds = {}
    for case, bound in AGAINST_TOPK:
        seconds |= {(case, "softtopk"): factor * bound, (case, "hard"): 1.0}
    rows = [o for o in assess(results(seconds)) if o.target.label.startswith("ours / torch.topk")]
    assert [o.target.bound for o in rows] == [2.0, 2.0, 1.0, 0.8, 1.5]
    assert [o.met for o in rows] == [met] * 5
    assert rows[0].value is not None
    assert rows[0].value.ratio == pytest.approx(2 * factor)


def test_ratios_from_below() -> None:
    case, bound = AGAINST_SINKHORN[1]
    for ratio, met in ((bound * 1.01, True), (bound * 0.99, False)):
        outcomes = assess(results({(case, "sinkhorn"): ratio, (case, "softtopk"): 1.0}))
        row = one(outcomes, "200 Sinkhorn iterations / ours, sorted")
        assert (row.target.bound, row.met) == (100.0, met)


def test_other_temperatures() -> None:
    case = AGAINST_TOPK[0][0]
    outcomes = assess(results({(case, "softtopk"): 1.0, (case, "cold"): 2.1, (case, "hot"): 1.9}))
    assert one(outcomes, "eps = 0.0001 / eps = 0.1", "100 x 100").met is False
    assert one(outcomes, "eps = 10 / eps = 0.1", "100 x 100").met is True


def test_time_per_element() -> None:
    seconds = {(case, "softtopk"): 1.0 for case in PER_ELEMENT}
    assert one(assess(results(seconds)), "time per element").met is True
    seconds[PER_ELEMENT[2], "softtopk"] = 2.5
    row = one(assess(results(seconds)), "time per element")
    assert row.met is False
    assert row.value is not None
    assert row.value.ratio == pytest.approx(2.5)
    # The quartiles of each are 0.95 and 1.1 of its median: the least and the most that it can be.
    assert row.value.low == pytest.approx(2.5 * 0.95 / 1.1)
    assert row.value.high == pytest.approx(2.5 * 1.1 / 0.95)


def test_overhead() -> None:
    outcomes = assess(results({(OVERHEAD, "forward"): 3.1, (OVERHEAD, "floor"): 1.0}))
    assert one(outcomes, "ours / (torch.topk + torch.softmax)").met is False


def test_the_spread_is_that_of_the_pairs() -> None:
    case = AGAINST_TOPK[0][0]
    done = results({})
    done[case] = CaseResult(
        case,
        (
            Result("softtopk", "", both=Timing((1.0, 20.0, 3.0))),
            Result("hard", "", both=Timing((1.0, 10.0, 1.0))),
        ),
    )
    value = assess(done)[0].value
    assert value is not None
    assert (value.ratio, value.low, value.high) == (3.0, 1.5, 2.5)


def test_what_was_not_measured_is_not_met_and_says_why() -> None:
    case = AGAINST_ENTMAX[0][0]
    done = results({})
    done[case] = CaseResult(
        case, (measured("softtopk", 1.0), Result("entmax", "entmax", "not installed", "pip that"))
    )
    del done[OVERHEAD]
    outcomes = assess(done)
    row = one(outcomes, "entmax.budget_bisect", "64 x 1,000,")
    assert (row.met, row.message) == (None, "entmax not installed: pip that")
    assert "was not run" in one(outcomes, "ours / (torch.topk + torch").message


def test_the_table_has_a_row_for_each() -> None:
    table = target_table(assess({}))
    assert table.row_count == len(TARGETS) == 5 + 10 + 1 + 2 + 3 + 1
