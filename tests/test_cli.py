"""The command line and what it reports."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata

import pytest
import torch

from softtopk import _environment, cli, kernels
from softtopk.cli._info import describe

VERSION = metadata.version("softtopk")


def run(*command: str) -> str:
    """What a Python process of its own prints: the command line as users meet it."""
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def exit_code(*args: str) -> int | str | None:
    """Run a command in this process, which is faster: every process has to load torch."""
    with pytest.raises(SystemExit) as caught:
        cli.main(args)
    return caught.value.code


def rows(text: str) -> dict[str, str]:
    return dict(re.split(r":\s+", line, maxsplit=1) for line in text.splitlines())


@pytest.fixture(scope="module")
def info() -> dict[str, str]:
    return rows(run("-m", "softtopk", "info"))


def test_info_prints_one_fact_per_line(info: dict[str, str]) -> None:
    assert info["softtopk"] == VERSION
    assert platform.python_version() in info["Python"]
    assert info["torch"] == torch.__version__
    assert info["cyclopts"] == metadata.version("cyclopts")
    assert int(info["CPU threads"]) >= 1
    assert info["devices"].startswith("cpu")
    assert info["kernels"] == str(kernels.status())


def test_info_json_has_the_same_facts(info: dict[str, str]) -> None:
    facts = json.loads(run("-m", "softtopk", "info", "--json"))
    assert facts["softtopk"] == info["softtopk"]
    assert facts["python"] == info["Python"]
    assert facts["platform"] == info["platform"]
    assert facts["torch"] == info["torch"]
    assert facts["optional"] == {name: info[name] for name in _environment.OPTIONAL}
    assert str(facts["cpu_threads"]) == info["CPU threads"]
    assert str(kernels.Status(**facts["native"])) == info["kernels"]
    assert ", ".join(["cpu", *facts["accelerators"]]) == info["devices"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"softtopk {VERSION}\n"


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code() == 0
    out = capsys.readouterr().out
    assert "Usage" in out
    assert "info" in out


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("nonsense") == 2
    assert "nonsense" in capsys.readouterr().err


def test_info_works_without_cyclopts() -> None:
    block = "import sys; sys.modules['cyclopts'] = None; sys.modules['rich'] = None; "
    text = run("-c", block + "from softtopk.cli import main; main()", "info")
    assert rows(text)["softtopk"] == VERSION


def test_version_works_without_cyclopts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    cli.main(["--version"])
    assert capsys.readouterr().out == f"softtopk {VERSION}\n"


@pytest.mark.parametrize("args", [[], ["info", "--json"], ["nonsense"]])
def test_all_else_without_cyclopts_names_the_extra(
    args: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    message = exit_code(*args)  # Python prints a message given as exit code and exits with 1
    assert isinstance(message, str)
    assert "pip install 'softtopk[cli]'" in message
    assert "\n" not in message
    assert capsys.readouterr().out == ""


def test_a_broken_cyclopts_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cyclopts"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cyclopts.core", None)
    with pytest.raises(ModuleNotFoundError, match=r"cyclopts\.core"):
        cli.main(["info"])


def test_importing_the_command_line_loads_no_optional_dependency() -> None:
    loaded = run("-c", "import softtopk.cli, sys; print(*sys.modules)").split()
    assert "softtopk.cli" in loaded
    assert not set(loaded) & {"cyclopts", "rich", "matplotlib", "sklearn", "faiss"}


def test_missing_dependency_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_environment.OPTIONAL, "no-such-distribution", "plot")
    text = describe(_environment.collect())
    assert rows(text)["no-such-distribution"] == "not installed (pip install 'softtopk[plot]')"


def test_accelerators_are_listed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    environment = _environment.collect()
    assert environment.accelerators == ("meta:0", "meta:1")
    facts = rows(describe(environment))
    assert facts["devices"] == "cpu, meta:0, meta:1"
    assert facts["kernels on meta:1"] == (
        "plain PyTorch operations: there are no kernels for the device meta"
    )


def test_the_extras_are_those_of_the_package() -> None:
    declared: dict[str, str] = {}
    for requirement in metadata.requires("softtopk") or []:
        extras = "cli|plot|knn|tables|translate|transformers|graphs|triton"
        match = re.match(rf"([\w-]+).*extra == .({extras}).$", requirement)
        if match:
            declared.setdefault(match[1], match[2])
    assert declared == _environment.OPTIONAL


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space"), "softtopk: No space; see to that"),
        (OSError(errno.EROFS, "Read-only", "a.png"), "softtopk: a.png: Read-only; see to that"),
    ],
)
def test_a_refusal_of_the_system_is_a_message(
    error: OSError,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr(_environment, "collect", refuse)
    assert exit_code("info") == 2
    assert capsys.readouterr().err.startswith(message)


def test_the_end_of_a_pipe_is_no_error() -> None:
    """As in `softtopk info | head`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        process = subprocess.run(
            [sys.executable, "-m", "softtopk", "info"], stdout=pipe, stderr=subprocess.PIPE
        )
    assert (process.returncode, process.stderr) == (1, b"")
