"""A recurrent encoder-decoder with attention, after Bahdanau et al. (2014)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .._checks import check_integer
from ..functional._arguments import check_choice
from ._attention import AdditiveAttention, Attention, Memory
from ._checks import check_share
from ._states import DecoderStep

Cell = Literal["gru", "lstm"]
State = Tensor | tuple[Tensor, Tensor]
FORMAT = "softtopk.Seq2Seq 1"  # the only entry of a file's metadata, whose order is random


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
    attention_k: int | None = None
    """Attend to about so many source tokens, by SOFT top-k; None for the softmax of all."""
    attention_eps: float = 1.0
    """Temperature of that selection, in units of the attention's scores."""
    pad: int = 0
    bos: int = 2
    eos: int = 3

    def __post_init__(self) -> None:
        for name in ("source_vocab", "target_vocab", "embedding", "hidden"):
            check_integer(name, getattr(self, name))
        for name in ("pad", "bos", "eos"):
            check_integer(name, getattr(self, name), 0)
        check_choice("cell", self.cell, ("gru", "lstm"))
        if self.attention_k is not None:
            check_integer("attention_k", self.attention_k)
        if not 0 < self.attention_eps < math.inf:
            raise ValueError(f"attention_eps must be positive and finite, got {self.attention_eps}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")


class Seq2Seq(nn.Module):
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

    def __init__(
        self, config: Seq2SeqConfig, attention: Callable[[int, int, int], Attention] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        if attention is None:
            attention = partial(
                AdditiveAttention, topk=config.attention_k, eps=config.attention_eps
            )
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
        if not lengths.all() or (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError(
                f"source must have a token in every row, and its padding, {self.config.pad}, after "
                "the tokens"
            )
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
        """The decoder as the searches and losses take it, for the sentences of ``memory``.

        In training its dropout draws a mask for each hypothesis.
        """

        def step(inputs: Tensor, state: State) -> tuple[Tensor, State]:
            features, state = self.step(self.dropout(inputs), state, memory)
            return self.logits(features).log_softmax(-1), state

        return step

    def forward(self, source: Tensor, inputs: Tensor, *, sampling: float = 0.0) -> Tensor:
        """Logits (B, T, V) of each next token, from source (B, S) and ``inputs`` (B, T).

        The inputs are the gold tokens, each one place later: teacher forcing. See `unroll`.
        """
        memory, state = self.encode(source)
        return self.logits(self.unroll(inputs, state, memory, sampling=sampling))

    def unroll(
        self, inputs: Tensor, state: State, memory: Memory, *, sampling: float = 0.0
    ) -> Tensor:
        """Features (B, T, e + 3h) of the decoder that is fed ``inputs`` (B, T).

        With the probability ``sampling``, a token after the first is replaced by one drawn from the
        model's own distribution: scheduled sampling, Bengio et al. (2015).
        """
        check_share("sampling", sampling)
        embedded = self.embed(inputs).unbind(1)
        features: list[Tensor] = []
        for t, given in enumerate(embedded):
            if t > 0 and sampling > 0:
                given = torch.where(
                    torch.rand(len(given), 1, device=given.device) < sampling,
                    self.embed(self._draw(features[-1])),
                    given,
                )
            out, state = self.step(given, state, memory)
            features.append(out)
        return torch.stack(features, 1)

    @torch.no_grad()
    def _draw(self, features: Tensor) -> Tensor:
        return self.logits(features).softmax(-1).multinomial(1).squeeze(-1)

    def save(self, path: str | Path) -> None:
        """Write the weights and the configuration to a safetensors file."""
        safetensors = _safetensors()
        # Tied weights are one tensor with two names; the file takes only one of them.
        weights = {
            name: tensor.detach().cpu().contiguous() for name, tensor in self._weights().items()
        }
        described = {"attention": type(self.attention).__name__, **asdict(self.config)}
        metadata = {FORMAT: json.dumps(described)}
        safetensors.torch.save_file(weights, str(path), metadata)

    @classmethod
    def load(
        cls, path: str | Path, attention: Callable[[int, int, int], Attention] | None = None
    ) -> Seq2Seq:
        """Read what `save` wrote. Nothing in the file is executed."""
        safetensors = _safetensors()
        try:
            with safetensors.safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise
        except Exception as error:  # SafetensorError is not the only one that damage causes
            raise ValueError(f"{path} is not a file that Seq2Seq.save wrote: {error}") from error
        if FORMAT not in metadata:
            raise ValueError(
                f"{path} is not a file that Seq2Seq.save wrote: it has no metadata {FORMAT!r}"
            )
        described = json.loads(metadata[FORMAT])
        kind = described.pop("attention")
        model = cls(Seq2SeqConfig(**described), attention)
        if type(model.attention).__name__ != kind:
            raise ValueError(
                f"{path} has the weights of a model with {kind}, not "
                f"{type(model.attention).__name__}: give it as attention"
            )
        model.to(next(iter(weights.values())).dtype)
        model.load_weights(weights)
        return model

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take weights by name, those of the output once if it is tied."""
        wanted = self._weights()
        wrong = sorted(wanted.keys() ^ weights.keys())
        if wrong:
            raise ValueError(f"the weights do not fit this model, see {', '.join(wrong[:5])}")
        for name, tensor in wanted.items():
            if weights[name].shape != tensor.shape:
                raise ValueError(
                    f"the weights do not fit this model: {name} has the shape "
                    f"{tuple(weights[name].shape)}, not {tuple(tensor.shape)}"
                )
        self.load_state_dict(dict(weights), strict=False)

    def _weights(self) -> dict[str, Tensor]:
        weights = self.state_dict()
        if self.config.tied:
            del weights["output.weight"]
        return weights


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        if error.name != "safetensors":
            raise
        raise ImportError(
            "saving a Seq2Seq needs safetensors; pip install 'softtopk[translate]'",
            name="safetensors",
        ) from error
    return safetensors
