"""What becomes of a training after a fault: kills, signals, full disks, damaged files, bad input?

    python benchmarks/faults.py                          # everything, 20 times each: 10 minutes
    python benchmarks/faults.py --tries 1                # half a minute
    python benchmarks/faults.py --only kill translate    # the cases that have these words

Small trainings of `softtopk knn train` and `softtopk translate train` are disturbed at random, then
go on with --resume until they end. Each try has one of these outcomes:

- same: the metrics, the records and the weights are those of a training that was left alone.
- refused: nothing was done, one line says which file is wrong and what to do; and after that was
  done, the outcome is "same".
- shorter: text that was cut off, and that nobody can tell from a shorter one.
- wrong: it ended with something else. lost: it cannot be brought to an end. unexplained: a
  traceback, or no word of what happened.

Prints a Markdown table, and writes it to OUT/faults.md, with what was said in OUT/faults.json.
Exits with 1 if an outcome is one of the last three. The commands run in forks of this process, so
that a kill hits the training and not the import of torch.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gzip
import io
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits

from softtopk import cli
from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import (
    Table,
    find_runs,
    provenance,
    read_sealed,
    surroundings,
    write_tables,
)

GOOD, BAD = ("same", "refused", "shorter"), ("wrong", "lost", "unexplained")
TIMES = re.compile("seconds|date|digest|sha256")  # entries of records that differ between runs
NOBODY = 65534  # root may write everywhere: a user who may not


class Try(NamedTuple):
    outcome: str
    said: str


class Ended(NamedTuple):
    code: int
    said: str


class Process:
    """A command in a fork of this process."""

    def __init__(self, args: Sequence[str], before: Callable[[], object] | None = None) -> None:
        self._read, write = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _command(args, write, before)
        os.close(write)

    def kill(self, after: float, number: int = signal.SIGKILL) -> bool:
        """Send a signal after some seconds; False if it has ended by then."""
        end = time.monotonic() + after
        while (left := end - time.monotonic()) > 0:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            time.sleep(min(left, 0.002))
        os.kill(self.pid, number)
        return True

    def wait(self) -> Ended:
        with os.fdopen(self._read, encoding="utf-8", errors="replace") as file:
            said = file.read()
        return Ended(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), said)


def _command(args: Sequence[str], output: int, before: Callable[[], object] | None) -> None:
    """Run a command and end this process, of which there are two."""
    code: Any = 70
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        if before is not None:
            before()
        cli.main(args)
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:  # before the command began, or after its end
        code = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:  # whatever comes, there must not be a second one of this script
            os._exit(code)


@dataclass(frozen=True)
class Job:
    """A training that is disturbed."""

    name: str
    args: tuple[str, ...]
    other: tuple[str, ...]
    """Options of another one, whose files do not belong to this."""
    folder: Path

    def command(self, out: Path, *more: str) -> list[str]:
        return [*self.name.split(), "train", *self.args, "--out", str(out), *more]

    def start(self, out: Path, before: Callable[[], object] | None = None) -> Process:
        """The same command every time, whether there is a run or not."""
        return Process(self.command(out, "--resume"), before)

    def go_on(self, out: Path) -> Ended:
        return self.start(out).wait()

    @functools.cached_property
    def undisturbed(self) -> tuple[dict[str, Any], float]:
        """What it comes to if it is left alone, and the least seconds that takes."""
        seconds, found = [], []
        for number in range(2):
            out, start = self.folder / f"{self.name}-undisturbed-{number}", time.monotonic()
            ended = self.go_on(out)
            seconds.append(time.monotonic() - start)
            assert ended.code == 0, ended.said
            found.append(contents(out))
        assert found[0] == found[1], "it differs from run to run"
        return found[0], min(seconds)

    def start_pair(self, out: Path) -> list[Process]:
        """The same with two processes that train together, as torchrun would start them."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        ranks = [{"RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "2"} for n in range(2)]
        return [self.start(out, functools.partial(os.environ.update, place | r)) for r in ranks]

    @functools.cached_property
    def undisturbed_pair(self) -> tuple[dict[str, Any], float]:
        """What a pair comes to: sums are in another order than in one process."""
        out, start = self.folder / f"{self.name}-pair", time.monotonic()
        for ended in [process.wait() for process in self.start_pair(out)]:
            assert ended.code == 0, ended.said
        return contents(out), time.monotonic() - start

    @functools.cached_property
    def writes(self) -> int:
        """How often it changes something in its folder."""
        out = self.folder / f"{self.name}-counted"
        seen, write = os.pipe()
        self.start(out, lambda: at_write(out, -1, lambda: os.write(write, b"."))).wait()
        os.close(write)
        with os.fdopen(seen, "rb") as file:
            return len(file.read())

    @functools.cached_property
    def halfway(self) -> Path:
        """A run that was killed in its last part, after two checkpoints of it."""
        return self._killed("halfway", self.command)

    @functools.cached_property
    def stranger(self) -> Path:
        """The same of other settings."""
        return self._killed("stranger", lambda out, *more: [*self.command(out, *more), *self.other])

    def _killed(self, name: str, command: Callable[..., list[str]]) -> Path:
        out = self.folder / f"{self.name}-{name}"
        last = "relaxed-subset" if self.name == "knn" else "membership"
        records = out / last / "seed-0" / "metrics.jsonl"

        ended = Process(command(out), lambda: at_write(records, 3, kill)).wait()
        assert ended.code == -signal.SIGKILL, ended.said
        return out

    def judge(self, out: Path, ended: Ended) -> str:
        if "Traceback" in ended.said:
            return "unexplained"
        if ended.code:
            return "refused" if _is_refusal(ended, out) else "unexplained"
        try:
            found = contents(out)
        except UsageError as error:  # damage that is noticed when somebody wants the file
            return "refused" if str(out) in str(error) else "unexplained"
        return "same" if found == self.undisturbed[0] else "wrong"

    def mended(self, out: Path, refused: Ended) -> Try:
        """The outcome after the cause of a refusal was removed."""
        if self.judge(out, refused) != "refused":
            return Try("unexplained" if refused.code else "wrong", refused.said)
        ended = self.go_on(out)
        outcome = self.judge(out, ended)
        if outcome == "same":
            return Try("refused", refused.said)
        return Try("lost" if outcome == "refused" else outcome, ended.said)

    def finished(self, out: Path, said: str = "") -> Try:
        """The outcome of going on to the end, after which nothing may be refused."""
        ended = self.go_on(out)
        outcome = self.judge(out, ended)
        return Try("lost" if outcome == "refused" else outcome, said + ended.said)


def _is_refusal(ended: Ended, path: Path) -> bool:
    """Whether it ended with one line that names a file, or the folder that it is in."""
    lines = [line for line in ended.said.splitlines() if line.startswith("softtopk: ")]
    return ended.code == 2 and len(lines) == 1 and str(path) in lines[0]


def contents(out: Path) -> dict[str, Any]:
    """All that a run consists of, without times: what has to be the same."""
    found: dict[str, Any] = {}
    for run in find_runs([out]):
        run.checked_weights()
        found[str(run.path.relative_to(out))] = [_timeless(line) for line in run.metrics]
    for file in sorted(out.rglob("*")):
        name = str(file.relative_to(out))
        if file.suffix == ".json":
            table = file.name == "table.json"
            found[name] = _timeless(json.loads(file.read_text()) if table else read_sealed(file))
        elif file.is_file() and file.name not in ("metrics.jsonl", "table.md"):
            found[name] = file.read_bytes()
    return found


def complaint(out: Path) -> str:
    """What is said of a damaged file when somebody wants it."""
    try:
        contents(out)
    except UsageError as error:
        return f"softtopk: {error}\n"
    return ""


def _timeless(record: Any) -> Any:
    if isinstance(record, dict):
        return {k: _timeless(v) for k, v in record.items() if not TIMES.search(k)}
    return [_timeless(item) for item in record] if isinstance(record, list) else record


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_write(place: Path, number: int, act: Callable[[], object]) -> None:
    """From now on ``act`` before a file or a folder in ``place``, which may be a file itself, is
    changed for this ``number`` of times; -1 is every time."""
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            flags = arguments[2]
            changes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        else:
            changes = event in ("os.rename", "os.remove", "os.truncate", "os.mkdir")
        if changes and str(arguments[0]).startswith(str(place)):
            seen += 1
            if number in (-1, seen):
                act()

    sys.addaudithook(hook)


# --- the cases: each disturbs a job a number of times ---

Case = Callable[[Job, random.Random, int, Path], Iterator[Try]]


def kill_at_any_time(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """Killed after a random time, and again when it goes on, until it gets to its end."""
    left = tries
    while left > 0:
        out, killed = folder / str(left), 0
        while (process := job.start(out)).kill(draw.uniform(0, job.undisturbed[1])):
            process.wait()
            killed += 1
        ended = process.wait()
        outcome = job.judge(out, ended)
        # Each kill is a try: all of them share the outcome.
        yield from [Try("lost" if outcome == "refused" else outcome, ended.said)] * killed
        left -= killed


def kill_at_a_write(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """Killed right before a file is opened, renamed, cut or removed."""
    points = draw.sample(range(1, job.writes + 1), min(5 * tries, job.writes))
    for point in points:
        out = folder / str(point)
        ended = job.start(out, functools.partial(at_write, out, point, kill)).wait()
        if ended.code != -signal.SIGKILL:
            yield Try("unexplained", ended.said)
            continue
        yield job.finished(out)


def kill_of_two(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """One of two processes that train together is killed. The other one is told, as by torchrun."""
    expected, seconds = job.undisturbed_pair
    for number in range(tries):
        out = folder / str(number)
        pair = job.start_pair(out)
        killed = pair[draw.randrange(2)].kill(draw.uniform(0, seconds))
        if killed:
            for patience, kind in ((0.0, signal.SIGTERM), (1.0, signal.SIGKILL)):
                for process in pair:
                    with suppress(ProcessLookupError):
                        process.kill(patience, kind)
        said = "".join(process.wait().said for process in pair)
        again = [process.wait() for process in job.start_pair(out)]
        said += again[0].said
        if "Traceback" in said:
            yield Try("unexplained", said)
        elif any(ended.code for ended in again):
            yield Try("lost", said)
        else:
            yield Try("same" if contents(out) == expected else "wrong", said)


def signals(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """SIGINT and SIGTERM at a random time, one or two of them."""
    for number in range(tries):
        out, kind = folder / str(number), (signal.SIGINT, signal.SIGTERM)[number % 2]
        process = job.start(out)
        if process.kill(draw.uniform(0, job.undisturbed[1]), kind) and draw.random() < 0.3:
            with suppress(ProcessLookupError):
                process.kill(draw.uniform(0, 0.1), kind)
        ended = process.wait()
        # Before the work begins it ends without a word; there is nothing yet to go on with.
        silent = (
            ended.code == 130 and "stopping after" in ended.said and "stopped" not in ended.said
        )
        if ended.code not in (0, 130, -kind) or "Traceback" in ended.said or silent:
            yield Try("unexplained", ended.said)
        else:
            yield job.finished(out, ended.said)


def full_disk(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """Files that get no larger than a random size, then space again."""
    largest = max(file.stat().st_size for file in job.halfway.rglob("checkpoint*.pt"))
    for number in range(tries):
        out, size = folder / str(number), int(largest ** draw.uniform(0.5, 1)) - 1
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        yield job.mended(out, job.start(out, limit).wait())


def full_file_system(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """A file system that fills up, then space again; only where one can be mounted."""
    whole = sum(f.stat().st_size for f in job.halfway.rglob("*") if f.is_file())
    for number in range(tries):
        out = folder / str(number) / "run"
        out.parent.mkdir()
        with file_system(out.parent, 4 * whole) as mounted:
            if not mounted:
                return
            ballast = out.parent / "ballast"
            ballast.write_bytes(bytes(int(4 * whole - draw.uniform(0.05, 0.9) * whole)))
            ended = job.start(out).wait()
            ballast.unlink()
            yield job.mended(out, ended) if ended.code else Try(job.judge(out, ended), ended.said)


@contextmanager
def file_system(folder: Path, size: int) -> Iterator[bool]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    found = shutil.which("mount") is not None
    mounted = found and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def flip(draw: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    file.write_bytes(data)


def cut(draw: random.Random, file: Path) -> None:
    os.truncate(file, draw.randrange(file.stat().st_size))


def damaged_checkpoint(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """One changed bit or a part of the last checkpoint: the one before is as good."""
    for number in range(tries):
        out = shutil.copytree(job.halfway, folder / str(number))
        (flip, cut)[number % 2](draw, _checkpoints(out)[0])
        yield job.finished(out)


def damaged_checkpoints(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """The same of both of them: this part begins again, after they are deleted."""
    for number in range(tries):
        out = shutil.copytree(job.halfway, folder / str(number))
        for file in _checkpoints(out):
            (flip, cut)[draw.randrange(2)](draw, file)
        ended = job.go_on(out)
        for file in _checkpoints(out):
            file.unlink()
        yield job.mended(out, ended)


def foreign_checkpoint(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """The checkpoint of a run with other settings, or of another part, or another file."""
    strangers = [*job.stranger.rglob("checkpoint.pt"), *job.stranger.rglob("config.json")]
    strangers += [*job.stranger.rglob("*.safetensors")]
    for number in range(tries):
        out = shutil.copytree(job.halfway, folder / str(number))
        shutil.copy(strangers[number % len(strangers)], _checkpoints(out)[0])
        yield job.finished(out)


def _checkpoints(out: Path) -> list[Path]:
    """The last one, and the one before."""
    return sorted(out.rglob("checkpoint*.pt"), key=lambda file: len(file.name))


def damaged_file(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """One changed bit or a part of any other file of a run that is not finished."""
    for number in range(tries):
        out = shutil.copytree(job.halfway, folder / str(number))
        files = sorted(f for f in out.rglob("*") if f.is_file() and f.stat().st_size)
        file = draw.choice([f for f in files if f not in _checkpoints(out)])
        good = file.read_bytes()
        (flip, cut)[draw.randrange(2)](draw, file)
        ended = job.go_on(out)
        outcome, said = job.judge(out, ended), ended.said + complaint(out)
        file.write_bytes(good)
        if ended.code:
            yield job.mended(out, ended)
        elif outcome == "refused":  # a finished part, which was not needed to go on
            yield Try(outcome if job.judge(out, ended) == "same" else "wrong", said)
        else:
            yield Try(outcome, said)


def two_processes(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """A second process on the same run, at a random time."""
    for number in range(tries):
        out = folder / str(number)
        first = job.start(out)
        time.sleep(draw.uniform(0, job.undisturbed[1]))
        second = job.start(out).wait()
        ended = first.wait()
        refused = [end for end in (ended, second) if end.code]
        if any(job.judge(out, end) != "refused" for end in refused):
            yield Try("unexplained", refused[0].said)
        elif refused:
            yield job.mended(out, refused[0])
        else:
            yield Try(job.judge(out, ended), ended.said)


def read_only(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """A folder that may not be written to."""
    for number in range(tries):
        out = shutil.copytree(job.halfway, folder / str(number))
        _make_writable(out, False)
        ended = job.start(out, _without_privileges).wait()
        _make_writable(out, True)
        yield job.mended(out, ended)


def _make_writable(out: Path, writable: bool) -> None:
    for path in (out, *out.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o200 if writable else (mode | 0o444) & ~0o222)


def _without_privileges() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def cut_data(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """A file of the data that ends at a random byte."""
    for number in range(tries):
        for kind, make in DATA[job.name].items():
            data, out = folder / f"{kind}-{number}", folder / f"{kind}-{number}-run"
            data.mkdir()
            args = make(data)
            file = draw.choice([f for f in sorted(data.rglob("*")) if f.is_file()])
            cut(draw, file)
            ended = Process([*job.name.split(), "train", *args, "--out", str(out)]).wait()
            if "Traceback" in ended.said or (ended.code and not _is_refusal(ended, data)):
                yield Try("unexplained", ended.said)
            elif ended.code:
                yield Try("wrong" if (out / "config.json").exists() else "refused", ended.said)
            else:
                yield Try("shorter" if kind in TEXT else "wrong", f"{file.name} {ended.said}")


class Payload:
    """What a file of somebody else might contain: unpickling it writes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def pickles(job: Job, draw: random.Random, tries: int, folder: Path) -> Iterator[Try]:
    """A pickle that would write a file, in place of each file of a run, in three forms."""
    mark = folder / "executed"
    zipped = io.BytesIO()
    torch.save({"logged": 0, "state": Payload(mark)}, zipped)
    arrays = io.BytesIO()
    np.savez(arrays, x=np.array([Payload(mark)], dtype=object))
    forms = (pickle.dumps(Payload(mark)), zipped.getvalue(), arrays.getvalue())
    names = sorted(
        str(file.relative_to(job.halfway))
        for file in job.halfway.rglob("*")
        if file.is_file() and file.stat().st_size
    )
    for name in names if tries > 1 else draw.sample(names, 4):
        out = shutil.copytree(job.halfway, folder / name.replace("/", "-"))
        (out / name).write_bytes(draw.choice(forms))
        ended = job.go_on(out)
        outcome = "wrong" if mark.exists() else job.judge(out, ended)
        mark.unlink(missing_ok=True)
        yield Try(outcome, ended.said if ended.code else ended.said + complaint(out))


# --- the trainings and their data ---

QUICK = ("--epochs", "1", "--threads", "1", "--method", "knn")


def table(path: Path) -> Path:
    """A part of the digits, by the suffix of the path."""
    inputs, labels = load_digits(return_X_y=True)
    inputs, labels = inputs[:150, 10:30], labels[:150]
    if path.suffix == ".npz":
        np.savez(path, x=inputs, digit=labels)
        return path
    names = [*(f"x{i}" for i in range(inputs.shape[1])), "digit"]
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        columns = [*inputs.T, labels]
        parquet.write_table(pyarrow.table(dict(zip(names, columns, strict=True))), path)
        return path
    text = io.StringIO()
    csv.writer(text).writerows([names, *([*row, n] for row, n in zip(inputs, labels, strict=True))])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _a_table(suffix: str, folder: Path) -> list[str]:
    return ["--data", str(table(folder / f"table.{suffix}")), "--target", "digit", *QUICK]


def _images(folder: Path) -> list[str]:
    for part, n in (("train", 60000), ("t10k", 10000)):
        pixels = struct.pack(">HBBIII", 0, 8, 3, n, 28, 28) + bytes(n * 784)
        labels = struct.pack(">HBBI", 0, 8, 1, n) + bytes(i % 10 for i in range(n))
        for name, data in (("images-idx3", pixels), ("labels-idx1", labels)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data, 1))
    return ["--data", "mnist", "--data-dir", str(folder), "--subset", "100", *QUICK]


WORDS = {
    "en": ("one", "two", "three", "four", "five", "six", "seven", "eight"),
    "fr": ("un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit"),
}
SMALL = (
    "--hidden", "16", "--embedding", "16", "--batch-size", "16", "--threads", "1",
    "--beam", "2", "--eval-beams", "1,2", "--eval-sentences", "6", "--pretrain-lr", "0.02",
)  # fmt: skip


def text(folder: Path, packed: bool = False) -> list[str]:
    """Numbers in two languages."""
    draw = random.Random(0)
    for part, n in (("train", 120), ("valid", 10), ("test", 8)):
        rows = [[draw.randrange(8) for _ in range(draw.randint(1, 4))] for _ in range(n)]
        for code, words in WORDS.items():
            data = "".join(" ".join(words[i] for i in row) + "\n" for row in rows).encode()
            name = f"{part}.{code}{'.gz' if packed else ''}"
            (folder / name).write_bytes(gzip.compress(data) if packed else data)
    return [
        "--data",
        str(folder),
        "--vocab",
        "60",
        *SMALL,
        "--pretrain-epochs",
        "1",
        "--updates",
        "0",
    ]


def _prepared(folder: Path) -> list[str]:
    """Also the vocabularies."""
    with tempfile.TemporaryDirectory() as name:
        text(Path(name))
        args = ["prepare", "--data", name, "--vocab", "60", "--out", str(folder)]
        ended = Process(["translate", *args]).wait()
        assert ended.code == 0, ended.said
    return ["--data", str(folder), *SMALL, "--pretrain-epochs", "1", "--updates", "0"]


DATA: dict[str, dict[str, Callable[[Path], list[str]]]] = {
    "knn": {
        **{
            suffix: functools.partial(_a_table, suffix)
            for suffix in ("csv", "csv.gz", "npz", "parquet")
        },
        "images": _images,
    },
    "translate": {
        "text": text,
        "text.gz": functools.partial(text, packed=True),
        "prepared": _prepared,
    },
}
TEXT = ("csv", "text")  # formats that do not say where they end


def make_jobs(folder: Path) -> list[Job]:
    (folder / "text").mkdir()
    data = text(folder / "text")
    digits = table(folder / "table.csv")
    return [
        Job(
            "knn",
            ("--data", str(digits), "--target", "digit", "--epochs", "4", "--threads", "1",
             "--method", "ce,pretrained,relaxed-subset", "--k", "5"),
            ("--lr", "0.05"),
            folder,
        ),
        Job(
            "translate",
            (*data[:-4], "--objective", "membership", "--pretrain-epochs", "3",
             "--updates", "8", "--eval-every", "2"),
            ("--lr", "0.005"),
            folder,
        ),
    ]  # fmt: skip


CASES: dict[str, Case] = {
    "kill -9 at a random time": kill_at_any_time,
    "kill -9 before a write": kill_at_a_write,
    "kill -9 of one of two that train together": kill_of_two,
    "SIGINT, SIGTERM": signals,
    "no larger files (RLIMIT_FSIZE)": full_disk,
    "full file system (tmpfs)": full_file_system,
    "last checkpoint damaged": damaged_checkpoint,
    "both checkpoints damaged": damaged_checkpoints,
    "checkpoint from elsewhere": foreign_checkpoint,
    "another file of the run damaged": damaged_file,
    "pickle in place of a file": pickles,
    "two processes": two_processes,
    "read-only folder": read_only,
    "data cut off": cut_data,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=20, help="of each case")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and places")
    parser.add_argument("--only", nargs="*", default=[], help="words of cases and trainings")
    parser.add_argument("--out", type=Path, help="folder of the tables")
    options = parser.parse_args()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    print(f"seed {options.seed}", flush=True)
    torch.set_num_threads(1)
    records = []
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # for the user without privileges
        jobs = make_jobs(Path(name))
        warm_up(Path(name))
        for title, case in CASES.items():
            for job in jobs:
                if all(word in f"{title} {job.name}" for word in options.only):
                    records.append(count(title, case, job, options, Path(name)))
    command = f"python benchmarks/faults.py --tries {options.tries} --seed {options.seed}"
    record = {"command": command, "source": provenance(surroundings()), "cases": records}
    print(as_table(records).to_markdown())
    if options.out is not None:
        write_tables(options.out / "faults", as_page(record), record)
    return int(any(record[outcome] for record in records for outcome in BAD))


def warm_up(folder: Path) -> None:
    """Import what the commands import late, so that the forks need not. Nothing is trained here:
    torch cannot differentiate in a fork of a process that has."""
    import sacrebleu  # noqa: F401
    import torch._dynamo  # noqa: F401  # every optimiser does, for a second and a half

    (folder / "warm").mkdir()
    for args in (
        ["knn", "train", *_a_table("csv", folder / "warm"), "--out", str(folder / "warm" / "knn")],
        ["translate", "prepare", *text(folder / "warm")[:4], "--out", str(folder / "warm" / "t")],
    ):
        with redirect_stdout(io.StringIO()), suppress(SystemExit):
            cli.main(args)


def count(
    title: str, case: Case, job: Job, options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """The outcomes of a case, and what was said in each of them for the first time."""
    draw = random.Random(f"{options.seed} {title} {job.name}")
    place = folder / re.sub(r"\W+", "-", f"{job.name} {title}")
    place.mkdir()
    start, tries = time.monotonic(), []
    for one in case(job, draw, options.tries, place):
        tries.append(one)
        if one.outcome in BAD:
            print(f"{title}, {job.name}, try {len(tries)}: {one.outcome}\n{one.said}", flush=True)
    shutil.rmtree(place)
    counts = Counter(one.outcome for one in tries)
    said = {one.outcome: _last_words(one.said) for one in reversed(tries)}
    seconds = time.monotonic() - start
    print(f"{title}, {job.name}: {dict(counts)} in {seconds:.0f} s", file=sys.stderr, flush=True)
    return {
        "case": title,
        "training": job.name,
        "tried": len(tries),
        **{outcome: counts[outcome] for outcome in (*GOOD, *BAD)},
        "said": {outcome: words.replace(str(folder), "") for outcome, words in said.items()},
    }


def _last_words(said: str) -> str:
    lines = [line for line in said.splitlines() if re.match("softtopk: |stopped|.*Warning: ", line)]
    return lines[-1] if lines else ""


def as_page(record: dict[str, Any]) -> str:
    """The table, what was said of each fault for the first time, and where it comes from."""
    table = as_table(record["cases"])
    said = [
        f"- {case['case']}, {case['training']}: {words.removeprefix('softtopk: ')}"
        for case in record["cases"]
        for outcome, words in case["said"].items()
        if outcome == "refused" or "Damaged" in words
    ]
    parts = [
        f"## {table.title}",
        table.to_markdown(),
        f"```\n{record['command']}\n```",
        f"- {record['source']}",
        "What was said, the first time that something was (paths without their beginning):",
        "\n".join(said),
    ]
    return "\n\n".join(parts) + "\n"


def as_table(records: Sequence[dict[str, Any]]) -> Table:
    header = ["Fault", "Training", "Tries", *(name.capitalize() for name in (*GOOD, *BAD))]
    entries = ("case", "training", "tried", *GOOD, *BAD)
    return Table(
        "Faults, and what became of the training",
        header,
        [[str(record[name]) for name in entries] for record in records],
    )


if __name__ == "__main__":
    sys.exit(main())
