"""What the models have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from .. import _model_files
from .._checks import check_integer, check_share
from ._attention import TopKAttention
from ._states import PackedStep, State, select_rows

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every model is told."""

    source_vocab: int
    target_vocab: int
    dropout: float = 0.2
    tied: bool = False
    """Use the target embeddings as the weights of the output layer."""
    attention_k: int | None = None
    """Attend to about this many source tokens, by SOFT top-k; None for the softmax of all."""
    attention_eps: float = 1.0
    """Temperature of that selection, in units of the attention's scores."""
    pad: int = 0
    bos: int = 2
    eos: int = 3

    def __post_init__(self) -> None:
        for name in ("source_vocab", "target_vocab"):
            check_integer(name, getattr(self, name))
        for name in ("pad", "bos", "eos"):
            check_integer(name, getattr(self, name), 0)
        if self.attention_k is not None:
            check_integer("attention_k", self.attention_k)
        if not 0 < self.attention_eps < math.inf:
            raise ValueError(f"attention_eps must be positive and finite, got {self.attention_eps}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")


class EncoderDecoder(nn.Module, ABC):
    """A model that reads a source and writes a target, token by token.

    A subclass has the layers between the embeddings, made here, and the output, made by
    `_add_output` when all others are there.

    Args:
        config: The sizes.
        width: Of the embeddings and of what goes into the output layer.
    """

    FORMAT: ClassVar[str]
    """Names the class and the version in its files."""
    config: ModelConfig
    output: nn.Linear

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.source_embedding = nn.Embedding(config.source_vocab, width, padding_idx=config.pad)
        self.target_embedding = nn.Embedding(config.target_vocab, width, padding_idx=config.pad)
        self.dropout = nn.Dropout(config.dropout)

    def _add_output(self) -> None:
        width = self.target_embedding.embedding_dim
        self.output = nn.Linear(width, self.config.target_vocab)
        if self.config.tied:
            self.output.weight = self.target_embedding.weight
        # An embedding of unit variance would saturate the recurrent layers, and a tied output.
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=width**-0.5)
            with torch.no_grad():
                embedding.weight[self.config.pad].zero_()

    @abstractmethod
    def encode(self, source: Tensor) -> tuple[Any, State]:
        """Source tokens (B, S), padded -> the memory, and the decoder's first state.

        Both are tensors of first axis B, in any nesting of dict, list, tuple and None.
        """

    @abstractmethod
    def step(self, inputs: Tensor, state: Any, memory: Any) -> tuple[Tensor, State]:
        """One step of the decoder, without its output layer.

        Embeddings (N, e) of the last tokens -> features (N, f), and the new state.
        """

    @abstractmethod
    def logits(self, features: Tensor) -> Tensor:
        """Features (..., f) of a step -> logits (..., V)."""

    @abstractmethod
    def _looks(self, inputs: Tensor, state: Any, memory: Any) -> Tensor:
        """Weights (B, n, T, S) of all n heads to the source, when fed ``inputs`` (B, T)."""

    @property
    def hard_eval(self) -> bool:
        """Whether in evaluation the attentions with SOFT top-k keep exactly k tokens."""
        found = self._selections()
        return bool(found) and all(module.hard_eval for module in found)

    @hard_eval.setter
    def hard_eval(self, value: bool) -> None:
        found = self._selections()
        if value and not found:
            raise ValueError(
                "hard_eval=True needs an attention with SOFT top-k; make the model with attention_k"
            )
        for module in found:
            module.hard_eval = value

    def _selections(self) -> list[TopKAttention]:
        found = (module for module in self.modules() if isinstance(module, TopKAttention))
        return [module for module in found if module.topk is not None]

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens -> inputs of the decoder, with dropout."""
        return self.dropout(self.target_embedding(tokens))

    def decoder(self, memory: Any) -> PackedStep:
        """The decoder as the searches and losses take it, for the sentences of ``memory``.

        It also takes any number of hypotheses of each, by which a search saves time: a function
        around it does not. In training its dropout draws a mask for each hypothesis.
        """
        return _Decoder(self, memory)

    def shift(self, target: Tensor) -> Tensor:
        """Targets (B, T) -> what the decoder is fed in teacher forcing: each one place later."""
        first = torch.full_like(target[:, :1], self.config.bos)
        return torch.cat([first, target[:, :-1]], 1)

    def forward(self, source: Tensor, inputs: Tensor, *, sampling: float = 0.0) -> Tensor:
        """Logits (B, T, V) of each next token, from source (B, S) and ``inputs`` (B, T).

        The inputs are the gold tokens, each one place later: teacher forcing. See `unroll`.
        """
        memory, state = self.encode(source)
        return self.logits(self.unroll(inputs, state, memory, sampling=sampling))

    def attention_weights(self, source: Tensor, target: Tensor, *, by_head: bool = False) -> Tensor:
        """Where the decoder looks in the source as it is fed the target.

        Args:
            source: (B, S).
            target: (B, T), of which the token t is predicted with the weights t. Those of padding
                are meaningless.
            by_head: Return the weights of each head, of all layers one after the other; a recurrent
                model has one head.

        Returns:
            (B, T, S), the mean over heads and layers, or (B, layers * heads, T, S). They sum to one
            over the tokens of the source.
        """
        memory, state = self.encode(source)
        looks = self._looks(self.shift(target), state, memory)
        return looks if by_head else looks.mean(1)

    def unroll(self, inputs: Tensor, state: Any, memory: Any, *, sampling: float = 0.0) -> Tensor:
        """Features (B, T, f) of the decoder that is fed ``inputs`` (B, T).

        With the probability ``sampling``, a token after the first is replaced by one drawn from the
        model's own distribution: scheduled sampling, Bengio et al. (2015).
        """
        check_share("sampling", sampling)
        embedded = self.embed(inputs).unbind(1)
        features: list[Tensor] = []
        for t, given in enumerate(embedded):
            if t > 0 and sampling > 0:
                chance = torch.rand(len(given), 1, device=given.device, dtype=torch.float32)
                drawn = self.embed(self._draw(features[-1]))
                given = torch.where(chance < sampling, drawn, given)
            out, state = self.step(given, state, memory)
            features.append(out)
        return torch.stack(features, 1)

    @torch.no_grad()
    def _draw(self, features: Tensor) -> Tensor:
        return self.logits(features).softmax(-1).multinomial(1).squeeze(-1)

    def _mask(self, source: Tensor) -> Tensor:
        """Where there are tokens in the source (B, S)."""
        mask = source != self.config.pad
        if not mask.any(-1).all() or (mask[:, 1:] & ~mask[:, :-1]).any():
            raise ValueError(
                f"source must have a token in every row, and its padding, {self.config.pad}, after "
                "the tokens"
            )
        return mask

    def save(self, path: str | Path) -> None:
        """Write the weights and the configuration to a safetensors file."""
        _model_files.write(path, self.FORMAT, self._description(), self._weights())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Nothing in the file is executed."""
        stored = _model_files.read(path, [cls.FORMAT])
        with _model_files.naming(path):
            return cls._restore(stored)

    @classmethod
    @abstractmethod
    def _restore(cls, stored: _model_files.Stored) -> Self:
        """The model of a file."""

    def _with_weights(self, stored: _model_files.Stored) -> Self:
        """In the precision of the file."""
        if not stored.weights:
            raise ValueError("it has no weights")
        self.to(next(iter(stored.weights.values())).dtype)
        self.load_weights(stored.weights)
        return self

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

    def _description(self) -> dict[str, Any]:
        return asdict(self.config)

    def _weights(self) -> dict[str, Tensor]:
        """By name. Tied weights are one tensor with two names; a file takes only one of them."""
        weights = self.state_dict()
        if self.config.tied:
            del weights["output.weight"]
        return weights


@dataclass(frozen=True)
class _Decoder:
    model: EncoderDecoder
    memory: Any

    def __call__(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        model = self.model
        features, state = model.step(model.dropout(inputs), state, self.memory)
        return model.logits(features).log_softmax(-1), state

    def for_sentences(self, sentences: Tensor) -> _Decoder:
        return _Decoder(self.model, select_rows(self.memory, sentences))
