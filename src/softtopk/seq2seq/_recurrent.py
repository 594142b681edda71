"""A recurrent encoder-decoder with attention, after Bahdanau et al. (2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .. import _model_files
from .._checks import check_choice, check_integer
from ._attention import AdditiveAttention, Attention, Memory
from ._encoder_decoder import EncoderDecoder, ModelConfig

Cell = Literal["gru", "lstm"]
State = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(ModelConfig):
    """The sizes of a `Seq2Seq`."""

    embedding: int = 256
    hidden: int = 256
    cell: Cell = "gru"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding", "hidden"):
            check_integer(name, getattr(self, name))
        check_choice("cell", self.cell, ("gru", "lstm"))


class Seq2Seq(EncoderDecoder):
    """Bidirectional recurrent encoder; recurrent decoder that attends to its states.

    The model of Bahdanau et al. (2014), with two changes: GRU or LSTM as PyTorch has them, and
    tanh in place of maxout before the output layer.

    >>> from softtopk.seq2seq import beam_search
    >>> model = Seq2Seq(Seq2SeqConfig(source_vocab=50, target_vocab=60)).eval()
    >>> memory, state = model.encode(torch.tensor([[7, 8, 9, 3]]))
    >>> found = beam_search(model.decoder(memory), state, model.target_embedding.weight, max_len=10)
    >>> found.scores.shape
    torch.Size([1, 1])

    Args:
        config: The sizes.
        attention: Makes the attention from the sizes of its query, its memory and itself. Default:
            `AdditiveAttention`, as the configuration describes it.
    """

    FORMAT = "softtopk.Seq2Seq 1"
    config: Seq2SeqConfig

    def __init__(
        self, config: Seq2SeqConfig, attention: Callable[[int, int, int], Attention] | None = None
    ) -> None:
        width, hidden = config.embedding, config.hidden
        super().__init__(config, width)
        if attention is not None and config.attention_k is not None:
            raise ValueError(
                f"attention_k={config.attention_k} is for AdditiveAttention, not for the attention "
                "that is given; leave one of them out"
            )
        if attention is None:
            attention = partial(
                AdditiveAttention, topk=config.attention_k, eps=config.attention_eps
            )
        lstm = config.cell == "lstm"
        self.encoder = (nn.LSTM if lstm else nn.GRU)(
            width, hidden, batch_first=True, bidirectional=True
        )
        self.bridge = nn.Linear(hidden, hidden)
        self.attention = attention(hidden, 2 * hidden, hidden)
        self.cell = (nn.LSTMCell if lstm else nn.GRUCell)(width + 2 * hidden, hidden)
        self.readout = nn.Linear(width + 3 * hidden, width)
        self._add_output()

    def encode(self, source: Tensor) -> tuple[Memory, State]:
        """Source tokens (B, S), padded -> the memory and the decoder's first state (B, h)."""
        mask = self._mask(source)
        lengths = mask.sum(-1).cpu()
        embedded = self.dropout(self.source_embedding(source))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, last = self.encoder(packed)
        values, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        values = self.dropout(values)
        backward = (last[0] if self.config.cell == "lstm" else last)[1]
        first = torch.tanh(self.bridge(backward))
        state = (first, torch.zeros_like(first)) if self.config.cell == "lstm" else first
        return self.attention.prepare(values, mask), state

    def step(self, inputs: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """One step of the decoder, without its output layer.

        Embeddings (N, e) of the last tokens -> features (N, e + 3h), and the new state.
        """
        features, state, _ = self._step(inputs, state, memory)
        return features, state

    def _step(self, inputs: Tensor, state: State, memory: Memory) -> tuple[Tensor, State, Tensor]:
        """With the weights (N, S) of the attention."""
        hidden = state[0] if isinstance(state, tuple) else state
        context, weights = self.attention(hidden, memory)
        state = self.cell(torch.cat([inputs, context], -1), state)
        hidden = state[0] if isinstance(state, tuple) else state
        return torch.cat([hidden, context, inputs], -1), state, weights

    def _looks(self, inputs: Tensor, state: State, memory: Memory) -> Tensor:
        looks = []
        for given in self.embed(inputs).unbind(1):
            _, state, weights = self._step(given, state, memory)
            looks.append(weights)
        return torch.stack(looks, 1).unsqueeze(1)

    def logits(self, features: Tensor) -> Tensor:
        """Features (..., e + 3h) of a step -> logits (..., V)."""
        return self.output(self.dropout(torch.tanh(self.readout(features))))

    @classmethod
    def load(
        cls, path: str | Path, attention: Callable[[int, int, int], Attention] | None = None
    ) -> Seq2Seq:
        """Read what `save` wrote. Nothing in the file is executed."""
        stored = _model_files.read(path, [cls.FORMAT])
        with _model_files.naming(path):
            return cls._restore(stored, attention)

    @classmethod
    def _restore(
        cls,
        stored: _model_files.Stored,
        attention: Callable[[int, int, int], Attention] | None = None,
    ) -> Seq2Seq:
        described = dict(stored.description)
        kind = described.pop("attention")
        model = cls(Seq2SeqConfig(**described), attention)
        if type(model.attention).__name__ != kind:
            raise ValueError(
                f"it has the weights of a model with {kind}, not {type(model.attention).__name__}: "
                "give it as attention"
            )
        return model._with_weights(stored)

    def _description(self) -> dict[str, Any]:
        return {"attention": type(self.attention).__name__, **super()._description()}
