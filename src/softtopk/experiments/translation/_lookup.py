"""Where a run has its parts, its weights and its data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from softtopk.seq2seq import EncoderDecoder, load

from .._files import sha256
from ..errors import UsageError, require
from ..runs import Run, find_runs
from ._record import is_prepared
from ._settings import PRETRAIN, STAGES

COMMAND = "translate train"
DATA, INIT = "data", "init.safetensors"  # of a run, which needs no other files


_EXTRAS = {"rich": "cli", "matplotlib": "plot"}  # all others: translate


def require_modules(*modules: str) -> None:
    for module in modules:
        require(module, "this command", _EXTRAS.get(module, "translate"))


def folder_of(out: Path, stage: str, seed: int) -> Path:
    """The part of a run that is one stage with one seed."""
    return out / stage / f"seed-{seed}"


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


def read_config(out: Path) -> dict[str, Any]:
    """What the run in ``out``, not one of its parts, was asked for."""
    config = Run(out).config
    if config.get("command") != COMMAND:
        raise UsageError(f"--out {out}: this is not a run of softtopk {COMMAND}")
    if "objectives" not in config:
        raise UsageError(f"--out {out}: this is a part of a run; give the folder that holds it")
    return config


def find_parts(*paths: Path) -> list[Run]:
    """The runs of single stages in these folders."""
    runs = [run for run in find_runs(paths) if run.config.get("command") == COMMAND]
    parts = [run for run in runs if "stage" in run.config]
    if not parts:
        names = ", ".join(map(str, paths))
        raise UsageError(f"{names}: there is no run of softtopk {COMMAND} in it")
    return parts


def finished_parts(path: Path) -> list[Run]:
    """The finished ones, in the order of the table."""
    runs = [run for run in find_parts(path) if run.result]
    if not runs:
        raise UsageError(f"{path}: nothing in it is finished; go on with --resume")
    return sorted(runs, key=lambda r: (STAGES.index(r.config["stage"]), r.config["seed"]))


def part_to_translate(path: Path) -> Run:
    """That with the model of the one objective, else of the pre-training."""
    runs = finished_parts(path)
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
    runs = finished_parts(path)
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
        if known and Run(root).config.get("command") == COMMAND:
            return root / DATA
    return None


def load_model(weights: Path, device: str = "cpu") -> EncoderDecoder:
    try:
        return load(weights).to(torch.device(device))
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def digest_of(file: Path) -> str:
    return sha256(file.read_bytes())
