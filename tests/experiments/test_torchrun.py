"""`torchrun -m softtopk ...`: many processes end where one does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from softtopk import cli, knn

FAILING = str(Path(__file__).with_name("failing.py"))
KNN = (
    "knn", "train", "--method", "relaxed-subset", "--subset", "101", "--batch-size", "21",
    "--epochs", "4", "--threads", "1", "--optimizer", "sgd", "--lr", "0.05",
)  # fmt: skip
TRANSLATE = (
    "translate", "train", "--subset", "120", "--max-words", "4", "--vocab", "90", "--hidden", "16",
    "--embedding", "16", "--batch-size", "17", "--pretrain-epochs", "2", "--updates", "6",
    "--eval-every", "3", "--eval-sentences", "5", "--objective", "all", "--threads", "1",
    "--optimizer", "sgd", "--pretrain-lr", "0.5", "--lr", "0.1",
)  # fmt: skip


def torchrun(processes: int, *args: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={processes}", *args]


def run(processes: int, *args: str) -> subprocess.CompletedProcess[str]:
    """A command that has to end well; with one process, in this one."""
    if processes == 1:
        with pytest.raises(SystemExit) as caught:
            cli.main([*args])
        return subprocess.CompletedProcess(args, caught.value.code)  # type: ignore[arg-type]
    args = args if args[0].endswith(".py") or args[0].startswith("-") else ("-m", "softtopk", *args)
    done = subprocess.run(
        torchrun(processes, *args), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def curve(out: Path, part: str) -> list[dict[str, Any]]:
    """The metrics without the times."""
    lines = (out / part / "seed-0" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def assert_same_end(out: Path, expected: Path, *parts: str) -> None:
    """Up to float32, in which sums are taken in another order. Adam would make much of that: it
    divides gradients that are nothing but rounding errors by their size."""
    for part in parts:
        for found, wanted in zip(curve(out, part), curve(expected, part), strict=True):
            # A sample can be on the edge.
            assert found.pop("accuracy", 0) == pytest.approx(wanted.pop("accuracy", 0), abs=0.05)
            assert found == pytest.approx(wanted, rel=1e-4)
        folders = [folder / part / "seed-0" for folder in (out, expected)]
        weights = [load_file(folder / "model.safetensors") for folder in folders]
        torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)


def files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


@pytest.mark.slow
@pytest.mark.parametrize("number", ["INT", "TERM"])
def test_stopped_processes_save_and_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    run(1, *KNN, "--out", str(tmp_path / "one"))
    out = tmp_path / "run"
    monkeypatch.setenv("SIGNAL", number)
    command = torchrun(2, FAILING, *KNN, "--out", str(out))
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    assert done.stdout.count("stopped; go on with: torchrun --nproc-per-node 2 -m softtopk") == 1
    assert done.stderr.count("stopping after this step") == 1
    assert "another process" not in done.stderr
    assert (out / "relaxed-subset" / "seed-0" / "checkpoint.pt").exists()
    run(1, "knn", "train", "--out", str(out), "--resume")
    assert_same_end(out, tmp_path / "one", "relaxed-subset")
    assert files(out) == files(tmp_path / "one")


def test_a_restart_goes_on_with_the_run_of_the_same_command_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["knn", "train", "--method", "knn", "--subset", "50", "--out", str(tmp_path / "run")]
    assert run(1, *command).returncode == 0
    assert run(1, *command).returncode == 2  # there is a run already
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run(1, *command).returncode == 0
    assert run(1, *command, "--k", "3").returncode == 2
    assert run(1, *command, "--seed", "1").returncode == 2


@pytest.mark.slow
def test_a_failure_ends_all_and_a_restart_goes_on(tmp_path: Path) -> None:
    run(1, *KNN, "--out", str(tmp_path / "one"))
    out = tmp_path / "run"
    done = run(2, "--max-restarts=1", FAILING, *KNN, "--out", str(out))
    assert re.search(r"process 0 of 2: another process has ended.*go on with: torch", done.stderr)
    assert "resumed at step 10 of 20" in done.stdout
    assert_same_end(out, tmp_path / "one", "relaxed-subset")


@pytest.mark.slow
def test_any_number_of_processes_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process begins, two go on, and three: each is stopped by a failure."""
    run(1, *KNN, "--out", str(tmp_path / "one"))
    out = tmp_path / "run"
    advance = knn.Training.advance

    def fail(self: knn.Training) -> dict[str, float]:
        if self.step == 7:
            raise KeyboardInterrupt
        return advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(knn.Training, "advance", fail)
        assert run(1, *KNN, "--out", str(out)).returncode == 130
    again = ["knn", "train", "--resume", "--out", str(out)]
    command = torchrun(2, FAILING, *again)
    failed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert failed.returncode != 0
    assert "resumed at step 5 of 20" in failed.stdout
    assert "resumed at step 10 of 20" in run(3, *again).stdout
    assert_same_end(out, tmp_path / "one", "relaxed-subset")


@pytest.mark.slow
def test_translations_of_two_processes(tmp_path: Path) -> None:
    run(1, *TRANSLATE, "--out", str(tmp_path / "one"))
    run(2, *TRANSLATE, "--out", str(tmp_path / "two"))
    stages = ("pretrain", "teacher-forcing", "soft-beam", "membership", "risk")
    assert_same_end(tmp_path / "two", tmp_path / "one", *stages)
    assert files(tmp_path / "two") == files(tmp_path / "one")


@pytest.mark.slow
def test_processes_that_were_given_other_options_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "differing.py"
    script.write_text(
        "import os, sys\n"
        "from softtopk import cli\n"
        "cli.main([*sys.argv[1:], '--weight-decay', '0.' + os.environ['RANK']])\n"
    )
    command = torchrun(2, str(script), *KNN, "--out", str(tmp_path / "run"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "process 1 has another weight_decay than process 0 (0.1, not 0.0)" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "pytorch_lightning"])
def test_the_examples_learn_with_two_processes(library: str) -> None:
    pytest.importorskip(library)
    name = f"knn_{library.removeprefix('pytorch_')}.py"
    said = run(2, str(Path(__file__).parents[2] / "examples" / name)).stdout
    assert float(re.findall(r"test accuracy ([\d.]+) %", said)[0]) > 95
    assert said.count("test accuracy") == 1
