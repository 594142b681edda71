"""The code of the pages runs, and prints what they say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["attention", "choosing", "deployment"])
def test_the_page(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    code, claimed = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL).groups()
    exec(code, {})
    assert capsys.readouterr().out == claimed


def test_the_schedule_of_the_page():
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    first, schedule = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    names = {}
    exec(first, names)
    exec(schedule, names)
    assert names["select"].width < 100


def test_the_selectors(capsys):
    page = (DOCS / "selectors.md").read_text(encoding="utf-8")
    names = {}
    pairs = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", page, re.DOTALL)
    assert len(pairs) == page.count("```python")
    for code, claimed in pairs:
        exec(code, names)
        assert capsys.readouterr().out == claimed
