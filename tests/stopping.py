"""Commands that are stopped at a known moment."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
COMMAND = """
import os, sys
from pathlib import Path
folder, records, number, *args = sys.argv[1:]
sys.path.append(folder)
from faults import at_write
from softtopk import cli
at_write(Path(records), 3, lambda: os.kill(os.getpid(), int(number)))
cli.main(args)
"""


def stop_at_the_third_record(
    args: Sequence[str], records: Path, number: int
) -> subprocess.CompletedProcess[str]:
    """Run a command that gets a signal when it has two records and is about to write another.

    The signal comes from its own process. A test that looks for the records and then sends one has
    as long as the rest of the training takes, a few tenths of a second: on a busy machine it can be
    too late.
    """
    command = [sys.executable, "-c", COMMAND, str(BENCHMARKS), str(records), str(int(number))]
    return subprocess.run([*command, *args], capture_output=True, text=True, check=False)
