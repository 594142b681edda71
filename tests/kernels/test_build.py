"""The build of the native library, and what becomes of an installation without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("setuptools", "77")

ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path("src", "softtopk", "kernels")
LIBRARY = "_native.so"
REASON = "_not_built.txt"
PYTHON_FILES = {
    path.relative_to(ROOT / KERNELS).as_posix() for path in (ROOT / KERNELS).rglob("*.py")
}
FAILING_COMPILER = {"CC": "false", "CXX": "false"}
MISSING_COMPILER = {"CC": "no-such-cc", "CXX": "no-such-c++"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="CXX chooses no MSVC compiler")
needs_a_compiler = pytest.mark.skipif(
    not shutil.which("c++") and not shutil.which("g++"), reason="there is no C++ compiler"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the build reads, with a source that compiles in no time."""
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("*.egg-info", "__pycache__", LIBRARY, REASON, "csrc")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    (tree / KERNELS / "csrc").mkdir()
    (tree / KERNELS / "csrc" / "a.hpp").write_text("inline int number() { return 1; }\n")
    (tree / KERNELS / "csrc" / "a.cpp").write_text('#include "a.hpp"\nint a = number();\n')
    return tree


def build(tree: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in {"CC", "CXX", "LDSHARED"}}
    environment.pop("SOFTTOPK_BUILD_NATIVE", None)
    return subprocess.run(
        [sys.executable, "setup.py", *command],
        cwd=tree,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def the_wheel(tree: Path) -> tuple[str, set[str]]:
    """Its tag, and the names of the files of softtopk.kernels in it."""
    (wheel,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("softtopk/kernels/")}
    return "-".join(wheel.stem.split("-")[2:]), {name.split("/", 2)[2] for name in names}


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (FAILING_COMPILER, "false failed; pip install -v shows why"),
        (MISSING_COMPILER, "no C++ compiler found at installation: there is no no-such-c++"),
        ({"SOFTTOPK_BUILD_NATIVE": "skip"}, "SOFTTOPK_BUILD_NATIVE=skip"),
    ],
)
def test_without_the_library_there_is_a_wheel_for_any_platform(
    tree: Path, variables: dict[str, str], reason: str
) -> None:
    run = build(tree, "bdist_wheel", **variables)
    assert run.returncode == 0, run.stderr
    tag, files = the_wheel(tree)
    assert tag == "py3-none-any"
    assert files == PYTHON_FILES | {REASON}
    (recorded,) = (tree / "build").glob(f"lib*/softtopk/kernels/{REASON}")
    assert recorded.read_text().startswith(reason)
    assert f"the native library was not built ({recorded.read_text().strip()})" in run.stderr
    assert "give the same results" in run.stderr


def test_a_library_that_is_required_is_an_error(tree: Path) -> None:
    run = build(tree, "build", SOFTTOPK_BUILD_NATIVE="require", **FAILING_COMPILER)
    assert run.returncode != 0
    assert not list((tree / "build").rglob(REASON))


def test_a_value_without_meaning_is_an_error(tree: Path) -> None:
    run = build(tree, "build", SOFTTOPK_BUILD_NATIVE="maybe")
    assert run.returncode != 0
    assert "SOFTTOPK_BUILD_NATIVE must be try, require or skip, not 'maybe'" in run.stderr


@needs_a_compiler
def test_the_wheel_has_the_library_and_is_for_every_python(tree: Path) -> None:
    run = build(tree, "bdist_wheel", SOFTTOPK_BUILD_NATIVE="require")
    assert run.returncode == 0, run.stderr
    tag, files = the_wheel(tree)
    assert tag.startswith("py3-none-")
    assert tag != "py3-none-any"
    assert files == PYTHON_FILES | {LIBRARY}


@needs_a_compiler
def test_in_place_it_follows_the_sources_and_leaves_nothing_stale(tree: Path) -> None:
    library, reason = tree / KERNELS / LIBRARY, tree / KERNELS / REASON
    in_place = ("build_ext", "--inplace")

    assert build(tree, *in_place, SOFTTOPK_BUILD_NATIVE="skip").returncode == 0
    assert reason.exists()
    assert "a.cpp" in build(tree, *in_place).stdout
    assert library.exists()
    assert not reason.exists()

    assert "a.cpp" not in build(tree, *in_place).stdout  # nothing to do
    (tree / KERNELS / "csrc" / "a.hpp").write_text("no C++\n")
    assert build(tree, *in_place).returncode == 0
    assert "failed; pip install -v shows why" in reason.read_text()
    assert not library.exists()


def test_the_sdist_has_the_sources_and_no_outputs(tree: Path) -> None:
    for leftover in (LIBRARY, REASON):
        (tree / KERNELS / leftover).write_text("of an earlier build in place\n")
    run = build(tree, "sdist")
    assert run.returncode == 0, run.stderr
    (archive,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    csrc = KERNELS.as_posix() + "/csrc/"
    assert {"setup.py", csrc + "a.cpp", csrc + "a.hpp"} <= names
    assert not [name for name in names if name.endswith((LIBRARY, REASON))]
