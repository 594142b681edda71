"""A run can be stopped at any time and goes on to the same end."""

from __future__ import annotations

import io
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import (
    DamagedCheckpointWarning,
    Interrupt,
    Interrupted,
    Report,
    Run,
    Table,
    announce,
    find_runs,
    locked,
    open_run,
    read_sealed,
    train,
    write_atomic,
    write_sealed,
)

EPOCHS, STEPS = 3, 4


class Walk:
    """A training whose state depends on every step before; can fail or be interrupted in one."""

    steps_per_epoch = STEPS
    total_steps = EPOCHS * STEPS

    def __init__(self, stop_at: int | None = None, stop: Any = None) -> None:
        self.step, self.state = 0, torch.zeros(2, dtype=torch.float64)
        self._stop_at, self._stop = stop_at, stop

    def advance(self) -> dict[str, float]:
        if self.step == self._stop_at:
            self._stop()
        self.state = (self.state * 1.7 + self.step + 1).sin()
        self.step += 1
        return {"loss": float(self.state[0]), "accuracy": float("nan")}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "state": self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.state = state["step"], state["state"]


class CrashError(Exception):
    """Stands for whatever ends a process without notice."""


def crash() -> None:
    raise CrashError


def quiet() -> tuple[Report, io.StringIO]:
    text = io.StringIO()
    return Report(Console(file=text, width=100)), text


def run_to_end(run: Run, walk: Walk, every: float = 0.0) -> None:
    with Interrupt() as interrupt:
        train(walk, run, quiet()[0], interrupt, title="walk", seconds_between_checkpoints=every)


def curve(run: Run) -> list[tuple[int, int, float]]:
    return [(m["epoch"], m["step"], m["loss"]) for m in run.metrics]


@pytest.fixture
def uninterrupted(tmp_path: Path) -> tuple[torch.Tensor, list[tuple[int, int, float]]]:
    run, walk = open_run(tmp_path / "whole", {}, resume=False), Walk()
    run_to_end(run, walk)
    return walk.state, curve(run)


@pytest.mark.parametrize("every", [0.0, 1e9], ids=["each step", "each epoch"])
@pytest.mark.parametrize("at", range(EPOCHS * STEPS))
def test_a_crash_changes_nothing(tmp_path: Path, uninterrupted: Any, at: int, every: float) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    with pytest.raises(CrashError):
        run_to_end(run, Walk(at, crash), every)
    walk = Walk()
    run_to_end(open_run(tmp_path / "run", {}, resume=True), walk, every)
    assert torch.equal(walk.state, uninterrupted[0])
    assert curve(run) == uninterrupted[1]


def test_what_was_logged_after_the_checkpoint_is_not_there_twice(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.log({"epoch": 1})
    run.save({})
    run.log({"epoch": 2})
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')  # the process was killed while it wrote
    assert run.load() == {}
    assert run.metrics == [{"epoch": 1}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_waits_for_the_step_and_saves(
    tmp_path: Path, uninterrupted: Any, number: signal.Signals
) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    walk = Walk(5, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Interrupted):
        run_to_end(run, walk, every=1e9)
    assert walk.step == 6  # the step in which it came is complete
    again = Walk()
    state = run.load()
    assert state is not None
    assert state["training"]["step"] == 6
    run_to_end(run, again)
    assert torch.equal(again.state, uninterrupted[0])
    assert curve(run) == uninterrupted[1]


def test_the_second_interrupt_acts_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.requested
        with pytest.raises(Interrupted):
            interrupt.check()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_are_left_alone_outside_the_main_thread() -> None:
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            with Interrupt() as interrupt:
                interrupt.check()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not errors


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    open_run(tmp_path / "run", {"lr": 1.0}, resume=False)
    with pytest.raises(UsageError, match="--resume"):
        open_run(tmp_path / "run", {"lr": 1.0}, resume=False)


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    open_run(tmp_path / "run", {"lr": 1.0, "seeds": [0]}, resume=False)
    with pytest.raises(UsageError, match=r"lr was 1\.0, not 2\.0"):
        open_run(tmp_path / "run", {"lr": 2.0, "seeds": [0]}, resume=True, free=["seeds"])
    open_run(tmp_path / "run", {"lr": 1.0, "seeds": [0, 1]}, resume=True, free=["seeds"])
    assert Run(tmp_path / "run").config["seeds"] == [0, 1]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(UsageError, match="other files"):
        open_run(tmp_path, {}, resume=False)


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="--out"):
        open_run(tmp_path / "out", {}, resume=False)
    with pytest.raises(UsageError, match="--out"), locked(tmp_path / "out"):
        pass


@pytest.mark.parametrize("written", [0, 1])
def test_a_run_can_be_killed_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    calls = []

    def write(path: Path, data: Any) -> None:
        if len(calls) == written:
            crash()
        calls.append(path)
        write_sealed(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("softtopk.experiments.runs._directory.write_sealed", write)
        with pytest.raises(CrashError):
            open_run(tmp_path / "run", {"lr": 1.0}, resume=False)
    assert open_run(tmp_path / "run", {"lr": 1.0}, resume=True).config["lr"] == 1.0


def test_a_start_that_was_killed_is_made_again_and_knows_its_own_files(tmp_path: Path) -> None:
    announce(tmp_path / "run", ["data", "init"])
    (tmp_path / "run" / "data").mkdir()
    with locked(tmp_path / "run"):
        announce(tmp_path / "run", ["data", "init"])  # once more, as the same command does
    (tmp_path / "run" / "thesis.tex").write_text("...")
    with pytest.raises(UsageError, match="other files"):
        open_run(tmp_path / "run", {}, resume=True)
    (tmp_path / "run" / "thesis.tex").unlink()
    open_run(tmp_path / "run", {}, resume=False)
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {
        ".lock", "config.json", "data", "environment.json",
    }  # fmt: skip
    with pytest.raises(UsageError, match="a run already"):
        announce(tmp_path / "run", ["data"])


def test_nothing_is_announced_among_files_of_others(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()  # of somebody else, though it has the name
    with pytest.raises(UsageError, match="other files"):
        announce(tmp_path, ["data"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["data"]


def test_metrics_are_json_without_nan(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.log({"epoch": 1, "loss": 0.5, "accuracy": float("nan")})
    assert run.metrics == [{"epoch": 1, "loss": 0.5}]


def test_a_run_that_starts_again_has_no_past(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.log({"epoch": 1})
    run.save({"step": 1})
    run.restart()
    assert run.metrics == []
    assert run.load() is None


def test_tuples_in_a_config_are_equal_to_the_lists_they_become(tmp_path: Path) -> None:
    open_run(tmp_path / "run", {"shape": (1, 2)}, resume=False)
    assert open_run(tmp_path / "run", {"shape": (1, 2)}, resume=True).config["shape"] == [1, 2]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"softtopk checkpoint 2\n" + bytes(100)])
def test_another_file_in_place_of_a_checkpoint_is_named(tmp_path: Path, content: bytes) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.log({"epoch": 1})
    (run.path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(UsageError, match=r"checkpoint\.pt is damaged or not a checkpoint.* delete"):
        run.load()
    assert run.metrics == [{"epoch": 1}]


def two_checkpoints(run: Run) -> list[Path]:
    """The last one and the one before, each after a record."""
    for epoch in (1, 2):
        run.log({"epoch": epoch})
        run.save({"step": epoch})
    return [run.path / name for name in ("checkpoint.pt", "checkpoint.before.pt")]


@pytest.mark.parametrize("place", [0, 30, 90, -1, None])
def test_a_damaged_checkpoint_costs_no_more_than_the_last_steps(
    tmp_path: Path, place: int | None
) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    last, _ = two_checkpoints(run)
    data = bytearray(last.read_bytes())
    if place is None:
        del data[len(data) // 2 :]
    else:
        data[place] ^= 4
    last.write_bytes(data)
    with pytest.warns(DamagedCheckpointWarning, match=r"checkpoint\.pt is damaged.*goes on from"):
        assert run.load() == {"step": 1}
    assert run.metrics == [{"epoch": 1}]
    run.save({"step": 2})  # does not put the damaged one in place of the good one
    last.write_bytes(b"")
    with pytest.warns(DamagedCheckpointWarning):
        assert run.load() == {"step": 1}
    last.write_bytes(b"")
    with pytest.raises(UsageError, match=rf"delete {last} to start this run again"):
        run.load()


def test_two_damaged_checkpoints_are_both_named(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    last, before = two_checkpoints(run)
    for file in (last, before):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match=rf"{last} is damaged.*delete {last} and {before} to"):
        run.load()
    assert run.metrics == [{"epoch": 1}, {"epoch": 2}]


def test_a_kill_between_the_two_names_of_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = open_run(tmp_path / "run", {}, resume=False), os.replace
    run.save({"step": 1})

    def replace(source: Path, target: Path) -> None:
        if target == run.path / "checkpoint.pt":
            crash()
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(CrashError):
            run.save({"step": 2})
    assert not (run.path / "checkpoint.pt").exists()
    assert run.load() == {"step": 1}


def test_a_checkpoint_of_other_settings_is_refused_without_any_metrics(tmp_path: Path) -> None:
    config = {"lr": 1.0, "device": "cpu"}
    for name, changed in (("one", {"lr": 2.0}), ("two", {"device": "cuda"})):
        run, other = (
            open_run(tmp_path / name / part, settings, resume=False, free=["device"])
            for part, settings in (("run", config), ("other", config | changed))
        )
        other.save({"step": 1})
        (other.path / "checkpoint.pt").rename(run.path / "checkpoint.pt")
        if name == "two":  # may change
            assert run.load() == {"step": 1}
            continue
        with pytest.raises(UsageError, match="is a checkpoint of another run: delete"):
            run.load()


def test_what_a_killed_process_could_not_remove_is_removed(tmp_path: Path) -> None:
    open_run(tmp_path, {}, resume=False)
    done, begun = finished_and_not(tmp_path)
    left = [done.path / "checkpoint.pt", done.path / "checkpoint.before.pt"]
    for file in (*left, tmp_path / ".start.json"):
        file.write_bytes(b"")
    with locked(tmp_path):
        assert not [file for file in (*left, tmp_path / ".start.json") if file.exists()]
        assert (begun.path / "checkpoint.pt").exists()


def test_a_file_and_its_name_are_on_the_disk_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order, or a loss of power can leave a name without a content."""
    done: list[str] = []
    real = os.replace

    def sync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")

    def replace(source: Path, target: Path) -> None:
        done.append("name")
        real(source, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomic(tmp_path / "file", "text")
    assert done == ["file", "name", "folder"]


def test_a_state_dict_is_not_a_checkpoint(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.log({"epoch": 1})
    torch.save({"logged": 0, "state": {"weight": torch.ones(2)}}, run.path / "checkpoint.pt")
    with pytest.raises(UsageError, match=r"checkpoint\.pt is damaged or not a checkpoint"):
        run.load()
    assert run.metrics == [{"epoch": 1}]


def test_weights_survive(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    with pytest.raises(UsageError, match="no trained weights"):
        run.load_weights()
    weights = {"w": torch.randn(3, 4).t(), "n": torch.tensor(3)}
    run.save_weights(weights)
    run.finish({})
    loaded = run.load_weights()
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    (run.path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"model\.safetensors is missing"):
        run.load_weights()


def finished_and_not(folder: Path) -> tuple[Run, Run]:
    """Two runs with every file that is read again."""
    runs = tuple(open_run(folder / name, {"lr": 0.1}, resume=False) for name in ("done", "begun"))
    for run in runs:
        for epoch in range(3):
            run.log({"epoch": epoch, "loss": 1 / (1 + epoch)})
        run.save({"step": 3, "state": torch.arange(50.0)})
    runs[1].log({"epoch": 3})  # after the checkpoint
    runs[0].save_weights({"w": torch.arange(60.0), "b": torch.ones(3)})
    runs[0].finish({"accuracy": 0.75})
    return runs[0], runs[1]


def read_everything(folder: Path) -> list[Any]:
    done, begun = Run(folder / "done"), Run(folder / "begun")
    state = begun.load()
    assert state is not None
    weights = {name: tensor.tolist() for name, tensor in done.load_weights().items()}
    return [
        done.config, done.environment, done.result, done.metrics, weights,
        begun.config, begun.environment, begun.metrics, state["step"], state["state"].tolist(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *(f"done/{name}" for name in ("config.json", "environment.json", "result.json")),
        *("done/metrics.jsonl", "done/model.safetensors"),
        *("begun/checkpoint.pt", "begun/metrics.jsonl"),
    ],
)
def test_one_changed_bit_anywhere_in_a_file_is_noticed(tmp_path: Path, name: str) -> None:
    finished_and_not(tmp_path)
    file, logged = tmp_path / name, tmp_path / "begun" / "metrics.jsonl"
    good, metrics = file.read_bytes(), logged.read_bytes()
    whole = len(good)
    if file == logged:  # what comes after the checkpoint does not count
        whole -= len(metrics.splitlines(keepends=True)[-1])
    for place in {*range(0, whole, max(1, whole // 40)), whole - 1}:
        for bit in range(8):
            changed = bytearray(good)
            changed[place] ^= 1 << bit
            file.write_bytes(changed)
            before = logged.read_bytes()
            with pytest.raises(UsageError) as caught:
                read_everything(tmp_path)
            assert str(file) in str(caught.value)
            assert re.search("restore it|delete", str(caught.value))
            if file.parent == logged.parent:  # and nothing was cut off
                assert logged.read_bytes() == before
    file.write_bytes(good)
    assert read_everything(tmp_path)[-2:] == [3, torch.arange(50.0).tolist()]


def test_a_file_that_is_cut_off_is_noticed(tmp_path: Path) -> None:
    finished_and_not(tmp_path)
    for file in sorted(tmp_path.glob("*/*.*")):
        good = file.read_bytes()
        for length in (0, len(good) // 2, len(good) - 30):
            file.write_bytes(good[:length])
            with pytest.raises(UsageError, match=re.escape(str(file))):
                read_everything(tmp_path)
        file.write_bytes(good)
        read_everything(tmp_path)


def test_a_config_that_was_changed_by_hand(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {"lr": 1.0}, resume=False)
    file = run.path / "config.json"
    file.write_text(file.read_text().replace("1.0", "2.0"))
    with pytest.raises(UsageError, match=r"changed by hand.*given as options"):
        open_run(run.path, {"lr": 2.0}, resume=True)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    one, other = (open_run(tmp_path / name, {}, resume=False) for name in ("one", "other"))
    for run, loss in ((one, 1.0), (other, 2.0)):
        run.log({"epoch": 1, "loss": loss})
        run.save({"step": 1})
    (one.path / "checkpoint.pt").write_bytes((other.path / "checkpoint.pt").read_bytes())
    with pytest.raises(UsageError, match=r"metrics\.jsonl is damaged.*delete .*checkpoint\.pt"):
        one.load()


def test_what_is_added_to_a_result_does_not_bless_a_damaged_file(tmp_path: Path) -> None:
    run, _ = finished_and_not(tmp_path)
    file = run.path / "metrics.jsonl"
    file.write_text(file.read_text().replace("1.0", "9.0"))
    run.finish({**(run.result or {}), "test": 1})
    with pytest.raises(UsageError, match=r"metrics\.jsonl is damaged"):
        Run(run.path).metrics  # noqa: B018


def test_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        run = open_run(tmp_path / "run", {}, resume=False)
        names = [f".model.safetensors.{process.pid}.tmp" for process in (ended, alive)]
        part = tmp_path / "run" / "a" / "seed-0"
        part.mkdir(parents=True)
        for folder in (run.path, part):
            for name in (*names, ".notes.tmp", f".config.json.{os.getpid()}.tmp"):
                (folder / name).write_text("half")
        with locked(run.path):
            left = {file.name for file in run.path.rglob(".*.tmp")}
            assert left == {names[1], ".notes.tmp"}
        alive.communicate(b"\n")


def test_the_metrics_of_a_run_that_was_killed_while_it_wrote_them(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.log({"epoch": 1})
    metrics = run.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes() + b'{"epoch": 2, "lo')
    assert run.metrics == [{"epoch": 1}]
    metrics.write_bytes(b'{"epoch"\n' + metrics.read_bytes())
    with pytest.raises(UsageError, match=r"metrics\.jsonl is damaged"):
        run.metrics  # noqa: B018


def test_a_finished_run_has_a_result_and_no_checkpoint(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    run.save({})
    assert run.result is None
    run.finish({"accuracy": 0.5})
    assert run.result is not None
    assert run.result["accuracy"] == 0.5
    assert not (run.path / "checkpoint.pt").exists()


def test_runs_are_found_below(tmp_path: Path) -> None:
    open_run(tmp_path / "all", {}, resume=False)
    for name in ("a", "b"):
        open_run(tmp_path / "all" / name, {}, resume=False)
    open_run(tmp_path / "alone", {}, resume=False)
    found = find_runs([tmp_path / "all", tmp_path / "alone"])
    assert [run.path.name for run in found] == ["a", "b", "alone"]
    (tmp_path / "all" / "model").mkdir()
    (tmp_path / "all" / "model" / "config.json").write_text('{"model_type": "bert"}')
    assert len(find_runs([tmp_path / "all"])) == 2
    (tmp_path / "all" / "a" / "config.json").write_text('{"format": 1')
    damaged = find_runs([tmp_path / "all"])[0]
    with pytest.raises(UsageError, match=r"config\.json is damaged"):  # not left out in silence
        damaged.config  # noqa: B018
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(UsageError, match=name):
            find_runs([tmp_path / name])


def test_a_config_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UsageError, match="not of softtopk"):
        open_run(tmp_path, {}, resume=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        open_run(tmp_path, {}, resume=True)
    write_sealed(tmp_path / "config.json", {"format": 0})
    with pytest.raises(UsageError, match="not that of a run of this version"):
        open_run(tmp_path, {}, resume=True)


def test_two_processes_do_not_share_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with (
        locked(folder),
        pytest.raises(UsageError, match="another process"),
        locked(folder),
    ):
        pass
    with locked(tmp_path / "run"):
        pass


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    write_sealed(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_sealed(path, {"a": float("nan")})
    assert read_sealed(path) == {"a": 1}
    with pytest.raises(TypeError):
        write_atomic(path, 3)  # type: ignore[arg-type]
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_the_surroundings_are_recorded(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    assert run.environment["torch"] == torch.__version__
    assert run.environment["cores"] == os.cpu_count()
    assert read_sealed(run.path / "environment.json") == run.environment


def test_a_log_has_a_line_for_each_epoch(tmp_path: Path) -> None:
    report, text = quiet()
    run = open_run(tmp_path / "run", {}, resume=False)
    with Interrupt() as interrupt:
        train(Walk(), run, report, interrupt, title="walk")
    lines = text.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [f"walk: epoch {e}" for e in (1, 2, 3)]
    assert "nan" not in text.getvalue()


def test_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    text = io.StringIO()
    report = Report(Console(file=text, force_terminal=True, width=120))
    with Interrupt() as interrupt:
        train(Walk(), open_run(tmp_path, {}, resume=False), report, interrupt, title="walk")
    assert "100%" in text.getvalue()
    assert "loss" in text.getvalue()


def test_a_warning_is_said_once() -> None:
    report, text = quiet()
    with report.warnings(), warnings.catch_warnings():
        warnings.simplefilter("always")
        for step in range(3):
            warnings.warn(f"step {step}", RuntimeWarning, stacklevel=1)
            warnings.warn(f"step {step}", UserWarning, stacklevel=1)
    said = [line.split(" (")[0] for line in text.getvalue().splitlines()]
    assert said == ["RuntimeWarning: step 0", "UserWarning: step 0"]


def test_tables_escape_their_cells() -> None:
    table = Table("T", ["a", "b"], [["x|y", "1"], ["[bold]", "2"]])
    assert table.to_markdown().splitlines()[2] == "| x\\|y | 1 |"
    report, text = quiet()
    report.console.print(table.to_rich())
    assert "[bold]" in text.getvalue()


class Evaluated(Walk):
    """Has a last epoch that is cut off, and a count of evaluations in its state."""

    total_steps = 2 * STEPS + 1

    def __init__(self, stop_at: int | None = None, stop: Any = None) -> None:
        super().__init__(stop_at, stop)
        self.evaluations = 0

    def evaluate(self) -> dict[str, float]:
        self.evaluations += 1
        return {"score": 10.0 * self.evaluations}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "evaluations": self.evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.evaluations = state["evaluations"]


@pytest.mark.parametrize("stop_at", [None, 2, STEPS, 2 * STEPS])
def test_every_epoch_is_evaluated_once_and_the_last_one_too(
    tmp_path: Path, stop_at: int | None
) -> None:
    run = open_run(tmp_path / "run", {}, resume=False)
    report, text = quiet()

    def go(walk: Evaluated) -> None:
        with Interrupt() as interrupt:
            train(
                walk, run, report, interrupt, title="walk", period="round", evaluate=walk.evaluate
            )

    if stop_at is not None:
        with pytest.raises(CrashError):
            go(Evaluated(stop_at, crash))
    go(Evaluated())
    found = [(m["round"], m["step"], m["score"]) for m in run.metrics]
    assert found == [(1, STEPS, 10.0), (2, 2 * STEPS, 20.0), (3, 2 * STEPS + 1, 30.0)]
    whole = Evaluated()
    losses = [whole.advance()["loss"] for _ in range(whole.total_steps)]
    assert run.metrics[-1]["loss"] == losses[-1]  # the mean of one step, not of an epoch's
    assert "round 3" in text.getvalue()
