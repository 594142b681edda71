"""What `softtopk bench` runs: time, memory and error of the operators and of their peers."""

from softtopk.experiments.errors import UsageError

from ._cases import Case
from ._command import Options, main, make_settings
from ._peers import PEERS, Peer
from ._presets import PRESETS, Preset
from ._results import CaseResult, Record, Result, Timing
from ._runner import Settings, run
from ._targets import TARGETS, Outcome, Target, assess

__all__ = [
    "PEERS",
    "PRESETS",
    "TARGETS",
    "Case",
    "CaseResult",
    "Options",
    "Outcome",
    "Peer",
    "Preset",
    "Record",
    "Result",
    "Settings",
    "Target",
    "Timing",
    "UsageError",
    "assess",
    "main",
    "make_settings",
    "run",
]
