"""Install what `python -m build` made where there is no compiler, and use it.

    python tests/wheel/try_out.py dist

The wheel has to bring its native library; the sdist has to install without one and say why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SMOKE = Path(__file__).with_name("smoke.py")
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++")


def main() -> None:
    (wheel,) = Path(sys.argv[1]).resolve().glob("*.whl")
    (sdist,) = Path(sys.argv[1]).resolve().glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="softtopk-") as folder:
        installation = Installation(Path(folder))

        print(f"Installing {wheel.name} and torch in an empty environment")
        installation.pip("-c", str(ROOT / "constraints.txt"), str(wheel))
        assert "-py3-none-" in wheel.name, f"{wheel.name} is not for every version of Python"
        installation.expect("native (")
        installation.run("python", str(SMOKE), SOFTTOPK_NATIVE="require")
        installation.run("python", str(SMOKE), SOFTTOPK_NATIVE="off")

        print(f"Installing {sdist.name} in its place")
        installation.pip("--force-reinstall", "--no-deps", str(sdist))
        installation.expect(
            "plain PyTorch operations: the native library was not built (no C++ compiler found"
        )
        installation.run("python", str(SMOKE))


class Installation:
    """A new virtual environment whose programs are the only ones on the PATH."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=True)
        self.folder = folder
        self.programs = folder / "venv" / "bin"
        found = [name for name in COMPILERS if shutil.which(name, path=str(self.programs))]
        assert not found, f"compilers where none should be: {found}"

    def run(self, program: str, *arguments: str, **variables: str) -> str:
        """What the program prints, which is shown as well; no setting of ours reaches it."""
        dropped = ("CC", "CXX", "LDSHARED", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in dropped and not name.startswith("SOFTTOPK_")
        }
        result = subprocess.run(
            [str(self.programs / program), *arguments],
            env={**kept, "PATH": str(self.programs), **variables},
            cwd=self.folder,  # not the source tree, which Python would import from
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(result.stdout, end="")
        return result.stdout

    def pip(self, *arguments: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", *arguments)

    def expect(self, kernels: str) -> None:
        """`softtopk info` says this of the kernels."""
        last = self.run("softtopk", "info").splitlines()[-1]
        assert last.removeprefix("kernels:").strip().startswith(kernels), last


if __name__ == "__main__":
    main()
