"""Run the native library under sanitizers: `make sanitize`, some minutes.

    python tests/sanitize/run.py [--cases 2000]

Builds driver.cpp together with the library twice: with AddressSanitizer and
UndefinedBehaviorSanitizer, and with ThreadSanitizer. First faults are committed on every
instruction set, each of which has to be noticed: else the sanitizer watches nothing. Then every
kernel is called on random arguments.

The run with AddressSanitizer is made twice, with other garbage in fresh memory. Results that differ
come from memory that was read before it was written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "src" / "softtopk" / "kernels" / "csrc"
BUILD = ROOT / "build" / "sanitize"
# As setup.py has them, but for the optimisation: floating point behaves the same.
COMPILE = [
    *("-std=c++17", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-sanitize-recover=all", "-D_GLIBCXX_ASSERTIONS", "-Wno-psabi"),
]
# OpenMP's threads are not for ThreadSanitizer, which does not know how GNU's library waits.
FLAGS = {
    "address": [
        "-fsanitize=address,undefined,float-cast-overflow",
        *("-Wl,--no-as-needed", "-lgomp"),
    ],
    "thread": ["-fsanitize=thread"],
}
# Part of the report on each fault.
FAULTS = {
    "address": {
        "read": "READ of size",
        "write": "WRITE of size",
        "read before a page": "SEGV",
        "write before a page": "SEGV",
        "overflow": "signed integer overflow",
        "misaligned": "misaligned address",
    },
    "thread": {"race": "data race"},
}
# How many times slower than the other: ThreadSanitizer gets fewer cases.
SLOWER = {"address": 1, "thread": 3}
GARBAGE = {"address": (0x00, 0x5A), "thread": (None,)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="random calls per instruction set")
    parser.add_argument("--only", choices=FLAGS, help="one of the two builds")
    options = parser.parse_args()
    for name in [options.only] if options.only else FLAGS:
        check(name, options.cases // SLOWER[name])


def check(name: str, cases: int) -> None:
    driver = build(name)
    sets = execute(driver, "sets").stdout.split()
    for fault, report in FAULTS[name].items():
        for instruction_set in sets:
            found = execute(driver, "fault", fault, instruction_set)
            if found.returncode == 0 or report not in found.stderr:
                sys.exit(f"{name}: {fault!r} on {instruction_set} was not noticed\n{found.stderr}")
    print(f"{name}: {len(FAULTS[name])} faults noticed on {', '.join(sets)}", flush=True)
    results = set()
    for garbage in GARBAGE[name]:
        run = execute(driver, "run", str(cases), garbage=garbage)
        if run.returncode != 0:
            sys.exit(f"{name}: the library has a fault\n{run.stderr}")
        results.add(run.stdout)
    if len(results) > 1:
        sys.exit(f"{name}: the results depend on what was in fresh memory")
    print(f"{name}: {2 * cases} cases on each without a fault", flush=True)


def build(name: str) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    driver = BUILD / name
    sources = [Path(__file__).with_name("driver.cpp"), *sorted(CSRC.glob("*.cpp"))]
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *COMPILE, f"-I{CSRC}", *map(str, sources), "-o", str(driver)]
    print(f"{name}: building", flush=True)
    subprocess.run([*command, *FLAGS[name], "-ldl"], check=True)
    return driver


def execute(
    driver: Path, *arguments: str, garbage: int | None = None
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if garbage is not None:
        environment["ASAN_OPTIONS"] = f"max_malloc_fill_size={1 << 30}:malloc_fill_byte={garbage}"
    return subprocess.run(
        [driver, *arguments], env=environment, capture_output=True, text=True, check=False
    )


if __name__ == "__main__":
    main()
