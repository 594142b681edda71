"""`softtopk bench` as users meet it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from softtopk import cli
from softtopk.experiments.bench import PRESETS, Record, _command, _correctness
from softtopk.experiments.bench._presets import on_device
from softtopk.experiments.bench._probe import Probe

TINY = ("--size", "2x16x3", "--peers", "topk", "--repeats", "3", "--threads", "1")


def exit_code(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *args])
    return caught.value.code


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every operator and peer, instead of checking it or trying it in another process."""
    monkeypatch.setattr(_command, "failures", lambda device: ())
    real = _command.run

    def run(*args: Any) -> Any:
        return real(*args, try_once=lambda peer, case, **_: Probe("measured", "", 1e-3, 10**6))

    monkeypatch.setattr(_command, "run", run)


def test_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way once, with some of the checks, and the trial in another process."""
    some = partial(_correctness.failures, examples=_correctness.EXAMPLES[::8])
    monkeypatch.setattr(_command, "failures", some)
    assert exit_code(*TINY, "--out", str(tmp_path)) == 0
    out = capsys.readouterr().out
    assert "unsorted, 2 x 16, k = 3, eps = 0.1" in out
    assert "sorted, 2 x 16, k = 3, eps = 0.1" in out
    assert "softtopk" in out
    assert f"results: {tmp_path / 'results.json'}" in out.replace("\n", "")
    data = json.loads((tmp_path / "results.json").read_text())
    peers = [result["peer"] for result in data["cases"][0]["results"]]
    assert peers[0] == "softtopk"
    assert "topk" in peers


@pytest.mark.usefixtures("fast")
def test_pictures_go_where_they_are_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [c for c in PRESETS["quick"].cases if c.operator == "unsorted" and c.n <= 1000]
    monkeypatch.setitem(PRESETS, "quick", _command.PRESETS["quick"].__class__(tuple(small), 3, 1.0))
    images = tmp_path / "images"
    args = ("--preset", "quick", "--peers", "topk", "--threads", "1", "--out", str(tmp_path))
    assert exit_code(*args, "--images", str(images)) == 0
    assert {p.name for p in images.iterdir()} == {"time_against_n.png", "error_against_time.png"}
    assert {p.name for p in tmp_path.iterdir()} == {"images", "results.json", "results.md"}


@pytest.mark.usefixtures("fast")
def test_the_sizes_of_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preset in small, with all that it writes; the rows are those that fit."""
    tiny = replace(PRESETS["gpu"], cases=on_device([(2, 40, 3), (2**30, 64, 5)]), repeats=3)
    monkeypatch.setitem(PRESETS, "gpu", tiny)
    args = ("--preset", "gpu", "--memory", str(40 * 64 / 2**20), "--threads", "1")
    assert exit_code("--device", "cpu", *args, "--out", str(tmp_path)) == 0
    assert {p.name for p in tmp_path.iterdir()} == {
        "results.json",
        "results.md",
        "time_on_device.png",
    }
    record = Record.read(tmp_path / "results.json")
    card = record.environment["device"]["name"]
    assert f"device: {card} (cpu)" in capsys.readouterr().out
    page = (tmp_path / "results.md").read_text()
    assert page.startswith(f"# softtopk bench: {card}\n")
    head, *rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert head == (
        "|  | softtopk | softtopk without kernels | torch.sort | torch.topk | torch.softmax |"
    )
    assert [row.split(" | ")[0] for row in rows] == [
        "| unsorted, 2 x 40, k = 3, eps = 0.1",
        "| unsorted, 512 x 64, k = 5, eps = 0.1",
        "| unsorted, 2 x 40, k = 3, eps = 0.1, bfloat16",
        "| unsorted, 512 x 64, k = 5, eps = 0.1, bfloat16",
    ]
    for done in record.cases:
        low, high = (0.0, 1e-6) if done.case.dtype == "float32" else (1e-4, 4e-3)  # it is rounded
        for peer in ("softtopk", "plain"):
            result = done.of(peer)
            assert result is not None
            assert result.error is not None
            assert low < result.error < high


def test_nothing_is_timed_if_an_operator_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [f"soft_topk, {number} x 64: value off" for number in range(30)]
    monkeypatch.setattr(_command, "failures", lambda device: wrong)
    monkeypatch.setattr(_command, "run", None)  # the work does not begin
    assert exit_code(*TINY, "--out", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert "wrong on cpu, compared with float64 on the CPU:\n  soft_topk, 0 x 64: value off" in out
    assert "30 checks failed, so nothing is timed" in out
    assert len(out.splitlines()) < 20
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("fast")
def test_an_interrupt_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = _command.RichReport.case, []

    def case(self: Any, number: int, *rest: Any) -> None:
        calls.append(number)
        if number == 2:
            raise KeyboardInterrupt
        real(self, number, *rest)

    monkeypatch.setattr(_command.RichReport, "case", case)
    assert exit_code(*TINY, "--out", str(tmp_path)) == 130
    assert "interrupted with 1 cases done; --resume does the others" in capsys.readouterr().out
    monkeypatch.setattr(_command.RichReport, "case", real)
    assert exit_code(*TINY, "--out", str(tmp_path), "--resume") == 0
    assert "(from an earlier run)" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "results.json").read_text())["cases"]) == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--preset", "fast"), "--preset 'fast': give one of full, quick, gpu, targets"),
        (("--size", "128x1000"), "--size '128x1000': give ROWSxNxK"),
        (("--size", "1x5x5"), "--size '1x5x5': need ROWS >= 1 and 0 < K < N"),
        (("--eps", "1"), "--eps 1: the presets have their own; give it with --size"),
        (("--eps", "-1", "--size", "1x5x2"), "--eps -1: give a number above 0"),
        (("--peers", "pto"), "--peers 'pto': give one or more of softtopk"),
        (("--repeats", "1"), "--repeats 1: give a number of at least 3"),
        (("--threads", "0"), "--threads 0: give a number from 1 to"),
        (("--device", "abacus"), "--device abacus: "),
        (("--device", "meta"), "--device meta: Cannot copy out of meta tensor"),
    ],
)
def test_a_wrong_option_is_named(
    args: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert exit_code(*args) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "extra"), [("rich", "cli"), ("matplotlib", "plot")])
def test_a_missing_dependency_names_its_extra(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(_command.UsageError, match=rf"needs {name}: pip install 'softtopk\[{extra}"):
        _command.main(_command.Options(preset="quick"), {"out": tmp_path})


def test_presets_hold_what_they_promise() -> None:
    full = PRESETS["full"].cases
    ns = [c.n for c in full if (c.series, c.operator) == ("time against n", "unsorted")]
    assert ns == [10**e for e in range(2, 8)]
    assert any(c.series == "attention" and c.rows == 8 * 8 * 512 for c in full)
    assert any(c.operator == "sorted" for c in PRESETS["quick"].cases)
    gpu = [(c.rows, c.n, c.dtype) for c in PRESETS["gpu"].cases]
    for size in ((4096, 1024), (10**6, 512), (128, 8192), (64, 10**5), (8, 10**6), (1, 10**7)):
        assert {(*size, "float32"), (*size, "bfloat16")} <= set(gpu)
    for preset in PRESETS.values():
        assert len(set(preset.cases)) == len(preset.cases)


def test_importing_the_benchmark_loads_no_optional_dependency() -> None:
    code = "import softtopk.experiments.bench, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(loaded) & {"cyclopts", "rich", "matplotlib", "ot", "jax", "entmax", "difftopk"}


@pytest.mark.parametrize("option", ["--out", "--images"])
def test_at_most_the_folder_that_was_given_is_made(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(_command, "run", None)  # the work does not begin
    (tmp_path / "file").touch()
    args = (*TINY, *(("--out", str(tmp_path / "out")) if option == "--images" else ()))
    for place, message in (
        ("missing/below", "there is no folder"),
        ("file/below", "there is no folder"),
        ("file", "it is a file; give a folder"),
    ):
        assert exit_code(*args, option, str(tmp_path / place)) == 2
        assert f"{option} {tmp_path / place}: {message}" in capsys.readouterr().err
    assert not (tmp_path / "missing").exists()


def ended_process() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.usefixtures("fast")
def test_the_draft_of_a_killed_benchmark_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / f".results.json.{ended_process()}.tmp").write_text("half")
    assert exit_code(*TINY, "--out", str(out)) == 0
    assert not list(out.glob(".*.tmp"))


@pytest.mark.usefixtures("fast")
def test_a_full_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(os, "fsync", fsync)
    assert exit_code(*TINY, "--out", str(tmp_path / "out")) == 2
    assert "results.json: No space left on device" in capsys.readouterr().err
