"""Pruning by the soft top-k of magnitudes."""

import copy

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close

from softtopk import WidthSchedule
from softtopk.nn import TopKPruning, finish_pruning_, topk_prune_

STEPS = 160


def pruning_of(module: nn.Module) -> TopKPruning:
    return module.parametrizations.weight[0]  # type: ignore[union-attr,index,return-value]


def largest_kept(weight: torch.Tensor, k: int) -> torch.Tensor:
    kept = torch.zeros(weight.numel())
    kept[weight.abs().flatten().topk(k).indices] = 1.0
    return weight * kept.view_as(weight)


def test_the_soft_weight_has_the_budget_and_becomes_the_hard_one() -> None:
    layer = nn.Conv2d(3, 4, 3)
    weight = layer.weight.detach().clone()
    topk_prune_(layer, k=17, eps=0.05)
    kept = layer.weight / weight
    assert_close(kept.sum(), torch.tensor(17.0))
    assert ((kept > 0.05) & (kept < 0.95)).sum() > 5
    pruning_of(layer).eps = 1e-6
    assert_close(layer.weight, largest_kept(weight, 17))
    pruning_of(layer).eps = 1.0
    assert_close(layer.eval().weight, largest_kept(weight, 17), rtol=0, atol=0)


def test_gradients() -> None:
    pruning = TopKPruning(4, eps=0.3, dim=(0, 1)).double()
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(pruning, weight)
    assert torch.autograd.gradgradcheck(pruning, weight)


def accuracies(train: bool) -> tuple[float, float]:
    """Of a network with a tenth of its weights, trained so, or cut after it was trained; and of it
    before it is made hard."""
    torch.manual_seed(0)
    x, y = (torch.as_tensor(each) for each in load_digits(return_X_y=True))
    x, order = x.float() / 16, torch.randperm(len(x))
    seen, held = order[:1200], order[1200:]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    layers = (net[0], net[2])
    if train:
        for layer in layers:
            topk_prune_(layer, density=0.1)
        schedule = WidthSchedule(net, total_steps=STEPS // 8)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step in range(STEPS):
        batch = seen[torch.randint(len(seen), (128,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
        optimizer.step()
        if train and step % 6 == 0:
            schedule.step()

    def accuracy() -> float:
        return (net(x[held]).argmax(-1) == y[held]).float().mean().item()

    before = accuracy()
    if not train:
        for layer in layers:
            topk_prune_(layer, density=0.1)
    finish_pruning_(net)
    assert [int(layer.weight.count_nonzero()) for layer in layers] == [410, 64]
    return accuracy(), before


def test_a_network_is_trained_to_a_tenth_of_its_weights() -> None:
    (trained, soft), (cut, dense) = accuracies(train=True), accuracies(train=False)
    assert dense > 0.93
    assert cut < 0.7  # which is why one does not cut
    assert trained > 0.88
    assert abs(trained - soft) < 0.02  # made hard, it is as good


def test_it_lives_with_the_rest_of_torch() -> None:
    layer = topk_prune_(nn.Linear(8, 6), density=0.25)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.parametrizations.weight.original.zero_()  # type: ignore[union-attr]
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(3, 8)
    assert_close(twin(x), layer(x))
    assert_close(twin.eval().weight, layer.eval().weight)
    half = topk_prune_(nn.Linear(8, 6, dtype=torch.bfloat16), density=0.25)
    assert half(x.bfloat16()).isfinite().all()
    parameter = layer.parametrizations.weight.original  # type: ignore[union-attr]
    finish_pruning_(layer)
    assert layer.weight is parameter  # the optimiser's
    assert type(layer) is nn.Linear


@pytest.mark.slow
def test_compiled() -> None:
    layer = topk_prune_(nn.Linear(8, 6), k=5, eps=0.1)
    x = torch.randn(3, 8)
    assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "wait", "k": 1}, "name must be that of a parameter .* got name='wait' for Lin"),
        ({}, "give k or density, one of them, got k=None and density=None"),
        ({"k": 1, "density": 0.1}, "one of them, got k=1 and density=0.1"),
        ({"density": 0.0}, "density must be above 0 and at most 1, got density=0.0"),
        ({"density": 1.5}, "density must be above 0 and at most 1, got density=1.5"),
        ({"k": 49}, "k must be between 0 and n=48"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    layer = nn.Linear(8, 6)
    with pytest.raises(ValueError, match=message):
        topk_prune_(layer, **arguments)  # type: ignore[arg-type]
    assert not hasattr(layer, "parametrizations")
    with pytest.raises(ValueError, match="name='weight' is parametrised already"):
        topk_prune_(topk_prune_(layer, k=1), k=1)
