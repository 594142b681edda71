"""Every page of the docs can be found, and the pictures and links of the docs are up to date."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import softtopk

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not path.name.endswith(".caption.md"))
READ = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + PAGES


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings; the site is checked by `make docs`."""
    found = set(re.findall(r'id="([^"]+)"', path.read_text(encoding="utf-8")))
    for title in re.findall(r"^#+ (.*)$", without_code(path.read_text(encoding="utf-8")), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def presets() -> set[str]:
    """The links to those of the page to play with, which are buttons there too."""
    page = (DOCS / "play" / "index.html").read_text(encoding="utf-8")
    return {f"preset={name}" for name in re.findall(r'data-preset="(\w+)"', page)}


def the_story() -> tuple[list[float], list[float]]:
    """The scores of the presets, and their temperatures."""
    script = (DOCS / "play" / "state.js").read_text(encoding="utf-8")
    scores = re.search(r"STORY_SCORES = \[(.*?)\]", script)[1]
    return [float(x) for x in scores.split(",")], [
        float(eps) for eps in re.findall(r"^    eps: ([\d.]+),$", script, re.MULTILINE)
    ]


def test_the_story_of_the_idea_is_that_of_the_page_to_play_with():
    code = (DOCS / "idea.md").read_text(encoding="utf-8")
    scores = re.search(r"story = torch.tensor\(\[(.*?)\]\)", code)[1]
    temperatures = re.search(r"for eps in \((.*?)\):\n    print\(sharpness\(story, 4", code)[1]
    numbers = [[float(x) for x in text.split(",")] for text in (scores, temperatures)]
    assert tuple(numbers) == the_story()


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    named = set(re.findall(r"[\w./-]+\.md", nav))
    assert {path.relative_to(DOCS).as_posix() for path in PAGES} - named == set()


@pytest.mark.parametrize("page", READ, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path):
    text = without_code(page.read_text(encoding="utf-8"))
    wrong = []
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        target = (page.parent / link).resolve() if link else page
        # After the # of a page to play with is its state, or the name of one.
        found = not anchor or anchor in anchors(target)
        if target.suffix == ".html" and anchor:
            found = not anchor.startswith("preset=") or anchor in presets()
        known = target.exists() and found
        if not known:
            wrong.append(f"{link}#{anchor}" if anchor else link)
    assert wrong == []


def test_the_picture_of_the_layers_is_that_of_the_map():
    drawn = runpy.run_path(str(DOCS / "theme/architecture.py"))
    hint = "run python docs/theme/architecture.py"
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["svg"](), hint


@pytest.mark.parametrize(
    "text", [".. math:: x_i\n\nAnd so on.", ".. math::\n    x_i\n\nAnd so on."]
)
def test_a_formula_of_a_docstring_is_one_of_the_page(text: str):
    pytest.importorskip("griffe")
    as_markdown = runpy.run_path(str(DOCS / "theme/docstrings.py"))["as_markdown"]
    assert as_markdown(text, {}) == "$$\nx_i\n$$\n\nAnd so on."


def test_the_summary_of_a_docstring_is_one_line():
    pytest.importorskip("griffe")
    as_markdown = runpy.run_path(str(DOCS / "theme/docstrings.py"))["as_markdown"]
    assert as_markdown("One\nand two.\n\nThree\nfour.", {}) == "One and two.\n\nThree\nfour."
    assert as_markdown("One.\n\nArgs:\n    x: a\n", {}) == "One.\n\nArgs:\n    x: a\n"


def test_formulas_are_set_as_browsers_need_them():
    for name in ("griffe", "latex2mathml", "mkdocs"):
        pytest.importorskip(name)
    mathml = runpy.run_path(str(DOCS / "theme/hooks.py"))["mathml"]
    set_ = mathml(r"\arg\min_x \lVert x \rVert_F \log_2 x \overline{x + 1},\ \!y", "block")
    assert "\\" not in set_
    assert "<munder><mo" in set_  # the limit is below
    assert "<msub><mi>log</mi><mn>2</mn></msub>" in set_
    assert 'class="over"' in set_
    assert set_.count('fence="true"') == 2


def test_the_page_of_the_operators_has_all_names() -> None:
    """In an order of its own: what most people look for comes first."""
    text = (ROOT / "docs" / "api" / "softtopk.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^ +- (\w+)$", text, re.MULTILINE)) == sorted(softtopk.__all__)
