"""A first call: does it work, how long does it take, how much memory?

The answers decide whether a peer is timed in a case, so that one that would take minutes, or all
memory, holds up nothing. The memory is the peak during one forward and one backward pass, less what
was in use before them: inputs, cotangent and libraries do not count, outputs and gradients do.

On the CPU the call has a process of its own, which is forked from a server that has loaded torch
but run nothing. That takes milliseconds. The memory is the resident set, known on Linux only. An
accelerator would take seconds to start in another process, and says when its memory is full: there
the call is made here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import warnings
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import torch

from ._adapters import Run
from ._cases import Case, problem_of, scores_of
from ._device import Cpu, Device, status_bytes
from ._peers import Peer
from ._results import Status

SET_UP_SECONDS = 120.0  # for imports, inputs and compilation, none of which are timed
SMALL = 32


@dataclass(frozen=True)
class Probe:
    """What one call showed."""

    status: Status
    message: str = ""
    seconds: float = 0.0
    memory: int | None = None


def probe(peer: Peer, case: Case, *, threads: int, seconds: float, memory: int) -> Probe:
    """Run `peer` once on `case`, within limits of seconds and bytes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["softtopk.experiments.bench._probe"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, peer, case, threads, memory))
    process.start()
    sender.close()
    try:
        started = _receive(receiver, SET_UP_SECONDS)
        if started is None:
            return Probe("too slow", f"not set up after {SET_UP_SECONDS:g} s")
        if started.status != "measured":
            return started
        answer = _receive(receiver, seconds)
        return answer or Probe("too slow", f"one call takes more than {seconds:g} s", seconds)
    except EOFError:
        process.join()
        return Probe("failed", f"its process ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receiver.close()


def probe_here(peer: Peer, case: Case, *, device: Device, memory: int) -> Probe:
    """Run `peer` on `case` in this process; the second call counts, the first may compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = peer.prepare(problem_of(case, peer.output, scores_of(case, device.where)))
            answer = _call(peer, run, device)
            if answer.status == "measured":
                answer = _call(peer, run, device)
    except Exception as error:
        answer = _explain(error, memory)
    device.release()
    if (answer.memory or 0) > memory:
        return replace(_too_large(memory), memory=answer.memory)
    return answer


def _receive(receiver: Connection, seconds: float) -> Probe | None:
    return receiver.recv() if receiver.poll(seconds) else None


def _child(sender: Connection, peer: Peer, case: Case, threads: int, memory: int) -> None:
    try:
        torch.set_num_threads(threads)
        warnings.simplefilter("ignore")
        if not peer.compiles:
            _call_small(peer, case)
        problem = problem_of(case, peer.output, scores_of(case))
        _limit_memory(memory)
        run = peer.prepare(problem)
        sender.send(Probe("measured"))
        sender.send(_call(peer, run, Cpu()))
    except Exception as error:
        sender.send(_explain(error, memory))


def _call_small(peer: Peer, case: Case) -> None:
    """A first call at a small size: the threads and libraries it starts are not its memory."""
    n = min(case.n, SMALL)
    small = replace(case, rows=min(case.rows, 2), n=n, k=min(case.k, n - 1))
    run = peer.prepare(problem_of(small, peer.output, scores_of(small)))
    state = run.forward()
    if peer.gradient:
        run.backward(state)


def _call(peer: Peer, run: Run, device: Device) -> Probe:
    before = device.reset_peak()
    start = device.mark()
    state = run.forward()
    gradient = run.backward(state) if peer.gradient else None
    seconds = device.seconds(start, device.mark())
    memory = None if before is None else max(0, device.peak() - before)
    if not run.selection(state).isfinite().all():
        return Probe("failed", "the result is not finite", seconds, memory)
    if gradient is not None and not gradient.isfinite().all():
        return Probe("failed", "the gradient is not finite", seconds, memory)
    return Probe("measured", "", seconds, memory)


def _explain(error: Exception, memory: int) -> Probe:
    text = " ".join(str(error).split())
    # torch raises a RuntimeError and jax one of its own.
    if isinstance(error, MemoryError) or "memory" in text.lower():
        return _too_large(memory)
    return Probe("failed", f"{type(error).__name__}: {text[:200]}")


def _too_large(memory: int) -> Probe:
    return Probe("too large", f"one call needs more than {memory / 2**30:.1f} GiB")


def _limit_memory(memory: int) -> None:
    """From here on an allocation beyond `memory` fails, instead of the whole machine."""
    with contextlib.suppress(ImportError, OSError):  # not on this system
        import resource

        limit = status_bytes("VmData") + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
