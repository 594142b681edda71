"""Finding, choosing and loading the native library."""

from __future__ import annotations

import _ctypes
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from softtopk import _environment, kernels
from softtopk.cli._info import describe
from softtopk.kernels import _library

BUILT = (_library.FOLDER / _library.LIBRARY).exists()
needs_the_library = pytest.mark.skipif(not BUILT, reason="the native library was not built")


@pytest.fixture(autouse=True)
def _not_yet_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test loads the library afresh and leaves no trace, whatever the variable is outside."""
    monkeypatch.setattr(_library, "_outcome", None)
    monkeypatch.delenv(_library.VARIABLE, raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the library is looked for in."""
    monkeypatch.setattr(_library, "FOLDER", tmp_path)
    return tmp_path


def assert_unusable(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """By default the plain path is taken for this reason; if the library is required it raises."""
    assert kernels.native() is None
    assert not kernels.status().active
    assert not kernels.status().error
    assert reason in str(kernels.status())
    assert str(kernels.status()).startswith("plain PyTorch operations: the native library ")
    monkeypatch.setattr(_library, "_outcome", None)
    monkeypatch.setenv(_library.VARIABLE, "require")
    with pytest.raises(RuntimeError, match=r"SOFTTOPK_NATIVE=require, but the native") as caught:
        kernels.native()
    assert reason in str(caught.value)
    assert str(kernels.status()) == f"error: {caught.value}"


def test_where_a_compiler_was_found_the_library_is_built_and_loads() -> None:
    """A failed compilation is no error at installation, but it is one here."""
    status = kernels.status()
    if "no C++ compiler" in status.reason or "BUILD_NATIVE=skip" in status.reason:
        pytest.skip(status.reason)
    assert status.active, status.reason


@needs_the_library
@pytest.mark.parametrize("value", [None, "", "auto", "1", "on", "require", "Require"])
def test_the_library_is_used(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv(_library.VARIABLE, value)
    library = kernels.native()
    assert library is not None
    assert kernels.native() is library
    status = kernels.status()
    assert status.active
    assert not status.error
    assert status.instruction_set in {"AVX-512", "AVX2", "baseline"}
    assert str(status) == f"native ({status.instruction_set})"


@pytest.mark.parametrize("value", ["0", "off", "OFF"])
def test_the_library_can_be_left_aside(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_library.VARIABLE, value)
    assert kernels.native() is None
    assert str(kernels.status()) == f"plain PyTorch operations: SOFTTOPK_NATIVE={value}"


def test_a_value_without_meaning_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_library.VARIABLE, "yes")
    allowed = "auto, 1, on, require, 0, off, avx512, avx2, baseline"
    message = f"SOFTTOPK_NATIVE must be one of {allowed}, not 'yes'"
    for _ in range(2):  # not only the first time
        with pytest.raises(RuntimeError, match=message):
            kernels.native()
    assert str(kernels.status()) == f"error: {message}"


def test_the_variable_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_library.VARIABLE, "off")
    assert kernels.native() is None
    monkeypatch.setenv(_library.VARIABLE, "nonsense")
    assert kernels.native() is None


def test_the_reason_of_the_build_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / _library.REASON).write_text("no C++ compiler found at installation\n")
    assert_unusable(monkeypatch, "was not built (no C++ compiler found at installation)")


def test_a_missing_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_unusable(monkeypatch, f"is missing (there is no {folder / _library.LIBRARY})")


def test_a_file_that_is_no_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / _library.LIBRARY).write_text("nothing to execute\n")
    assert_unusable(monkeypatch, "does not load (")


def test_a_library_of_something_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(_ctypes.__file__, folder / _library.LIBRARY)
    assert_unusable(monkeypatch, "lacks the functions of softtopk")


@needs_the_library
@pytest.mark.parametrize("newer", [-1, 1])
def test_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch, newer: int) -> None:
    monkeypatch.setattr(_library, "ABI_VERSION", _library.ABI_VERSION + newer)
    assert_unusable(monkeypatch, f"this package needs {_library.ABI_VERSION}: reinstall")


@needs_the_library
def test_plain_switches_in_the_whole_process_and_back() -> None:
    seen = []
    with kernels.plain():
        with kernels.plain():
            assert kernels.native() is None
        thread = threading.Thread(target=lambda: seen.append(kernels.native()))
        thread.start()
        thread.join()
        assert seen == [None]
        reason = "inside softtopk.kernels.plain()"
        assert str(kernels.status()) == f"plain PyTorch operations: {reason}"
    assert kernels.native() is not None
    with pytest.raises(KeyError), kernels.plain():
        raise KeyError
    assert kernels.native() is not None


def test_threads_load_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = _library._Outcome(None, kernels.Status(active=False, reason="a test"))
    attempts = []

    def slow(*args: object) -> _library._Outcome:
        attempts.append(args)
        time.sleep(0.05)
        return outcome

    monkeypatch.setattr(_library, "_attempt", slow)
    together = threading.Barrier(8)
    seen = []

    def ask() -> None:
        together.wait()
        seen.append(kernels.status())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attempts) == 1
    assert seen == [outcome.status] * 8


def test_info_obeys_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_library.VARIABLE, "off")
    last = describe(_environment.collect()).splitlines()[-1]
    assert last.split(maxsplit=1) == ["kernels:", "plain PyTorch operations: SOFTTOPK_NATIVE=off"]


def test_info_tells_of_an_error_instead_of_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_library.VARIABLE, "nonsense")
    native = _environment.collect().native
    assert native.error
    assert not native.active
    assert native.instruction_set is None
    assert "not 'nonsense'" in native.reason


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (kernels.Status(active=True, reason="", instruction_set="AVX2"), "native (AVX2)"),
        (kernels.Status(active=False, reason="why"), "plain PyTorch operations: why"),
        (kernels.Status(active=False, reason="why", error=True), "error: why"),
    ],
)
def test_info_prints_each_state(
    status: kernels.Status, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "status", lambda: status)
    last = describe(_environment.collect()).splitlines()[-1]
    assert last.split(maxsplit=1) == ["kernels:", text]


@needs_the_library
@pytest.mark.parametrize("name", ["x", "mask", "tau", "indicator"])
def test_no_pointer_of_another_device_reaches_the_library(name: str) -> None:
    library = kernels.native()
    assert library is not None
    tensors = {
        "x": torch.randn(2, 5),
        "mask": torch.ones(2, 5, dtype=torch.bool),
        "tau": torch.ones(2, 1, dtype=torch.float64),
        "indicator": torch.empty(2, 5),
    }
    tensors[name] = tensors[name].to("meta")
    x, mask, tau, indicator = tensors.values()
    with pytest.raises(RuntimeError, match="device meta reached the native library"):
        library.threshold(x, mask, 2.0, tau, True, indicator=indicator)
