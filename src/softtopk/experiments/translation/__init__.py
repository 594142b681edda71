"""The translation experiment of the paper: training that sees the beam search of inference.

    softtopk translate train --data DIR --source en --target fr --objective all --out RUN

pre-trains by teacher forcing, goes on from there with every objective, and ends with the paper's
Table 2. One stage with one seed is one run, in the sense of `softtopk.experiments.runs`, in
RUN/<stage>/seed-<seed>. RUN/data has the text and the pieces of words, so that the folder is all
that is needed to go on, to evaluate and to translate.
"""

from ._builtin import builtin_corpus
from ._command import compare, prepare_data, train
from ._corpus import Corpus, Split, read_corpus
from ._pieces import Pieces, Prepared, pairs_of, prepare_corpus, train_pieces
from ._plan import Plan, make_plan
from ._settings import parse_beams
from ._use import evaluate, read_lines, show_attention, translate

__all__ = [
    "Corpus",
    "Pieces",
    "Plan",
    "Prepared",
    "Split",
    "builtin_corpus",
    "compare",
    "evaluate",
    "make_plan",
    "pairs_of",
    "parse_beams",
    "prepare_corpus",
    "prepare_data",
    "read_corpus",
    "read_lines",
    "show_attention",
    "train",
    "train_pieces",
    "translate",
]
