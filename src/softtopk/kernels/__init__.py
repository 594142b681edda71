"""Optional fast paths behind the operators: a native library for the CPU, Triton for GPUs.

Without them the operators are computed by plain PyTorch operations, with the same results.
"""

from ._accelerator import accelerator_status, covers, interpreted, is_interpreting, triton_for
from ._calls import IN_PLACE_DTYPES, Native
from ._library import Status, native, plain, status

__all__ = [
    "IN_PLACE_DTYPES",
    "Native",
    "Status",
    "accelerator_status",
    "covers",
    "interpreted",
    "is_interpreting",
    "native",
    "plain",
    "status",
    "triton_for",
]
