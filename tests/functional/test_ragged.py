"""Rows of different lengths, by offsets and in jagged nested tensors: the same as the operators of
each row by itself, and as padding with a mask."""

import math
import re
from pathlib import Path

import pytest
import torch
from paths import both_paths, first, path  # noqa: F401
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.utils.rnn import pad_sequence

from softtopk import (
    Sinkhorn,
    kernels,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)

OPERATORS = [soft_topk, log_soft_topk, topk_threshold, soft_topk_softmax]
# Empty at both ends and in between; one element; a vector of the library and more; a long one.
LENGTHS = [0, 5, 1, 0, 300, 17, 2, 0]


def offsets_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def row_by_row(operator, scores, k, lengths, *, eps=0.1, mask=None, **options):
    """The operator of every row, joined."""
    results = []
    masks = [None] * len(lengths) if mask is None else mask.split(lengths, -1)
    for i, (row, own) in enumerate(zip(scores.split(lengths, -1), masks, strict=True)):
        n = row.shape[-1]
        if n == 0:
            if operator is topk_threshold:
                sign = 1 if options.get("largest", True) else -1
                results.append(row.new_full((*row.shape[:-1], 1), -sign * math.inf))
            continue
        places = k[..., i].clamp(max=n) if isinstance(k, torch.Tensor) else min(k, n)
        strength = eps[..., i] if isinstance(eps, torch.Tensor) else eps
        result = operator(row, places, eps=strength, mask=own, **options)
        results.append(result.unsqueeze(-1) if operator is topk_threshold else result)
    return torch.cat(results, -1)


def pulled(result, inputs):
    """The derivatives of the finite results in what requires one."""
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result.dtype)
    grad = grad.masked_fill(~result.isfinite(), 0.0)
    wanted = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    found = torch.autograd.grad(result, wanted, grad, allow_unused=True)
    return [torch.zeros(()) if each is None else each for each in found]


def assert_same(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def problems(dtype, batch):
    """Scores, k, eps and other options."""
    n_rows, total = len(LENGTHS), sum(LENGTHS)
    scores = torch.randn(*batch, total, dtype=dtype)
    yield scores, 3, 0.1, {}
    yield scores, 4, 0.2, {"largest": False}
    yield scores, 2.5, 0.5, {"mask": torch.rand(*batch, total) < 0.7, "normalize": "row"}
    per_row = 0.1 + 4 * torch.rand(*batch, n_rows, dtype=dtype)
    yield scores, per_row.requires_grad_(), 0.3, {"largest": False}
    eps = torch.rand(n_rows, dtype=dtype) + 0.1
    yield scores.round(), torch.randint(1, 9, (n_rows,)), eps.requires_grad_(), {}
    special = scores.clone()
    special[..., [1, 8, 20]] = math.inf  # the last two share the places of their row
    special[..., 9:12] = -math.inf
    special[..., 310] = math.nan
    yield special, torch.tensor([1, 1, 1, 1, 1.5, 2, 1, 1]), 0.1, {}


@both_paths
@pytest.mark.parametrize("batch", first((), (2, 3)))
@pytest.mark.parametrize("dtype", first(torch.float64, torch.float32))
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_same_as_row_by_row(operator, dtype, batch):
    offsets = offsets_of(LENGTHS)
    tolerance = 1e-9 if dtype is torch.float64 else 1e-4
    for scores, k, eps, options in problems(dtype, batch):
        if operator is soft_topk_softmax and "largest" in options:
            options, scores = {}, -scores
        scores = scores.clone().requires_grad_()
        found = operator(scores, k, eps=eps, offsets=offsets, **options)
        expected = row_by_row(operator, scores, k, LENGTHS, eps=eps, **options)
        assert_same(found, expected, tolerance)
        pairs = zip(
            pulled(found, (scores, k, eps)), pulled(expected, (scores, k, eps)), strict=True
        )
        for one, other in pairs:
            # In a row with a NaN kernels have no derivative, plain operations may have a NaN.
            one = torch.where(other.isnan(), math.nan, one)
            assert_same(
                one,
                other.expand_as(one),
                10 * tolerance * float(1 + other.nan_to_num().abs().max()),
            )


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_same_as_padded_and_masked(operator):
    lengths = [4, 9, 1, 30]
    rows = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in lengths]
    k, padded = torch.tensor([2, 3.5, 1, 20]), pad_sequence(rows, batch_first=True)
    mask = torch.arange(30) < torch.tensor(lengths).unsqueeze(-1)
    options = {"eps": 0.4, "normalize": "batch"}
    found = operator(torch.cat(rows), k, offsets=offsets_of(lengths), **options)
    expected = operator(padded, k, mask=mask, **options)
    if operator is not topk_threshold:
        expected = expected[mask]
    assert_same(found, expected, 1e-10)
    for one, other in zip(pulled(found, rows), pulled(expected, rows), strict=True):
        assert_same(one, other, 1e-10)


@both_paths
@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_derivatives(operator):
    offsets = offsets_of([3, 0, 4])
    scores = torch.randn(7, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([1.5, 1.0, 2.4], dtype=torch.float64, requires_grad=True)
    eps = torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64, requires_grad=True)

    def in_scores(scores, eps):
        result = operator(scores, 1.5, eps=eps, offsets=offsets)
        return result.masked_fill(result.isinf(), 0.0)

    def in_all(scores, k, eps):
        result = operator(scores, k, eps=eps, offsets=offsets)
        return result.masked_fill(result.isinf(), 0.0)

    assert gradcheck(in_scores, (scores, eps))
    assert gradgradcheck(in_scores, (scores, eps))
    if not kernels.is_interpreting():
        assert gradcheck(in_all, (scores, k, eps), check_forward_ad=True)
        assert gradgradcheck(in_all, (scores, k, eps))


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
def test_few_rows_and_none(operator):
    per_row = operator is topk_threshold
    for batch in ((), (2,), (0,)):
        for lengths in ([], [0, 0], [3]):
            scores = torch.randn(*batch, sum(lengths), requires_grad=True)
            result = operator(scores, 5, offsets=offsets_of(lengths))
            assert result.shape == (*batch, len(lengths) if per_row else sum(lengths))
            if operator is soft_topk:
                assert (result == 1).all()  # k is above every length
            result.nan_to_num(0, 0, 0).sum().backward()
            assert (scores.grad == 0).all() or operator is soft_topk_softmax
    nothing = topk_threshold(torch.zeros(0), torch.tensor([0, 1]), offsets=offsets_of([0, 0]))
    assert nothing.tolist() == [math.inf, -math.inf]  # as of rows that a mask empties


@both_paths
@pytest.mark.parametrize("operator", [soft_topk, soft_topk_softmax])
def test_the_hard_selection(operator):
    offsets = offsets_of(LENGTHS)
    scores = torch.randint(0, 6, (2, sum(LENGTHS))).double().requires_grad_()  # many ties
    k = torch.randint(0, 9, (2, len(LENGTHS)))
    found = operator(scores, k, offsets=offsets, hard=True)
    assert_same(found, row_by_row(operator, scores, k, LENGTHS, hard=True), 1e-12)
    soft = operator(scores, k, offsets=offsets)
    assert_same(*(pulled(result, [scores])[0] for result in (found, soft)), 1e-12)


@pytest.mark.parametrize("operator", OPERATORS)
def test_by_sinkhorn(operator):
    scores, offsets = torch.randn(2, 10, dtype=torch.float64), offsets_of([3, 0, 6, 1])
    solver = Sinkhorn(max_iter=20_000, tol=1e-13)
    found = operator(scores, 2, eps=0.5, offsets=offsets, solver=solver)
    assert_same(found, operator(scores, 2, eps=0.5, offsets=offsets), 1e-7)
    if operator is not soft_topk_softmax:
        found = operator(scores, 2, eps=0.5, largest=False, offsets=offsets, solver=solver)
        assert_same(found, operator(scores, 2, eps=0.5, largest=False, offsets=offsets), 1e-7)


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", first(torch.bfloat16, torch.float16))
def test_half_precision(dtype, operator):
    offsets = offsets_of(LENGTHS).int()
    scores = torch.randn(sum(LENGTHS)).to(dtype).requires_grad_()
    found = operator(scores, 3, offsets=offsets)
    assert found.dtype is dtype
    single = scores.detach().float().requires_grad_()
    expected = operator(single, 3, offsets=offsets)
    assert_same(found.float(), expected, 0.02)
    assert_same(pulled(found, [scores])[0].float(), pulled(expected, [single])[0], 0.1)


@pytest.mark.parametrize("operator", [soft_topk, soft_topk_softmax])
def test_a_long_row_among_short_ones_on_any_number_of_threads(operator):
    """The library shares the long one among its threads, and sums in the same order."""
    lengths = [3, 40_000, 1, *[9] * 5000, 0, 30_000]
    scores, offsets = torch.randn(sum(lengths)), offsets_of(lengths)
    k = torch.tensor(lengths).clamp(1, 100) / 2
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            leaf = scores.clone().requires_grad_()
            result = operator(leaf, k, offsets=offsets)
            found.append((result.detach(), *pulled(result, [leaf])))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    rows = [0, 1, 2, 7, len(lengths) - 1]
    for i in rows:
        own = slice(offsets[i], offsets[i + 1])
        assert_same(found[0][0][own], operator(scores[own], float(k[i])), 1e-5)


# Nested tensors.


def nested(*rows, **options):
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged, **options)


@both_paths
@pytest.mark.parametrize("operator", OPERATORS)
def test_nested_scores(operator):
    rows = [torch.randn(n, dtype=torch.float64) for n in (3, 1, 6)]
    scores = nested(*rows, requires_grad=True)
    k, eps = torch.tensor([2, 1, 2.5]), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    mask = nested(*(row > -1 for row in rows))
    found = operator(scores, k, eps=eps, mask=mask)
    joined = torch.cat(rows)
    flat = operator(joined, k, eps=eps, mask=joined > -1, offsets=offsets_of((3, 1, 6)))
    if operator is topk_threshold:
        assert torch.equal(found, flat)
        return
    assert torch.equal(found.values(), flat)
    (found + scores).values().nan_to_num(0, 0, 0).square().sum().backward()  # the same structure
    assert scores.grad.values().abs().sum() > 0


def test_nested_scores_with_more_dimensions_and_with_holes():
    rows = [torch.randn(n, 4) for n in (2, 5)]
    k = torch.rand(2, 4) + 0.5
    for scores, dim in ((nested(*rows), 1), (nested(*rows).transpose(1, 2), -1)):
        found = soft_topk(scores, k, dim=dim)
        assert found.shape == scores.shape
        thresholds = topk_threshold(scores, k, dim=dim)
        for i, row in enumerate(rows):
            expected = soft_topk(row, k[i], dim=0)
            assert_same(found[i] if dim == 1 else found[i].mT, expected, 1e-6)
            assert_same(thresholds[i], topk_threshold(row, k[i], dim=0), 1e-6)
    values = torch.randn(9)
    holes = torch.nested.nested_tensor_from_jagged(
        values, torch.tensor([0, 4, 9]), lengths=torch.tensor([2, 3])
    )
    found = soft_topk(holes, 1)
    assert_same(
        found.values(), torch.cat([soft_topk(values[:2], 1), soft_topk(values[4:7], 1)]), 1e-6
    )


# Transforms.


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_transforms(operator):
    offsets, scores = offsets_of([4, 0, 7]), torch.randn(3, 11, dtype=torch.float64)

    def loss(scores):
        return operator(scores, 2, offsets=offsets).nan_to_num(0, 0, 0).square().sum()

    leaf = scores.clone().requires_grad_()
    loss(leaf).backward()
    assert_same(torch.func.vmap(torch.func.grad(loss))(scores), leaf.grad, 1e-10)
    with pytest.raises(NotImplementedError, match="offsets"):
        torch.func.vmap(lambda offsets: operator(scores, 2, offsets=offsets))(offsets.expand(2, -1))


@pytest.mark.parametrize("backend", first("eager", "aot_eager", "inductor"))
@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_compiled(operator, backend):
    torch.compiler.reset()  # or the function of this name is compiled too often
    offsets, scores = offsets_of([4, 0, 7]), torch.randn(11, requires_grad=True)
    k = torch.tensor([2, 1, 3])
    compiled = torch.compile(
        lambda x, k, offsets: operator(x, k, offsets=offsets), fullgraph=True, backend=backend
    )
    found, expected = compiled(scores, k, offsets), operator(scores, k, offsets=offsets)
    assert_same(found, expected, 1e-5)
    assert_same(pulled(found, [scores])[0], pulled(expected, [scores])[0], 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_compiled_with_nested_scores(operator):
    """A nested result that requires a gradient cannot leave the graph of torch 2.13, its values
    can."""
    torch.compiler.reset()
    scores = nested(torch.randn(3), torch.randn(5), requires_grad=True)

    def values(scores):
        result = operator(scores, 2)
        return result.values() if result.is_nested else result

    assert_same(torch.compile(values)(scores), values(scores), 1e-5)


def test_the_examples_of_the_manual(capsys):
    page = (Path(__file__).parents[2] / "docs" / "ragged.md").read_text()
    examples, names = re.findall(r"```python\n(.*?)```\s+```\n(.*?)```", page, re.DOTALL), {}
    assert len(examples) == 2
    for code, output in examples:
        exec(code, names)
        assert capsys.readouterr().out == output


# Wrong arguments.


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ([0, 5], TypeError, "offsets must be a torch.Tensor, got list"),
        (torch.tensor([0.0, 5.0]), TypeError, "offsets must be int64 or int32, got torch.float32"),
        (torch.tensor([[0, 5]]), ValueError, r"offsets must have the shape \(rows \+ 1,\)"),
        (torch.tensor([], dtype=torch.int64), ValueError, "offsets must have the shape"),
        (torch.tensor([0, 4]), ValueError, "begin with 0 and end with 5.* got 0 and 4"),
        (torch.tensor([1, 5]), ValueError, "begin with 0 and end with 5.* got 1 and 5"),
        (torch.tensor([0, 3, 2, 5]), ValueError, "offsets must not decrease"),
        (torch.tensor([0, 5], device="meta"), ValueError, "on the device of the scores, cpu"),
    ],
)
def test_wrong_offsets(offsets, error, message):
    for operator in OPERATORS:
        with pytest.raises(error, match=message):
            operator(torch.zeros(5), 1, offsets=offsets)


def test_wrong_arguments_beside_offsets():
    scores, offsets = torch.zeros(2, 5), torch.tensor([0, 2, 5])
    for name, value, message in [
        ("dim", 0, r"rows lie along the last dimension, got dim=0.*scores.movedim\(0, -1\)"),
        ("k", -1, "k must be finite and not negative, got k=-1"),
        ("k", math.inf, "k must be finite"),
        ("k", torch.tensor([1.0, math.nan]), "k must be finite and not negative in every row"),
        ("k", torch.ones(3), r"k of shape \(3,\) does not broadcast to the batch shape \(2, 2\)"),
        ("eps", torch.ones(3), r"eps of shape \(3,\) does not broadcast"),
        ("mask", torch.ones(2, dtype=torch.bool), "mask of shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            soft_topk(scores, **({"k": 1, "offsets": offsets} | {name: value}))


def test_wrong_nested_arguments():
    scores = nested(torch.randn(2), torch.randn(3))
    with pytest.raises(TypeError, match="offsets must be None for nested scores"):
        soft_topk(scores, 1, offsets=torch.tensor([0, 5]))
    with pytest.raises(ValueError, match="dim must be the ragged dimension 1"):
        soft_topk(scores, 1, dim=0)
    with pytest.raises(TypeError, match="mask must be a jagged nested tensor"):
        soft_topk(scores, 1, mask=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask must have rows of the same lengths"):
        soft_topk(scores, 1, mask=nested(*(torch.ones(n, dtype=torch.bool) for n in (3, 2))))
    with pytest.raises(ValueError, match="k of shape"):
        soft_topk(scores, torch.ones(3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_scores_that_are_refused():
    with pytest.raises(TypeError, match=r"layout torch\.strided here; .*layout=torch\.jagged"):
        soft_topk(torch.nested.nested_tensor([torch.zeros(2)]), 1)
    with pytest.raises(TypeError, match=r"nested tensor .*to_padded_tensor"):
        sorted_soft_topk(nested(torch.zeros(2)), 1)
