"""Attention maps, and how many tokens hold most of the attention."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("sentencepiece")
pytest.importorskip("matplotlib")

from hypothesis import given
from hypothesis import strategies as st

from softtopk.experiments.translation import Pieces, Split, _maps, train_pieces
from softtopk.experiments.translation._batches import Pair
from softtopk.experiments.translation._maps import (
    Alignment,
    AttentionMap,
    attention_map,
    mean_tokens_holding,
    tokens_holding,
    write_attention,
)
from softtopk.plotting import draw_attention, new_figure
from softtopk.seq2seq import Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig

SPLIT = Split(
    ["one two three", "two", "three one two one", "one one"],
    ["un deux trois", "deux", "trois un deux un", "un un"],
)
SHOWN = AttentionMap(
    ["▁one", "▁two", "</s>"],
    ["▁un", "</s>"],
    torch.tensor([[[0.8, 0.1, 0.1], [0.0, 0.0, 1.0]], [[0.6, 0.3, 0.1], [0.0, 0.2, 0.8]]]),
)


@pytest.fixture(scope="module")
def pieces() -> tuple[Pieces, Pieces]:
    return Pieces(train_pieces(SPLIT.sources, 30)), Pieces(train_pieces(SPLIT.targets, 30))


def models(pieces: tuple[Pieces, Pieces], **options):
    sizes = {"source_vocab": pieces[0].size, "target_vocab": pieces[1].size, **options}
    torch.manual_seed(0)
    return [
        Seq2Seq(Seq2SeqConfig(hidden=8, embedding=8, **sizes)),
        Transformer(TransformerConfig(width=8, heads=2, feedforward=8, **sizes)),
    ]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12), st.floats(0.05, 0.999))
def test_tokens_holding(numbers, share):
    weights = torch.tensor(numbers, dtype=torch.float64)
    weights = weights / weights.sum()
    found = int(tokens_holding(weights, share))
    ordered = sorted(weights.tolist(), reverse=True)
    assert sum(ordered[:found]) >= share - 1e-12
    assert sum(ordered[: found - 1]) < share + 1e-12


def test_all_tokens_hold_all_of_the_weight():
    assert tokens_holding(torch.full((3, 10), 0.1), 1.0).tolist() == [10] * 3


def test_the_mean_is_over_tokens_and_heads_and_not_over_padding(pieces):
    for model in models(pieces):
        total, count = 0, 0
        for source, target in zip(SPLIT.sources, SPLIT.targets, strict=True):
            alone = Split([source], [target])
            tokens = len(pieces[1].encode([target])[0]) + 1
            total += tokens * mean_tokens_holding(model, *pieces, alone)
            count += tokens
        assert mean_tokens_holding(model, *pieces, SPLIT) == pytest.approx(total / count)


def test_hard_attention_holds_in_k_tokens(pieces):
    for model in models(pieces, attention_k=2, attention_eps=50.0):
        soft = mean_tokens_holding(model, *pieces, SPLIT)
        model.hard_eval = True
        assert mean_tokens_holding(model, *pieces, SPLIT) <= 2.0 < soft


def test_the_map_of_a_sentence(pieces):
    for model in models(pieces):
        pair = Pair(*pieces[0].encode(["one two"]), *pieces[1].encode(["un deux trois"]))
        shown = attention_map(model, *pieces, pair)
        assert "".join(shown.source) == "▁one▁two</s>"
        assert "".join(shown.target) == "▁un▁deux▁trois</s>"
        assert shown.weights.shape == (len(shown.target), len(shown.source))
        torch.testing.assert_close(shown.weights.sum(1), torch.ones(len(shown.target)))


def test_alignments():
    assert SHOWN.alignments() == [
        Alignment("▁un", "▁one", pytest.approx(0.7)),
        Alignment("</s>", "</s>", pytest.approx(0.9)),
    ]


def test_tokens_of_the_heads_of_a_map():
    assert SHOWN.tokens_holding() == [3.0, 1.5]  # 3 and 3 of the first row, 1 and 2 of the second


def test_batches_of_long_sentences_are_small(pieces, monkeypatch):
    whole = [mean_tokens_holding(model, *pieces, SPLIT) for model in models(pieces)]
    monkeypatch.setattr(_maps, "MOST_CELLS", 1)
    alone = [mean_tokens_holding(model, *pieces, SPLIT) for model in models(pieces)]
    assert alone == pytest.approx(whole)


def test_text_is_no_mathematics(tmp_path: Path):
    odd = AttentionMap(["$$", "$x^{$", "</s>"], SHOWN.target, SHOWN.by_head)
    assert write_attention(odd, tmp_path / "map.png").exists()


def test_the_picture_shows_the_weights_under_the_tokens(tmp_path: Path):
    axes = new_figure().axes[0]
    draw_attention(axes, SHOWN.weights, SHOWN.source, SHOWN.target)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(SHOWN.source)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(SHOWN.target)
    (image,) = axes.get_images()
    assert torch.equal(torch.from_numpy(image.get_array().data), SHOWN.weights)
    assert write_attention(SHOWN, tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
