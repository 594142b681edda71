"""Dependencies point one way, and importing the package stays cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "softtopk"

# What any part above them may import: choosing a path, checks, and what to install.
HELPERS = {"_optional", "_dispatch", "_checks"}
OPERATORS = {"functional", "nn"} | HELPERS
APPLICATIONS = {"relaxations", "knn", "seq2seq", "distributed"}

# Every top-level part of the package, lowest first, with the other parts it may import.
# "__init__" stands for the package's public names.
MAY_IMPORT: dict[str, set[str]] = {
    "kernels": set(),
    "_optional": set(),
    "_files": set(),
    "_model_files": {"_files", "_optional"},
    "_random": set(),
    "_training": set(),
    "_dispatch": {"kernels"},
    "_checks": {"_dispatch"},
    "plotting": HELPERS,
    "_environment": {"kernels"},
    "functional": {"kernels"} | HELPERS,
    "nn": {"functional", "kernels"} | HELPERS,
    "__init__": OPERATORS,
    "compat": {"functional"} | HELPERS,
    "distributed": {"functional"} | HELPERS,
    "losses": {"functional", "distributed"} | HELPERS,
    "relaxations": OPERATORS | {"_random"},
    "knn": OPERATORS | {"_random", "_training", "_model_files", "relaxations"},
    "seq2seq": OPERATORS | {"_model_files"},
    "integrations": OPERATORS,
    "experiments": (
        {"__init__", "kernels", "_environment", "_training", "_files", "plotting"}
        | OPERATORS
        | APPLICATIONS
    ),
    "cli": {"__init__", "_environment", "experiments"} | OPERATORS | APPLICATIONS,
    "__main__": {"cli"},
}

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def part_of(module: Path) -> str:
    """The top-level part a file belongs to: `nn/_attention.py` -> `nn`."""
    return module.parts[0].removesuffix(".py")


def imported_names(source: str, module: Path) -> Iterator[str]:
    """Absolute dotted names that `source`, the text of `module`, imports, at any depth."""
    package = ["softtopk", *module.parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            yield from (".".join([*base, alias.name]) for alias in node.names)


def imported_parts(source: str, module: Path) -> set[str]:
    """The other parts of the package that `source` imports."""
    parts = set()
    for name in imported_names(source, module):
        root, *rest = name.split(".")
        if root == "softtopk":
            parts.add(rest[0] if rest and rest[0] in MAY_IMPORT else "__init__")
    return parts - {part_of(module)}


@pytest.mark.parametrize(
    ("module", "source", "parts"),
    [
        ("nn/_a.py", "import torch, softtopk.functional._b", {"functional"}),
        ("nn/_a.py", "from softtopk.functional import f", {"functional"}),
        ("nn/_a.py", "from softtopk import functional as F", {"functional"}),
        ("nn/_a.py", "from softtopk import soft_topk", {"__init__"}),
        ("nn/_a.py", "import softtopk", {"__init__"}),
        ("nn/_a.py", "from ._b import c\nfrom . import d", set()),
        ("nn/_a.py", "from ..functional import f", {"functional"}),
        ("nn/_a.py", "from .. import functional", {"functional"}),
        ("nn/deep/_a.py", "from ...cli import main", {"cli"}),
        ("nn/__init__.py", "from ..knn import x", {"knn"}),
        ("__init__.py", "from .nn import X\nfrom . import functional", {"nn", "functional"}),
        ("nn/_a.py", "def f():\n    from softtopk.cli import main", {"cli"}),
    ],
)
def test_the_parser_sees_every_form_of_import(module: str, source: str, parts: set[str]) -> None:
    assert imported_parts(source, Path(module)) == parts


def test_the_map_has_no_cycle() -> None:
    seen: set[str] = set()
    for part, allowed in MAY_IMPORT.items():
        assert allowed <= seen, f"{part} comes before {allowed - seen}"
        seen.add(part)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_down(module: Path) -> None:
    part = part_of(module)
    assert part in MAY_IMPORT, f"give {part} a place in MAY_IMPORT"
    parts = imported_parts((PACKAGE / module).read_text(encoding="utf-8"), module)
    assert parts <= MAY_IMPORT[part], f"{module} imports {sorted(parts - MAY_IMPORT[part])}"


def test_importing_the_package_loads_no_optional_dependency() -> None:
    code = "import softtopk, sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert "softtopk" in loaded
    assert not loaded & {"cyclopts", "rich", "matplotlib", "scipy", "sklearn", "transformers"}


# Folders that exist only on the machine of whoever wrote them.
LOCAL_PATH = re.compile(r"(?<![\w.~-])/(?:work|tmp|root|home|Users)/")
PUBLISHED = (
    "*.md *.toml *.txt *.cff Makefile setup.py .ci/* .github/**/*.yml "
    "src/**/*.py src/**/*.[ch]pp tests/**/*.py examples/**/*.py benchmarks/**/*.py docs/**/*.*"
)


def test_the_pattern_finds_local_paths_only() -> None:
    assert LOCAL_PATH.search("open('/" + "work/data')")
    assert LOCAL_PATH.search("file:///" + "home/me/x")
    assert not LOCAL_PATH.search("https://example.org/" + "work/data")


def test_no_file_names_a_local_path() -> None:
    files = {path for glob in PUBLISHED.split() for path in ROOT.glob(glob) if path.is_file()}
    assert ROOT / "pyproject.toml" in files
    found = []
    for path in sorted(files):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:  # a picture
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if LOCAL_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found, "\n".join(found)
