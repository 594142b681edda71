"""The losses against their definitions, and as eps -> 0 against the metrics of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from sklearn.metrics import average_precision_score, ndcg_score, top_k_accuracy_score

from softtopk import losses

N, EPS = 9, 0.4


def rows(seed=0, count=6, n=N):
    """Scores, positives (one at least and one query without any) and a relevance."""
    rng = np.random.default_rng(seed)
    relevance = rng.integers(0, 4, (count, n)) * (rng.random((count, n)) < 0.5)
    relevance[:, 0], relevance[-1] = 1, 0
    return rng.normal(size=(count, n)), relevance > 0, relevance


# Definitions, for one query: x (n,), g (n,) positives or relevance.


def recall(x, g, k, eps):
    return 1 - reference.soft_topk(x, k, eps)[0][g].sum() / g.sum()


def precision(x, g, k, eps):
    return 1 - reference.soft_topk(x, k, eps)[0][g].sum() / k


def hit(x, g, k, eps):
    return np.prod([1 - a for a in reference.soft_topk(x, k, eps)[0][g]])


def cross_entropy(x, g, k, eps):
    return -reference.log_soft_topk(x, k, eps)[g].mean()


def ndcg(x, g, k, eps):
    discounts = 1 / np.log2(np.arange(k) + 2)
    ideal = np.sort(g)[::-1][:k] @ discounts
    return 1 - g @ reference.sorted_soft_topk(x, k, eps) @ discounts / ideal


def average_precision(x, g, eps):
    def ahead(i, j):
        return 1 / (1 + np.exp(2 * (x[i] - x[j]) / eps))

    total = 0
    for i in np.flatnonzero(g):
        others = [j for j in range(len(x)) if j != i]
        among = [j for j in others if g[j]]
        total += (1 + sum(ahead(i, j) for j in among)) / (1 + sum(ahead(i, j) for j in others))
    return 1 - total / g.sum()


AT_K = {
    "recall": (losses.recall_at_k_loss, recall),
    "precision": (losses.precision_at_k_loss, precision),
    "hit": (losses.hit_at_k_loss, hit),
    "cross-entropy": (losses.topk_cross_entropy, cross_entropy),
    "ndcg": (losses.ndcg_at_k_loss, ndcg),
}


@pytest.mark.parametrize("name", AT_K)
@pytest.mark.parametrize("k", [1, 4])
def test_the_definition_at_k(name, k):
    loss, definition = AT_K[name]
    scores, positives, relevance = rows()
    target = relevance if name == "ndcg" else positives
    found = loss(*map(torch.tensor, (scores, target)), k, eps=EPS, reduction="none")
    expected = [
        definition(x, g, k, EPS) if g.any() else 0 for x, g in zip(scores, target, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


def test_the_definition_of_average_precision():
    scores, positives, _ = rows()
    found = losses.average_precision_loss(
        *map(torch.tensor, (scores, positives)), eps=EPS, reduction="none"
    )
    expected = [
        average_precision(x, g, EPS) if g.any() else 0
        for x, g in zip(scores, positives, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# The limit.

COLD = 1e-4


@pytest.mark.parametrize("tied", [False, True])
def test_ndcg_is_that_of_sklearn_ties_included(tied):
    scores, _, relevance = rows(1, 20, 12)
    scores = scores.round(1) if tied else scores
    found = losses.ndcg_at_k_loss(*map(torch.tensor, (scores, relevance)), (3, 7, 40), eps=COLD)
    kept = relevance.any(1)
    each = [ndcg_score(relevance[kept], scores[kept], k=k) for k in (3, 7, 40)]
    assert 1 - found.item() == pytest.approx(np.mean(each), abs=1e-9)


def test_average_precision_is_that_of_sklearn():
    scores, positives, _ = rows(1, 20, 12)
    found = losses.average_precision_loss(*map(torch.tensor, (scores, positives)), eps=COLD)
    kept = positives.any(1)
    each = list(map(average_precision_score, positives[kept], scores[kept]))
    assert 1 - found.item() == pytest.approx(np.mean(each), abs=1e-9)


def test_hits_are_the_top_k_accuracy_of_sklearn():
    scores, labels = rows(1, 20, 5)[0], np.arange(20) % 5
    positives = torch.nn.functional.one_hot(torch.tensor(labels)).bool()
    for loss in (losses.hit_at_k_loss, losses.recall_at_k_loss):
        found = loss(torch.tensor(scores), positives, 2, eps=COLD)
        assert 1 - found.item() == pytest.approx(top_k_accuracy_score(labels, scores, k=2))


@pytest.mark.parametrize("k", [1, 5, 12, 30])  # of 12 items
def test_recall_and_precision_count_the_positives_found(k):
    scores, positives, _ = rows(1, 20, 12)
    given = torch.tensor(scores), torch.tensor(positives), k
    order = np.argsort(-scores, axis=1)[:, :k]
    found = np.take_along_axis(positives, order, 1).sum(1)
    many = positives.sum(1)
    kept = many > 0
    for loss, wanted in (
        (losses.recall_at_k_loss(*given, eps=COLD), many),
        (losses.recall_at_k_loss(*given, eps=COLD, capped=True), np.minimum(many, k)),
        (losses.precision_at_k_loss(*given, eps=COLD), np.full(20, k)),
    ):
        expected = 1 - (found[kept] / wanted[kept]).mean()
        assert loss.item() == pytest.approx(expected, abs=1e-9)


def test_ties_share_the_places():
    """The expected recall if they are broken at random."""
    scores, positives = torch.tensor([2.0, 1.0, 1.0, 1.0]), torch.tensor([0, 1, 1, 0]).bool()
    assert losses.recall_at_k_loss(scores, positives, 2) == pytest.approx(1 - 1 / 3)
    assert losses.average_precision_loss(scores, positives, eps=COLD) == pytest.approx(0.5)


def test_cross_entropy_of_small_probabilities_is_the_usual_one():
    """With k = 1, many classes and tau = 1, the default."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 20_000, generator=generator, dtype=torch.float64)
    labels = torch.arange(5)
    found = losses.topk_cross_entropy(logits, labels, 1, reduction="none")
    usual = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    torch.testing.assert_close(found, usual, rtol=0, atol=2e-3)


def test_cross_entropy_becomes_a_hinge_up_to_the_cut():
    logits = torch.tensor([[3.0, 1.0, 0.0, -2.0]], dtype=torch.float64)
    for label, distance in enumerate((0.0, 0.0, 0.5, 2.5)):  # the cut of the two largest is 0.5
        loss = losses.topk_cross_entropy(logits, torch.tensor([label]), 2, eps=1e-3)
        assert 0.5e-3 * loss.item() == pytest.approx(distance, abs=1e-3)
