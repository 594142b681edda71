"""The pages of the documentation, and the Python in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]


class Block(NamedTuple):
    code: str
    printed: str
    """What the page shows below the code in a block of its own, "" without one."""


def page(name: str) -> str:
    """The text of docs/NAME.md."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def blocks_of(text: str) -> list[Block]:
    """All blocks of Python, in order."""
    found = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", text, re.DOTALL)
    assert found
    return [Block(*block) for block in found]


def run_page(
    blocks: list[Block], capsys: pytest.CaptureFixture[str], names: dict[str, object] | None = None
) -> dict[str, object]:
    """Run the blocks one after the other; each prints what the page says. Returns their names."""
    names = {} if names is None else names
    for block in blocks:
        exec(block.code, names)
        assert capsys.readouterr().out == block.printed
    return names
