"""What the tests of both pages do with a browser."""

from __future__ import annotations

from collections.abc import Sequence

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "device_scale_factor": 2}


def serious_violations(page: Page) -> list[tuple[str, str]]:
    """What axe finds that keeps people from using the page."""
    violations = Axe().run(page, options={"preload": False}).response["violations"]
    serious = [each for each in violations if each["impact"] in ("serious", "critical")]
    return [(each["id"], each["nodes"][0]["html"]) for each in serious]


def touch(page: Page, *moments: Sequence[tuple[float, float]]) -> None:
    """Fingers that come down, move and go: where they are at each moment."""
    session = page.context.new_cdp_session(page)
    for index, fingers in enumerate(moments):
        points = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(fingers)]
        came = index == 0 or len(fingers) > len(moments[index - 1])
        kind = "touchStart" if came else "touchMove"
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    session.detach()
