"""Several processes that train one model together, as torchrun starts them.

All do the same work and hold the same state. Only the first one writes files and prints. What it
does alone, such as an evaluation, the others wait for in `lead`. With a single process, which is
the usual case, nothing here does anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from softtopk import __version__
from softtopk._files import sha256
from softtopk._training import DivergedError

from ..errors import UsageError

T = TypeVar("T")

# An evaluation takes as long as it takes; a process that ends is noticed at once all the same,
# because its connections are closed.
_PATIENCE = timedelta(days=30)
_patient: dist.ProcessGroup | None = None


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the processes that torchrun has started, if it has started more than one."""
    global _patient
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        return
    kind = torch.device(device).type
    backends = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
    if kind not in backends:
        raise UsageError(f"--device {device}: several processes train on cpu or cuda")
    from torch.distributed.rendezvous import rendezvous  # not in builds without torch.distributed

    store, own, size = next(rendezvous("env://"))
    if os.environ.get("GROUP_WORLD_SIZE", "1") == "1":
        # torchrun keeps its store for a restart. With the addresses in it, of processes that have
        # ended, gloo would wait for them. Several machines count their restarts each.
        store = dist.PrefixStore(f"start {_starts()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backends[kind], store=store, rank=own, world_size=size)
    try:
        _patient = dist.new_group(timeout=_PATIENCE, backend="gloo")
        yield
    finally:
        _patient = None
        dist.destroy_process_group()


def count() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if _patient is not None else 1


def rank() -> int:
    """The number of this one of them, from 0."""
    return dist.get_rank() if _patient is not None else 0


def is_first() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def is_restarted() -> bool:
    """Whether torchrun starts the processes once more, after one of them has failed."""
    return _starts() > 0


def _starts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def own_device(device: str) -> str:
    """The device of this process: each on a machine has a CUDA device of its own."""
    local = os.environ.get("LOCAL_RANK", "0")
    return f"cuda:{local}" if device == "cuda" and count() > 1 else device


def lead(work: Callable[[], T]) -> T:
    """Let the first process do the ``work``; all get its result, or its error.

    It begins when all processes have come here: none still reads what the work changes.
    """
    if count() == 1:
        return work()
    dist.barrier(group=_patient)
    told: list[Any] = [None, None]
    if is_first():
        try:
            told[0] = work()
        except (DivergedError, UsageError, OSError) as error:  # another one ends the process
            told[1] = error
    dist.broadcast_object_list(told, src=0, group=_patient)
    result, fault = told
    if fault is None:
        return result
    if is_first() or isinstance(fault, DivergedError):
        raise fault
    raise SystemExit(1)  # the first process says why


def agreed(flag: bool) -> bool:
    """Whether the ``flag`` is set in any process."""
    if count() == 1:
        return flag
    asked = torch.tensor(int(flag))
    dist.all_reduce(asked, op=dist.ReduceOp.MAX)
    return bool(asked)


def check_agreement(settings: Mapping[str, Any], **data: Callable[[], bytes]) -> None:
    """Refuse processes that were given other settings or data, or have another version."""
    if count() == 1:
        return
    said = {"version of torch": torch.__version__, "version of softtopk": __version__}
    said |= {name: str(value) for name, value in settings.items()}
    said |= {name: sha256(content()) for name, content in data.items()}
    found: list[Any] = [None] * count()
    dist.all_gather_object(found, said)
    for number, other in enumerate(found):
        for name, value in found[0].items():
            if other.get(name) != value:
                raise UsageError(
                    f"process {number} has another {name} than process 0 ({other.get(name)}, not "
                    f"{value}): give all processes the same options, files and versions"
                )


def spread(module: nn.Module) -> nn.Module:
    """What to call in place of ``module``, so that all processes get the mean of the gradients."""
    return module if count() == 1 else nn.parallel.DistributedDataParallel(module)


def is_lost(error: RuntimeError) -> bool:
    """Whether an error says that another process is gone."""
    return count() > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error).lower())


def lost(error: RuntimeError) -> str:
    """What to say of it."""
    reason = re.sub(r"^\[.*?\] ", "", str(error).splitlines()[0]).split(". ")[0]
    return f"process {rank()} of {count()}: another process has ended or hangs ({reason})"
