"""How a launch is cut up: a pure function of the problem and the device."""

from __future__ import annotations

from typing import NamedTuple

import torch

#: Rows of at most so many elements are kept in registers. Above, the compilers spill.
LONGEST_IN_REGISTERS = {torch.float32: 8192, torch.float64: 2048}
#: Elements of one program, if its rows are shorter than that.
TILE = 1024
#: Elements of one pass over a long row, and the fewest that are worth a program of their own.
BLOCK = 1024
PART = 16 * BLOCK


#: Shorter rows are filled up to so many elements: fewer kernels to compile.
FEWEST = 8


class Device(NamedTuple):
    """What decides about a launch."""

    multiprocessors: int
    threads_per_warp: int  #: 32 (NVIDIA) or 64 (AMD)


class Short(NamedTuple):
    """Whole rows in the registers of a program."""

    warps: int
    rows: int  #: per program
    columns: int  #: a power of two, at least n


class Long(NamedTuple):
    """A row in passes over blocks."""

    warps: int
    programs: int  #: per row
    block: int

    @property
    def padded(self) -> int:
        """The number of programs, or the next power of two."""
        return _power_of_two(self.programs)


def configuration(n: int, rows: int, dtype: torch.dtype, device: Device) -> Short | Long:
    """For ``rows`` rows of ``n`` elements that are computed in ``dtype``, float32 or float64."""
    double = dtype is torch.float64
    if n > LONGEST_IN_REGISTERS[dtype]:
        return long_configuration(n, rows, device)
    columns = max(FEWEST, _power_of_two(n))
    together = max(1, TILE // columns)
    if rows < together * device.multiprocessors:
        together = 1  # rather a program for every row than none for some multiprocessors
    return Short(_warps(together * columns, 4 if double else 8, device), together, columns)


def long_configuration(n: int, rows: int, device: Device) -> Long:
    programs = 1
    if rows < device.multiprocessors:
        # All of them run at once, so that they can wait for each other.
        programs = min(device.multiprocessors // rows, -(-n // PART))
    return Long(_warps(BLOCK, 4, device), programs, BLOCK)


#: Ragged rows of up to so many elements are kept in registers, one row in a program.
RAGGED = (64, 1024)


def ragged_configurations(
    total: int, rows: int, dtype: torch.dtype, device: Device
) -> list[tuple[int, Short | Long]]:
    """For rows of any lengths, of ``total`` elements: launches, each for the rows that are longer
    than a number and not for the next launch.

    The lengths are not known on the host. The programs of other rows end at once.
    """
    found: list[tuple[int, Short | Long]] = []
    shorter = -1  # the first takes empty rows too
    for columns in RAGGED:
        if total > shorter:
            found.append((shorter, configuration(columns, 1, dtype, device)))
        shorter = columns
    if total > shorter:
        found.append((shorter, long_configuration(total, rows, device)))
    return found


class Ranks(NamedTuple):
    """A program for each row of the sorted operator."""

    warps: int
    pivots: int  #: a power of two, at least k + 1
    columns: int  #: a power of two, at least k
    block: int  #: elements of a pass


def rank_configuration(k: int, device: Device) -> Ranks:
    """For ``k`` ranks. Products of matrices have at least 16 columns."""
    columns = max(16, _power_of_two(k))
    threads, block = {16: (128, 32), 32: (256, 64)}[columns]  # nothing is spilled
    return Ranks(threads // device.threads_per_warp, _power_of_two(k + 1), columns, block)


def options(warps: int, device: Device) -> dict[str, int]:
    """What the compiler is told.

    NVIDIA's rather spills than takes all the registers that there are, unless it gets their number.
    """
    if device.threads_per_warp == 64:
        return {"num_warps": warps}
    registers = min(255, 65536 // (32 * warps))
    return {"num_warps": warps, "maxnreg": registers}


def _warps(elements: int, per_thread: int, device: Device) -> int:
    return max(1, elements // (per_thread * device.threads_per_warp))


def _power_of_two(value: int) -> int:
    return 1 << (value - 1).bit_length()
