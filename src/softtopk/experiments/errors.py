"""What the commands report as a mistake of whoever calls them."""

from __future__ import annotations


class UsageError(ValueError):
    """A wrong option: says which, its value, and what would be right."""
