"""Every "install this extra". Optional dependencies are imported late, through here."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

#: The extra that brings a module, and the name of its package where that is another.
EXTRAS = {
    "PIL": ("plot", "pillow"),
    "babel": ("translate", "babel"),
    "faiss": ("knn", "faiss-cpu"),
    "matplotlib": ("plot", "matplotlib"),
    "numpy": ("knn", "numpy"),
    "pyarrow": ("tables", "pyarrow"),
    "rich": ("cli", "rich"),
    "sacrebleu": ("translate", "sacrebleu"),
    "safetensors": ("knn", "safetensors"),
    "sentencepiece": ("translate", "sentencepiece"),
    "sklearn": ("knn", "scikit-learn"),
    "torch_geometric": ("graphs", "torch-geometric"),
    "transformers": ("transformers", "transformers"),
}


def require(module: str, what: str) -> ModuleType:
    """Import an optional module, or say what to install for ``what``."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        if error.name != name:
            raise  # it is there, and broken
        raise ImportError(missing(name, what), name=name) from error


def missing(module: str, what: str) -> str:
    """What to say where a module is not installed."""
    extra, package = EXTRAS[module]
    return f"{what} needs {package}: pip install 'softtopk[{extra}]'"


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without doing so."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return importlib.util.find_spec(module) is not None
