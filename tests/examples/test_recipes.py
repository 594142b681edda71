"""The recipes are short, run, and their page shows what they print and says what they found."""

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
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
MEAN = re.compile(r"(\d+\.\d+) ±(\d+\.\d+)")


def rows(output):
    """{name: means} of the lines with a spread over seeds."""
    lines = [line for line in output.splitlines() if "±" in line]
    return {
        line[: MEAN.search(line).start()].strip(" :"): [float(m) for m, _ in MEAN.findall(line)]
        for line in lines
    }


def tolerances(output):
    """(number, tolerance) for each number.

    A training on another machine rounds differently, and may end as with another seed. Two means of
    three seeds then differ by 0.8 spreads in the standard deviation; 3 spreads are nearly four of
    these. A spread of three seeds is as uncertain as it is large. All else is the same everywhere.
    """
    of_means = {}
    for found in MEAN.finditer(output):
        spread = max(float(found[2]), 0.002)  # one image of a test set
        of_means |= {found.start(1): 3 * spread, found.start(2): 2 * spread}
    for found in NUMBER.finditer(output):
        value = float(found[0])
        yield value, of_means.get(found.start(), 1e-3 * abs(value))


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


@pytest.mark.slow
def test_the_runs_are_of_the_present_library():
    """A change of the library may change what recipes print, by more than rounding."""
    stale = [
        name for name, run in BUILD["read_runs"]().items() if run.library != BUILD["library"]()
    ]
    assert not stale, f"run `python docs/recipes/build.py {' '.join(stale)}`"


@pytest.mark.parametrize("name", NAMES)
def test_what_a_recipe_found_are_numbers_that_it_printed(name):
    quoted = re.findall(r"\d+\.\d+", BUILD["text"](name).found)
    assert set(quoted) <= set(NUMBER.findall(BUILD["read_runs"]()[name].output))


# What the sentences after "Found:" compare.
CLAIMS = {
    "token_pruning": lambda of: (
        of["TokenSelector"][0] > of["most ink"][0] + 0.04
        and of["TokenSelector"][1] > of["most ink"][1]
        and abs(of["TokenSelector"][2] - of["most ink"][2]) < 0.02
    ),
    "expert_routing": lambda of: (
        of["TopKRouter"][0] < of["softmax, balance 0"][0]
        and of["TopKRouter"][1] < of["softmax, balance 0.1"][1] < of["softmax, balance 0.01"][1]
        and of["softmax, balance 0.01"][0] >= of["softmax, balance 0"][0]
    ),
    "weight_pruning": lambda of: (
        of["topk_prune_"][1] > of["gradual"][1] + 0.02
        and abs(of["topk_prune_"][0] - of["gradual"][0]) < 0.05
        and abs(of["topk_prune_"][2] - of["gradual"][2]) < 0.01
    ),
    "retrieval_loss": lambda of: (
        of["recall loss"][2] <= of["InfoNCE"][2] and of["pixels"][0] > of["recall loss"][0]
    ),
    "sparse_attention": lambda of: (
        of["SoftTopKAttention"][2] < of["softmax, cut to 3"][2] < of["softmax"][2]
    ),
    "nearest_neighbours": lambda of: (
        of["NCA, kNN"][0] > of["SoftKNNClassifier"][0] > of["kNN"][0]
        and min(of["NCA, kNN"][1], of["SoftKNNClassifier"][1]) > of["kNN"][1]
        and of["SoftKNNClassifier"][2] == of["kNN"][2]
    ),
    "beam_search": lambda of: (
        abs(of["100 updates, rho 0.3"][0] - of["100 updates, rho 1.0"][0]) < 0.05
        and of["400 updates, rho 1.0"][0] > of["100 updates, rho 0.3"][0] + 0.05
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_the_comparison_that_a_recipe_found_is_that_of_its_numbers(name):
    output = BUILD["read_runs"]()[name].output
    assert CLAIMS[name](rows(output))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in NAMES],
)
def test_a_recipe_prints_what_its_page_shows(name, tmp_path):
    command = [sys.executable, ROOT / "examples" / f"{name}.py"]
    done = subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True)
    claimed = BUILD["read_runs"]()[name].output
    assert NUMBER.sub("#", done.stdout) == NUMBER.sub("#", claimed)
    found = [float(each) for each in NUMBER.findall(done.stdout)]
    for value, (expected, tolerance) in zip(found, tolerances(claimed), strict=True):
        assert value == pytest.approx(expected, rel=0, abs=tolerance)
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (ROOT / "docs" / "recipes").glob(f"{name}.png")
    }
