"""Sequence-to-sequence models whose training sees the beam search that inference uses."""

from ._attention import AdditiveAttention, Attention, Memory
from ._beam_search import Hypotheses, beam_search
from ._losses import hybrid_loss, teacher_forcing_loss
from ._membership import beam_membership_loss
from ._model import Seq2Seq, Seq2SeqConfig
from ._soft_beam import SoftBeams, soft_beam_loss, soft_beam_search
from ._states import DecoderStep

__all__ = [
    "AdditiveAttention",
    "Attention",
    "DecoderStep",
    "Hypotheses",
    "Memory",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SoftBeams",
    "beam_membership_loss",
    "beam_search",
    "hybrid_loss",
    "soft_beam_loss",
    "soft_beam_search",
    "teacher_forcing_loss",
]
