"""Optional fast paths behind the operators: a native library for the CPU.

Without it the operators are computed by plain PyTorch operations, with the same results.
"""

from ._calls import IN_PLACE_DTYPES, Native
from ._library import Status, native, plain, status

__all__ = ["IN_PLACE_DTYPES", "Native", "Status", "native", "plain", "status"]
