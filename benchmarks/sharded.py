"""What do scores cost that are spread over many ranks?

    python benchmarks/sharded.py     # some minutes, two processes of one thread

Three tables: a simulation of the messages for many ranks (threads that exchange tensors in memory)
over several kinds of scores; constants that are measured here; and a model of the time for 10^9
scores, computed from both.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

import softtopk
import softtopk.distributed
from softtopk.functional import _sharded
from softtopk.functional._collectives import Ranks
from softtopk.functional._rows import distances
from softtopk.functional._unsorted import solve_offset

N = 1_000_000  # scores of a simulation
RANKS = (8, 64)
MEASURED = 10_000_000  # scores on one rank
MODEL_N, MODEL_RANKS = 10**9, (8, 64, 256, 1024)


def scores_of(kind: str, n: int) -> Tensor:
    """Of the kinds that models give: some are smooth, some have ties, some are in order."""
    x = torch.randn(n, dtype=torch.float64)
    return {
        "normal": lambda: x,
        "heavy tails (Student, 2)": lambda: torch.distributions.StudentT(2.0).sample((n,)).double(),
        "log-normal": lambda: x.exp(),
        "after a ReLU": lambda: x.relu(),
        "rounded to 0.1": lambda: (10 * x).round() / 10,
        "two groups": lambda: x * 0.1 + 5.0 * (torch.arange(n) % 100 == 0),
        "in order": lambda: x.sort().values,
    }[kind]()


KINDS = [
    "normal",
    "heavy tails (Student, 2)",
    "log-normal",
    "after a ReLU",
    "rounded to 0.1",
    "two groups",
    "in order",
]


# The simulation.


@dataclass
class Exchange:
    """What the threads share: a slot for each, and the messages of rank 0."""

    count: int
    messages: list[int] = field(default_factory=list)  # bytes that each rank contributes

    def __post_init__(self) -> None:
        self.slots: list[Tensor] = [torch.empty(0)] * self.count
        self.barrier = threading.Barrier(self.count)


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """Ranks that are threads of this process."""

    exchange: Exchange = field(kw_only=True)

    def stack(self, x: Tensor) -> Tensor:
        exchange = self.exchange
        if self.index == 0:
            exchange.messages.append(x.nbytes)
        exchange.slots[self.index] = x.detach()
        exchange.barrier.wait()
        everything = torch.stack(exchange.slots)
        exchange.barrier.wait()
        return everything

    def sum(self, x: Tensor) -> Tensor:
        return self.stack(x).sum(0)

    def _reach(self, device: torch.device) -> torch.device:
        return device


def simulate(x: Tensor, count: int, k: float, eps: float) -> tuple[Tensor, list[int]]:
    """A of all ranks, and the bytes of each message."""
    exchange = Exchange(count)
    parts = list(x.tensor_split(count))
    ranks = threading.local()

    def run(index: int) -> None:
        ranks.own = ThreadRanks(None, index, count, exchange=exchange)
        parts[index] = softtopk.distributed.soft_topk(parts[index], k, eps=eps)

    with patch.object(_sharded, "ranks_of", lambda group: ranks.own):
        threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return torch.cat(parts), exchange.messages


def newton_alone(x: Tensor, k: float, eps: float) -> int:
    """The sums over ranks of a solver that has no bins: the start, and every step."""
    pivot = x.topk(math.ceil(k)).values[-1:]
    places = torch.tensor([k])
    d, _ = distances(x, pivot, places, eps / 2)
    return 1 + solve_offset(d.squeeze(-1), places)[1]


def simulation() -> None:
    print(
        "| scores | ranks | k | messages | sums without bins, from-to | bytes per rank | "
        "largest error of A |\n|---|--:|--:|--:|--:|--:|--:|"
    )
    for kind in KINDS:
        x = scores_of(kind, N)
        for count in RANKS:
            for k in (1000, N // 2):
                numbers, sizes, errors, steps = set(), [], [], []
                for width in (0.5 * k, 2.0 * k, 0.9 * N):
                    eps = float(softtopk.eps_for(x, k, width=min(width, 0.9 * N)))
                    a, messages = simulate(x, count, k, eps)
                    numbers.add(len(messages))
                    sizes.append(sum(messages))
                    errors.append((a - softtopk.soft_topk(x, k, eps=eps)).abs().max().item())
                    steps.append(newton_alone(x, k, eps))
                print(
                    f"| {kind} | {count} | {k:,} | {' '.join(map(str, sorted(numbers)))} | "
                    f"{min(steps)}-{max(steps)} | {max(sizes):,} | {max(errors):.0e} |",
                    flush=True,
                )


# The constants.


def least(function: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def local_costs() -> dict[str, float]:
    """Seconds per score on one rank, float32, one thread; and bytes per score."""
    x = torch.randn(MEASURED)
    learned = x.clone().requires_grad_()
    operator = softtopk.distributed.soft_topk
    with torch.no_grad():
        small = least(lambda: operator(x, 1000, eps=1.0), 3)
        large = least(lambda: operator(x, MEASURED // 2, eps=1.0), 3)
        ordinary = least(lambda: softtopk.soft_topk(x, 1000, eps=1.0), 3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    a = operator(learned, 1000, eps=1.0)
    start = time.perf_counter()
    a.backward(x)
    backward = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "forward, k = 1,000": small / MEASURED,
        "forward, k = n/2": large / MEASURED,
        "backward": backward / MEASURED,
        "the ordinary operator, forward": ordinary / MEASURED,
        "bytes": (after - before) * 1024 / MEASURED,
    }


def pair(rank: int, store: str, results: object) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    small, big = torch.zeros(8), torch.zeros(1 << 22)
    latency = statistics.median(least(lambda: dist.all_reduce(small), 20) for _ in range(20))
    parts = [torch.empty_like(big) for _ in range(2)]
    bandwidth = big.nbytes / least(lambda: dist.all_gather(parts, big), 10)
    if rank == 0:
        results.put((latency, bandwidth))  # type: ignore[attr-defined]
    dist.destroy_process_group()


def network_costs() -> tuple[float, float]:
    """Seconds of a small message between two processes, and bytes per second of a large one."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=pair, args=(rank, f"{folder}/store", results))
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        found = results.get()
        for process in processes:
            process.join()
    return found


# The model.


def bytes_of(n: int, count: int, k: int) -> tuple[int, float]:
    """The number of messages and the bytes that a rank receives for one row of float32, of the
    sizes in `_sharded`."""
    reduced = 8 * (2 * (2 * (_sharded.BINS + 1) + 1)) + _sharded.STEPS * 8 * 4
    width = min(k, n // count) + 1
    sampled, messages = 0.0, 5
    if k > _sharded.MOST_CANDIDATES:
        m = math.sqrt(2.0 * n / count)
        deviation = math.sqrt(n * (n / count) / (4.0 * m))
        width = math.ceil(
            2 * _sharded.DEVIATIONS * deviation / _sharded.SPLITTERS + n / (count * m)
        )
        sampled, messages = 4 * m * count, 7
        reduced += 2 * 8 * (_sharded.SPLITTERS + 2)
    gathered = count * (512 + 4 * width) + sampled
    return messages, gathered + 2 * reduced


def model(costs: dict[str, float], latency: float, bandwidth: float) -> None:
    print(
        "\n| ranks | k | messages | MB received | memory per rank | local work | latency | "
        "transfer |\n|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for count in MODEL_RANKS:
        for k in (1000, MODEL_N // 2):
            messages, received = bytes_of(MODEL_N, count, k)
            share = MODEL_N / count
            per_score = costs["forward, k = 1,000" if k == 1000 else "forward, k = n/2"]
            work = share * (per_score + costs["backward"])
            # A tree there and back for each message, forward and backward.
            waiting = (messages + 1) * 2 * math.log2(count) * latency
            print(
                f"| {count:,} | {k:,} | {messages} + 1 | {received / 1e6:.2f} | "
                f"{share * (4 + costs['bytes']) / 2**30:.2f} GiB | {work:.2g} s | "
                f"{1e3 * waiting:.1f} ms | {1e3 * received / bandwidth:.1f} ms |"
            )


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    simulation()
    costs, (latency, bandwidth) = local_costs(), network_costs()
    print()
    for name, value in costs.items():
        print(
            f"- {name}: "
            + (f"{value:.0f} per score" if name == "bytes" else f"{1e9 * value:.1f} ns per score")
        )
    print(f"- a small all_reduce of two processes: {1e6 * latency:.0f} µs")
    print(f"- all_gather of 16 MiB: {bandwidth / 1e9:.2f} GB/s")
    model(costs, latency, bandwidth)


if __name__ == "__main__":
    main()
