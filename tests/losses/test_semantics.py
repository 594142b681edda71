"""Masks, queries without a positive, cutoffs, scales, dtypes and derivatives of all losses."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from softtopk import losses


def data(*shape, seed=0, dtype=torch.float64):
    """Scores that can be differentiated in, and positives, of which every query has one."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    positives = torch.rand(shape, generator=generator) < 0.4
    positives[..., 1] = True
    return scores.requires_grad_(), positives


def value_and_gradient(loss, scores, *rest, **options):
    value = loss(scores, *rest, **options)
    return value.detach(), *torch.autograd.grad(value.sum(), scores)


def test_derivatives(loss):
    scores, positives = data(2, 6)

    def function(x, eps):
        return loss(x, positives, eps=eps, reduction="none")

    eps = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, (scores, eps))
    assert gradgradcheck(function, (scores, eps))


def test_masked_is_deleted(loss):
    scores, positives = data(3, 8)
    kept = torch.tensor([True, True, False, True, False, True, True, False])
    value, gradient = value_and_gradient(loss, scores, positives, mask=kept)
    expected, wanted = value_and_gradient(loss, scores[:, kept], positives[:, kept])
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient[:, kept], wanted)
    assert (gradient[:, ~kept] == 0).all()
    # What is masked may be anything.
    broken = scores.detach().masked_fill(~kept, math.nan)
    torch.testing.assert_close(loss(broken, positives | ~kept, mask=kept), expected)


def test_queries_without_a_positive_do_not_count(loss):
    scores, positives = data(4, 7)
    positives[2] = False
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[0] = ~positives[0]
    valid = losses.valid_queries(positives, mask)
    assert valid.tolist() == [False, True, False, True]
    each = loss(scores, positives, mask=mask, reduction="none")
    assert (each == 0).tolist() == (~valid).tolist()
    value, gradient = value_and_gradient(loss, scores, positives, mask=mask)
    alone, wanted = value_and_gradient(loss, scores[valid], positives[valid])
    torch.testing.assert_close(value, alone)
    torch.testing.assert_close(value, each.sum() / 2)
    torch.testing.assert_close(loss(scores, positives, mask=mask, reduction="sum"), 2 * value)
    torch.testing.assert_close(gradient[valid], wanted)
    assert (gradient[~valid] == 0).all()


@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (2, 0, 5), (5,)])
def test_no_query_at_all(loss, shape):
    scores = torch.randn(shape, requires_grad=True)
    value, gradient = value_and_gradient(loss, scores, torch.zeros(shape, dtype=torch.bool))
    assert value == 0
    assert (gradient == 0).all()
    nothing = torch.zeros(shape, dtype=torch.bool)
    value, gradient = value_and_gradient(loss, scores, ~nothing, mask=nothing)
    assert value == 0
    assert (gradient == 0).all()


def test_several_cutoffs_are_a_weighted_mean(loss_at_k):
    scores, positives = data(4, 7)
    weights, eps = (1, 0.5, 2.5), 1e-2  # cold, since ndcg shares the ranks of the largest cutoff
    each = [loss_at_k(scores, positives, k, eps=eps) for k in (1, 3, 20)]
    found = loss_at_k(scores, positives, (1, 3, 20), weights=weights, eps=eps)
    expected = (each[0] + 0.5 * each[1] + 2.5 * each[2]) / 4
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    mean = loss_at_k(scores, positives, [1, 3, 20], eps=eps)
    torch.testing.assert_close(mean, sum(each) / 3, rtol=1e-6, atol=1e-6)


def test_batch_is_loop_and_more_items_than_one_axis(loss):
    scores, positives = data(2, 3, 6)
    eps = torch.tensor([[0.3], [2.0]], dtype=torch.float64)
    found = loss(scores, positives, eps=eps, reduction="none")
    assert found.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = loss(scores[i, j], positives[i, j], eps=eps[i, 0].item())
            torch.testing.assert_close(found[i, j], alone)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_the_default_temperature_follows_the_scale(metric_loss, scale):
    loss = metric_loss
    scores, positives = data(5, 9)
    expected = loss(scores, positives)
    torch.testing.assert_close(loss(scale * scores + scale, positives), expected)
    assert 0 < expected < 1
    part = torch.rand(5, 9) < 0.8
    part[:, 1] = True
    outside = torch.where(part, scores, 1e9)  # no outlier counts that is masked
    torch.testing.assert_close(
        loss(outside, positives, mask=part), loss(scores, positives, mask=part)
    )


KINDS = {
    "equal": torch.zeros(3, 6),
    "huge": torch.tensor([3e38, -3e38, 1.0, 3e38, 0.0, -1e38]).expand(3, 6),
    "tiny": torch.tensor([1e-45, 0.0, -1e-45, 1e-40, 1e-38, 0.0]).expand(3, 6),
    "infinite": torch.tensor([math.inf, -math.inf, 1.0, 2.0, -math.inf, 0.0]).expand(3, 6),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eps", [None, 1e-30, 1e30])
def test_extremes_are_finite(loss, kind, eps):
    scores = KINDS[kind].clone().requires_grad_()
    positives = torch.eye(6, dtype=torch.bool)[:3].clone()
    positives[1, 4] = True
    options = {} if eps is None else {"eps": eps}
    value, gradient = value_and_gradient(loss, scores, positives, **options)
    assert value.isfinite()
    assert gradient.isfinite().all()
    one, gradient = value_and_gradient(loss, scores[:, :1], positives[:, :1], **options)
    assert one.isfinite()


def test_equal_scores_have_an_ordinary_gradient(loss):
    """The head of a network that starts at zero, and scores that differ by rounding."""
    for scores in (torch.zeros(2, 8), torch.full((2, 8), 0.7), 0.7 + 1e-7 * torch.randn(2, 8)):
        positives = torch.arange(8).expand(2, 8) < 2
        _, gradient = value_and_gradient(loss, scores.requires_grad_(), positives)
        assert 0 < gradient.abs().max() < 1e2


@pytest.mark.parametrize("fill", [-1e9, -3e38])
def test_a_large_negative_number_excludes_as_infinity_does(metric_loss, fill):
    scores, positives = data(4, 50, dtype=torch.float32)
    excluded = torch.rand(4, 50, generator=torch.Generator().manual_seed(1)) < 0.6
    positives &= ~excluded
    found = value_and_gradient(
        metric_loss, scores.detach().masked_fill(excluded, fill).requires_grad_(), positives
    )
    expected = value_and_gradient(
        metric_loss, scores.detach().masked_fill(excluded, -math.inf).requires_grad_(), positives
    )
    torch.testing.assert_close(found, expected)


def test_mapped_over_what_the_scores_should_be(loss):
    scores, _ = data(3, 6)
    positives = torch.rand(4, 3, 6, generator=torch.Generator().manual_seed(2)) < 0.5
    found = torch.func.vmap(lambda each: loss(scores, each))(positives)
    torch.testing.assert_close(found, torch.stack([loss(scores, each) for each in positives]))


def test_average_precision_has_a_gradient_in_a_tiny_eps():
    scores, positives = data(3, 6, dtype=torch.float32)
    eps = torch.tensor(1e-30, requires_grad=True)
    losses.average_precision_loss(scores, positives, eps=eps).backward()
    assert eps.grad == 0


def test_gains_of_any_size():
    scores, positives = data(3, 6, dtype=torch.float32)
    expected = losses.ndcg_at_k_loss(scores, positives, 3)
    for gain in (1e-38, 3e38):
        torch.testing.assert_close(losses.ndcg_at_k_loss(scores, gain * positives, 3), expected)


def test_narrow_labels():
    scores = torch.randn(1, 200)
    for label in (156, 199):  # 156 is -100 in uint8
        narrow = losses.topk_cross_entropy(scores, torch.tensor([label], dtype=torch.uint8), 3)
        torch.testing.assert_close(
            narrow, losses.topk_cross_entropy(scores, torch.tensor([label]), 3)
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(loss, dtype):
    scores, positives = data(20, 30, dtype=dtype)
    value, gradient = value_and_gradient(loss, scores, positives)
    exact, wanted = value_and_gradient(loss, scores.detach().float().requires_grad_(), positives)
    assert value.dtype is torch.float32
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-6)
    assert gradient.dtype is dtype
    torch.testing.assert_close(gradient.float(), wanted, rtol=2e-2, atol=1e-5)


def test_autocast_does_not_round(loss):
    scores, positives = data(20, 30, dtype=torch.float32)
    expected = loss(scores, positives)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss(scores, positives), expected)


def test_compiled(one_loss):
    torch.compiler.reset()
    scores, positives = data(3, 6)
    compiled = torch.compile(one_loss, backend="aot_eager", fullgraph=True)
    given = {"mask": positives | (torch.arange(6) < 4)}
    found = value_and_gradient(compiled, scores, positives, **given)
    torch.testing.assert_close(found, value_and_gradient(one_loss, scores, positives, **given))


# What is peculiar to single ones.


def test_cross_entropy_has_a_gradient_where_the_indicator_underflows():
    scores = torch.tensor([[500.0, 400.0, 0.0]], requires_grad=True)
    positives = torch.tensor([[False, False, True]])
    _, gradient = value_and_gradient(losses.topk_cross_entropy, scores, positives, 1, eps=1.0)
    assert gradient[0, 2] == pytest.approx(-2)
    _, gradient = value_and_gradient(losses.recall_at_k_loss, scores, positives, 1, eps=1.0)
    assert (gradient == 0).all()


def test_labels_are_one_positive():
    scores, _ = data(2, 3, 6)
    labels = torch.tensor([[0, 5, -100], [3, 2, 1]])
    positives = torch.nn.functional.one_hot(labels.clamp(min=0), 6).bool()
    positives[0, 2] = False
    mask = torch.ones(2, 3, 6, dtype=torch.bool)
    mask[1, 1, 2] = False
    found = value_and_gradient(losses.topk_cross_entropy, scores, labels, (1, 4), mask=mask)
    expected = value_and_gradient(losses.topk_cross_entropy, scores, positives, (1, 4), mask=mask)
    torch.testing.assert_close(found, expected)
    other = losses.topk_cross_entropy(scores, labels.abs().clamp(max=5), 1, ignore_index=5)
    last = losses.topk_cross_entropy(
        scores, labels.masked_fill((labels == 5) | (labels < 0), -100), 1
    )
    torch.testing.assert_close(other, last)


def test_a_better_ranking_has_a_smaller_loss(loss):
    """A step against the gradient."""
    scores, positives = data(10, 20)
    value, gradient = value_and_gradient(loss, scores, positives)
    assert loss(scores - 1e-3 * gradient / gradient.norm(), positives) < value
