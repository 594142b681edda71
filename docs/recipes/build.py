"""Run the recipes, and make their page from what they print and draw.

`make recipes` runs them all. `python docs/recipes/build.py NAME ...` runs some of them again, and
`--page` none: it makes the page anew, from the last runs. The first line of a recipe is "Title:
question?", and the last paragraph of its docstring is "Found: ..." with numbers that it prints.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
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
#: The parts of the library that the recipes compute with.
LIBRARY = ["functional", "kernels", "knn", "losses", "nn", "relaxations", "seq2seq"]
SOURCES = (".py", ".cpp", ".hpp")
RUNS = HERE / "runs.json"
HEAD = """# Recipes

This page shows what ten short scripts do, with the output of a real run of each, on one thread.
Every one is complete and below 60 lines: copy it, and change it. They need
`pip install '.[knn,plot]'`, and write their pictures into the current folder. `make recipes` runs
them all and makes this page.

They are examples, not evidence: few seeds, small data, settings found by trial.
A ± is the standard deviation over the seeds, or splits of the data; of three it is itself rough.
The evidence is in the [results](../results/README.md).

With other trainers, without a run here: [accelerate](../../examples/knn_accelerate.py),
[Lightning](../../examples/knn_lightning.py).

"""


class Run(NamedTuple):
    """What a recipe printed, and which code did."""

    output: str
    digest: str
    """Of the script."""
    library: str
    """Of the parts of the library that recipes use."""


class Text(NamedTuple):
    """The docstring of a recipe."""

    title: str
    question: str
    about: str
    found: str
    """The sentences after "Found: "."""


def text(name: str) -> Text:
    docstring = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    heading, about, found = docstring.split("\n\n")
    title, question = heading.split(": ", 1)
    question = question[0].upper() + question[1:]
    return Text(title, question, about, found.removeprefix("Found: "))


def digest(name: str) -> str:
    """Of a script without its docstring, which has no influence on what it prints."""
    source = (EXAMPLES / f"{name}.py").read_text()
    end = ast.parse(source).body[0].end_lineno
    return hashlib.sha256("\n".join(source.splitlines()[end:]).encode()).hexdigest()


def library() -> str:
    """A digest of `LIBRARY`, and of the modules beside these folders."""
    package = ROOT / "src" / "softtopk"
    paths = list(package.glob("*.py"))
    for folder in LIBRARY:
        paths += [each for each in (package / folder).rglob("*") if each.suffix in SOURCES]
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()


def run(name: str) -> Run:
    """Run a recipe; its picture goes beside the page."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=HERE,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Run(done.stdout, digest(name), library())


def card(name: str) -> str:
    """A recipe in the gallery: its picture, its title as a link, its question; else the answer."""
    title, question, _, found = text(name)
    picture, answer = "", ""
    if (HERE / f"{name}.png").exists():
        picture = f'<img src="{name}.png" alt="" loading="lazy" width="200"><br>'
    else:
        first = re.split(r"[.:;] ", " ".join(found.split()))[0].rstrip(".").replace("`", "")
        answer = f"<br><i>{first[0].upper()}{first[1:]}.</i>"
    anchor = title.lower().replace(" ", "-")
    return f'<li><a href="#{anchor}">{picture}<b>{title}</b></a><br>{question}{answer}</li>\n'


def gallery() -> str:
    cards = "".join(map(card, NAMES))
    return f'<ul class="gallery">\n{cards}</ul>\n\n'


def section(name: str, done: Run) -> str:
    """A recipe on the page."""
    source = (EXAMPLES / f"{name}.py").read_text()
    title, question, about, found = text(name)
    picture = f"![{title}]({name}.png)\n\n" if (HERE / f"{name}.png").exists() else ""
    return (
        f"## {title}\n\n**{question}** {about}\n\n**Found:** {found}\n\n{picture}"
        f"`python examples/{name}.py` prints\n\n```\n{done.output.rstrip()}\n```\n\n"
        f'<details markdown="1"><summary>The whole script</summary>\n\n'
        f"[examples/{name}.py](../../examples/{name}.py)\n\n```python\n{source}```\n\n</details>\n\n"
    )


def read_runs() -> dict[str, Run]:
    return {name: Run(**each) for name, each in json.loads(RUNS.read_text()).items()}


def page(runs: dict[str, Run]) -> str:
    sections = "".join(section(name, runs[name]) for name in NAMES)
    return f"{HEAD}{gallery()}{sections.rstrip()}\n"


def main() -> None:
    names = sys.argv[1:] or NAMES
    for name in [] if names == ["--page"] else names:
        print(name, flush=True)
        done = run(name)
        runs = {**read_runs(), name: done}
        ordered = {each: runs[each]._asdict() for each in NAMES if each in runs}
        RUNS.write_text(json.dumps(ordered, indent=1) + "\n")
    (HERE / "index.md").write_text(page(read_runs()))


if __name__ == "__main__":
    main()
