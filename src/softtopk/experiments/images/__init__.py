"""Image data sets for the kNN experiments, from files that are there already.

Nothing is downloaded: :func:`load` says which files it needs and where they are to be had.
"""

from ._data import ImageData, Normalisation
from ._folders import read_folder
from ._reading import read_images
from ._sets import NAMES, load

__all__ = ["NAMES", "ImageData", "Normalisation", "load", "read_folder", "read_images"]
