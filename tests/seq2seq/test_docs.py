"""The code of docs/beam_search.md runs, and prints what the page says."""

import pytest
from pages import blocks_of, page, run_page


def test_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    run_page(blocks_of(page("beam_search")), capsys)
