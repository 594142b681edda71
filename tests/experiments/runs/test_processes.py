"""What processes that train together tell each other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ranks

from softtopk._training import DivergedError
from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import Interrupt, Report, open_run, processes, train


def outcome(work: Any) -> Any:
    """The result, or the error as text."""
    try:
        return work()
    except BaseException as error:
        return repr(error)


def fail(error: Exception) -> None:
    raise error


class Once:
    """A training of four steps, which asks to be stopped in the second one, if it ``stops``."""

    steps_per_epoch, total_steps = 2, 4

    def __init__(self, interrupt: Interrupt, stops: bool) -> None:
        self.step, self._interrupt, self._stops = 0, interrupt, stops

    def advance(self) -> dict[str, float]:
        self.step += 1
        self._interrupt.requested |= self._stops and self.step == 2
        return {"loss": float(self.step)}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def talk(group: Any, folder: Path) -> list[Any]:
    processes._patient = group
    rank = processes.rank()
    found = [
        processes.lead(lambda: rank + 7),
        outcome(lambda: processes.lead(lambda: fail(UsageError("--out")))),
        outcome(lambda: processes.lead(lambda: fail(DivergedError("inf")))),
        processes.agreed(rank == 1),
        processes.agreed(False),
        outcome(lambda: processes.check_agreement({"lr": 0.1}, data=lambda: b"same")),
        outcome(lambda: processes.check_agreement({"lr": 0.1}, data=lambda: bytes([rank]))),
    ]
    # The second process is asked to stop; all do, and the first one saves.
    run = processes.lead(lambda: open_run(folder / "run", {}, resume=False))
    for stops in (rank == 1, False):
        interrupt, report = Interrupt(), Report()
        training = Once(interrupt, stops)
        ended = outcome(partial(train, training, run, report, interrupt, title="walk"))
        found += [ended if isinstance(ended, str) else "ended", training.step]
    return found


def test_processes_agree(tmp_path: Path) -> None:
    first, second = ranks.run_alone(2, talk, tmp_path)
    assert first[0] == second[0] == 7
    assert (first[1], second[1]) == ("UsageError('--out')", "SystemExit(1)")
    assert first[2] == second[2] == "DivergedError('inf')"
    assert first[3:6] == second[3:6] == [True, False, None]
    assert first[6] == second[6]
    assert "process 1 has another data than process 0" in first[6]
    assert first[7:] == second[7:] == ["Interrupted()", 2, "ended", 4]
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2  # one writer


@pytest.mark.parametrize("device", ["mps", "meta"])
def test_a_device_that_processes_cannot_share_is_refused(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UsageError, match=f"--device {device}"), processes.joined(device):
        pass
