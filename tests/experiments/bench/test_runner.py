"""A run with peers of our own: what is skipped, kept, resumed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softtopk.experiments.bench import Case, CaseResult, Peer, Record, Settings, UsageError, run
from softtopk.experiments.bench import _runner as runner
from softtopk.experiments.bench._peers import Package
from softtopk.experiments.bench._probe import Probe
from softtopk.experiments.bench._targets import find_peer
from softtopk.experiments.runs import write_sealed

OURS = find_peer("softtopk", "unsorted")
TOPK = find_peer("topk", "unsorted")
ABSENT = replace(TOPK, key="pot", label="absent", package=Package("no_such_module", "x", "that"))
SMALL, LARGE = Case("unsorted", 2, 20, 3), Case("unsorted", 2, 200, 3)


class Silent:
    """A report that only counts."""

    def __init__(self) -> None:
        self.reused: list[bool] = []

    def case(self, number: int, total: int, case: Case) -> None: ...

    def step(self, text: str) -> None: ...

    def finished(self, result: CaseResult, reused: bool) -> None:
        self.reused.append(reused)


def fit(peer: Peer, case: Case, **_: Any) -> Probe:
    return Probe("measured", "", 1e-3, 1000)


def settings(out: Path, *cases: Case, **options: Any) -> Settings:
    return Settings(cases or (SMALL,), out, **{"repeats": 3, "budget": 5.0, **options})


def test_measured_results(tmp_path: Path) -> None:
    record = run(settings(tmp_path), Silent(), (OURS, TOPK), fit)
    ours, topk = record.cases[0].results
    assert (ours.peer, ours.status, ours.memory) == ("softtopk", "measured", 1000)
    assert ours.forward is not None
    assert ours.backward is not None
    assert ours.both is not None
    assert len(ours.both.samples) == 3
    assert ours.error is not None
    assert ours.error < 1e-6
    assert topk.error is None


def test_json_round_trip(tmp_path: Path) -> None:
    record = run(settings(tmp_path, SMALL, LARGE), Silent(), (OURS, ABSENT), fit)
    again = Record.read(tmp_path / "results.json")
    assert again.cases == record.cases
    data = json.loads((tmp_path / "results.json").read_text())
    assert (
        data["cases"][0]["results"][0]["both"]["median"] == record.cases[0].results[0].both.median
    )
    assert data["environment"]["torch"]
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_a_missing_peer_is_named_with_its_remedy(tmp_path: Path) -> None:
    record = run(settings(tmp_path), Silent(), (OURS, ABSENT), fit)
    result = record.cases[0].of("pot")
    assert result is not None
    assert (result.status, result.reason) == ("not installed", "pip install that")


def test_what_fails_or_takes_too_much_is_skipped(tmp_path: Path) -> None:
    answers = {"topk": Probe("failed", "RuntimeError: no"), "sort": Probe("too large", "so much")}

    def trial(peer: Peer, case: Case, **_: Any) -> Probe:
        return answers.get(peer.key) or fit(peer, case)

    peers = (OURS, TOPK, find_peer("sort", "unsorted"))
    record = run(settings(tmp_path), Silent(), peers, trial)
    results = record.cases[0].results
    assert [r.status for r in results] == ["measured", "failed", "too large"]
    assert results[1].reason == "RuntimeError: no"
    assert results[1].both is None


def test_a_trial_that_takes_most_of_the_budget_is_enough(tmp_path: Path) -> None:
    def trial(peer: Peer, case: Case, **_: Any) -> Probe:
        return Probe("measured", "", 3.0 if peer is TOPK else 1e-3)

    record = run(settings(tmp_path), Silent(), (OURS, TOPK), trial)
    result = record.cases[0].of("topk")
    assert result is not None
    assert result.status == "too slow"
    assert "budget of 5 s" in result.reason


def test_after_a_smaller_size_was_too_slow_there_is_no_trial(tmp_path: Path) -> None:
    tried = []

    def trial(peer: Peer, case: Case, **_: Any) -> Probe:
        tried.append((peer.key, case.n))
        return Probe("too slow", "ages") if peer is TOPK else fit(peer, case)

    cases = (SMALL, LARGE, replace(LARGE, n=2000))
    record = run(settings(tmp_path, *cases), Silent(), (OURS, TOPK), trial)
    assert ("topk", 20) in tried
    assert ("topk", 200) not in tried
    reasons = [r.reason for done in record.cases if (r := done.of("topk")) is not None]
    assert reasons == ["ages"] + 2 * ["given up at a smaller size: ages"]


def test_costs_are_predicted_from_the_largest_size_so_far(tmp_path: Path) -> None:
    tried = []

    def trial(peer: Peer, case: Case, **_: Any) -> Probe:
        tried.append((peer.key, case.n))
        return Probe("measured", "", 1e-3, 2**30 if peer is TOPK else 1000)

    far = replace(LARGE, n=20_000)  # a thousand times the first: too far to say anything
    record = run(settings(tmp_path, SMALL, LARGE, memory=3.0), Silent(), (OURS, TOPK), trial)
    result = record.cases[1].of("topk")
    assert result is not None
    assert (result.status, result.reason) == ("too large", "one call would need more than 5.0 GiB")
    run(settings(tmp_path, SMALL, far, memory=3.0), Silent(), (OURS, TOPK), trial)
    assert ("topk", 20_000) in tried


def test_a_larger_size_that_was_too_slow_says_nothing_of_a_smaller_one(tmp_path: Path) -> None:
    def trial(peer: Peer, case: Case, **_: Any) -> Probe:
        return Probe("too slow", "", 9.0) if case == LARGE else Probe("measured", "", 1e-3, 1000)

    record = run(settings(tmp_path, LARGE, SMALL), Silent(), (OURS,), trial)
    found = [case.of("softtopk") for case in record.cases]
    assert [one and one.status for one in found] == ["too slow", "measured"]


def test_quadratic_costs_are_predicted_as_such(tmp_path: Path) -> None:
    assert runner._work(replace(TOPK, growth=2), LARGE) == 2 * 200**2
    assert runner._work(find_peer("softtopk", "sorted"), Case("sorted", 2, 20, 3)) == 120


def test_resume_keeps_the_finished_cases(tmp_path: Path) -> None:
    first = run(settings(tmp_path, SMALL), Silent(), (OURS,), fit)
    report = Silent()
    second = run(settings(tmp_path, SMALL, LARGE, resume=True), report, (OURS,), fit)
    assert report.reused == [True, False]
    assert second.cases[0] == first.cases[0]
    report = Silent()
    third = run(settings(tmp_path, SMALL), report, (OURS,), fit)
    assert report.reused == [False]
    assert third.cases[0] != first.cases[0]


def test_resume_refuses_other_settings(tmp_path: Path) -> None:
    run(settings(tmp_path), Silent(), (OURS,), fit)
    with pytest.raises(UsageError, match=r"repeats was 3 and is 4.*without --resume"):
        run(settings(tmp_path, repeats=4, resume=True), Silent(), (OURS,), fit)


def test_resume_refuses_what_is_no_record(tmp_path: Path) -> None:
    write_sealed(tmp_path / "results.json", {"format": 99})
    with pytest.raises(UsageError, match=r"results\.json is not a record"):
        run(settings(tmp_path, resume=True), Silent(), (OURS,), fit)


def test_an_interrupt_keeps_the_finished_cases(tmp_path: Path) -> None:
    def trial(peer: Peer, case: Case, **_: Any) -> Probe:
        if case == LARGE:
            raise KeyboardInterrupt
        return fit(peer, case)

    with pytest.raises(KeyboardInterrupt):
        run(settings(tmp_path, SMALL, LARGE), Silent(), (OURS,), trial)
    assert [done.case for done in Record.read(tmp_path / "results.json").cases] == [SMALL]


def test_a_case_takes_the_peers_it_lists(tmp_path: Path) -> None:
    case = replace(SMALL, peers=("softtopk", "hard"), check=False)
    record = run(settings(tmp_path, case), Silent(), try_once=fit)
    assert [r.peer for r in record.cases[0].results] == ["softtopk", "hard"]
    assert record.cases[0].results[0].error is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 2}, "--repeats 2: give a number of at least 3"),
        ({"budget": 0.0}, "--budget 0: give a number above 0"),
        ({"memory": -1.0}, "--memory -1: give a number above 0"),
        ({"threads": 0}, "--threads 0: give a number from 1 to"),
        ({"threads": 100_000}, "--threads 100000: give a number from 1 to"),
        ({"peers": ("pto",)}, "--peers 'pto': give one or more of softtopk, plain, sinkhorn"),
    ],
)
def test_wrong_settings(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings(tmp_path, **options)


def test_resume_refuses_a_record_that_was_changed(tmp_path: Path) -> None:
    run(settings(tmp_path, SMALL), Silent(), (OURS,), fit)
    file = tmp_path / "results.json"
    good = file.read_bytes()
    for place in range(0, len(good), len(good) // 40):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(UsageError, match=r"results\.json is damaged.*run without --resume"):
            run(settings(tmp_path, SMALL, resume=True), Silent(), (OURS,), fit)
