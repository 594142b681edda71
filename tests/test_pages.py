"""The code of docs/start.md and docs/idea.md prints what it says; docs/which.md's calls all run."""

from __future__ import annotations

import pytest
from pages import blocks_of, page, run_page


@pytest.mark.parametrize("name", ["start"])
def test_the_code_prints_what_the_page_says(name, capsys):
    run_page(blocks_of(page(name)), capsys)
