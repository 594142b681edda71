"""What does attention to about k keys cost, next to ordinary attention?

    python benchmarks/attention.py
    python benchmarks/attention.py --length 2048 --batch 1 --causal

Prints two Markdown tables, in about a minute. The rows: softmax attention as matmul, mask, softmax,
matmul; `soft_topk_attention`; and `F.scaled_dot_product_attention`, which on the CPU never holds
all weights at once.

The first is of training, forward and backward: the median CPU time and its ratio to eager
attention, what autograd keeps for the backward pass (each storage once, without query, key and
value), and the peak memory. The second is of inference, where the hard one reads k values per
query only.

The repeats of all rows are interleaved, so that a disturbance of the machine meets all of them, and
the ratios mean more than the times. The CPU time, which other work on the machine disturbs less, is
that of all threads together; --threads changes their number from one. The peak is the growth of the
resident set during one call, in a process of its own that has made a small one before: outputs and
gradients count, inputs do not. It is known on Linux only.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from softtopk.nn import soft_topk_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
SMALL = 16  # length of the first call in a process, which starts threads and loads libraries
TRAINING = (
    "eager softmax",
    "soft top-k",
    "soft top-k, eps learned",
    "F.scaled_dot_product_attention",
)
INFERENCE = (*TRAINING[:2], "hard top-k", TRAINING[2])


class Setting(NamedTuple):
    batch: int
    heads: int
    length: int
    size: int
    topk: int
    eps: float
    causal: bool
    dtype: str
    threads: int


def eager(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -math.inf)
    return scores.softmax(-1) @ value


def attention_of(name: str, setting: Setting) -> Attention:
    ours = partial(
        soft_topk_attention, topk=setting.topk, eps=setting.eps, is_causal=setting.causal
    )
    return {
        "eager softmax": partial(eager, causal=setting.causal),
        "soft top-k": ours,
        "soft top-k, eps learned": partial(
            ours, eps=torch.full((setting.heads, 1), setting.eps, requires_grad=True)
        ),
        "hard top-k": partial(ours, hard=True),
        "F.scaled_dot_product_attention": partial(
            F.scaled_dot_product_attention, is_causal=setting.causal
        ),
    }[name]


class Run:
    """Calls of one attention on the same inputs: normal, so that the scores have unit variance."""

    def __init__(self, name: str, setting: Setting, training: bool) -> None:
        self.attention = attention_of(name, setting)
        generator = torch.Generator().manual_seed(0)
        shape = (setting.batch, setting.heads, setting.length, setting.size)
        dtype = getattr(torch, setting.dtype)
        self.inputs = [
            torch.randn(shape, generator=generator).to(dtype).requires_grad_(training)
            for _ in range(3)
        ]
        self.upstream = torch.randn(shape, generator=generator).to(dtype) if training else None

    def __call__(self) -> None:
        output = self.attention(*self.inputs)
        if self.upstream is not None:
            torch.autograd.grad(output, self.inputs, self.upstream)

    def kept(self) -> int:
        """Bytes that the graph of the output holds, without the inputs."""
        own = {tensor.untyped_storage().data_ptr() for tensor in self.inputs}
        held: dict[int, int] = {}
        alive = []  # storages that are freed before the end would give their address to others

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
                alive.append(storage)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.attention(*self.inputs)
        return sum(held.values())


def status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"the kernel reports no {name}")


def growth(name: str, setting: Setting, training: bool) -> int:
    """Peak of the resident set during one call, less what was resident before."""
    torch.set_num_threads(setting.threads)
    small = min(SMALL, setting.length)
    topk = min(setting.topk, small - 1)
    Run(name, setting._replace(batch=1, length=small, topk=topk), training)()
    run = Run(name, setting, training)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status_bytes("VmRSS")
    run()
    return status_bytes("VmHWM") - before


def peak(name: str, setting: Setting, training: bool) -> str:
    if not Path("/proc/self/clear_refs").exists():
        return "unknown"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return mebibytes(pool.apply(growth, (name, setting, training)))


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def medians(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            run()
            samples[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in samples.items()}


def print_table(names: tuple[str, ...], setting: Setting, training: bool, repeats: int) -> None:
    runs = {name: Run(name, setting, training) for name in names}
    times = medians(runs, repeats)
    base = times[names[0]]
    what = "forward and backward" if training else "inference"
    kept = "| kept for backward " if training else ""
    print(
        f"| {what} | CPU time | ratio {kept}| peak memory |\n|---|--:|--:{'|--:' * training}|--:|"
    )
    for name, run in runs.items():
        kept = f"| {mebibytes(run.kept())} " if training else ""
        print(
            f"| {name} | {1e3 * times[name]:.1f} ms | {times[name] / base:.2f} "
            f"{kept}| {peak(name, setting, training)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="of queries and of keys")
    parser.add_argument("--size", type=int, default=64, help="of a head")
    parser.add_argument("--topk", type=int, default=16)
    parser.add_argument("--eps", type=float, default=1.0)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=11)
    options = vars(parser.parse_args())
    repeats = options.pop("repeats")
    setting = Setting(**options)
    torch.set_num_threads(setting.threads)

    print(
        f"{setting.batch} x {setting.heads} heads, {setting.length} queries and keys of size "
        f"{setting.size}, k = {setting.topk}, eps = {setting.eps:g}, {setting.dtype}, "
        f"{setting.threads} thread(s){', causal' * setting.causal}\n"
    )
    print_table(TRAINING, setting, training=True, repeats=repeats)
    print()
    print_table(INFERENCE, setting, training=False, repeats=repeats)


if __name__ == "__main__":
    main()
