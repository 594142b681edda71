"""Do the GPU kernels fit into registers, and read nothing twice that they keep there?

    python benchmarks/gpu_check.py                        # everything: some hours of a core
    python benchmarks/gpu_check.py --quick                # what demands most: a minute
    python benchmarks/gpu_check.py --only sm_90 float32   # the cases that have these words

Compiles every kernel in every configuration that the launcher can choose, without a GPU: the
launcher itself runs, on tensors without memory and with a driver that only names a device. Prints a
Markdown table, and writes it to OUT/results.md, with every single kernel in OUT/results.json.

- registers, and the bytes that a thread spills: by the assembler. Of AMD's compiler: vector
  registers, and the larger of the spills and of the private memory.
- bytes: read and written per element, by the loads and stores of the compiled program, over the
  least: every tensor of the launch once. Caches are not considered.

Exits with 1 if a kernel spills, or if one that keeps rows in registers moves more than it must.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from softtopk.kernels._triton import Triton, _configuration, _launch
from softtopk.kernels._triton._configuration import Device, configuration


class Target(NamedTuple):
    gpu: GPUTarget
    device: Device


# Multiprocessors of the largest device of each kind. They limit the programs that share a row, and
# so the kernels there are: for 512 at most, the power of two above.
TARGETS = {
    "sm_80": Target(GPUTarget("cuda", 80, 32), Device(128, 32)),  # A100 has 108, RTX 4090 has 128
    "sm_90": Target(GPUTarget("cuda", 90, 32), Device(132, 32)),  # H100
    "sm_100": Target(GPUTarget("cuda", 100, 32), Device(160, 32)),  # B200 has 148
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), Device(304, 64)),  # MI300X
}
QUICK_TARGETS = ("sm_90", "gfx942")  # of NVIDIA and of AMD; sm_90 has spilled more than sm_80
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HARDEST = ("softmax",)  # operators, for the registers of their derivatives
FEW = 3  # rows. A single one would be compiled into the kernel.
NEWTON_STEPS = 4  # of a long row: the usual number, where 6 are the most that the tests allow
SURPLUS = 1.1  # times the least traffic. More than that would be an element that is read twice.
# So many threads leave 128 registers for each, and then the compilers' choices are hard to foresee:
# kernels without optional arguments have spilled where those with all of them did not.
MANY_THREADS = 512
SIZES = ("R", "N", "PP", "BLOCK")  # constants of a kernel that its configuration decides
SCRATCH = {"sums", "meetings", "histograms"}  # what programs exchange


class Case(NamedTuple):
    """A call of an operator and of its derivative."""

    target: str
    operator: str
    dtype: str
    rows: int
    n: int
    full: bool  #: with all optional arguments, and an n that no vector load fits; else with neither

    @property
    def words(self) -> list[str]:
        size, arguments = f"{self.rows}x{self.n}", "full" if self.full else "bare"
        return [self.target, self.operator, self.dtype, size, arguments]


class Kernel(NamedTuple):
    """What became of a launch."""

    case: str
    target: str
    dtype: str
    kernel: str
    constants: str
    threads: int
    registers: int
    spilled: int
    shared: int
    bytes: float
    least: float
    in_registers: bool  #: are whole rows

    @property
    def fails(self) -> bool:
        return self.spilled > 0 or (self.in_registers and self.bytes > SURPLUS * self.least)


# What there is to compile.


def short_rows(compute: torch.dtype, device: Device) -> Iterator[tuple[int, int]]:
    """Numbers of rows and of their elements, one of each configuration, the largest last."""
    n = _configuration.FEWEST
    while n <= _configuration.LONGEST_IN_REGISTERS[compute]:
        if n < _configuration.TILE:
            yield device.multiprocessors * _configuration.TILE // n, n
        yield FEW, n
        n *= 2


def long_rows(compute: torch.dtype, device: Device) -> Iterator[tuple[int, int]]:
    programs = 1
    while programs < 2 * device.multiprocessors:
        yield FEW if FEW * programs <= device.multiprocessors else 1, programs * _configuration.PART
        programs *= 2


def cases(target: str, quick: bool = False) -> Iterator[Case]:
    """Of all operators; ``quick``: those that demand most."""
    device = TARGETS[target].device
    operators = HARDEST if quick else OPERATORS
    for dtype in DTYPES:
        compute = torch.promote_types(dtype, torch.float32)
        name = str(dtype).removeprefix("torch.")
        short, long = list(short_rows(compute, device)), list(long_rows(compute, device))
        for rows, n in [short[-1], long[-1]] if quick else short + long:
            warps = configuration(n, rows, compute, device).warps
            tight = warps * device.threads_per_warp >= MANY_THREADS
            for operator in operators:
                yield Case(target, operator, name, rows, n - 1, full=True)
                if tight and not quick:
                    yield Case(target, operator, name, rows, n, full=False)


# Compiling it.


class Driver:
    """Of a device that is not there."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> str:
        return str(self._target)  # kernels are kept apart by it

    def get_current_stream(self, device: str) -> int:
        return 0


class Launch(NamedTuple):
    kernel: Any
    arguments: dict[str, Any]


def launches(case: Case) -> list[Launch]:
    """What the launcher starts."""
    found: list[Launch] = []

    def start(kernel: Any, grid: tuple[int, ...]) -> Any:
        return lambda **arguments: found.append(Launch(kernel, arguments))

    with (
        patch.object(JITFunction, "__getitem__", start),
        patch.object(_launch, "device_of", lambda _: TARGETS[case.target].device),
    ):
        OPERATORS[case.operator](case)
    return found


def unsorted(case: Case) -> None:
    empty = partial(torch.empty, device="meta")
    x = empty(case.rows, case.n, dtype=getattr(torch, case.dtype))
    mask, k, tau = None, 1.5, 0.05
    if case.full:
        mask = empty(x.shape, dtype=torch.bool)
        k = tau = empty(case.rows, 1, dtype=torch.float64)
    arguments = (case.operator, x, mask, k, tau, not case.full)
    result, state = Triton().solve(*arguments)
    Triton().pull_back(*arguments, state, torch.empty_like(result), in_tau=case.full)


# What starts the kernels of an operator, by the names that the launcher has for their results.
OPERATORS: dict[str, Callable[[Case], None]] = {
    "indicator": unsorted,
    "log_indicator": unsorted,
    "threshold": unsorted,
    "softmax": unsorted,
}


def check(case: Case) -> list[Kernel]:
    """Its kernels, compiled."""
    driver.set_active(Driver(TARGETS[case.target].gpu))
    return [compiled(case, *launch) for launch in launches(case)]


def compiled(case: Case, kernel: Any, arguments: dict[str, Any]) -> Kernel:
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(log):
        # A kernel out of the cache would have no log of the assembler.
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = folder, True
        program = kernel.warmup(grid=(1,), **arguments)
    amd = TARGETS[case.target].gpu.backend == "hip"
    registers, spilled = amd_resources(program.asm["amdgcn"]) if amd else resources(log.getvalue())
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    least = sum(value.nbytes for name, value in tensors.items() if name not in SCRATCH)
    return Kernel(
        case=" ".join(case.words),
        target=case.target,
        dtype=case.dtype,
        kernel=kernel.__name__,
        constants=", ".join(f"{name} = {arguments[name]}" for name in SIZES if name in arguments),
        threads=program.metadata.num_warps * program.metadata.warp_size,
        registers=registers,
        spilled=spilled,
        shared=program.metadata.shared,
        bytes=traffic(program.asm["ttir"], arguments),
        least=least / (case.rows * case.n),
        in_registers="N" in arguments,
    )


def resources(log: str) -> tuple[int, int]:
    """Registers of a thread, and the bytes that it spills and loads again."""
    (registers,) = re.findall(r"Used (\d+) registers", log)
    ((stores, loads),) = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    return int(registers), int(stores) + int(loads)


def amd_resources(code: str) -> tuple[int, int]:
    def number(name: str) -> int:
        (value,) = re.findall(rf"^ +\.{name}: +(\d+)$", code, re.MULTILINE)
        return int(value)

    spilled = 4 * number("vgpr_spill_count")  # scalar registers are spilled into vector registers
    return number("vgpr_count"), max(spilled, number("private_segment_fixed_size"))


ACCESS = re.compile(r"tt\.(?:load|store) .* : (?:tensor<([\dx]+)x)?!tt\.ptr<[a-z]+(\d+)>")


def traffic(program: str, arguments: dict[str, Any]) -> float:
    """Bytes read and written per element of a row, by a program in Triton's first language."""
    if "N" in arguments:
        tile, elements = arguments["R"] * arguments["N"], arguments["R"] * arguments["n"]
    else:
        tile, elements = arguments["BLOCK"], arguments["n"] / arguments["P"]
    total = 0.0
    for depth, shape, bits in accesses(program):
        size = math.prod(map(int, shape.split("x"))) if shape else 1
        passes = NEWTON_STEPS if depth > 1 else 1
        total += passes * size * bits / 8 / (tile if size == tile else elements)
    return total


def accesses(program: str) -> Iterator[tuple[int, str, int]]:
    """Of loads and stores: the number of loops around them, the shape, the bits of an element."""
    blocks: list[bool] = []  # those that are open, and whether they are loops
    for line in program.splitlines():
        access = ACCESS.search(line)
        if access:
            yield sum(blocks), access[1], int(access[2])
        loop = re.search(r"scf\.(for|while)|} do {", line) is not None
        for bracket in re.findall("[{}]", line):
            blocks.append(loop) if bracket == "{" else blocks.pop()


# What is told.


def table(kernels: Iterable[Kernel]) -> str:
    """The largest numbers of a configuration, over the quantities and the optional arguments."""
    groups: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in kernels:
        key = (kernel.target, kernel.dtype, kernel.kernel, kernel.constants, str(kernel.threads))
        groups.setdefault(key, []).append(kernel)
    numbers = ("registers", "spilled", "shared")
    names = ("target", "dtype", "kernel", "constants", "threads", *numbers, "bytes", "/ least")
    lines = [f"| {' | '.join(names)} |", "|---|---|---|---|" + 6 * "--:|"]
    for key, group in groups.items():
        most = (str(max(getattr(kernel, name) for kernel in group)) for name in numbers)
        moved = max(kernel.bytes for kernel in group)
        ratio = max(kernel.bytes / kernel.least for kernel in group)
        lines.append(f"| {' | '.join([*key, *most])} | {moved:.1f} | {ratio:.2f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compiles the kernels for GPUs, without a GPU.")
    parser.add_argument("--only", nargs="+", default=[], help="words that a case has to have")
    parser.add_argument("--quick", action="store_true", help="only the largest configurations")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu_check"), help="a folder")
    args = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, and then nothing is compiled: unset it")
    targets = QUICK_TARGETS if args.quick else TARGETS
    found = [case for target in targets for case in cases(target, args.quick)]
    found = [case for case in found if set(args.only) <= set(case.words)]
    if not found:
        parser.error(f"--only {' '.join(args.only)}: no case has all of these words")

    kernels: list[Kernel] = []
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        results = map(check, found) if args.jobs == 1 else pool.map(check, found)
        for number, (case, result) in enumerate(zip(found, results, strict=True), 1):
            kernels += result
            state = "fails" if any(kernel.fails for kernel in result) else "ok"
            print(f"{number}/{len(found)} {' '.join(case.words)}: {state}", file=sys.stderr)

    args.out.mkdir(parents=True, exist_ok=True)
    records = [kernel._asdict() for kernel in kernels]
    (args.out / "results.json").write_text(json.dumps(records, indent=1) + "\n")
    text = table(kernels)
    (args.out / "results.md").write_text(text + "\n")
    print(text)
    failed = [kernel for kernel in kernels if kernel.fails]
    print(f"\n{len(kernels)} kernels, of which {len(failed)} spill or move too much.")
    for kernel in failed:
        print(
            f"- {kernel.case}, {kernel.kernel}: {kernel.spilled} bytes spilled, "
            f"{kernel.bytes:.1f} bytes per element where {kernel.least:.1f} must be"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
