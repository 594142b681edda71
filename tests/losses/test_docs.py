"""The code of docs/losses.md runs, and prints what it says."""

import re
from pathlib import Path

import pytest
from ranks import run_alone

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")


def test_the_page_prints_what_it_says(capsys):
    names = {}
    for code, claimed in re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)
        assert capsys.readouterr().out == claimed
    assert "topk_cross_entropy" in names


def execute(group, code):
    exec(code, {})
    return True


@pytest.mark.slow  # it starts processes of its own
def test_the_code_for_many_processes():
    first, *_, last = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    joining = re.search(r"^dist\.init_process_group.*$", last, re.MULTILINE)
    assert joining
    assert run_alone(2, execute, first + last.replace(joining[0], "")) == [True, True]
