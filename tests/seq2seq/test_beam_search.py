"""Beam search against exhaustive search and a literal beam."""

import math
from itertools import pairwise, zip_longest

import pytest
import reference
import torch
from tiny_decoder import Packed, Tiny, packed_rows

from softtopk.seq2seq import beam_search, sequence_scores
from softtopk.seq2seq._candidates import BLOCK, largest


def sequences(found, sentence):
    """(tokens without padding, score) of each hypothesis of a sentence."""
    tokens, scores = found.tokens[sentence].tolist(), found.scores[sentence].tolist()
    for row in tokens:
        assert row == [*reference.until_end(row), *[0] * (len(row) - len(reference.until_end(row)))]
    return [(reference.until_end(row), s) for row, s in zip(tokens, scores, strict=True)]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_full_beam_is_an_exhaustive_search(seed, length_penalty):
    decoder = Tiny(seed, batch=2, vocabulary=5)
    # 4 tokens that go on: 1 + 4 sequences that end early, 4 * 4 * 5 that have three tokens.
    found = beam_search(
        *(decoder.step, decoder.state(), decoder.embedding),
        max_len=3,
        beam_size=85,
        n_best=85,
        length_penalty=length_penalty,
    )
    for b in range(2):
        expected = reference.all_sequences(
            *(decoder.step, decoder.state([b]), decoder.embedding, 3),
            length_penalty=length_penalty,
        )
        ours = sequences(found, b)
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in expected]
        torch.testing.assert_close(
            torch.tensor([s for _, s in ours]), torch.tensor([s for _, s in expected])
        )
        for (tokens, score), total in zip(ours, found.log_likelihoods[b].tolist(), strict=True):
            assert score == pytest.approx(total / len(tokens) ** length_penalty)
            forced = reference.forced_nats(
                decoder.step, decoder.state([b]), decoder.embedding, tokens
            )
            assert total == pytest.approx(-forced.item(), abs=1e-10)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("beam_size", [2, 3, 5])
def test_beam_against_the_literal_one(seed, beam_size):
    decoder = Tiny(seed, sharpness=1.0)
    found = beam_search(
        *(decoder.step, decoder.state(), decoder.embedding),
        max_len=5,
        beam_size=beam_size,
        n_best=beam_size,
    )
    for b in range(3):
        expected = reference.hard_beam(
            decoder.step, decoder.state([b]), decoder.embedding, 5, beam_size=beam_size
        )
        ours = sequences(found, b)
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in expected]
        assert len(set(ours)) == beam_size
        scores = torch.tensor([s for _, s in ours])
        torch.testing.assert_close(scores, torch.tensor([s for _, s in expected]))
        assert (scores.diff() <= 0).all()


@pytest.mark.parametrize("seed", range(6))
def test_beam_of_one_is_greedy(seed):
    decoder = Tiny(seed, batch=1)
    found = beam_search(decoder.step, decoder.state(), decoder.embedding, max_len=6, beam_size=1)
    last, state, tokens = 2, decoder.state(), []
    while len(tokens) < 6 and last != 3:
        log_probs, state = decoder.step(decoder.embedding[[last]], state)
        last = int(log_probs.argmax())
        tokens.append(last)
    assert [t for t, _ in sequences(found, 0)] == [tuple(tokens)]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_a_batch_is_its_sentences(length_penalty):
    """Also if one of them has all its hypotheses finished long before the others."""
    decoder = Tiny(3, batch=6)
    options = {"max_len": 7, "beam_size": 3, "n_best": 3, "length_penalty": length_penalty}
    found = beam_search(decoder.step, decoder.state(), decoder.embedding, **options)
    lengths = set()
    for b in range(6):
        alone = beam_search(decoder.step, decoder.state([b]), decoder.embedding, **options)
        lengths.add(alone.tokens.shape[-1])
        for (tokens, score), (same, as_before) in zip(
            sequences(found, b), sequences(alone, 0), strict=True
        ):
            assert tokens == same
            assert score == pytest.approx(as_before)
    assert len(lengths) > 1, "all end together: the test shows nothing"


@pytest.mark.parametrize("n_best", [1, 4])
def test_a_packed_step_finds_what_a_plain_one_does(n_best):
    step = Packed(Tiny(3, batch=20))
    arguments = (step.decoder.state(), step.decoder.embedding)
    options = {"max_len": 12, "beam_size": 4, "n_best": n_best, "length_penalty": 1.0}
    found = beam_search(step, *arguments, **options)
    asked = [len(sentences) for sentences in step.asked]
    step.asked.clear()
    expected = beam_search(lambda *x: step(*x), *arguments, **options)
    assert torch.equal(found.tokens, expected.tokens)
    torch.testing.assert_close(found.scores, expected.scores)
    assert sum(asked) < sum(map(len, step.asked))
    # A sentence whose result is certain is not searched on, as if it were alone.
    alone = []
    for b in range(20):
        step.asked.clear()
        own = step.for_sentences(torch.tensor([b]))
        beam_search(own, step.decoder.state([b]), step.decoder.embedding, **options)
        alone.append([len(sentences) for sentences in step.asked])
    assert asked == [packed_rows(rows) for rows in zip_longest(*alone, fillvalue=0)]


def test_a_packed_step_is_asked_for_what_goes_on():
    """The hypotheses of a literal beam that have not ended, and what fills the rows up."""
    step = Packed(Tiny(3, batch=20))
    state, embedding = step.decoder.state, step.decoder.embedding
    beam_search(step, state(), embedding, max_len=12, beam_size=4, n_best=4)
    asked = [len(sentences) for sentences in step.asked]
    for t, rows in enumerate(asked):
        beams = [
            reference.hard_beam(
                *(step.for_sentences(torch.tensor([b])), state([b]), embedding, t), beam_size=4
            )
            for b in range(20)
        ]
        assert rows == packed_rows([sum(3 not in tokens for tokens, _ in beam) for beam in beams])
    assert any(rows % 20 for rows in asked), "never packed: the test shows nothing"


def test_a_plain_step_has_the_states_of_its_sentences():
    """Also in the rows that do not count: the state may be numbers into something of a sentence."""
    decoder = Tiny(3, batch=8)
    calls = []

    def step(inputs, state):
        sentences, state = state
        calls.append(len(inputs))
        assert sentences.tolist() == [b for b in range(8) for _ in range(len(inputs) // 8)]
        log_probs, state = decoder.step(inputs, state)
        return log_probs, (sentences, state)

    state = (torch.arange(8), decoder.state())
    found = beam_search(step, state, decoder.embedding, max_len=12, beam_size=4, n_best=4)
    searched = len(calls)
    sequence_scores(step, state, decoder.embedding, found.tokens)
    for some in (calls[:searched], calls[searched:]):
        assert any(more > less for more, less in pairwise(some)), "no rows are filled up again"


def test_nan_stays_in_its_sentence():
    decoder = Tiny(3, batch=20)
    own, found = decoder.step, []

    def step(inputs, state):
        ill, state = state
        log_probs, state = own(inputs, state)
        return log_probs.masked_fill(ill.unsqueeze(1) > 1, math.nan), (ill + (ill > 0), state)

    decoder.step = step
    for first in (0, 1):
        run, ill = Packed(decoder), torch.zeros(20, dtype=torch.long)
        ill[0] = first
        state = (ill, decoder.state())
        options = {"max_len": 12, "beam_size": 4}
        found.append(beam_search(run, state, decoder.embedding, **options).scores[1:])
        assert any(len(sentences) % 20 for sentences in run.asked[3:]), "never packed"
    torch.testing.assert_close(*found)


def test_a_certain_result_ends_the_search_of_its_sentence():
    step = Packed(Tiny(3, batch=20))
    rows = {}
    for n_best in (1, 4):
        step.asked.clear()
        beam_search(
            *(step, step.decoder.state(), step.decoder.embedding),
            max_len=12,
            beam_size=4,
            n_best=n_best,
        )
        rows[n_best] = sum(map(len, step.asked))
    assert rows[1] < rows[4]


def test_n_best_is_the_head_of_the_beam():
    decoder = Tiny(4)
    arguments = (decoder.step, decoder.state(), decoder.embedding)
    whole = beam_search(*arguments, max_len=5, beam_size=4, n_best=4)
    for n in (1, 2, 3):
        head = beam_search(*arguments, max_len=5, beam_size=4, n_best=n)
        assert head.tokens.shape[:2] == (3, n)
        for b in range(3):
            assert sequences(head, b) == sequences(whole, b)[:n]


def constant(log_probs):
    return lambda inputs, state: (log_probs.expand(len(inputs), -1), state)


def test_a_decoder_that_ends_at_once():
    log_probs = torch.tensor([-9.0, -5.0, -9.0, -0.01, -6.0]).log_softmax(-1)
    calls = []

    def step(inputs, state):
        calls.append(len(inputs))
        return constant(log_probs)(inputs, state)

    found = beam_search(step, torch.zeros(2, 1), torch.eye(5), max_len=50, beam_size=2, n_best=2)
    assert found.tokens.tolist() == [[[3, 0], [1, 3]]] * 2
    torch.testing.assert_close(
        found.log_likelihoods[0], torch.stack([log_probs[3], log_probs[1] + log_probs[3]])
    )
    assert len(calls) == 2, "the search goes on after its end"


def test_a_decoder_that_never_ends():
    log_probs = torch.tensor([-math.inf, -1.0, -math.inf, -math.inf, -1.5])
    found = beam_search(
        *(constant(log_probs), torch.zeros(1, 1), torch.eye(5)), max_len=4, beam_size=2, n_best=2
    )
    assert found.tokens[0, 0].tolist() == [1, 1, 1, 1]
    assert sorted(found.tokens[0, 1].tolist()) == [1, 1, 1, 4]
    torch.testing.assert_close(found.scores, torch.tensor([[-4.0, -4.5]]))


def test_length_penalty_prefers_the_longer_one():
    """(3) at -1 against (1, 1, 3) at -1.6."""
    table = torch.full((5, 5), -20.0)
    table[2, 3], table[2, 1] = -1.0, -0.7
    table[1, 1], table[1, 3] = -0.5, -0.4
    arguments = (lambda inputs, state: (inputs @ table, state), torch.zeros(1, 1), torch.eye(5))
    short = beam_search(*arguments, max_len=3, beam_size=3)
    assert reference.until_end(short.tokens[0, 0].tolist()) == (3,)
    assert short.scores.item() == pytest.approx(-1.0)
    long = beam_search(*arguments, max_len=3, beam_size=3, length_penalty=2.0)
    assert long.tokens[0, 0].tolist() == [1, 1, 3]
    assert long.scores.item() == pytest.approx(-1.6 / 9)
    assert long.log_likelihoods.item() == pytest.approx(-1.6)


def test_inference_keeps_no_graph():
    decoder = Tiny(0)
    found = beam_search(decoder.step, decoder.state(), decoder.embedding, max_len=3, beam_size=2)
    assert not found.scores.requires_grad
    assert not found.log_likelihoods.requires_grad


def test_other_numbers_for_the_special_tokens():
    """Renaming the tokens renames the result."""
    decoder = Tiny(5)
    swap = torch.tensor([5, 4, 0, 1, 2, 3])  # new number -> old number
    names = swap.argsort()

    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        return log_probs[:, swap], state

    options = {"max_len": 5, "beam_size": 3, "n_best": 3}
    expected = beam_search(decoder.step, decoder.state(), decoder.embedding, **options)
    found = beam_search(
        *(step, decoder.state(), decoder.embedding[swap]),
        bos=int(names[2]),
        eos=int(names[3]),
        pad=int(names[0]),
        **options,
    )
    assert torch.equal(found.tokens, names[expected.tokens])
    torch.testing.assert_close(found.scores, expected.scores)


@pytest.mark.parametrize("left", [0, 1, 20])
def test_the_largest_of_a_long_row_are_found_in_blocks(left):
    """Also among the elements that are left over when blocks are made."""
    n, m = 40 * BLOCK + left, 9
    x = torch.stack([torch.arange(n), -torch.arange(n), torch.randperm(n)]).double()
    values, places = largest(x, m)
    expected = x.topk(m, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)
