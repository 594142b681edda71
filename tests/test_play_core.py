"""The solvers of the page to play with are those of the package."""

from pathlib import Path
from runpy import run_path

PLAY = Path(__file__).parent.parent / "docs" / "play"


def test_the_module_was_made_from_the_present_sources():
    digest = run_path(str(PLAY / "build.py"))["digest"]()
    assert f'sources: "{digest}"' in (PLAY / "core.js").read_text()
