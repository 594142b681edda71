"""The folder of a run."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ._files import read_json, write_atomic, write_json
from ._tables import surroundings

FORMAT = 1
START = ".start.json"  # what a start that has no config.json yet writes


class Run:
    """One run: what it was asked, how far it is, what came out."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return _read_config(self.path)

    @cached_property
    def environment(self) -> dict[str, Any]:
        return read_json(self.path / "environment.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out, None while it is not finished."""
        path = self.path / "result.json"
        return read_json(path) if path.exists() else None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of its epochs."""
        path = self._metrics
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise UsageError(f"{path} is damaged: {error}") from error

    def log(self, record: Mapping[str, Any]) -> None:
        """Append to the metrics; what is not a number is left out."""
        numbers = {name: value for name, value in record.items() if value == value}
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(numbers, allow_nan=False) + "\n")

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep ``state``, of tensors and plain values, to go on from."""
        logged = self._metrics.stat().st_size if self._metrics.exists() else 0
        buffer = io.BytesIO()
        torch.save({"format": FORMAT, "logged": logged, "state": dict(state)}, buffer)
        write_atomic(self._checkpoint, buffer.getvalue())

    def load(self) -> dict[str, Any] | None:
        """The last state that was kept, with the metrics cut back to that moment."""
        logged, state = 0, None
        if self._checkpoint.exists():
            try:
                saved = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
                logged, state = saved["logged"], saved["state"]
            except Exception as error:
                raise UsageError(
                    f"{self._checkpoint} is not a checkpoint ({error}): delete it to start this "
                    "run again from the beginning"
                ) from error
        if self._metrics.exists():
            # What was logged after the checkpoint will be logged again.
            os.truncate(self._metrics, min(logged, self._metrics.stat().st_size))
        return state

    def restart(self) -> None:
        """Forget how far it was."""
        self._checkpoint.unlink(missing_ok=True)
        self._metrics.unlink(missing_ok=True)

    def save_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Keep the trained weights."""
        from safetensors.torch import save

        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        write_atomic(self.weights, save(plain))

    def load_weights(self) -> dict[str, torch.Tensor]:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not self.weights.exists():
            raise UsageError(f"{self.path} has no trained weights: let it finish with --resume")
        try:
            return load_file(self.weights)
        except SafetensorError as error:
            raise UsageError(f"{self.weights} is damaged: {error}") from error

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record the outcome; the checkpoint has served."""
        write_json(self.path / "result.json", result)
        self._checkpoint.unlink(missing_ok=True)

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """The file of the trained weights, there when it is finished."""
        return self.path / "model.safetensors"


def open_run(
    path: Path,
    config: Mapping[str, Any],
    *,
    resume: bool,
    free: Collection[str] = (),
    absent: Mapping[str, Any] | None = None,
) -> Run:
    """Make the folder of a run, or with ``resume`` take up the one that is there.

    A folder is taken up only for the same ``config``, and never written over. Entries named in
    ``free`` may change; the folder then gets the new ones. ``absent`` has the values of entries
    that an older record may not have.
    """
    config = json.loads(json.dumps({"format": FORMAT, **config}, allow_nan=False))
    make_folder(path)
    if not (path / "config.json").exists():
        write_json(path / "environment.json", surroundings())
        write_json(path / "config.json", config)  # last: it is what makes the folder a run
        (path / START).unlink(missing_ok=True)
        return Run(path)
    if not resume:
        raise _taken(path)
    before = {**(absent or {}), **_read_config(path)}
    differing = {name for name in {**before, **config} if before.get(name) != config.get(name)}
    if differing - set(free):
        changes = ", ".join(
            f"{name} was {before.get(name)!r}, not {config.get(name)!r}"
            for name in sorted(differing - set(free))
        )
        raise UsageError(
            f"--resume: the run in {path} was started differently ({changes}): give the same "
            "options, or none, or another --out"
        )
    if differing:
        write_json(path / "config.json", config)
    return Run(path)


def make_folder(path: Path) -> None:
    """Make the folder, unless there is one; refuse one that holds anything but a run."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    except OSError as error:
        raise UsageError(f"--out {path}: cannot use this folder: {error}") from error
    # A run that was killed before it had its config.json has no more than an environment.json and
    # what it announced.
    if "config.json" not in names and names - {"environment.json", *_announced(path)}:
        raise UsageError(f"--out {path}: this folder has other files in it; give a new one")


def announce(path: Path, names: Collection[str]) -> None:
    """Say which files and folders a new run gets before its config.json.

    A start that fails or is killed in between can then be made again: what it left is known for
    its own, and written over. Files of others never are, for in a folder that holds any nothing can
    be announced.
    """
    make_folder(path)
    if (path / "config.json").exists():
        raise _taken(path)
    write_json(path / START, sorted(names))


def _announced(path: Path) -> list[str]:
    return read_json(path / START) if (path / START).exists() else []


def _taken(path: Path) -> UsageError:
    return UsageError(
        f"--out {path}: there is a run already; continue it with --resume, or give a new folder"
    )


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in these folders and below: those folders that hold a config.json and no others."""
    found = []
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: there is no such folder")
        configs = [config for config in sorted(path.rglob("config.json")) if _is_config(config)]
        leaves = [
            Run(config.parent)
            for config in configs
            if not any(config.parent in other.parents[1:] for other in configs)
        ]
        if not leaves:
            raise UsageError(f"{path}: there is no run in this folder (no config.json)")
        found += leaves
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Refuse to run where another process runs; the system frees the lock of a killed one."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: two runs in one folder are not noticed there
        yield
        return
    make_folder(path)
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--out {path}: another process is running there") from None
        yield


def _is_config(path: Path) -> bool:
    """Whether a file is the config.json of a run; other programs have such files too."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def _read_config(path: Path) -> dict[str, Any]:
    if not _is_config(path / "config.json"):
        raise UsageError(f"{path / 'config.json'} is not that of a run of this version")
    return read_json(path / "config.json")
