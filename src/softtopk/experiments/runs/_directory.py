"""The folder of a run."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ..._files import naming, replacing, sha256
from .._files import check_out, remove_drafts
from ..errors import UsageError
from ._files import DIGEST, REMEDY, check_digest, read_sealed, write_atomic, write_sealed
from ._tables import surroundings

FORMAT = 1
CHECKPOINT = b"softtopk checkpoint 2\n"  # and the digest of the rest, and the rest
START = ".start.json"  # what a start that has no config.json yet writes


class DamagedCheckpointWarning(UserWarning):
    """The last checkpoint cannot be used; the run goes on from the one before."""


class Run:
    """One run: what it was asked, how far it is, what came out.

    Entries of its config that are named in ``free`` may change while it is trained.
    """

    def __init__(self, path: Path, free: Collection[str] = ()) -> None:
        self.path = path
        self._free = free

    @cached_property
    def config(self) -> dict[str, Any]:
        path = self.path / "config.json"
        remedy = f"{REMEDY}; other settings are given as options"
        config = read_sealed(path, remedy)
        if config.get("format") != FORMAT:
            raise UsageError(f"{path} is not that of a run of this version: {REMEDY}")
        return config

    @cached_property
    def environment(self) -> dict[str, Any]:
        return read_sealed(self.path / "environment.json")

    @property
    def result(self) -> dict[str, Any] | None:
        """What came out, None while it is not finished."""
        path = self.path / "result.json"
        return read_sealed(path, self._remedy) if path.exists() else None

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of its epochs."""
        logged, result = self._logged(), self.result
        if result is not None:
            check_digest(self._metrics, sha256(logged), result["sha256"]["metrics"], self._remedy)
        whole, _, _ = logged.rpartition(b"\n")  # a run that was killed may have left part of a line
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise UsageError(f"{self._metrics} is damaged ({error}): {self._remedy}") from error

    def log(self, record: Mapping[str, Any]) -> None:
        """Append to the metrics; what is not a number is left out."""
        numbers = {name: value for name, value in record.items() if value == value}
        with naming(self._metrics), self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(numbers, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())  # before the checkpoint, which vouches for it

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep ``state``, of tensors and plain values, to go on from; and the one before, in case
        that this one is damaged."""
        logged = self._logged()
        saved = {
            "run": self._identity,
            "logged": len(logged),
            "sha256": sha256(logged),
            "state": dict(state),
        }
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        payload = buffer.getvalue()
        last, before = self._checkpoints
        with replacing(last) as draft:
            draft.write_bytes(CHECKPOINT + sha256(payload).encode() + payload)
            if last.exists():
                os.replace(last, before)

    def load(self) -> dict[str, Any] | None:
        """The last state that was kept, with the metrics cut back to that moment."""
        logged, state = 0, None
        found = [path for path in self._checkpoints if path.exists()]
        if found:
            saved = self._last_good(found)
            logged, state = saved["logged"], saved["state"]
        if self._metrics.exists():
            # What was logged after the checkpoint will be logged again.
            os.truncate(self._metrics, logged)
        return state

    def _last_good(self, paths: list[Path]) -> dict[str, Any]:
        """What the first of these checkpoints has that can be used."""
        problems = []
        for path in paths:
            try:
                saved = self._saved(path)
            except UsageError as error:
                problems.append(str(error))
                continue
            if problems:
                # It also takes the place of the other: the next one would replace it else.
                os.replace(path, self._checkpoints[0])
                text = f"{problems[0]}; the run goes on from the checkpoint before"
                warnings.warn(text, DamagedCheckpointWarning, stacklevel=3)
            return saved
        files = " and ".join(map(str, paths))
        raise UsageError(
            f"{problems[0]}: delete {files} to start this run again from the beginning"
        )

    def _saved(self, path: Path) -> dict[str, Any]:
        """What a checkpoint has, if it is one of this run and is as it was written."""
        data = path.read_bytes()
        start = len(CHECKPOINT) + len(sha256(b""))
        payload = data[start:]
        if data[:start] != CHECKPOINT + sha256(payload).encode():
            raise UsageError(f"{path} is damaged or not a checkpoint of this version")
        try:
            saved = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:  # of another version of torch
            raise UsageError(f"{path} cannot be read by this torch ({error})") from error
        if saved["run"] != self._identity:
            raise UsageError(f"{path} is a checkpoint of another run")
        if sha256(self._logged()[: saved["logged"]]) != saved["sha256"]:
            raise UsageError(f"{self._metrics} is damaged or was changed by hand, or {path} was")
        return saved

    @property
    def _identity(self) -> str:
        """The digest of what was asked for, without what may change."""
        kept = {name: value for name, value in self.config.items() if name not in self._free}
        return sha256(json.dumps(kept, sort_keys=True).encode())

    def restart(self) -> None:
        """Forget how far it was."""
        self._remove_checkpoints()
        self._metrics.unlink(missing_ok=True)

    def _remove_checkpoints(self) -> None:
        for path in self._checkpoints:
            path.unlink(missing_ok=True)

    def save_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Keep the trained weights."""
        from safetensors.torch import save

        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        write_atomic(self.weights, save(plain))

    def load_weights(self) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        return load_file(self.checked_weights())

    def checked_weights(self) -> Path:
        """The file of the trained weights, if it is what was written."""
        result = self.result
        if result is None:
            raise UsageError(f"{self.path} has no trained weights: let it finish with --resume")
        if not self.weights.exists():
            raise UsageError(f"{self.weights} is missing: {self._remedy}")
        found = sha256(self.weights.read_bytes())
        check_digest(self.weights, found, result["sha256"]["weights"], self._remedy)
        return self.weights

    def finish(self, result: Mapping[str, Any]) -> None:
        """Record the outcome, which vouches for the other files; the checkpoint has served."""
        weights = self.weights.read_bytes() if self.weights.exists() else b""
        digests = {"metrics": sha256(self._logged()), "weights": sha256(weights)}
        # A result that is only added to has its digests, of what was written then.
        write_sealed(self.path / "result.json", {"sha256": digests, **result})
        self._remove_checkpoints()

    def _logged(self) -> bytes:
        return self._metrics.read_bytes() if self._metrics.exists() else b""

    @property
    def _remedy(self) -> str:
        return f"restore it from a copy, or delete {self.path} and run it again with --resume"

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _checkpoints(self) -> tuple[Path, Path]:
        """The last one, and the one before it."""
        return self.path / "checkpoint.pt", self.path / "checkpoint.before.pt"

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
) -> Run:
    """Make the folder of a run, or with ``resume`` take up the one that is there.

    A folder is taken up only for the same ``config``, and never written over. Entries named in
    ``free`` may change; the folder then gets the new ones.
    """
    config = json.loads(json.dumps({"format": FORMAT, **config}, allow_nan=False))
    path.parent.mkdir(parents=True, exist_ok=True)  # of a part, in the folder of its run
    make_folder(path)
    if not (path / "config.json").exists():
        write_sealed(path / "environment.json", surroundings())
        write_sealed(path / "config.json", config)  # last: it is what makes the folder a run
        (path / START).unlink(missing_ok=True)
        return Run(path, free)
    if not resume:
        raise _taken(path)
    before = Run(path).config
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
        write_sealed(path / "config.json", config)
    return Run(path, free)


def make_folder(path: Path) -> None:
    """Make the folder, unless there is one; refuse one that holds anything but a run."""
    check_out(path, folder=True)
    path.mkdir(exist_ok=True)
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
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
    write_sealed(path / START, {"names": sorted(names)})


def _announced(path: Path) -> list[str]:
    if not (path / START).exists():
        return []
    return read_sealed(path / START, f"delete {path}, and start again")["names"]


def _taken(path: Path) -> UsageError:
    return UsageError(
        f"--out {path}: there is a run already; continue it with --resume, or give a new folder"
    )


def find_runs(paths: Iterable[Path]) -> list[Run]:
    """The runs in these folders and below: those folders that hold a config.json and no others.

    A run with a damaged config.json is among them, so that it is not left out in silence: reading
    its config is an error.
    """
    found = []
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: there is no such folder")
        configs = [file for file in sorted(path.rglob("config.json")) if _is_of_a_run(file)]
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
    from filelock import FileLock, Timeout

    make_folder(path)
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UsageError(
            f"--out {path}: another process is running there; wait for it, or give another"
        ) from None
    try:
        _tidy(path)
        yield
    finally:
        lock.release()


def _tidy(path: Path) -> None:
    """Remove what processes that were killed did not get to remove."""
    remove_drafts(path.rglob(".*.tmp"))
    if (path / "config.json").exists():
        (path / START).unlink(missing_ok=True)
    for result in path.rglob("result.json"):
        if result.with_name("environment.json").exists():  # a run, not a file of somebody else
            Run(result.parent)._remove_checkpoints()


def _is_of_a_run(config: Path) -> bool:
    """Whether a config.json is that of a run; other programs have such files too."""
    if config.with_name("environment.json").exists():
        return True
    try:
        content = json.loads(config.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and DIGEST in content
