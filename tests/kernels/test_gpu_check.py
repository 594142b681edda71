"""The script that compiles the kernels for GPUs, in other processes: here triton interprets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
# Rows of a length that does not fit into registers, as if it did.
TOO_LONG = """
import sys, torch
from softtopk.kernels._triton import _configuration
_configuration.LONGEST_IN_REGISTERS[torch.float32] = 16_384
"""
# For each dtype and target, random problems: none may have a configuration that is not compiled.
COVERAGE = """
import random, torch, gpu_check
from gpu_check import TARGETS, cases, long_rows, short_rows
from softtopk.kernels._triton._configuration import Device, Short, configuration

def key(rows, n, compute, device):
    cut = configuration(n, rows, compute, device)
    size = (cut.rows, cut.columns) if isinstance(cut, Short) else (cut.padded, cut.block)
    return type(cut).__name__, cut.warps, *size

random.seed(0)
for name, target in TARGETS.items():
    for dtype in (torch.float32, torch.float64):
        known = {
            key(case.rows, case.n, dtype, target.device)
            for case in cases(name)
            if case.dtype == str(dtype).removeprefix("torch.")
            and not (case.k or case.ragged)
        }
        for _ in range(5_000):
            rows, n = (int(2 ** random.uniform(0, bits)) for bits in (16, 27))
            device = target.device._replace(
                multiprocessors=random.randint(1, target.device.multiprocessors)
            )
            assert key(rows, n, dtype, device) in known, (rows, n, dtype, device)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(FOLDER), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def check(
    folder: Path, *words: str, before: str = "import sys"
) -> subprocess.CompletedProcess[str]:
    arguments = ["--jobs", "1", "--out", str(folder), "--only", *words]
    return run("-c", f"{before}\nimport gpu_check\nsys.exit(gpu_check.main({arguments!r}))")


def table_of(output: str) -> list[dict[str, str]]:
    lines = [line for line in output.splitlines() if line.startswith("|")]
    names, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.slow  # what `make gpu-check` looks at
def test_kernels_that_fit(tmp_path):
    words = ("sm_80", "threshold", "float32", "3x511")
    result = check(tmp_path, *words)
    assert result.returncode == 0, result.stderr
    forward, backward = table_of(result.stdout)
    assert (forward["kernel"], backward["kernel"]) == ("forward", "backward")
    for row in (forward, backward):
        assert row["constants"] == "R = 1, N = 512"
        assert 20 < int(row["registers"]) < 128
        assert row["spilled"] == "0"
        assert row["/ least"] == "1.00"
    # The scores, the mask, a threshold, k, tau and the two numbers for the derivative per row. The
    # derivative reads all but the thresholds, and writes one of each score and each tau.
    assert float(forward["bytes"]) == pytest.approx(4 + 1 + (4 + 2 * 8 + 2 * 4) / 511, abs=0.05)
    assert float(backward["bytes"]) == pytest.approx(9 + (4 + 2 * 8 + 3 * 4) / 511, abs=0.05)

    (line,) = (tmp_path / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["case"] == "sm_80 threshold float32 3x511 full"
    again = check(tmp_path, *words)
    assert again.stdout == result.stdout
    assert not again.stderr  # nothing was compiled


@pytest.mark.slow
def test_a_kernel_that_spills_is_found(tmp_path):
    words = ("sm_80", "indicator", "float32", "3x16384", "bare")
    result = check(tmp_path, *words, before=TOO_LONG)
    assert result.returncode == 1, result.stderr
    assert any(int(row["spilled"]) > 0 for row in table_of(result.stdout))
    assert "- sm_80 indicator float32 3x16384 bare, " in result.stdout


@pytest.mark.slow
def test_an_element_that_is_read_twice_is_found():
    code = """
import gpu_check
once = "  %v = tt.load %a, %b : tensor<2x512x!tt.ptr<f32>> loc(#loc1)\\n"
loop = "  %c = scf.for %i = %d to %e step %f : i32 {\\n" + once + "  } loc(#loc2)\\n"
row = "  tt.store %g, %h {boundary = 1 : i32} : tensor<2x1x!tt.ptr<f64>> loc(#loc3)\\n"
arguments = {"R": 2, "N": 512, "n": 500}
print(*(gpu_check.traffic(text, arguments) for text in (once, once + once, loop + once, row)))
"""
    result = run("-c", code)
    assert result.stdout.split() == ["4.0", "8.0", "8.0", str(8 / 500)], result.stderr


@pytest.mark.slow
def test_every_configuration_is_compiled():
    result = run("-c", COVERAGE)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_the_interpreter_is_refused(tmp_path):
    before = "import os, sys; os.environ['TRITON_INTERPRET'] = '1'"
    result = check(tmp_path, "sm_80", before=before)
    assert result.returncode == 2
    assert "TRITON_INTERPRET" in result.stderr


@pytest.mark.slow
def test_the_largest_configurations_fit(tmp_path):
    result = run(str(FOLDER / "gpu_check.py"), "--quick", "--out", str(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr
