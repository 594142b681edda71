"""Loading a model of whatever kind."""

from __future__ import annotations

from pathlib import Path

from .. import _model_files
from ._encoder_decoder import EncoderDecoder
from ._recurrent import Seq2Seq
from ._transformer import Transformer

MODELS: dict[str, type[EncoderDecoder]] = {kind.FORMAT: kind for kind in (Seq2Seq, Transformer)}


def load(path: str | Path) -> EncoderDecoder:
    """The model in a file that `Seq2Seq.save` or `Transformer.save` wrote.

    Nothing in the file is executed.
    """
    stored = _model_files.read(path, list(MODELS))
    with _model_files.naming(path):
        return MODELS[stored.format]._restore(stored)
