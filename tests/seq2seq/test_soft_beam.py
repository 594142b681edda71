"""Soft beam search against a literal Algorithm 2, and its limits."""

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoder import Tiny
from torch.autograd import gradcheck

from softtopk import Sinkhorn, sorted_soft_topk
from softtopk.seq2seq import beam_search, soft_beam_loss, soft_beam_search
from softtopk.seq2seq._soft_beam import _Bounded

# Three sentences of different lengths; 3 is the end, 0 the padding.
GOLD = torch.tensor([[4, 1, 5, 3], [5, 3, 0, 0], [1, 4, 3, 0]])
SENTENCES = [[4, 1, 5, 3], [5, 3], [1, 4, 3]]
CASES = [(2, 0.05, 0), (2, 0.3, 1), (3, 0.05, 2), (3, 0.3, 0), (3, 2.0, 1)]


def assert_same_gradients(found, expected, inputs, rtol=1e-7, atol=1e-9):
    grads = torch.autograd.grad(found, inputs, allow_unused=True, retain_graph=True)
    wanted = torch.autograd.grad(expected, inputs, allow_unused=True, retain_graph=True)
    assert any(grad is not None and grad.abs().max() > 0 for grad in wanted)
    for grad, want in zip(grads, wanted, strict=True):
        zero = torch.zeros(())
        a, b = (zero if g is None else g for g in (grad, want))
        torch.testing.assert_close(*torch.broadcast_tensors(a, b), rtol=rtol, atol=atol)


def literal(decoder, follow="best", **options):
    """Nats per gold token, one sentence after another."""
    nats, counted = zip(
        *(
            reference.soft_beam_nats(
                decoder.step, decoder.state([b]), decoder.embedding, gold, follow=follow, **options
            )
            for b, gold in enumerate(SENTENCES)
        ),
        strict=True,
    )
    return sum(nats) / sum(counted)


@pytest.mark.parametrize("follow", ["best", "gold"])
@pytest.mark.parametrize(("beam_size", "eps", "seed"), CASES)
def test_loss_against_the_literal_one(follow, beam_size, eps, seed):
    decoder = Tiny(seed)
    options = {"beam_size": beam_size, "eps": eps, "follow": follow}
    found = soft_beam_loss(decoder.step, decoder.state(), decoder.embedding, GOLD, **options)
    expected = literal(decoder, **options)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert_same_gradients(found, expected, decoder.inputs)


@pytest.mark.parametrize("follow", ["best", "gold"])
@pytest.mark.parametrize("eps", [0.003, 0.1])
def test_loss_with_a_normalised_cost(follow, eps):
    decoder = Tiny(3)
    found = soft_beam_loss(
        *(decoder.step, decoder.state(), decoder.embedding, GOLD),
        beam_size=3,
        eps=eps,
        normalize="row",
        follow=follow,
    )
    expected = literal(decoder, follow, beam_size=3, eps=eps, normalized=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert_same_gradients(found, expected, decoder.inputs)


@pytest.mark.parametrize(("beam_size", "eps", "seed"), CASES)
def test_search_against_the_literal_one(beam_size, eps, seed):
    decoder = Tiny(seed, batch=2)
    options = {"beam_size": beam_size, "eps": eps}
    found = soft_beam_search(decoder.step, decoder.state(), decoder.embedding, max_len=5, **options)
    assert found.gold_log_probs is None
    assert found.tokens.shape == (2, beam_size, 5)
    expected = []
    for b in range(2):
        beam = reference.soft_beam(
            decoder.step, decoder.state([b]), decoder.embedding, 5, **options
        )
        expected.append(torch.stack([h.log_likelihood for h in beam]))
        for row, hypothesis in zip(found.tokens[b].tolist(), beam, strict=True):
            tokens = reference.until_end(hypothesis.tokens)
            assert row == [*tokens, *[0] * (5 - len(tokens))]
    torch.testing.assert_close(found.log_likelihoods, torch.stack(expected), rtol=1e-9, atol=1e-9)
    weight = torch.arange(1.0, 1 + 2 * beam_size).view(2, -1)
    assert_same_gradients(
        (weight * found.log_likelihoods).sum(),
        (weight * torch.stack(expected)).sum(),
        decoder.inputs,
    )


def test_gold_along_the_best_sequence():
    """One number for each gold token, which add up to the loss."""
    decoder = Tiny(4)
    options = {"beam_size": 3, "eps": 0.3}
    found = soft_beam_search(
        *(decoder.step, decoder.state(), decoder.embedding), max_len=6, gold=GOLD, **options
    )
    expected = torch.zeros(3, 4, dtype=torch.float64)
    for b, gold in enumerate(SENTENCES):
        beam = reference.soft_beam(
            decoder.step, decoder.state([b]), decoder.embedding, len(gold), **options
        )
        for t, row in enumerate(reference.best_of(beam).log_probs):
            expected[b, t] = row[gold[t]]
    torch.testing.assert_close(found.gold_log_probs, expected, rtol=1e-9, atol=1e-9)
    loss = soft_beam_loss(decoder.step, decoder.state(), decoder.embedding, GOLD, **options)
    torch.testing.assert_close(-found.gold_log_probs.sum() / 9, loss)
    # Without max_len, as many steps as gold has.
    shorter = soft_beam_search(
        decoder.step, decoder.state(), decoder.embedding, gold=GOLD, **options
    )
    assert shorter.tokens.shape == (3, 3, 4)
    torch.testing.assert_close(shorter.gold_log_probs, found.gold_log_probs)


@pytest.mark.parametrize("follow", ["best", "gold"])
@pytest.mark.parametrize("normalize", [None, "row"])
def test_a_batch_is_its_sentences(follow, normalize):
    """Whatever their lengths, in float32 as well, and padding past the longest changes nothing."""
    decoder = Tiny(5)
    options = {"beam_size": 3, "eps": 0.2, "follow": follow, "normalize": normalize}
    padded = torch.cat([GOLD, torch.zeros(3, 2, dtype=torch.long)], 1)
    found = soft_beam_loss(decoder.step, decoder.state(), decoder.embedding, padded, **options)
    nats, counted = 0.0, 0
    for b, gold in enumerate(SENTENCES):
        alone = soft_beam_loss(
            *(decoder.step, decoder.state([b]), decoder.embedding, torch.tensor([gold])), **options
        )
        _, positions = reference.soft_beam_nats(
            *(decoder.step, decoder.state([b]), decoder.embedding, gold),
            beam_size=3,
            eps=0.2,
            follow=follow,
            normalized=normalize == "row",
        )
        nats, counted = nats + alone * positions, counted + positions
    torch.testing.assert_close(found, nats / counted, rtol=1e-11, atol=1e-11)
    assert_same_gradients(found, nats / counted, decoder.inputs, rtol=1e-9, atol=1e-11)


@given(seed=st.integers(0, 10**6), beam_size=st.integers(1, 4))
def test_cold_soft_beam_search_is_beam_search(seed, beam_size):
    decoder = Tiny(seed, batch=2)
    arguments = (decoder.step, decoder.state(), decoder.embedding)
    soft = soft_beam_search(*arguments, beam_size=beam_size, eps=1e-9, max_len=5)
    hard = beam_search(*arguments, beam_size=beam_size, max_len=5, n_best=beam_size)
    short = hard.tokens.shape[-1]  # it stops when all are finished
    assert torch.equal(soft.tokens[..., :short], hard.tokens)
    assert not soft.tokens[..., short:].any()
    torch.testing.assert_close(soft.log_likelihoods, hard.log_likelihoods)


@pytest.mark.parametrize("follow", ["best", "gold"])
def test_gradcheck(follow):
    decoder = Tiny(6, vocabulary=5)
    gold = GOLD.clamp(max=4)

    def loss(*_):
        return soft_beam_loss(
            *(decoder.step, decoder.state(), decoder.embedding, gold),
            beam_size=2,
            eps=0.5,
            follow=follow,
        )

    assert gradcheck(loss, decoder.inputs)


def test_the_cost_normalised_over_the_batch():
    """Of equal sentences it is that of each; of others, at the first step, one eps for all."""
    decoder = Tiny(7)
    options = {"beam_size": 3, "eps": 0.01}
    same = decoder.state([1, 1])
    losses = [
        soft_beam_loss(
            *(decoder.step, same, decoder.embedding, GOLD[[2, 2]]), **options, normalize=normalize
        )
        for normalize in ("row", "batch")
    ]
    torch.testing.assert_close(*losses)

    log_probs, _ = decoder.step(decoder.embedding[2].expand(3, -1), decoder.state())
    cost = (-log_probs.unsqueeze(-1) - torch.arange(4)).square().max().item()
    seen = []

    def step(inputs, state):
        seen.append(inputs)
        return decoder.step(inputs, state)

    arguments = (step, decoder.state(), decoder.embedding)
    soft_beam_search(*arguments, max_len=2, **options, normalize="batch")
    weights = sorted_soft_topk(log_probs, 3, eps=0.01 * cost)
    torch.testing.assert_close(seen[1].view(3, 3, -1), weights.mT @ decoder.embedding)


# ---------------------------------------------------------------------- what is left out, and ends


def wide(seed, vocabulary=2000, dtype=torch.float64, spread=2.0):
    """A decoder of many tokens without recurrence, whose log p depend on its input smoothly."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(vocabulary, 4, generator=generator, dtype=torch.float64)
    output = spread * torch.randn(4, vocabulary, generator=generator, dtype=torch.float64)
    state = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    leaves = [x.to(dtype).requires_grad_() for x in (embedding, output, state)]

    def step(inputs, state):
        state = torch.tanh(inputs + state)
        return (state @ leaves[1]).log_softmax(-1), state

    return step, leaves


def unreduced_loss(step, leaves, gold, beam_size, eps, normalize=None):
    """Two steps of Algorithm 2, unrolled by hand, with the operator on all k * V extensions."""
    embedding, _, state = leaves
    first, state = step(embedding[2].expand(2, -1), state)
    options = {"eps": eps, "normalize": normalize, "largest": False}
    weights = sorted_soft_topk(-first, beam_size, **options)  # (2, V, k)
    # At the first step there is one hypothesis, so that all states stay the same.
    inputs = (weights.mT @ embedding).flatten(0, 1)
    second, _ = step(inputs, state.repeat_interleave(beam_size, 0))
    second = second.view(2, beam_size, -1)
    tokens = weights.argmax(1)
    x = first.gather(1, tokens).unsqueeze(-1) + second
    assert not (tokens == 3).any(), "none may be finished"
    weights = sorted_soft_topk(-x.flatten(1), beam_size, **options)
    place = weights.argmax(1)
    best = x.flatten(1).gather(1, place).argmax(1, keepdim=True)
    parent = place.gather(1, best) // second.shape[-1]
    loss = -first.gather(1, gold[:, :1])
    return (loss - second[torch.arange(2), parent[:, 0], gold[:, 1], None]).sum() / 4


@pytest.mark.parametrize("eps", [1e-3, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-5)])
def test_candidates_that_are_left_out_do_not_matter(eps, dtype, tolerance):
    """From a cold operator, where a handful is left, to a hot one, where none can go."""
    step, leaves = wide(0, dtype=dtype)
    gold = torch.tensor([[17, 3], [801, 3]])
    found = soft_beam_loss(step, leaves[2], leaves[0], gold, beam_size=5, eps=eps)
    expected = unreduced_loss(step, leaves, gold, 5, eps)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=0)
    grads = torch.autograd.grad(found, leaves)
    for grad, want in zip(grads, torch.autograd.grad(expected, leaves), strict=True):
        bound = 10 * tolerance * max(1.0, float(want.abs().max()))
        torch.testing.assert_close(grad, want, rtol=0, atol=bound)


@pytest.mark.parametrize("eps", [1e-4, 0.1])
def test_candidates_with_a_normalised_cost(eps):
    step, leaves = wide(1)
    gold = torch.tensor([[17, 3], [801, 3]])
    options = {"beam_size": 5, "eps": eps, "normalize": "row"}
    found = soft_beam_loss(step, leaves[2], leaves[0], gold, **options)
    expected = unreduced_loss(step, leaves, gold, **options)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)
    grads = torch.autograd.grad(found, leaves)
    for grad, want in zip(grads, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(grad, want, rtol=0, atol=1e-10)


def test_sinkhorn_as_solver():
    decoder = Tiny(8)
    arguments = (decoder.step, decoder.state(), decoder.embedding, GOLD)
    tight = Sinkhorn(max_iter=20_000, tol=1e-13)
    found = soft_beam_loss(*arguments, beam_size=2, eps=1.0, solver=tight)
    expected = soft_beam_loss(*arguments, beam_size=2, eps=1.0)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
    few = soft_beam_loss(*arguments, beam_size=2, eps=1.0, solver=Sinkhorn(2, tol=1.0))
    assert abs(few - expected) > 1e-6, "the solver is not the one asked for"


def constant(log_probs):
    """A decoder that always predicts the same."""
    return lambda inputs, state: (log_probs.expand(len(inputs), -1), state)


@pytest.mark.parametrize("follow", ["best", "gold"])
def test_a_decoder_that_ends_at_once(follow):
    """All hypotheses are finished after three steps, and gold goes on."""
    log_probs = torch.tensor([-9.0, -5.0, -9.0, -0.1, -6.0], dtype=torch.float64).log_softmax(-1)
    embedding = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 3, dtype=torch.float64)
    arguments = (constant(log_probs), state, embedding)
    found = soft_beam_search(*arguments, beam_size=2, eps=0.1, max_len=6)
    assert found.tokens[:, 0].tolist() == [[3, 0, 0, 0, 0, 0]] * 2
    assert found.tokens[:, 1].tolist() == [[1, 3, 0, 0, 0, 0]] * 2
    expected = torch.stack([log_probs[3], log_probs[1] + log_probs[3]])
    torch.testing.assert_close(found.log_likelihoods, expected.expand(2, -1))
    gold = torch.tensor([[4, 4, 4, 4, 3], [3, 0, 0, 0, 0]])
    loss = soft_beam_loss(*arguments, gold, beam_size=2, eps=0.1, follow=follow)
    # Finished or not, gold is scored by what the decoder says.
    torch.testing.assert_close(loss, -(4 * log_probs[4] + 2 * log_probs[3]) / 6)


def test_a_decoder_that_never_ends():
    log_probs = torch.tensor([-math.inf, -1.0, -math.inf, -math.inf, -1.5, -2.0]).double()
    arguments = (constant(log_probs), torch.zeros(1, 1).double(), torch.randn(6, 2).double())
    found = soft_beam_search(*arguments, beam_size=2, eps=0.01, max_len=4)
    assert found.tokens[0, 0].tolist() == [1, 1, 1, 1]
    assert (found.tokens != 3).all()
    assert found.log_likelihoods.isfinite().all()


@pytest.mark.parametrize("follow", ["best", "gold"])
def test_tokens_that_cannot_occur(follow):
    """Padding and start of probability zero: no NaN, also past the end of a short sentence."""
    decoder = Tiny(9)
    never = torch.tensor([1, 0, 1, 0, 0, 0]).bool()

    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        return log_probs.masked_fill(never, -math.inf).log_softmax(-1), state

    options = {"beam_size": 3, "eps": 0.3, "follow": follow}
    found = soft_beam_loss(step, decoder.state(), decoder.embedding, GOLD, **options)
    nats, counted = 0.0, 0
    for b, gold in enumerate(SENTENCES):
        alone = soft_beam_loss(
            *(step, decoder.state([b]), decoder.embedding, torch.tensor([gold])), **options
        )
        # The literal version has no -inf: it says how many positions count.
        hidden = _without_never(decoder, never)
        positions = reference.soft_beam_nats(
            *(hidden, decoder.state([b]), decoder.embedding, gold), **options
        )[1]
        nats, counted = nats + alone * positions, counted + positions
    torch.testing.assert_close(found, nats / counted, rtol=1e-11, atol=1e-11)
    for grad in torch.autograd.grad(found, decoder.inputs):
        assert grad.isfinite().all()


def _without_never(decoder, never):
    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        return log_probs.masked_fill(never, -1e5).log_softmax(-1), state

    return step


def test_layout_of_the_decoders_tensors_does_not_matter():
    """A step may return tensors that are not contiguous."""
    decoder = Tiny(10)

    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        pair = state["pair"]
        turned = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in pair]
        state = {**state, "pair": type(pair)(*turned)}
        return log_probs.T.contiguous().T, state

    options = {"beam_size": 3, "eps": 0.3}
    arguments = (decoder.state(), decoder.embedding, GOLD)
    torch.testing.assert_close(
        soft_beam_loss(step, *arguments, **options),
        soft_beam_loss(decoder.step, *arguments, **options),
    )


def test_integers_are_the_predecessors():
    """And floating tensors are mixed with weights that sum to one: those of the hot operator."""
    decoder = Tiny(11, batch=1)
    seen = []

    def step(inputs, state):
        seen.append(state)
        log_probs, state = decoder.step(inputs, state)
        ones = torch.ones(len(inputs), 2, dtype=torch.float64)
        return log_probs, {**state, "ones": ones}

    state = {**decoder.state(), "ones": torch.ones(1, 2, dtype=torch.float64)}
    soft_beam_search(step, state, decoder.embedding, beam_size=3, eps=2.0, max_len=4)
    for later in seen[1:]:
        torch.testing.assert_close(later["ones"], torch.ones(3, 2, dtype=torch.float64))
        assert later["rest"][1][0].dtype == torch.long


def test_more_hypotheses_than_there_are_sequences():
    """Ranks that nothing can fill are empty: no sequence is there twice."""
    decoder = Tiny(0, batch=2, vocabulary=5)
    arguments = (decoder.step, decoder.state(), decoder.embedding)
    soft = soft_beam_search(*arguments, max_len=2, beam_size=25, eps=1e-3)
    hard = beam_search(*arguments, max_len=2, beam_size=25, n_best=25)
    # Four tokens that go on with five each, and the end: 21 sequences.
    assert soft.log_likelihoods.isfinite().sum(1).tolist() == [21, 21]
    assert torch.equal(soft.tokens[:, :21], hard.tokens[:, :21])
    torch.testing.assert_close(soft.log_likelihoods, hard.log_likelihoods)


def gradient_of(decoder, gold, **options):
    loss = soft_beam_loss(decoder.step, decoder.state(), decoder.embedding, gold, **options)
    grads = torch.autograd.grad(loss, decoder.inputs)
    return loss, torch.cat([grad.flatten() for grad in grads])


def test_the_gradient_through_the_selection_is_bounded():
    """The bound leaves the loss alone, and gradients below it."""
    decoder = Tiny(0, sharpness=0.3)
    gold = torch.randint(4, 6, (3, 30), generator=torch.Generator().manual_seed(0))
    gold[:, -1] = 3
    options = {"beam_size": 3, "eps": 0.1}
    loss, free = gradient_of(decoder, gold, **options)
    _, loose = gradient_of(decoder, gold, **options, selection_clip=1e30)
    torch.testing.assert_close(loose, free)
    sizes = []
    for clip in (1.0, 0.01, 0.0):
        same, bounded = gradient_of(decoder, gold, **options, selection_clip=clip)
        assert torch.equal(same, loss)
        sizes.append(bounded.norm().item())
    assert free.norm().item() > 3 * sizes[0]
    assert sizes[1] != sizes[2]
    # Without it, what is left is the gradient of mixtures with given weights.
    assert sizes[1] == pytest.approx(sizes[2], rel=0.01)


def test_the_bound_is_in_units_of_a_token():
    """The loss is a mean over tokens: of a sentence three times it has the gradient of one."""
    decoder = Tiny(0, sharpness=0.3)
    gold = torch.randint(4, 6, (1, 30), generator=torch.Generator().manual_seed(0))
    gold[:, -1] = 3
    found = []
    for times in (1, 3):
        loss = soft_beam_loss(
            *(decoder.step, decoder.state([0] * times), decoder.embedding),
            gold.expand(times, -1),
            beam_size=3,
            eps=0.1,
            selection_clip=1e-3,
        )
        found.append(torch.autograd.grad(loss, decoder.inputs))
    for one, three in zip(*found, strict=True):
        torch.testing.assert_close(three, one)


def test_the_bound_is_that_of_a_row():
    generator = torch.Generator().manual_seed(0)
    x, directions = torch.randn(2, 4, 5, dtype=torch.float64, generator=generator)
    sizes = torch.tensor([[0.0], [1e-3], [1.0], [1e200]], dtype=torch.float64)
    upstream = sizes * directions
    (grad,) = torch.autograd.grad(_Bounded.apply(x.requires_grad_(), 0.5), x, upstream)
    assert torch.equal(grad[:2], upstream[:2])
    for row, direction in zip(grad[2:], directions[2:], strict=True):
        torch.testing.assert_close(row, 0.5 * direction / direction.norm())
    # It is a bound of the norm: each of these entries is below it.
    (grad,) = torch.autograd.grad(_Bounded.apply(x, 0.5), x, torch.full_like(x, 0.3))
    torch.testing.assert_close(grad, torch.full_like(x, 0.5 / math.sqrt(5)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("tokens", [slice(None), 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": "row"},
        {"normalize": "batch"},
        {"solver": Sinkhorn(max_iter=1000, tol=1e-3)},
    ],
)
def test_what_is_not_finite_in_a_later_step_is_seen(options, tokens, value):
    """In the sentence in question, as `beam_search` shows it, and in no other."""
    decoder = Tiny(2)
    settings = {"max_len": 4, "beam_size": 2}

    def broken():
        steps = iter(range(4))

        def step(inputs, state):
            log_probs, state = decoder.step(inputs, state)
            if next(steps) == 1:
                log_probs = log_probs.clone()
                log_probs.view(3, -1, 6)[1, :, tokens] = value  # those of the second sentence
            return log_probs, state

        return step, decoder.state(), decoder.embedding

    whole = decoder.step, decoder.state(), decoder.embedding
    others = [0, 2]
    expected = soft_beam_search(*whole, gold=GOLD, eps=0.5, **settings, **options)
    found = soft_beam_search(*broken(), gold=GOLD, eps=0.5, **settings, **options)
    assert not beam_search(*broken(), **settings).scores[1, 0].isfinite()
    assert not found.log_likelihoods[1, 0] < math.inf
    if math.isnan(value):
        assert found.gold_log_probs[1, :2].isnan().all()
        assert soft_beam_loss(*broken(), GOLD, beam_size=2, follow="best").isnan()
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(ours[others], theirs[others])
    torch.testing.assert_close(found.gold_log_probs[others], expected.gold_log_probs[others])
