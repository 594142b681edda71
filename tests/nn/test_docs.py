"""The code of docs/attention.md runs, and prints what the page says."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")


def test_the_page(capsys):
    code, claimed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == claimed
