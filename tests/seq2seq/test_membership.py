"""The membership loss against a literal version of it."""

import math

import pytest
import reference
import torch
from tiny_decoder import Tiny
from torch.autograd import gradcheck

from softtopk.seq2seq import beam_membership_loss

GOLD = torch.tensor([[4, 1, 5, 3], [5, 3, 0, 0], [1, 4, 3, 0]])
SENTENCES = [[4, 1, 5, 3], [5, 3], [1, 4, 3]]


def literal(decoder, **options):
    nats, events = zip(
        *(
            reference.membership_nats(
                decoder.step, decoder.state([b]), decoder.embedding, gold, **options
            )
            for b, gold in enumerate(SENTENCES)
        ),
        strict=True,
    )
    return sum(nats) / 9, events


def ours(decoder, gold=GOLD, **options):
    return beam_membership_loss(
        decoder.step, decoder.state(), decoder.embedding, gold, **{"candidates": 100, **options}
    )


@pytest.mark.parametrize("beam_size", [1, 2, 4])
@pytest.mark.parametrize("eps", [0.05, 1.0, 5.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_against_the_literal_one(beam_size, eps, seed):
    decoder = Tiny(seed)
    found = ours(decoder, beam_size=beam_size, eps=eps)
    expected, _ = literal(decoder, beam_size=beam_size, eps=eps)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    grads = torch.autograd.grad(found, decoder.inputs)
    wanted = torch.autograd.grad(expected, decoder.inputs)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-8, atol=1e-10)


def test_the_cases_cover_what_can_happen():
    """Of the test above: restarts, and finished hypotheses among the candidates."""
    events = set()
    for seed in (0, 1):
        for beam_size in (2, 4):
            for sentence in literal(Tiny(seed), beam_size=beam_size, eps=1.0)[1]:
                events.update(sentence)
    assert events >= {"kept", "restarted", "kept with finished", "restarted with finished"}


def test_gradcheck():
    decoder = Tiny(2, vocabulary=5)
    gold = GOLD.clamp(max=4)
    assert gradcheck(lambda *_: ours(decoder, gold, beam_size=2, eps=0.7), decoder.inputs)


def test_a_batch_is_its_sentences():
    decoder = Tiny(3)
    padded = torch.cat([GOLD, torch.zeros(3, 2, dtype=torch.long)], 1)
    found = ours(decoder, padded, beam_size=3, eps=1.0, candidates=10)
    alone = [
        beam_membership_loss(
            *(decoder.step, decoder.state([b]), decoder.embedding, torch.tensor([gold])),
            beam_size=3,
            eps=1.0,
            candidates=10,
        )
        * len(gold)
        for b, gold in enumerate(SENTENCES)
    ]
    torch.testing.assert_close(found, sum(alone) / 9, rtol=1e-11, atol=1e-11)


def test_few_candidates_are_enough():
    """At a low temperature the far ones have no weight; gold is one of them, however bad it is."""
    decoder = Tiny(4, vocabulary=40)
    gold = torch.tensor([[39, 20, 3], [7, 3, 0], [11, 3, 0]])
    options = {"beam_size": 3, "eps": 0.3}
    exact = ours(decoder, gold, candidates=1000, **options)
    torch.testing.assert_close(
        ours(decoder, gold, candidates=20, **options), exact, rtol=1e-3, atol=0
    )
    few = ours(decoder, gold, candidates=4, **options)
    assert few.isfinite()
    assert few != exact


def test_a_beam_that_holds_gold_safely_costs_nothing():
    """Its likelihood does not matter then: this is not teacher forcing."""
    log_probs = torch.tensor([-9.0, -0.7, -9.0, -0.8, -9.0], dtype=torch.float64)

    def step(inputs, state):
        return log_probs.expand(len(inputs), -1).contiguous(), state

    arguments = (step, torch.zeros(1, 1).double(), torch.zeros(5, 2).double())
    loss = beam_membership_loss(*arguments, torch.tensor([[1, 3]]), beam_size=4, eps=0.1)
    assert 0 <= loss < 1e-6
    # A gold that falls off at once pays for the distance to the threshold.
    loss = beam_membership_loss(*arguments, torch.tensor([[4]]), beam_size=1, eps=0.1, eos=4)
    assert loss.item() == pytest.approx((9 - 0.75) * 2 / 0.1, rel=1e-3)


def test_tokens_that_cannot_occur():
    decoder = Tiny(5)
    never = torch.tensor([1, 0, 1, 0, 0, 0]).bool()

    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        return log_probs.masked_fill(never, -math.inf).log_softmax(-1), state

    arguments = (step, decoder.state(), decoder.embedding, GOLD)
    found = beam_membership_loss(*arguments, beam_size=3, candidates=100)
    nats = [
        beam_membership_loss(
            *(step, decoder.state([b]), decoder.embedding, torch.tensor([gold])),
            beam_size=3,
            candidates=100,
        )
        * len(gold)
        for b, gold in enumerate(SENTENCES)
    ]
    torch.testing.assert_close(found, sum(nats) / 9)
    for grad in torch.autograd.grad(found, decoder.inputs):
        assert grad.isfinite().all()
