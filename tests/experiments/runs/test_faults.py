"""benchmarks/faults.py: no fault loses a run, changes its result or ends in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")


@pytest.mark.slow
@pytest.mark.parametrize("training", ["knn", "translate"])
def test_every_fault_once(tmp_path: Path, training: str) -> None:
    script = str(ROOT / "benchmarks" / "faults.py")
    run = subprocess.run(
        [sys.executable, script, "--tries", "1", "--only", training, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads((tmp_path / "faults.json").read_text())
    assert len(record["cases"]) == 14
    for case in record["cases"]:
        # Not everybody may mount a file system.
        assert case["tried"] >= 1 or "tmpfs" in case["case"]
        assert case["tried"] == case["same"] + case["refused"] + case["shorter"]
        if case["refused"] and "damaged" in case["case"]:
            assert "softtopk: " in case["said"]["refused"]


def test_the_page_has_the_table_of_the_record() -> None:
    docs = ROOT / "docs"
    lines = (docs / "results" / "faults.md").read_text().splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 30
    assert "\n".join(table) in (docs / "faults.md").read_text()
