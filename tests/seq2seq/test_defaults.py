"""What torch's default device and dtype are makes no difference."""

import pytest
import torch
from defaults import default_dtype

from softtopk.seq2seq import (
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    beam_membership_loss,
    beam_search,
    hybrid_loss,
    load,
    soft_beam_loss,
    soft_beam_search,
    teacher_forcing_loss,
)

SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
TARGET = torch.tensor([[5, 6, 3, 0], [7, 8, 9, 3]])
SIZES = {"source_vocab": 12, "target_vocab": 11}
RECURRENT = {"embedding": 6, "hidden": 5}
TRANSFORMER = {"width": 6, "heads": 2, "feedforward": 7}
MODELS = {
    "gru": lambda: Seq2Seq(Seq2SeqConfig(**SIZES, **RECURRENT)),
    "lstm": lambda: Seq2Seq(Seq2SeqConfig(**SIZES, **RECURRENT, cell="lstm", attention_k=2)),
    "transformer": lambda: Transformer(TransformerConfig(**SIZES, **TRANSFORMER)),
    "soft-topk": lambda: Transformer(TransformerConfig(**SIZES, **TRANSFORMER, attention_k=2)),
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return MODELS[request.param]()


def gradients(model, loss):
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


def arguments(model):
    memory, state = model.encode(SOURCE)
    return model.decoder(memory), state, model.target_embedding.weight


def assert_same(function, other_defaults):
    """With the same seed for what ``function`` draws at random."""
    torch.manual_seed(3)
    expected = function()
    torch.manual_seed(3)
    with other_defaults():
        found = function()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("sampling", [0.0, 0.5])
def test_the_model(model, sampling, other_defaults):
    def run():
        logits = model(SOURCE, model.shift(TARGET), sampling=sampling)
        looks = model.attention_weights(SOURCE, TARGET, by_head=True)
        return logits, looks, gradients(model, logits.square().sum())

    assert_same(run, other_defaults)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (teacher_forcing_loss, {}),
        (beam_membership_loss, {}),
        (soft_beam_loss, {}),
        (soft_beam_loss, {"follow": "gold", "normalize": "batch", "selection_clip": 1.0}),
        (soft_beam_loss, {"follow": "best", "solver": "sinkhorn", "eps": 20.0}),
        (hybrid_loss, {"objective": "soft-beam"}),
        (hybrid_loss, {"objective": "membership"}),
    ],
)
def test_losses(model, function, options, other_defaults):
    def run():
        loss = function(*arguments(model), TARGET, **options)
        return loss, gradients(model, loss)

    assert_same(run, other_defaults)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (beam_search, {"length_penalty": 0.5, "n_best": 2}),
        (soft_beam_search, {"gold": TARGET}),
        (soft_beam_search, {"normalize": "row"}),
    ],
)
def test_searches(model, function, options, other_defaults):
    assert_same(lambda: tuple(function(*arguments(model), max_len=6, **options)), other_defaults)


def test_files(model, tmp_path):
    """The device of a model that is read is the default, as for everything that torch reads."""
    model.save(tmp_path / "model")
    assert_same(lambda: load(tmp_path / "model").state_dict(), lambda: default_dtype(torch.float64))
