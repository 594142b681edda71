"""What the operators promise beyond their values: masks, infinities, ties, shapes, dtypes."""

import math

import pytest
import torch
from paths import both_paths, first, is_rounded
from torch.testing import assert_close

from softtopk import (
    Sinkhorn,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)

INF = math.inf
#: Operators with an entry per element; the element axis of the result is given.
ELEMENTWISE = [
    pytest.param(soft_topk, id="soft"),
    pytest.param(log_soft_topk, id="log"),
    pytest.param(sorted_soft_topk, id="sorted"),
]


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("operator", ELEMENTWISE)
@pytest.mark.parametrize("normalize", [None, "row"])
def test_masked_is_deleted(operator, solver, normalize):
    scores = randn(8)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1]).bool()
    options = {"eps": 0.7, "solver": solver, "normalize": normalize}
    scores[1], scores[4] = math.nan, 1e30  # whatever stands there is not looked at
    masked = operator(scores, 3, mask=mask, **options)
    assert_close(masked[mask], operator(scores[mask], 3, **options), rtol=1e-9, atol=1e-11)
    assert (masked[~mask] == (-INF if operator is log_soft_topk else 0.0)).all()


@pytest.mark.parametrize("operator", [*ELEMENTWISE, pytest.param(topk_threshold, id="threshold")])
@pytest.mark.parametrize("largest", [True, False])
def test_infinite_scores_of_the_losing_side_are_masked(operator, solver, largest):
    scores, mask = randn(2, 6), torch.ones(2, 6).bool()
    mask[0, 2] = mask[1, 5] = mask[1, 0] = False
    options = {"eps": 0.7, "solver": solver, "largest": largest}
    infinite = scores.masked_fill(~mask, -INF if largest else INF)
    assert_close(operator(infinite, 2, **options), operator(scores, 2, mask=mask, **options))


@pytest.mark.parametrize("largest", [True, False])
def test_infinite_scores_of_the_winning_side_come_first(solver, largest):
    options = {"eps": 0.7, "solver": solver, "largest": largest}
    first = INF if largest else -INF
    scores = randn(6)
    scores[1] = scores[4] = first
    rest = torch.tensor([0, 2, 3, 5])

    soft = soft_topk(scores, 3, **options)
    assert_close(soft[[1, 4]], torch.ones(2).double())
    assert_close(soft[rest], soft_topk(scores[rest], 1, **options), rtol=1e-9, atol=1e-11)
    assert_close(soft_topk(scores, 2, **options), torch.isinf(scores).double())
    assert_close(soft_topk(scores, 1, **options), 0.5 * torch.isinf(scores).double())
    assert_close(soft_topk(scores, 0.5, **options), 0.25 * torch.isinf(scores).double())

    ranks = sorted_soft_topk(scores, 4, **options)
    assert_close(ranks[[1, 4]], torch.tensor([[0.5, 0.5, 0, 0]]).double().expand(2, 4))
    inner = sorted_soft_topk(scores[rest], 2, **options)
    assert_close(ranks[rest][:, 2:], inner, rtol=1e-9, atol=1e-11)
    assert (ranks[rest][:, :2] == 0).all()


def test_a_row_with_too_few_elements_selects_them_all(solver):
    scores = randn(3, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    options = {"eps": 0.5, "mask": mask, "solver": solver}
    assert_close(soft_topk(scores, 3, **options)[1:], mask[1:].double())
    threshold = topk_threshold(scores, 3, **options)
    assert threshold[0].isfinite()
    assert (threshold[1:] == -INF).all()
    ranks = sorted_soft_topk(scores, 3, **options)
    inner = sorted_soft_topk(scores[1, [0, 2]], 2, eps=0.5, solver=solver)
    assert_close(ranks[1, [0, 2], :2], inner, rtol=1e-9, atol=1e-11)
    assert (ranks[1, :, 2] == 0).all()
    assert (ranks[2] == 0).all()


def test_nan_stays_in_its_row(solver):
    scores = randn(3, 5)
    scores[1, 2] = math.nan
    mask = torch.ones(3, 5).bool()
    mask[1, 4] = False
    options = {"eps": 2.0, "mask": mask, "solver": solver}
    clean = torch.tensor([0, 2])
    for operator in (soft_topk, log_soft_topk, sorted_soft_topk):
        result = operator(scores, 2, **options)
        without = operator(scores[clean], 2, **{**options, "mask": mask[clean]})
        assert_close(result[clean], without)
        assert result[1, :4].isnan().all()
        assert (result[1, 4] == (-INF if operator is log_soft_topk else 0.0)).all()
    threshold = topk_threshold(scores, 2, **options)
    assert threshold.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("k", [0, 5, 0.0, 5.0])
def test_nothing_and_everything(k, solver):
    scores = randn(2, 5).requires_grad_()
    soft = soft_topk(scores, k, eps=0.3, solver=solver)
    assert_close(soft, torch.full_like(soft, float(k > 0)))
    (grad,) = torch.autograd.grad(soft.square().sum(), scores)
    assert_close(grad, torch.zeros_like(grad), rtol=0, atol=1e-11 if solver != "exact" else 0)
    assert (topk_threshold(scores, k, eps=0.3, solver=solver) == (-INF if k else INF)).all()


def test_one_element(solver):
    scores = randn(4, 1)
    for k in (0, 0.3, 1):
        assert_close(soft_topk(scores, k, solver=solver), torch.full_like(scores, k))
    assert_close(sorted_soft_topk(scores, 1, solver=solver), torch.ones(4, 1, 1).double())
    assert sorted_soft_topk(scores, 0, solver=solver).shape == (4, 1, 0)


@both_paths
@pytest.mark.parametrize("eps", [1e-30, 1e-6, 0.1, 1e3, 1e30])
def test_ties_share_equally(eps):
    scores = torch.tensor([2.0, 1.0, 1.0, 1.0, 0.0, -3.0])
    soft = soft_topk(scores, 2, eps=eps)
    assert_close(soft[1:4], soft[1].expand(3))
    assert_close(soft.sum(), torch.tensor(2.0))
    ranks = sorted_soft_topk(scores, 3, eps=eps)
    assert_close(ranks[1:4], ranks[1].expand(3, 3))
    assert_close(ranks.sum(0), torch.ones(3))
    if eps <= 1e-6:
        assert_close(soft, torch.tensor([1, 1 / 3, 1 / 3, 1 / 3, 0, 0]))
        assert_close(ranks[1], torch.tensor([0, 1 / 3, 1 / 3]))


@both_paths
def test_equal_scores_are_uniform():
    for n, k in ((1, 1), (4, 1), (4, 4), (1000, 30)):
        assert_close(soft_topk(torch.full((n,), 7.5), k, eps=1e-6), torch.full((n,), k / n))
        assert_close(
            sorted_soft_topk(torch.full((n,), 7.5), k, eps=1e-6), torch.full((n, k), 1 / n)
        )


@both_paths
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_dim(dim):
    scores, mask = randn(4, 5, 6), randn(4, 5, 6, seed=1) > -1
    last = scores.movedim(dim, -1).contiguous()
    options = {"eps": 0.4, "mask": mask.movedim(dim, -1)}
    k = torch.rand(last.shape[:-1]).double() * 3
    along = {"eps": 0.4, "mask": mask, "dim": dim}
    for operator in (soft_topk, log_soft_topk):
        assert_close(operator(scores, k, **along).movedim(dim, -1), operator(last, k, **options))
    assert_close(topk_threshold(scores, k, **along), topk_threshold(last, k, **options))
    ranks = sorted_soft_topk(scores, 3, **along)
    assert ranks.shape == (*scores.shape, 3)
    assert_close(ranks.movedim(dim % 3, -2), sorted_soft_topk(last, 3, **options))


@both_paths
@pytest.mark.parametrize("dim", [(0, 1), (-1, 1), [2, 0], (1,), (0, 1, 2)])
def test_several_dims_are_one_row(dim):
    scores, mask = randn(4, 5, 6), randn(4, 5, 6, seed=1) > -1
    dims = sorted(each % 3 for each in dim)
    order = [each for each in range(3) if each not in dims] + dims

    def joined(x):
        return x.permute(order).flatten(3 - len(dims))

    rows, options = joined(scores), {"eps": 0.4, "mask": joined(mask), "largest": False}
    k = torch.rand(rows.shape[:-1]).double() * 3
    along = options | {"mask": mask, "dim": dim}
    for operator in (soft_topk, log_soft_topk):
        assert_close(joined(operator(scores, k, **along)), operator(rows, k, **options))
    assert_close(topk_threshold(scores, k, **along), topk_threshold(rows, k, **options))
    ranks = sorted_soft_topk(scores, 3, **along)
    assert ranks.shape == (*scores.shape, 3)
    expected = sorted_soft_topk(rows, 3, **options)
    for rank, other in zip(ranks.unbind(-1), expected.unbind(-1), strict=True):
        assert_close(joined(rank), other)


@pytest.mark.parametrize("normalize", first("row", None))
def test_ranks_above_the_own_k_of_a_row_are_empty(solver, normalize):
    scores, mask = randn(2, 3, 7), randn(2, 3, 7, seed=1) > -1
    k, eps = torch.tensor([[2, 0, 5], [1, 2, 2]]), torch.tensor([[0.2], [0.9]])
    options = {"solver": solver, "normalize": normalize}
    scores.requires_grad_()
    ranks = sorted_soft_topk(scores, k, eps=eps, mask=mask, **options)
    assert ranks.shape == (2, 3, 7, 5)
    (gradient,) = torch.autograd.grad(ranks.square().sum(), scores)
    for at in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        i, j, own = *at, int(k[tuple(at)])
        row = scores[i, j].detach().requires_grad_()
        alone = sorted_soft_topk(row, own, eps=eps[i, 0].item(), mask=mask[i, j], **options)
        assert_close(ranks[i, j, :, :own], alone, rtol=1e-6, atol=1e-9)
        assert (ranks[i, j, :, own:] == 0).all()
        (expected,) = torch.autograd.grad(alone.square().sum(), row)
        assert_close(gradient[i, j], expected, rtol=1e-6, atol=1e-9)


def test_own_ks_share_the_normalisation_of_the_batch():
    """The largest cost of all rows, each with its own anchors, divides the cost of all."""
    scores, k = randn(2, 6), torch.tensor([1, 4])
    scale = max(
        (float(x) - anchor) ** 2
        for row, own in zip(scores, k, strict=True)
        for x in row
        for anchor in range(int(own) + 1)
    )
    expected = sorted_soft_topk(scores, k, eps=0.1 * scale)
    assert_close(sorted_soft_topk(scores, k, normalize="batch"), expected)


@both_paths
def test_own_ks_without_variety():
    scores = randn(3, 4)
    same = sorted_soft_topk(scores, torch.tensor(2), hard=True)
    assert_close(same, sorted_soft_topk(scores, 2, hard=True))
    assert sorted_soft_topk(scores[:0], torch.zeros(0, dtype=torch.long)).shape == (0, 4, 0)
    assert sorted_soft_topk(scores, torch.zeros(3, dtype=torch.long)).shape == (3, 4, 0)


@both_paths
def test_non_contiguous_and_expanded_input():
    scores = randn(6, 8)
    for view in (scores.T, scores[::2, 1::3], scores[:1].expand(3, 8), scores.flip(-1)):
        assert_close(
            soft_topk(view, 1), soft_topk(view.clone(memory_format=torch.contiguous_format), 1)
        )


@pytest.mark.parametrize("normalize", [None, "row", "batch"])
def test_empty_batch(solver, normalize):
    scores = torch.randn(3, 0, 5, requires_grad=True)
    options = {"solver": solver, "normalize": normalize}
    soft = soft_topk(scores, 2, **options)
    assert soft.shape == (3, 0, 5)
    soft.sum().backward()
    assert scores.grad.shape == scores.shape
    assert sorted_soft_topk(scores, 2, **options).shape == (3, 0, 5, 2)
    assert topk_threshold(scores, 2, **options).shape == (3, 0)


def test_rows_do_not_influence_each_other(solver):
    reach = 3 if solver == "exact" else 1
    scores = randn(20, 9) * torch.logspace(-3, reach, 20).double().unsqueeze(-1)
    for operator in (soft_topk, sorted_soft_topk):
        for normalize in (None, "row"):
            options = {"eps": 2.0, "normalize": normalize, "solver": solver}
            together = operator(scores, 3, **options)
            alone = torch.stack([operator(row, 3, **options) for row in scores])
            assert_close(together, alone, rtol=0, atol=1e-13)
    alone = soft_topk(scores[10:11], 3, normalize="batch")
    assert (soft_topk(scores, 3, normalize="batch")[10:11] - alone).abs().max() > 0.1


@both_paths
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_compute_in_float32(dtype):
    scores = torch.randn(4, 50).to(dtype)
    for operator in (soft_topk, log_soft_topk, sorted_soft_topk, topk_threshold):
        for solver in ("exact", Sinkhorn(max_iter=1000, tol=1e-5)):
            result = operator(scores, 5, eps=0.5, solver=solver)
            assert result.dtype == dtype
            assert is_rounded(result, operator(scores.float(), 5, eps=0.5, solver=solver))


@both_paths
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.uint8])
def test_narrow_types_of_k_are_exact(dtype):
    """n, and k minus a count, do not fit into them."""
    scores = torch.arange(1000.0)
    k = torch.tensor([100, 64], dtype=dtype)
    result = soft_topk(scores.expand(2, 1000), k, eps=1e-3)
    assert result.sum(-1).tolist() == [100, 64]
    if dtype.is_floating_point:
        assert soft_topk(scores, torch.tensor(600, dtype=dtype), eps=1e-3).sum() == 600


@both_paths
def test_log_is_finite_for_a_float_and_for_a_tensor():
    scores = torch.tensor([0.0, 5.0, 30.0, 100.0])
    for eps in (1e-18, torch.tensor(1e-18)):
        log_a = log_soft_topk(scores, 2, eps=eps)
        assert_close(log_a, torch.tensor([-3.5e19, -2.5e19, 0.0, 0.0]))


@both_paths
@pytest.mark.parametrize("k", [1e-3, 1e-9, 1e-15])
def test_tiny_k(k):
    """For k -> 0 the selection is k times a softmax."""
    scores = randn(6).float()
    expected = math.log(k) + torch.log_softmax(2 * scores / 0.5, -1)
    assert_close(log_soft_topk(scores, k, eps=0.5), expected, rtol=1e-5, atol=20 * k + 1e-5)


@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_sinkhorn_survives_huge_scores(operator):
    scores = torch.tensor([1e20, 0.0, 1.0, -1e20])
    assert_close(operator(scores, 1, eps=1e20, solver="sinkhorn"), operator(scores, 1, eps=1e20))


@both_paths
def test_single_precision_stays_single():
    for operator in (soft_topk, log_soft_topk, sorted_soft_topk, topk_threshold):
        eps = torch.tensor(0.5, dtype=torch.float64)
        assert operator(torch.randn(7), 2, eps=eps).dtype == torch.float32


@both_paths
@pytest.mark.parametrize("largest", [True, False])
def test_hard_is_the_selection_of_topk(largest):
    scores = torch.randint(0, 4, (50, 12)).float()  # many ties, of which the first count
    indices = scores.sort(descending=largest, stable=True).indices[..., :4]
    assert_close(scores.gather(-1, indices), scores.topk(4, largest=largest).values)
    hard = soft_topk(scores, 4, hard=True, largest=largest)
    assert torch.equal(hard, torch.zeros_like(scores).scatter(-1, indices, 1.0))
    ranks = sorted_soft_topk(scores, 4, hard=True, largest=largest)
    assert torch.equal(ranks, torch.nn.functional.one_hot(indices, 12).mT.float())


@both_paths
def test_hard_has_the_soft_gradient():
    scores = randn(3, 7).requires_grad_()
    weight = randn(3, 7, seed=1)
    for operator, w in ((soft_topk, weight), (sorted_soft_topk, randn(3, 7, 2, seed=2))):
        grads = [
            torch.autograd.grad((w * operator(scores, 2, eps=0.8, hard=hard)).sum(), scores)[0]
            for hard in (True, False)
        ]
        assert torch.equal(*grads)
        assert grads[0].abs().max() > 0


@both_paths
@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk, soft_topk_softmax])
def test_hard_rows_with_nan_are_nan(operator):
    scores = torch.tensor([[3.0, math.nan, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    for grad in (False, True):
        hard = operator(scores.clone().requires_grad_(grad), 2, hard=True)
        assert hard[0].isnan().all()
        assert hard[1].isfinite().all()


@both_paths
def test_hard_with_mask_and_per_row_k():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    mask = torch.tensor([[False, True, True, True], [True, True, False, False]])
    hard = soft_topk(scores, 2, mask=mask, hard=True)
    assert hard.tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    ranks = sorted_soft_topk(scores, 3, mask=mask, hard=True)
    assert ranks.sum(-1).tolist() == [[0, 1, 1, 1], [1, 1, 0, 0]]
    k = torch.tensor([1.2, 2.6], requires_grad=True)
    hard = soft_topk(scores, k, hard=True)
    assert hard.tolist() == [[1, 0, 0, 0], [0, 1, 1, 1]]
    hard.sum().backward()  # the soft A sums to k
    torch.testing.assert_close(k.grad, torch.ones(2))


@both_paths
@pytest.mark.parametrize("normalize", [None, "row", "batch"])
def test_differences_that_overflow_leave_the_sum(normalize):
    """Even at a temperature at which they would be small numbers."""
    scores = torch.tensor([-9.9e37, 1.9e38, -3.4e38])
    for eps in (1.0, torch.tensor(1.0), 3e38):
        for operator in (soft_topk, sorted_soft_topk):
            selected = operator(scores, 1, eps=eps, largest=False, normalize=normalize)
            assert_close(selected.sum(), torch.tensor(1.0))


@both_paths
def test_huge_and_tiny_finite_scores_give_finite_results():
    largest = torch.finfo(torch.float32).max
    for scores in (
        torch.tensor([largest, -largest, 0.0, 1.0]),
        torch.tensor([1e-45, 2e-45, 0.0, 1.0]),
        torch.tensor([1e30, 1e30, -1e30, 3.0]),
    ):
        for eps in (1e-38, 1e-6, 1.0, 1e20, 1e38):
            for normalize in (None, "row"):
                x = scores.clone().requires_grad_()
                strength = torch.tensor(eps, requires_grad=True)
                options = {"eps": strength, "normalize": normalize}
                for soft in (soft_topk(x, 2, **options), sorted_soft_topk(x, 2, **options)):
                    grads = torch.autograd.grad(soft.square().sum(), (x, strength))
                    assert soft.isfinite().all(), (scores, eps)
                    assert all(not grad.isnan().any() for grad in grads), (scores, eps)
                    assert abs(soft.sum().item() - 2) < 1e-5
