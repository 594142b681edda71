"""Indices of the k largest, with their soft weights."""

import math

import pytest
import torch

from softtopk import select_topk, soft_topk


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_indices_are_those_of_topk_and_weights_those_of_soft_topk(dim, largest):
    scores = torch.randn(4, 6, 5, dtype=torch.float64, requires_grad=True)
    found = select_topk(scores, 3, eps=0.5, dim=dim, largest=largest)
    expected = scores.topk(3, dim, largest).indices.sort(dim).values
    soft = soft_topk(scores, 3, eps=0.5, dim=dim, largest=largest)
    assert torch.equal(found.indices, expected)
    assert torch.equal(found.weights, soft.gather(dim, expected))
    assert found.mask.all()
    (gradient,) = torch.autograd.grad(found.weights.square().sum(), scores)
    assert (gradient != 0).all()  # of those that are not selected too


def test_own_k_and_mask_of_every_row():
    scores = torch.randn(3, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 6, [True, False, True, False, True, False], [False] * 6])
    k = torch.tensor([4, 2, 3])
    indices, weights, kept = select_topk(scores, k, mask=mask)
    assert kept.tolist() == [[True] * 4, [True, True, False, False], [False] * 4]
    assert (weights[~kept] == 0).all()
    for row, (at, keep) in enumerate(zip(indices, kept, strict=True)):
        left = scores[row].masked_fill(~mask[row], -math.inf)
        best = left.topk(int(keep.sum())).indices.sort().values
        assert torch.equal(at[keep], best)
        rest, n = scores[row, mask[row]], int(mask[row].sum())
        if n:  # as if the others were deleted
            alone = soft_topk(rest, min(int(k[row]), n))
            places = mask[row].cumsum(-1)[best] - 1
            torch.testing.assert_close(weights[row, keep], alone[places])


def test_limits():
    scores = torch.randn(5, 9)
    assert torch.equal(select_topk(scores, 3, eps=1e-30).weights, torch.ones(5, 3))
    hard = select_topk(scores.requires_grad_(), 3, hard=True)
    assert torch.equal(hard.weights, torch.ones(5, 3))
    assert hard.weights.requires_grad
    assert torch.equal(select_topk(torch.zeros(4), 2).indices, torch.tensor([0, 1]))  # ties
    assert select_topk(torch.zeros(0, 4), 2).indices.shape == (0, 2)
    assert select_topk(torch.zeros(0, 4), torch.zeros(0).long()).indices.shape == (0, 0)
    assert select_topk(torch.zeros(2, 4, device="meta"), 3).weights.shape == (2, 3)


def test_compiled():
    def select(scores):
        return select_topk(scores, 2, eps=0.5)

    scores = torch.randn(3, 5)
    compiled = torch.compile(select, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(scores), select(scores))


@pytest.mark.parametrize("k", [2.0, torch.tensor(2.0)])
def test_k_is_whole(k):
    with pytest.raises(TypeError, match="k must be an int or an integer tensor"):
        select_topk(torch.zeros(4), k)


def test_k_on_the_meta_device_is_refused():
    with pytest.raises(ValueError, match="k on device meta"):
        select_topk(torch.zeros(4, device="meta"), torch.tensor(2, device="meta"))
