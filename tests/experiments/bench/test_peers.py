"""Every installed peer does what its entry says; without the extra, those that torch provides."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch

from softtopk import kernels
from softtopk.experiments._truth import true_ranking, true_selection
from softtopk.experiments.bench import PEERS, Case, Peer
from softtopk.experiments.bench._adapters import plain
from softtopk.experiments.bench._cases import problem_of, scores_of
from softtopk.experiments.bench._peers import Package
from softtopk.experiments.bench._targets import TARGET_PEERS, find_peer

# At a temperature at which 200 iterations of Sinkhorn's algorithm converge.
ROWS, N, K, EPS = 3, 24, 4, 2.0


def named(peer: Peer) -> str:
    return f"{peer.key}-{peer.operator}"


def listed(peers: tuple[Peer, ...]) -> list[object]:
    """What is installed; compiling takes several seconds."""
    slow = [pytest.mark.slow]
    return [
        pytest.param(peer, id=named(peer), marks=slow if peer.compiles else [])
        for peer in peers
        if peer.package.version() is not None
    ]


def call(peer: Peer, eps: float = EPS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Scores, result and gradient."""
    case = Case(peer.operator, ROWS, N, K, eps)
    scores = scores_of(case)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever a peer's own dependencies deprecate
        run = peer.prepare(problem_of(case, peer.output, scores))
        state = run.forward()
        return scores, run.selection(state), run.backward(state) if peer.gradient else None


def truth_of(peer: Peer, scores: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    tau = peer.tau(scores, K, eps)
    truth = true_selection if peer.operator == "unsorted" else true_ranking
    return truth(scores, K, tau)


@pytest.mark.parametrize("peer", listed(PEERS + TARGET_PEERS))
def test_shapes_and_sums(peer: Peer) -> None:
    scores, a, gradient = call(peer)
    shapes = {"mask": (ROWS, N), "ranks": (ROWS, N, K), "values": (ROWS, K), "order": (ROWS, N)}
    assert a.shape == shapes[peer.output]
    assert not a.requires_grad
    assert a.isfinite().all()
    if gradient is None:
        assert not peer.gradient
    else:
        assert gradient.shape == scores.shape
        assert gradient.isfinite().all()
    if peer.output == "mask":
        total = 1.0 if "softmax" in peer.label else K
        torch.testing.assert_close(
            a.sum(-1).double(), torch.full((ROWS,), total).double(), rtol=0, atol=2e-2
        )
    if peer.output == "ranks":
        torch.testing.assert_close(
            a.sum(-2).double(), torch.ones(ROWS, K).double(), rtol=0, atol=1e-3
        )


@pytest.mark.parametrize("peer", listed(tuple(p for p in PEERS if p.same_problem)))
def test_the_same_problem_is_the_same(peer: Peer) -> None:
    scores, a, _ = call(peer)
    assert (a - truth_of(peer, scores)).abs().max() < 1e-5


@pytest.mark.parametrize("operator", ["unsorted", "sorted"])
def test_sinkhorn_has_not_converged_when_it_is_cold(operator: str) -> None:
    """Else the error in the table would say nothing."""
    errors = {}
    for key in ("softtopk", "sinkhorn"):
        peer = find_peer(key, operator)
        scores, a, _ = call(peer, eps=1e-3)
        errors[key] = (a - truth_of(peer, scores, eps=1e-3)).abs().max()
    assert errors["softtopk"] < 1e-5
    assert errors["sinkhorn"] > 1e-2


def test_the_variants_of_the_targets_run_at_their_own_temperature() -> None:
    results = {key: call(find_peer(key, "unsorted"))[1] for key in ("softtopk", "cold", "hot")}
    assert results["cold"].max() > 0.99
    assert results["hot"].amax() < results["softtopk"].amax() < results["cold"].amax()


def test_the_plain_one_has_no_kernels_in_either_pass() -> None:
    active = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            active.append(kernels.status().active)
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            active.append(kernels.status().active)
            return grad

    case = Case("unsorted", ROWS, N, K)
    problem = problem_of(case, "mask", scores_of(case))
    run = plain(problem, operator=lambda x, k, eps: Spy.apply(x))
    run.backward(run.forward())
    assert active == [False, False]


def test_ranks_come_largest_first() -> None:
    for peer in PEERS:
        if peer.output == "ranks" and peer.package.version() and not peer.compiles:
            scores, a, _ = call(peer, eps=0.5)
            soft = (a * scores.unsqueeze(-1)).sum(-2)
            assert (soft.diff(dim=-1) < 0).all(), peer.label


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert Package("no_such_module", "no-such-distribution").version() is None


@pytest.mark.parametrize("peer", PEERS + TARGET_PEERS, ids=named)
def test_peers_travel_to_other_processes(peer: Peer) -> None:
    again = pickle.loads(pickle.dumps(peer))
    assert (again.key, again.label, again.operator) == (peer.key, peer.label, peer.operator)


def test_a_key_stands_for_one_peer_of_an_operator() -> None:
    names = [(peer.key, peer.operator) for peer in PEERS + TARGET_PEERS]
    assert len(set(names)) == len(names)
