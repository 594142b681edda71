"""The numbers behind the figures, against oracles that share no code with the package."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from numpy.testing import assert_allclose
from scipy.special import expit

from softtopk.experiments.figures import CATALOGUE, _bias, _convergence, plan_of

SEVEN = [0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]


def largest_cost(x: np.ndarray, anchors: np.ndarray) -> float:
    return float(((x[:, None] - anchors) ** 2).max())


# --------------------------------------------------------------------------------- Figure 1: jumps


def test_the_hard_indicator_jumps_and_the_soft_ones_do_not() -> None:
    data = CATALOGUE["indicator"].make()
    x = data.moving.numpy()
    assert_allclose(data.hard[:, 0], (x > 0).astype(float))
    assert_allclose(data.hard.sum(1), 1.0)
    largest_slope = math.inf
    for eps, selected in data.soft.items():  # in ascending order
        # The threshold is halfway between two scalars: x / 2, at a temperature of eps / 2.
        assert_allclose(selected[:, 0], expit(x / eps), atol=1e-14)
        assert_allclose(selected.sum(1), 1.0)
        slope = selected[:, 0].diff().max().item()
        assert 0 < slope < largest_slope
        largest_slope = slope


# ----------------------------------------------------------------------------- Figures 2, 4: plans


@pytest.mark.parametrize(("name", "k"), [("plan", 5), ("sorted_plan", 2)])
def test_the_plans_solve_their_transport_problems(name: str, k: int) -> None:
    data = CATALOGUE[name].make()
    assert data.scores.tolist() == SEVEN
    assert data.k == k
    nu = [5 / 7, 2 / 7] if name == "plan" else [1 / 7, 1 / 7, 5 / 7]
    assert data.anchors.tolist() == list(range(len(nu)))
    for plan in (data.hard, data.soft):
        assert (plan >= 0).all()
        assert_allclose(plan.sum(1), 1 / 7)
        assert_allclose(plan.sum(0), nu)

    lp = reference.topk_lp if name == "plan" else reference.sorted_topk_lp
    solution = lp(-data.scores.numpy(), k)  # the largest of the negatives
    assert_allclose(7 * data.hard[:, : len(nu) - 1].squeeze(-1), solution, atol=1e-9)
    cost = (data.scores.numpy()[:, None] - data.anchors.numpy()) ** 2
    sinkhorn = reference.sinkhorn_plan(cost, np.full(7, 1 / 7), np.array(nu), data.eps, tol=1e-12)
    assert_allclose(data.soft, sinkhorn, atol=1e-9)


def test_the_plans_are_those_of_the_paper() -> None:
    """Its captions: {2.3, 1.9} align with 1; -0.2 with 0, 0.1 with 1, the rest with 2."""
    plan, ranks = CATALOGUE["plan"].make(), CATALOGUE["sorted_plan"].make()
    to_one = plan.hard[:, 1] > 0
    assert plan.scores[to_one].tolist() == [2.3, 1.9]
    assert ranks.scores[ranks.hard.argmax(0)[:2]].tolist() == [-0.2, 0.1]
    assert (ranks.hard[:, 2] > 0).sum() == 5
    # At its temperature the soft plan is between the hard one and no choice at all.
    for data in (plan, ranks):
        assert ((data.soft - data.hard).abs().amax() > 0.01) & (data.soft[data.hard > 0].min() > 0)


def test_a_selection_as_a_plan() -> None:
    selected = torch.rand(3, 5, 2) / 2
    plan = plan_of(selected)
    assert plan.shape == (3, 5, 3)
    assert_allclose(plan.sum(-1), 0.2, rtol=1e-6)
    assert_allclose(5 * plan[..., :2], selected, rtol=1e-6)


# -------------------------------------------------------------------------- Figure 3: temperatures


def test_the_four_temperatures_are_of_the_normalised_cost() -> None:
    data = CATALOGUE["temperatures"].make()
    x = data.scores.numpy()
    assert (len(x), data.k) == (50, 5)
    assert (np.diff(x) > 0).all()
    assert list(data.selected) == [1e-3, 5e-3, 1e-2, 5e-2]
    scale = largest_cost(x, np.array([0.0, 1.0]))
    spread = []
    for eps, selected in data.selected.items():
        expected, _ = reference.soft_topk(-x, 5, eps, scale)
        assert_allclose(selected, expected, atol=1e-12)
        assert (selected.diff() <= 0).all()  # the smaller, the more selected
        plan = data.plans[eps]
        assert_allclose(plan.sum(1), 1 / 50)
        assert_allclose(plan.sum(0), [0.1, 0.9])
        assert_allclose(50 * plan[:, 0], selected)
        spread.append((selected * (1 - selected)).sum().item())
    assert spread == sorted(spread)
    assert spread[0] < 0.01
    assert spread[-1] > 1


# ---------------------------------------------------------------------------- Figure 5: the votes


def test_the_votes_are_those_of_the_selection() -> None:
    data = CATALOGUE["knn"].make()
    distances = np.linalg.norm(data.templates.numpy() - data.query.numpy(), axis=1)
    assert_allclose(data.distances, distances)
    scale = largest_cost(-distances, np.array([0.0, 1.0]))  # its scores are negative distances
    expected, _ = reference.soft_topk(-distances, data.k, data.eps, scale)
    assert_allclose(data.selected, expected, atol=1e-12)
    labels = data.labels.numpy()
    shares = [expected[labels == label].sum() / data.k for label in range(3)]
    assert_allclose(data.votes, shares, atol=1e-12)
    assert data.votes.sum().item() == pytest.approx(1.0)
    assert data.votes.min() > 0.1  # each class is seen in the picture


# -------------------------------------------------------------------------------------- gradients


def test_members_are_pushed_down_and_all_others_up() -> None:
    data = CATALOGUE["gradient"].make()
    assert data.scores.tolist() == list(range(10))
    assert [list(push.members) for push in data.pushes] == [[0, 1, 2], [2, 3, 4]]
    x = data.scores.numpy()
    scale = largest_cost(x, np.array([0.0, 1.0]))

    def selected(scores: np.ndarray) -> np.ndarray:
        return reference.soft_topk(-scores, 3, data.eps, scale)[0]

    assert_allclose(data.selected, selected(x), atol=1e-12)
    jacobian = reference.numerical_jacobian(selected, x, 1e-4)
    for push in data.pushes:
        inside = np.isin(np.arange(10), push.members)
        assert (push.gradient[inside] < 0).all()
        assert (push.gradient[~inside] > 0).all()
        assert push.gradient.sum().item() == pytest.approx(0.0, abs=1e-12)
        assert_allclose(push.gradient, jacobian[inside].sum(0), atol=1e-8)


# ------------------------------------------------------------------------------------------- bias


def test_the_bias_is_below_its_bound_and_grows() -> None:
    seven, fifty, clusters = CATALOGUE["bias"].make()
    assert seven.gap == pytest.approx(0.5)
    assert (len(seven.scores), len(fifty.scores)) == (7, 50)
    assert (seven.bias < seven.theorem_2).all()
    assert (fifty.bias < fifty.theorem_2).all()
    assert (clusters.bias > 1.5 * clusters.theorem_2).any()
    for part in (seven, fifty, clusters):
        n = len(part.scores)
        assert_allclose(part.theorem_2, part.eps * math.log(2 * n) / (n * part.gap))
        assert_allclose(part.bound, (part.eps * math.log(4) / (n * part.gap)).sqrt())
        assert (part.bias < part.bound).all()
        visible = part.bias > 1e-12  # below, rounding has the last word
        assert (part.bias[visible].diff() > 0).all()
        # As eps grows, A becomes k / n everywhere.
        k, uniform = part.k, part.k / n
        limit = math.sqrt(2 * (k * (1 - uniform) ** 2 + (n - k) * uniform**2)) / n
        assert 0.9 * limit < part.bias[-1] < limit


def test_the_bias_is_that_of_the_plan() -> None:
    x, eps = np.array([0.3, 1.1, 0.9, -0.4]), [0.15, 0.4, 3.0]
    part = _bias.bias_of("", torch.from_numpy(x), 2, torch.tensor(eps, dtype=torch.float64))
    assert part.gap == pytest.approx(0.6)
    cost = (x[:, None] - np.array([0.0, 1.0])) ** 2
    hard = np.array([[1, 0], [0, 1], [0, 1], [1, 0]]) / 4
    for value, bias in zip(eps, part.bias, strict=True):
        plan = reference.sinkhorn_plan(
            cost, np.full(4, 0.25), np.array([0.5, 0.5]), value, tol=1e-13
        )
        assert bias.item() == pytest.approx(np.linalg.norm(plan - hard), rel=1e-6)


# ------------------------------------------------------------------------------------ convergence


@pytest.fixture(scope="module")
def errors() -> _convergence.Errors:
    return _convergence.make(queries=10, tried=(1, 4, 16, 64, 200))


def test_the_exact_solver_is_ahead_of_sinkhorn_at_every_temperature(
    errors: _convergence.Errors,
) -> None:
    curves = {(curve.solver, curve.eps): curve for curve in errors.curves}
    assert list(curves) == [
        (solver, eps) for solver in ("exact solver", "Sinkhorn") for eps in (1e-1, 1e-3, 1e-5)
    ]
    for eps in (1e-1, 1e-3, 1e-5):
        exact, sinkhorn = curves["exact solver", eps], curves["Sinkhorn", eps]
        assert list(exact.iterations) == list(range(1, len(exact.errors) + 1))
        assert len(exact.errors) <= 6
        assert exact.errors[0] < sinkhorn.errors[0]
        assert exact.errors[-1] < 1e-12
        assert exact.errors[-1] <= exact.errors[0]
        assert all(0 <= error <= 1 for error in sinkhorn.errors)
    # Newton's method converges quadratically: each step has about twice the digits of the last.
    one, two, three, *_ = curves["exact solver", 1e-1].errors
    assert 1e-4 < one < 1e-1
    assert one**3 < two < one**1.5
    assert two**3 < three < two**1.5
    # The paper's 200 iterations are enough at its highest temperature only.
    assert curves["Sinkhorn", 1e-1].errors[-1] < 1e-12
    assert curves["Sinkhorn", 1e-1].iterations[-1] < 200  # it stopped by itself, and so the curve
    for eps in (1e-3, 1e-5):
        assert curves["Sinkhorn", eps].iterations[-1] == 200
        assert curves["Sinkhorn", eps].errors[-1] > 0.1


def test_the_errors_are_of_the_normalised_problem(errors: _convergence.Errors) -> None:
    """Sinkhorn once more, as in the paper's listing, in numpy."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10, 100, generator=generator, dtype=torch.float64).numpy()
    cost = (x[..., None] - np.array([0.0, 1.0])) ** 2
    cost = cost / cost.max()
    kernel = np.exp(-cost / 1e-1)
    q, nu = np.full((10, 1, 2), 0.5), np.array([0.09, 0.91])
    for _ in range(4):
        p = 0.01 / (kernel * q).sum(-1, keepdims=True)
        q = nu / (kernel * p).sum(-2, keepdims=True)
    found = 100 * (p * kernel * q)[..., 0]
    scale = ((x[..., None] - np.array([0.0, 1.0])) ** 2).max()
    truth = np.stack([reference.soft_topk(-row, 9, 1e-1, scale)[0] for row in x])
    sinkhorn = next(c for c in errors.curves if (c.solver, c.eps) == ("Sinkhorn", 1e-1))
    assert sinkhorn.errors[1] == pytest.approx(np.abs(found - truth).max(), rel=1e-6)


def test_the_caption_has_the_measured_numbers(errors: _convergence.Errors) -> None:
    text = _convergence.caption(errors)
    at_mnist = next(c for c in errors.curves if (c.solver, c.eps) == ("Sinkhorn", 1e-3))
    assert f"{at_mnist.errors[-1]:.1g} at eps = 0.001" in text
    assert "10 queries, the 9 smallest of 100 scores" in text
