"""The recurrent encoder-decoder."""

import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from softtopk.seq2seq import (
    AdditiveAttention,
    Seq2Seq,
    Seq2SeqConfig,
    beam_search,
    soft_beam_loss,
    teacher_forcing_loss,
)

SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
TARGET = torch.tensor([[5, 6, 3, 0], [7, 8, 9, 3]])
INPUTS = torch.tensor([[2, 5, 6, 3], [2, 7, 8, 9]])


def model(cell="gru", **changes):
    config = {"source_vocab": 12, "target_vocab": 11, "embedding": 6, "hidden": 5, "cell": cell}
    return Seq2Seq(Seq2SeqConfig(**{**config, **changes})).double().eval()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
class TestBothCells:
    def test_unrolled_is_step_by_step(self, cell):
        net = model(cell)
        memory, state = net.encode(SOURCE)
        step = net.decoder(memory)
        expected = net(SOURCE, INPUTS).log_softmax(-1)
        for t in range(4):
            log_probs, state = step(net.target_embedding.weight[INPUTS[:, t]], state)
            torch.testing.assert_close(log_probs, expected[:, t])

    def test_padding_of_a_source_changes_nothing(self, cell):
        net = model(cell)
        more = torch.cat([SOURCE, torch.zeros(2, 3, dtype=torch.long)], 1)
        expected = net(SOURCE, INPUTS)
        torch.testing.assert_close(net(more, INPUTS), expected)
        torch.testing.assert_close(net(SOURCE[1:, :3], INPUTS[1:]), expected[1:])

    def test_the_decoder_starts_from_what_was_read_backwards(self, cell):
        """That has seen the whole source when it is back at the first token."""
        net = model(cell)
        memory, state = net.encode(SOURCE)
        first = state[0] if cell == "lstm" else state
        torch.testing.assert_close(first, torch.tanh(net.bridge(memory.values[:, 0, 5:])))

    def test_hypotheses_of_a_sentence_are_apart(self, cell):
        """k of them in one call, or each in a call of its own."""
        net = model(cell)
        memory, state = net.encode(SOURCE)
        k = 3
        inputs = torch.randn(2 * k, 6, dtype=torch.float64)
        parts = state if isinstance(state, tuple) else (state,)
        states = [torch.randn(2 * k, 5, dtype=torch.float64) for _ in parts]

        def pack(parts):
            return tuple(parts) if cell == "lstm" else parts[0]

        together, after = net.decoder(memory)(inputs, pack(states))
        for b in range(2):
            alone, _ = net.encode(SOURCE[b : b + 1])
            for row in range(b * k, b * k + k):
                log_probs, new = net.decoder(alone)(
                    inputs[row : row + 1], pack([s[row : row + 1] for s in states])
                )
                torch.testing.assert_close(log_probs, together[row : row + 1])
                for a, c in zip(
                    *(x if isinstance(x, tuple) else (x,) for x in (new, after)), strict=True
                ):
                    torch.testing.assert_close(a, c[row : row + 1])

    def test_losses_and_search(self, cell):
        """Teacher forcing unrolled or by steps; each sentence of a search as if alone."""
        net = model(cell)
        memory, state = net.encode(SOURCE)
        arguments = (net.decoder(memory), state, net.target_embedding.weight)
        unrolled = torch.nn.functional.cross_entropy(
            net(SOURCE, INPUTS).flatten(0, 1), TARGET.flatten(), ignore_index=0
        )
        torch.testing.assert_close(teacher_forcing_loss(*arguments, TARGET), unrolled)
        found = beam_search(*arguments, beam_size=3, max_len=6, n_best=3)
        loss = soft_beam_loss(*arguments, TARGET, beam_size=3, eps=0.3)
        nats = 0
        for b, length in enumerate((3, 4)):
            memory, state = net.encode(SOURCE[b : b + 1])
            alone = (net.decoder(memory), state, net.target_embedding.weight)
            one = beam_search(*alone, beam_size=3, max_len=6, n_best=3)
            torch.testing.assert_close(found.scores[b : b + 1], one.scores)
            nats = nats + length * soft_beam_loss(
                *alone, TARGET[b : b + 1, :length], beam_size=3, eps=0.3
            )
        torch.testing.assert_close(loss, nats / 7)

    def test_round_trip(self, cell, tmp_path):
        net = model(cell, tied=True, dropout=0.35).float()
        net.save(tmp_path / "model.safetensors")
        again = Seq2Seq.load(tmp_path / "model.safetensors").eval()
        assert again.config == net.config
        assert torch.equal(again(SOURCE, INPUTS), net(SOURCE, INPUTS))
        assert again.output.weight is again.target_embedding.weight

    def test_gradients_reach_every_parameter(self, cell):
        net = model(cell)
        memory, state = net.encode(SOURCE)
        loss = soft_beam_loss(
            net.decoder(memory), state, net.target_embedding.weight, TARGET, beam_size=3, eps=0.5
        )
        loss.backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name


def test_tied_weights():
    tied, free = model(tied=True), model(tied=False)
    assert tied.output.weight is tied.target_embedding.weight
    assert free.output.weight is not free.target_embedding.weight
    count = [sum(p.numel() for p in net.parameters()) for net in (tied, free)]
    assert count[1] - count[0] == 11 * 6


def test_dropout_in_training_only():
    net = model(dropout=0.5)
    assert torch.equal(net(SOURCE, INPUTS), net(SOURCE, INPUTS))
    net.train()
    assert not torch.equal(net(SOURCE, INPUTS), net(SOURCE, INPUTS))
    memory, state = net.encode(SOURCE)
    step, inputs = net.decoder(memory), net.target_embedding.weight[[2, 2]]
    assert not torch.equal(step(inputs, state)[0], step(inputs, state)[0])


def test_attention_is_pluggable():
    class Uniform(AdditiveAttention):
        def weights(self, scores):
            return super().weights(torch.where(scores.isinf(), scores, 0.0))

    config = Seq2SeqConfig(source_vocab=12, target_vocab=11, embedding=6, hidden=5)
    net = Seq2Seq(config, attention=Uniform).eval()
    memory, _ = net.encode(SOURCE)
    context, weights = net.attention(torch.randn(4, 5), memory)
    torch.testing.assert_close(weights[:2], torch.full((2, 5), 0.2))
    torch.testing.assert_close(weights[2:, :3], torch.full((2, 3), 1 / 3))
    assert not weights[2:, 3:].any()
    torch.testing.assert_close(context[2], memory.values[1, :3].mean(0))


def test_scheduled_sampling():
    """With probability 0 teacher forcing; with 1 no token after the first is gold's."""
    net = model()
    forced = net(SOURCE, INPUTS)
    assert torch.equal(net(SOURCE, INPUTS, sampling=0.0), forced)
    torch.manual_seed(1)
    sampled = net(SOURCE, INPUTS, sampling=1.0)
    assert torch.equal(sampled[:, 0], forced[:, 0])
    assert not torch.isclose(sampled[:, 1:], forced[:, 1:]).all()
    torch.manual_seed(1)
    other = torch.cat([INPUTS[:, :1], INPUTS[:, 1:].flip(1)], 1)
    assert torch.equal(net(SOURCE, other, sampling=1.0), sampled)
    with pytest.raises(ValueError, match=r"sampling must be .* 1, got sampling=1\.5"):
        net(SOURCE, INPUTS, sampling=1.5)


def test_scheduled_sampling_draws_from_the_model():
    """One token of probability one: feeding it is the same as sampling."""
    net = model()
    with torch.no_grad():
        net.output.bias[7] = 1e3
    inputs = torch.tensor([[2, 7, 7, 7]] * 2)
    torch.testing.assert_close(net(SOURCE, INPUTS, sampling=1.0), net(SOURCE, inputs))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 0}, "hidden must be at least 1, got hidden=0"),
        ({"cell": "rnn"}, "cell must be one of 'gru', 'lstm', got 'rnn'"),
        ({"dropout": 1.0}, "dropout must be .* below 1, got 1.0"),
        ({"pad": -1}, "pad must be at least 0, got pad=-1"),
    ],
)
def test_configurations_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        model(**changes)


# ------------------------------------------------------------------------------------------- files


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('the file was executed')",))


def test_a_file_is_tensors_and_text(tmp_path):
    path = tmp_path / "model.safetensors"
    model().float().save(path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()
        assert "target_embedding.weight" in file.keys()  # noqa: SIM118


def test_a_pickle_is_refused(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"model\.pt"):
        Seq2Seq.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        Seq2Seq.load(tmp_path / "nothing.safetensors")


def test_the_same_model_is_the_same_file(tmp_path):
    files = [tmp_path / f"{i}.safetensors" for i in range(8)]
    net = model()
    for file in files:
        net.save(file)
    assert len({file.read_bytes() for file in files}) == 1
    assert Seq2Seq.load(files[0]).output.weight.dtype == torch.float64


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    model().float().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a file that Seq2Seq"):
        Seq2Seq.load(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"model\.safetensors is not .* no metadata"):
        Seq2Seq.load(path)


def test_weights_of_another_model_are_refused():
    weights = model("lstm").state_dict()
    weights["other"] = weights.pop("readout.weight")
    with pytest.raises(ValueError, match=r"do not fit.* other, readout\.weight"):
        model("lstm").load_weights(weights)


class Other(AdditiveAttention):
    """Another attention with the same weights."""


def test_weights_of_another_attention_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    net = Seq2Seq(Seq2SeqConfig(source_vocab=12, target_vocab=11, hidden=5), attention=Other)
    net.save(path)
    with pytest.raises(ValueError, match="with Other, not AdditiveAttention: give it as attention"):
        Seq2Seq.load(path)
    assert isinstance(Seq2Seq.load(path, attention=Other).attention, Other)


def test_weights_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"do not fit .*\(12, 4\), not \(12, 6\)"):
        model().load_weights(model(embedding=4).state_dict())


@pytest.mark.parametrize("source", [[[5, 0, 3]], [[0, 0, 0]]])
def test_padding_of_a_source_comes_last(source):
    with pytest.raises(ValueError, match="source must have a token in every row, and its padding"):
        model().encode(torch.tensor(source))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("k", [None, 2])
def test_attention_weights_are_those_of_the_steps(cell, k):
    net = model(cell, attention_k=k)
    seen = []
    handle = net.attention.register_forward_hook(lambda module, args, out: seen.append(out[1]))
    net(SOURCE, INPUTS)
    handle.remove()
    found = net.attention_weights(SOURCE, torch.tensor([[5, 6, 3, 0], [7, 8, 9, 3]]))
    torch.testing.assert_close(found, torch.stack(seen, 1))
    assert not found[1, :, 3:].any()
    by_head = net.attention_weights(SOURCE, TARGET, by_head=True)
    torch.testing.assert_close(by_head, found.unsqueeze(1))


def test_hard_in_evaluation():
    net = model(attention_k=2)
    assert not net.hard_eval
    net.hard_eval = True
    assert net.attention.hard_eval
    assert ((net.attention_weights(SOURCE, TARGET) > 0).sum(-1) == 2).all()
    net.hard_eval = False
    assert (net.attention_weights(SOURCE, TARGET) > 0).sum(-1).min() > 2
