"""How bad a hypothesis is, as text."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._pieces import Pieces

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

RISKS = ("bleu+chrf", "bleu", "chrf")


class TextRisk:
    """1 less the score of a sentence by sacrebleu, from 0 to 1; of two scores the mean.

    Args:
        pieces: Of the language of the hypotheses.
        score: One of `RISKS`.
    """

    def __init__(self, pieces: Pieces, score: str) -> None:
        self._pieces, self._names = pieces, score.split("+")

    def __call__(self, tokens: Tensor, gold: Tensor) -> Tensor:
        """Hypotheses (B, n, L), references (B, T) -> (B, n)."""
        metrics = [_metrics()[name] for name in self._names]
        references = self._pieces.decode(gold.tolist())
        rows = []
        for reference, hypotheses in zip(references, tokens.tolist(), strict=True):
            texts = self._pieces.decode(hypotheses)
            score = {  # different pieces can make one text
                text: fmean(m.sentence_score(text, [reference]).score for m in metrics)
                for text in set(texts)
            }
            rows.append([score[text] for text in texts])
        return 1 - torch.tensor(rows) / 100


@cache
def _metrics() -> dict[str, Metric]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # Short sentences have no n-grams of the higher orders.
    return {"bleu": BLEU(effective_order=True), "chrf": CHRF()}
