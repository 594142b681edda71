"""soft_topk_attention in blocks of queries, against the same with all scores at once."""

import math

import pytest
import torch
from paths import both_paths, first
from torch.testing import assert_close

from softtopk import kernels
from softtopk.nn import _attention, _blocks, soft_topk_attention

INF = math.inf
BATCH, HEADS, LENGTH, KEYS = 2, 4, 7, 9


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def inputs(*batch, length=LENGTH, keys=KEYS, dtype=torch.float64):
    query, key = randn(*batch, length, 4, dtype=dtype), randn(*batch, keys, 4, seed=1, dtype=dtype)
    return query, key, randn(*batch, keys, 3, seed=2, dtype=dtype)


# A part of the queries of one head, or those of two heads. test_attention.py has one block for all.
@pytest.fixture(params=[3 * KEYS, 2 * LENGTH * KEYS], ids=["rows", "heads"])
def size(request, monkeypatch):
    """Scores in a block."""
    monkeypatch.setattr(_blocks, "_block_size", lambda query: request.param)
    monkeypatch.setattr(_blocks, "MASKED_ROWS", 3)
    return request.param


def outcome(tensors, topk, options, at_once=False):
    """Output and gradients."""
    tensors = [x.detach().clone().requires_grad_() for x in tensors]
    result = soft_topk_attention(*tensors, topk, **options, need_weights=at_once)
    output = result[0] if at_once else result
    assert ("InBlocks" in output.grad_fn.name()) != at_once
    upstream = randn(*output.shape, seed=5, dtype=output.dtype)
    return output.detach(), *torch.autograd.grad(output, tensors, upstream)


def assert_same(tensors, topk, options, **tolerance):
    found, expected = (outcome(tensors, topk, options, at_once) for at_once in (False, True))
    assert_close(found, expected, **tolerance)
    with torch.no_grad():
        alone = soft_topk_attention(*tensors, topk, **options)
    assert_close(alone, expected[0], **tolerance)


SHAPES = {
    "keys": (KEYS,),
    "one number": (1,),
    "queries": (LENGTH, 1),
    "matrix": (LENGTH, KEYS),
    "batch": (BATCH, 1, 1, KEYS),
    "heads": (HEADS, 1, KEYS),
    "batch and queries": (BATCH, 1, LENGTH, KEYS),
    "all": (BATCH, HEADS, LENGTH, KEYS),
}


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(("topk", "hard"), [(3, False), (3, True), (KEYS, False)])
@pytest.mark.parametrize("form", ["boolean", "floating"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_masks(shape, form, topk, hard):
    """With rows that have fewer keys than topk, and none."""
    kept = randn(*shape, seed=3) > -0.3
    mask = kept if form == "boolean" else torch.where(kept, randn(*shape, seed=4), -INF)
    assert_same(inputs(BATCH, HEADS), topk, {"attn_mask": mask, "hard": hard})
    expanded = mask.expand(BATCH, HEADS, LENGTH, KEYS)
    assert_same(inputs(BATCH, HEADS), topk, {"attn_mask": expanded, "hard": hard})


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(("topk", "hard"), [(1, False), (3, False), (3, True), (KEYS, False)])
@pytest.mark.parametrize("length", [2, KEYS + 3])
@pytest.mark.parametrize("is_causal", [False, True])
def test_without_a_mask(is_causal, length, topk, hard):
    options = {"is_causal": is_causal, "hard": hard, "scale": 0.7}
    assert_same(inputs(BATCH, HEADS, length=length), topk, options)


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("eps", [(), (HEADS, 1), (LENGTH,), (BATCH, HEADS, LENGTH)], ids=str)
def test_a_tensor_of_eps(eps):
    assert_same(inputs(BATCH, HEADS), 3, {"eps": randn(*eps, seed=6).exp()})


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (1, 1), (2, 4), (1, 2)])
def test_shared_heads(key_heads, value_heads):
    query = inputs(BATCH, HEADS)[0]
    key, value = inputs(BATCH, key_heads)[1], inputs(BATCH, value_heads)[2]
    mask = randn(BATCH, HEADS, LENGTH, KEYS, seed=3) > -0.5
    assert_same((query, key, value), 3, {"attn_mask": mask, "enable_gqa": True})


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize(
    "batches",
    [
        ((), (), ()),
        ((2, 3), (2, 1), (3,)),
        ((2, 1), (1, 3), ()),
        ((), (), (2, 3)),
        ((3,), (2, 3), (3,)),
    ],
    ids=str,
)
def test_leading_axes_broadcast(batches):
    tensors = [inputs(*batch)[i] for i, batch in enumerate(batches)]
    assert_same(tensors, 3, {})
    turned = [x.mT.contiguous().mT for x in tensors]
    assert_close(outcome(turned, 3, {}), outcome(tensors, 3, {}))


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype, hard):
    tolerance = (20 if dtype == torch.float32 else 2) * torch.finfo(dtype).eps
    tensors = inputs(BATCH, HEADS, dtype=dtype)
    for options in (
        {},
        {"is_causal": True},
        {"attn_mask": randn(LENGTH, KEYS, seed=4, dtype=dtype)},
    ):
        options["hard"] = hard
        assert_same(tensors, 3, options, rtol=tolerance, atol=tolerance)


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("topk", [3, KEYS])
@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_special_values(value, topk):
    """In a query, and in a key that is hidden from all but one query."""
    query, key, values = inputs(BATCH, HEADS)
    query[1, 2, 4, 0] = value
    key[0, 1, 5, 1] = value
    kept = torch.ones(LENGTH, KEYS, dtype=torch.bool)
    kept[1:, 5] = False
    assert_same((query, key, values), topk, {"attn_mask": kept}, equal_nan=True)


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("form", ["boolean", "floating"])
def test_keys_that_no_query_sees_are_not_read(form):
    query, key, value = inputs(BATCH, HEADS)
    kept = torch.ones(KEYS, dtype=torch.bool)
    kept[:2] = kept[-3:] = False
    expected = outcome((query, key[:, :, 2:-3], value[:, :, 2:-3]), 2, {})
    key[:, :, ~kept] = value[:, :, ~kept] = math.nan
    mask = kept if form == "boolean" else torch.zeros(KEYS).masked_fill(~kept, -INF)
    output, *gradients = outcome((query, key, value), 2, {"attn_mask": mask})
    assert_close((output, gradients[0]), expected[:2])
    for found, part in zip(gradients[1:], expected[2:], strict=True):
        assert_close(found[:, :, kept], part)
        assert found[:, :, ~kept].eq(0).all()


# -------------------------------------------------------------------------------------- gradients


@both_paths
@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": randn(3, 5, seed=3)}])
def test_gradcheck(options):
    def attention(query, key, value):
        return soft_topk_attention(query, key, value, 2, enable_gqa=True, **options)

    query = randn(2, 3, 4)
    tensors = (query, *inputs(1, length=3, keys=5)[1:])
    tensors = [x.requires_grad_() for x in tensors]
    torch.autograd.gradcheck(attention, tensors)
    torch.autograd.gradgradcheck(attention, tensors, fast_mode=True)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("needed", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
@both_paths
def test_some_gradients(needed):
    tensors = inputs(BATCH, HEADS)
    expected = outcome(tensors, 3, {})
    tensors = [x.requires_grad_(bool(need)) for x, need in zip(tensors, needed, strict=True)]
    output = soft_topk_attention(*tensors, 3)
    output.backward(randn(*output.shape, seed=5))
    for x, gradient in zip(tensors, expected[1:], strict=True):
        assert_close(x.grad, gradient if x.requires_grad else None)


@pytest.mark.usefixtures("size")
def test_a_batch_of_gradients():
    tensors = [x.requires_grad_() for x in inputs(BATCH, HEADS)]
    output = soft_topk_attention(*tensors, 3)
    upstream = randn(5, *output.shape, seed=5)
    expected = [torch.autograd.grad(output, tensors, each, retain_graph=True) for each in upstream]
    found = torch.autograd.grad(output, tensors, upstream, is_grads_batched=True)
    assert_close(found, tuple(map(torch.stack, zip(*expected, strict=True))))


@pytest.mark.usefixtures("size")
def test_the_backward_pass_may_take_another_path():
    tensors = [x.requires_grad_() for x in inputs(BATCH, HEADS)]
    expected = outcome(tensors, 3, {})
    output = soft_topk_attention(*tensors, 3)
    with kernels.plain():
        found = torch.autograd.grad(output, tensors, randn(*output.shape, seed=5))
    assert_close(found, expected[1:])


@both_paths
def test_sums_over_many_blocks_are_as_precise(monkeypatch):
    """A gradient in bfloat16 is rounded once, not once for each block."""
    monkeypatch.setattr(_blocks, "_block_size", lambda query: 64)
    tensors = inputs(1, length=256, keys=64, dtype=torch.bfloat16)
    truth = outcome([x.double() for x in tensors], 8, {}, at_once=True)
    upstream = randn(1, 256, 3, seed=5, dtype=torch.bfloat16)
    errors = []
    for at_once in (False, True):
        leaves = [x.detach().requires_grad_() for x in tensors]
        result = soft_topk_attention(*leaves, 8, need_weights=at_once)
        found = torch.autograd.grad(result[0] if at_once else result, leaves, upstream)
        errors.append([float((x - y).norm()) for x, y in zip(found, truth[1:], strict=True)])
    for ours, theirs in zip(*errors, strict=True):
        assert ours < 1.2 * theirs


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("hard", [False, True])
def test_autocast(hard):
    """As if the inputs were of the lower precision, and whether or not backward is inside."""
    tensors = [x.requires_grad_() for x in inputs(BATCH, HEADS, dtype=torch.float32)]
    low = [x.detach().bfloat16() for x in tensors]
    expected = outcome(low, 3, {"hard": hard})
    upstream = randn(BATCH, HEADS, LENGTH, 3, seed=5, dtype=torch.bfloat16)
    for inside in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            output = soft_topk_attention(*tensors, 3, hard=hard)
            assert output.dtype == torch.bfloat16
            assert torch.equal(output, expected[0])
            if inside:
                found = torch.autograd.grad(output, tensors, upstream)
        if not inside:
            found = torch.autograd.grad(output, tensors, upstream)
        assert_close(found, tuple(x.float() for x in expected[1:]), rtol=0, atol=0)


# ----------------------------------------------------------------------------------------- memory


def memory(tensors, mask, topk, **options):
    """The largest tensor that is kept for backward, and the largest that is made in both passes."""
    kept = [0]

    def pack(tensor):
        if tensor is not mask:
            kept.append(tensor.untyped_storage().nbytes() // tensor.itemsize)
        return tensor

    with torch.profiler.profile(profile_memory=True) as profile:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = soft_topk_attention(*tensors, topk, attn_mask=mask, **options)
        output = result[0] if isinstance(result, tuple) else result
        torch.autograd.grad(output.sum(), tensors)
    made = max(event.self_cpu_memory_usage for event in profile.events())
    return max(kept), made // tensors[0].itemsize


@both_paths
@pytest.mark.parametrize(("topk", "hard"), [(5, False), (5, True), (80, False)])
@pytest.mark.parametrize("kind", first("causal", "none", "boolean", "floating"))
def test_no_scores_are_kept_or_made(kind, topk, hard, monkeypatch):
    """Nothing as large as the scores of one head."""
    length, n = 60, 80
    monkeypatch.setattr(_blocks, "_block_size", lambda query: 20 * n)
    tensors = [x.requires_grad_() for x in inputs(2, length=length, keys=n)]
    masks = {"boolean": randn(length, n, seed=3) > 0, "floating": randn(length, n, seed=3)}
    arguments = tensors, masks.get(kind), topk
    options = {"is_causal": kind == "causal", "hard": hard}
    kept, made = memory(*arguments, **options)
    assert kept <= max(x.numel() for x in tensors)
    assert made < length * n
    at_once = memory(*arguments, **options, need_weights=True)
    assert min(at_once) >= 2 * length * n


# ------------------------------------------------------------------------------------ which way


@pytest.mark.parametrize(
    ("options", "in_blocks"),
    [
        ({}, True),
        ({"is_causal": True}, True),
        ({"hard": True}, True),
        ({"eps": torch.ones(HEADS, 1)}, True),
        ({"attn_mask": torch.zeros(KEYS)}, True),
        ({"eps": torch.ones(HEADS, 1, requires_grad=True)}, False),
        ({"attn_mask": torch.zeros(KEYS, requires_grad=True)}, False),
        ({"normalize": "row"}, False),
        ({"dropout_p": 0.1}, False),
        ({"need_weights": True}, False),
    ],
    ids=str,
)
def test_what_goes_in_blocks(options, in_blocks, monkeypatch):
    calls = []
    monkeypatch.setattr(
        _attention, "attend_in_blocks", lambda *args: calls.append(args) or torch.empty(0)
    )
    soft_topk_attention(*inputs(BATCH, HEADS), 3, **options)
    assert bool(calls) == in_blocks
