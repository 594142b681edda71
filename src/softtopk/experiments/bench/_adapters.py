"""The adapters: what each peer has to do for a problem, in a few lines each.

Every method smooths in its own way. `eps` is translated to each one's parameter so that the result
falls off in the same way where it is small, or, for a selection with exact zeros, has the same
slope at the threshold: what is then compared is the cost of about the same softness. With
tau = eps / 2, our A is sigmoid((x - t) / tau), which falls off as exp(x / tau) and has the slope
1 / (4 tau).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

import softtopk
from softtopk import kernels

from ._cases import Problem

ITERATIONS = 200  # of Sinkhorn's algorithm in the paper's listing
SINKHORN = softtopk.Sinkhorn(max_iter=ITERATIONS, tol=0)


class Run(Protocol):
    """One peer on one problem, ready to be timed."""

    def forward(self) -> Any:
        """The result, with what the backward pass needs."""

    def backward(self, state: Any) -> Any:
        """The gradient in the scores, from what `forward` returned."""

    def selection(self, state: Any) -> Tensor:
        """The result as a tensor without a graph."""


@dataclass(frozen=True)
class TorchRun:
    """A differentiable function of the scores alone, in PyTorch."""

    function: Callable[[Tensor], Tensor]
    scores: Tensor
    cotangent: Tensor

    def forward(self) -> Tensor:
        return self.function(self.scores)

    def backward(self, state: Tensor) -> Tensor:
        return torch.autograd.grad(state, self.scores, self.cotangent)[0]

    def selection(self, state: Tensor) -> Tensor:
        return state.detach()


def torch_run(function: Callable[[Tensor], Tensor], problem: Problem) -> TorchRun:
    return TorchRun(function, problem.scores.detach().requires_grad_(), problem.cotangent)


def forward_only(function: Callable[[Tensor], Tensor], problem: Problem) -> TorchRun:
    """Without a graph: for peers whose `gradient` is False."""
    return TorchRun(function, problem.scores, problem.cotangent)


# ------------------------------------------------------------------------------------ this package


def soft_topk(problem: Problem, solver: Any = "exact", eps: float | None = None) -> Run:
    """At the problem's eps, or at another one."""
    k, eps = problem.k, problem.eps if eps is None else eps
    return torch_run(lambda x: softtopk.soft_topk(x, k, eps=eps, solver=solver), problem)


@dataclass(frozen=True)
class PlainRun(TorchRun):
    """Without the kernels, in both passes."""

    def forward(self) -> Tensor:
        with kernels.plain():
            return super().forward()

    def backward(self, state: Tensor) -> Tensor:
        with kernels.plain():
            return super().backward(state)


def plain(problem: Problem, operator: Callable[..., Tensor]) -> Run:
    k, eps = problem.k, problem.eps
    scores = problem.scores.detach().requires_grad_()
    return PlainRun(lambda x: operator(x, k, eps=eps), scores, problem.cotangent)


def sorted_soft_topk(problem: Problem, solver: Any = "exact") -> Run:
    k, eps = problem.k, problem.eps
    return torch_run(lambda x: softtopk.sorted_soft_topk(x, k, eps=eps, solver=solver), problem)


def soft_topk_forward(problem: Problem) -> Run:
    k, eps = problem.k, problem.eps
    return forward_only(lambda x: softtopk.soft_topk(x, k, eps=eps), problem)


# ----------------------------------------------------------------------------------- torch, entmax


def topk(problem: Problem) -> Run:
    return torch_run(lambda x: x.topk(problem.k).values, problem)


def topk_forward(problem: Problem) -> Run:
    return forward_only(lambda x: x.topk(problem.k).values, problem)


def topk_and_softmax_forward(problem: Problem) -> Run:
    def both(x: Tensor) -> Tensor:
        x.topk(problem.k)
        return x.softmax(-1)

    return forward_only(both, problem)


def sort(problem: Problem) -> Run:
    return torch_run(lambda x: x.sort(descending=True).values, problem)


def softmax(problem: Problem) -> Run:
    return torch_run(lambda x: x.softmax(-1), problem)


def entmax(problem: Problem) -> Run:
    budget_bisect = importlib.import_module("entmax").budget_bisect
    # clamp(x / (4 tau) - t, 0, 1), with the default of 50 bisections
    k, slope = problem.k, 1 / (2 * problem.eps)
    return torch_run(lambda x: budget_bisect(slope * x, budget=k), problem)


# ------------------------------------------------------------------------- other PyTorch operators


def colt5(problem: Problem) -> Run:
    coor_descent = importlib.import_module("colt5_attention").coor_descent
    # min(1, exp((x - t) / tau)); the iterations and the schedule are those of the package's router
    k, tau = problem.k, problem.eps / 2
    schedule = {"n_iters": 20, "eps_init": 4.0, "eps_decay": 0.7}
    return torch_run(lambda x: coor_descent(x, k=k, eps=tau, **schedule), problem)


def difftopk(problem: Problem, ranks: bool) -> Run:
    # It says on standard output that it can do without torch-sparse.
    with contextlib.redirect_stdout(io.StringIO()):
        difftopk = importlib.import_module("difftopk")
    # Comparators sigmoid((a - b) / tau). Ranks come in ascending order; without torch-sparse, which
    # torch no longer has wheels for, every layer is a dense matrix.
    net = difftopk.DiffTopkNet(
        "bitonic",
        problem.scores.shape[-1],
        problem.k,
        steepness=2 / problem.eps,
        distribution="logistic",
        device=str(problem.scores.device),
    )

    def select(x: Tensor) -> Tensor:
        plan = net(x)[1].flip(-1)
        return plan if ranks else plan.sum(-1)

    return torch_run(select, problem)


def torchsort(problem: Problem, function: str) -> Run:
    soft = getattr(importlib.import_module("torchsort"), function)
    return torch_run(lambda x: soft(x, regularization_strength=problem.eps), problem)


# -------------------------------------------------------------- other solvers of the same problem


def _anchors(problem: Problem, ranks: bool) -> tuple[Tensor, Tensor]:
    """Anchors and their shares of the mass, largest anchor first: both (k + 1,) or (2,)."""
    n, k = problem.scores.shape[-1], problem.k
    anchors = [float(j) for j in range(k, -1, -1)] if ranks else [1.0, 0.0]
    places = [1.0] * k + [n - k] if ranks else [float(k), n - k]
    new = problem.scores.new_tensor
    return new(anchors), new(places) / n


def pot(problem: Problem, ranks: bool) -> Run:
    solve_batch = importlib.import_module("ot.batch").solve_batch
    rows, n = problem.scores.shape
    anchors, share = _anchors(problem, ranks)
    uniform = torch.full_like(problem.scores, 1 / n)
    marginals = {"a": uniform, "b": share.expand(rows, -1)}

    def select(x: Tensor) -> Tensor:
        cost = (x.unsqueeze(-1) - anchors).square()
        # Only "autodiff" has the gradient of the plan; tol = 0 runs all iterations.
        plan = solve_batch(
            cost, problem.eps, **marginals, max_iter=ITERATIONS, tol=0, grad="autodiff"
        ).plan
        return n * (plan[..., :-1] if ranks else plan[..., 0])

    return torch_run(select, problem)


def _qfeval_scale(scores: Tensor) -> Tensor:
    """What makes qfeval's epsilon ours: (rows, n) -> (rows, 1).

    It standardises each row, takes the anchors -1 and 1 and divides the cost of the row by its
    largest entry, so that its A is sigmoid(4 x / (epsilon scale)), where the scale is the standard
    deviation times that entry. It depends on the row: rows get different temperatures.
    """
    deviation = scores.std(-1, keepdim=True)
    z = (scores - scores.mean(-1, keepdim=True)) / deviation
    return deviation * (z.abs().amax(-1, keepdim=True) + 1).square()


def _qfeval_epsilon(scores: Tensor, eps: float) -> float:
    # The row in the middle gets our temperature.
    return 2 * eps / _qfeval_scale(scores).median().item()


def qfeval_tau(scores: Tensor, k: int, eps: float) -> Tensor:
    return _qfeval_scale(scores.double()) * _qfeval_epsilon(scores, eps) / 4


def qfeval(problem: Problem) -> Run:
    soft_topk = importlib.import_module("qfeval_functions.functions").soft_topk
    k, epsilon = problem.k, _qfeval_epsilon(problem.scores, problem.eps)
    return torch_run(lambda x: soft_topk(x, k, epsilon=epsilon, max_iter=ITERATIONS), problem)


def softtorch(problem: Problem) -> Run:
    topk = importlib.import_module("softtorch").topk
    # Its anchors are 0, 1/k, .., 1 where ours are 0, 1, .., k: the problem at eps / k.
    options = {
        "softness": problem.eps / problem.k,
        "method": "ot",
        "standardize": False,
        "ot_kwargs": {"sinkhorn_max_iter": ITERATIONS, "sinkhorn_tol": 0.0},
    }
    return torch_run(lambda x: topk(x, problem.k, **options).indices.mT, problem)


@dataclass(frozen=True)
class JaxRun:
    """A compiled jax function with its pull-back, which is compiled too."""

    function: Callable[[Any], Any]
    pull_back: Callable[[Any, Any], Any]
    scores: Any
    cotangent: Any
    wait: Callable[[Any], Any] = field(repr=False)

    def forward(self) -> Any:
        return self.wait(self.function(self.scores))

    def backward(self, state: Any) -> Any:
        return from_dlpack(self.wait(self.pull_back(state[1], self.cotangent)))

    def selection(self, state: Any) -> Tensor:
        return from_dlpack(state[0])


def ott(problem: Problem, ranks: bool) -> Run:
    # The error callbacks of its linear solver keep jax from caching what it compiled; without
    # them a failure gives NaN, which is looked for.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    jax = importlib.import_module("jax")
    # In float32 the linear system of its gradient is solved to NaN.
    jax.config.update("jax_enable_x64", True)
    soft_sort = importlib.import_module("ott.tools.soft_sort")
    implicit = importlib.import_module("ott.solvers.linear.implicit_differentiation")
    n, k, eps = problem.scores.shape[-1], problem.k, problem.eps
    options = {
        "squashing_fun": lambda x: x,
        "threshold": 0.0,
        "min_iterations": ITERATIONS,
        "max_iterations": ITERATIONS,
        # Without a ridge that system is singular at low temperature, also in float64.
        "implicit_diff": implicit.ImplicitDiff(
            solver_kwargs={"ridge_kernel": 1e-3, "ridge_identity": 1e-6}
        ),
    }

    def select(x: Any) -> Any:
        return soft_sort.topk_mask(x, k=k, epsilon=eps, **options)

    def rank(row: Any) -> Any:
        # Anchors 0, 1/k, .., 1, ascending: the problem at eps / k.
        shares = jax.numpy.concatenate([jax.numpy.array([n - k]), jax.numpy.ones(k)]) / n
        uniform = jax.numpy.ones(n) / n
        plan = soft_sort.transport_for_sort(row, uniform, shares, epsilon=eps / k, **options).matrix
        return n * plan[:, :0:-1]

    function = jax.vmap(rank) if ranks else select
    scores = jax.numpy.asarray(problem.scores.double().numpy())
    cotangent = jax.numpy.asarray(problem.cotangent.double().numpy())
    value_and_pull_back = jax.jit(lambda x: jax.vjp(function, x)).lower(scores).compile()
    _, pull = value_and_pull_back(scores)
    pull_back = jax.jit(lambda pull, g: pull(g)[0]).lower(pull, cotangent).compile()
    return JaxRun(value_and_pull_back, pull_back, scores, cotangent, jax.block_until_ready)
