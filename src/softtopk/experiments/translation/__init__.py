"""The translation experiment of the paper: training that sees the beam search of inference.

    softtopk translate train --data DIR --source en --target fr --objective all --out RUN

pre-trains by teacher forcing, goes on from there with every objective, and ends with the paper's
Table 2. One stage with one seed is one run, in the sense of `softtopk.experiments.runs`, in
RUN/<stage>/seed-<seed>. RUN/data has the text and the pieces of words, so that the folder is all
that is needed to go on, to evaluate and to translate.
"""

from ._builtin import builtin_corpus
from ._corpus import Corpus, Split, read_corpus
from ._pieces import Pieces, Prepared, pairs_of, prepare_corpus, train_pieces
from ._plan import Train
from ._settings import CORPUS, Settings
from ._train import Compare, Prepare, compare, prepare, train
from ._use import Attention, Evaluate, Translate, attention, evaluate, translate

__all__ = [
    "CORPUS",
    "Attention",
    "Compare",
    "Corpus",
    "Evaluate",
    "Pieces",
    "Prepare",
    "Prepared",
    "Settings",
    "Split",
    "Train",
    "Translate",
    "attention",
    "builtin_corpus",
    "compare",
    "evaluate",
    "pairs_of",
    "prepare",
    "prepare_corpus",
    "read_corpus",
    "train",
    "train_pieces",
    "translate",
]
