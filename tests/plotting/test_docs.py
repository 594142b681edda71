"""The code of docs/plotting.md runs and prints what the page says, which names every function."""

import re
from pathlib import Path

import pytest

from softtopk import plotting

PAGE = (Path(__file__).parents[2] / "docs" / "plotting.md").read_text(encoding="utf-8")


def test_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, {})
    for name in ("gradient.png", "plan.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    (claimed,) = re.findall(r"```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out == claimed


def test_the_table_has_every_function() -> None:
    listed = re.findall(r"^\| `(draw_\w+)\(", PAGE, re.MULTILINE)
    assert sorted(listed) == [name for name in plotting.__all__ if name.startswith("draw_")]
