"""Training runs on disk: started, stopped, taken up again, and turned into tables.

A run is a folder:

    config.json            what was asked for
    environment.json       date, hardware and versions
    metrics.jsonl          one line for each epoch
    checkpoint.pt          the state to go on from, while it is not finished
    checkpoint.before.pt   the one before, to go on from if that is damaged
    model.safetensors      the trained weights, when it is
    result.json            the outcome; its presence is what makes a run finished

Every file is written whole or not at all, except the metrics, which grow by a line and are cut back
to the checkpoint on the next start. So a run can be killed at any time. Runs that belong together
lie in the folders of one folder, which has a config.json of its own. `benchmarks/faults.py` counts
what faults do to a run.

A damaged file is noticed when it is read again. The JSON files and the checkpoint have their own
SHA-256 in them. What cannot have it is vouched for by the file that is written next, whose presence
makes it count: the checkpoint has the digest of the metrics so far, and result.json those of the
weights and of all metrics. So there is no moment at which a kill leaves a digest without its file
or a file that counts without its digest. Data that a run does not copy, it names in its config.json
with their digest.
"""

from . import _processes as processes
from ._directory import DamagedCheckpointWarning, Run, announce, find_runs, locked, open_run
from ._experiment import Experiment, Results, attempt
from ._files import check_digest, read_sealed, sealed, write_atomic, write_sealed
from ._interrupt import INTERRUPTED, Interrupt, Interrupted
from ._loop import Trainable, train
from ._options import check_device
from ._report import Report
from ._shares import AsInWholeBatch, share, share_out
from ._tables import (
    Table,
    check_tables,
    cpu_name,
    duration,
    provenance,
    surroundings,
    write_tables,
)

__all__ = [
    "INTERRUPTED",
    "AsInWholeBatch",
    "DamagedCheckpointWarning",
    "Experiment",
    "Interrupt",
    "Interrupted",
    "Report",
    "Results",
    "Run",
    "Table",
    "Trainable",
    "announce",
    "attempt",
    "check_device",
    "check_digest",
    "check_tables",
    "cpu_name",
    "duration",
    "find_runs",
    "locked",
    "open_run",
    "processes",
    "provenance",
    "read_sealed",
    "sealed",
    "share",
    "share_out",
    "surroundings",
    "train",
    "write_atomic",
    "write_sealed",
    "write_tables",
]
