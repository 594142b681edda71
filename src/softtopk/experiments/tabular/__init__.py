"""Tables of the user's own: CSV, Parquet and NumPy files with a column of classes.

CSV is read by Python's own module, not by pandas: it needs no extra, it takes no text for a missing
value that is none, and its errors name the row. pyarrow is for Parquet only.
"""

from ._data import TableData, read_table
from ._files import SUFFIXES

__all__ = ["SUFFIXES", "TableData", "read_table"]
