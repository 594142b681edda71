"""Run the recipes, and make their page from what they print and draw.

`make recipes` runs them all, in two to three minutes. `python docs/recipes/build.py NAME ...` runs
some of them again. The first line of a recipe is "Title: question?".
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples"
#: From the simplest to the largest.
NAMES = ["temperatures", "choosing_temperature", "feature_selection", "token_pruning"]
NAMES += ["expert_routing", "weight_pruning", "retrieval_loss", "sparse_attention"]
NAMES += ["nearest_neighbours", "beam_search"]
RUNS = HERE / "runs.json"
HEAD = """# Recipes

This page shows what ten short scripts do, with the output of a real run of each. Every one is
complete and below 60 lines: copy it, and change it. `make recipes` runs them all and makes this
page. They are examples, not evidence: few seeds, small data, settings found by trial. The evidence
is in the [results](../results/README.md).

With other trainers, without a run here: [accelerate](../../examples/knn_accelerate.py),
[Lightning](../../examples/knn_lightning.py).

"""


#: Of the recipes without a picture, the lines of the output that stand for one.
NUMBERS = {"retrieval_loss": slice(2, 4), "beam_search": slice(1, 4)}


class Run(NamedTuple):
    """What a recipe printed, and which text of the script did."""

    output: str
    digest: str


def digest(name: str) -> str:
    return hashlib.sha256((EXAMPLES / f"{name}.py").read_bytes()).hexdigest()


def run(name: str) -> Run:
    """Run a recipe; its picture goes beside the page."""
    command = [sys.executable, EXAMPLES / f"{name}.py", "--out", HERE]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # so that sums are the same elsewhere
    found = subprocess.run(
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return Run(found.stdout, digest(name))


class Words(NamedTuple):
    """The docstring of a recipe."""

    title: str
    question: str
    text: str


def words(name: str) -> Words:
    source = (EXAMPLES / f"{name}.py").read_text()
    heading, text = (ast.get_docstring(ast.parse(source)) or "").split("\n\n", 1)
    title, question = heading.split(": ", 1)
    return Words(title, question[0].upper() + question[1:], text)


def card(name: str, done: Run) -> str:
    """A recipe in the gallery: its picture or numbers, and its question, as a link."""
    title, question, _ = words(name)
    if (HERE / f"{name}.png").exists():
        shown = f'<img src="{name}.png" alt="" loading="lazy" width="200">'
    else:
        lines = done.output.splitlines()[NUMBERS[name]]
        shown = "<br>".join(f"<code>{' '.join(line.split())}</code>" for line in lines)
    anchor = title.lower().replace(" ", "-")
    return f'<li><a href="#{anchor}">{shown}<br><b>{title}</b></a><br>{question}</li>\n'


def gallery(runs: dict[str, Run]) -> str:
    cards = "".join(card(name, runs[name]) for name in NAMES)
    return f'<ul class="gallery">\n{cards}</ul>\n\n'


def section(name: str, done: Run) -> str:
    """A recipe on the page."""
    source = (EXAMPLES / f"{name}.py").read_text()
    title, question, text = words(name)
    picture = f"![{title}]({name}.png)\n\n" if (HERE / f"{name}.png").exists() else ""
    return (
        f"## {title}\n\n**{question}** {text}\n\n{picture}"
        f"`python examples/{name}.py` prints\n\n```\n{done.output.rstrip()}\n```\n\n"
        f'<details markdown="1"><summary>The whole script</summary>\n\n'
        f"[examples/{name}.py](../../examples/{name}.py)\n\n```python\n{source}```\n\n</details>\n\n"
    )


def read_runs() -> dict[str, Run]:
    found = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    return {name: Run(**each) for name, each in found.items()}


def page(runs: dict[str, Run]) -> str:
    sections = "".join(section(name, runs[name]) for name in NAMES)
    return f"{HEAD}{gallery(runs)}{sections.rstrip()}\n"


def main() -> None:
    runs = read_runs()
    for name in sys.argv[1:] or NAMES:
        print(name, flush=True)
        runs[name] = run(name)
        text = json.dumps({each: runs[each]._asdict() for each in NAMES if each in runs}, indent=1)
        RUNS.write_text(text + "\n")
    (HERE / "index.md").write_text(page(runs))


if __name__ == "__main__":
    main()
