"""What the trainings of `softtopk knn train` start from, and how their images are changed."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from softtopk.experiments import images
from softtopk.experiments.knn._augmentation import Augmentation
from softtopk.experiments.knn._data import load
from softtopk.experiments.knn._execute import Model, Samples, make_training
from softtopk.experiments.knn._methods import METHODS
from softtopk.experiments.knn._settings import make_settings


def moved(image: Tensor, down: int, right: int) -> Tensor:
    """The image (c, h, w) seen from so many pixels further; its edges go on outside."""
    _, height, width = image.shape
    rows = [min(max(row + down, 0), height - 1) for row in range(height)]
    columns = [min(max(column + right, 0), width - 1) for column in range(width)]
    return image[:, rows][:, :, columns]


def test_every_image_is_shifted_by_itself_and_no_further() -> None:
    pictures = torch.rand(100, 2, 5, 6)
    shifts = list(itertools.product([-1, 0, 1], repeat=2))
    found = [
        [by for by in shifts if torch.equal(moved(image, *by), other)]
        for image, other in zip(pictures, Augmentation(shift=1)(pictures), strict=True)
    ]
    assert all(len(ways) == 1 for ways in found)
    assert {ways[0] for ways in found} == set(shifts)


def test_half_of_the_images_are_reflected_from_left_to_right() -> None:
    pictures = torch.rand(200, 2, 5, 6)
    changed = Augmentation(flip=True)(pictures)
    turned = (changed == pictures.flip(3)).flatten(1).all(1)
    assert torch.equal(changed[~turned], pictures[~turned])
    assert 60 < int(turned.sum()) < 140


@pytest.fixture
def samples() -> Samples:
    pictures, labels = torch.randn(30, 1, 8, 8), torch.arange(30) % 3
    return Samples(pictures, labels, pictures, labels, ("a", "b", "c"))


def first_weights(method: str, samples: Samples, seed: int) -> Tensor:
    model = Model(METHODS[method], make_settings({"threads": 1}), samples, seed)
    assert model.objective is not None
    return torch.cat([weights.flatten() for weights in model.objective.network.parameters()])


def test_all_methods_start_from_the_weights_of_the_seed(samples: Samples) -> None:
    start = first_weights("soft-topk", samples, seed=3)
    for method in ("ae", "ce", "pretrained", "neural-sort"):
        assert torch.equal(first_weights(method, samples, seed=3), start)
    assert not torch.equal(first_weights("soft-topk", samples, seed=4), start)


def test_the_order_of_the_images_is_that_of_the_seed(samples: Samples) -> None:
    model = Model(METHODS["ce"], make_settings({"threads": 1, "batch_size": 10}), samples, 0)
    orders = [make_training(model, seed)._draw(0)[0].tolist() for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]


def test_the_images_held_out_are_those_of_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings({"threads": 1, "holdout": 100})
    data = images.load("digits", None, subset=None, seed=0)
    monkeypatch.setattr(images, "load", lambda *_, **__: data)
    held_out = [load(settings, None, None, seed).test.inputs for seed in (3, 3, 4)]
    assert torch.equal(held_out[0], held_out[1])
    assert not torch.equal(held_out[0], held_out[2])
