"""A Transformer encoder-decoder, after Vaswani et al. (2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import _model_files
from .._checks import check_choice, check_integer, check_share
from ..nn import soft_topk_attention
from ._attention import TopKAttention
from ._encoder_decoder import EncoderDecoder, ModelConfig

AttentionIn = Literal["cross", "all"]
SHORT = 128
"""Keys up to which two products of matrices are faster on a CPU than torch's fused attention, seen
in single precision."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ModelConfig):
    """The sizes of a `Transformer`."""

    width: int = 256
    heads: int = 4
    feedforward: int = 512
    layers: int = 2
    """Of the encoder, and of the decoder."""
    attention_in: AttentionIn = "cross"
    """Where SOFT top-k is used: in the attention to the source, or in the self-attentions too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("width", "heads", "feedforward", "layers"):
            check_integer(name, getattr(self, name))
        check_choice("attention_in", self.attention_in, ("cross", "all"))
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads={self.heads}, got width={self.width}"
            )


class TransformerMemory(NamedTuple):
    """What the decoder reads of the source: the same for all hypotheses of a sentence."""

    layers: tuple[Tensor, ...]
    """(B, S, 2w) for each layer of the decoder: keys and values."""
    mask: Tensor
    """(B, S) boolean, True where there is a token."""


State = tuple[Tensor, ...]
"""(N, t, 2w) for each layer of the decoder: keys and values of the t tokens so far."""


class DotProductAttention(TopKAttention):
    """Scaled dot-product attention with several heads.

    Args:
        width: Of queries, of what is attended to, and of the output.
        heads: A divisor of the width.
        topk, eps, hard_eval: As for `AdditiveAttention`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        topk: int | None = None,
        eps: float = 1.0,
        hard_eval: bool = False,
    ) -> None:
        super().__init__(topk=topk, eps=eps, hard_eval=hard_eval)
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(
        self,
        query: Tensor,
        key_value: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs (N, L, w) and, if they are needed, the weights (N, heads, L, S).

        Args:
            query: (N, L, w).
            key_value: (N, S, 2w), from the layer of that name.
            mask: Boolean, broadcastable to (N, heads, L, S), True where there is something.
            need_weights: Otherwise their place is taken by None.
        """
        key, value = key_value.chunk(2, -1)
        query, key, value = (self._split(x) for x in (self.query(query), key, value))
        topk = key.shape[-2] if self.topk is None else self.topk
        weights = None
        if need_weights:
            found, weights = soft_topk_attention(
                query, key, value, topk,
                eps=self.eps, attn_mask=mask, hard=self.hard, need_weights=True,
            )  # fmt: skip
        elif topk < key.shape[-2]:
            found = soft_topk_attention(
                query, key, value, topk, eps=self.eps, attn_mask=mask, hard=self.hard
            )
        elif query.device.type == "cpu" and query.dtype.itemsize > 2 and key.shape[-2] <= SHORT:
            scores = query / math.sqrt(query.shape[-1]) @ key.mT
            if mask is not None:  # finite where nothing may be seen
                scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
            found = scores.softmax(-1) @ value
        else:
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.output(found.transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:
        """(N, S, w) -> (N, heads, S, w / heads)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Sequential):
    """The same function of every token."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(
            nn.Linear(config.width, config.feedforward),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.feedforward, config.width),
        )


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, with norms before them (pre-norm)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.own_norm, self.forward_norm = (nn.LayerNorm(config.width) for _ in range(2))
        self.own = _self_attention(config)
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, S, w), with a mask that broadcasts to (B, heads, S, S)."""
        normed = self.own_norm(x)
        found, _ = self.own(normed, self.own.key_value(normed), mask)
        x = x + self.dropout(found)
        return x + self.dropout(self.feedforward(self.forward_norm(x)))


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, and a feed-forward network."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.own_norm, self.cross_norm, self.forward_norm = (
            nn.LayerNorm(config.width) for _ in range(3)
        )
        self.own = _self_attention(config)
        self.cross = DotProductAttention(
            config.width, config.heads, topk=config.attention_k, eps=config.attention_eps
        )
        self.feedforward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        past: Tensor,
        causal: Tensor | None,
        source: Tensor,
        source_mask: Tensor,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The tokens after the layer, the keys and values of them and of those before, weights.

        Args:
            x: (N, L, w), the next L tokens of N = B k hypotheses, the k of a sentence adjacent.
            past: (N, t, 2w), keys and values of the t tokens before.
            causal: (L, t + L) boolean, True for what a token may see; None for all.
            source: (B, S, 2w), keys and values.
            source_mask: (B, 1, 1, S).
            need_weights: Of the attention to the source, (B, heads, k L, S); otherwise None.
        """
        normed = self.own_norm(x)
        so_far = torch.cat([past, self.own.key_value(normed)], 1)
        found, _ = self.own(normed, so_far, causal)
        x = x + self.dropout(found)
        # All tokens of a sentence's hypotheses ask the same source.
        query = self.cross_norm(x).reshape(len(source), -1, x.shape[-1])
        found, weights = self.cross(query, source, source_mask, need_weights)
        x = x + self.dropout(found.view_as(x))
        return x + self.dropout(self.feedforward(self.forward_norm(x))), so_far, weights


class Transformer(EncoderDecoder):
    """Transformer encoder and decoder: pre-norm, sinusoidal positions, ReLU.

    The decoder's state is the keys and values of the tokens so far, so that a step costs one
    token. The soft search averages them, as it does the hidden states of a recurrent decoder.

    >>> from softtopk.seq2seq import beam_search
    >>> model = Transformer(TransformerConfig(source_vocab=50, target_vocab=60)).eval()
    >>> memory, state = model.encode(torch.tensor([[7, 8, 9, 3]]))
    >>> found = beam_search(model.decoder(memory), state, model.target_embedding.weight, max_len=10)
    >>> found.scores.shape
    torch.Size([1, 1])
    """

    FORMAT = "softtopk.Transformer 1"
    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, config.width)
        self.encoder_layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder_layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.encoder_norm = nn.LayerNorm(config.width)
        self.decoder_norm = nn.LayerNorm(config.width)
        self._add_output()
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if module.weight is not self.target_embedding.weight:
                    nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def encode(self, source: Tensor) -> tuple[TransformerMemory, State]:
        """Source tokens (B, S), padded -> the memory and the decoder's first state."""
        mask = self._mask(source)
        x = self._placed(self.dropout(self.source_embedding(source)), 0)
        for layer in self.encoder_layers:
            x = layer(x, mask[:, None, None])
        x = self.encoder_norm(x)
        layers = cast("list[DecoderLayer]", list(self.decoder_layers))
        read = tuple(layer.cross.key_value(x) for layer in layers)
        nothing = x.new_zeros(len(x), 0, 2 * self.config.width)
        return TransformerMemory(read, mask), (nothing,) * len(layers)

    def step(self, inputs: Tensor, state: State, memory: TransformerMemory) -> tuple[Tensor, State]:
        """One step of the decoder, without its output layer.

        Embeddings (N, w) of the last tokens -> features (N, w), and the new state.
        """
        features, state, _ = self._decode(inputs.unsqueeze(1), state, memory)
        return features.squeeze(1), state

    def unroll(
        self, inputs: Tensor, state: State, memory: TransformerMemory, *, sampling: float = 0.0
    ) -> Tensor:
        """Features (B, T, w) of the decoder that is fed ``inputs`` (B, T), all at once.

        With ``sampling`` step by step, see `EncoderDecoder.unroll`.
        """
        if check_share("sampling", sampling) > 0:
            return super().unroll(inputs, state, memory, sampling=sampling)
        features, _, _ = self._decode(self.embed(inputs), state, memory)
        return features

    def logits(self, features: Tensor) -> Tensor:
        """Features (..., w) of a step -> logits (..., V)."""
        return self.output(features)

    def _looks(self, inputs: Tensor, state: State, memory: TransformerMemory) -> Tensor:
        _, _, weights = self._decode(self.embed(inputs), state, memory, need_weights=True)
        return torch.cat(weights, 1)

    def _decode(
        self, inputs: Tensor, state: State, memory: TransformerMemory, need_weights: bool = False
    ) -> tuple[Tensor, State, list[Tensor]]:
        """Embeddings (N, L, w) -> features of the same shape, new state, weights by layer."""
        past, length = state[0].shape[1], inputs.shape[1]
        x = self._placed(inputs, past)
        causal = None
        if length > 1:
            causal = torch.ones(length, past + length, dtype=torch.bool, device=x.device).tril(past)
        mask = memory.mask[:, None, None]
        after, weights = [], []
        for layer, before, source in zip(self.decoder_layers, state, memory.layers, strict=True):
            x, so_far, looked = layer(x, before, causal, source, mask, need_weights)
            after.append(so_far)
            weights.append(looked)
        return self.decoder_norm(x), tuple(after), weights

    def _placed(self, embedded: Tensor, first: int) -> Tensor:
        """Embeddings (N, L, w) at the positions from ``first`` on.

        The embeddings are scaled to a variance of one, about that of the sinusoids.
        """
        length, width = embedded.shape[1:]
        return embedded * math.sqrt(width) + sinusoids(first, length, width).to(embedded)

    @classmethod
    def _restore(cls, stored: _model_files.Stored) -> Transformer:
        return cls(TransformerConfig(**stored.description))._with_weights(stored)


def sinusoids(first: int, length: int, width: int) -> Tensor:
    """Sines and cosines (length, width) of positions, at wavelengths from 2 pi to 20,000 pi."""
    half = (width + 1) // 2
    # On the CPU: there are devices without float64.
    exact = partial(torch.arange, dtype=torch.float64, device="cpu")
    rates = 10000.0 ** (-exact(half) / half)
    angles = exact(first, first + length).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]


def _self_attention(config: TransformerConfig) -> DotProductAttention:
    topk = config.attention_k if config.attention_in == "all" else None
    return DotProductAttention(config.width, config.heads, topk=topk, eps=config.attention_eps)
