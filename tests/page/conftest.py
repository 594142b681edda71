"""A real Chromium that opens pages from the file system."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

MISSING = (
    "the tests of the page need Chromium or Chrome, and none was found. Install one, by "
    "`apt-get install chromium` on Debian, or give its path: SOFTTOPK_CHROMIUM=/path make test-page"
)
DESKTOP = {"width": 1280, "height": 900}
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
# Keeps what the buttons copy: the clipboard itself asks for a permission.
CLIPBOARD = (
    "if (navigator.clipboard)"  # a blank page has none
    " navigator.clipboard.writeText = async (text) => { window.copied = text; }"
)


def pytest_configure(config: pytest.Config) -> None:
    # Here, not in a test: what a worker of xdist says when it gives up is not shown.
    if config.option.markexpr == "page" and chromium.path() is None:
        raise pytest.UsageError(MISSING)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium.path()
    if path is None:
        pytest.fail(MISSING, pytrace=False)
    with sync_playwright() as playwright:
        # In a container of root there is no sandbox.
        started = playwright.chromium.launch(
            executable_path=path, args=list(QUIET), chromium_sandbox=os.geteuid() != 0
        )
        yield started
        started.close()


class Pages:
    """Pages to open, by their options. To make one takes longer than most tests: they are kept."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.idle: defaultdict[str, list[Page]] = defaultdict(list)
        self.in_use: list[tuple[str, Page]] = []
        self.complaints: list[str] = []

    def open(self, url: str, **options: Any) -> Page:
        """As if it had not been open before."""
        key = repr(sorted(options.items()))
        page = self.idle[key].pop() if self.idle[key] else self.new(**options)
        self.in_use.append((key, page))
        page.set_viewport_size(options.get("viewport", DESKTOP))
        page.goto("about:blank")  # else a link to the same page would not load it anew
        page.goto(url)
        return page

    def new(self, **options: Any) -> Page:
        page = self.browser.new_context(**{"viewport": DESKTOP, **options}).new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: said.type == "error" and self.complain(said.text))
        page.on("pageerror", lambda error: self.complain(str(error)))
        page.on("request", lambda asked: is_local(asked.url) or self.complain(asked.url))
        page.add_init_script(CLIPBOARD)
        return page

    def complain(self, text: str) -> None:
        self.complaints.append(text)

    def release(self) -> None:
        for key, page in self.in_use:
            self.idle[key].append(page)
        self.in_use.clear()


def is_local(url: str) -> bool:
    return url.startswith(("file:", "data:", "about:"))


@pytest.fixture(scope="session")
def pages(browser: Browser) -> Pages:
    return Pages(browser)


@pytest.fixture
def open_page(pages: Pages) -> Iterator[Callable[..., Page]]:
    """open_page(path, viewport=..., color_scheme=...): a page, which must not complain, and must
    not load anything from elsewhere."""
    pages.complaints.clear()
    yield pages.open
    pages.release()
    assert pages.complaints == []
