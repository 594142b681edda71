"""How a launch is cut up is a pure function of the problem and the device."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from softtopk.kernels._triton._configuration import (
    LONGEST_IN_REGISTERS,
    Device,
    Long,
    Short,
    configuration,
    options,
    rank_configuration,
)
from softtopk.kernels._triton._launch import Triton

DEVICES = st.builds(Device, st.integers(1, 400), st.sampled_from([32, 64]))
# Each magnitude is as likely as the others.
SIZES = st.integers(0, 24).flatmap(lambda bits: st.integers(2**bits, 2 ** (bits + 1)))
DTYPES = st.sampled_from(list(LONGEST_IN_REGISTERS))


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


@given(n=SIZES, rows=SIZES, dtype=DTYPES, device=DEVICES)
def test_configurations_can_be_launched(n, rows, dtype, device):
    cut = configuration(n, rows, dtype, device)
    assert cut == configuration(n, rows, dtype, device)
    assert is_power_of_two(cut.warps)
    assert cut.warps * device.threads_per_warp <= 1024
    assert isinstance(cut, Long) == (n > LONGEST_IN_REGISTERS[dtype])
    if isinstance(cut, Short):
        assert is_power_of_two(cut.rows)
        assert is_power_of_two(cut.columns)
        assert n <= cut.columns <= max(8, 2 * n)
    else:
        assert is_power_of_two(cut.block)
        assert is_power_of_two(cut.padded)
        assert cut.programs <= cut.padded < 2 * cut.programs
        # No program is without elements, and programs that wait for each other all run at once.
        assert 1 <= cut.programs <= n
        assert cut.programs == 1 or cut.programs * rows <= device.multiprocessors


@given(n=SIZES, rows=SIZES, dtype=DTYPES, device=DEVICES)
def test_multiprocessors_are_not_left_idle(n, rows, dtype, device):
    cut = configuration(n, rows, dtype, device)
    if isinstance(cut, Short) and cut.rows > 1:
        assert rows // cut.rows >= device.multiprocessors


@given(k=st.integers(1, Triton.most_ranks), device=DEVICES)
def test_ranks_can_be_launched(k, device):
    ranks = rank_configuration(k, device)
    assert ranks.warps * device.threads_per_warp <= 1024
    assert all(map(is_power_of_two, ranks))
    assert k <= ranks.columns
    assert k + 1 <= ranks.pivots <= 2 * k + 1


@given(warps=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_the_compiler_may_take_the_registers_that_a_multiprocessor_has(warps):
    told = options(warps, Device(100, 32))
    assert told["num_warps"] == warps
    assert told["maxnreg"] * warps * 32 <= 65536
    assert "maxnreg" not in options(warps, Device(100, 64))  # AMD's compiler knows no such option


def test_float64_needs_twice_the_registers():
    device = Device(100, 32)
    single = configuration(1024, 1, torch.float32, device)
    double = configuration(1024, 1, torch.float64, device)
    assert double.warps == 2 * single.warps
