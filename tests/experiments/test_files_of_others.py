"""Files from others are data: a pickle in place of one is refused, and not executed."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from softtopk import cli, seq2seq
from softtopk.experiments.bench import Record
from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import open_run
from softtopk.knn import SoftKNNClassifier


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def zipped(payload: Payload) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2), "other": payload}, file)
    return file.getvalue()


def objects(save: Callable[..., None], payload: Payload) -> bytes:
    file = io.BytesIO()
    save(file, np.array([payload] * 2, dtype=object))
    return file.getvalue()


FORMS: dict[str, Callable[[Payload], bytes]] = {
    "pickle": pickle.dumps,
    "torch.save": zipped,
    "npy": lambda payload: objects(np.save, payload),
    "npz": lambda payload: objects(np.savez, payload),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_payloads_work(tmp_path: Path, form: str) -> None:
    """Else these tests would show nothing."""
    file, executed = io.BytesIO(FORMS[form](Payload(tmp_path / "executed"))), tmp_path / "executed"
    if form == "torch.save":
        torch.load(file, weights_only=False)
    else:
        loaded = np.load(file, allow_pickle=True)
        if form == "npz":
            loaded["arr_0"]
    assert executed.exists()


COMMANDS = {
    "data.npz": "knn train --data {} --target x --out {out}",
    "data.csv": "knn train --data {} --target x --out {out}",
    "data.parquet": "knn train --data {} --target x --out {out}",
    "model.safetensors": "translate train --init {} --out {out}",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_a_pickle(
    tmp_path: Path, form: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, executed = tmp_path / "in" / name, tmp_path / "executed"
    file.parent.mkdir()
    file.write_bytes(FORMS[form](Payload(executed)))
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        cli.main([word.format(file, out=out) for word in COMMANDS[name].split()])
    assert caught.value.code == 2
    assert str(file) in capsys.readouterr().err
    assert not executed.exists()
    assert not out.exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "load",
    [seq2seq.load, seq2seq.Seq2Seq.load, SoftKNNClassifier.load, Record.read],
    ids=lambda load: load.__qualname__,
)
def test_a_model_or_a_record_is_not_a_pickle(
    tmp_path: Path, form: str, load: Callable[[Path], Any]
) -> None:
    file, executed = tmp_path / "model.safetensors", tmp_path / "executed"
    file.write_bytes(FORMS[form](Payload(executed)))
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load(file)
    assert not executed.exists()


def test_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    """Not even one whose digest is right."""
    run = open_run(tmp_path / "run", {}, resume=False)
    run.save({"step": Payload(tmp_path / "executed")})
    with pytest.raises(UsageError, match=r"checkpoint\.pt cannot be read"):
        run.load()
    assert not (tmp_path / "executed").exists()
