"""Draws docs/images/architecture.svg from the map in tests/test_layers.py: run this file."""

from __future__ import annotations

import runpy
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/images/architecture.svg"
WIDTH, ROW, GAP, MARGIN, LABEL = 720, 62, 10, 10, 40
INK, PAPER, BLUE, PALE = "#1a1a1a", "#ffffff", "#0072B2", "#e6f1f8"
FONT = 'font-family="system-ui, sans-serif"'


def layers(uses: dict[str, set[str]]) -> list[list[str]]:
    """The parts, lowest layer first: each one layer above the highest that it may import."""
    level: dict[str, int] = {}
    for part, below in uses.items():  # the map has no cycle, and is in order
        level[part] = 1 + max((level[one] for one in below), default=-1)
    return [[p for p in uses if level[p] == i] for i in range(max(level.values()) + 1)]


def nearest(part: str, uses: dict[str, set[str]]) -> list[str]:
    """What a part may import, without what those may import in turn."""
    return [p for p in uses if p in uses[part] and not any(p in uses[q] for q in uses[part])]


def title(part: str) -> str:
    return {"__init__": "softtopk", "__main__": "python -m softtopk"}.get(part, part)


def box(part: str, uses: dict[str, set[str]], x: float, y: float, width: float) -> str:
    names = ", ".join("softtopk" if p == "__init__" else p for p in nearest(part, uses))
    fill = PALE if part.startswith("__") or not part.startswith("_") else PAPER  # private: white
    text = f'x="{x + width / 2:.0f}" text-anchor="middle" {FONT} fill="{INK}"'
    return (
        f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{ROW - GAP}" rx="6" fill="{fill}"'
        f' stroke="{BLUE}"/>\n<text {text} y="{y + 21}" font-size="14" font-weight="600">'
        f'{escape(title(part))}</text>\n<text {text} y="{y + 39}" font-size="11">'
        f"{escape(f'on {names}' if names else 'on nothing here')}</text>"
    )


def svg() -> str:
    uses = runpy.run_path(str(ROOT / "tests/test_layers.py"))["MAY_IMPORT"]
    rows = layers(uses)
    height = ROW * len(rows) + 2 * MARGIN - GAP
    parts = []
    for i, row in enumerate(reversed(rows)):
        width = (WIDTH - LABEL - MARGIN + GAP) / len(row)
        y = MARGIN + i * ROW
        parts += [box(p, uses, LABEL + j * width, y, width - GAP) for j, p in enumerate(row)]
    middle, end = height // 2, height - MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' aria-label="The parts of the package; each imports only what is below it">',
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{PAPER}"/>',
            *parts,
            f'<path d="M30 {MARGIN}V{end}m-6 -10l6 10l6 -10" fill="none" stroke="{INK}"/>',
            f'<text transform="translate(22 {middle}) rotate(-90)" text-anchor="middle" {FONT}'
            f' font-size="12" fill="{INK}">imports point down</text>',
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(svg(), encoding="utf-8")
