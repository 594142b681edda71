"""Names the extra that a missing optional dependency comes with."""

from __future__ import annotations

import importlib
from types import ModuleType

_PACKAGES = {"sklearn": "scikit-learn", "faiss": "faiss-cpu"}


def require(module: str, what: str) -> ModuleType:
    """Import an optional ``module``, or say what to install for ``what``."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != name:
            raise  # it is there, and broken
        raise ImportError(
            f"{what} needs {_PACKAGES.get(name, name)}; pip install 'softtopk[knn]'", name=name
        ) from error
