"""What a model attends to: the map of a sentence, and how many tokens hold most of the weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from softtopk.seq2seq import EncoderDecoder

from .._drawing import new_figure, save_png
from ._batches import Pair, make_batch
from ._corpus import Split
from ._decoding import BATCH_SIZE
from ._pieces import Pieces

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARE = 0.95  # of the weight
END = "</s>"


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
    weights: Tensor
    """(T, S): where the decoder looks to write each target token."""

    def alignments(self) -> list[Alignment]:
        weights, best = self.weights.max(-1)
        return [
            Alignment(token, self.source[i], weight)
            for token, i, weight in zip(self.target, best.tolist(), weights.tolist(), strict=True)
        ]


@torch.no_grad()
def attention_map(
    model: EncoderDecoder, source: Pieces, target: Pieces, text: str, translation: str
) -> AttentionMap:
    """The attention of the model while it is fed a translation, averaged over its heads."""
    config = model.eval().config
    pair = Pair(*source.encode([text]), *target.encode([translation]))
    batch = make_batch([pair], pad=config.pad, eos=config.eos)
    device = model.target_embedding.weight.device
    weights = model.attention_weights(batch.source.to(device), batch.target.to(device))
    return AttentionMap(
        [*source.texts(pair.source), END],
        [*target.texts(pair.target), END],
        weights[0].cpu(),
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
    for start in range(0, len(order), BATCH_SIZE):
        batch = make_batch(order[start : start + BATCH_SIZE], pad=config.pad, eos=config.eos)
        target_tokens = batch.target.to(device)
        weights = model.attention_weights(batch.source.to(device), target_tokens, by_head=True)
        held = tokens_holding(weights, share).movedim(1, -1)[target_tokens != config.pad]
        total, count = total + int(held.sum()), count + held.numel()
    return total / count


def draw_attention(axes: Axes, shown: AttentionMap) -> None:
    """Source tokens to the right, target tokens downwards, the darker the larger the weight."""
    image = axes.imshow(shown.weights.numpy(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="equal")
    axes.set_xticks(range(len(shown.source)), shown.source, rotation=60, ha="left")
    axes.set_yticks(range(len(shown.target)), shown.target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    figure = axes.figure
    figure.colorbar(image, ax=axes, label="weight", shrink=0.6)


def write_attention(shown: AttentionMap, path: Path) -> Path:
    """The map as a PNG file."""
    cell = 0.36  # inches, for which the labels' text is small enough
    size = (2.6 + cell * len(shown.source), 1.6 + cell * len(shown.target))
    figure = new_figure(size=size)
    draw_attention(figure.axes[0], shown)
    return save_png(figure, path)
