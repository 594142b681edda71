"""Top-k of every row with a limit for every column: one entropic transport problem.

Rows are tokens, columns are experts. Every token wants k experts, no expert takes more than its
capacity. Relaxed by the entropy of both outcomes of every pair, chosen or not,

    max_A  <x, A> + tau sum_te H(A_te),     sum_e A_te = k_t,     sum_t A_te <= c_e,

with H(a) = -a log a - (1 - a) log(1 - a), the optimality conditions are

    A_te = sigmoid((x_te - u_t - v_e) / tau),     v_e >= 0,     v_e (c_e - sum_t A_te) = 0.

So the v are the *prices* of the experts, and for given prices each row is a `soft_topk` of its
scores less the prices, exact at every temperature. What is left is the dual in the prices alone. It
is convex, with the gradient c - sum_t A, and with s = A (1 - A) its Hessian is

    (1 / tau) (diag(sum_t s) - s^T diag(1 / sum_e s) s),

the Laplacian of a graph on the experts, of their size only. Its diagonal is the sum of the other
entries of the row, which does not cancel as the difference does when A is nearly 0-1.

**Newton's method**, projected on v >= 0. With D_e = |gradient_e| / limit added to the diagonal, no
price moves by more than the limit, since (Hessian + D) limit >= |gradient| for a Laplacian; the
addition vanishes with the gradient, so convergence stays quadratic. A step is taken back if the
derivative along it has changed its sign and lost less than half of its size. (Values of the dual
would not tell: near the solution they differ by less than their rounding.) At low temperature the
dual is nearly piecewise linear, and a start from afar fails. So the temperature falls to tau from
the range of the scores, with about three Newton steps at each stage. All of it is in float64 where
there is one: the sums over the tokens cancel against the capacities.

**The derivative.** dA = s (dx - du - dv) / tau, where du and dv keep the sums of the rows, and of
the columns that have a price. It is symmetric: its product with a vector g is s (g - a - b) / tau
with the same conditions on a and b, and one system with the matrix above gives b. For tau, dx is -z
with z = logit A. This needs A, and which columns have a price, and nothing else.

**The limit tau -> 0** is the linear program, whose vertices are 0-1: an assignment. It is found
exactly, from the prices at a low temperature. The k best of every row at these prices are optimal
for the loads that they happen to have. While some expert has too many, one unit at a time is moved
along the cheapest path of exchanges to one that has too few, which keeps it optimal (the successive
shortest paths of network flows). Capacity that is not used counts as tokens without preference.

A call of `soft_topk` on all scores is the unit of cost. For 64 to 1,024 tokens and 4 to 64 experts
at most 25 were needed at temperatures down to 1/100 of the range of the scores, and at most 55 at
1e-7 of it (a test counts them). An assignment costs these 55, O(T E^2), and O(T E) for every way
along which tokens are exchanged; alike tokens move together.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._checks import (
    COUNTS,
    REALS,
    Strength,
    check_broadcast,
    check_eps,
    check_flag,
    check_integer,
    check_mask,
    check_number,
    check_range,
    check_rows,
    check_scores,
    operand,
)
from .._dispatch import (
    is_immediate,
    is_readable,
    is_traced,
    may_differentiate,
    refuse_forward_mode,
)
from ._autograd import batch_first, opaque
from ._rows import (
    algebra_dtype,
    canonical,
    chosen_of,
    compute_dtype,
    straight_through,
    temperature,
)
from ._unsorted import soft_topk
from ._warnings import warn_of_convergence

#: Calls of the row operator, several times what is needed.
MAX_CALLS = 300
#: Temperatures on the way down, each a quarter of the last, or less if that would take more.
MAX_STAGES = 24
#: The lowest temperature, as a share of the range of the scores: below, differences between prices
#: and scores would be lost to rounding, in float64 too.
COLDEST = 1e-9
#: How far off a load may be, in tokens, before the temperature is lowered; and as a share of the
#: capacity in a result that counts as converged.
ROUGH, CLOSE = 0.1, 1e-5


class BalancedTopK(NamedTuple):
    """Result of `balanced_soft_topk`."""

    selection: Tensor
    """A (..., T, E), in [0, 1]."""
    prices: Tensor
    """(..., E), not negative, 0 for an expert with room left; constants. If the capacities are just
    enough, a number may be added to all of them. With ``hard=True`` those of a low temperature,
    from which the assignment was found."""
    residual: Tensor
    """(...): the largest excess over a capacity, or rest of one that has a price, in tokens."""
    converged: Tensor
    """(...): whether the residual is below 1e-5 of the largest capacity."""


def balanced_soft_topk(
    scores: Tensor,
    k: int | Tensor,
    capacity: float | Tensor,
    *,
    eps: Strength = 0.1,
    mask: Tensor | None = None,
    hard: bool = False,
) -> BalancedTopK:
    r"""Soft top-k of every row, in which no column exceeds its capacity.

    For a router that sends every token (row) to k experts (columns) and fills no expert beyond its
    capacity. With ``hard=True`` it is the best assignment that meets both,

    .. math::
        \max_A \sum_{te} x_{te} A_{te} \quad\text{s.t.}\quad \sum_e A_{te} = k,\
        \sum_t A_{te} \le c_e,\ A_{te} \in \{0, 1\},

    exact, without ties broken at random or tokens dropped. The soft one adds the entropy of every
    pair with a weight of eps / 2: A = sigmoid(2 (x - u - v) / eps), with prices v >= 0 of the
    experts. It is solved to machine precision and differentiated implicitly. If capacity is
    plentiful, all prices are zero and this is `soft_topk`.

    Args:
        scores: (..., T, E); leading axes are problems of their own.
        k: How many in every row: an int, or an integer tensor that broadcasts to (..., T).
        capacity: How much in every column at most: a number, or a tensor that broadcasts to
            (..., E). Together at least what the rows take; if equal, every column is full. Whole if
            ``hard``.
        eps: Regularisation strength, as in `soft_topk`: a float or a tensor that broadcasts to
            (...). Below 2e-9 of the range of the scores it is that.
        mask: Boolean, broadcasts to scores; True takes part. A masked row, (..., T, 1), takes
            nothing. A row with fewer than k columns left takes all of them.
        hard: Return the exact assignment, with the gradient of the soft one (straight-through).

    Returns:
        A `BalancedTopK`. The selection is differentiable in scores and eps: in reverse mode to any
        order, and in forward mode. A problem that has no solution, which masks can make, ends with
        a `ConvergenceWarning`; a hard one raises.

    >>> scores = torch.tensor([[2.0, 0.1], [1.5, 0.0], [1.2, 1.1], [0.3, 0.2]])
    >>> soft_topk(scores, 1, eps=1.0).sum(0)  # the loads without a limit
    tensor([2.7374, 1.2626])
    >>> found = balanced_soft_topk(scores, 1, capacity=2, eps=1.0)
    >>> found.selection.sum(0), found.prices
    (tensor([2., 2.]), tensor([0.8962, 0.0000]))
    >>> balanced_soft_topk(scores, 1, capacity=2, hard=True).selection
    tensor([[1., 0.],
            [1., 0.],
            [0., 1.],
            [0., 1.]])
    """
    check_flag("hard", hard)
    x, places, limits, tau = _problem(scores, k, capacity, eps, mask, hard)
    soft_wanted = not hard or may_differentiate(scores, tau)
    if hard:
        if not is_traced(x) and not is_immediate(x, places, limits):
            raise RuntimeError("hard=True cannot be mapped by torch.vmap; give scores (..., T, E)")
        fixed = x.detach()
        _, prices, _ = _call(_Balanced.apply, _balanced_op, fixed, places, limits, _cold(fixed))
        selection = _call(_assignment, _assignment_op, fixed, places, limits, prices)
        residual = (selection.sum(-2) - limits).clamp(min=0.0).amax(-1)
    if soft_wanted:
        soft, *others = _call(_Balanced.apply, _balanced_op, x, places, limits, tau)
        if not hard:
            selection, (prices, residual) = soft, others
        else:
            selection = straight_through(selection, soft)
    return _result(selection, prices, residual, limits, scores.dtype)


def _call(function: Any, operator: Any, x: Tensor, *others: Tensor) -> Any:
    """In a graph, as a custom operator."""
    if not is_traced(x):
        return function(x, *others)
    refuse_forward_mode()
    return operator(x, *others)


def _result(
    selection: Tensor, prices: Tensor, residual: Tensor, limits: Tensor, dtype: torch.dtype
) -> BalancedTopK:
    converged = residual <= _close(limits)
    return BalancedTopK(selection.to(dtype), prices.to(dtype), residual.to(dtype), converged)


def _close(limits: Tensor) -> Tensor:
    return CLOSE * limits.amax(-1).clamp(min=1.0)


def _problem(
    scores: Tensor,
    k: int | Tensor,
    capacity: float | Tensor,
    eps: Strength,
    mask: Tensor | None,
    hard: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Checked: scores (..., T, E) with -inf for what takes no part, places (..., T), capacities
    (..., E) and tau (..., 1)."""
    check_scores(scores, -1)
    if scores.ndim < 2 or scores.shape[-2] == 0:
        raise ValueError(f"scores must be (..., T, E), T >= 1, got shape {tuple(scores.shape)}")
    check_mask(mask, scores)
    (*batch, _, experts), dtype = scores.shape, compute_dtype(scores.dtype)
    x = canonical(scores.to(dtype), mask, largest=True)
    places = _whole("k", k, x)
    check_broadcast("k", places.shape, x.shape[:-1])
    check_range("k", places, 0, experts)
    places = torch.minimum(places, (x.detach() != -math.inf).sum(-1))
    if not isinstance(capacity, Tensor):
        capacity = torch.tensor(check_number("capacity", capacity), device=x.device)
    limits = capacity.detach().to(algebra_dtype(x))
    check_broadcast("capacity", limits.shape, torch.Size((*batch, experts)), "the shape (..., E)")
    limits = limits.expand(*batch, experts)
    _check_capacity(limits, places, hard)
    strength = check_eps(eps, torch.Size(batch))
    tau = temperature(strength, 1.0, dtype)
    tau = tau if isinstance(tau, Tensor) else x.new_full((1,), tau)
    coldest = COLDEST * _span(x.detach()).unsqueeze(-1)
    return x, places, limits, torch.maximum(tau.expand(*batch, 1), coldest)


def _whole(name: str, value: int | Tensor, x: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.tensor(check_integer(name, value, 0), device=x.device)
    if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
        raise TypeError(f"{name} must be an int or an integer tensor, got {value.dtype}")
    return value.long()


def _check_capacity(limits: Tensor, places: Tensor, hard: bool) -> None:
    if not is_readable(limits, places) or not limits.numel():
        return
    if not bool(((limits >= 0) & limits.isfinite()).all()):
        raise ValueError(
            f"capacity must be finite and not negative, got values from {limits.min().item():g} to "
            f"{limits.max().item():g}"
        )
    if hard and not bool((limits == limits.round()).all()):
        raise ValueError("capacity must be whole with hard=True; use math.ceil or tensor.ceil()")
    wanted, offered = places.sum(-1).to(limits.dtype), limits.sum(-1)
    lacking = wanted > offered * (1.0 + 1e-6)
    if bool(lacking.any()):
        raise ValueError(
            f"capacity must be {wanted[lacking][0].item():g} in all, for as many places of the "
            f"rows, got {offered[lacking][0].item():g}; raise capacity or lower k"
        )


# The solver.


def _solve(x: Tensor, k: Tensor, capacity: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A (..., T, E), prices (..., E) and residual (...); warns of what did not converge."""
    wide = x.to(algebra_dtype(x))
    broken = wide.isnan().flatten(-2).any(-1)
    safe = wide.masked_fill(broken[..., None, None], 0.0)
    a, prices, residual = _descend(safe, k, capacity, tau.squeeze(-1).to(wide.dtype))
    a, prices = a.masked_fill(broken[..., None, None], math.nan), prices.to(x.dtype)
    failed = ~(residual <= _close(capacity)) & ~broken
    if is_readable(failed) and bool(failed.any()):
        warn_of_convergence(
            "balanced_soft_topk stopped with a load that is off by "
            f"{residual[failed].max().item():.2g} in {int(failed.sum())} of {failed.numel()} "
            "problems; raise capacity, which the mask may have made too small, or eps"
        )
    return a.to(x.dtype), prices, residual.masked_fill(broken, math.nan)


def _descend(x: Tensor, k: Tensor, capacity: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The solution by Newton's method on the prices, with falling temperature. Every problem goes
    at its own pace."""
    info = torch.finfo(x.dtype)
    span = _span(x)
    cooling = (span / tau).clamp(min=1.0).pow(1.0 / MAX_STAGES).clamp(min=4.0)
    # What the rounding of the sums, and of (x - v) / tau, leaves.
    goal = info.eps * (1e3 * capacity.amax(-1) + 16.0 * span / tau)
    t = torch.maximum(tau, span)
    prices, limit = torch.zeros_like(capacity), 2.0 * t

    def select(prices: Tensor, t: Tensor) -> Tensor:
        return soft_topk(x - prices.unsqueeze(-2), k, eps=2.0 * t.unsqueeze(-1))

    a = select(prices, t)
    for _ in range(MAX_CALLS):
        gradient = capacity - a.sum(-2)
        free = (prices > 0) | (gradient < 0)
        residual = torch.where(free, gradient, 0.0).abs().amax(-1)
        there = t <= tau
        done = residual <= torch.where(there, goal, torch.maximum(goal, goal.new_tensor(ROUGH)))
        if bool((done & there).all()):
            break
        cool = done & ~there
        t = torch.where(cool, torch.maximum(tau, t / cooling), t)
        limit = torch.where(cool, 2.0 * t, limit)
        step = _newton_step(a, gradient, free, t, limit)
        moved = torch.where(done.unsqueeze(-1), prices, (prices + step).clamp(min=0.0))
        there_a = select(moved, t)
        before = -(gradient * (moved - prices)).sum(-1)
        after = ((capacity - there_a.sum(-2)) * (moved - prices)).sum(-1)
        good = (after <= 0.5 * before.abs()) | done
        prices = torch.where(good.unsqueeze(-1), moved, prices)
        a = torch.where(good[..., None, None], there_a, a)
        longer = torch.where(after <= 0, torch.minimum(2.0 * limit, 8.0 * t), limit)
        limit = torch.where(good, longer, 0.25 * limit)
    return a, prices, residual


def _span(x: Tensor) -> Tensor:
    """The range of the finite scores of every problem, (...); 0 if there are none."""
    finite = x.isfinite()
    low = torch.where(finite, x, math.inf).flatten(-2).amin(-1)
    high = torch.where(finite, x, -math.inf).flatten(-2).amax(-1)
    return (0.125 * high - 0.125 * low).clamp(0.0, 0.01 * torch.finfo(x.dtype).max) * 8.0


def _laplacian(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """s (..., T, E), 1 / sum_e s (..., T, 1) and s^T diag(1 / sum_e s) s without its diagonal
    (..., E, E), whose row sums are the diagonal of the Hessian times tau."""
    s = a * (1.0 - a)
    total = s.sum(-1, keepdim=True)
    alive = total > math.sqrt(torch.finfo(s.dtype).tiny)
    inverse = torch.where(alive, 1.0 / torch.where(alive, total, 1.0), 0.0)
    wide = s.to(algebra_dtype(s))
    link = (wide * inverse.to(wide.dtype)).mT @ wide
    return s, inverse, link - torch.diag_embed(link.diagonal(dim1=-2, dim2=-1))


def _newton_step(a: Tensor, gradient: Tensor, free: Tensor, t: Tensor, limit: Tensor) -> Tensor:
    link = _laplacian(a)[2] / t[..., None, None]
    degree = link.sum(-1)
    diagonal = degree * (1.0 + 1e-14) + gradient.abs() / limit.unsqueeze(-1)
    return _solve_grounded(link, diagonal, free, -gradient)


def _solve_grounded(link: Tensor, diagonal: Tensor, free: Tensor, right: Tensor) -> Tensor:
    """Solve (diag(diagonal) - link) b = right among the ``free`` columns; b is 0 in the others."""
    free = free & (diagonal > torch.finfo(diagonal.dtype).tiny)
    both = free.unsqueeze(-1) & free.unsqueeze(-2)
    # Scaled to a diagonal of ones: degrees may differ by any factor.
    root = torch.where(free, diagonal, 1.0).sqrt()
    matrix = (link / root.unsqueeze(-1) / root.unsqueeze(-2)).masked_fill(~both, 0.0)
    matrix = torch.eye(link.shape[-1], dtype=link.dtype, device=link.device) - matrix
    solved = torch.linalg.solve_ex(matrix, torch.where(free, right, 0.0) / root).result
    return torch.where(free, solved / root, 0.0)


# The derivative.


def _project(a: Tensor, priced: Tensor, tau: Tensor, g: Tensor) -> Tensor:
    """The derivative of A in the scores, which is symmetric, times ``g`` (..., T, E)."""
    s, inverse, link = _laplacian(a)
    mean = (s * g).sum(-1, keepdim=True) * inverse
    right = (s * (g - mean)).sum(-2).to(link.dtype)
    rounding = torch.finfo(a.dtype).eps
    # If all columns have a price, it is up to a constant, which the rows take up.
    first = torch.arange(priced.shape[-1], device=priced.device) == 0
    free = priced & ~(priced.all(-1, keepdim=True) & first)
    # Columns that exchange less than rounding have lost contact, and so have their derivatives.
    degree = link.sum(-1)
    free = free & (degree.detach() > rounding * s.detach().sum(-2))
    b = _solve_grounded(link, degree * (1.0 + rounding), free, right).to(a.dtype)
    b = b.unsqueeze(-2)
    return s * (g - mean - b + (s * b).sum(-1, keepdim=True) * inverse) / tau.unsqueeze(-1)


def _logit(a: Tensor) -> Tensor:
    """z with A = sigmoid(z), and 0 where A is saturated and has no derivative."""
    inside = (a > 0) & (a < 1)
    return torch.logit(torch.where(inside, a, 0.5))


class _Balanced(torch.autograd.Function):
    """x (..., T, E), k (..., T), capacity (..., E), tau (..., 1) -> A, prices, residual.

    The derivative is written in ordinary operations on the *output* A, so that it can itself be
    differentiated.
    """

    @staticmethod
    def forward(
        x: Tensor, k: Tensor, capacity: Tensor, tau: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _solve(x, k, capacity, tau)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        a, prices, residual = output
        ctx.mark_non_differentiable(prices, residual)
        ctx.save_for_backward(a, prices, inputs[3])
        ctx.save_for_forward(a, prices, inputs[3])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        a, prices, tau = ctx.saved_tensors
        grad_x = _project(a, prices > 0, tau, grad)
        grad_tau = None
        if ctx.needs_input_grad[3]:
            grad_tau = -(grad_x * _logit(a)).sum((-2, -1)).unsqueeze(-1)
        return grad_x, None, None, grad_tau

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        return batch_first(_Balanced.apply, info.batch_size, in_dims, inputs)

    @staticmethod
    def jvp(
        ctx: Any, d_x: Tensor | None, _k: None, _capacity: None, d_tau: Tensor | None
    ) -> tuple[Tensor, None, None]:
        a, prices, tau = ctx.saved_tensors
        moved = torch.zeros_like(a) if d_x is None else d_x
        if d_tau is not None:
            moved = moved - _logit(a) * d_tau.unsqueeze(-1)
        return _project(a, prices > 0, tau, moved), None, None


def _checked_solve(
    x: Tensor, k: Tensor, capacity: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    x, k, capacity = _operands(x, k, capacity)
    tau = operand("tau", tau, (*x.shape[:-2], 1), *REALS)
    check_range("tau", tau, torch.finfo(tau.dtype).tiny)
    return _solve(x, k, capacity, tau)


def _operands(x: Tensor, k: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    check_rows(x, axes=2)
    *batch, tokens, experts = x.shape
    k = operand("k", k, (*batch, tokens), *COUNTS)
    capacity = operand("capacity", capacity, (*batch, experts), *REALS)
    check_range("k", k, 0, experts)
    check_range("capacity", capacity, 0)
    return x, k, capacity


_balanced_op = opaque(
    "softtopk::balanced_soft_topk",
    "(Tensor scores, Tensor k, Tensor capacity, Tensor tau) -> (Tensor, Tensor, Tensor)",
    _checked_solve,
    fake=lambda x, k, capacity, tau: (
        x.new_empty(x.shape),
        x.new_empty(capacity.shape),
        capacity.new_empty(x.shape[:-2]),
    ),
    setup_context=_Balanced.setup_context,
    backward=_Balanced.backward,
)


# The assignment.


def _cold(x: Tensor) -> Tensor:
    """A temperature (..., 1) at which the k best at the prices are nearly the assignment."""
    return (1e-6 * _span(x)).clamp(min=torch.finfo(x.dtype).tiny).unsqueeze(-1)


def _assignment(x: Tensor, k: Tensor, capacity: Tensor, prices: Tensor) -> Tensor:
    """The 0/1 selection (..., T, E) of the linear program; NaN for a problem with a NaN."""
    tokens, experts = x.shape[-2:]
    problems = (
        x.double().cpu().reshape(-1, tokens, experts),
        k.cpu().expand(x.shape[:-1]).reshape(-1, tokens),
        capacity.cpu().reshape(-1, experts).round().long(),
        prices.double().cpu().reshape(-1, experts),
    )
    chosen = [_Assignment(*problem).solve() for problem in zip(*problems, strict=True)]
    return torch.stack(chosen).view(x.shape).to(x) if chosen else torch.empty_like(x)


class _Assignment:
    """One problem: the k best of every row at given prices, made to meet the capacities.

    x (T, E), k (T,), capacity (E,), prices (E,).
    """

    def __init__(self, x: Tensor, k: Tensor, capacity: Tensor, prices: Tensor) -> None:
        self.broken = bool(x.isnan().any() or prices.isnan().any())
        top = torch.finfo(x.dtype).max / 1024
        self.x = x.clamp(max=top)  # differences of +inf would be NaN
        self.prices = prices
        self.chosen = chosen_of(self.x - prices, k.unsqueeze(-1)) & (x != -math.inf)
        load = self.chosen.sum(0)
        # What is not used belongs to the cheapest, where there is room as long as there is.
        unused = capacity.sum() - k.sum()
        room = (capacity - load).clamp(min=0).masked_fill(prices > prices.amin(), 0)
        self.idle = (unused - (room.cumsum(0) - room)).clamp(min=0).minimum(room)
        self.idle[prices.argmin()] += unused - self.idle.sum()
        self.excess = load + self.idle - capacity

    def solve(self) -> Tensor:
        if self.broken:
            return torch.full_like(self.x, math.nan)
        experts = len(self.prices)
        #: The least loss by which one token of e goes to f instead.
        self.loss = self.x.new_full((experts, experts), math.inf)
        for e in range(experts):
            self._leave(e)
        while bool((self.excess > 0).any()):
            self._move()
        return self.chosen.to(self.x.dtype)

    def _leave(self, e: int) -> None:
        leaving = self.chosen[:, e : e + 1] & ~self.chosen
        self.loss[e] = self._least(leaving, self.x[:, e : e + 1] - self.x)

    def _come(self, e: int) -> None:
        coming = self.chosen & ~self.chosen[:, e : e + 1]
        self.loss[:, e] = self._least(coming, self.x - self.x[:, e : e + 1])

    @staticmethod
    def _least(allowed: Tensor, loss: Tensor) -> Tensor:
        return torch.where(allowed, loss, math.inf).amin(0)

    def _movers(self, e: int, f: int) -> Tensor:
        """The tokens that go from e to f at the least loss."""
        leaving = self.chosen[:, e] & ~self.chosen[:, f]
        return (leaving & (self.x[:, e] - self.x[:, f] == self.loss[e, f])).nonzero().flatten()

    def _move(self) -> None:
        """Move units from where there are too many to the nearest place with too few: as many as
        this way takes at the same loss, since tokens may be alike."""
        change = self.prices - self.prices.unsqueeze(-1)
        step = (self.loss + change).clamp(min=0.0)
        by_idle = (self.idle > 0).unsqueeze(-1) & (change < step)
        step = torch.where(by_idle, change.clamp(min=0.0), step)
        distance, parent = self._distances(step)
        reach = torch.where(self.excess < 0, distance, math.inf)
        target = int(reach.argmin())
        if not reach[target].isfinite():
            raise ValueError(
                "capacity cannot be met: the mask leaves some rows only experts that are full; "
                "raise capacity or lower k"
            )
        self.prices = self.prices - distance.clamp(max=distance[target])
        way = [target]
        while (source := int(parent[way[-1]])) >= 0:
            way.append(source)
        edges = list(zip(way[1:], way[:-1], strict=True))
        movers = [None if by_idle[edge] else self._movers(*edge) for edge in edges]
        amount = int(torch.minimum(self.excess[way[-1]], -self.excess[target]))
        for (source, _), tokens in zip(edges, movers, strict=True):
            amount = min(amount, int(self.idle[source]) if tokens is None else len(tokens))
        for (source, goal), tokens in zip(edges, movers, strict=True):
            if tokens is None:
                self.idle[source] -= amount
                self.idle[goal] += amount
            else:
                self.chosen[tokens[:amount], source] = False
                self.chosen[tokens[:amount], goal] = True
        self.excess[target] += amount
        self.excess[way[-1]] -= amount
        for e in way:
            self._leave(e)
            self._come(e)

    def _distances(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """From the experts with too many to all, and the expert before on the way, -1 at the start.

        Ways that are as long do not replace each other: so there are no circles.
        """
        distance = torch.where(self.excess > 0, 0.0, math.inf).to(step.dtype)
        parent = torch.full_like(self.excess, -1)
        while True:
            shortest = (distance.unsqueeze(-1) + step).min(0)
            better = shortest.values < distance
            if not bool(better.any()):
                return distance, parent
            distance = torch.where(better, shortest.values, distance)
            parent = torch.where(better, shortest.indices, parent)


def _checked_assignment(x: Tensor, k: Tensor, capacity: Tensor, prices: Tensor) -> Tensor:
    x, k, capacity = _operands(x, k, capacity)
    return _assignment(x, k, capacity, operand("prices", prices, capacity.shape, *REALS))


_assignment_op = opaque(
    "softtopk::balanced_assignment",
    "(Tensor scores, Tensor k, Tensor capacity, Tensor prices) -> Tensor",
    _checked_assignment,
    fake=lambda x, *_: x.new_empty(x.shape),
)
