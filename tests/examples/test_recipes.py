"""The recipes are short, run, and their page shows what they print."""

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = run_path(str(ROOT / "docs" / "recipes" / "build.py"))
NAMES = BUILD["NAMES"]
# The others train for some seconds.
QUICK = {"temperatures", "choosing_temperature"}


def test_every_script_is_short():
    scripts = list((ROOT / "examples").glob("*.py"))
    assert {path.stem for path in scripts} >= set(NAMES)
    lengths = {path.name: len(path.read_text().splitlines()) for path in scripts}
    assert {name: lines for name, lines in lengths.items() if lines >= 60} == {}


def test_the_page_is_that_of_the_present_scripts():
    runs = BUILD["read_runs"]()
    assert {name: runs[name].digest for name in NAMES} == {
        name: BUILD["digest"](name) for name in NAMES
    }
    page = (ROOT / "docs" / "recipes" / "index.md").read_text()
    assert page == BUILD["page"](runs)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES],
)
def test_a_recipe_prints_what_its_page_shows(name, tmp_path):
    command = [sys.executable, ROOT / "examples" / f"{name}.py", "--out", tmp_path]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    claimed = BUILD["read_runs"]()[name].output
    number = re.compile(r"-?\d+(?:\.\d+)?")
    assert number.sub("#", found) == number.sub("#", claimed)
    # Trainings differ a little between machines.
    expected = [float(each) for each in number.findall(claimed)]
    assert [float(each) for each in number.findall(found)] == pytest.approx(
        expected, rel=0.1, abs=0.1
    )
    assert (tmp_path / f"{name}.png").exists() == (
        ROOT / "docs" / "recipes" / f"{name}.png"
    ).exists()
