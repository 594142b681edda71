"""Sequence-to-sequence models whose training sees the beam search that inference uses."""

from ._attention import AdditiveAttention, Attention, Memory
from ._beam_search import Hypotheses, beam_search
from ._encoder_decoder import EncoderDecoder
from ._load import load
from ._losses import hybrid_loss, teacher_forcing_loss
from ._membership import beam_membership_loss
from ._recurrent import Seq2Seq, Seq2SeqConfig
from ._risk import beam_risk_loss, expected_risk, sequence_scores
from ._soft_beam import SoftBeams, soft_beam_loss, soft_beam_search
from ._states import DecoderStep, PackedStep
from ._transformer import Transformer, TransformerConfig, TransformerMemory

__all__ = [
    "AdditiveAttention",
    "Attention",
    "DecoderStep",
    "EncoderDecoder",
    "Hypotheses",
    "Memory",
    "PackedStep",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SoftBeams",
    "Transformer",
    "TransformerConfig",
    "TransformerMemory",
    "beam_membership_loss",
    "beam_risk_loss",
    "beam_search",
    "expected_risk",
    "hybrid_loss",
    "load",
    "sequence_scores",
    "soft_beam_loss",
    "soft_beam_search",
    "teacher_forcing_loss",
]
