"""The trial in another process."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from softtopk.experiments.bench import Case
from softtopk.experiments.bench._device import Cpu
from softtopk.experiments.bench._probe import Probe, probe, probe_here
from softtopk.experiments.bench._targets import find_peer

GIB = 2**30
OURS = find_peer("softtopk", "unsorted")
LARGE = Case("unsorted", 4, 1_000_000, 10)


def attempt(case: Case, key: str = "softtopk", seconds: float = 60.0, memory: int = GIB) -> Probe:
    peer = find_peer(key, case.operator)
    return probe(peer, case, threads=1, seconds=seconds, memory=memory)


def test_time_and_memory() -> None:
    result = attempt(LARGE)
    assert result.status == "measured"
    assert result.seconds > 0
    if sys.platform == "linux":
        # The result and the gradient at least, of four bytes each; not the scores a second time.
        assert result.memory is not None
        assert 2 * 4 * 4_000_000 * 0.9 < result.memory < 20 * 4 * 4_000_000


def test_what_only_reads_its_input_needs_little() -> None:
    result = attempt(LARGE, "hard")
    assert result.status == "measured"
    if sys.platform == "linux":
        assert result.memory is not None
        # torch.topk copies a row for each thread, with its indices.
        assert result.memory < 2 * 4 * 4_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="there is no limit elsewhere")
def test_too_large() -> None:
    result = attempt(LARGE, memory=2**20)
    assert (result.status, result.message) == ("too large", "one call needs more than 0.0 GiB")


def test_too_slow() -> None:
    result = attempt(LARGE, "sinkhorn", seconds=0.01)
    assert (result.status, result.message) == ("too slow", "one call takes more than 0.01 s")


def test_failing() -> None:
    result = attempt(Case("unsorted", 2, 40, 41), "hard")
    assert result.status == "failed"
    assert "out of range" in result.message


def test_a_process_that_dies() -> None:
    """As one does that crashes in native code."""
    deadly = replace(OURS, prepare=partial(max, 3, key=os._exit))  # calls os._exit(3)
    result = probe(deadly, Case("unsorted", 2, 40, 4), threads=1, seconds=10.0, memory=GIB)
    assert (result.status, result.message) == ("failed", "its process ended with exit code 3")


class Card(Cpu):
    """Has used so many bytes at most, and counts what it is told."""

    def __init__(self, peak: int = 0) -> None:
        self.bytes, self.released = peak, 0

    def reset_peak(self) -> int:
        return 1000

    def peak(self) -> int:
        return self.bytes

    def release(self) -> None:
        self.released += 1


def test_a_trial_in_this_process() -> None:
    card = Card(6000)
    result = probe_here(OURS, Case("unsorted", 2, 40, 4), device=card, memory=GIB)
    assert (result.status, result.memory, card.released) == ("measured", 5000, 1)
    assert result.seconds > 0


def test_too_large_for_the_card() -> None:
    def full(problem: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    case = Case("unsorted", 2, 40, 4)
    reason = ("too large", "one call needs more than 1.0 GiB")
    for peer, card in ((OURS, Card(2 * GIB)), (replace(OURS, prepare=full), Card())):
        result = probe_here(peer, case, device=card, memory=GIB)
        assert (result.status, result.message, card.released) == (*reason, 1)


def test_failing_in_this_process() -> None:
    result = probe_here(
        find_peer("hard", "unsorted"), Case("unsorted", 2, 40, 41), device=Card(), memory=GIB
    )
    assert result.status == "failed"
    assert "out of range" in result.message
