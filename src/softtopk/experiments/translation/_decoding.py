"""Translating sentences, and how good the translations are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from softtopk.seq2seq import EncoderDecoder, beam_search

from ._batches import pad_rows
from ._corpus import Split
from ._pieces import Pieces

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

BATCH_SIZE = 64  # sentences at a time


class Translation(NamedTuple):
    """A translation and what the search ranked it by."""

    text: str
    score: float
    tokens: tuple[int, ...] = ()
    """Of the target, without the end."""


@dataclass(frozen=True)
class Translator:
    """A model with the pieces of its languages."""

    model: EncoderDecoder
    source: Pieces
    target: Pieces
    beam_size: int = 5
    length_penalty: float = 1.0
    n_best: int = 1

    def __call__(self, sentences: Sequence[str]) -> list[list[Translation]]:
        """The best translations of each sentence, best first."""
        rows = self.source.encode(list(sentences))
        # Sentences of one length together: little padding, and the search ends at about one time.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: dict[int, list[Translation]] = {}
        for start in range(0, len(order), BATCH_SIZE):
            some = order[start : start + BATCH_SIZE]
            found.update(zip(some, self._translate([rows[i] for i in some]), strict=True))
        return [found[i] for i in range(len(rows))]

    @torch.no_grad()
    def _translate(self, rows: Sequence[tuple[int, ...]]) -> list[list[Translation]]:
        model, config = self.model.eval(), self.model.config
        source = pad_rows([(*row, config.eos) for row in rows], config.pad)
        memory, state = model.encode(source.to(model.target_embedding.weight.device))
        best = beam_search(
            model.decoder(memory),
            state,
            model.target_embedding.weight,
            beam_size=self.beam_size,
            # Translations of twice the length are rare, except between short sentences.
            max_len=2 * source.shape[1] + 10,
            bos=config.bos,
            eos=config.eos,
            pad=config.pad,
            length_penalty=self.length_penalty,
            n_best=self.n_best,
        )
        # An unlikely sentence can have no n-th hypothesis, in a small vocabulary.
        ends = {config.pad, config.eos}
        return [
            [
                Translation(self.target.decode([row])[0], score, row)
                for row, score in zip(_without(ends, tokens), scores, strict=True)
                if score > -torch.inf
            ]
            for tokens, scores in zip(best.tokens.tolist(), best.scores.tolist(), strict=True)
        ]


def _without(ends: set[int], rows: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token not in ends) for row in rows]


def evaluate(translator: Translator, split: Split) -> dict[str, float]:
    """BLEU and chrF of the best translations of a split."""
    found = [best[0].text for best in translator(split.sources)]
    metrics = _metrics()
    return {
        name: float(metric.corpus_score(found, [split.targets]).score)
        for name, metric in metrics.items()
    }


def signatures(split: Split) -> dict[str, str]:
    """What sacrebleu says of how it computes its figures."""
    out = {}
    for name, metric in _metrics().items():
        metric.corpus_score(split.targets[:1], [split.targets[:1]])  # which makes its signature
        out[name] = str(metric.get_signature())
    return out


def _metrics() -> dict[str, Metric]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    return {"bleu": BLEU(), "chrf": CHRF()}


def spaced(split: Split, n: int | None) -> Split:
    """``n`` pairs at equal distances, or all: neighbours are often of one text."""
    if n is None or n >= len(split):
        return split
    kept = [i * len(split) // n for i in range(n)]
    return Split([split.sources[i] for i in kept], [split.targets[i] for i in kept])
