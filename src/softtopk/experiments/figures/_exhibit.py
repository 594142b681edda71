"""What a figure of the catalogue consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data = TypeVar("Data")


@dataclass(frozen=True)
class Exhibit(Generic[Data]):
    """A figure: the numbers behind it, how they are drawn, and what is said about them."""

    name: str
    """Also that of its files."""
    title: str
    make: Callable[[], Data]
    """Computes the numbers, with the operators."""
    draw: Callable[[Data], Figure]
    caption: Callable[[Data], str]


def plain(data: Any) -> Any:
    """Numbers, lists and dictionaries, as JSON has them, of what `Exhibit.make` returned.

    >>> import torch
    >>> plain({"selected": torch.tensor([0.5, 1.0])})
    {'selected': [0.5, 1.0]}
    """
    if isinstance(data, Tensor):
        return data.tolist()
    if is_dataclass(data) and not isinstance(data, type):
        return {field.name: plain(getattr(data, field.name)) for field in fields(data)}
    if isinstance(data, dict):
        return {str(name): plain(value) for name, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_asdict"):
        return plain(data._asdict())
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    return data
