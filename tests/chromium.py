"""Where the browser is that the tests of the pages drive; prints it, and fails if there is none.

Needs no package, so that .ci/run can ask before there is an environment.
"""

from __future__ import annotations

import os
import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def path() -> str | None:
    return os.environ.get("SOFTTOPK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


if __name__ == "__main__":
    sys.exit("there is no Chromium here") if path() is None else print(path())
