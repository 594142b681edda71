"""What is said when the user has to change something."""

from __future__ import annotations

from softtopk._optional import is_installed, missing


class UsageError(ValueError):
    """A wrong option or file: says which, what was found there, and what would be right."""


def require_modules(*modules: str, what: str = "this command") -> None:
    """Refuse, with the remedy, if an optional module that ``what`` needs is not installed."""
    for module in modules:
        if not is_installed(module):
            raise UsageError(missing(module, what))
