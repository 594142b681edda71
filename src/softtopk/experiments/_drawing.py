"""Pictures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from softtopk.plotting import style

from .._files import replacing
from .errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of each format, what would make two files of the same picture differ: dates.
FORMATS: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def check_picture(path: Path, option: str = "") -> str:
    """The format that the path's suffix names; ``option`` is where the path was given."""
    kind = path.suffix[1:].lower()
    if kind not in FORMATS:
        endings = ", ".join(f".{known}" for known in FORMATS)
        raise UsageError(f"{option} {path}: give a file that ends in {endings}".lstrip())
    return kind


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a picture all at once, in the format that the path's suffix names; return the path."""
    from matplotlib import rc_context

    kind = check_picture(path)
    # The names of parts of an SVG are random otherwise.
    with replacing(path) as draft, rc_context({"svg.hashsalt": "softtopk"}):
        figure.savefig(draft, format=kind, dpi=style.DPI, metadata=FORMATS[kind])
    return path
