"""Pruning with a soft budget."""

import copy
import pickle

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parametrize

from softtopk import WidthSchedule, soft_topk
from softtopk.nn import TopKPruning, finish_pruning, topk_prune_


def test_the_weights_are_those_of_soft_topk():
    layer = nn.Linear(6, 5)
    dense = layer.weight.detach().clone()
    topk_prune_(layer, k=7, eps=0.05)
    expected = dense * soft_topk(dense.abs().flatten(), 7, eps=0.05).view(5, 6)
    assert torch.equal(layer.weight, expected)
    layer.eval()
    kept = dense.abs().flatten().topk(7).indices
    exact = torch.zeros(30).index_put_((kept,), dense.flatten()[kept]).view(5, 6)
    assert torch.equal(layer.weight, exact)
    layer.train()
    layer(torch.randn(3, 6)).square().sum().backward()
    assert (layer.parametrizations.weight.original.grad != 0).all()  # the pruned can come back


def test_state_copies_and_the_end():
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    x = torch.randn(3, 6)
    for layer in (model[0], model[2]):
        topk_prune_(layer, density=0.3)
    expected = model(x)  # calibrates
    assert "parametrizations.weight.0.calibrated_eps" in model[0].state_dict()
    other = copy.deepcopy(model)
    assert torch.equal(other(x), expected)
    fresh = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    for layer in (fresh[0], fresh[2]):
        topk_prune_(layer, density=0.3)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(x), expected)
    exact = model.eval()(x)
    finish_pruning(model)
    assert not parametrize.is_parametrized(model[0])
    assert set(model.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(model(x), exact)
    assert model[0].weight.count_nonzero() == 9
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), exact)
    finish_pruning(model)  # nothing is left to do
    parametrize.remove_parametrizations(fresh[0], "weight")  # torch's own way
    assert torch.equal(fresh(x), expected)


def trained(model, x, y, steps, schedule=None):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return model


def test_a_tenth_of_the_weights_is_better_chosen_in_training():
    """Against the largest tenth of a dense network of as many steps."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    held = torch.arange(len(x)) % 3 == 0

    def accuracy(model):
        return (model.eval()(x[held]).argmax(-1) == y[held]).float().mean().item()

    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model = copy.deepcopy(dense)
    for layer in (model[0], model[2]):
        topk_prune_(layer, density=0.1)
    schedule = WidthSchedule(model, total_steps=50)
    trained(model, x[~held], y[~held], 90, schedule)
    finish_pruning(model)
    trained(dense, x[~held], y[~held], 90)
    for layer in (dense[0], dense[2]):
        topk_prune_(layer, density=0.1)
    finish_pruning(dense)
    assert model[0].weight.count_nonzero() == dense[0].weight.count_nonzero() == 205
    assert accuracy(model) > accuracy(dense) + 0.05
    assert accuracy(model) > 0.85


@pytest.mark.slow
def test_compiled_and_meta():
    layer = nn.Linear(6, 5)
    topk_prune_(layer, k=7, eps=0.05)
    x = torch.randn(3, 6)
    compiled = torch.compile(layer, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    half = copy.deepcopy(layer).to(torch.bfloat16)(x.bfloat16())
    torch.testing.assert_close(half.float(), layer(x), rtol=0.05, atol=0.05)
    assert layer.to("meta")(x.to("meta")).shape == (3, 5)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, ValueError, "give k, .* got k=None, density=None"),
        ({"k": 31}, ValueError, "k must be at most the 30 weights of weight, got k=31"),
        ({"density": 0}, ValueError, "density must be above 0 and at most 1"),
        ({"name": "kernel", "k": 2}, ValueError, "name must be a parameter of Linear"),
        ({"k": 2, "eps": 0.0}, ValueError, "eps must be positive"),
    ],
)
def test_wrong_arguments(options, kind, message):
    with pytest.raises(kind, match=message):
        topk_prune_(nn.Linear(6, 5), **options)
    with pytest.raises(TypeError, match="k must be an int"):
        TopKPruning(2.5)
