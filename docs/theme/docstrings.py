"""Docstrings as the site needs them: doctests, maths and names of the package as Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Module, Object

DOCTEST = re.compile(r"^( *)>>> .*\n?(?:\1(?! *\n).+\n?)*", re.MULTILINE)
MATHS = re.compile(r"^( *)\.\. math::(.*\n(?:\1 +.*\n?|\n)*)", re.MULTILINE)
# The first paragraph, if it is one of text; of it the summaries take the first line.
SUMMARY = re.compile(r"\A(?!\.\. |>>> )\S.*(?:\n(?![-*>] |\.\. )\S.*[^:\n]$)+", re.MULTILINE)
NAME = re.compile(r"(?<![`\[])`([A-Za-z_]\w*)`(?![`\]])")


class AsMarkdown(Extension):
    """Rewrites the docstrings of a package that has been loaded."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        for module in pkg.modules.values():
            _rewrite(module, _public(pkg) | _public(module))
        for obj in pkg.members.values():
            if not obj.is_alias and not obj.is_module:
                _rewrite(obj, _public(pkg))


def _public(module: Module) -> dict[str, str]:
    """The public names of a package, and where the site shows them."""
    if module.name.startswith("_") or module.name in {"functional", "kernels", "experiments"}:
        return {}
    return {str(name): f"{module.path}.{name}" for name in module.exports or ()}


def _rewrite(obj: Object, names: dict[str, str]) -> None:
    if obj.docstring:
        obj.docstring.value = as_markdown(obj.docstring.value, names)
    for member in obj.members.values():
        if not member.is_alias:
            _rewrite(member, names | _public(member) if member.is_module else names)


def as_markdown(text: str, names: dict[str, str]) -> str:
    text = SUMMARY.sub(lambda m: m[0].replace("\n", " "), text)
    text = MATHS.sub(_display, text)
    text = re.sub(r":math:`([^`]+)`", r"$\1$", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = NAME.sub(lambda m: f"[{m[0]}][{names[m[1]]}]" if m[1] in names else m[0], text)
    return DOCTEST.sub(lambda m: f"{m[1]}```pycon\n{m[0].rstrip()}\n{m[1]}```\n", text)


def _display(match: re.Match[str]) -> str:
    indent, lines = match[1], match[2].strip().splitlines()
    body = "\n".join(indent + line.strip() for line in lines)
    return f"{indent}$$\n{body}\n{indent}$$\n\n"
