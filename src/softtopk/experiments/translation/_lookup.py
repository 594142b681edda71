"""Where a run has its parts, its weights and its data."""

from __future__ import annotations

from pathlib import Path

import torch

from softtopk.seq2seq import EncoderDecoder, load

from ..._files import sha256
from ..errors import UsageError
from ..runs import Experiment, Run
from ._record import is_prepared
from ._settings import PRETRAIN, STAGES
from ._tables import results

EXPERIMENT = Experiment("translate train", "stage", "objectives", STAGES, results)
DATA, INIT = "data", "init.safetensors"  # of a run, which needs no other files


def root_of(part: Run) -> Path:
    """The folder of the run that a part belongs to."""
    return part.path.resolve().parent.parent


def data_of(part: Run) -> Path:
    """The folder with the text and the pieces that a part was trained with."""
    folder = root_of(part) / DATA
    if not is_prepared(folder):
        raise UsageError(
            f"{part.path}: it is a part of a run, whose data should be in {folder} and are not; "
            "copy the run as a whole"
        )
    return folder


def part_to_translate(path: Path) -> Run:
    """That with the model of the one objective, else of the pre-training."""
    runs = EXPERIMENT.finished(path)
    trained = [run for run in runs if run.config["stage"] != PRETRAIN] or runs
    if len({run.config["stage"] for run in trained}) > 1:
        names = ", ".join(str(run.path) for run in trained)
        raise UsageError(f"{path}: there are several models in it; give one of {names}")
    return trained[0]  # of the smallest seed


def weights_file(path: Path) -> Path:
    """The file that ``--init`` means."""
    if path.is_file():
        part = Run(path.parent)
        return part.checked_weights() if path == part.weights and part.result else path
    runs = EXPERIMENT.finished(path)
    first = [run for run in runs if run.config["stage"] == PRETRAIN]
    for some in (runs, first):
        if len(some) == 1:
            return some[0].checked_weights()
    names = ", ".join(str(run.path) for run in first or runs)
    raise UsageError(f"--init {path}: there are several models in it; give one of {names}")


def data_beside(weights: Path) -> Path | None:
    """The data of the run that a file of weights lies in; None if it lies elsewhere."""
    folder = weights.resolve().parent
    for root in (folder, folder.parent.parent):  # the weights a run began with, or those of a part
        known = is_prepared(root / DATA) and (root / "config.json").is_file()
        if known and Run(root).config.get("command") == EXPERIMENT.command:
            return root / DATA
    return None


def load_model(weights: Path, device: str = "cpu") -> EncoderDecoder:
    try:
        return load(weights).to(torch.device(device))
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def digest_of(file: Path) -> str:
    return sha256(file.read_bytes())
