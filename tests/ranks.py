"""Several processes for a test: `run` calls a function in each of them.

They are started once, and wait for the next call. A call that breaks its process group gets
processes of its own, by `run_alone`.
"""

from __future__ import annotations

import atexit
import importlib.util
import io
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MOST = 4
TIMEOUT = timedelta(seconds=60)

# A server that has imported torch already, and that forks: quick, and without our threads.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["torch", "torch.distributed.tensor", "softtopk.distributed"])


def run(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What ``function(group, *args)`` returns on each of ``count`` ranks."""
    pipes = _workers()[:count]
    return _call(pipes, function, args)


def run_alone(
    count: int, function: Callable[..., Any], *args: Any, timeout: timedelta = TIMEOUT
) -> list[Any]:
    """The same in processes of their own, which end afterwards.

    A rank that has died has None, one that raises the text of its error.
    """
    with tempfile.TemporaryDirectory() as folder:
        pipes = _start(count, Path(folder), timeout)
        try:
            return _call(pipes, function, args, strict=False)
        finally:
            _stop(pipes)


@cache
def _workers() -> list[Connection]:
    folder = tempfile.TemporaryDirectory()
    pipes = _start(MOST, Path(folder.name), TIMEOUT)
    atexit.register(folder.cleanup)
    atexit.register(_stop, pipes)
    return pipes


def _start(count: int, folder: Path, timeout: timedelta) -> list[Connection]:
    pipes = []
    for rank in range(count):
        ours, theirs = _server.Pipe()
        arguments = (rank, count, str(folder / "store"), timeout, theirs)
        _server.Process(target=_serve, args=arguments, daemon=True).start()
        theirs.close()
        pipes.append(ours)
    return pipes


def _stop(pipes: list[Connection]) -> None:
    for pipe in pipes:
        pipe.close()


def _call(
    pipes: list[Connection], function: Callable[..., Any], args: Any, strict: bool = True
) -> list[Any]:
    # Test modules cannot be imported by name, so the function travels as its file and name.
    call = (function.__code__.co_filename, function.__qualname__, len(pipes), args)
    for pipe in pipes:
        pipe.send_bytes(_packed(call))
    results, errors = [], []
    for rank, pipe in enumerate(pipes):
        try:
            assert pipe.poll(2 * TIMEOUT.total_seconds()), f"rank {rank} hangs"
            failed, result = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
        except (EOFError, ConnectionResetError):
            failed, result = True, None
        results.append(result)
        errors += [f"rank {rank}: {result}"] if failed else []
    if strict and errors:
        raise AssertionError("\n".join(errors))
    return results


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _serve(rank: int, count: int, store: str, timeout: timedelta, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timeout
    )
    groups = {
        size: dist.new_group(list(range(size)), timeout=timeout) for size in range(1, count + 1)
    }
    while True:
        try:
            call = pipe.recv_bytes()
        except EOFError:
            os._exit(0)
        file, name, size, args = torch.load(io.BytesIO(call), weights_only=False)
        try:
            torch.manual_seed(0)
            reply = False, getattr(_module(file), name)(groups[size], *args)
        except Exception:
            reply = True, traceback.format_exc()
        pipe.send_bytes(_packed(reply))


@cache
def _module(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
