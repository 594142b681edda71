"""The devices: the CPU, and an accelerator whose driver is made up."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from softtopk.experiments.bench import Case, Settings, UsageError
from softtopk.experiments.bench import _device as devices
from softtopk.experiments.bench._cases import ROOM, fitted
from softtopk.experiments.bench._device import Accelerator, Cpu, device_of
from softtopk.experiments.bench._runner import survey

MB = 2**20


def test_the_cpu() -> None:
    device = device_of("cpu")
    assert isinstance(device, Cpu)
    assert device.seconds(device.mark(), device.mark()) >= 0
    assert device.free_memory() > MB
    assert device.describe()["name"]


@pytest.mark.skipif(sys.platform != "linux", reason="known on Linux only")
def test_the_peak_of_the_cpu() -> None:
    device = Cpu()
    before = device.reset_peak()
    assert before is not None
    torch.ones(64 * MB, dtype=torch.uint8)
    assert device.peak() - before > 60 * MB
    again = device.reset_peak()
    assert again is not None
    assert device.peak() - again < 30 * MB


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a card")
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "xpu"])
def test_a_device_that_is_not_there(name: str) -> None:
    remedy = "give one of cpu, or install torch for that device"
    with pytest.raises(UsageError, match=f"^--device {name}: [^\\n]*; {remedy}$"):
        device_of(name)


class FakeEvent:
    """One in a queue that the device works off when it is waited for: a millisecond for each."""

    recorded = 0
    done = 0

    def __init__(self, device: torch.device, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        FakeEvent.recorded += 1
        self.number = FakeEvent.recorded

    def synchronize(self) -> None:
        FakeEvent.done = max(FakeEvent.done, self.number)

    def elapsed_time(self, end: FakeEvent) -> float:
        assert FakeEvent.done >= end.number, "not waited for"
        return float(end.number - self.number)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """The CPU in the place of a card with 1 GB, of which 100 MB are in use and 300 MB were."""
    properties = SimpleNamespace(name="Card 5000", L2_cache_size=3 * MB)
    accelerator = SimpleNamespace(
        memory_stats=lambda where: {"allocated_bytes.all.peak": 300 * MB},
        reset_peak_memory_stats=lambda where: None,
        memory_allocated=lambda where: 100 * MB,
        max_memory_allocated=lambda where: 300 * MB,
        get_memory_info=lambda where: (900 * MB, 1024 * MB),
        synchronize=lambda where: None,
    )
    module = SimpleNamespace(get_device_properties=lambda where: properties)
    monkeypatch.setattr(torch, "Event", FakeEvent)
    monkeypatch.setattr(torch, "accelerator", accelerator)
    monkeypatch.setattr(torch, "get_device_module", lambda where: module)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return Accelerator(torch.device("cpu"))


def test_the_time_is_that_of_events(card: Accelerator) -> None:
    start, middle, end = card.mark(), card.mark(), card.mark()
    assert card.seconds(start, middle) == pytest.approx(1e-3)
    assert card.seconds(start, end) == pytest.approx(2e-3)


def test_more_than_the_cache_is_overwritten(
    card: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    card._flushed.fill_(1)
    card.flush()
    assert not card._flushed.any()
    assert card._flushed.nbytes > 3 * MB
    monkeypatch.setattr(torch, "get_device_module", lambda where: None)  # as mps: it says nothing
    assert Accelerator(torch.device("cpu"))._flushed.nbytes == 256 * MB


def test_the_memory_is_that_of_the_allocator(card: Accelerator) -> None:
    assert (card.reset_peak(), card.peak(), card.free_memory()) == (100 * MB, 300 * MB, 900 * MB)
    torch.accelerator.memory_stats = lambda where: {}  # type: ignore[assignment]
    assert card.reset_peak() is None


def test_the_card_and_its_versions_are_named(
    card: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def smi(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, stdout="580.65\n580.65\n")

    monkeypatch.setattr(devices.shutil, "which", lambda name: name)
    monkeypatch.setattr(devices.subprocess, "run", smi)
    monkeypatch.setattr(devices.metadata, "version", {"triton": "3.9.0"}.__getitem__)
    monkeypatch.setattr(devices.metadata, "PackageNotFoundError", KeyError)
    assert card.describe() == {
        "device": "cpu",
        "name": "Card 5000",
        "CUDA": "13.0",
        "driver": "580.65",
        "triton": "3.9.0",
    }


def test_the_rows_that_fit() -> None:
    case = Case("unsorted", 1_000_000, 512, 32)
    assert fitted(case, 512 * ROOM * 1_000_000) is case
    assert fitted(case, 512 * ROOM * 400_000).rows == 250_000
    assert fitted(Case("unsorted", 1, 10**7, 10), 1.0).rows == 1


def test_peers_of_the_cpu_are_left_out_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all were installed."""
    monkeypatch.setattr("softtopk.experiments.bench._peers.Package.version", lambda self: "1")
    cases = (Case("unsorted", 2, 20, 3), Case("sorted", 2, 20, 3))
    present, absent = survey(Settings(cases, device="cuda"))
    assert {key: status for key, (status, _) in absent.items()} == {
        "ott": "CPU only",
        "torchsort": "CPU only",
    }
    assert {"softtopk", "plain", "topk"} <= {peer.key for peer in present}
    assert not survey(Settings(cases))[1]


def test_only_the_peers_of_the_cases_are_surveyed() -> None:
    case = Case("unsorted", 2, 20, 3, peers=("softtopk", "topk"))
    present, absent = survey(Settings((case,)))
    assert [peer.key for peer in present] == ["softtopk", "topk"]
    assert not absent
