"""Top-k of every row within the capacity of every column."""

import math
import warnings

import numpy as np
import pytest
import torch
from paths import first
from scipy.optimize import linprog

from softtopk import ConvergenceWarning, balanced_soft_topk, soft_topk
from softtopk.functional._balanced import _assignment


def root(function, low, high):
    """Where decreasing functions, one for each element, cross zero; by bisection."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        above = function(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return 0.5 * (low + high)


def alternated(x, k, capacity, tau, sweeps=200):
    """A by block coordinate descent on the dual: Sinkhorn's algorithm with two outcomes."""
    far = np.ptp(x) + 80 * tau
    v = np.zeros(x.shape[1])

    def select(u, v):
        return 0.5 * (1 + np.tanh(0.5 * (x - u[:, None] - v) / tau))

    low, high = np.full(len(x), x.min() - 2 * far), np.full(len(x), x.max() + 2 * far)
    for _ in range(sweeps):
        u = root(lambda u, v=v: select(u, v).sum(1) - k, low, high)
        lowest = np.full(len(v), x.min() - u.max() - far)
        v = root(lambda v, u=u: select(u, v).sum(0) - capacity, lowest, -lowest + 2 * far)
        v = np.maximum(v, 0.0)
    u = root(lambda u: select(u, v).sum(1) - k, low, high)
    return select(u, v)


def program(x, k, capacity):
    """The assignment by linear programming."""
    tokens, experts = x.shape
    rows, columns = np.kron(np.eye(tokens), np.ones(experts)), np.tile(np.eye(experts), tokens)
    found = linprog(-x.ravel(), columns, capacity, rows, k, bounds=(0, 1), method="highs")
    return found.x.reshape(x.shape).round()


CAPACITIES = ((2, 8, 9, 5), 6, 7, 12, (10, 2, 1, 12))


def scores(tokens=12, experts=4, dtype=torch.float64):
    return torch.randn(tokens, experts, dtype=dtype) + torch.linspace(0, 2, experts, dtype=dtype)


@pytest.mark.parametrize("capacity", first(*CAPACITIES))
def test_values(capacity):
    x, capacity = scores(), torch.as_tensor(capacity)
    for eps in (5.0, 1.0, 0.3):
        found = balanced_soft_topk(x, 2, capacity, eps=eps)
        limits = capacity.expand(4).double().numpy()
        expected = alternated(x.numpy(), 2, limits, eps / 2)
        np.testing.assert_allclose(found.selection, expected, rtol=0, atol=1e-9)
        assert found.converged
        assert found.residual < 1e-9
        assert (
            (found.prices == 0) | ((found.selection.sum(0) - torch.from_numpy(limits)).abs() < 1e-9)
        ).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("eps", [10.0, 1e-2, 1e-5, 1e-30])
def test_both_constraints_at_any_temperature(dtype, eps):
    x = scores(200, 8, dtype)
    for capacity in (75, 90):
        found = balanced_soft_topk(x, 3, capacity, eps=eps)
        assert found.converged
        rounding = 200 * torch.finfo(dtype).eps
        assert (found.selection.sum(-1) - 3).abs().max() < rounding
        assert found.selection.double().sum(-2).max() < capacity + 200 * rounding + 1e-6
        exact = balanced_soft_topk(x.double(), 3, capacity, eps=eps).selection
        # The scores are of size 1: what their rounding is in units of the temperature.
        assert (found.selection - exact).abs().max() < 1e-6


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_assignment_is_that_of_linear_programming(capacity):
    x = scores()
    limits = torch.as_tensor(capacity).expand(4).numpy()
    expected = torch.from_numpy(program(x.numpy(), np.full(12, 2), limits))
    assert torch.equal(balanced_soft_topk(x, 2, torch.as_tensor(capacity), hard=True)[0], expected)
    cold = balanced_soft_topk(x, 2, torch.as_tensor(capacity), eps=1e-9)[0]
    assert torch.equal(cold.round(), expected)


@pytest.mark.parametrize("seed", first(*range(5)))
def test_assignments_of_many_kinds(seed):
    """Ties, forbidden pairs and rows of their own k, where the prices decide little."""
    generator = np.random.default_rng(seed)
    for tied in (False, True):
        x = generator.normal(size=(40, 6)).round(0 if tied else 12)
        k = generator.integers(0, 4, 40)
        x[generator.random(x.shape) < 0.1] = -1e6  # as good as forbidden
        capacity = generator.multinomial(k.sum() + 7, np.full(6, 1 / 6))
        allowed = torch.from_numpy(x > -1e5)
        found = balanced_soft_topk(
            torch.from_numpy(x), torch.from_numpy(k), torch.from_numpy(capacity), hard=True,
            mask=allowed,
        ).selection  # fmt: skip
        expected = program(x, np.minimum(k, (x > -1e5).sum(1)), capacity)
        assert ((found == 0) | (found == 1)).all()
        assert torch.equal(found.sum(1), torch.from_numpy(expected.sum(1)))
        assert (found.sum(0) <= torch.from_numpy(capacity)).all()
        assert (found.numpy() * x).sum() == pytest.approx((expected * x).sum(), abs=1e-9)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_assignment_does_not_depend_on_the_prices_it_starts_from(capacity):
    x, k = scores(), torch.full((12,), 2)
    limits = torch.as_tensor(capacity).expand(4).double()
    expected = torch.from_numpy(program(x.numpy(), k.numpy(), limits.numpy()))
    for prices in (torch.zeros(4), torch.tensor([0.0, 3.0, 0.5, 0.0]), torch.rand(4)):
        assert torch.equal(_assignment(x, k, limits, prices.double()), expected)


def test_plentiful_capacity_is_soft_topk():
    x = scores()
    found = balanced_soft_topk(x, 2, 12, eps=0.5)
    assert torch.equal(found.selection, soft_topk(x, 2, eps=0.5))
    assert (found.prices == 0).all()


@pytest.mark.parametrize("fast", first(True, False))
def test_derivatives(fast):
    """With just enough capacity, and with some columns that have room left."""
    x = torch.stack([scores(4, 3), scores(4, 3)])
    eps = torch.tensor([0.7, 1.5], dtype=torch.float64, requires_grad=True)
    capacity, k = torch.tensor([[2, 2, 1], [4, 3, 1]]), torch.tensor([1, 2, 1, 1])
    prices = balanced_soft_topk(x, k, capacity, eps=eps).prices
    assert (prices > 0).sum(-1).tolist() in ([2, 1], [3, 1])

    def select(x, eps):
        return balanced_soft_topk(x, k, capacity, eps=eps).selection

    inputs = (x.requires_grad_(), eps)
    assert torch.autograd.gradcheck(select, inputs, check_forward_ad=True, fast_mode=fast)
    assert torch.autograd.gradgradcheck(select, inputs, fast_mode=fast)

    def one(x, capacity):
        return balanced_soft_topk(x, k, capacity, eps=0.7).selection

    torch.testing.assert_close(torch.vmap(one)(x, capacity)[0], select(*inputs)[0])


def test_straight_through():
    x = scores().requires_grad_()
    factor = torch.randn(12, 4, dtype=torch.float64)
    hard, soft = (balanced_soft_topk(x, 2, 7, eps=0.5, hard=hard)[0] for hard in (True, False))
    assert ((hard == 0) | (hard == 1)).all()
    one, other = (torch.autograd.grad((factor * each).sum(), x)[0] for each in (hard, soft))
    assert torch.equal(one, other)


def test_masked_is_deleted():
    x = scores()
    mask = torch.rand(12, 1) > 0.4
    full = balanced_soft_topk(x.masked_fill(~mask, math.nan), 2, 6, mask=mask, eps=0.5)
    part = balanced_soft_topk(x[mask.squeeze()], 2, 6, eps=0.5)
    torch.testing.assert_close(full.selection[mask.squeeze()], part.selection)
    assert (full.selection[~mask.squeeze()] == 0).all()
    no_first = torch.tensor([False, True, True, True])
    full = balanced_soft_topk(x, 2, 12, mask=no_first, eps=0.5)
    torch.testing.assert_close(
        full.selection[:, 1:], balanced_soft_topk(x[:, 1:], 2, 12, eps=0.5).selection
    )
    nothing = balanced_soft_topk(x, 2, 6, mask=torch.zeros(1, 1, dtype=torch.bool))
    assert (nothing.selection == 0).all()


def test_laws():
    x, order = scores(), torch.randperm(12)
    found = balanced_soft_topk(x, 2, 6, eps=0.5).selection
    moved = balanced_soft_topk(x[order] + torch.randn(12, 1), 2, 6, eps=0.5).selection
    torch.testing.assert_close(moved, found[order])  # rows have no scale zero, and no order
    shifted = balanced_soft_topk(x + torch.randn(4), 2, 6, eps=0.5).selection
    torch.testing.assert_close(shifted, found)  # nor have columns, if all are full


def test_limits_of_the_input():
    for x in (torch.zeros(6, 3), torch.full((6, 3), 1e38), torch.full((6, 3), -3e38).triu()):
        x.requires_grad_()
        found = balanced_soft_topk(x, 1, 2)
        assert found.selection.isfinite().all()
        (gradient,) = torch.autograd.grad(found.selection.square().sum(), x)
        assert gradient.isfinite().all()
    torch.testing.assert_close(found.selection.sum(-2), torch.full((3,), 2.0))
    assert balanced_soft_topk(torch.zeros(0, 6, 3), 1, 2).selection.shape == (0, 6, 3)
    assert balanced_soft_topk(torch.zeros(0, 6, 3), 1, 2, hard=True).selection.shape == (0, 6, 3)
    assert balanced_soft_topk(torch.zeros(1, 1), 1, 1).selection == 1
    assert balanced_soft_topk(torch.zeros(6, 3, device="meta"), 1, 2).selection.shape == (6, 3)
    broken = torch.zeros(2, 6, 3)
    broken[0, 0, 0] = math.nan
    for hard in (False, True):
        found = balanced_soft_topk(broken, 1, 2, hard=hard).selection
        assert found[0].isnan().all()
        assert found[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    x = scores(dtype=dtype)
    found = balanced_soft_topk(x, 2, 7, eps=0.5)
    assert found.selection.dtype is dtype
    exact = balanced_soft_topk(x.float(), 2, 7, eps=0.5)
    torch.testing.assert_close(found.selection.float(), exact.selection, rtol=0, atol=0.004)


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, True])
def test_compiled(hard):
    def select(x):
        return balanced_soft_topk(x, 2, 7, eps=0.5, hard=hard)

    x = scores().requires_grad_()
    compiled = torch.compile(select, backend="aot_eager", fullgraph=True)
    for one, other in zip(compiled(x), select(x), strict=True):
        torch.testing.assert_close(one, other)
    gradients = [torch.autograd.grad(f(x)[0].square().sum(), x)[0] for f in (compiled, select)]
    torch.testing.assert_close(*gradients)


def test_what_has_no_solution():
    x, mask = torch.randn(6, 3), torch.ones(6, 3, dtype=torch.bool)
    mask[:, 1:] = False  # all want the first
    mask[0] = True
    with pytest.warns(ConvergenceWarning, match="raise capacity, which the mask"):
        assert not balanced_soft_topk(x, 1, 2, mask=mask).converged
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        with pytest.raises(ValueError, match="capacity cannot be met"):
            balanced_soft_topk(x, 1, 2, mask=mask, hard=True)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"scores": torch.zeros(3)}, ValueError, r"scores must be \(..., T, E\)"),
        ({"k": 1.0}, TypeError, "k must be an int"),
        ({"k": torch.ones(6)}, TypeError, "k must be an int or an integer tensor"),
        ({"k": 4}, ValueError, "k must be between 0 and 3"),
        ({"capacity": "2"}, TypeError, "capacity must be a number"),
        ({"capacity": -1}, ValueError, "capacity must be finite and not negative"),
        ({"capacity": 1}, ValueError, "capacity must be 6 in all, .* got 3; raise capacity"),
        ({"capacity": 2.5, "hard": True}, ValueError, "capacity must be whole with hard=True"),
        ({"capacity": torch.ones(2)}, ValueError, r"capacity of shape \(2,\) does not broadcast"),
        ({"eps": 0.0}, ValueError, "eps must be positive"),
        ({"mask": torch.ones(6, 3)}, TypeError, "mask must be boolean"),
        ({"hard": 1}, TypeError, "hard must be True or False"),
    ],
)
def test_wrong_arguments(arguments, kind, message):
    right = {"scores": torch.zeros(6, 3), "k": 1, "capacity": 2}
    with pytest.raises(kind, match=message):
        balanced_soft_topk(**right | arguments)


@pytest.mark.parametrize("kinds", [1, 3])
def test_rows_that_are_alike(kinds):
    """Many ways to move tokens are then equally good."""
    x = torch.randn(kinds, 6, dtype=torch.float64)[torch.randint(kinds, (60,))]
    found = balanced_soft_topk(x, 2, 20, hard=True)
    assert (found.selection.sum(0) == 20).all()
    assert (found.selection.sum(1) == 2).all()
    assert found.converged
    cold = balanced_soft_topk(x, 2, 20, eps=1e-6 * (x.amax() - x.amin()).item())
    gap = (cold.selection * x).sum() - (found.selection * x).sum()
    assert abs(gap) < 1e-3


def test_the_result_of_a_hard_call_is_the_same_with_a_gradient():
    x = torch.randn(12, 3)
    for one, other in zip(
        balanced_soft_topk(x, 1, 4, hard=True),
        balanced_soft_topk(x.clone().requires_grad_(), 1, 4, hard=True),
        strict=True,
    ):
        torch.testing.assert_close(one, other.detach())
    with pytest.raises(RuntimeError, match=r"hard=True cannot be mapped by torch\.vmap"):
        torch.func.vmap(lambda z: balanced_soft_topk(z, 1, 4, hard=True).selection)(x[None])


MADE = {
    "normal": torch.randn,
    "one is liked more than the next": lambda *s: torch.randn(*s) + 0.3 * torch.arange(s[-1]),
    "heavy tails": lambda *s: torch.randn(*s).mul(1.5).exp(),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("size", first((256, 16), (64, 4), (1024, 64)), ids=str)
def test_the_cost_in_calls_of_the_row_operator(monkeypatch, kind, size):
    calls = 0

    def counted(*args, **options):
        nonlocal calls
        calls += 1
        return soft_topk(*args, **options)

    monkeypatch.setattr("softtopk.functional._balanced.soft_topk", counted)
    torch.manual_seed(0)
    x = MADE[kind](*size)
    span = (x.amax() - x.amin()).item()
    for factor in (1.0, 1.25):
        for tau, most in ((1.0, 25), (0.1, 25), (0.01, 25), (1e-7, 55)):
            calls = 0
            capacity = factor * 2 * size[0] / size[1]
            assert balanced_soft_topk(x, 2, capacity, eps=2 * tau * span).converged
            assert calls <= most, tau
