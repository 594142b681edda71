"""The code of docs/beam_search.md runs, and prints what the page says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "beam_search.md").read_text(encoding="utf-8")


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python")
    for code, claimed in blocks:
        exec(code, names)
        assert capsys.readouterr().out == claimed
