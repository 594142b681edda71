"""Feature networks, without the layer that would turn features into classes.

None ends with an activation: the features are compared by their distances.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from .._random import source
from .._training import seeded

#: A network, or what makes one for samples of a shape.
NetworkLike = nn.Module | Callable[[tuple[int, ...]], nn.Module]


def default_network(shape: Sequence[int]) -> nn.Module:
    """The network for samples of a shape, with random weights.

    - flat samples, and images with a side below 4: `MLP` with a shortcut
    - colour images (three channels or more) of at least 32 × 32, and images of any colour of at
      least 64 × 64: `resnet18`
    - other images: `ConvNet`

    >>> [type(default_network(s)).__name__ for s in [(64,), (1, 28, 28), (3, 32, 32)]]
    ['MLP', 'ConvNet', 'ResNet']
    """
    shape = _check_shape(shape)
    side = min(shape[1:]) if len(shape) == 3 else 0
    if side < _SMALLEST_SIDE:
        # The shortcut is the identity up to so many columns: training starts from plain kNN.
        columns = math.prod(shape)
        return MLP(shape, features=min(max(columns, 64), 256), shortcut=True)
    if side >= (32 if shape[0] >= 3 else 64):
        return resnet18(shape[0])
    return ConvNet(shape)


def drawn_network(shape: Sequence[int], seed: int) -> nn.Module:
    """The `default_network` in float32 on the CPU, with the weights of a seed.

    Layers draw their weights from torch's global generator when they are made. On the meta device
    they draw nothing; their weights are drawn here, as the layers would do it.
    """
    with torch.device("meta"):
        network = default_network(shape)
    network = network.to(torch.float32).to_empty(device="cpu")
    generator = torch.Generator("cpu").manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
        elif isinstance(layer, MLP):
            layer.reset_shortcut(generator)
    return network


def given_network(
    network: NetworkLike, sample: Tensor, device: torch.device, seed: int
) -> nn.Module:
    """A copy of a module, or what a function makes, tried on a ``sample`` (1, ...).

    That completes lazy layers too. The seed decides random weights.
    """
    shape = tuple(sample.shape[1:])
    with seeded(seed, device):
        made = copy.deepcopy(network) if isinstance(network, nn.Module) else _made(network, shape)
        if not isinstance(made, nn.Module):
            raise TypeError(f"network must make an nn.Module, got {type(made).__name__}")
        made = made.to(device).eval()
        try:
            with torch.no_grad():
                features = made(sample.to(device))
        except RuntimeError as error:
            raise ValueError(
                f"network cannot take a sample of shape {shape} ({error}); change it, or set "
                "image_shape if the columns are pixels"
            ) from error
    if not isinstance(features, Tensor) or features.ndim != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"network must map samples (n, {', '.join(map(str, shape))}) to features (n, d), got "
            f"{got} for one sample; end it with nn.Flatten()"
        )
    return made


def _made(make: Callable[[tuple[int, ...]], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    try:
        with torch.device("cpu"):  # whatever the default device is: it moves afterwards
            return make(shape)
    except TypeError as error:
        raise TypeError(
            f"network={make!r} cannot be called with {shape}, the shape of a sample ({error}); "
            "give a module, or a function of that shape"
        ) from error


class Dropout(nn.Dropout):
    """That of torch, with random numbers from `softtopk._random.source`."""

    def forward(self, x: Tensor) -> Tensor:
        generator = source()
        if generator is None or not self.training or self.p in (0, 1):  # nothing to draw
            return super().forward(x)
        kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=generator)
        return x * kept.div_(1 - self.p)


class MLP(nn.Sequential):
    """Linear layers with ReLU between them, for flat samples: ``(n, *shape) -> (n, features)``.

    Args:
        shape: Of a sample.
        hidden: Sizes of the layers between.
        features: Size of the last one.
        dropout: Share of the inputs of every layer that training sets to zero.
        shortcut: Add a linear map of the input to the features. It starts as the identity, or, of
            more inputs than features, as a random projection that keeps distances on average. So
            the distances at first are nearly those of the input.

    >>> MLP((13,), hidden=(32,), features=8)(torch.zeros(5, 13)).shape
    torch.Size([5, 8])
    """

    shortcut: nn.Parameter | None

    def __init__(
        self,
        shape: Sequence[int],
        *,
        hidden: Sequence[int] = (256,),
        features: int = 64,
        dropout: float = 0.1,
        shortcut: bool = False,
    ) -> None:
        sizes = [math.prod(_check_shape(shape)), *hidden, features]
        layers: list[nn.Module] = [nn.Flatten()]
        for size, next_size in pairwise(sizes):
            layers += [Dropout(dropout), nn.Linear(size, next_size), nn.ReLU()]
        super().__init__(*layers[:-1])
        self.arguments = {
            "shape": [*shape], "hidden": [*hidden], "features": features, "dropout": dropout,
            "shortcut": shortcut,
        }  # fmt: skip
        weight = nn.Parameter(torch.empty(features, sizes[0])) if shortcut else None
        self.register_parameter("shortcut", weight)
        self.reset_shortcut()

    def reset_shortcut(self, generator: torch.Generator | None = None) -> None:
        """Make the shortcut, if there is one, what it starts from."""
        if self.shortcut is None:
            return
        features, inputs = self.shortcut.shape
        with torch.device(self.shortcut.device):  # whatever the default device is
            if inputs <= features:
                nn.init.eye_(self.shortcut)
            else:
                nn.init.orthogonal_(self.shortcut, math.sqrt(inputs / features), generator)

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (B, ...) -> features (B, d)."""
        features: Tensor = super().forward(x)
        if self.shortcut is None:
            return features
        return features + nn.functional.linear(x.flatten(1), self.shortcut)


_SMALLEST_SIDE = 4  # what two poolings leave something of


class ConvNet(nn.Sequential):
    """The paper's network for MNIST: two convolutions of 20 and 50 channels, and a linear layer.

    Each convolution is followed by ReLU and by 2 × 2 max pooling. Its window is 5 × 5 without
    padding, for images of 28 × 28 and the like, and 3 × 3 with padding for images with a side
    below 16, as those of 8 × 8. ``(n, channels, height, width) -> (n, features)``.

    >>> ConvNet((1, 28, 28))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 500])
    """

    def __init__(self, shape: Sequence[int], features: int = 500) -> None:
        shape = _check_shape(shape)
        if len(shape) != 3 or min(shape[1:]) < _SMALLEST_SIDE:
            raise ValueError(
                "shape must be (channels, height, width) with sides of at least "
                f"{_SMALLEST_SIDE}, got {shape}; use MLP"
            )
        window, padding = (5, 0) if min(shape[1:]) >= 16 else (3, 1)
        lost = window - 1 - 2 * padding
        height, width = (((side - lost) // 2 - lost) // 2 for side in shape[1:])
        super().__init__(
            nn.Conv2d(shape[0], 20, window, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, window, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * height * width, features),
        )
        self.arguments = {"shape": [*shape], "features": features}


def resnet18(channels: int = 3, features: int = 512) -> ResNet:
    """ResNet-18 for images of about 32 × 32, without its last layer: 512 features.

    Four stages of two blocks, of 64, 128, 256 and 512 channels. As usual for images this small,
    the first convolution is 3 × 3 of stride 1 and there is no max pooling after it. Other numbers
    of ``features`` scale the channels of all stages. ``(n, channels, height, width) ->
    (n, features)``.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

    >>> sum(p.numel() for p in resnet18().parameters())
    11168832
    """
    return ResNet(channels, features, blocks=(2, 2, 2, 2))


def resnet8(channels: int = 3, features: int = 64) -> ResNet:
    """ResNet-8, the smallest residual network for CIFAR-10: `resnet20` with one block in a stage.

    >>> resnet8()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 64])
    """
    return ResNet(channels, features, blocks=(1, 1, 1))


def resnet20(channels: int = 3, features: int = 64) -> ResNet:
    """ResNet-20, made for CIFAR-10, without its last layer: 64 features.

    Three stages of three blocks, of 16, 32 and 64 channels: a fortieth of the weights of
    `resnet18`. Where the shapes differ, the shortcut is a 1 × 1 convolution, as it is there; in the
    reference it has no weights. Other numbers of ``features`` scale the channels of all stages.
    ``(n, channels, height, width) -> (n, features)``.

    References:
        He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2.

    >>> sum(p.numel() for p in resnet20().parameters())
    271824
    """
    return ResNet(channels, features, blocks=(3, 3, 3))


class ResNet(nn.Module):
    """A residual network of basic blocks; every stage but the first halves the resolution and
    doubles the channels, up to ``features``."""

    def __init__(self, channels: int, features: int, blocks: Sequence[int]) -> None:
        super().__init__()
        width, rest = divmod(features, 2 ** (len(blocks) - 1))
        if rest or width < 1:
            raise ValueError(
                f"features must be a multiple of {2 ** (len(blocks) - 1)}, got features={features}"
            )
        self.stem = nn.Sequential(_conv3(channels, width), nn.BatchNorm2d(width), nn.ReLU())
        layers, size = [], width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(_Block(size, size * stride, stride))
                size *= stride
        self.blocks = nn.Sequential(*layers)
        self.arguments = {"channels": channels, "features": features, "blocks": [*blocks]}

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W) -> features (B, d), the means over the places."""
        out: Tensor = self.blocks(self.stem(images))
        return out.mean((-2, -1))


OURS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (MLP, ConvNet, ResNet)}
"""The networks that a file can describe: by their name and their ``arguments``."""


class _Block(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut; a 1 × 1 convolution where the shapes differ."""

    def __init__(self, size_in: int, size: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv3(size_in, size, stride),
            nn.BatchNorm2d(size),
            nn.ReLU(),
            _conv3(size, size),
            nn.BatchNorm2d(size),
        )
        self.shortcut: nn.Module = nn.Identity()
        if (size_in, stride) != (size, 1):
            self.shortcut = nn.Sequential(
                nn.Conv2d(size_in, size, 1, stride=stride, bias=False), nn.BatchNorm2d(size)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _conv3(size_in: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(size_in, size, 3, stride=stride, padding=1, bias=False)


def _check_shape(shape: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(int(size) for size in shape)
    if len(shape) not in (1, 3) or min(shape) < 1:
        raise ValueError(
            "shape must be that of one sample, (features,) or (channels, height, width), "
            f"got {shape}"
        )
    return shape
