"""Training in steps: what is drawn, what is reproducible, what can be taken up again."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from softtopk.knn import DivergedError, Outcome, Recipe, Training
from softtopk.knn._training import Guard


class Recorder(nn.Module):
    """An objective that notes the samples it is given; has dropout, so that chance matters."""

    def __init__(self, uses_templates: bool, explode_at: int | None = None) -> None:
        super().__init__()
        self.uses_templates = uses_templates
        self.network = nn.Sequential(nn.Linear(1, 3), nn.Dropout(0.5), nn.Linear(3, 1))
        self.calls: list[tuple[list[int], list[int]]] = []
        self._explode_at = explode_at

    def forward(self, inputs: Tensor, labels: Tensor, n_queries: int | None = None) -> Outcome:
        samples = labels.tolist()
        self.calls.append((samples[:n_queries], samples[n_queries:] if n_queries else []))
        loss = (self.network(inputs) - 1).square().mean()
        if self._explode_at is not None and len(self.calls) > self._explode_at:
            loss = loss / 0.0
        return Outcome(loss, torch.tensor(0.5))


def make(n: int, seed: int = 0, templates: bool = True, **recipe: Any) -> Training:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        objective = Recorder(templates)
    samples = torch.linspace(-1, 1, n).unsqueeze(1)
    return Training(objective, samples, torch.arange(n), Recipe(**recipe), seed=seed)


def finish(training: Training) -> list[dict[str, float]]:
    return [training.advance() for _ in range(training.total_steps - training.step)]


@given(st.integers(2, 60), st.integers(1, 30), st.integers(1, 70), st.booleans())
def test_every_sample_is_a_query_once_an_epoch_and_never_its_own_template(
    n: int, batch_size: int, template_size: int, uses_templates: bool
) -> None:
    training = make(
        n, templates=uses_templates, batch_size=batch_size, template_size=template_size, epochs=2
    )
    finish(training)
    calls = training.objective.calls
    half = len(calls) // 2
    orders = []
    for epoch in (calls[:half], calls[half:]):
        order = [sample for queries, _ in epoch for sample in queries]
        assert sorted(order) == list(range(n))
        sizes = {len(queries) for queries, _ in epoch}
        assert max(sizes) <= batch_size
        assert max(sizes) - min(sizes) <= 1
        orders.append(order)
    for queries, drawn in calls:
        assert not set(queries) & set(drawn)
        assert len(set(drawn)) == len(drawn)
        assert len(drawn) == (min(template_size, n - len(queries)) if uses_templates else 0)
    if n > 20:
        assert orders[0] != orders[1]


def test_templates_are_drawn_from_all_samples() -> None:
    training = make(30, batch_size=10, template_size=10, epochs=40)
    finish(training)
    counts = torch.zeros(30)
    for _, drawn in training.objective.calls:
        counts[drawn] += 1
    expected = 40 * 3 * 10 / 30
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_the_result_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = finish(make(40, batch_size=10))
    torch.manual_seed(2)
    assert finish(make(40, batch_size=10)) == first
    assert finish(make(40, batch_size=10, seed=1)) != first


def test_every_step_draws_anew() -> None:
    drawn = []

    def note(inputs: Tensor) -> Tensor:
        drawn.append(torch.rand(()).item())
        return inputs

    training = make(40, batch_size=10)
    training.augment = note
    finish(training)
    assert len(set(drawn)) == training.total_steps


def test_the_global_generator_is_left_alone() -> None:
    training = make(40, batch_size=10)
    before = torch.get_rng_state()
    finish(training)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("at", [0, 1, 7, 19])
def test_a_training_goes_on_from_its_state(at: int, optimizer: Any) -> None:
    recipe = {"batch_size": 10, "epochs": 5, "schedule": "cosine", "optimizer": optimizer}
    whole = finish(make(40, **recipe))
    first = make(40, **recipe)
    head = [first.advance() for _ in range(at)]
    state = copy.deepcopy(first.state_dict())
    second = make(40, **recipe)
    second.load_state_dict(state)
    assert head + finish(second) == whole


def test_training_lowers_the_loss() -> None:
    losses = [step["loss"] for step in finish(make(40, batch_size=10, epochs=50, lr=0.05))]
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_lost() -> None:
    training = Training(
        Recorder(False, explode_at=3), torch.ones(40, 1), torch.zeros(40).long(), Recipe()
    )
    with pytest.raises(DivergedError, match=r"step 4 .* learning rate"):
        finish(training)
    assert all(parameter.isfinite().all() for parameter in training.objective.parameters())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        (
            "cosine",
            [0.5, *(0.5 + 0.5 * math.cos(math.pi * i / 8) for i in range(1, 8))],
        ),
    ],
)
def test_schedules(schedule: Any, expected: list[float]) -> None:
    recipe = Recipe(lr=2.0, schedule=schedule, warmup=0.25)
    rates = [recipe.lr_at(step, 8) for step in range(8)]
    assert rates == pytest.approx([2 * rate for rate in expected])


def test_the_optimiser_follows_the_schedule() -> None:
    training = make(40, batch_size=20, epochs=2, schedule="linear", lr=1.0)
    rates = []
    for _ in range(training.total_steps):
        training.advance()
        rates.append(training.optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", 0),
        ("epochs", True),
        ("batch_size", 1.5),
        ("template_size", 0),
        ("lr", -1.0),
        ("lr", math.nan),
        ("weight_decay", math.inf),
        ("momentum", 1.0),
        ("warmup", 1.0),
        ("warmup", "some"),
        ("optimizer", "magic"),
        ("schedule", "weekly"),
    ],
)
def test_bad_recipes_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Recipe(**{field: value})


def test_bad_samples_are_named() -> None:
    with pytest.raises(ValueError, match="differ in length: 3 and 2"):
        Training(Recorder(False), torch.ones(3, 1), torch.zeros(2).long(), Recipe())
    with pytest.raises(ValueError, match="too few samples"):
        Training(Recorder(True), torch.ones(1, 1), torch.zeros(1).long(), Recipe())


def test_a_network_without_parameters_is_refused() -> None:
    class Nothing(nn.Module):
        uses_templates = False

    with pytest.raises(ValueError, match="no parameters"):
        Training(Nothing(), torch.ones(3, 1), torch.zeros(3).long(), Recipe())


@given(st.integers(6, 60), st.integers(1, 20), st.integers(1, 20), st.integers(1, 6))
def test_enough_templates_of_every_class(n: int, batch: int, size: int, floor: int) -> None:
    """As many as asked for, or all that are not among the queries; none twice."""
    recipe = Recipe(batch_size=batch, template_size=size, templates_per_class=floor, epochs=1)
    labels = torch.arange(n).sqrt().long()  # classes of different sizes, the first of one sample
    training = Training(Recorder(True), torch.zeros(n, 1), labels, recipe)
    for step in range(training.total_steps):
        queries, templates = training._draw(step)
        rows = torch.cat([queries, templates])
        assert len(rows.unique()) == len(rows)
        assert torch.equal(templates, training._draw(step)[1])
        there, left = labels[templates].bincount(minlength=10), labels.bincount(minlength=10)
        left = left - labels[queries].bincount(minlength=10)
        assert (there >= left.clamp(max=floor)).all()


def test_templates_beyond_those_per_class_are_as_before() -> None:
    plain, floor = make(40, template_size=10), make(40, template_size=10, templates_per_class=1)
    assert torch.equal(plain._draw(3)[1], floor._draw(3)[1][:10])
    with pytest.raises(ValueError, match="templates_per_class must be an int of at least 0"):
        Recipe(templates_per_class=-1)


def test_guard_restores_the_weights_from_before_a_collapse() -> None:
    module = nn.Linear(1, 1)
    guard = Guard(module, steps=200)
    for step in range(200):
        with torch.no_grad():
            module.weight.fill_(float(step))
        guard.follow(2.0 - step / 100 if step < 150 else 4.0)
    assert guard.worse
    guard.restore()
    assert 140 <= module.weight.item() < 155


@pytest.mark.parametrize("sign", [1, -1])
def test_guard_lets_a_noisy_training_be(sign: int) -> None:
    """Losses may be negative, as those of votes are."""
    guard = Guard(nn.Linear(1, 1), steps=400)
    generator = torch.Generator().manual_seed(0)
    for step in range(400):
        noise = 0.3 * torch.randn((), generator=generator).item()
        guard.follow(sign * 0.5 + 2 * math.exp(-step / 50) + noise)
    assert not guard.worse


def test_guard_needs_some_steps() -> None:
    """A single loss is no average."""
    guard = Guard(nn.Linear(1, 1), steps=9)
    for loss in (1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0):
        guard.follow(loss)
    assert not guard.worse
    assert not guard.weights
    guard.restore()  # nothing


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e30])
def test_guard_lets_losses_of_long_tails_be(scale: float) -> None:
    for seed in range(20):
        guard = Guard(nn.Linear(1, 1), steps=200)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(200):
            guard.follow(scale * math.exp(torch.randn((), generator=generator).item()))
        assert not guard.worse


@pytest.mark.parametrize("steps", [40, 200, 4000])
@pytest.mark.parametrize("base", [-0.9, 0.1, 3.0])
def test_guard_sees_a_collapse_in_the_last_steps(steps: int, base: float) -> None:
    guard = Guard(nn.Linear(1, 1), steps=steps)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        noise = 0.1 * torch.randn((), generator=generator).item()
        guard.follow(base + noise + (4.0 if step >= 0.8 * steps else 0.0))
    assert guard.worse
    assert guard.best == pytest.approx(base, abs=0.1)
