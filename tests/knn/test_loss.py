"""The loss against loops over queries and templates."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from softtopk import eps_for, log_soft_topk, soft_topk
from softtopk.knn import (
    DivergedError,
    KNNObjective,
    Recipe,
    Training,
    knn_loss,
    pairwise_distances,
    soft_vote,
)
from softtopk.relaxations import names

ROW = {"normalize": "row"}
EPS = {"neural-sort": 1.0, "stochastic-neural-sort": 1.0, "sinkhorn-sort": 0.05}


def data(m: int = 6, n: int = 9, classes: int = 3, dtype=torch.double, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(m, 4, dtype=dtype, generator=generator)
    templates = torch.randn(n, 4, dtype=dtype, generator=generator)
    labels = torch.randint(classes, (m + n,), generator=generator)
    return queries, labels[:m], templates, labels[m:]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def oracle_indicator(
    scores: list[float], k: int, eps: float, normalized: bool = True
) -> list[float]:
    """SOFT top-k by bisection for the threshold; the cost of the row is normalised by default."""
    largest = max((x - y) ** 2 for x in scores for y in (0, 1)) if normalized else 1.0
    tau = eps * largest / 2
    low, high = min(scores) - 100 * tau, max(scores) + 100 * tau
    for _ in range(200):
        middle = (low + high) / 2
        # The sum minus k, with what is next to one written as one minus a small number.
        above = [x for x in scores if x > middle]
        missing = sum(sigmoid((middle - x) / tau) for x in above)
        beyond = sum(sigmoid((x - middle) / tau) for x in scores if x <= middle)
        if len(above) - k + (beyond - missing) > 0:
            low = middle
        else:
            high = middle
    return [sigmoid((x - low) / tau) for x in scores]


def oracle_votes(
    queries, templates, template_labels, k, eps, classes, excluded=(), normalized=True
):
    votes = np.zeros((len(queries), classes))
    for i, q in enumerate(queries.tolist()):
        left = [j for j in range(len(templates)) if (i, j) not in excluded]
        scores = [-math.dist(q, templates[j].tolist()) for j in left]
        for j, a in zip(left, oracle_indicator(scores, k, eps, normalized), strict=True):
            votes[i, int(template_labels[j])] += a / k
    return votes


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("eps", [None, 0.02])
def test_votes_and_losses_against_loops(k: int, eps: float | None) -> None:
    queries, query_labels, templates, template_labels = data()
    votes = oracle_votes(queries, templates, template_labels, k, eps or 1e-3, 3)
    found = soft_vote(queries, templates, template_labels, k, classes=3, eps=eps, options=ROW)
    np.testing.assert_allclose(found, votes, atol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1)
    own = votes[np.arange(6), query_labels]
    for objective, losses in (("vote", -own), ("nll", -np.log(own))):
        for reduction, expected in (
            ("none", losses),
            ("mean", losses.mean()),
            ("sum", losses.sum()),
        ):
            loss = knn_loss(
                queries, query_labels, templates, template_labels, k,
                objective=objective, reduction=reduction, eps=eps, options=ROW,
            )  # fmt: skip
            np.testing.assert_allclose(loss, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_by_default_about_2k_templates_are_undecided(k: int, scale: float) -> None:
    queries, query_labels, templates, template_labels = data(7, 60)
    queries, templates = scale * queries, scale * templates
    scores = -torch.cdist(queries, templates)
    eps = eps_for(scores, k, width=2 * k, per_row=False)
    chosen = np.array([oracle_indicator(row, k, eps, normalized=False) for row in scores.tolist()])
    undecided = ((chosen > 0.05) & (chosen < 0.95)).sum(1)
    assert abs(np.median(undecided) - 2 * k) <= 1 + 0.3 * k
    votes = oracle_votes(queries, templates, template_labels, k, eps, 3, normalized=False)
    found = soft_vote(queries, templates, template_labels, k, classes=3)
    np.testing.assert_allclose(found, votes, atol=1e-9)
    own = votes[np.arange(7), query_labels]
    for objective, losses in (("vote", -own), ("nll", -np.log(own))):
        loss = knn_loss(
            queries, query_labels, templates, template_labels, k,
            objective=objective, reduction="none",
        )  # fmt: skip
        np.testing.assert_allclose(loss, losses, rtol=1e-6)


def test_fewer_templates_than_the_width() -> None:
    queries, _, templates, template_labels = data()
    scores = -torch.cdist(queries, templates)
    eps = eps_for(scores, 8, width=9, per_row=False)  # of 9 templates
    votes = oracle_votes(queries, templates, template_labels, 8, eps, 3, normalized=False)
    found = soft_vote(queries, templates, template_labels, 8, classes=3)
    np.testing.assert_allclose(found, votes, atol=1e-9)


@pytest.mark.parametrize("objective", ["vote", "nll"])
@pytest.mark.parametrize("metric", ["euclidean", "squared", "cosine"])
def test_gradient(objective: str, metric: str) -> None:
    queries, query_labels, templates, template_labels = data()
    queries.requires_grad_()
    templates.requires_grad_()
    # With normalize="row" the divisor is detached, which finite differences would not see.
    options = {"normalize": None}

    def loss(q: Tensor, t: Tensor, reduction: str = "none") -> Tensor:
        return knn_loss(
            q, query_labels, t, template_labels, 3, objective=objective, metric=metric,
            eps=0.7, options=options, reduction=reduction,
        )  # fmt: skip

    assert torch.autograd.gradcheck(loss, (queries, templates))
    assert torch.autograd.gradgradcheck(lambda q, t: loss(q, t, "mean"), (queries, templates))


@pytest.mark.parametrize("relaxation", [name for name in names() if name != "hard"])
@pytest.mark.parametrize("objective", ["vote", "nll"])
def test_a_step_downhill_raises_the_vote(relaxation: str, objective: str) -> None:
    queries, query_labels, templates, template_labels = data(20, 30)
    queries.requires_grad_()
    eps = EPS.get(relaxation, 0.02)

    def own_votes() -> Tensor:
        torch.manual_seed(1)
        votes = soft_vote(
            queries, templates, template_labels, 5, classes=3, relaxation=relaxation, eps=eps
        )
        return votes.gather(1, query_labels.unsqueeze(1)).mean()

    before = own_votes()
    for _ in range(5):
        torch.manual_seed(1)
        loss = knn_loss(
            queries, query_labels, templates, template_labels, 5,
            relaxation=relaxation, objective=objective, eps=eps,
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(loss, queries)
        assert gradient.isfinite().all()
        with torch.no_grad():
            queries -= 0.05 * gradient / gradient.norm()
    assert own_votes() > before + 1e-3


@pytest.mark.parametrize("relaxation", names())
def test_every_relaxation_by_name(relaxation: str) -> None:
    queries, query_labels, templates, template_labels = data()
    torch.manual_seed(0)
    votes = soft_vote(queries, templates, template_labels, 3, relaxation=relaxation)
    torch.testing.assert_close(votes.sum(1), torch.ones(6, dtype=torch.double), atol=1e-3, rtol=0)
    loss = knn_loss(
        queries, query_labels, templates, template_labels, 3, relaxation=relaxation, reduction="sum"
    )
    assert loss.isfinite()


def test_the_limit_is_the_vote_of_the_nearest() -> None:
    queries, _, templates, template_labels = data(m=20, n=30)
    nearest = torch.cdist(queries, templates).topk(5, largest=False).indices
    expected = torch.nn.functional.one_hot(template_labels[nearest], 3).double().mean(1)
    soft = soft_vote(queries, templates, template_labels, 5, classes=3, eps=1e-7)
    torch.testing.assert_close(soft, expected, atol=1e-6, rtol=0)
    hard = soft_vote(queries, templates, template_labels, 5, classes=3, relaxation="hard")
    torch.testing.assert_close(hard, expected)


def test_a_function_as_relaxation() -> None:
    def uniform(scores: Tensor, k: int, *, eps: float = 1.0, mask: Tensor | None = None) -> Tensor:
        return torch.full_like(scores, k * eps / scores.shape[-1])

    queries, _, templates, template_labels = data()
    votes = soft_vote(queries, templates, template_labels, 3, classes=3, relaxation=uniform)
    counts = template_labels.bincount(minlength=3) / len(templates)
    torch.testing.assert_close(votes, counts.double().expand(6, 3))
    votes = soft_vote(queries, templates, template_labels, 3, relaxation=uniform, eps=0.5)
    torch.testing.assert_close(votes.sum(1), torch.full((6,), 0.5, dtype=torch.double))


def test_options_reach_the_relaxation() -> None:
    queries, labels, templates, template_labels = data()
    scores = -torch.cdist(queries, templates)
    same = labels.unsqueeze(1) == template_labels
    for options, eps in (({"normalize": "batch"}, 0.01), ({"normalize": None}, 0.3)):
        expected = -(soft_topk(scores, 3, eps=eps, **options) * same).sum(1) / 3
        loss = knn_loss(
            queries, labels, templates, template_labels, 3,
            objective="vote", eps=eps, options=options, reduction="none",
        )  # fmt: skip
        torch.testing.assert_close(loss, expected)
    # With a normalised cost eps is the paper's; without, it is calibrated.
    calibrated = eps_for(scores, 3, width=6, per_row=False)
    for options, eps in (
        ({"normalize": "batch"}, 1e-3),
        ({"normalize": "row"}, 1e-3),
        ({"normalize": None}, calibrated),
        (None, calibrated),
    ):
        expected = -(soft_topk(scores, 3, eps=eps, **(options or {})) * same).sum(1) / 3
        loss = knn_loss(
            queries, labels, templates, template_labels, 3,
            objective="vote", options=options, reduction="none",
        )  # fmt: skip
        torch.testing.assert_close(loss, expected)


def test_options_of_a_function_that_does_not_name_them() -> None:
    def scaled(scores: Tensor, k: int, **options: float) -> Tensor:
        return torch.full_like(scores, options["share"])

    queries, _, templates, template_labels = data()
    votes = soft_vote(
        queries, templates, template_labels, 3, relaxation=scaled, options={"share": 0.5}
    )
    torch.testing.assert_close(votes.sum(1), torch.full((6,), 1.5, dtype=torch.double))


def test_a_query_is_not_its_own_template() -> None:
    features, labels, _, _ = data(m=9)
    diagonal = [(i, i) for i in range(9)]
    expected = oracle_votes(features, features, labels, 3, 1e-3, 3, excluded=diagonal)
    ids = torch.arange(9) * 7
    same_tensor = soft_vote(features, features, labels, 3, classes=3, options=ROW)
    by_ids = soft_vote(
        features, features.clone(), labels, 3, classes=3, query_ids=ids, template_ids=ids,
        options=ROW,
    )  # fmt: skip
    np.testing.assert_allclose(same_tensor, expected, atol=1e-9)
    np.testing.assert_allclose(by_ids, expected, atol=1e-9)
    counted = soft_vote(features, features.clone(), labels, 3, classes=3, options=ROW)
    assert (counted - by_ids).abs().max() > 0.1
    loss = knn_loss(
        features, labels, features, labels, 3, objective="vote", reduction="none", options=ROW
    )
    np.testing.assert_allclose(loss, -expected[np.arange(9), labels], atol=1e-9)


def test_the_calibration_leaves_out_what_is_excluded() -> None:
    features, labels, _, _ = data(m=30)
    distances = torch.cdist(features, features)
    others = torch.stack([torch.cat([row[:i], row[i + 1 :]]) for i, row in enumerate(distances)])
    eps = eps_for(-others, 3, width=6, per_row=False)
    excluded = [(i, i) for i in range(30)]
    expected = oracle_votes(
        features, features, labels, 3, eps, 3, excluded=excluded, normalized=False
    )
    found = soft_vote(features, features, labels, 3, classes=3)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_views_of_the_same_memory_are_the_same_tensor() -> None:
    features, labels, _, _ = data(m=9)
    features.requires_grad_()
    expected = knn_loss(features, labels, features, labels, 3)
    ids = torch.arange(9)
    for view in (features.detach(), features[:], features.view_as(features)):
        for pair in ((features, view), (view, features)):
            torch.testing.assert_close(knn_loss(pair[0], labels, pair[1], labels, 3), expected)
        by_ids = knn_loss(features, labels, view, labels, 3, query_ids=ids)
        torch.testing.assert_close(by_ids, expected)
    copy = features.clone()
    counted = knn_loss(features, labels, copy, labels, 3)
    assert counted < expected - 0.1  # every query votes for itself
    by_ids = knn_loss(features, labels, copy, labels, 3, query_ids=ids, template_ids=ids)
    torch.testing.assert_close(by_ids, expected)


def test_other_views_are_other_tensors() -> None:
    square = torch.randn(4, 4, dtype=torch.double)
    labels = torch.tensor([0, 1, 0, 1])
    for view in (square.T, square[:3]):  # at the same address
        found = soft_vote(square, view, labels[: len(view)], 2)
        expected = soft_vote(square, view.clone(), labels[: len(view)], 2)
        torch.testing.assert_close(found, expected)
    nothing = soft_vote(torch.zeros(4, 0), torch.zeros(4, 0), labels, 4)  # without an address
    torch.testing.assert_close(nothing, torch.full((4, 2), 0.5))


def test_inside_transforms_one_object_is_the_same_tensor() -> None:
    features, labels, _, _ = data(m=9)

    def loss(f: Tensor) -> Tensor:
        return knn_loss(f, labels, f, labels, 3, eps=0.1)

    def mixed(f: Tensor) -> Tensor:
        return knn_loss(f, labels, f.detach(), labels, 3, eps=0.1)

    eager = features.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(eager), eager)
    torch.testing.assert_close(torch.func.grad(loss)(features), expected)
    torch.testing.assert_close(
        torch.func.vmap(loss)(features.expand(2, 9, 4)), loss(features).expand(2)
    )
    assert torch.func.grad(mixed)(features).isfinite().all()
    compiled = torch.compile(loss, backend="eager")
    torch.testing.assert_close(compiled(features), loss(features))
    assert torch.compile(mixed, backend="eager")(features).isfinite()


def test_ids_exclude_copies_too() -> None:
    features, labels, _, _ = data(m=8)
    ids = torch.tensor([0, 0, 1, 1, 2, 3, 4, 5])
    excluded = [(i, j) for i in range(8) for j in range(8) if ids[i] == ids[j]]
    expected = oracle_votes(features, features, labels, 3, 1e-3, 3, excluded=excluded)
    for given in ({"query_ids": ids}, {"template_ids": ids}):
        found = soft_vote(features, features, labels, 3, classes=3, options=ROW, **given)
        np.testing.assert_allclose(found, expected, atol=1e-9)
    different = soft_vote(
        features, features, labels, 3, classes=3, query_ids=ids, template_ids=ids + 100
    )
    plain = soft_vote(features, features, labels, 3, classes=3)
    torch.testing.assert_close(different, plain)  # still not its own template


def test_far_from_the_own_class_the_gradient_does_not_vanish() -> None:
    """The vote underflows to zero; its logarithm does not."""
    query = torch.zeros(1, 1, requires_grad=True)
    templates = torch.tensor([[-0.1], [-0.2], [-0.3], [50.0]])
    arguments = (query, torch.ones(1).long(), templates, torch.tensor([0, 0, 0, 1]), 2)
    assert knn_loss(*arguments, eps=1e-4, objective="vote", options=ROW) == 0
    loss = knn_loss(*arguments, eps=1e-4, objective="nll", options=ROW)
    (gradient,) = torch.autograd.grad(loss, query)
    assert loss > 300
    assert gradient.item() < -0.1  # to the right, where the class is
    scores = -(templates - query).abs().mT
    expected = math.log(2) - log_soft_topk(scores, 2, eps=1e-4, normalize="row")[0, 3]
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("normalize", [None, "row", "batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_and_far_queries_together(normalize: str | None, dtype: torch.dtype) -> None:
    """Votes of all sizes, down to some that underflow: the sum of their logarithms' terms."""
    torch.manual_seed(0)
    labels, k, eps = torch.arange(40) % 3, 4, 0.5 if normalize is None else 2e-6
    distance = torch.linspace(0, 120, 40, dtype=dtype)  # of a sample from where its class lies
    features = torch.randn(40, 3, dtype=dtype)
    features[:, 0] += 100 * labels - distance * (torch.arange(40) % 4 == 0)
    features.requires_grad_()
    losses = knn_loss(
        features, labels, features, labels, k,
        objective="nll", eps=eps, options={"normalize": normalize}, reduction="none",
    )  # fmt: skip
    others = ~torch.eye(40, dtype=torch.bool)
    scores = -pairwise_distances(features, features)
    logs = log_soft_topk(scores, k, eps=eps, mask=others, normalize=normalize)
    same = others & (labels.unsqueeze(1) == labels)
    expected = math.log(k) - logs.masked_fill(~same, -1e30).logsumexp(1)
    assert (losses < 0.1).any()
    assert (losses > 25).any()
    torch.testing.assert_close(losses, expected, rtol=2e-5, atol=1e-5)
    for found, wanted in zip(losses, expected, strict=True):
        torch.testing.assert_close(
            torch.autograd.grad(found, features, retain_graph=True)[0],
            torch.autograd.grad(wanted, features, retain_graph=True)[0],
            rtol=1e-3,
            atol=1e-4,
        )


@pytest.mark.parametrize("relaxation", ["soft-topk", "successive-softmax"])
@pytest.mark.parametrize("objective", ["vote", "nll"])
def test_the_only_sample_of_a_class(relaxation: str, objective: str) -> None:
    """Its one template would be itself."""
    features, _, _, _ = data(dtype=torch.float32)
    features.requires_grad_()
    labels = torch.tensor([0, 1, 1, 1, 1, 1])
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way, either
        losses = knn_loss(
            features, labels, features, labels, 2,
            objective=objective, relaxation=relaxation, reduction="none",
        )  # fmt: skip
        gradients = [torch.autograd.grad(loss, features, retain_graph=True)[0] for loss in losses]
    assert (gradients[0] == 0).all()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("relaxation", ["soft-topk", "successive-softmax"])
def test_no_template_of_the_class(relaxation: str) -> None:
    queries, _, templates, template_labels = data(dtype=torch.float32)
    queries.requires_grad_()
    missing = torch.full((6,), 7)
    for objective, expected in (("vote", 0.0), ("nll", -2 * math.log(torch.finfo().eps))):
        loss = knn_loss(
            queries, missing, templates, template_labels, 3,
            objective=objective, relaxation=relaxation,
        )  # fmt: skip
        assert loss.item() == pytest.approx(expected, rel=1e-5)
        (gradient,) = torch.autograd.grad(loss, queries)
        assert (gradient == 0).all()


@pytest.mark.parametrize("relaxation", names())
@pytest.mark.parametrize("objective", ["vote", "nll"])
def test_divergence_is_not_hidden(relaxation: str, objective: str) -> None:
    queries, _, templates, _ = data()
    labels, template_labels = torch.arange(6) % 3, torch.arange(9) % 3
    for features in (queries, templates):
        kept = features[1, 2].item()
        features[1, 2] = math.nan
        loss = knn_loss(
            queries, labels, templates, template_labels, 3,
            relaxation=relaxation, objective=objective,
        )  # fmt: skip
        assert loss.isnan()
        features[1, 2] = kept


def test_training_stops_where_features_are_not_finite() -> None:
    inputs, labels = torch.randn(40, 3), torch.arange(40) % 2
    inputs[7, 1] = math.nan
    training = Training(KNNObjective(torch.nn.Linear(3, 2), 3), inputs, labels, Recipe())
    with pytest.raises(DivergedError, match="the loss is nan"):
        training.advance()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"k": 10}, ValueError, "k=10 neighbours cannot be chosen from 9 templates; lower k"),
        ({"k": 0}, ValueError, "k must be at least 1, got k=0"),
        ({"k": 2.5}, TypeError, "k must be an int, got k=2.5"),
        ({"objective": "ce"}, ValueError, "objective must be one of 'vote', 'nll', got 'ce'"),
        ({"reduction": "max"}, ValueError, "reduction must be one of"),
        ({"metric": "l1"}, ValueError, "metric must be one of"),
        ({"relaxation": "sparsemax"}, ValueError, "no relaxation 'sparsemax', only soft-topk"),
        ({"eps": -1.0}, ValueError, "eps must be positive and finite, got eps=-1.0"),
        ({"options": {"eps": 0.1}}, ValueError, "options must not have 'eps'.*eps=0.1"),
        ({"options": {"dim": 0}}, ValueError, "options must not have 'dim'"),
        ({"options": {"largest": False}}, ValueError, "options must not have 'largest'"),
        ({"options": {"mask": None}}, ValueError, "options must not have 'mask'"),
        ({"options": ["hard"]}, TypeError, "options must be a dict or None"),
        (
            {"options": {"normalise": "row"}},
            ValueError,
            "options has 'normalise', which relaxation='soft-topk' does not take; it takes "
            "normalize, hard, solver",
        ),
        (
            {"options": {"solver": "exact"}, "relaxation": "stochastic-neural-sort"},
            ValueError,
            "it takes stochastic, samples, generator",
        ),
        (
            {"options": {"hard": True}, "objective": "nll"},
            ValueError,
            "use objective='vote' or hard=False",
        ),
        ({"query_ids": torch.arange(6)}, ValueError, "query_ids is given without template_ids"),
        ({"template_ids": torch.arange(9)}, ValueError, "template_ids is given without query_ids"),
        ({"query_labels": torch.zeros(6)}, TypeError, r"query_labels must be integers.*\.long"),
        (
            {"query_labels": torch.zeros(5).long()},
            ValueError,
            r"each of the 6 rows of query.*\(5,\)",
        ),
        ({"query": [[0.0] * 4] * 6}, TypeError, "query must be a torch.Tensor, got list"),
        ({"templates": np.zeros((9, 4))}, TypeError, "templates must be a torch.Tensor"),
        ({"query": torch.zeros(6, 5)}, ValueError, "query and templates must have features"),
        ({"template_labels": [0] * 9}, TypeError, "template_labels must be a torch.Tensor"),
        (
            {"k": 9, "query_ids": torch.arange(6), "template_ids": torch.arange(9)},
            ValueError,
            "k=9 neighbours cannot be chosen from 8 templates after 1 are excluded",
        ),
    ],
)
def test_errors(change: dict, kind: type[Exception], message: str) -> None:
    queries, query_labels, templates, template_labels = data()
    arguments = {
        "query": queries,
        "query_labels": query_labels,
        "templates": templates,
        "template_labels": template_labels,
        "k": 3,
    }
    with pytest.raises(kind, match=message):
        knn_loss(**(arguments | change))


def test_errors_of_the_vote() -> None:
    queries, _, templates, template_labels = data()
    with pytest.raises(ValueError, match="classes=2 is too few for template_labels up to 2"):
        soft_vote(queries, templates, template_labels, 3, classes=2)
    with pytest.raises(ValueError, match="template_labels must not be negative, got -3"):
        soft_vote(queries, templates, template_labels - 3, 3)
    with pytest.raises(TypeError, match=r"query must be a torch\.Tensor, got list"):
        soft_vote([[0.0] * 4], templates, template_labels, 3)
    with pytest.raises(ValueError, match="k=3 neighbours cannot be chosen from 0 templates"):
        soft_vote(queries, templates[:0], template_labels[:0], 3)
    with pytest.raises(ValueError, match="k=6 neighbours cannot be chosen from 5 templates"):
        soft_vote(queries, queries, torch.zeros(6).long(), 6)


def test_the_objective_is_the_loss_of_the_queries_among_the_templates() -> None:
    torch.manual_seed(0)
    network = torch.nn.Linear(4, 3).double()
    inputs, labels = torch.randn(20, 4).double(), torch.randint(3, (20,))
    for kind in ("nll", "vote"):
        outcome = KNNObjective(network, 3, objective=kind, eps=0.01)(inputs, labels, 8)
        features = network(inputs)
        arguments = (features[:8], features[8:], labels[8:], 3)
        expected = knn_loss(
            features[:8], labels[:8], features[8:], labels[8:], 3, objective=kind, eps=0.01
        )
        torch.testing.assert_close(outcome.loss, expected)
        predicted = soft_vote(*arguments, classes=3, eps=0.01).argmax(1)
        assert outcome.accuracy.item() == pytest.approx((predicted == labels[:8]).double().mean())
    with pytest.raises(ValueError, match="the network's output must be of shape"):
        KNNObjective(torch.nn.Unflatten(1, (2, 2)), 3)(inputs, labels, 8)
    with pytest.raises(ValueError, match="objective must be one of"):
        KNNObjective(network, objective="ce")
    settings = "k=9, relaxation='soft-topk', metric='euclidean', normalize="
    assert f"{settings}'row', eps=0.001" in repr(KNNObjective(network, options=ROW))
    assert f"{settings}None, objective='vote'" in repr(KNNObjective(network))


def test_training_separates_classes() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(120, 10)
    labels = (inputs[:, 0] > 0).long()  # the other nine are noise
    network = torch.nn.Linear(10, 4)
    recipe = Recipe(epochs=30, batch_size=30, template_size=50, optimizer="adamw", lr=1e-2)
    training = Training(KNNObjective(network, 5), inputs, labels, recipe, seed=0)
    steps = [training.advance()["accuracy"] for _ in range(training.total_steps)]
    assert np.mean(steps[:4]) < 0.85
    assert np.mean(steps[-4:]) > 0.9


def test_a_vote_of_zero_has_a_gradient_in_half_precision() -> None:
    """A query without a template of its class, next to one that has some."""
    templates = torch.tensor([[1.5], [-0.5]]).half().requires_grad_()
    loss = knn_loss(
        *(templates.detach().clone(), torch.tensor([0, 1]), templates, torch.tensor([0, 0]), 1),
        objective="nll",
        relaxation="neural-sort",
    )
    assert torch.autograd.grad(loss, templates)[0].isfinite().all()
