"""The peers: every method in the comparison, with what there is to know about it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import NamedTuple

from torch import Tensor

import softtopk

from . import _adapters as adapt
from ._adapters import ITERATIONS, SINKHORN, Run
from ._cases import Operator, Output, Problem


class Package(NamedTuple):
    """Where a peer comes from."""

    module: str
    distribution: str
    install: str = "'softtopk[bench]'"
    """What to give to pip."""

    def version(self) -> str | None:
        """The installed version, None if it is not installed."""
        if importlib.util.find_spec(self.module) is None:
            return None
        return metadata.version(self.distribution)


def own_tau(scores: Tensor, k: int, eps: float) -> float | Tensor:
    """The temperature of the problem as this package states it."""
    return eps / 2


@dataclass(frozen=True)
class Peer:
    """One method in the comparison. It is picklable: another process tries it first."""

    key: str
    """What `--peers` calls it."""
    label: str
    operator: Operator
    output: Output
    """Soft 0/1 `mask` (rows, n), `ranks` (rows, n, k), `values` (rows, k) or `order` (rows, n)."""
    prepare: Callable[[Problem], Run]
    """Everything that can be done once, such as compiling; not timed."""
    package: Package
    same_problem: bool = False
    """Whether it solves the transport problem of this package, so that its error is measured."""
    tau: Callable[[Tensor, int, float], float | Tensor] = own_tau
    """Temperature at which it solves that problem: a number or (rows, 1)."""
    gradient: bool = True
    growth: int = 1
    """The power of n that time and memory grow with."""
    compiles: bool = False
    """Whether `prepare` compiles for the shape, so that a trial at a small shape is no warm-up."""
    cpu_only: str = ""
    """Why it is left out on other devices, if it is."""


OURS = Package("softtopk", "softtopk")
TORCH = Package("torch", "torch")
ENTMAX = Package("entmax", "entmax")
COLT5 = Package("colt5_attention", "colt5-attention")
POT = Package("ot", "POT")
QFEVAL = Package("qfeval_functions", "qfeval-functions")
DIFFTOPK = Package("difftopk", "difftopk")
OTT = Package("ott", "ott-jax")
TORCHSORT = Package("torchsort", "torchsort", "--no-build-isolation torchsort")
SOFTTORCH = Package("softtorch", "softtorch", "softtorch, with Python 3.12 or newer")

_unsorted = partial(Peer, operator="unsorted", output="mask")
_sorted = partial(Peer, operator="sorted", output="ranks")

PEERS: tuple[Peer, ...] = (
    _unsorted("softtopk", "softtopk", prepare=adapt.soft_topk, package=OURS, same_problem=True),
    _unsorted(
        "plain",
        "softtopk without kernels",
        prepare=partial(adapt.plain, operator=softtopk.soft_topk),
        package=OURS,
        same_problem=True,
    ),
    _unsorted(
        "sinkhorn",
        f"{ITERATIONS} Sinkhorn iterations",
        prepare=partial(adapt.soft_topk, solver=SINKHORN),
        package=OURS,
        same_problem=True,
    ),
    _unsorted(
        "pot",
        "POT solve_batch",
        prepare=partial(adapt.pot, ranks=False),
        package=POT,
        same_problem=True,
    ),
    _unsorted(
        "qfeval",
        "qfeval soft_topk",
        prepare=adapt.qfeval,
        package=QFEVAL,
        same_problem=True,
        tau=adapt.qfeval_tau,
    ),
    _unsorted(
        "ott",
        "ott-jax topk_mask",
        prepare=partial(adapt.ott, ranks=False),
        package=OTT,
        same_problem=True,
        compiles=True,
        cpu_only="its adapter hands tensors of the CPU to jax",
    ),
    _unsorted("entmax", "entmax budget_bisect", prepare=adapt.entmax, package=ENTMAX),
    _unsorted("colt5", "colt5 coor_descent", prepare=adapt.colt5, package=COLT5),
    _unsorted(
        "difftopk",
        "difftopk network",
        prepare=partial(adapt.difftopk, ranks=False),
        package=DIFFTOPK,
        growth=2,
    ),
    _unsorted(
        "torchsort",
        "torchsort soft_rank",
        output="order",
        prepare=partial(adapt.torchsort, function="soft_rank"),
        package=TORCHSORT,
        cpu_only="it is built without a CUDA compiler",
    ),
    _unsorted("sort", "torch.sort", output="order", prepare=adapt.sort, package=TORCH),
    _unsorted("topk", "torch.topk", output="values", prepare=adapt.topk, package=TORCH),
    _unsorted("softmax", "torch.softmax", prepare=adapt.softmax, package=TORCH),
    _sorted(
        "softtopk", "softtopk", prepare=adapt.sorted_soft_topk, package=OURS, same_problem=True
    ),
    _sorted(
        "plain",
        "softtopk without kernels",
        prepare=partial(adapt.plain, operator=softtopk.sorted_soft_topk),
        package=OURS,
        same_problem=True,
    ),
    _sorted(
        "sinkhorn",
        f"{ITERATIONS} Sinkhorn iterations",
        prepare=partial(adapt.sorted_soft_topk, solver=SINKHORN),
        package=OURS,
        same_problem=True,
    ),
    _sorted(
        "pot",
        "POT solve_batch",
        prepare=partial(adapt.pot, ranks=True),
        package=POT,
        same_problem=True,
    ),
    _sorted(
        "ott",
        "ott-jax transport_for_sort",
        prepare=partial(adapt.ott, ranks=True),
        package=OTT,
        same_problem=True,
        compiles=True,
        cpu_only="its adapter hands tensors of the CPU to jax",
    ),
    _sorted(
        "softtorch",
        "softtorch topk (ot)",
        prepare=adapt.softtorch,
        package=SOFTTORCH,
        same_problem=True,
    ),
    _sorted(
        "difftopk",
        "difftopk network",
        prepare=partial(adapt.difftopk, ranks=True),
        package=DIFFTOPK,
        growth=2,
    ),
    _sorted(
        "torchsort",
        "torchsort soft_sort",
        output="order",
        prepare=partial(adapt.torchsort, function="soft_sort"),
        package=TORCHSORT,
        cpu_only="it is built without a CUDA compiler",
    ),
    _sorted("sort", "torch.sort", output="order", prepare=adapt.sort, package=TORCH),
    _sorted("topk", "torch.topk", output="values", prepare=adapt.topk, package=TORCH),
)
