"""What the site needs beside mkdocs: maths, links out of docs/, pages of other files, checks."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

log = logging.getLogger("mkdocs.hooks.softtopk")  # a warning there fails a strict build
ROOT = Path(__file__).parents[2]
# Files of the root that are pages of the site too.
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
THIN = '<mspace width="0.167em" />'
ABOVE_TABLES = (
    "This page has a table that a command made from the records of runs. "
    "[All tables](README.md) says by which command, and which page discusses it."
)
PAGE_OF_COMMANDS = "api/command_line.md"
# What the search shows sooner, or later, than its words alone would have it.
BOOST = {"questions.md": 4.0, "which.md": 2.0, "notebook.md": 0.3, "changelog.md": 0.3}
COMMANDS = "**Commands**"  # where its text begins


def on_config(config: Any) -> Any:
    """Without mike, which publishes versions, there is no list of them to ask for."""
    if "MIKE_DOCS_VERSION" not in os.environ:
        config.extra.pop("version")
    return config


def on_pre_build(config: Any) -> None:
    """Every public name has a docstring."""
    text = "".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))
    package = griffe.load("softtopk", search_paths=[ROOT / "src"], resolve_aliases=True)
    for name in re.findall(r"^::: softtopk\.?(.*)$", text, re.MULTILINE):
        try:
            module = package[name] if name else package
        except KeyError:
            log.warning(f"there is no softtopk.{name}, which a page of docs/api/ names")
            continue
        if not module.exports:
            log.warning(f"softtopk.{name} has no __all__: the site would show nothing of it")
        for export in module.exports or ():
            for missing in _without_docstring(module[str(export)]):
                log.warning(f"{missing} is public and has no docstring")


def _without_docstring(obj: Any) -> Iterator[str]:
    if not obj.docstring:
        yield obj.canonical_path
    if obj.is_class:
        for name, member in obj.all_members.items():
            needs = member.is_function or "property" in member.labels
            private = name.startswith("_") or name == "extra_repr"  # as torch asks for it
            if needs and not private and not member.docstring:
                yield member.canonical_path


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root."""
    for source, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to files outside docs/ at the repository, and write the page of the commands."""
    uri = page.file.src_uri
    source = {page: name for name, page in PAGES.items()}.get(uri, f"docs/{uri}")
    page.meta["search"] = {"boost": BOOST.get(uri, 1.0)}
    if uri == PAGE_OF_COMMANDS:
        return f"{markdown}\n{_commands()}"
    if uri.startswith("results/") and not markdown.startswith("# "):
        markdown = f"{ABOVE_TABLES}\n\n{markdown}"  # the commands write the table alone
        page.meta["hide"] = ["toc"]  # wide tables need the place
    blocks = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    blocks[::2] = [
        re.sub(
            r"\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)",
            lambda m: f"]({_target(m[1], source, uri, config.repo_url)}{m[2] or ''})",
            block,
        )
        for block in blocks[::2]
    ]
    return "".join(blocks)


def _target(link: str, source: str, uri: str, repository: str) -> str:
    """The link for the page ``uri``, whose text is that of the file ``source``."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path in PAGES:
        path = f"docs/{PAGES[path]}"
    elif not (ROOT / path).exists():
        log.warning(f"{source} links to {path}, which does not exist")
    if path.startswith("docs/"):
        return posixpath.relpath(path, posixpath.dirname(f"docs/{uri}"))
    return f"{repository.rstrip('/')}/blob/main/{path}"


def _commands() -> str:
    from softtopk.cli._app import make_app

    text = make_app().generate_docs(heading_level=2, usage_name="softtopk")
    start = text.find(COMMANDS)  # after the title and a table of contents
    if start < 0:
        raise PluginError(
            f"the help that cyclopts writes has no {COMMANDS}, from which on {PAGE_OF_COMMANDS} "
            "shows it: look at what make_app().generate_docs() returns, and change COMMANDS"
        )
    return text[start:]


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Render the maths, which arithmatex has marked; none may be left as it was written."""
    html = re.sub(
        r'<span class="arithmatex">\\\((.*?)\\\)</span>([,.;:)]*)',  # which no line starts with
        lambda m: f'<span class="maths">{mathml(unescape(m[1]), "inline")}{m[2]}</span>',
        html,
        flags=re.DOTALL,
    )
    html = re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>',
        lambda m: f'<div class="maths">{mathml(unescape(m[1]), "block")}</div>',
        html,
        flags=re.DOTALL,
    )
    # What is returned may have no type to stand before the dash.
    html = re.sub(r'(<li class="doc-section-item field-body">\s*)–(?=\s*<div)', r"\1", html)
    html = html.replace(" ± ", "\u00a0±\u00a0")
    folder = (ROOT / "docs" / page.file.src_uri).parent
    html = re.sub(
        r'<img [^>]*?src="([^":]+)"',
        lambda m: f'{m[0]} class="wide"' if _is_wide(folder / m[1]) else m[0],
        html,
    )
    text = re.sub(r"<(pre|code|script|style)\b.*?</\1>|<[^>]+>", "", html, flags=re.DOTALL)
    for left in re.findall(r".*(?:\\|\.\. math::|:math:|\$\S[^$\n]*\$).*", text):
        log.warning(f"{page.file.src_uri} has maths that is not rendered: {left.strip()}")
    return html


def _is_wide(picture: Path) -> bool:
    """Whether its text is too small for a phone; recipes have 700 pixels and large text."""
    if picture.suffix != ".png":
        return picture.suffix == ".svg"
    header = picture.read_bytes()[:24]
    width, height = int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:], "big")
    return width > max(1000, 1.5 * height)


def mathml(tex: str, display: str) -> str:
    r"""Presentation MathML, with what browsers need and the converter leaves out."""
    # It knows these under other names only.
    tex = re.sub(r"\\arg\s*\\(min|max)", r"\\arg\1", tex)
    tex = re.sub(r"(?<!\\)\\\s", r"\\; ", tex).replace(r"\!", "")  # spaces
    tex = re.sub(r"\\l([vV])ert(.*?)\\r\1ert(?![a-zA-Z])", _norm, tex)
    html = convert(tex, display=display)
    if display == "block":  # limits stand below their operator
        html = re.sub(
            r"<msub>(<mo[^>]*>(?:min|max|lim|arg&#x02009;m..|sup|inf)</mo>)(.*?)</msub>",
            r"<munder>\1\2</munder>",
            html,
        )
    # Names are no operators, with space on both sides; before what is no bracket, a little.
    html = re.sub(r"<mo>(softmax|diag|Cov)</mo>", r"<mi>\1</mi>", html)
    alone = r"(?<!<msub>)(<mi>(?:log|exp)</mi>)(?!<mrow><mo|<mo[^>]*>&#x00028;)"
    html = re.sub(alone, rf"\1{THIN}", html)
    html = re.sub(r"(</m(?:i|n|sub|sup)>)(?=<mi>(?:log|exp)</mi>)", rf"\1{THIN}", html)
    # Few fonts have a line that stretches over what is below it: extra.css draws it.
    over = r"<mover>(<mrow>(?:(?!<mover>).)*</mrow>)<mo[^>]*>&#x02015;</mo></mover>"
    return re.sub(over, r'<mrow class="over">\1</mrow>', html)


def _norm(match: re.Match[str]) -> str:
    bar = "|" if match[1] == "v" else r"\|"
    return rf"\left{bar}{match[2]}\right{bar}"


class _Loaded(HTMLParser):
    """The addresses that a browser would load for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        loads = tag in {"script", "img", "iframe", "source", "video", "audio", "embed", "object"}
        style = tag == "link" and given.get("rel") not in {"canonical", "next", "prev", "alternate"}
        if loads or style:
            self.found += [given.get(key) or "" for key in ("src", "srcset", "data", "href")]


def on_post_build(config: Any) -> None:
    """Fail if a page or a style names something to load from the network.

    Scripts are not read. That of the theme can load a polyfill, for browsers that are older than
    MathML in them, and Mermaid, for diagrams, of which we have none. It would also ask GitHub
    about the repository, but for our source.html. tests/page/test_site.py sees what is loaded.
    """
    found = []
    for path in Path(config.site_dir).rglob("*.*"):
        if path.suffix == ".html":
            parser = _Loaded()
            parser.feed(path.read_text())
            addresses = parser.found
        elif path.suffix == ".css":
            addresses = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", path.read_text())
        else:
            continue
        name = os.path.relpath(path, config.site_dir)
        found += [f"{name}: {one}" for one in addresses if re.match(r"(https?:)?//", one)]
    if found:
        raise PluginError("the site would load from the network:\n" + "\n".join(found))
