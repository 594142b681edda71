"""Compile the solvers of the page to play with: core.cpp and the kernels -> core.js.

`python docs/play/build.py` checks that core.js was made from the present sources. Where there is
Debian's clang it compiles them anew, and the result has to be the same to the last byte; `--write`
replaces it. On Debian 12 the compiler is in the packages

    clang-14 lld-14 wasi-libc libclang-rt-14-dev-wasm32 libc++-14-dev-wasm32

A page that is opened from the file system may not load other files, but scripts: so core.js holds
the module as text.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[1] / "src" / "softtopk" / "kernels" / "csrc"
CORE = HERE / "core.js"
# Only this version is known to give the same bytes.
COMPILER, LINKER = "clang++-14", "wasm-ld-14"
# One element at a time: 2,000 scores take less than a millisecond, and the module stays small.
FLAGS = ["--target=wasm32-wasi", "-std=c++17", "-Os", "-flto", "-fno-exceptions", "-fno-rtti"]
FLAGS += ["-ffp-contract=off", "-fvisibility=hidden", "-DNDEBUG", "-DSOFTTOPK_SCALAR"]
LIBRARIES = ["-L/usr/lib/wasm32-wasi", "-lc", "-lc++", "-lc++abi"]


def digest() -> str:
    """Of all that core.js is made from."""
    sources = [HERE / "core.cpp", *sorted(KERNELS.glob("*.hpp"))]
    text = "".join(FLAGS) + "".join(path.read_text() for path in sources)
    return hashlib.sha256(text.encode()).hexdigest()


def compiled() -> bytes:
    """The module."""
    resources = subprocess.check_output([COMPILER, "-print-resource-dir"], text=True).strip()
    builtins = Path(resources) / "lib" / "wasi" / "libclang_rt.builtins-wasm32.a"
    with tempfile.TemporaryDirectory() as folder:
        # Names of files are relative, so that no path of this machine gets in.
        sources = ["-I", KERNELS, "-c", HERE / "core.cpp", "-o", "core.o"]
        subprocess.run([COMPILER, *FLAGS, *sources], cwd=folder, check=True)
        options = ["--no-entry", "--strip-all", "--lto-O2", "core.o", *LIBRARIES, builtins]
        subprocess.run([LINKER, *options, "-o", "core.wasm"], cwd=folder, check=True)
        return (Path(folder) / "core.wasm").read_bytes()


def script(module: bytes) -> str:
    """The text of core.js."""
    text = base64.b64encode(module).decode()
    return (
        "// Made by build.py from core.cpp and the kernels of the package.\n"
        f'const SOFTTOPK_CORE = {{ sources: "{digest()}", module: "{text}" }};\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Check or rebuild core.js.")
    parser.add_argument("--write", action="store_true", help="replace core.js")
    write = parser.parse_args().write
    if shutil.which(COMPILER) is None or shutil.which(LINKER) is None:
        if write:
            sys.exit(f"there is no {COMPILER} or {LINKER} here; the head of build.py has packages")
        if digest() not in CORE.read_text():
            sys.exit("core.js is older than its sources: run python docs/play/build.py --write")
        return
    made = script(compiled())
    if write:
        CORE.write_text(made)
    elif made != CORE.read_text():
        sys.exit("core.js is not what its sources give: run python docs/play/build.py --write")


if __name__ == "__main__":
    main()
