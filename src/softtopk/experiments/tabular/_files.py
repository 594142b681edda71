"""The file formats: each gives the names of its columns, then blocks of rows.

A block is a list of columns, each a list or an array of cells. Nothing in a file is executed.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from softtopk.experiments._files import opened
from softtopk.experiments._splits import listed
from softtopk.experiments.errors import UsageError, require_modules

Block = list[Any]
ROWS = 10_000  # of a block: the cells of a CSV file are text at first, which takes much memory
DELIMITERS = ",;\t"


def read_blocks(path: Path) -> tuple[list[str], Iterator[Block]]:
    """The names of the columns, and the rows in blocks."""
    suffix = next((name for name in _READERS if path.name.lower().endswith(name)), None)
    if suffix is None:
        raise UsageError(f"{path}: give a file whose name ends with {', '.join(SUFFIXES)}")
    blocks = _READERS[suffix](path)
    names = next(blocks)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UsageError(f"{path}: found columns of the same name: {listed(twice)}; rename them")
    if "" in names:
        raise UsageError(
            f"{path}: column {names.index('') + 1} has no name; give it one, or leave it out (row "
            "numbers that pandas wrote: to_csv with index=False)"
        )
    return names, blocks


def _read_csv(path: Path) -> Iterator[Block]:
    """UTF-8, packed by gzip or not; delimited by what the header has most of."""
    with opened(path) as (stream, _):
        lines = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        reader: Any = None
        try:
            header = lines.readline()
            delimiter = max(DELIMITERS, key=header.count)
            reader = csv.reader(
                chain([header], lines), delimiter=delimiter, skipinitialspace=True, strict=True
            )
            names = [name.strip() for name in next(reader, [])]
            _check_header(path, names)
            yield names
            rows = _whole_rows(path, reader, len(names))
            while block := list(islice(rows, ROWS)):
                yield [[cell.strip() for cell in column] for column in zip(*block, strict=True)]
        except UnicodeDecodeError as error:
            line = reader.line_num if reader else 0
            raise UsageError(
                f"{path}: found the byte 0x{error.object[error.start]:02x} below line {line}: "
                "that is not UTF-8; save it as CSV in UTF-8"
            ) from error
        except csv.Error as error:
            raise UsageError(
                f"{path}: not a CSV file in line {reader.line_num} ({error})"
            ) from error


def _check_header(path: Path, names: list[str]) -> None:
    if not any(names):
        raise UsageError(f"{path}: found an empty file or line, expected the names of columns")
    if all(_is_number(name) for name in names):
        raise UsageError(
            f"{path}: the first line has numbers only, as {names[0]}; it should have the names of "
            "the columns: add such a line"
        )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _whole_rows(path: Path, reader: Any, width: int) -> Iterator[list[str]]:
    for row, cells in enumerate(filter(None, reader), 1):  # an empty line is no row
        if len(cells) != width:
            raise UsageError(
                f"{path}: found {len(cells)} cells in row {row} (line {reader.line_num}), expected "
                f"{width}, as in the header; mend this row"
            )
        yield cells


def _read_parquet(path: Path) -> Iterator[Block]:
    require_modules("pyarrow", what=f"{path}: a Parquet file")
    import pyarrow
    from pyarrow import parquet

    with opened(path, unpack=False):  # refuses what is no file
        pass
    try:
        with parquet.ParquetFile(path) as file:
            yield list(file.schema_arrow.names)
            for batch in file.iter_batches(ROWS):
                # Numbers as an array; a list has None where a cell is missing.
                yield [
                    column.to_numpy()
                    if pyarrow.types.is_primitive(column.type)
                    and not (column.null_count or pyarrow.types.is_boolean(column.type))
                    else column.to_pylist()
                    for column in batch.columns
                ]
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{path}: not a whole Parquet file ({error})") from error


def _read_npz(path: Path) -> Iterator[Block]:
    """Arrays of one dimension are columns; one of two dimensions named X has X[0], X[1], ..."""
    require_modules("numpy", what=f"{path}: a NumPy file")
    import numpy as np

    try:
        with (
            opened(path, unpack=False) as (stream, _),
            np.load(stream, allow_pickle=False) as file,
        ):
            arrays = {name: file[name] for name in file.files}
    except UsageError:
        raise
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        objects = "Object arrays" in str(error)
        remedy = "save the arrays as numbers or text" if objects else "write it with numpy.savez"
        raise UsageError(f"{path}: not a NumPy file without objects ({error}); {remedy}") from error
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # another file in a zip of others
            raise UsageError(f"{path}: {name} is not an array; write it with numpy.savez")
        if array.ndim not in (1, 2):
            raise UsageError(
                f"{path}: {name} is an array {array.shape}, expected one or two dimensions; "
                "reshape it to a row for each sample"
            )
        array = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
        whole = {name: array} if array.ndim == 1 else {}
        columns |= whole or {f"{name}[{i}]": column for i, column in enumerate(array.T)}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"{path}: found arrays of different lengths, {lengths}; make them equal")
    yield list(columns)
    if columns:
        yield list(columns.values())


_READERS: dict[str, Callable[[Path], Iterator[Block]]] = {
    ".csv": _read_csv,
    ".csv.gz": _read_csv,
    ".parquet": _read_parquet,
    ".npz": _read_npz,
}
SUFFIXES = tuple(_READERS)
