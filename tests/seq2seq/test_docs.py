"""The code of docs/beam_search.md runs, and prints what the page says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "beam_search.md").read_text(encoding="utf-8")


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    code, claimed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == claimed
