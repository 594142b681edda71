"""A step that several processes share is the step of one, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ranks
import torch
from torch import Tensor, nn

from softtopk import knn
from softtopk._training import Steps
from softtopk.experiments.knn._augmentation import Augmentation
from softtopk.experiments.knn._objectives import Classification
from softtopk.experiments.runs import AsInWholeBatch, processes, share_out
from softtopk.experiments.translation._batches import Pair
from softtopk.experiments.translation._training import Loss, Recipe, Training
from softtopk.seq2seq import Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig

STEPS = 3
TOKENS = 30


def knn_training(network: nn.Module, shared: bool, **options: Any) -> knn.Training:
    inputs, labels = torch.randn(23, 1, 8, 8), torch.arange(23) % 3
    if options:
        objective: nn.Module = knn.KNNObjective(network, 3, **options)
    else:
        objective = Classification(network, 8, 3)
    recipe = knn.Recipe(batch_size=8, template_size=8, lr=0.1)
    augment = Augmentation(1, True)
    training = knn.Training(objective, inputs, labels, recipe, seed=1, augment=augment)
    if shared:
        share_out(network)
        training.forward = processes.spread(objective)
    return training


def translation(model: Any, shared: bool, objective: str, **search: Any) -> Training:
    lengths = torch.randint(1, 7, (2, 9)).tolist()
    pairs = [
        Pair(*(tuple(torch.randint(4, TOKENS, (n,)).tolist()) for n in both))
        for both in zip(*lengths, strict=True)
    ]
    recipe = Recipe(
        updates=9, period=9, objective=objective, search=search, rho=0.5, batch_size=7,
        optimizer="sgd", lr=0.1, scheduled_sampling=0.3 if not search else 0.0,
        label_smoothing=0.1,
    )  # fmt: skip
    training = Training(model, pairs, recipe, seed=1, validate=lambda _: 0.0)
    if not shared:
        training.forward = Loss(model, recipe)
    return training


def cases() -> Iterator[tuple[str, Callable[[bool], Steps]]]:
    mlp = {"features": 8, "dropout": 0.3}
    sizes = {"source_vocab": TOKENS, "target_vocab": TOKENS, "dropout": 0.3}

    def recurrent() -> nn.Module:
        return Seq2Seq(Seq2SeqConfig(embedding=8, hidden=8, **sizes))

    def transformer() -> nn.Module:
        return Transformer(TransformerConfig(width=8, heads=2, feedforward=8, **sizes))

    yield "batch norm", lambda s: knn_training(knn.resnet8(1, 8), s, objective="nll")
    yield "dropout", lambda s: knn_training(knn.MLP((1, 8, 8), **mlp), s, leave_one_out=True)
    yield "noise", lambda s: knn_training(knn.MLP((1, 8, 8)), s, relaxation="relaxed-subset")
    yield (
        "largest cost",
        lambda s: knn_training(knn.ConvNet((1, 8, 8), 8), s, options={"normalize": "batch"}),
    )
    yield "linear layer", lambda s: knn_training(knn.ConvNet((1, 8, 8), 8), s)
    yield "recurrent", lambda s: translation(recurrent(), s, "teacher-forcing")
    yield "transformer", lambda s: translation(transformer(), s, "teacher-forcing")
    yield (
        "soft beam",
        lambda s: translation(
            recurrent(), s, "soft-beam", beam_size=3, eps=0.5, selection_clip=0.1
        ),
    )
    yield (
        "membership",
        lambda s: translation(transformer(), s, "membership", beam_size=3, candidates=10),
    )
    yield (
        "risk",
        lambda s: translation(recurrent(), s, "risk", risk=longer_is_worse, beam_size=4),
    )


def longer_is_worse(tokens: Tensor, gold: Tensor) -> Tensor:
    """As a risk, far from all that is learned otherwise."""
    return ((tokens != 0).sum(-1) - (gold != 0).sum(-1, keepdim=True)).abs() / 10


def difference(make: Callable[[bool], Steps]) -> float:
    """The largest one of losses, weights and buffers after some steps."""
    ends = []
    for shared in (False, True):
        torch.manual_seed(0)
        training: Any = make(shared)
        losses = [torch.tensor(training.advance()["loss"]) for _ in range(STEPS)]
        ends.append([*losses, *training.module.state_dict().values()])
    return max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))


def differences(group: Any) -> dict[str, float]:
    torch.set_default_dtype(torch.float64)
    processes._patient = group
    return {name: difference(make) for name, make in cases()}


@pytest.fixture(scope="module")
def found() -> list[dict[str, float]]:
    """By process. Batches have sizes that three does not divide, and one has only two pairs."""
    return ranks.run_alone(3, differences)


@pytest.mark.parametrize("case", [name for name, _ in cases()])
def test_a_shared_step_is_that_of_one_process(found: list[dict[str, float]], case: str) -> None:
    assert max(by_case[case] for by_case in found) < 1e-12


def test_other_noise_is_refused() -> None:
    with AsInWholeBatch(slice(0, 2), 4), pytest.raises(NotImplementedError, match="dropout2d"):
        torch.nn.functional.dropout2d(torch.ones(2, 3, 4, 4))
