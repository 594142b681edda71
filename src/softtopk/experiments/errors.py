"""What is said when the user has to change something."""

from __future__ import annotations

import importlib.util


class UsageError(ValueError):
    """A wrong option or file: says which, what was found there, and what would be right."""


def require(module: str, what: str, extra: str, package: str | None = None) -> None:
    """Refuse, with the remedy, if a module that is optional is not installed.

    Args:
        module: The name it is imported by.
        what: What needs it.
        extra: The extra of this package that brings it.
        package: The name it is installed by, if that is another.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{what} needs {package or module}: pip install 'softtopk[{extra}]'")


_EXTRAS = {"rich": "cli", "matplotlib": "plot"}
_PACKAGES = {"sklearn": "scikit-learn"}


def require_modules(*modules: str, extra: str = "cli") -> None:
    """Refuse if one of the modules of a command is not installed; most come with ``extra``."""
    for module in modules:
        require(module, "this command", _EXTRAS.get(module, extra), _PACKAGES.get(module))
