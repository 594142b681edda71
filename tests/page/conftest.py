"""A real Chromium that opens the page from the file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "the tests of the page need Chromium or Chrome, and none was found. Install one, by "
    "`apt-get install chromium` on Debian, or give its path: SOFTTOPK_CHROMIUM=/path make test-page"
)
QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
# Keeps what the buttons copy: the clipboard itself asks for a permission.
CLIPBOARD = "navigator.clipboard.writeText = async (text) => { window.copied = text; }"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("SOFTTOPK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.exit(MISSING, returncode=1)
    with sync_playwright() as playwright:
        # In a container of root there is no sandbox.
        started = playwright.chromium.launch(
            executable_path=path, args=list(QUIET), chromium_sandbox=os.geteuid() != 0
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """open_page(path, viewport=..., color_scheme=...): a new page, which must not complain, and
    must not load anything from elsewhere."""
    contexts, complaints = [], []

    def opened(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: said.type == "error" and complain(said.text))
        page.on("pageerror", lambda error: complain(str(error)))
        page.on("request", lambda asked: is_local(asked.url) or complain(asked.url))
        page.add_init_script(CLIPBOARD)
        page.goto(url)
        return page

    def is_local(url: str) -> bool:
        return url.startswith(("file:", "data:"))

    def complain(text: str) -> None:
        complaints.append(text)

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []
