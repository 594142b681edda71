"""Training runs on disk: started, stopped, taken up again, and turned into tables.

A run is a folder:

    config.json        what was asked for
    environment.json   date, hardware and versions
    metrics.jsonl      one line for each epoch
    checkpoint.pt      the state to go on from, while it is not finished
    model.safetensors  the trained weights, when it is
    result.json        the outcome; its presence is what makes a run finished

Every file is written whole or not at all, except the metrics, which grow by a line and are cut back
to the checkpoint on the next start. So a run can be killed at any time. Runs that belong together
lie in the folders of one folder, which has a config.json of its own.
"""

from ._directory import Run, announce, find_runs, locked, open_run
from ._files import read_json, write_atomic, write_json
from ._interrupt import INTERRUPTED, Interrupt, Interrupted
from ._loop import Trainable, train
from ._options import as_option, check_device, parse_seeds
from ._report import Report
from ._tables import Table, duration, provenance, write_tables

__all__ = [
    "INTERRUPTED",
    "Interrupt",
    "Interrupted",
    "Report",
    "Run",
    "Table",
    "Trainable",
    "announce",
    "as_option",
    "check_device",
    "duration",
    "find_runs",
    "locked",
    "open_run",
    "parse_seeds",
    "provenance",
    "read_json",
    "train",
    "write_atomic",
    "write_json",
    "write_tables",
]
