"""The page that shows all figures."""

from __future__ import annotations

from pathlib import Path

from softtopk.experiments._drawing import FORMATS

from ._catalogue import CATALOGUE

INDEX = "index.md"
TITLE = "# The figures\n"
SHOWN = ("png", "svg")  # by browsers, the first that there is

HEAD = f"""\
{TITLE}
Figures of *Differentiable Top-k Operator with Optimal Transport* (Xie et al., NeurIPS 2020), drawn
from the operators of softtopk, and some of our own. This page and its pictures are made by
`softtopk figures`; the numbers behind a picture are in the JSON file of the same name. A is the
soft indicator that `soft_topk` returns: about 1 for what is selected and about 0 for the rest. As
in the paper, the *smallest* scores are selected, except in Figure 1.
"""
FOOT = """\
## The others

Figures 6 and 7 of the paper show trained models, and so need a run: `softtopk translate attention
RUN --text TEXT` draws what a translation attends to, `softtopk knn plot RUN` the features of a kNN
classifier.
"""


def caption_file(name: str) -> str:
    return f"{name}.caption.md"


def index_page(folder: Path) -> str:
    """The page in Markdown, with all figures of the catalogue that are in the folder."""
    parts = [HEAD]
    for name, exhibit in CATALOGUE.items():
        files = [f"{name}.{kind}" for kind in FORMATS if (folder / f"{name}.{kind}").is_file()]
        caption = folder / caption_file(name)
        if not files or not caption.is_file():
            continue
        shown = [file for file in files if file.rpartition(".")[2] in SHOWN][:1]
        lines = [f"## {exhibit.title}", *(f"![{exhibit.title}]({file})" for file in shown)]
        lines.append(caption.read_text(encoding="utf-8", errors="replace").strip())
        others = ", ".join(f"[{file}]({file})" for file in files if file not in shown)
        if others:
            lines.append(f"Also as {others}." if shown else f"As {others}.")
        parts.append("\n\n".join(lines) + "\n")
    return "\n".join([*parts, FOOT])
