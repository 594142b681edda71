"""Every test here runs on both paths."""

from paths import path  # noqa: F401
