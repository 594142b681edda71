"""The risk of what survives a soft selection, against a literal version of it."""

import math

import pytest
import reference
import torch
from tiny_decoder import Packed, Tiny, packed_rows
from torch.autograd import gradcheck

from softtopk import eps_for, soft_topk
from softtopk.seq2seq import beam_risk_loss, beam_search, expected_risk, sequence_scores

GOLD = torch.tensor([[4, 1, 5, 3], [5, 3, 0, 0], [1, 4, 3, 0]])
LENGTHS = [4, 2, 3]


def risk_of(tokens):
    """Some number from 0 to 1 for a sequence without its padding."""
    return (sum((i + 1) * token**2 for i, token in enumerate(tokens)) % 17) / 17


def risk(tokens, gold):
    """As `beam_risk_loss` takes it; what has no end is as long as the search went."""
    rows = [[risk_of(reference.until_end(row)) for row in rows] for rows in tokens.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def arguments(decoder, sentences=slice(None)):
    return decoder.step, decoder.state(sentences), decoder.embedding


def literal_risk(scores, risks, k, eps):
    """sum_i A_i risk_i / k of one list, by the oracle."""
    risks = torch.tensor(risks, dtype=torch.float64)
    return (reference.log_soft_topk_tensor(scores, k, eps).exp() * risks).sum() / k


def literal(decoder, found, k, eps, length_penalty):
    """The loss from the hypotheses of each sentence, scored one by one."""
    total = 0.0
    for b, hypotheses in enumerate(found):
        scores = torch.stack(
            [
                -reference.forced_nats(*arguments(decoder, [b]), tokens)
                / len(tokens) ** length_penalty
                for tokens in hypotheses
            ]
        )
        risks = [risk_of(tokens) for tokens in hypotheses]
        total = total + LENGTHS[b] * literal_risk(scores, risks, k, eps)
    return total / sum(LENGTHS)


def assert_same(found, expected, inputs):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    grads = torch.autograd.grad(found, inputs)
    wanted = torch.autograd.grad(expected, inputs)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("eps", [0.05, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_against_the_literal_one(k, eps, seed):
    decoder = Tiny(seed)
    found = beam_risk_loss(
        *arguments(decoder), GOLD, risk=risk, k=k, eps=eps, beam_size=5, length_penalty=0, max_len=4
    )
    lists = [
        [tokens for tokens, _ in reference.hard_beam(*arguments(decoder, [b]), 4, beam_size=5)]
        for b in range(3)
    ]
    assert_same(found, literal(decoder, lists, k, eps, 0), decoder.inputs)


@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
def test_loss_over_all_sequences(length_penalty):
    """A beam that drops nothing, ranked by likelihood per length."""
    decoder = Tiny(2, vocabulary=5)
    options = {"beam_size": 85, "length_penalty": length_penalty, "max_len": 3}
    gold = GOLD.clamp(max=4)
    found = beam_risk_loss(*arguments(decoder), gold, risk=risk, k=2, eps=0.3, **options)
    lists = [
        [tokens for tokens, _ in reference.all_sequences(*arguments(decoder, [b]), 3)]
        for b in range(3)
    ]
    assert_same(found, literal(decoder, lists, 2, 0.3, length_penalty), decoder.inputs)


def test_a_packed_step_computes_each_prefix_once():
    """And nothing else, but for what fills the rows up; values and gradients are the same."""
    step = Packed(Tiny(3, batch=20))
    decoder = step.decoder
    state, embedding = decoder.state(), decoder.embedding
    tokens = beam_search(step, state, embedding, max_len=12, beam_size=6, n_best=6).tokens
    step.asked.clear()
    packed = sequence_scores(step, state, embedding, tokens)
    asked = [len(sentences) for sentences in step.asked]
    plain = sequence_scores(lambda *x: step(*x), state, embedding, tokens)
    assert_same(packed.sum(), plain.sum(), decoder.inputs)
    torch.testing.assert_close(packed, plain)
    for t, rows in enumerate(asked):
        prefixes = [
            {tuple(row[:t]) for row in sentence if any(row[t:])} for sentence in tokens.tolist()
        ]
        assert rows == packed_rows([len(some) for some in prefixes])
    assert any(rows % 20 for rows in asked), "never packed: the test shows nothing"


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
def test_scores_are_those_of_the_search(length_penalty):
    """With their gradients, and every prefix computed once."""
    decoder, rows = Tiny(3), []

    def step(inputs, state):
        rows.append(len(inputs))
        log_probs, state = decoder.step(inputs, state)
        return log_probs.index_fill(1, torch.tensor([0]), -math.inf).log_softmax(-1), state

    state, embedding = decoder.state(), decoder.embedding
    options = {"length_penalty": length_penalty}
    found = beam_search(step, state, embedding, max_len=6, beam_size=6, n_best=6, **options)
    lengths = (found.tokens != 0).sum(-1)
    assert lengths.min() < lengths.max()
    rows.clear()
    scores = sequence_scores(step, state, embedding, found.tokens, **options)
    torch.testing.assert_close(scores, found.scores, rtol=1e-12, atol=1e-12)
    sequences = [
        [tuple(token for token in row if token) for row in sentence]
        for sentence in found.tokens.tolist()
    ]
    for t, n in enumerate(rows):  # as many columns as the sentence with most prefixes needs
        prefixes = [{row[:t] for row in lists if len(row) > t} for lists in sequences]
        assert n == 3 * max(map(len, prefixes))
    weights = torch.linspace(-1, 2, 18, dtype=torch.float64).view(3, 6)
    expected = torch.stack(
        [
            torch.stack(
                [
                    -reference.forced_nats(step, decoder.state([b]), embedding, row)
                    / len(row) ** length_penalty
                    for row in lists
                ]
            )
            for b, lists in enumerate(sequences)
        ]
    )
    assert_same((scores * weights).sum(), (expected * weights).sum(), decoder.inputs)


def test_scores_of_padding_alone_and_of_padding_within():
    decoder = Tiny(4)
    tokens = torch.tensor([[[4, 0, 5, 3], [0, 0, 0, 0], [4, 1, 0, 0]]] * 3)
    scores = sequence_scores(*arguments(decoder), tokens)
    for b in range(3):
        for row, expected in enumerate([[4, 0, 5, 3], [], [4, 1]]):
            if expected:
                nats = reference.forced_nats(*arguments(decoder, [b]), expected)
                assert scores[b, row].item() == pytest.approx(-nats.item(), abs=1e-12)
            else:
                assert scores[b, row] == 0


@pytest.mark.parametrize("k", [2, None])
def test_gradcheck(k):
    decoder = Tiny(5)
    candidates = torch.tensor(
        [
            [[4, 1, 3, 0], [4, 1, 5, 3], [5, 3, 0, 0], [1, 1, 1, 1]],
            [[5, 3, 0, 0], [5, 5, 3, 0], [4, 3, 0, 0], [0, 0, 0, 0]],
            [[1, 4, 3, 0], [1, 4, 4, 3], [1, 5, 3, 0], [3, 0, 0, 0]],
        ]
    )
    options = {"risk": risk(candidates, GOLD), "candidates": candidates, "k": k, "eps": 0.7}
    assert gradcheck(
        lambda *_: beam_risk_loss(*arguments(decoder), GOLD, **options), decoder.inputs
    )


@pytest.mark.parametrize("include_gold", [False, True])
def test_a_batch_is_its_sentences(include_gold):
    decoder = Tiny(6)
    options = {"risk": risk, "beam_size": 4, "max_len": 5, "include_gold": include_gold}
    padded = torch.cat([GOLD, torch.zeros(3, 4, dtype=torch.long)], 1)
    by_default = {"risk": risk, "include_gold": include_gold}
    torch.testing.assert_close(
        beam_risk_loss(*arguments(decoder), padded, **by_default),
        beam_risk_loss(*arguments(decoder), GOLD, **by_default),
    )
    found = beam_risk_loss(*arguments(decoder), GOLD, **options)
    alone = [
        n * beam_risk_loss(*arguments(decoder, [b]), GOLD[b : b + 1, :n], **options)
        for b, n in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(found, sum(alone) / sum(LENGTHS), rtol=1e-11, atol=1e-11)


def test_gold_counts_once():
    """As one of the hypotheses, whether it is among the candidates or not."""
    decoder, lists = Tiny(7), []

    def watched(tokens, gold):
        lists.append(tokens.tolist())
        return risk(tokens, gold)

    candidates = torch.tensor([[[5, 3, 0], [4, 3, 0], [4, 4, 4]]] * 3)
    options = {"candidates": candidates, "include_gold": True, "k": 2, "eps": 0.5}
    options["length_penalty"] = 1.0
    found = beam_risk_loss(*arguments(decoder), GOLD, risk=watched, **options)
    assert lists[0][0] == [[4, 1, 5, 3], [5, 3, 0, 0], [4, 3, 0, 0], [4, 4, 4, 0]]
    assert lists[0][1] == [[0, 0, 0, 0], [5, 3, 0, 0], [4, 3, 0, 0], [4, 4, 4, 0]]
    hypotheses = [
        [[4, 1, 5, 3], [5, 3], [4, 3], [4, 4, 4]],
        [[5, 3], [4, 3], [4, 4, 4]],
        [[1, 4, 3], [5, 3], [4, 3], [4, 4, 4]],
    ]
    assert_same(found, literal(decoder, hypotheses, 2, 0.5, 1.0), decoder.inputs)


def test_fewer_sequences_than_the_beam():
    """Of those that can be: the end at once, after one token 4, or two of them without an end."""
    decoder = Tiny(8)
    never = torch.tensor([1, 1, 1, 0, 0, 1]).bool()

    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        return log_probs.masked_fill(never, -math.inf).log_softmax(-1), state

    seen = []

    def watched(tokens, gold):
        seen.append(tokens)
        return risk(tokens, gold)

    found = beam_risk_loss(
        step, *arguments(decoder)[1:], GOLD, risk=watched, k=2, eps=0.4, beam_size=6, max_len=2
    )
    assert ((seen[0] != 0).any(-1).sum(1) == 3).all()
    total = 0.0
    for b in range(3):
        lists = [(3,), (4, 3), (4, 4)]
        nats = [
            reference.forced_nats(step, decoder.state([b]), decoder.embedding, x) for x in lists
        ]
        risks = [risk_of(tokens) for tokens in lists]
        total = total + LENGTHS[b] * literal_risk(-torch.stack(nats), risks, 2, 0.4)
    torch.testing.assert_close(found, total / sum(LENGTHS), rtol=1e-9, atol=1e-12)
    for grad in torch.autograd.grad(found, decoder.inputs):
        assert grad.isfinite().all()


def test_a_risk_may_change_what_it_is_given():
    decoder = Tiny(8)
    expected = beam_risk_loss(*arguments(decoder), GOLD, risk=risk, beam_size=4)
    gold = GOLD.clone()

    def without_ends(tokens, gold):
        found = risk(tokens, gold)
        tokens[tokens == 3] = 0
        gold[gold == 3] = 0
        return found

    found = beam_risk_loss(*arguments(decoder), gold, risk=without_ends, beam_size=4)
    assert_same(found, expected, decoder.inputs)
    assert gold.equal(GOLD)


def test_a_sentence_without_a_hypothesis_is_named():
    decoder = Tiny(8)

    def step(inputs, state):
        log_probs, state = decoder.step(inputs, state)
        blocked = torch.arange(3).repeat_interleave(len(inputs) // 3) == 1
        return log_probs.masked_fill(blocked.unsqueeze(1), -math.inf), state

    with pytest.raises(ValueError, match="step leaves no hypothesis of sentence 1"):
        beam_risk_loss(step, *arguments(decoder)[1:], GOLD, risk=risk, beam_size=4)


def test_a_step_without_a_gradient_is_noticed():
    decoder = Tiny(8)
    step = torch.no_grad()(decoder.step)
    with pytest.raises(ValueError, match="step must keep the gradient"):
        beam_risk_loss(step, *arguments(decoder)[1:], GOLD, risk=risk, beam_size=4)
    with torch.no_grad():
        found = beam_risk_loss(step, *arguments(decoder)[1:], GOLD, risk=risk, beam_size=4)
        assert found.equal(beam_risk_loss(*arguments(decoder), GOLD, risk=risk, beam_size=4))


def test_a_risk_is_a_constant():
    decoder = Tiny(9)
    numbers = torch.rand(3, 4, requires_grad=True)

    def neural(tokens, gold):
        assert not torch.is_grad_enabled()
        return numbers

    loss = beam_risk_loss(*arguments(decoder), GOLD, risk=neural, beam_size=4)
    assert torch.autograd.grad(loss, numbers, allow_unused=True) == (None,)


def test_the_width_is_that_of_what_was_found():
    """Gold far below all of them does not make the selection uniform, nor ties one of its own."""
    scores = torch.tensor([[-9.0, -0.40, -0.45, -0.50, -0.60]], dtype=torch.float64)
    log_probs = torch.full((1, 8), -12.0, dtype=torch.float64)

    def loss(values, **options):
        """Of sequences of one token, whose log-probabilities these are."""
        table = log_probs.index_copy(1, torch.tensor([3, 4, 5, 6, 7]), values)

        def step(inputs, state):
            return table.expand(len(inputs), -1), state

        arguments = (step, torch.zeros(1, 1).double(), torch.zeros(8, 2).double())
        candidates = torch.tensor([[[4], [5], [6], [7]]])
        return beam_risk_loss(
            *arguments, torch.tensor([[3]]), candidates=candidates, include_gold=True, **options
        )

    risks = torch.tensor([[0.0, 0.4, 0.2, 0.9, 0.5]], dtype=torch.float64)
    eps = eps_for(scores[:, 1:], 1, width=4)
    expected = expected_risk(scores, risks, eps=eps)
    torch.testing.assert_close(loss(scores, risk=risks), expected.squeeze())
    tied = torch.tensor([[-9.0, -0.4, -0.4 + 1e-7, -0.4, -0.4]], dtype=torch.float64)
    expected = expected_risk(tied, risks, eps=0.01)
    torch.testing.assert_close(loss(tied, risk=risks), expected.squeeze())


@pytest.mark.parametrize("k", [1, 2])
def test_the_temperature_is_the_same_whether_the_search_found_gold(k):
    decoder = Tiny(3)
    others = [[5, 3], [4, 4]]
    gold = torch.tensor([[4, 3]])

    def loss(*candidates):
        return beam_risk_loss(
            *arguments(decoder, [1]), gold, k=k, candidates=torch.tensor([candidates]),
            risk=lambda tokens, _: tokens.double().sum(-1), include_gold=True, width=2,
        )  # fmt: skip

    ours = loss(*others, gold[0].tolist())
    scores = sequence_scores(*arguments(decoder, [1]), torch.tensor([[*others, [4, 3]]]))
    risks = torch.tensor([[8.0, 8.0, 7.0]], dtype=torch.float64)
    torch.testing.assert_close(ours, expected_risk(scores, risks, k=k, width=2).squeeze())
    # Two others alone: the width is that of both, also where k is 2.
    eps = eps_for(scores[:, :2], 1, width=2)
    torch.testing.assert_close(loss(*others), expected_risk(scores, risks, k=k, eps=eps).squeeze())


@pytest.mark.parametrize("k", [1, None])
def test_half_precision(k):
    scores, risk = torch.tensor([-50.0, -51, -53]), torch.tensor([1e5, 2e5, 4e5])
    for dtype in (torch.float16, torch.bfloat16):
        found = expected_risk(scores.to(dtype), risk, k=k, eps=1e-3)
        assert found.dtype == dtype
        exact = expected_risk(scores.double(), risk.double(), k=k, eps=1e-3)
        torch.testing.assert_close(found, exact.to(dtype))


@pytest.mark.parametrize("k", [1, None])
def test_what_cannot_occur_has_no_say_in_the_gradient_of_eps(k):
    risk = torch.tensor([0.1, 0.9, 0.5], dtype=torch.float64)
    scores = torch.tensor([-0.3, -0.5, -math.inf], dtype=torch.float64)
    with_it, without = (torch.tensor(0.4, dtype=torch.float64).requires_grad_() for _ in range(2))
    expected_risk(scores, risk, k=k, eps=with_it).backward()
    expected_risk(scores[:2], risk[:2], k=k, eps=without).backward()
    torch.testing.assert_close(with_it.grad, without.grad)


def test_vmap():
    scores, risk = torch.randn(4, 5), torch.rand(4, 5)
    found = torch.vmap(lambda s, r: expected_risk(s, r, k=2, eps=0.5))(scores, risk)
    torch.testing.assert_close(found, expected_risk(scores, risk, k=2, eps=0.5))


def test_no_candidates_at_all():
    decoder = Tiny(0)
    empty = torch.zeros(3, 2, 3, dtype=torch.long)
    loss = beam_risk_loss(*arguments(decoder), GOLD, risk=torch.ones(3, 2), k=1, candidates=empty)
    assert loss == 0
    loss.backward()
    assert (decoder.embedding.grad == 0).all()


@pytest.mark.parametrize("k", [1, 2, 5])
def test_limits_of_the_temperature(k):
    torch.manual_seed(0)
    scores, risks = torch.randn(2, 7, 6, dtype=torch.float64)
    cold = expected_risk(scores, risks, k=k, eps=1e-6)
    hard = risks.gather(-1, scores.topk(k).indices).mean(-1)
    torch.testing.assert_close(cold, hard)
    hot = expected_risk(scores, risks, k=k, eps=1e9)
    torch.testing.assert_close(hot, risks.mean(-1), rtol=1e-6, atol=1e-6)


def test_without_k_it_is_minimum_risk_training():
    torch.manual_seed(1)
    scores, risks = torch.randn(2, 7, 6, dtype=torch.float64)
    found = expected_risk(scores, risks, k=None, eps=0.6)
    torch.testing.assert_close(found, ((scores / 0.3).softmax(-1) * risks).sum(-1))
    by_width = expected_risk(scores, risks, k=None, width=3)
    eps = eps_for(scores, 1, width=3).unsqueeze(-1)
    torch.testing.assert_close(by_width, ((2 * scores / eps).softmax(-1) * risks).sum(-1))


@pytest.mark.parametrize("k", [2, None])
def test_a_width_knows_no_unit(k):
    """The same selection whatever the scores are multiplied by, list by list."""
    torch.manual_seed(2)
    scores, risks = torch.randn(2, 5, 8, dtype=torch.float64)
    expected = expected_risk(scores, risks, k=k, width=4)
    units = torch.tensor([1e-4, 1.0, 30.0, 2.0, 1e5], dtype=torch.float64).unsqueeze(-1)
    assert not torch.equal(expected_risk(scores, risks, k=k), expected)  # the default: all
    torch.testing.assert_close(
        expected_risk(scores, risks, k=k), expected_risk(scores, risks, k=k, width=8)
    )
    torch.testing.assert_close(expected_risk(units * scores - 7, risks, k=k, width=4), expected)
    undecided = soft_topk(scores, 2, eps=eps_for(scores, 2, width=4))
    assert (((undecided > 0.05) & (undecided < 0.95)).sum(-1) == 4).all()


@pytest.mark.parametrize("k", [1, 3, None])
def test_masked_is_deleted(k):
    torch.manual_seed(3)
    scores = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    risks = torch.rand(4, 6, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 0], [0] * 6])
    mask = mask.bool()
    masked = torch.where(mask, risks, math.nan)  # the risk of what is not there may be anything
    found = expected_risk(scores, masked, k=k, width=1, mask=mask)
    for row in range(3):
        kept = mask[row]
        places = k and min(k, int(kept.sum()))
        expected = expected_risk(scores[row, kept], risks[row, kept], k=places, width=1)
        torch.testing.assert_close(found[row], expected)
    assert found[3] == 0
    (grad,) = torch.autograd.grad(found.sum(), scores)
    assert grad.isfinite().all()
    assert (grad[~mask] == 0).all()
    impossible = expected_risk(scores.detach().masked_fill(~mask, -math.inf), masked, k=k, width=1)
    torch.testing.assert_close(impossible, found.detach())


def test_the_gradient_prefers_the_better_of_two():
    scores = torch.tensor([-0.5, -0.6, -3.0], requires_grad=True)
    expected_risk(scores, torch.tensor([0.9, 0.2, 0.5]), k=1, eps=0.2).backward()
    assert scores.grad[0] > 0 > scores.grad[1]  # a step against it lowers the first
    assert scores.grad[2].abs() < 1e-3


def test_equal_scores_have_no_side():
    scores = torch.zeros(2, 4, requires_grad=True)
    found = expected_risk(scores, torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, 4]]))
    torch.testing.assert_close(found.detach(), torch.tensor([2.5, 1.0]))
    found.sum().backward()
    assert scores.grad.isfinite().all()


def test_wrong_arguments():
    decoder = Tiny(0)
    with pytest.raises(ValueError, match="give width or eps, not both"):
        expected_risk(torch.zeros(3), torch.zeros(3), width=1, eps=1.0)
    with pytest.raises(ValueError, match=r"tensor of the shape of scores, \(3,\), got"):
        expected_risk(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="eps must be positive"):
        expected_risk(torch.zeros(3), torch.zeros(3), k=None, eps=0.0)
    assert expected_risk(torch.tensor([0.0, math.nan, 1.0]), torch.zeros(3)).isnan()
    with pytest.raises(ValueError, match=r"risk must be finite, got nan at index \(1,\)"):
        expected_risk(torch.zeros(3), torch.tensor([0.0, math.nan, 1.0]))
    with pytest.raises(ValueError, match="risk must be finite, got inf"):  # as a float32
        expected_risk(torch.zeros(3), torch.tensor([0.0, 1e39, 1.0], dtype=torch.float64))
    with pytest.raises(TypeError, match="risk must be a function or a tensor, got NoneType"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=None)
    with pytest.raises(ValueError, match="two hypotheses or more, as beam_size or candidates"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=risk, k=None, beam_size=1)
    with pytest.raises(ValueError, match="k must be below the number of hypotheses, 3, got k=3"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=risk, k=3, beam_size=3)
    with pytest.raises(ValueError, match="length_penalty"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=risk, length_penalty=math.nan)
    with pytest.raises(ValueError, match="are for a search"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=risk, candidates=GOLD[:, None], beam_size=3)
    with pytest.raises(TypeError, match="mask must be boolean"):
        expected_risk(torch.zeros(3), torch.zeros(3), mask=torch.ones(3))
    with pytest.raises(ValueError, match="give them as candidates"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=torch.zeros(3, 8))
    with pytest.raises(ValueError, match=r"risk must give a tensor \(B, n\) = \(3, 8\).*\(3,\)"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=lambda tokens, gold: torch.zeros(3))
    with pytest.raises(ValueError, match=r"candidates must be of shape \(B, n, L\) with B = 3"):
        beam_risk_loss(*arguments(decoder), GOLD, risk=risk, candidates=GOLD)
    with pytest.raises(ValueError, match="tokens must hold tokens from 0 to 5"):
        sequence_scores(*arguments(decoder), torch.full((3, 1, 1), 6))
