"""The page that shows all figures."""

from __future__ import annotations

from pathlib import Path

from softtopk.experiments._drawing import FORMATS

from ._catalogue import CATALOGUE

NAME = "index.md"
SHOWN = ("png", "svg")  # by browsers, the first that there is

HEAD = """\
# The figures

Those of *Differentiable Top-k Operator with Optimal Transport* (Xie et al., NeurIPS 2020), drawn
from the operators of softtopk, and two of our own. This page and its pictures are made by `softtopk
figures`; the numbers behind a picture are in the JSON file of the same name. As in the paper, the
*smallest* scores are selected, except in Figure 1.
"""
FOOT = """\
## The others

The paper's last two figures show trained models, and so need a run: `softtopk translate attention
RUN --text TEXT` draws what a translation attends to, `softtopk knn plot RUN` the features of a kNN
classifier.
"""


def write_index(folder: Path) -> str:
    """The page in Markdown, with all figures of the catalogue that are in the folder."""
    parts = [HEAD]
    for name, exhibit in CATALOGUE.items():
        files = [f"{name}.{kind}" for kind in FORMATS if (folder / f"{name}.{kind}").is_file()]
        caption = folder / f"{name}.md"
        if not files or not caption.is_file():
            continue
        shown = [file for file in files if file.rpartition(".")[2] in SHOWN][:1]
        lines = [f"## {exhibit.title}", *(f"![{exhibit.title}]({file})" for file in shown)]
        lines.append(caption.read_text(encoding="utf-8").strip())
        others = ", ".join(f"[{file}]({file})" for file in files if file not in shown)
        if others:
            lines.append(f"Also as {others}." if shown else f"As {others}.")
        parts.append("\n\n".join(lines) + "\n")
    return "\n".join([*parts, FOOT])
