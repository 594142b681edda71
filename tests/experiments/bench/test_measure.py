"""Sampling in turn, with a clock of our own; and what is put back afterwards."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch

from softtopk.experiments.bench import Timing
from softtopk.experiments.bench._device import Cpu
from softtopk.experiments.bench._measure import (
    MIN_REPEATS,
    SAMPLE_SECONDS,
    Contestant,
    available_cores,
    pinned_threads,
    sample,
    time_in_turn,
    variables,
)


class Clock(Cpu):
    """Time that only passes when a run lets it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def mark(self) -> float:
        self.log.append("mark")
        return self.now

    def seconds(self, start: float, end: float) -> float:
        self.log.append("wait")
        return super().seconds(start, end)

    def flush(self) -> None:
        self.log.append("flush")


class FakeRun:
    def __init__(self, clock: Clock, forward: float, backward: float, log: list[str], name: str):
        self.clock, self.seconds, self.log, self.name = clock, (forward, backward), log, name

    def forward(self) -> str:
        self.clock.now += self.seconds[0]
        self.log.append(self.name)
        return "state"

    def backward(self, state: Any) -> None:
        assert state == "state"
        self.clock.now += self.seconds[1]

    def selection(self, state: Any) -> torch.Tensor:
        raise NotImplementedError


def test_quartiles_and_median() -> None:
    timing = Timing((5.0, 1.0, 3.0, 2.0, 100.0))
    assert timing.median == 3.0
    assert timing.quartiles == (2.0, 5.0)
    assert Timing((2.0,)).quartiles == (2.0, 2.0)


def test_samples_are_taken_in_turn() -> None:
    clock, log = Clock(), []
    pair = [Contestant(FakeRun(clock, 0.5, 1.0, log, name), True) for name in "ab"]
    time_in_turn(pair, 4, budget=100.0, device=clock)
    assert "".join(log) == "ab" + "ab" * 4
    forward, backward, both = pair[0].timings()
    assert forward.samples == (0.5,) * 4
    assert backward is not None
    assert backward.samples == (1.0,) * 4
    assert both.samples == (1.5,) * 4


def test_a_short_call_is_repeated_within_a_sample() -> None:
    clock, log = Clock(), []
    contestant = Contestant(FakeRun(clock, 1e-6, 3e-6, log, "a"), True)
    time_in_turn([contestant], MIN_REPEATS, budget=1.0, device=clock)
    assert contestant.calls >= SAMPLE_SECONDS / 4.1e-6
    assert contestant.timings()[2].median == pytest.approx(4e-6)


def test_every_call_finds_an_empty_cache_and_none_waits_for_the_one_before() -> None:
    clock = Clock()
    contestant = Contestant(FakeRun(clock, 0.5, 1.0, [], "a"), True, calls=3)
    sample(contestant, clock)
    call = ["flush", "mark", "mark", "mark"]
    assert clock.log == call * 3 + ["wait"] * 6
    assert (contestant.forward, contestant.backward) == ([0.5], [1.0])


def test_who_has_spent_the_budget_stops_early() -> None:
    clock, log = Clock(), []
    slow = Contestant(FakeRun(clock, 1.0, 1.0, log, "s"), True)
    fast = Contestant(FakeRun(clock, 0.1, 0.1, log, "f"), True)
    time_in_turn([slow, fast], 10, budget=4.0, device=clock)
    assert len(slow.forward) == MIN_REPEATS
    assert len(fast.forward) == 10


def test_without_a_gradient_there_is_no_backward_pass() -> None:
    clock = Clock()
    contestant = Contestant(FakeRun(clock, 1.0, 9.0, [], "a"), False)
    time_in_turn([contestant], 3, budget=100.0, device=clock)
    forward, backward, both = contestant.timings()
    assert backward is None
    assert both == forward
    assert forward.median == 1.0


def test_who_fails_leaves_the_others_alone() -> None:
    clock, log = Clock(), []

    class Failing(FakeRun):
        def forward(self) -> str:
            if len(log) > 4:
                raise RuntimeError("no more")
            return super().forward()

    failing = Contestant(Failing(clock, 1.0, 1.0, log, "x"), True)
    other = Contestant(FakeRun(clock, 1.0, 1.0, log, "a"), True)
    time_in_turn([failing, other], 5, budget=100.0, device=clock)
    assert failing.failure == "RuntimeError: no more"
    assert len(other.forward) == 5


def test_the_collector_is_as_before() -> None:
    clock = Clock()
    time_in_turn([Contestant(FakeRun(clock, 1.0, 1.0, [], "a"), True)], 0, budget=1.0, device=clock)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_threads_are_pinned_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("NPROC", raising=False)
    before, cores = torch.get_num_threads(), available_cores()
    torch.set_num_threads(2)
    try:
        with pinned_threads(1):
            assert torch.get_num_threads() == 1
            assert os.environ["OMP_NUM_THREADS"] == os.environ["NPROC"] == "1"
            if hasattr(os, "sched_getaffinity"):
                assert available_cores() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert available_cores() == cores
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "NPROC" not in os.environ


def test_variables_are_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTTOPK_TEST", raising=False)
    with pytest.raises(KeyError), variables(SOFTTOPK_TEST="1"):
        raise KeyError
    assert "SOFTTOPK_TEST" not in os.environ
