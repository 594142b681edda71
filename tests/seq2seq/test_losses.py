"""Teacher forcing and the hybrid; and training with them."""

from functools import partial

import pytest
import reference
import torch
from tiny_decoder import Tiny
from torch.autograd import gradcheck

from softtopk.seq2seq import (
    Seq2Seq,
    Seq2SeqConfig,
    beam_membership_loss,
    beam_risk_loss,
    beam_search,
    hybrid_loss,
    soft_beam_loss,
    teacher_forcing_loss,
)

LOSSES = {
    "soft-beam": soft_beam_loss,
    "membership": beam_membership_loss,
    "risk": beam_risk_loss,
}
GOLD = torch.tensor([[4, 1, 5, 3], [5, 3, 0, 0], [1, 4, 3, 0]])
SENTENCES = [[4, 1, 5, 3], [5, 3], [1, 4, 3]]


def test_teacher_forcing_against_the_literal_one():
    decoder = Tiny(0)
    found = teacher_forcing_loss(decoder.step, decoder.state(), decoder.embedding, GOLD)
    expected = sum(
        reference.forced_nats(decoder.step, decoder.state([b]), decoder.embedding, gold)
        for b, gold in enumerate(SENTENCES)
    )
    torch.testing.assert_close(found, expected / 9)
    grads = torch.autograd.grad(found, decoder.inputs)
    wanted = torch.autograd.grad(expected / 9, decoder.inputs)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want)
    assert gradcheck(
        lambda *_: teacher_forcing_loss(decoder.step, decoder.state(), decoder.embedding, GOLD),
        decoder.inputs,
    )


@pytest.mark.parametrize("rho", [0, 0.3, 1])
@pytest.mark.parametrize("objective", LOSSES)
def test_hybrid_is_the_weighted_sum(rho, objective):
    decoder = Tiny(1)
    arguments = (decoder.step, decoder.state(), decoder.embedding, GOLD)
    options = {"beam_size": 3, "eps": 0.4}
    if objective == "risk":
        options["risk"] = lambda tokens, gold: tokens.double().mean(-1)
    search = LOSSES[objective]
    forced, searched = teacher_forcing_loss(*arguments), search(*arguments, **options)
    found = hybrid_loss(*arguments, rho=rho, objective=objective, **options)
    torch.testing.assert_close(found, rho * forced + (1 - rho) * searched)
    given = forced.detach() + 1
    found = hybrid_loss(*arguments, rho=rho, objective=objective, teacher_forcing=given, **options)
    torch.testing.assert_close(found, rho * given + (1 - rho) * searched)


@pytest.mark.parametrize(
    ("objective", "rho"), [("soft-beam", 0.8), ("membership", 0.3), ("risk", 0.05)]
)
def test_hybrid_has_a_weight_for_each_objective(objective, rho):
    decoder = Tiny(1)
    arguments = (decoder.step, decoder.state(), decoder.embedding, GOLD)
    options = {"objective": objective, "beam_size": 3}
    if objective == "risk":
        options["risk"] = lambda tokens, gold: tokens.double().mean(-1)
    found = hybrid_loss(*arguments, **options)
    torch.testing.assert_close(found, hybrid_loss(*arguments, rho=rho, **options))


def test_hybrid_passes_options_and_tokens_on():
    decoder = Tiny(2)
    arguments = (decoder.step, decoder.state(), decoder.embedding)
    gold = torch.tensor([[4, 1, 2, 5], [3, 5, 0, 0], [1, 5, 0, 0]])  # 5 is the end, 2 a token
    tokens = {"bos": 4, "eos": 5}
    options = {"beam_size": 2, "eps": 0.2, "follow": "gold", "normalize": "row"}
    found = hybrid_loss(*arguments, gold, objective="soft-beam", rho=0.5, **tokens, **options)
    forced = teacher_forcing_loss(*arguments, gold, bos=4)
    searched = soft_beam_loss(*arguments, gold, **tokens, **options)
    torch.testing.assert_close(found, 0.5 * (forced + searched))
    with pytest.raises(ValueError, match=r"teacher_forcing must be a loss, .* got \(3,\)"):
        hybrid_loss(*arguments, gold, objective="membership", teacher_forcing=torch.ones(3))
    with pytest.raises(TypeError, match=r"teacher_forcing must be a loss, .* got float"):
        hybrid_loss(*arguments, gold, objective="membership", teacher_forcing=1.0)
    with pytest.raises(TypeError, match="candidates"):
        hybrid_loss(*arguments, gold, objective="soft-beam", candidates=9)


# ----------------------------------------------------------------------------------------- training


def sentences(generator, count, reverse):
    """Sources of 2 or 3 of six letters; the target is the same, or the same backwards."""
    source = torch.zeros(count, 4, dtype=torch.long)
    gold = torch.zeros(count, 4, dtype=torch.long)
    for row in range(count):
        length = int(torch.randint(2, 4, (), generator=generator))
        letters = torch.randint(4, 10, (length,), generator=generator)
        source[row, :length], source[row, length] = letters, 3
        gold[row, :length], gold[row, length] = letters.flip(0) if reverse else letters, 3
    return source, gold


SOFT = {"objective": "soft-beam", "eps": 0.1}


@pytest.mark.parametrize(
    ("reverse", "options"),
    [
        pytest.param(False, {**SOFT, "rho": 0.8}, id="copy-paper"),
        pytest.param(True, {**SOFT, "rho": 0.8}, id="reversal-paper"),
        pytest.param(True, {**SOFT, "rho": 0, "follow": "gold"}, id="reversal-gold"),
        pytest.param(False, {"objective": "membership", "rho": 0.5}, id="copy-membership"),
        pytest.param(True, {"objective": "membership", "rho": 0.5}, id="reversal-membership"),
    ],
)
def test_training_learns_a_task(reverse, options):
    """The loss falls to a fraction, and beam search then finds most of the sequences."""
    generator = torch.Generator().manual_seed(0)
    config = Seq2SeqConfig(source_vocab=10, target_vocab=10, embedding=32, hidden=32, dropout=0.0)
    model = Seq2Seq(config)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-2)
    history = []
    for _ in range(50):
        source, gold = sentences(generator, 40, reverse)
        memory, state = model.encode(source)
        loss = hybrid_loss(
            *(model.decoder(memory), state, model.target_embedding.weight, gold),
            beam_size=3,
            **options,
        )
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        history.append(loss.item())
    assert sum(history[-5:]) < 0.5 * sum(history[:5])

    source, gold = sentences(generator, 100, reverse)
    model.eval()
    with torch.no_grad():
        memory, state = model.encode(source)
        found = beam_search(
            *(model.decoder(memory), state, model.target_embedding.weight), beam_size=3, max_len=4
        )
    right = sum(
        reference.until_end(tokens) == reference.until_end(wanted)
        for tokens, wanted in zip(found.tokens[:, 0].tolist(), gold.tolist(), strict=True)
    )
    assert right >= 80


@pytest.mark.parametrize("table", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("predictions", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["best", "gold", "membership", "teacher", "search"])
def test_dtypes_may_differ(name, predictions, table):
    """As in mixed precision; the sums are never in half precision."""
    decoder = Tiny(1)
    embedding = decoder.embedding.detach().to(table).requires_grad_()

    def step(inputs, state):
        log_probs, state = decoder.step(inputs.double(), state)
        return log_probs.to(predictions), state

    arguments = (step, decoder.state(), embedding)
    if name == "search":
        found = beam_search(*arguments, max_len=4, beam_size=3, n_best=3)
        assert found.scores.dtype == torch.promote_types(
            torch.promote_types(table, predictions), torch.float32
        )
        return
    loss = {
        "best": soft_beam_loss,
        "gold": partial(soft_beam_loss, follow="gold"),
        "membership": beam_membership_loss,
        "teacher": teacher_forcing_loss,
    }[name]
    value = loss(*arguments, GOLD)
    assert value.dtype in (torch.float32, torch.float64)
    value.backward()
    assert embedding.grad.dtype == table
    assert embedding.grad.isfinite().all()
    exact = loss(decoder.step, decoder.state(), decoder.embedding, GOLD)
    rough = torch.bfloat16 in (predictions, table)
    assert value.item() == pytest.approx(exact.item(), rel=0.1 if rough else 1e-4)
