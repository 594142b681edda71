"""The risk of hypotheses as text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sacrebleu
import torch

from softtopk.experiments.translation._batches import pad_rows
from softtopk.experiments.translation._pieces import EOS, PAD, Pieces, train_pieces
from softtopk.experiments.translation._risk import RISKS, TextRisk
from softtopk.experiments.translation._settings import Settings, make_recipe

TEXTS = ["one and two and three", "two of three", "four and five of one", "six and two"]
PIECES = Pieces(train_pieces(TEXTS, 60))


def rows_of(texts: Sequence[str]) -> torch.Tensor:
    return pad_rows([(*row, EOS) for row in PIECES.encode(list(texts))], PAD)


@pytest.mark.parametrize("name", RISKS)
def test_it_is_that_of_sacrebleu(name: str) -> None:
    hypotheses = [["one and two", TEXTS[0], "six"], ["two of", "three of two", "two of three one"]]
    tokens = rows_of([text for row in hypotheses for text in row]).unflatten(0, (2, 3))
    found = TextRisk(PIECES, name)(tokens, rows_of(TEXTS[:2]))
    assert found.shape == (2, 3)
    for b, row in enumerate(hypotheses):
        for i, text in enumerate(row):
            scores = {
                "bleu": sacrebleu.sentence_bleu(text, [TEXTS[b]]).score,
                "chrf": sacrebleu.sentence_chrf(text, [TEXTS[b]]).score,
            }
            wanted = [scores[part] for part in name.split("+")]
            expected = 1 - sum(wanted) / len(wanted) / 100
            assert found[b, i].item() == pytest.approx(expected, abs=1e-6)
    assert found[0, 1].item() == pytest.approx(0, abs=1e-6)


def test_a_hypothesis_of_padding_has_a_finite_risk() -> None:
    tokens = torch.full((1, 2, 4), PAD)
    assert TextRisk(PIECES, "bleu+chrf")(tokens, rows_of(TEXTS[:1])).isfinite().all()


def test_what_the_settings_ask_for() -> None:
    recipe = make_recipe("risk", Settings(risk_candidates=6, risk_k=3, length_penalty=0.5), 10)
    assert recipe.rho == 0.05
    assert recipe.search == {
        "beam_size": 6,
        "k": 3,
        "width": Settings().risk_width,
        "include_gold": False,
        "length_penalty": 0.5,
    }
    softmax = make_recipe("risk", Settings(risk_selection="softmax", rho=0.2), 10)
    assert (softmax.search["k"], softmax.rho) == (None, 0.2)
