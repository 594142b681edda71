"""What a model attends to: the map of a sentence, and how many tokens hold most of the weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from softtopk.plotting import draw_attention, new_figure
from softtopk.plotting.style import standard_look
from softtopk.seq2seq import EncoderDecoder

from .._drawing import save_figure
from ._batches import Pair, make_batch
from ._corpus import Split
from ._decoding import BATCH_SIZE
from ._pieces import Pieces

SHARE = 0.95  # of the weight
END = "</s>"
MOST_CELLS = 2**17  # of the maps of a batch
MOST_TOKENS = 120  # in a row or column of a picture


class Alignment(NamedTuple):
    """The source token that a target token looks at most."""

    target: str
    source: str
    weight: float


@dataclass(frozen=True)
class AttentionMap:
    """The attention of a translation to its source."""

    source: Sequence[str]
    """S tokens, the end among them."""
    target: Sequence[str]
    """T tokens."""
    by_head: Tensor
    """(heads, T, S): where each head of the decoder looks to write each target token."""

    @property
    def weights(self) -> Tensor:
        """(T, S), the mean over the heads."""
        return self.by_head.mean(0)

    def tokens_holding(self) -> list[float]:
        """For each target token how many source tokens hold 95 % of the weight, mean of heads."""
        return tokens_holding(self.by_head).double().mean(0).tolist()

    def alignments(self) -> list[Alignment]:
        weights, best = self.weights.max(-1)
        return [
            Alignment(token, self.source[i], weight)
            for token, i, weight in zip(self.target, best.tolist(), weights.tolist(), strict=True)
        ]


@torch.no_grad()
def attention_map(
    model: EncoderDecoder, source: Pieces, target: Pieces, pair: Pair
) -> AttentionMap:
    """The attention of the model while it is fed the tokens of a translation."""
    config = model.eval().config
    batch = make_batch([pair], pad=config.pad, eos=config.eos)
    device = model.target_embedding.weight.device
    weights = model.attention_weights(
        batch.source.to(device), batch.target.to(device), by_head=True
    )
    return AttentionMap(
        [*source.texts(pair.source), END], [*target.texts(pair.target), END], weights[0].cpu()
    )


def tokens_holding(weights: Tensor, share: float = SHARE) -> Tensor:
    """How many of the largest weights (..., S), which sum to one, have a sum of ``share``: (...).

    >>> tokens_holding(torch.tensor([[0.5, 0.1, 0.4], [0.98, 0.01, 0.01]]), 0.9)
    tensor([2, 1])
    """
    held = weights.sort(-1, descending=True).values.cumsum(-1)
    # The sum of all can be rounded to less than the share.
    return ((held < share).sum(-1) + 1).clamp(max=weights.shape[-1])


@torch.no_grad()
def mean_tokens_holding(
    model: EncoderDecoder, source: Pieces, target: Pieces, split: Split, share: float = SHARE
) -> float:
    """The mean of `tokens_holding` over the tokens of the references and the model's heads."""
    config = model.eval().config
    device = model.target_embedding.weight.device
    rows = zip(source.encode(split.sources), target.encode(split.targets), strict=True)
    order = sorted((Pair(*row) for row in rows), key=lambda pair: len(pair.source))
    total, count = 0, 0
    for some in _of_bounded_size(order):
        batch = make_batch(some, pad=config.pad, eos=config.eos)
        target_tokens = batch.target.to(device)
        weights = model.attention_weights(batch.source.to(device), target_tokens, by_head=True)
        held = tokens_holding(weights, share).movedim(1, -1)[target_tokens != config.pad]
        total, count = total + int(held.sum()), count + held.numel()
    return total / count


def _of_bounded_size(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """Batches whose maps have at most this many weights, if the pairs do not differ much in length.

    Long sentences have maps that would not fit in memory side by side.
    """
    start = 0
    while start < len(pairs):
        some = pairs[start : start + BATCH_SIZE]
        cells = max((len(p.source) + 1) * (len(p.target) + 1) for p in some)
        size = max(1, min(BATCH_SIZE, MOST_CELLS // cells))
        yield pairs[start : start + size]
        start += size


@standard_look()
def write_attention(shown: AttentionMap, path: Path) -> Path:
    """The map as a picture, in the format that the path's suffix names."""
    cell = 0.36  # inches, for which the labels' text is small enough
    size = (2.6 + cell * len(shown.source), 1.6 + cell * len(shown.target))
    figure = new_figure(size=size)
    image = draw_attention(figure.axes[0], shown.weights, shown.source, shown.target)
    figure.colorbar(image, ax=figure.axes[0], label="weight", shrink=0.6)
    return save_figure(figure, path)
