"""Files of one kind of model or another."""

import json

import pytest
import torch
from safetensors.torch import save_file

from softtopk import _model_files
from softtopk.seq2seq import (
    AdditiveAttention,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    load,
)

SOURCE, INPUTS = torch.tensor([[4, 5, 3], [6, 3, 0]]), torch.tensor([[2, 5], [2, 7]])


def models():
    yield Seq2Seq(Seq2SeqConfig(source_vocab=9, target_vocab=8, embedding=4, hidden=3))
    yield Transformer(
        TransformerConfig(source_vocab=9, target_vocab=8, width=4, heads=2, feedforward=3)
    )


def test_the_kind_is_found(tmp_path):
    for net in models():
        net.save(tmp_path / "model")
        again = load(tmp_path / "model")
        assert type(again) is type(net)
        assert torch.equal(again.eval()(SOURCE, INPUTS), net.eval()(SOURCE, INPUTS))


def test_the_other_kind_is_refused(tmp_path):
    recurrent, transformer = models()
    transformer.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"not a file that Seq2Seq\.save wrote.*no metadata"):
        Seq2Seq.load(tmp_path / "model")
    recurrent.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"not a file that Transformer\.save wrote.*no metadata"):
        Transformer.load(tmp_path / "model")


def test_other_files_are_refused(tmp_path):
    save_file({"weight": torch.zeros(2)}, tmp_path / "model")
    with pytest.raises(ValueError, match=r"Seq2Seq\.save or Transformer\.save wrote: it has no"):
        load(tmp_path / "model")
    (tmp_path / "model").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"Seq2Seq\.save or Transformer\.save wrote"):
        load(tmp_path / "model")


@pytest.mark.parametrize("tied", [False, True])
def test_a_file_from_before_there_was_another_model(tmp_path, tied):
    """As version 1 of the format has it, without the settings that came later."""
    config = {
        "source_vocab": 9, "target_vocab": 8, "embedding": 4, "hidden": 3, "cell": "lstm",
        "dropout": 0.35, "tied": tied, "pad": 0, "bos": 2, "eos": 3,
    }  # fmt: skip
    net = Seq2Seq(Seq2SeqConfig(**config)).eval()
    weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    if tied:
        del weights["output.weight"]
    described = {"attention": "AdditiveAttention", **config}
    save_file(weights, tmp_path / "model", {"softtopk.Seq2Seq 1": json.dumps(described)})
    for again in (load(tmp_path / "model"), Seq2Seq.load(tmp_path / "model")):
        assert again.config == net.config
        assert torch.equal(again.eval()(SOURCE, INPUTS), net(SOURCE, INPUTS))


@pytest.mark.parametrize(
    "change",
    [
        {"later": 1},
        {"source_vocab": None},
        {"attention_eps": "1"},
        {"width": 2**40},
        {"width": 6},
        {"attention_k": 2.5},
    ],
)
def test_a_description_that_fits_no_model(tmp_path, change):
    _, net = models()
    net.save(tmp_path / "model")
    stored = _model_files.read(tmp_path / "model", [Transformer.FORMAT])
    save_file(
        stored.weights,
        tmp_path / "model",
        {Transformer.FORMAT: json.dumps({**stored.description, **change})},
    )
    with pytest.raises(ValueError, match="model does not describe a model that this version"):
        load(tmp_path / "model")


@pytest.mark.parametrize("metadata", ["{", "[1]", "{}"])
@pytest.mark.parametrize("kind", [Seq2Seq, Transformer])
def test_damaged_metadata(tmp_path, metadata, kind):
    save_file({"weight": torch.zeros(2)}, tmp_path / "model", {kind.FORMAT: metadata})
    for read in (load, kind.load):
        with pytest.raises(ValueError, match="model does not describe a model that this version"):
            read(tmp_path / "model")


@pytest.mark.parametrize("weights", [{}, {"output.weight": torch.zeros(2, dtype=torch.int64)}])
def test_weights_that_are_none(tmp_path, weights):
    net, _ = models()
    save_file(weights, tmp_path / "model", {net.FORMAT: json.dumps(net._description())})
    with pytest.raises(ValueError, match="model does not describe a model that this version"):
        load(tmp_path / "model")


def test_hard_evaluation_needs_a_selection():
    for net in models():
        net.hard_eval = False
        with pytest.raises(ValueError, match="make the model with attention_k"):
            net.hard_eval = True
        assert not net.hard_eval


def test_a_selection_is_not_for_another_attention():
    config = Seq2SeqConfig(source_vocab=9, target_vocab=8, attention_k=2)
    with pytest.raises(ValueError, match="attention_k=2 is for AdditiveAttention"):
        Seq2Seq(config, AdditiveAttention)


def test_a_weight_that_changed_on_the_disk_is_noticed(tmp_path):
    path = tmp_path / "model"
    for net in models():
        net.save(path)
        content = bytearray(path.read_bytes())
        content[-2] ^= 1
        path.write_bytes(content)
        with pytest.raises(ValueError, match="its digest is not that of its content"):
            load(path)


def test_a_save_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    first, second = models()
    first.save(tmp_path / "model")
    before = (tmp_path / "model").read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=r"No space left on device.*model"):
        second.save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
