"""The Transformer."""

import math

import pytest
import torch
from torch import nn

from softtopk import soft_topk_softmax
from softtopk.seq2seq import (
    Transformer,
    TransformerConfig,
    _transformer,
    beam_membership_loss,
    beam_search,
    load,
    soft_beam_loss,
    teacher_forcing_loss,
)

SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
TARGET = torch.tensor([[5, 6, 3, 0], [7, 8, 9, 3]])
INPUTS = torch.tensor([[2, 5, 6, 3], [2, 7, 8, 9]])
SIZES = {"source_vocab": 12, "target_vocab": 11, "width": 6, "heads": 2, "feedforward": 7}
# Softmax, SOFT top-k to the source, and everywhere.
ATTENTIONS = [{}, {"attention_k": 2}, {"attention_k": 2, "attention_in": "all"}]


def model(seed=0, **changes):
    torch.manual_seed(seed)
    net = Transformer(TransformerConfig(**{**SIZES, **changes})).double().eval()
    for name, parameter in net.named_parameters():  # of which the first have no say otherwise
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter)
    return net


def search_arguments(net, source=SOURCE):
    memory, state = net.encode(source)
    return net.decoder(memory), state, net.target_embedding.weight


# ------------------------------------------------------------------------- against torch's layers


def copy_attention(ours, theirs):
    theirs.in_proj_weight = nn.Parameter(torch.cat([ours.query.weight, ours.key_value.weight]))
    theirs.in_proj_bias = nn.Parameter(torch.cat([ours.query.bias, ours.key_value.bias]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(ours, theirs, norms):
    copy_attention(ours.own, theirs.self_attn)
    if hasattr(ours, "cross"):
        copy_attention(ours.cross, theirs.multihead_attn)
    theirs.linear1.load_state_dict(ours.feedforward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feedforward[-1].state_dict())
    for number, name in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(getattr(ours, name).state_dict())


def placed(table, tokens):
    """Embeddings with positions, one number at a time."""
    width = table.shape[1]
    out = table[tokens] * math.sqrt(width)
    for position in range(tokens.shape[1]):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            out[:, position, i] += math.sin(angle)
            out[:, position, width // 2 + i] += math.cos(angle)
    return out


@torch.no_grad()
@pytest.mark.parametrize("short", [0, 5])
def test_it_is_the_transformer_that_torch_has(short, monkeypatch):
    monkeypatch.setattr(_transformer, "SHORT", short)
    net = model()
    options = {"dropout": 0.0, "batch_first": True, "norm_first": True, "dtype": torch.float64}
    hidden = SOURCE == 0
    x = placed(net.source_embedding.weight, SOURCE)
    for layer in net.encoder_layers:
        theirs = nn.TransformerEncoderLayer(6, 2, 7, **options)
        copy_layer(layer, theirs, ("own_norm", "forward_norm"))
        x = theirs(x, src_key_padding_mask=hidden)
    memory = net.encoder_norm(x)
    x = placed(net.target_embedding.weight, INPUTS)
    causal = torch.ones(4, 4).triu(1).bool()
    for layer in net.decoder_layers:
        theirs = nn.TransformerDecoderLayer(6, 2, 7, **options)
        copy_layer(layer, theirs, ("own_norm", "cross_norm", "forward_norm"))
        x = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=hidden)
    expected = net.output(net.decoder_norm(x))
    torch.testing.assert_close(net(SOURCE, INPUTS), expected)


# ------------------------------------------------------------------------------ ways to compute it


@pytest.mark.parametrize("changes", ATTENTIONS)
class TestEveryAttention:
    def test_cached_steps_are_the_parallel_pass(self, changes):
        net = model(**changes)
        step, state, table = search_arguments(net)
        expected = net(SOURCE, INPUTS).log_softmax(-1)
        for t in range(4):
            log_probs, state = step(table[INPUTS[:, t]], state)
            torch.testing.assert_close(log_probs, expected[:, t], rtol=0, atol=1e-12)

    def test_unrolling_goes_on_from_a_state(self, changes):
        net = model(**changes)
        memory, state = net.encode(SOURCE)
        expected = net.unroll(INPUTS, state, memory)
        _, state = net.step(net.target_embedding.weight[INPUTS[:, 0]], state, memory)
        rest = net.unroll(INPUTS[:, 1:], state, memory)
        torch.testing.assert_close(rest, expected[:, 1:], rtol=0, atol=1e-12)

    def test_a_sentence_alone_or_in_a_padded_batch(self, changes):
        net = model(**changes)
        expected = net(SOURCE, INPUTS)
        more = torch.cat([SOURCE, torch.zeros(2, 3, dtype=torch.long)], 1)
        torch.testing.assert_close(net(more, INPUTS), expected, rtol=0, atol=1e-12)
        alone = net(SOURCE[1:, :3], INPUTS[1:])
        torch.testing.assert_close(alone, expected[1:], rtol=0, atol=1e-12)

    def test_hypotheses_of_a_sentence_are_apart(self, changes):
        """k of them in one call, or each in a call of its own."""
        net = model(**changes)
        step, state, _ = search_arguments(net)
        k, past = 3, 2
        inputs = torch.randn(2 * k, 6, dtype=torch.float64)
        state = tuple(torch.randn(2 * k, past, 12, dtype=torch.float64) for _ in state)
        together, after = step(inputs, state)
        assert [x.shape for x in after] == [(2 * k, past + 1, 12)] * 2
        for row in range(2 * k):
            alone, _, _ = search_arguments(net, SOURCE[row // k : row // k + 1])
            one = slice(row, row + 1)
            log_probs, new = alone(inputs[one], tuple(x[one] for x in state))
            torch.testing.assert_close(log_probs, together[one], rtol=0, atol=1e-12)
            for a, c in zip(new, after, strict=True):
                torch.testing.assert_close(a, c[one], rtol=0, atol=1e-12)

    def test_losses_and_search(self, changes):
        """Teacher forcing unrolled or by steps; each sentence of a search as if alone."""
        net = model(**changes)
        arguments = search_arguments(net)
        unrolled = nn.functional.cross_entropy(
            net(SOURCE, INPUTS).flatten(0, 1), TARGET.flatten(), ignore_index=0
        )
        torch.testing.assert_close(teacher_forcing_loss(*arguments, TARGET), unrolled)
        found = beam_search(*arguments, beam_size=3, max_len=6, n_best=3)
        losses = [
            loss(*arguments, TARGET, beam_size=3, eps=0.3)
            for loss in (soft_beam_loss, beam_membership_loss)
        ]
        nats = torch.zeros(2, dtype=torch.float64)
        for b, length in enumerate((3, 4)):
            alone = search_arguments(net, SOURCE[b : b + 1, : (5, 3)[b]])
            one = beam_search(*alone, beam_size=3, max_len=6, n_best=3)
            torch.testing.assert_close(found.scores[b : b + 1], one.scores)
            for i, loss in enumerate((soft_beam_loss, beam_membership_loss)):
                gold = TARGET[b : b + 1, :length]
                nats[i] += length * loss(*alone, gold, beam_size=3, eps=0.3).item()
        torch.testing.assert_close(torch.stack(losses).detach(), nats / 7)

    @pytest.mark.parametrize("loss", [soft_beam_loss, beam_membership_loss])
    def test_gradients_reach_every_parameter(self, changes, loss):
        net = model(**changes)
        loss(*search_arguments(net), TARGET, beam_size=3, eps=0.5).backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 1e-9, name


def test_the_likelihood_of_a_search_is_that_of_its_tokens():
    net = model()
    found = beam_search(*search_arguments(net), beam_size=4, max_len=5, n_best=4)
    for n in range(4):
        tokens = found.tokens[:, n]
        log_probs = net(SOURCE, net.shift(tokens)).log_softmax(-1)
        picked = log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        expected = picked.masked_fill(tokens == 0, 0.0).sum(1)
        torch.testing.assert_close(found.log_likelihoods[:, n], expected)


# ------------------------------------------------------------------------------ the SOFT attention


@pytest.mark.parametrize("where", ["cross", "all"])
def test_enough_tokens_are_the_softmax(where):
    plain = model()
    wide = model(attention_k=5, attention_in=where)
    assert torch.equal(wide(SOURCE, INPUTS), plain(SOURCE, INPUTS))
    narrow = model(attention_k=2, attention_in=where)
    assert not torch.isclose(narrow(SOURCE, INPUTS), plain(SOURCE, INPUTS)).all()


@pytest.mark.parametrize(("where", "narrow"), [("cross", 2), ("all", 6)])
def test_where_there_is_a_selection(where, narrow):
    net = model(attention_k=2, attention_in=where)
    counts = [getattr(module, "topk", None) for module in net.modules()]
    assert sum(count == 2 for count in counts) == narrow
    ours, plain = (x.encode(SOURCE)[0].layers[0] for x in (net, model()))
    assert torch.equal(ours, plain) == (where == "cross")


@pytest.mark.parametrize("k", [None, 2])
def test_weights_are_those_of_each_head(k):
    """By hand, from what goes into the attentions."""
    net = model(attention_k=k, attention_eps=0.7)
    seen = []
    for layer in net.decoder_layers:
        layer.cross.register_forward_hook(lambda module, args, out: seen.append((module, args)))
    found = net.attention_weights(SOURCE, TARGET, by_head=True)
    assert found.shape == (2, 4, 4, 5)
    for number, (module, (query, key_value, *_)) in enumerate(seen):
        projected = module.query(query)
        for head in range(2):
            part = slice(3 * head, 3 * head + 3)
            scores = projected[..., part] @ key_value[..., part].mT / math.sqrt(3)
            scores = scores.masked_fill((SOURCE == 0).unsqueeze(1), -math.inf)
            weights = soft_topk_softmax(scores, k, eps=0.7) if k else scores.softmax(-1)
            torch.testing.assert_close(found[:, 2 * number + head], weights)
    mean = net.attention_weights(SOURCE, TARGET)
    torch.testing.assert_close(mean, found.mean(1))
    torch.testing.assert_close(mean.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    assert not mean[1, :, 3:].any()


def test_hard_in_evaluation():
    net = model(attention_k=2, attention_in="all", dropout=0.0)
    soft = net.attention_weights(SOURCE, TARGET, by_head=True)
    with torch.no_grad():
        before = net(SOURCE, INPUTS)
    assert not net.hard_eval
    net.hard_eval = True
    assert net.hard_eval
    hard = net.attention_weights(SOURCE, TARGET, by_head=True)
    assert ((hard > 0).sum(-1) == 2).all()
    assert (soft > 0).sum(-1).min() > 2
    with torch.no_grad():
        logits = net(SOURCE, INPUTS)
        assert not torch.isclose(logits, before).any()
        unrolled = logits.log_softmax(-1)
        step, state, table = search_arguments(net)
        for t in range(4):
            log_probs, state = step(table[INPUTS[:, t]], state)
            torch.testing.assert_close(log_probs, unrolled[:, t])
    net.train()
    torch.testing.assert_close(net.attention_weights(SOURCE, TARGET, by_head=True), soft)


# ------------------------------------------------------------------------------------- the training


@pytest.mark.parametrize("k", [None, 1])
def test_it_learns_to_copy(k):
    torch.manual_seed(0)
    sizes = {"source_vocab": 12, "target_vocab": 12, "width": 32, "feedforward": 32}
    net = Transformer(TransformerConfig(**sizes, layers=1, dropout=0.0, attention_k=k))
    tokens = torch.randint(4, 12, (16, 5))
    tokens[:, -1] = 3
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(100):
        loss = nn.functional.cross_entropy(
            net(tokens, net.shift(tokens)).flatten(0, 1), tokens.flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    found = beam_search(*search_arguments(net.eval(), tokens), max_len=6, beam_size=2)
    assert torch.equal(found.tokens[:, 0, :5], tokens)


def test_scheduled_sampling():
    """With probability 1 no token after the first is gold's, but the model's own."""
    net = model()
    forced = net(SOURCE, INPUTS)
    torch.manual_seed(1)
    sampled = net(SOURCE, INPUTS, sampling=1.0)
    torch.testing.assert_close(sampled[:, 0], forced[:, 0])
    torch.manual_seed(1)
    other = torch.cat([INPUTS[:, :1], INPUTS[:, 1:].flip(1)], 1)
    assert torch.equal(net(SOURCE, other, sampling=1.0), sampled)
    with torch.no_grad():
        net.output.bias[7] = 1e3
    own = net(SOURCE, torch.tensor([[2, 7, 7, 7]] * 2))
    torch.testing.assert_close(net(SOURCE, INPUTS, sampling=1.0), own)
    with pytest.raises(ValueError, match=r"sampling must be .* 1, got sampling=1\.5"):
        net(SOURCE, INPUTS, sampling=1.5)


def test_dropout_in_training_only():
    net = model(dropout=0.5)
    assert torch.equal(net(SOURCE, INPUTS), net(SOURCE, INPUTS))
    net.train()
    assert not torch.equal(net(SOURCE, INPUTS), net(SOURCE, INPUTS))


# ---------------------------------------------------------------------------------- sizes and files


@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"attention_k": 2, "dropout": 0.35}])
def test_round_trip(changes, tmp_path):
    net = model(**changes).float()
    net.save(tmp_path / "model.safetensors")
    for again in (read(tmp_path / "model.safetensors") for read in (Transformer.load, load)):
        assert type(again) is Transformer
        assert again.config == net.config
        assert torch.equal(again.eval()(SOURCE, INPUTS), net(SOURCE, INPUTS))
        tied = again.output.weight is again.target_embedding.weight
        assert tied == net.config.tied


def test_a_width_that_is_odd():
    net = model(width=5, heads=1)
    assert net(SOURCE, INPUTS).shape == (2, 4, 11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got layers=0"),
        ({"heads": 4}, "width must be a multiple of heads=4, got width=6"),
        ({"attention_in": "self"}, "attention_in must be one of 'cross', 'all', got 'self'"),
        ({"attention_k": 0}, "attention_k must be at least 1, got attention_k=0"),
        ({"attention_eps": 0.0}, "attention_eps must be positive and finite, got 0.0"),
        ({"dropout": 1.0}, "dropout must be .* below 1, got 1.0"),
    ],
)
def test_configurations_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        model(**changes)


@pytest.mark.parametrize("source", [[[5, 0, 3]], [[0, 0, 0]]])
def test_padding_of_a_source_comes_last(source):
    with pytest.raises(ValueError, match="source must have a token in every row, and its padding"):
        model().encode(torch.tensor(source))


def test_where_nothing_may_be_seen_the_output_is_finite():
    attention = _transformer.DotProductAttention(6, 2).double()
    query, source = torch.randn(1, 2, 6).double(), torch.randn(1, 3, 12).double()
    found, _ = attention(query, source, torch.zeros(1, 1, 1, 3).bool())
    assert found.isfinite().all()
