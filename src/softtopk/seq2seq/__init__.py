"""Sequence-to-sequence models whose training sees the beam search that inference uses."""

from ._attention import AdditiveAttention, Memory
from ._model import Seq2Seq, Seq2SeqConfig

__all__ = ["AdditiveAttention", "Memory", "Seq2Seq", "Seq2SeqConfig"]
