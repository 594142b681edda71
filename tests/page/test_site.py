"""The built site, from the file system: it can be searched, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
    )
    return folder


def test_a_search_finds_a_page(site, open_page):
    page = open_page((site / "index.html").as_uri())
    page.locator("input[name=query]").press_sequentially("permutahedron")
    hit = page.locator(".md-search-result__link", has_text="permutahedron").first
    hit.wait_for()
    assert "coming_from.html" in hit.get_attribute("href")


def test_pages_of_all_kinds_load_nothing_from_elsewhere(site, open_page):
    for name in ("maths", "api/softtopk", "results/mnist", "recipes/index", "play/index"):
        page = open_page((site / f"{name}.html").as_uri())
        page.wait_for_load_state("networkidle")
        assert page.locator("h1").first.is_visible()


def test_the_page_in_a_frame_has_the_colours_of_the_site(site, open_page):
    page = open_page((site / "choosing.html").as_uri(), color_scheme="light")
    page.locator("iframe[src]").scroll_into_view_if_needed()
    frame = page.frame_locator("iframe[src]")
    frame.locator("html[data-theme=light]").wait_for()
    page.locator("label[title='Switch to dark mode']").click()
    frame.locator("html[data-theme=dark]").wait_for()


def test_sources_are_not_published(site):
    published = {path.suffix for path in site.rglob("*") if path.is_file()}
    assert published & {".py", ".cpp", ".md"} == set()
    assert not (site / "recipes" / "runs.json").exists()
