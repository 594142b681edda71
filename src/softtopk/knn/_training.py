"""Minibatch training of a feature network, in steps that can be stopped and taken up again.

All randomness is that of `Steps`, but the order of the samples: a function of the seed and the
epoch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from .._random import drawing_from
from .._training import SCHEDULES, DivergedError, Steps, mix

NEIGHBOURS = 9  # in training, as in the paper

Optimizer = Literal["sgd", "adamw"]
Schedule = Literal["constant", "cosine", "linear"]


class Outcome(NamedTuple):
    """What an objective makes of a minibatch."""

    loss: Tensor
    """Scalar, to be minimised."""
    accuracy: Tensor
    """Scalar, the fraction of correct predictions; NaN if the objective predicts nothing."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train.

    The defaults are those of the paper's table of parameter settings for kNN, except the number of
    epochs.
    """

    epochs: int = 10
    batch_size: int = 100
    """Queries in a step."""
    template_size: int = 100
    """Templates in a step, for objectives that use templates."""
    templates_per_class: int = 0
    """Templates of every class in a step at least, or all there are: beyond ``template_size``."""
    optimizer: Optimizer = "sgd"
    lr: float = 1e-3
    momentum: float = 0.9
    """For SGD."""
    weight_decay: float = 5e-4
    schedule: Schedule = "constant"
    """Of the learning rate, from ``lr`` to zero at the end unless it is constant."""
    warmup: float = 0.0
    """Share of all steps in which the learning rate rises to ``lr`` linearly."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "template_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an int of at least 1, got {name}={value!r}")
        floor = self.templates_per_class
        if isinstance(floor, bool) or not isinstance(floor, int) or floor < 0:
            raise ValueError(
                "templates_per_class must be an int of at least 0, "
                f"got templates_per_class={floor!r}"
            )
        for name in ("lr", "momentum", "weight_decay", "warmup"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name} must be a number, got {name}={value!r}")
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be finite and not negative, got {name}={value!r}")
        for name in ("momentum", "warmup"):
            if getattr(self, name) >= 1:
                raise ValueError(f"{name} must be below 1, got {name}={getattr(self, name)!r}")
        for name, choices in (("optimizer", ("sgd", "adamw")), ("schedule", tuple(SCHEDULES))):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )

    def lr_at(self, step: int, total: int) -> float:
        """The learning rate of a step, counted from 0, of ``total`` steps.

        >>> Recipe(lr=1.0, schedule="linear", warmup=0.5).lr_at(0, 4)
        0.5
        """
        rise = min(1.0, (step + 1) / max(1.0, self.warmup * total))
        return self.lr * rise * SCHEDULES[self.schedule](step / total)

    def training_k(self, k: int, n: int, leave_one_out: bool) -> int:
        """The number of neighbours to train with, if there are ``n`` samples: ``k`` or fewer.

        Of all templates of a step chosen, there would be nothing to learn.

        >>> Recipe(batch_size=100, template_size=100).training_k(9, 1000, leave_one_out=False)
        9
        >>> Recipe(batch_size=10, template_size=10).training_k(9, 1000, leave_one_out=False)
        5
        """
        queries = min(self.batch_size, n // 2)
        templates = min(self.template_size, n - queries)
        if leave_one_out:  # the queries of the smallest batch, without the one in question
            templates += n // math.ceil(n / queries) - 1
        return min(k, max(1, templates // 2))


def sizes_for(n: int, classes: int = 0, k: int = NEIGHBOURS) -> dict[str, int]:
    """The sizes of a `Recipe` for n samples of any kind; docs/knn.md has the reasons.

    A step has n / 10 queries and as many templates, but 100 to 400 of each, and of every class as
    many templates as there are neighbours, but 2000 in all. There are 8 √n steps, but 50 to 4000.

    >>> sizes_for(10_000, classes=5)
    {'epochs': 32, 'batch_size': 400, 'template_size': 400, 'templates_per_class': 9}
    """
    size = min(max(n // 10, 100), 400)
    steps = min(max(8 * math.sqrt(n), 50), 4000)
    return {
        "epochs": math.ceil(steps / math.ceil(n / max(1, min(size, n // 2)))),
        "batch_size": size,
        "template_size": size,
        "templates_per_class": min(k, 2000 // classes) if classes else 0,
    }


class Training(Steps):
    """Trains ``objective`` on samples, one step at a time.

    Args:
        objective: Called as ``objective(inputs, labels)``, returns an `Outcome`. Has an attribute
            ``uses_templates``; if it is true, the rows are queries followed by templates, and
            the call is ``objective(inputs, labels, n_queries)``. No template is among the queries.
        inputs: (n, ...) samples, on any device; each minibatch is moved to ``device``.
        labels: (n,) integers, or whatever the objective takes, a row for each sample.
        recipe: How.
        weights: (n,) of the samples in the loss, for objectives that take ``weights``.
        seed: Of the order, the templates, the augmentation and whatever the objective draws.
        augment: Maps a minibatch of inputs to a randomly changed one of the same shape.
        device: Where to train. The objective is moved there.
        own_generator: Draw from a generator of this training alone, so that trainings in several
            threads do not meet. It is for an objective and an augmentation whose random numbers
            all come from `softtopk._random.source`. Other ones draw from torch's global
            generators, which are seeded for a step and then put back: of several threads, one at
            a time takes a step.
    """

    def __init__(
        self,
        objective: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        recipe: Recipe,
        *,
        weights: Tensor | None = None,
        seed: int = 0,
        augment: Callable[[Tensor], Tensor] | None = None,
        device: torch.device | str = "cpu",
        own_generator: bool = False,
    ) -> None:
        if len(inputs) != len(labels):
            raise ValueError(f"inputs and labels differ in length: {len(inputs)} and {len(labels)}")
        self.uses_templates = bool(objective.uses_templates)
        if len(inputs) < 1 + self.uses_templates:
            raise ValueError(f"too few samples to train on, got {len(inputs)}")
        # Convolutions of a few channels are about a third faster in this layout on a CPU.
        self._layout = torch.channels_last if inputs.ndim == 4 else torch.contiguous_format
        self.objective = objective.to(device)
        self.objective.to(memory_format=self._layout)  # type: ignore[call-overload] # not in stubs
        optimizer = _optimizer(self.objective, recipe)
        super().__init__(self.objective, optimizer, seed, torch.device(device))
        self.inputs, self.labels, self.weights = inputs, labels, weights
        self.recipe, self.augment = recipe, augment
        if own_generator:
            self.seeded = drawing_from
        n = len(inputs)
        batch = min(recipe.batch_size, n // 2 if self.uses_templates else n)
        self.steps_per_epoch = math.ceil(n / batch)
        self._order = torch.empty(0, dtype=torch.long, device="cpu")
        self._order_epoch = -1
        self._labels = labels.cpu()
        self._rows_of = [
            (self._labels == label).nonzero().squeeze(1)
            for label in range(int(self._labels.max()) + 1 if recipe.templates_per_class else 0)
        ]

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def epoch(self) -> int:
        """Epochs completed."""
        return self.step // self.steps_per_epoch

    def advance(self) -> dict[str, float]:
        """Take one step; returns its loss and accuracy."""
        queries, templates = self._draw(self.step)
        rows = torch.cat([queries, templates])
        inputs = self.inputs[rows].to(self.device, memory_format=self._layout)
        labels = self.labels[rows].to(self.device)
        weighted = {}
        if self.weights is not None:
            weighted["weights"] = self.weights[rows].to(self.device)
        accuracy = math.nan

        def loss_of() -> Tensor:
            nonlocal accuracy
            changed = inputs if self.augment is None else self.augment(inputs)
            extra = [len(queries)] if self.uses_templates else []
            outcome: Outcome = self.forward(changed, labels, *extra, **weighted)
            accuracy = outcome.accuracy.item()
            return outcome.loss

        loss = self.differentiate(self.recipe.lr_at(self.step, self.total_steps), loss_of)
        if not math.isfinite(loss):
            # Before the update: the weights are still those of the last finite loss.
            raise DivergedError(
                f"the loss is {loss} at step {self.step + 1} of {self.total_steps}, "
                f"with lr={self.recipe.lr:g}: try a smaller learning rate or a longer warmup"
            )
        with torch.device("cpu"):  # where it counts its steps, whatever the default device is
            self.optimizer.step()
        self.step += 1
        return {"loss": loss, "accuracy": accuracy}

    def _draw(self, step: int) -> tuple[Tensor, Tensor]:
        """Rows of the queries and of the templates of a step."""
        n = len(self.inputs)
        epoch, i = divmod(step, self.steps_per_epoch)
        if epoch != self._order_epoch:
            generator = torch.Generator("cpu").manual_seed(mix(self.seed, "epoch", epoch))
            self._order = torch.randperm(n, generator=generator, device="cpu")
            self._order_epoch = epoch
        # Batches of equal size, up to one: a last batch of a single sample would break batch norm.
        start, end = i * n // self.steps_per_epoch, (i + 1) * n // self.steps_per_epoch
        queries = self._order[start:end]
        if not self.uses_templates:
            return queries, queries[:0]
        others = n - len(queries)
        draw = random.Random(mix(self.seed, "templates", step))
        chosen = draw.sample(range(others), min(self.recipe.template_size, others))
        picked = torch.tensor(chosen, device="cpu")
        templates = self._order[(end + picked) % n]
        if self.recipe.templates_per_class:
            templates = torch.cat([templates, self._missing(queries, templates, draw)])
        return queries, templates

    def _missing(self, queries: Tensor, templates: Tensor, draw: random.Random) -> Tensor:
        """Rows to add to the templates, so that there are enough of every class."""
        free = torch.ones(len(self.inputs), dtype=torch.bool, device="cpu")
        free[queries] = free[templates] = False
        counts = torch.bincount(self._labels[templates], minlength=len(self._rows_of))
        added: list[int] = []
        for rows, count in zip(self._rows_of, counts.tolist(), strict=True):
            if count < self.recipe.templates_per_class:
                rest = rows[free[rows]].tolist()
                wanted = self.recipe.templates_per_class - count
                added += draw.sample(rest, min(wanted, len(rest)))
        return torch.tensor(added, dtype=torch.long, device="cpu")


class TrainingWarning(UserWarning):
    """A training got worse, and its best weights were taken."""


class Guard:
    """Notices that a training has got worse, and holds the weights from before.

    It follows an exponential average of the loss, as single steps scatter. A training that goes
    well ends near the lowest average, with its last weights. One that collapses does not. The first
    steps are too few for an average, and are not looked at.

    Args:
        module: What is trained.
        steps: Steps of the whole training.

    >>> guard = Guard(torch.nn.Linear(2, 2), steps=100)
    >>> for step in range(100):
    ...     guard.follow(1.0 if step < 50 else 3.0)
    >>> guard.worse
    True
    """

    _MEMORY = 0.05  # share of the steps that the average looks back on, at least 10 steps
    _CHECKS = 50  # times that the weights are looked at, as a copy may be large
    _FIRST = 10  # steps before the first look
    # Absolute, relative, and in standard errors of the average.
    _TOLERANCE = (0.05, 0.1, 3.0)

    def __init__(self, module: nn.Module, steps: int) -> None:
        self._module = module
        self._decay = 1 - 1 / max(float(self._FIRST), self._MEMORY * steps)
        self._every = max(1, steps // self._CHECKS)
        self._sum = self._squares = self._weight = 0.0
        self._step = 0
        self.best = math.inf
        """The lowest average at a check."""
        self.weights: dict[str, Tensor] = {}
        """The weights then."""

    @property
    def average(self) -> float:
        return self._sum / self._weight if self._weight else math.nan

    @property
    def worse(self) -> bool:
        """Whether the average is clearly above the lowest one."""
        absolute, relative, errors = self._TOLERANCE
        tolerance = absolute + relative * abs(self.best) + errors * self._error
        return self.average > self.best + tolerance

    @property
    def _error(self) -> float:
        """Standard error of the average, from how the losses scatter."""
        if not self._weight:
            return 0.0
        variance = max(0.0, self._squares / self._weight - self.average * self.average)
        return math.sqrt(variance * (1 - self._decay) / (1 + self._decay))

    def follow(self, loss: float) -> None:
        """Take note of the loss of another step."""
        self._sum = self._decay * self._sum + (1 - self._decay) * loss
        self._squares = self._decay * self._squares + (1 - self._decay) * loss * loss
        self._weight = self._decay * self._weight + (1 - self._decay)
        self._step += 1
        if self._step < self._FIRST:
            return
        if self._step % self._every == 0 and self.average < self.best:
            self.best = self.average
            self.weights = {
                name: value.detach().clone() for name, value in self._module.state_dict().items()
            }

    def restore(self) -> None:
        """Put the weights of the best check back."""
        if self.weights:
            self._module.load_state_dict(self.weights)


def _optimizer(objective: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    parameters = [p for p in objective.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the network has no parameters to train")
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
    return torch.optim.AdamW(parameters, lr=recipe.lr, weight_decay=recipe.weight_decay)
