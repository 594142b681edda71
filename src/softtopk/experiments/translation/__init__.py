"""The translation experiment."""

from ._builtin import builtin_corpus
from ._corpus import Corpus, Split, read_corpus
from ._pieces import Pieces, Prepared, pairs_of, prepare, train_pieces

__all__ = [
    "Corpus",
    "Pieces",
    "Prepared",
    "Split",
    "builtin_corpus",
    "pairs_of",
    "prepare",
    "read_corpus",
    "train_pieces",
]
