"""A recurrent encoder-decoder with attention, after Bahdanau et al. (2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ._attention import AdditiveAttention, Attention, Memory
from ._states import DecoderStep

Cell = Literal["gru", "lstm"]
State = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The sizes of a `Seq2Seq`."""

    source_vocab: int
    target_vocab: int
    embedding: int = 256
    hidden: int = 256
    cell: Cell = "gru"
    dropout: float = 0.2
    tied: bool = False
    """Use the target embeddings as the weights of the output layer."""
    pad: int = 0
    bos: int = 2
    eos: int = 3


class Seq2Seq(nn.Module):
    """Bidirectional recurrent encoder; recurrent decoder that attends to its states."""

    def __init__(
        self,
        config: Seq2SeqConfig,
        attention: Callable[[int, int, int], Attention] = AdditiveAttention,
    ) -> None:
        super().__init__()
        self.config = config
        width, hidden = config.embedding, config.hidden
        lstm = config.cell == "lstm"
        self.source_embedding = nn.Embedding(config.source_vocab, width, padding_idx=config.pad)
        self.target_embedding = nn.Embedding(config.target_vocab, width, padding_idx=config.pad)
        self.encoder = (nn.LSTM if lstm else nn.GRU)(
            width, hidden, batch_first=True, bidirectional=True
        )
        self.bridge = nn.Linear(hidden, hidden)
        self.attention = attention(hidden, 2 * hidden, hidden)
        self.cell = (nn.LSTMCell if lstm else nn.GRUCell)(width + 2 * hidden, hidden)
        self.readout = nn.Linear(width + 3 * hidden, width)
        self.output = nn.Linear(width, config.target_vocab)
        self.dropout = nn.Dropout(config.dropout)
        if config.tied:
            self.output.weight = self.target_embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # An embedding of unit variance would saturate the recurrent layers, and a tied output.
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=self.config.embedding**-0.5)
            with torch.no_grad():
                embedding.weight[self.config.pad].zero_()

    def encode(self, source: Tensor) -> tuple[Memory, State]:
        """Source tokens (B, S), padded -> the memory and the decoder's first state (B, h)."""
        mask = source != self.config.pad
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
        hidden = state[0] if isinstance(state, tuple) else state
        context, _ = self.attention(hidden, memory)
        state = self.cell(torch.cat([inputs, context], -1), state)
        hidden = state[0] if isinstance(state, tuple) else state
        return torch.cat([hidden, context, inputs], -1), state

    def logits(self, features: Tensor) -> Tensor:
        """Features (..., e + 3h) of a step -> logits (..., V)."""
        return self.output(self.dropout(torch.tanh(self.readout(features))))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.target_embedding(tokens))

    def decoder(self, memory: Memory) -> DecoderStep:
        """The decoder as the searches and losses take it, for the sentences of ``memory``."""

        def step(inputs: Tensor, state: State) -> tuple[Tensor, State]:
            features, state = self.step(self.dropout(inputs), state, memory)
            return self.logits(features).log_softmax(-1), state

        return step

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Teacher forcing: source (B, S) and the tokens before each target (B, T) -> (B, T, V)."""
        memory, state = self.encode(source)
        return self.logits(self.unroll(inputs, state, memory))

    def unroll(self, inputs: Tensor, state: State, memory: Memory) -> Tensor:
        """Features (B, T, e + 3h) of the decoder that is fed ``inputs`` (B, T)."""
        features = []
        for embedded in self.embed(inputs).unbind(1):
            out, state = self.step(embedded, state, memory)
            features.append(out)
        return torch.stack(features, 1)
