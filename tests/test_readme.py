"""The README's code runs and prints what the README says."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_example_prints_its_output():
    code, output = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", README, re.DOTALL).groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert printed.getvalue() == output


def test_every_link_to_a_file_leads_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(links) >= 5
    assert [link for link in links if not (Path(__file__).parent.parent / link).exists()] == []
