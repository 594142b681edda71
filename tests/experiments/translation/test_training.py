"""The training of a translation model."""

from __future__ import annotations

import copy
import io
import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from softtopk._training import DivergedError, mix, seeded
from softtopk.experiments.translation._batches import Pair, epoch_order, make_batch
from softtopk.experiments.translation._settings import Settings, make_recipe
from softtopk.experiments.translation._training import (
    MOST_SKIPPED,
    OBJECTIVES,
    Loss,
    Recipe,
    Training,
)
from softtopk.seq2seq import (
    EncoderDecoder,
    Seq2Seq,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    hybrid_loss,
)

SIZES = {"source_vocab": 12, "target_vocab": 12, "embedding": 8, "hidden": 8}
TRANSFORMER = {"source_vocab": 12, "target_vocab": 12, "width": 8, "heads": 2, "feedforward": 8}
RECIPE = Recipe(updates=12, period=4, batch_size=4, lr=0.01, final_lr=0.001)
SEARCH = {
    "teacher-forcing": {},
    "soft-beam": {"beam_size": 3, "eps": 0.1, "follow": "best", "normalize": None},
    "membership": {"beam_size": 3, "eps": 1.0, "candidates": 8},
    "risk": {"beam_size": 4, "risk": lambda tokens, gold: misses(tokens, gold)},
}


def misses(tokens: torch.Tensor, gold: torch.Tensor) -> torch.Tensor:
    """The share of the reference's places that have another token."""
    width = max(tokens.shape[-1], gold.shape[-1])
    tokens = F.pad(tokens, (0, width - tokens.shape[-1]))
    gold = F.pad(gold, (0, width - gold.shape[-1])).unsqueeze(1)
    return ((tokens != gold) & (gold != 0)).sum(-1) / (gold != 0).sum(-1)


def some_pairs(n: int = 30) -> list[Pair]:
    """Reversals."""
    draw = random.Random(0)
    rows = [tuple(draw.randint(4, 11) for _ in range(draw.randint(1, 5))) for _ in range(n)]
    return [Pair(row, row[::-1]) for row in rows]


def advance(training: Training, steps: int) -> None:
    for _ in range(steps):
        training.advance()


def recipe_of(objective: str) -> Recipe:
    return replace(RECIPE, objective=objective, search=SEARCH[objective])


def make(
    recipe: Recipe = RECIPE,
    seed: int = 0,
    validate: Callable[[EncoderDecoder], float] = lambda model: 0.0,
    transformer: bool = False,
    **sizes: Any,
) -> Training:
    with seeded(mix(seed, "weights", 0), torch.device("cpu")):
        model: EncoderDecoder = (
            Transformer(TransformerConfig(**{**TRANSFORMER, **sizes}))
            if transformer
            else Seq2Seq(Seq2SeqConfig(**{**SIZES, **sizes}))
        )
    return Training(model, some_pairs(), recipe, seed=seed, validate=validate)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def test_teacher_forcing_is_the_plain_loop() -> None:
    """A loop that shares no code with the class, to the last bit, over an epoch's end."""
    training = make()
    found = [training.advance()["loss"] for _ in range(12)]
    with seeded(mix(0, "weights", 0), torch.device("cpu")):
        model = Seq2Seq(Seq2SeqConfig(**SIZES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    pairs = some_pairs()
    orders = [rows for epoch in (0, 1) for rows in epoch_order(pairs, 4, 0, epoch)]
    expected = []
    for step, rows in enumerate(orders[:12]):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 + (0.001 - 0.01) * step / 12
        batch = make_batch([pairs[i] for i in rows], pad=0, eos=3)
        with seeded(mix(0, "step", step), torch.device("cpu")):
            first = torch.full_like(batch.target[:, :1], 2)
            logits = model(batch.source, torch.cat([first, batch.target[:, :-1]], 1))
            loss = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        expected.append(loss.item())
    assert found == expected
    for ours, theirs in zip(training.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_hybrid_is_the_weighted_sum_of_its_parts(objective: str) -> None:
    training = make(replace(recipe_of(objective), rho=0.3), dropout=0.0)
    found = training.advance()
    if objective == "teacher-forcing":
        assert list(found) == ["loss"]
        return
    sum_of_parts = 0.3 * found["teacher_forcing"] + 0.7 * found["search"]
    assert found["loss"] == pytest.approx(sum_of_parts)
    fresh = make(recipe_of(objective), dropout=0.0)
    rows = epoch_order(fresh.pairs, 4, 0, 0)[0]
    batch = make_batch([fresh.pairs[i] for i in rows], pad=0, eos=3)
    memory, state = fresh.model.encode(batch.source)
    expected = hybrid_loss(
        fresh.model.decoder(memory),
        state,
        fresh.model.target_embedding.weight,
        batch.target,
        rho=0.3,
        objective=objective,
        **SEARCH[objective],
    )
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-5)
    search = hybrid_loss(
        fresh.model.decoder(memory),
        state,
        fresh.model.target_embedding.weight,
        batch.target,
        rho=0.0,
        objective=objective,
        **SEARCH[objective],
    )
    assert found["search"] == pytest.approx(search.item(), rel=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("optimizer", "transformer"), [("adam", False), ("sgd", False), ("adam", True)]
)
def test_a_training_that_is_loaded_goes_on_as_if_it_had_not_stopped(
    objective: str, optimizer: str, transformer: bool
) -> None:
    recipe = replace(recipe_of(objective), optimizer=optimizer, scheduled_sampling=0.5, warmup=8)
    made = partial(make, transformer=transformer)
    whole = made(recipe)
    expected = [whole.advance()["loss"] for _ in range(12)]
    first = made(recipe)
    found = [first.advance()["loss"] for _ in range(5)]
    second = made(recipe, seed=0)
    torch.manual_seed(99)  # has no say
    second.load_state_dict(through_a_file(first.state_dict()))
    assert second.step == 5
    found += [second.advance()["loss"] for _ in range(7)]
    assert found == expected
    for ours, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("objective", "transformer"), [*((name, False) for name in OBJECTIVES), ("membership", True)]
)
def test_the_loss_decreases(objective: str, transformer: bool) -> None:
    recipe = replace(recipe_of(objective), updates=60, lr=0.03, final_lr=0.01)
    training = make(recipe, dropout=0.0, transformer=transformer)
    losses = [training.advance()["loss"] for _ in range(60)]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


def test_a_risk_is_that_of_the_model_without_dropout() -> None:
    training = make(replace(recipe_of("risk"), rho=0.0), dropout=0.5)
    batch = make_batch(some_pairs(4), pad=0, eos=3)
    with torch.no_grad():
        found = [Loss(training.model, training.recipe)(batch)[0].item() for _ in range(2)]
        assert training.model.dropout.training
        training.model.eval()
        expected = Loss(training.model, training.recipe)(batch)[0].item()
    assert found == [expected] * 2


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make(recipe_of("soft-beam")).advance()
    assert torch.equal(torch.rand(3), expected)


def scored(scores: list[float]) -> Callable[[EncoderDecoder], float]:
    given = iter(scores)
    return lambda model: next(given)


def test_the_best_weights_are_kept() -> None:
    training = make(validate=scored([1.0, 3.0, 2.0, 3.0]))
    kept = []
    for _ in range(4):
        training.advance()
        kept.append({name: x.clone() for name, x in training.model.state_dict().items()})
        training.validate()
    assert training.best is not None
    assert (training.best["score"], training.best["step"]) == (3.0, 2)
    assert not training.stopped
    for name, tensor in training.best["weights"].items():
        assert torch.equal(tensor, kept[1][name])
    assert not torch.equal(kept[1]["output.weight"], kept[3]["output.weight"])


def test_it_stops_when_the_score_no_longer_improves() -> None:
    recipe = replace(RECIPE, patience=2)
    training = make(recipe, validate=scored([2.0, 1.0, 3.0, 3.0]))
    stops = []
    for _ in range(4):
        training.advance()
        assert training.total_steps == 12
        training.validate()
        stops.append(training.stopped)
    assert stops == [False] * 4
    other = make(recipe, validate=scored([2.5]))
    other.load_state_dict(through_a_file(training.state_dict()))  # with what patience counts
    other.advance()
    other.validate()
    assert other.stopped
    assert other.total_steps == other.step == 5
    assert other.best is not None
    assert other.best["step"] == 3
    again = make(recipe)
    again.load_state_dict(through_a_file(other.state_dict()))
    assert again.total_steps == 5


def test_less_patience_than_was_used_up_stops_too() -> None:
    first = make(validate=scored([2.0, 1.0, 1.0, 1.0]))
    for _ in range(4):
        first.validate()
    assert not first.stopped
    other = make(replace(RECIPE, patience=2), validate=scored([1.0]))
    other.load_state_dict(through_a_file(first.state_dict()))
    other.validate()
    assert other.stopped


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.6, 0.2]),
        ("cosine", [1.0, 0.6, 0.2]),
    ],
)
def test_the_learning_rate_ends_at_the_final_one(schedule: str, expected: list[float]) -> None:
    recipe = Recipe(updates=10, period=1, lr=1.0, final_lr=0.2, schedule=schedule)
    assert [recipe.lr_at(step) for step in (0, 5, 10)] == pytest.approx(expected)
    quarter = {"constant": 1.0, "linear": 0.76, "cosine": 0.6 + 0.4 * math.cos(0.3 * math.pi)}
    assert recipe.lr_at(3) == pytest.approx(quarter[schedule])


def test_the_learning_rate_rises_at_first() -> None:
    recipe = Recipe(updates=10, period=1, lr=1.0, final_lr=0.0, warmup=4)
    # A fraction of what the schedule has without it, and from the fourth update on all of it.
    expected = [0.25 * 1.0, 0.5 * 0.9, 0.75 * 0.8, 0.7, 0.6]
    assert [recipe.lr_at(step) for step in range(5)] == pytest.approx(expected)
    training = make(replace(RECIPE, optimizer="sgd", warmup=10, schedule="constant"))
    rates = []
    for _ in range(2):
        training.advance()
        rates.append(training.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.001, 0.002])


def test_only_the_pretraining_has_a_warmup() -> None:
    settings = Settings(pretrain_warmup=7)
    assert make_recipe("pretrain", settings, 10).warmup == 7
    assert make_recipe("membership", settings, 10).warmup == 0


def test_gradients_are_clipped() -> None:
    def change(clip: float) -> float:
        training = make(replace(RECIPE, optimizer="sgd", lr=1.0, final_lr=1.0, clip=clip))
        before = [p.detach().clone() for p in training.model.parameters()]
        training.advance()
        after = training.model.parameters()
        return math.sqrt(
            sum((a - b).square().sum().item() for a, b in zip(after, before, strict=True))
        )

    whole = change(0)
    assert whole > 0.2
    assert change(0.1) == pytest.approx(0.1, rel=1e-3)
    assert change(100.0) == pytest.approx(whole, rel=1e-6)


def test_label_smoothing_is_that_of_cross_entropy() -> None:
    plain, smooth = (
        make(replace(RECIPE, label_smoothing=share), dropout=0.0).advance()["loss"]
        for share in (0.0, 0.3)
    )
    training = make(dropout=0.0)
    rows = epoch_order(training.pairs, 4, 0, 0)[0]
    batch = make_batch([training.pairs[i] for i in rows], pad=0, eos=3)
    first = torch.full_like(batch.target[:, :1], 2)
    logits = training.model(batch.source, torch.cat([first, batch.target[:, :-1]], 1))
    uniform = -logits.log_softmax(-1).mean(-1)[batch.target != 0].mean()
    assert smooth == pytest.approx(0.7 * plain + 0.3 * uniform.item(), rel=1e-5)


def test_scheduled_sampling_changes_what_the_decoder_is_fed() -> None:
    losses = {
        share: make(replace(RECIPE, scheduled_sampling=share)).advance()["loss"]
        for share in (0.0, 1.0)
    }
    assert losses[0.0] != losses[1.0]


def test_a_diverging_training_keeps_the_last_finite_weights() -> None:
    recipe = replace(RECIPE, optimizer="sgd", lr=1e30, final_lr=1e30, clip=0.0)
    training = make(recipe)
    training.advance()  # the loss is finite still, and the update that follows is huge
    with pytest.raises(DivergedError, match=r"smaller learning rate"):
        advance(training, MOST_SKIPPED)
    assert all(p.isfinite().all() for p in training.model.parameters())


def test_an_update_whose_gradient_overflows_is_left_out() -> None:
    training = make(RECIPE)
    training.advance()
    before = copy.deepcopy(training.model.state_dict())
    hook = training.model.output.bias.register_hook(lambda grad: grad * math.inf)
    training.advance()
    assert training.skipped == 1
    assert training.step == 2
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(tensor, before[name])
    hook.remove()
    again = make(RECIPE)
    again.load_state_dict(training.state_dict())
    assert again.skipped == 1
    assert again.advance() == training.advance()
    assert (again.skipped, again.in_a_row) == (1, 0)
    training.model.output.bias.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(DivergedError, match="norm of its gradient"):
        advance(training, MOST_SKIPPED)
