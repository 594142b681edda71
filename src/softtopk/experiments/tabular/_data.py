"""A table as numbers with classes, and what is wrong with it if that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from softtopk.experiments._splits import Data, Split, Unlabelled, check_classes, labelled, listed
from softtopk.experiments.errors import UsageError, require_modules

from ._files import Block, read_blocks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}  # cells of columns of numbers
LARGEST = 1e100  # beyond it the deviation of a column could overflow


@dataclass(frozen=True, eq=False)
class TableData(Data):
    """Rows of a table, (N, columns), float64."""

    columns: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    """Columns that the file has besides: the classes, and those that were left out."""

    unit: ClassVar[str] = "row"

    @cached_property
    def _moments(self) -> tuple[Any, Any]:
        """Mean and scale of every column in the training split."""
        from softtopk.knn._inputs import standard

        rows = self.train.inputs.numpy()
        return standard(rows, rows.shape[1:], True)

    def normalise(self, rows: Tensor) -> Tensor:
        """Standardised as by `SoftKNNClassifier`, by the training split: float64 -> float32."""
        from softtopk.knn._inputs import standardized

        return torch.from_numpy(standardized(rows.numpy(), *self._moments)).float()

    def read(self, path: Path) -> Unlabelled:
        """Rows of another file with these columns, in any order."""
        names, blocks = read_blocks(path)
        lacking = [name for name in self.columns if name not in names]
        if lacking:
            raise UsageError(
                f"{path}: it lacks {listed(lacking)}, which {self.name} had; it has "
                f"{listed(names)}: add them, or rename them"
            )
        extra = [name for name in names if name not in (*self.columns, *self.known)]
        note = f"{path}: not used, as {self.name} had no such columns: {listed(extra)}"
        rows, _ = _read_rows(path, names, blocks, self.columns)
        return Unlabelled(range(1, len(rows) + 1), rows, note if extra else "")


def read_table(path: Path, target: str | None, ignore: Collection[str] = ()) -> TableData:
    """The rows of a table. All are for training; ``target`` names the column of the classes."""
    names, blocks = read_blocks(path)
    if target is None:
        raise UsageError(f"--target: give the column of the classes; {path} has {listed(names)}")
    for option, given in (("--target", [target]), ("--ignore", ignore)):
        for name in given:
            if name not in names:
                raise UsageError(f"{option} {name}: {path} has no such column{_near(name, names)}")
    if target in ignore:
        raise UsageError(f"--ignore {target}: it is the column of the classes; leave it out")
    columns = tuple(name for name in names if name != target and name not in ignore)
    if not columns:
        raise UsageError(f"{path}: there is no column besides {target!r} to predict it from")
    rows, texts = _read_rows(path, names, blocks, columns, target)
    unlabelled = [row for row, text in enumerate(texts, 1) if not text]
    if unlabelled:
        raise UsageError(
            f"{path}: the column {target!r} has no class in {len(unlabelled)} of {len(rows)} rows, "
            f"first in row {unlabelled[0]}; fill them in, or remove these rows"
        )
    classes, labels = labelled(texts)
    if len(classes) > max(2, len(rows) // 2):
        raise UsageError(
            f"--target {target}: this column has {len(classes)} different values in {len(rows)} "
            f"rows of {path}; give a column of classes, with several rows of each"
        )
    check_classes(f"{path}: the column {target!r}", classes, labels, "row", least=2)
    empty = Split(rows[:0], labels[:0])
    return TableData(path.name, classes, Split(rows, labels), empty, columns, (target, *ignore))


class _Column:
    """Cells as numbers, and where they are none."""

    def __init__(self) -> None:
        self.blocks: list[Floats] = []
        self.text: tuple[int, str] | None = None
        """Row and content of the first cell that is no number."""

    def add(self, cells: Any, row: int) -> None:
        """Add a block of cells, whose first is in ``row``."""
        import numpy as np

        try:
            if isinstance(cells, np.ndarray) and cells.dtype.kind not in "biuf":
                raise ValueError  # NumPy would make numbers of dates
            self.blocks.append(np.asarray(cells, dtype=np.float64))
        except (TypeError, ValueError):
            self.blocks.append(np.array([self._number(c, row + i) for i, c in enumerate(cells)]))

    def _number(self, cell: Any, row: int) -> float:
        text = "" if cell is None else str(cell).strip()
        try:
            return float("nan" if text.lower() in MISSING else text)
        except ValueError:
            self.text = self.text or (row, text)
            return 0.0

    def first(self, wrong: Callable[[Floats], npt.NDArray[np.bool_]]) -> tuple[int, int]:
        """How many numbers are wrong, and the row of the first."""
        import numpy as np

        found = np.concatenate([wrong(block) for block in self.blocks])
        return int(found.sum()), int(found.argmax()) + 1


def _read_rows(
    path: Path,
    names: Sequence[str],
    blocks: Iterable[Block],
    wanted: Sequence[str],
    target: str | None = None,
) -> tuple[Tensor, list[str]]:
    """The wanted columns as numbers, (N, columns), and the target as text."""
    require_modules("numpy", what=f"{path}: a table")
    import numpy as np

    columns = {name: _Column() for name in wanted}
    texts: list[str] = []
    n = 0
    for block in blocks:
        cells = dict(zip(names, block, strict=True))
        for name, column in columns.items():
            column.add(cells[name], n + 1)
        if target is not None:
            texts += [_class_name(cell) for cell in cells[target]]
        n += len(block[0])
    if not n:
        raise UsageError(f"{path}: found no rows below the names of the columns")
    _check_numbers(path, columns, training=target is not None)
    arrays = [np.concatenate(column.blocks) for column in columns.values()]
    return torch.from_numpy(np.stack(arrays, 1)), texts


def _class_name(cell: Any) -> str:
    """Empty if there is none; NaN, which is not equal to itself, is none."""
    return "" if cell is None or cell != cell else str(cell).strip()


def _check_numbers(path: Path, columns: Mapping[str, _Column], training: bool) -> None:
    """Refuse text, missing and infinite values, with all columns that have them."""
    import numpy as np

    text = {n: f"row {c.text[0]}: {c.text[1]!r}" for n, c in columns.items() if c.text}
    _refuse(path, "has text in", text, "encode as numbers", training)
    for what, wrong, remedy in (
        ("lacks values in", np.isnan, "fill them in, or remove these rows"),
        (
            f"has infinite values, or above {LARGEST:g}, in",
            lambda block: np.abs(block) > LARGEST,
            "correct them, or remove these rows",
        ),
    ):
        counts = {name: column.first(wrong) for name, column in columns.items()}
        found = {n: f"{count}, first in row {row}" for n, (count, row) in counts.items() if count}
        _refuse(path, what, found, remedy, training)


def _refuse(path: Path, what: str, found: Mapping[str, str], remedy: str, training: bool) -> None:
    if not found:
        return
    shown = "; ".join(f"{name!r} ({where})" for name, where in found.items())
    if training:
        remedy += f", or leave out by --ignore {','.join(found)}"
    columns = "columns" if len(found) > 1 else "column"
    raise UsageError(f"{path}: it {what} the {columns} {shown}; {remedy}")


def _near(name: str, names: Sequence[str]) -> str:
    """What to give in place of a name that is none of the columns."""
    by_lower = {other.lower(): other for other in names}
    meant = [by_lower[near] for near in get_close_matches(name.lower(), by_lower, 1)]
    return f"; it has {listed(names)}" + "".join(f"; did you mean {near!r}?" for near in meant)
