"""benchmarks/gpu_check.py: the kernels compile for GPUs, without one, and do not spill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")
from softtopk.kernels._triton._configuration import (
    LONGEST_IN_REGISTERS,
    Device,
    Short,
    configuration,
    options,
)

ROOT = Path(__file__).resolve().parents[2]
LARGER_ROWS = """
import runpy, sys, torch
from softtopk.kernels._triton import _configuration
_configuration.LONGEST_IN_REGISTERS[torch.float32] = 32768
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def gpu_check(*arguments: str, before: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = str(ROOT / "benchmarks" / "gpu_check.py")
    return subprocess.run(
        [sys.executable, *(before or []), script, "--jobs", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        check=False,
    )


def test_the_largest_kernels_do_not_spill(tmp_path):
    run = gpu_check("--quick", "--only", "gfx942", "float32", "--out", str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    records = json.loads((tmp_path / "results.json").read_text())
    assert {record["kernel"] for record in records} == {"forward", "backward"}
    assert all(record["spilled"] == 0 for record in records)
    assert "4 kernels, of which 0 spill" in run.stdout


@pytest.mark.slow
def test_all_of_the_quick_check(tmp_path):
    run = gpu_check("--quick", "--out", str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_a_kernel_that_spills_is_found(tmp_path):
    run = gpu_check(
        *("--quick", "--only", "sm_90", "float32", "--out", str(tmp_path)),
        before=["-c", LARGER_ROWS],
    )
    assert run.returncode == 1
    assert "bytes spilled" in run.stdout


@given(
    n=st.integers(1, 3_000_000),
    rows=st.integers(1, 2_000_000),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    device=st.builds(Device, st.integers(1, 400), st.sampled_from([32, 64])),
)
def test_a_configuration(n, rows, dtype, device):
    cut = configuration(n, rows, dtype, device)
    assert cut == configuration(n, rows, dtype, device)
    assert isinstance(cut, Short) == (n <= LONGEST_IN_REGISTERS[dtype])
    threads = cut.warps * device.threads_per_warp
    assert cut.warps & (cut.warps - 1) == 0
    assert threads <= 1024
    registers = options(cut, device).get("maxnreg")
    assert (registers is None) == (device.threads_per_warp == 64)
    if registers is not None:
        assert threads * registers <= 65536
    if isinstance(cut, Short):
        assert n <= cut.columns < max(2 * n, 16)
        assert cut.columns & (cut.columns - 1) == 0
        if cut.rows > 1:  # no multiprocessor is idle for it
            assert cut.rows * device.multiprocessors <= rows
    elif cut.programs > 1:
        # All run at once, each has something to do, and a power of two is an argument.
        assert cut.programs * rows <= device.multiprocessors
        assert (cut.programs - 1) * cut.block < n
        assert cut.programs <= cut.padded < 2 * cut.programs
