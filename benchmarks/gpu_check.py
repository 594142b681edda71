"""Do the GPU kernels fit into registers, and read nothing twice that they keep there?

    python benchmarks/gpu_check.py                        # everything: three hours of a core
    python benchmarks/gpu_check.py --quick                # what demands most: a minute or two
    python benchmarks/gpu_check.py --only sm_90 float32   # the cases that have these words

Compiles every kernel in every configuration that the launcher can choose, without a GPU: the
launcher itself runs, on tensors without memory and with a driver that only names a device. Prints a
Markdown table, and writes it to OUT/results.md. OUT/results.jsonl has every kernel; a second call
compiles what is missing there.

- registers, and the bytes that a thread spills: by the assembler. Of AMD's compiler: vector
  registers, and the larger of the spills and of the private memory.
- bytes: read and written per element, by the loads and stores of the compiled program, and over the
  least: every tensor of the launch once. Caches are not considered. The kernels of the sorted
  operator have loops whose length is not known, and no such number; nor have those of ragged rows.

Exits with 1 if a kernel spills, or if one that keeps rows in registers moves more than it must.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import math
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
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
FEW = 3  # rows. A single one would be compiled into the kernel.
NEWTON_STEPS = 4  # of a long row: the usual number, where 6 are the most that the tests allow
SURPLUS = 1.1  # times the least traffic. More than that would be an element that is read twice.
# So many threads leave 128 registers for each, and then the compilers' choices are hard to foresee:
# kernels without optional arguments have spilled where those with all of them did not.
MANY_THREADS = 512
RANKS = (1, 3, 7, 15, 31, 32)  # of the sorted operator: all powers of two that kernels are for
SIZES = ("R", "N", "PP", "PIVOTS", "K", "BLOCK")  # constants that a configuration decides
SCRATCH = {"sums", "meetings", "histograms"}  # what programs exchange


class Case(NamedTuple):
    """A call of an operator and of its derivative."""

    target: str
    operator: str
    dtype: str
    rows: int
    n: int
    full: bool  #: with all optional arguments, and an n that no vector load fits; else with neither
    k: int = 0  #: ranks, of the sorted operator
    ragged: bool = False  #: n is the mean length

    @property
    def words(self) -> list[str]:
        size = f"{self.rows}x{self.n}" + (f"x{self.k}" if self.k else "")
        arguments = "full" if self.full else "bare"
        form = ["ragged"] if self.ragged else []
        return [self.target, self.operator, self.dtype, size, arguments, *form]


class Kernel(NamedTuple):
    """What became of a launch."""

    target: str
    dtype: str
    kernel: str
    constants: str
    threads: int
    registers: int
    spilled: int
    shared: int
    bytes: float | None
    least: float
    in_registers: bool  #: are whole rows

    @property
    def fails(self) -> bool:
        bytes = self.bytes or 0.0
        moves_too_much = self.in_registers and bytes > SURPLUS * self.least
        return self.spilled > 0 or moves_too_much


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


def ragged_rows(device: Device) -> Iterator[tuple[int, int]]:
    """Enough for all multiprocessors; and few, so that programs share the long ones."""
    yield device.multiprocessors * _configuration.TILE, 2 * _configuration.BLOCK
    yield FEW, _configuration.PART


def cases(target: str) -> Iterator[Case]:
    device = TARGETS[target].device
    for dtype in DTYPES:
        compute = torch.promote_types(dtype, torch.float32)
        name = str(dtype).removeprefix("torch.")
        for rows, n in (*short_rows(compute, device), *long_rows(compute, device)):
            warps = configuration(n, rows, compute, device).warps
            for operator in QUANTITIES:
                yield Case(target, operator, name, rows, n - 1, full=True)
                if warps * device.threads_per_warp >= MANY_THREADS:
                    yield Case(target, operator, name, rows, n, full=False)
        for rows, n in ragged_rows(device):
            for operator in QUANTITIES:
                yield Case(target, operator, name, rows, n, full=True, ragged=True)
        for k in RANKS:
            yield Case(target, "sorted", name, FEW, 1001, full=True, k=k)


def quick_cases(target: str) -> Iterator[Case]:
    """Those that demand most: of the widest derivative, and of the most ranks."""
    device = TARGETS[target].device
    for dtype in DTYPES:
        compute = torch.promote_types(dtype, torch.float32)
        *_, short = short_rows(compute, device)
        *_, long = long_rows(compute, device)
        for rows, n in [short] if dtype.itemsize == 2 else [short, long]:
            name = str(dtype).removeprefix("torch.")
            yield Case(target, "softmax", name, rows, n - 1, full=True)
    rows, n = next(ragged_rows(device))
    yield Case(target, "softmax", "float32", rows, n, full=True, ragged=True)
    yield Case(target, "sorted", "float32", FEW, 1001, full=True, k=max(RANKS))


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
    x, mask, tau = tensors_of(case)
    offsets = None
    if case.ragged:
        x, mask = x.flatten(), mask.flatten()
        offsets = x.new_empty(case.rows + 1, dtype=torch.int64)
    arguments = (case.operator, x, mask, tau if case.full else 1.5, tau, not case.full)
    result, state = Triton().solve(*arguments, offsets)
    grad = torch.empty_like(result)
    Triton().pull_back(*arguments, state, grad, in_tau=case.full, offsets=offsets)


def sorted_operator(case: Case) -> None:
    x, mask, tau = tensors_of(case)
    plan, pivots, offsets, _ = Triton().ranking(x, mask, case.k, tau, not case.full)
    grad = torch.empty_like(plan)
    Triton().ranking_gradient(x, mask, pivots, offsets, grad, tau, not case.full)


def tensors_of(case: Case) -> tuple[Tensor, Tensor | None, Tensor | float]:
    """The scores, and a mask and a tau for every row if there are such arguments."""
    x = torch.empty(case.rows, case.n, dtype=getattr(torch, case.dtype), device="meta")
    if not case.full:
        return x, None, 0.05
    return x, torch.empty_like(x, dtype=torch.bool), x.new_empty(case.rows, 1, dtype=torch.float64)


QUANTITIES = ("indicator", "log_indicator", "threshold", "softmax")
# What starts the kernels of an operator.
OPERATORS: dict[str, Callable[[Case], None]] = {
    **dict.fromkeys(QUANTITIES, unsorted),
    "sorted": sorted_operator,
}


def check(case: Case) -> list[Kernel]:
    """Its kernels, compiled."""
    driver.set_active(Driver(TARGETS[case.target].gpu))
    return [compiled(case, *launch) for launch in launches(case)]


RESOURCES: dict[str, tuple[int, int]] = {}  # of kernels that this process has compiled before


def compiled(case: Case, kernel: Any, arguments: dict[str, Any]) -> Kernel:
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(log):
        # Out of the cache on the disk there would be no log of the assembler.
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = folder, True
        program = kernel.warmup(grid=(1,), **arguments)
    if program.hash not in RESOURCES:
        amd = TARGETS[case.target].gpu.backend == "hip"
        found = amd_resources(program.asm["amdgcn"]) if amd else resources(log.getvalue())
        RESOURCES[program.hash] = found
    registers, spilled = RESOURCES[program.hash]
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    least = sum(value.nbytes for name, value in tensors.items() if name not in SCRATCH)
    return Kernel(
        target=case.target,
        dtype=case.dtype,
        kernel=kernel.__name__,
        constants=", ".join(f"{name} = {arguments[name]}" for name in SIZES if name in arguments),
        threads=program.metadata.num_warps * program.metadata.warp_size,
        registers=registers,
        spilled=spilled,
        shared=program.metadata.shared,
        bytes=None if case.k or case.ragged else traffic(program.asm["ttir"], arguments),
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
    """The largest numbers of a configuration, over the operators and their optional arguments."""
    groups: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in kernels:
        key = (kernel.target, kernel.dtype, kernel.kernel, kernel.constants, str(kernel.threads))
        groups.setdefault(key, []).append(kernel)
    numbers = ("registers", "spilled", "shared")
    names = ("target", "dtype", "kernel", "constants", "threads", *numbers, "bytes", "/ least")
    lines = [f"| {' | '.join(names)} |", "|---|---|---|---|" + 6 * "--:|"]
    for key, group in groups.items():
        row = [*key, *(str(max(getattr(kernel, name) for kernel in group)) for name in numbers)]
        moved = [(kernel.bytes, kernel.least) for kernel in group if kernel.bytes is not None]
        row.append(f"{max(most for most, _ in moved):.1f}" if moved else "")
        row.append(f"{max(most / least for most, least in moved):.2f}" if moved else "")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


class Records:
    """The kernels of finished cases, a line of JSON each. Those of other code do not count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        folder = Path(_configuration.__file__).parent
        sources = [file.read_bytes() for file in (Path(__file__), *sorted(folder.glob("*.py")))]
        code = triton.__version__.encode() + b"".join(sources)
        self._code = hashlib.sha256(code).hexdigest()
        self._found: dict[str, list[Kernel]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            record = json.loads(line)
            if record["code"] == self._code:
                self._found[record["case"]] = [Kernel(**fields) for fields in record["kernels"]]

    def get(self, case: Case) -> list[Kernel] | None:
        return self._found.get(" ".join(case.words))

    def add(self, case: Case, kernels: list[Kernel]) -> None:
        name = " ".join(case.words)
        self._found[name] = kernels
        fields = [kernel._asdict() for kernel in kernels]
        with self._path.open("a") as file:
            print(json.dumps({"code": self._code, "case": name, "kernels": fields}), file=file)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compiles the kernels for GPUs, without a GPU.")
    parser.add_argument("--only", nargs="+", default=[], help="words that a case has to have")
    parser.add_argument("--quick", action="store_true", help="only the largest configurations")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu-check"), help="a folder")
    args = parser.parse_args(arguments)
    if knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set, and then nothing is compiled: unset it")
    every = map(quick_cases, QUICK_TARGETS) if args.quick else map(cases, TARGETS)
    found = [case for of_target in every for case in of_target if set(args.only) <= set(case.words)]
    if not found:
        parser.error(f"--only {' '.join(args.only)}: no case has all of these words")

    args.out.mkdir(parents=True, exist_ok=True)
    records = Records(args.out / "results.jsonl")
    missing = [case for case in found if records.get(case) is None]
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        results = map(check, missing) if args.jobs == 1 else pool.map(check, missing)
        for number, (case, kernels) in enumerate(zip(missing, results, strict=True), 1):
            records.add(case, kernels)
            print(f"{number}/{len(missing)} {' '.join(case.words)}", file=sys.stderr)

    told = [(case, kernel) for case in found for kernel in records.get(case)]
    text = table(kernel for _, kernel in told)
    (args.out / "results.md").write_text(text + "\n")
    print(text)
    failed = [(case, kernel) for case, kernel in told if kernel.fails]
    print(f"\n{len(told)} kernels, of which {len(failed)} spill or move too much.")
    for case, kernel in failed:
        moved = (
            "" if kernel.bytes is None else f", {kernel.bytes / kernel.least:.2f} times the least"
        )
        print(f"- {' '.join(case.words)}, {kernel.kernel}: {kernel.spilled} bytes spilled{moved}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
