"""Training of a translation model, in steps that can be stopped and taken up again.

The order of the pairs is a function of the seed and the epoch. The best weights so far are a part
of the state, as is what early stopping counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softtopk._training import SCHEDULES, DivergedError, Steps
from softtopk.distributed import mean
from softtopk.seq2seq import EncoderDecoder, hybrid_loss
from softtopk.seq2seq._risk import longest_for

from ..runs import AsInWholeBatch, processes, share
from ._batches import Batch, Pair, batches_per_epoch, epoch_order, make_batch

OBJECTIVES = ("teacher-forcing", "soft-beam", "membership", "risk")
OPTIMIZERS = ("adam", "sgd")
MOST_SKIPPED = 10  # updates in a row whose gradient is not finite


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train, in one stage."""

    updates: int
    period: int
    """Updates between two validations."""
    objective: str = "teacher-forcing"
    rho: float = 0.8
    """Weight of teacher forcing beside a search objective; below 1."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Options of the search objective."""
    batch_size: int = 64
    optimizer: str = "adam"
    lr: float = 1e-3
    final_lr: float = 1e-4
    schedule: str = "linear"
    warmup: int = 0
    """Updates over which the learning rate rises from near zero to what the schedule says."""
    clip: float = 1.0
    label_smoothing: float = 0.0
    scheduled_sampling: float = 0.0
    patience: int = 0
    """Validations without a better score after which to stop; 0 for never."""

    def lr_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0.

        >>> Recipe(updates=4, period=1, lr=1.0, final_lr=0.0).lr_at(1)
        0.75
        """
        end = 0.0 if self.schedule == "constant" else self.final_lr
        lr = end + (self.lr - end) * SCHEDULES[self.schedule](step / self.updates)
        return lr * (step + 1) / self.warmup if step < self.warmup else lr


class Loss(nn.Module):
    """The loss of a batch, per token of the reference, and its part of teacher forcing."""

    def __init__(self, model: EncoderDecoder, recipe: Recipe) -> None:
        super().__init__()
        self.model, self.recipe = model, recipe

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._of(batch, self.recipe.search)

    def _of(self, batch: Batch, search: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The encoder runs once for both, and once more if one of them is without dropout."""
        model, recipe, config = self.model, self.recipe, self.model.config
        memory, state = model.encode(batch.source)
        inputs = model.shift(batch.target)
        features = model.unroll(inputs, state, memory, sampling=recipe.scheduled_sampling)
        forced = F.cross_entropy(
            model.logits(features).flatten(0, 1),
            batch.target.flatten(),
            ignore_index=config.pad,
            label_smoothing=recipe.label_smoothing,
        )
        if recipe.objective == "teacher-forcing":
            return forced, forced
        # What the search returns is judged without dropout, as it is searched for in the end.
        with without_dropout(model) if recipe.objective == "risk" else nullcontext():
            if recipe.objective == "risk":
                memory, state = model.encode(batch.source)
                # By the padding, which some rows of a batch share with all of it.
                search = {**search, "max_len": longest_for(batch.target.shape[1])}
            loss = hybrid_loss(
                model.decoder(memory),
                state,
                model.target_embedding.weight,
                batch.target,
                rho=recipe.rho,
                objective=recipe.objective,  # type: ignore[arg-type]  # one of OBJECTIVES
                teacher_forcing=forced,
                bos=config.bos,
                eos=config.eos,
                pad=config.pad,
                **search,
            )
        return loss, forced


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Inside, nothing is dropped. The rest is as in training: on a GPU, recurrent layers have
    gradients in training only."""
    found = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.training]
    for module in found:
        module.eval()
    try:
        yield
    finally:
        for module in found:
            module.train()


class SharedLoss(Loss):
    """The same, of a batch that the processes share; the value is that of the whole batch."""

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        n, rows = len(batch.source), share(len(batch.source))
        tokens = (batch.target != self.model.config.pad).sum(1)
        mine = int(tokens[rows].sum())
        if not mine:  # of a batch with fewer pairs than processes: one that does not count
            rows = slice(0, 1)
        weight = mine / int(tokens.sum())
        search = dict(self.recipe.search)
        if search.get("selection_clip") is not None:
            # The gradients that it bounds have this factor, by what follows and by `mean`.
            search["selection_clip"] *= weight * processes.count()
        with AsInWholeBatch(rows, n):
            parts = self._of(Batch(batch.source[rows], batch.target[rows]), search)
        loss, forced = (mean(part * weight, count=1) for part in parts)
        return loss, forced


class Training(Steps):
    """Trains ``model`` on sentence pairs, one update at a time, by all processes that there are.

    Args:
        model: Moved to ``device``.
        pairs: To train on.
        recipe: How.
        seed: Of the order of the pairs, the dropout and what else is drawn.
        validate: Gives a model a score, which is the better the larger it is.
        device: Where to train.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        pairs: Sequence[Pair],
        recipe: Recipe,
        *,
        seed: int = 0,
        validate: Callable[[EncoderDecoder], float],
        device: torch.device | str = "cpu",
    ) -> None:
        where = torch.device(device)
        self.model = model.to(where)
        super().__init__(model, make_optimizer(model, recipe, where), seed, where)
        loss = (Loss if processes.count() == 1 else SharedLoss)(model, recipe)
        self.forward = processes.spread(loss)
        self.pairs, self.recipe, self._validate = pairs, recipe, validate
        self.steps_per_epoch = recipe.period
        self.seconds, self.cpu_seconds = 0.0, 0.0
        """Of the updates alone, without validations and checkpoints."""
        self.best: dict[str, Any] | None = None
        """Score, step and weights of the best validation."""
        self.stopped = False
        """Whether the score has not improved for too long."""
        self.skipped, self.in_a_row = 0, 0
        """Updates left out because the gradient was not finite: in all, and just now."""
        self._batches = batches_per_epoch(len(pairs), recipe.batch_size)
        self._order: list[list[int]] = []
        self._order_epoch = -1

    @property
    def total_steps(self) -> int:
        return self.step if self.stopped else self.recipe.updates

    def advance(self) -> dict[str, float]:
        """Take one step; returns its loss and the parts of it."""
        start, cpu = time.perf_counter(), time.process_time()
        batch = self._draw(self.step)
        parts: dict[str, float] = {}
        value = self.differentiate(self.recipe.lr_at(self.step), lambda: self._loss(batch, parts))
        size = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.recipe.clip or math.inf
        ).item()
        # Through a search a gradient can overflow that is none of the model's fault.
        self.in_a_row = 0 if math.isfinite(size) else self.in_a_row + 1
        if not math.isfinite(value) or self.in_a_row == MOST_SKIPPED:
            # Before the update: the weights are still those of the last finite loss.
            raise DivergedError(
                f"the loss is {value} and the norm of its gradient {size} at update "
                f"{self.step + 1} of {self.recipe.updates}: try a smaller learning rate"
            )
        if self.in_a_row:
            self.skipped += 1
        else:
            self.optimizer.step()
        self.step += 1
        self.seconds += time.perf_counter() - start
        self.cpu_seconds += time.process_time() - cpu
        return {"loss": value, **parts}

    def validate(self) -> dict[str, float]:
        """Score the weights, keep them if they are the best, and see whether to stop."""
        score = self._validate(self.model)
        if self.best is None or score > self.best["score"]:
            weights = {name: x.detach().clone() for name, x in self.model.state_dict().items()}
            self.best = {"score": score, "step": self.step, "since": 0, "weights": weights}
        else:
            self.best["since"] += 1
            # At once also if the patience of a training that is taken up has become less.
            self.stopped = self.best["since"] >= self.recipe.patience > 0
        return {"bleu": score}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "best": self.best,
            "stopped": self.stopped,
            "skipped": (self.skipped, self.in_a_row),
            "seconds": (self.seconds, self.cpu_seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.best, self.stopped = state["best"], state["stopped"]
        self.skipped, self.in_a_row = state["skipped"]
        self.seconds, self.cpu_seconds = state["seconds"]

    def _draw(self, step: int) -> Batch:
        epoch, i = divmod(step, self._batches)
        if epoch != self._order_epoch:
            self._order = epoch_order(self.pairs, self.recipe.batch_size, self.seed, epoch)
            self._order_epoch = epoch
        config = self.model.config
        rows = [self.pairs[row] for row in self._order[i]]
        batch = make_batch(rows, pad=config.pad, eos=config.eos)
        return Batch(batch.source.to(self.device), batch.target.to(self.device))

    def _loss(self, batch: Batch, parts: dict[str, float]) -> Tensor:
        """The loss, and with a search the ``parts`` it is made of."""
        loss, forced = self.forward(batch)
        if self.recipe.objective != "teacher-forcing":
            part, rho = forced.item(), self.recipe.rho
            parts |= {"teacher_forcing": part, "search": (loss.item() - rho * part) / (1 - rho)}
        return loss


def make_optimizer(
    model: EncoderDecoder, recipe: Recipe, device: torch.device
) -> torch.optim.Optimizer:
    """The optimiser of a recipe."""
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=recipe.lr)
    # One pass over the weights instead of one for each of Adam's operations.
    fused = device.type in ("cpu", "cuda")
    return torch.optim.Adam(model.parameters(), lr=recipe.lr, fused=fused)
