"""Shapes, sizes and the choice of a network."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from softtopk._random import drawing_from
from softtopk.knn import MLP, ConvNet, ResNet, default_network, resnet8, resnet18, resnet20
from softtopk.knn._networks import Dropout, drawn_network


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [4, 8, 15, 16, 28, 32])
def test_convnet(channels: int, side: int) -> None:
    network = ConvNet((channels, side, side + 1), features=7)
    assert network(torch.randn(2, channels, side, side + 1)).shape == (2, 7)


def test_convnet_is_the_one_for_mnist() -> None:
    network = ConvNet((1, 28, 28))
    expected = (25 * 20 + 20) + (25 * 20 * 50 + 50) + (50 * 4 * 4 * 500 + 500)
    assert size(network) == expected
    assert (network(torch.randn(9, 1, 28, 28)) < 0).any()  # no activation at the end


def test_resnet18() -> None:
    """The published network has 11,173,962 parameters for ten classes, 5,130 in the last layer."""
    assert size(resnet18()) == 11_173_962 - 5_130
    small = resnet18(1, features=16)
    images = torch.randn(2, 1, 32, 32)
    assert small(images).shape == (2, 16)
    resolutions = []
    for block in small.blocks:
        block.register_forward_hook(lambda *args: resolutions.append(tuple(args[2].shape[1:])))
    small(images)
    stages = [(2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4)]
    assert resolutions == [stage for stage in stages for _ in range(2)]
    with pytest.raises(ValueError, match="features must be a multiple of 8, got features=12"):
        resnet18(3, 12)


@pytest.mark.parametrize(
    ("make", "blocks", "without", "rounded"),
    [(resnet8, 1, 75_290, 0.08), (resnet20, 3, 269_722, 0.27)],
)
def test_the_residual_networks_for_cifar10(
    make: Callable[..., ResNet], blocks: int, without: int, rounded: float
) -> None:
    """The published numbers of parameters are those with ten classes, in millions.

    ``without`` is the number with shortcuts that have no weights, as they are there.
    """
    network = make()
    last = 64 * 10 + 10
    shortcuts = (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)
    assert size(network) + last - shortcuts == without
    assert round((size(network) + last) / 1e6, 2) == round(without / 1e6, 2) == rounded
    convolutions = [
        layer
        for layer in network.modules()
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)
    ]
    assert len(convolutions) + 1 == 6 * blocks + 2  # the layer that is left out counts as one
    resolutions = []
    for block in network.blocks:
        block.register_forward_hook(lambda *args: resolutions.append(tuple(args[2].shape[1:])))
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 64)
    stages = [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    assert resolutions == [stage for stage in stages for _ in range(blocks)]
    assert make(1, features=8)(torch.randn(2, 1, 28, 28)).shape == (2, 8)
    with pytest.raises(ValueError, match="features must be a multiple of 4, got features=6"):
        make(3, 6)


def test_mlp() -> None:
    network = MLP((5,), hidden=(6, 7), features=8)
    assert size(network) == (5 * 6 + 6) + (6 * 7 + 7) + (7 * 8 + 8)
    assert isinstance(network[-1], nn.Linear)
    assert MLP((2, 3, 4), hidden=())(torch.zeros(2, 2, 3, 4)).shape == (2, 64)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1,), "MLP"),
        ((3, 2, 40), "MLP"),
        ((1, 8, 8), "ConvNet"),
        ((1, 28, 28), "ConvNet"),
        ((1, 32, 32), "ConvNet"),
        ((3, 16, 16), "ConvNet"),
        ((3, 32, 32), "ResNet"),
        ((1, 64, 64), "ResNet"),
    ],
)
def test_the_choice(shape: tuple[int, ...], name: str) -> None:
    network = default_network(shape)
    assert type(network).__name__ == name
    with torch.no_grad():
        assert network.eval()(torch.zeros(1, *shape)).ndim == 2


@pytest.mark.parametrize("shape", [(5,), (1, 8, 8), (3, 32, 32)])
def test_weights_of_a_seed_are_those_that_the_layers_draw(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    expected = default_network(shape).state_dict()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    torch.testing.assert_close(drawn_network(shape, 3).state_dict(), expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_dropout_of_a_seed_is_that_of_torch(share: float) -> None:
    x = torch.randn(50, 20)
    torch.manual_seed(3)
    expected = nn.Dropout(share)(x)
    with drawing_from(3, torch.device("cpu")):
        assert torch.equal(Dropout(share)(x), expected)
        assert torch.equal(Dropout(share).eval()(x), x)


@pytest.mark.parametrize("shape", [(), (3, 4), (0,), (1, 2, 3, 4)])
def test_no_such_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shape must be that of one sample"):
        default_network(shape)


def test_too_small_for_convolutions() -> None:
    with pytest.raises(ValueError, match=r"sides of at least 4, got \(1, 3, 8\); use MLP"):
        ConvNet((1, 3, 8))


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("columns", [4, 13, 100, 300])
def test_distances_begin_near_those_of_the_input(columns: int, seed: int | None) -> None:
    torch.manual_seed(0)
    network = default_network((columns,)) if seed is None else drawn_network((columns,), seed)
    assert network.shortcut is not None
    assert network.shortcut.shape == (min(max(columns, 64), 256), columns)
    x = torch.randn(200, columns)
    if columns <= 256:
        assert torch.equal(
            x @ network.shortcut.T, nn.functional.pad(x, (0, len(network.shortcut) - columns))
        )
    found, expected = (torch.pdist(z) for z in (network.eval()(x).detach(), x))
    assert 0.9 < (found / expected).mean() < 1.6
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.7


def test_shortcut_is_trained_and_saved() -> None:
    network = MLP((3,), features=4, shortcut=True)
    network(torch.randn(5, 3)).sum().backward()
    assert network.shortcut.grad.abs().sum() > 0
    assert "shortcut" in network.state_dict()
    assert "shortcut" not in MLP((3,), features=4).state_dict()
