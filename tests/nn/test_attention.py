"""soft_topk_attention: against a loop over rows, against torch's own attention, and its limits."""

import math
import warnings

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import both_paths
from torch.func import grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from softtopk.functional._softmax import softmax_of_largest
from softtopk.nn import soft_topk_attention

INF = math.inf


def randn(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def inputs(*batch, length=5, keys=7, size=4, value_size=3, dtype=torch.float64):
    return (
        randn(*batch, length, size, dtype=dtype),
        randn(*batch, keys, size, seed=1, dtype=dtype),
        randn(*batch, keys, value_size, seed=2, dtype=dtype),
    )


def row_weights(scores, topk, eps, normalize=None, hard=False):
    """Weights of one row of float64 scores, -inf deleted: the definition, with the oracle's A."""
    weights, left = np.zeros_like(scores), np.isfinite(scores)
    f = scores[left]
    if len(f) == 0:
        return weights
    if hard:
        f = np.where(f >= np.sort(f)[::-1][: min(topk, len(f))].min(), f, -INF)
    elif topk < len(f):
        scale = max(f.max() ** 2, f.min() ** 2, (f.max() - 1) ** 2, (f.min() - 1) ** 2)
        f = f + reference.log_soft_topk(f, topk, eps, scale if normalize == "row" else 1.0)
    f = np.exp(f - f.max())
    weights[left] = f / f.sum()
    return weights


def looped(query, key, value, topk, eps, bias, **options):
    """The same for (..., L, E) in float64, with an additive mask ``bias`` (..., L, S)."""
    scores = (query @ key.mT / query.shape[-1] ** 0.5 + bias).double().numpy()
    rows = [row_weights(row, topk, eps, **options) for row in scores.reshape(-1, scores.shape[-1])]
    weights = torch.tensor(np.array(rows)).reshape(scores.shape)
    return weights @ value.double(), weights


CAUSAL = torch.zeros(5, 7, dtype=torch.float64).masked_fill(~torch.ones(5, 7).tril().bool(), -INF)
PADDED = torch.zeros(2, 1, 1, 7, dtype=torch.float64)
PADDED[0, ..., 5:] = PADDED[1, ..., 2:] = -INF
SOME = torch.where(randn(2, 3, 5, 7, seed=3) > 0.5, randn(2, 3, 5, 7, seed=4), -INF)
SOME[0, 1, 2], SOME[1, 2] = -INF, -INF  # rows without a key
MASKS = [
    pytest.param(torch.zeros(5, 7, dtype=torch.float64), id="none"),
    pytest.param(CAUSAL, id="causal"),
    pytest.param(PADDED, id="padded"),
    pytest.param(PADDED + CAUSAL, id="padded and causal"),
    pytest.param(SOME, id="random"),
]


# ---------------------------------------------------------------------------------------- values


@both_paths
@pytest.mark.parametrize("bias", MASKS)
@pytest.mark.parametrize(("topk", "eps"), [(1, 1.0), (3, 0.01), (3, 1.0), (6, 100.0), (7, 1.0)])
@pytest.mark.parametrize("normalize", [None, "row"])
def test_values(bias, topk, eps, normalize):
    query, key, value = inputs(2, 3)
    options = {"eps": eps, "normalize": normalize, "need_weights": True}
    expected = looped(query, key, value, topk, eps, bias, normalize=normalize)
    found = soft_topk_attention(query, key, value, topk, attn_mask=bias, **options)
    assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if bias is not SOME:  # nothing but -inf and 0: the same as boolean
        found = soft_topk_attention(query, key, value, topk, attn_mask=bias == 0, **options)
        assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if bias is CAUSAL:
        found = soft_topk_attention(query, key, value, topk, is_causal=True, **options)
        assert_close(found, expected, rtol=1e-9, atol=1e-12)


@both_paths
@pytest.mark.parametrize("bias", MASKS)
@pytest.mark.parametrize("topk", [1, 3, 6])
@pytest.mark.parametrize("gradients", [False, True])
def test_hard(bias, topk, gradients):
    """Exactly topk keys where there are as many, on the sparse path and on the dense one."""
    query, key, value = inputs(2, 3)
    expected = looped(query, key, value, topk, 1.0, bias, hard=True)
    query.requires_grad_(gradients)
    found = soft_topk_attention(
        query, key, value, topk, attn_mask=bias, need_weights=True, hard=True
    )
    assert_close(found, expected)
    left = bias.expand(2, 3, 5, 7).isfinite().sum(-1)
    assert torch.equal((found[1] > 0).sum(-1), left.clamp(max=topk))
    assert found[0].requires_grad == gradients


@both_paths
def test_hard_has_the_gradient_of_the_soft():
    query, key, value = (x.requires_grad_() for x in inputs(2, 3))
    hard, weights = soft_topk_attention(query, key, value, 2, hard=True, need_weights=True)
    _, soft = soft_topk_attention(query, key, value, 2, need_weights=True)
    upstream = randn(2, 3, 5, 3, seed=5)
    found = torch.autograd.grad(hard, (query, key, value), upstream)
    through_weights = torch.autograd.grad(soft, (query, key), upstream @ value.detach().mT)
    assert_close(found, (*through_weights, weights.detach().mT @ upstream))


@both_paths
def test_hard_reads_no_other_values():
    query, key, value = inputs(2, 3, length=1)
    best = (query @ key.mT).topk(3).indices.mT
    chosen = value.take_along_dim(best, -2)
    value = torch.full_like(value, math.nan).scatter(-2, best.expand_as(chosen), chosen)
    output = soft_topk_attention(query, key, value, 3, hard=True)
    weights = ((query @ key.mT).take_along_dim(best.mT, -1) / 2).softmax(-1)
    assert_close(output, weights @ chosen)


@both_paths
@pytest.mark.parametrize("gradients", [False, True])
def test_hard_keeps_as_many_among_equals(gradients):
    query, key, value = inputs(2, 3)
    key = key[..., :1, :].repeat(1, 1, 7, 1).requires_grad_(gradients)
    output, weights = soft_topk_attention(query, key, value, 3, hard=True, need_weights=True)
    assert (weights != 0).sum(-1).eq(3).all()
    assert_close(weights, torch.where(weights != 0, 1 / 3, 0.0).double())
    assert_close(output, weights @ value)


@both_paths
def test_mask_of_the_lowest_finite_number_is_like_minus_infinity():
    query, key, value = inputs(2, 3, dtype=torch.float32)
    lowest = torch.zeros(5, 7).masked_fill(CAUSAL < 0, torch.finfo(torch.float32).min)
    for topk in (3, 7):
        found = soft_topk_attention(query, key, value, topk, attn_mask=lowest)
        assert_close(found, soft_topk_attention(query, key, value, topk, is_causal=True))


def test_scale():
    query, key, value = inputs(2)
    assert_close(
        soft_topk_attention(query, key, value, 2, scale=0.3),
        soft_topk_attention(query * 0.3 * 2, key, value, 2),  # 1 / sqrt(4) is the default
    )


@both_paths
def test_eps_per_head_and_per_query():
    query, key, value = inputs(2, 3)
    for eps in (torch.tensor([0.1, 1.0, 5.0]).double()[:, None], randn(2, 3, 5, seed=6).exp()):
        found = soft_topk_attention(query, key, value, 2, eps=eps)
        each = eps.expand(2, 3, 5)
        for place in np.ndindex(2, 3, 5):
            row = query[place[:2]][place[2] :][:1]
            expected = soft_topk_attention(
                row, key[place[:2]], value[place[:2]], 2, eps=each[place].item()
            )
            assert_close(found[place], expected[0])


def test_permuting_keys_permutes_weights():
    query, key, value = inputs(2)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    output, weights = soft_topk_attention(query, key, value, 2, need_weights=True)
    found = soft_topk_attention(query, key[:, order], value[:, order], 2, need_weights=True)
    assert_close(found, (output, weights[..., order]))


# ------------------------------------------------------------------------------------- broadcasting


@pytest.mark.parametrize("topk", [2, 7])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("query_batch", "key_batch", "value_batch"),
    [
        ((), (), ()),
        ((2, 3), (3,), (3,)),
        ((3,), (2, 3), (2, 3)),
        ((2, 3), (2, 1), (3,)),
        ((2, 1), (1, 3), ()),
        ((), (3,), (2, 3)),
        ((), (), (2, 3)),
        ((2, 2, 3), (), (2, 1, 1)),
    ],
)
def test_leading_axes_broadcast(topk, hard, query_batch, key_batch, value_batch):
    query, key, value = (
        inputs(*batch)[i] for i, batch in enumerate((query_batch, key_batch, value_batch))
    )
    batch = torch.broadcast_shapes(query_batch, key_batch, value_batch)
    mask = randn(*batch, 5, 7, seed=3) > -0.5
    options = {"attn_mask": mask, "hard": hard, "need_weights": True}
    full = (x.expand(*batch, *x.shape[-2:]) for x in (query, key, value))
    assert_close(
        soft_topk_attention(query, key, value, topk, **options),
        soft_topk_attention(*full, topk, **options),
    )


@pytest.mark.parametrize("topk", [2, 7])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (1, 1), (6, 6), (3, 2)])
def test_shared_heads(topk, hard, key_heads, value_heads):
    query = randn(2, 6, 5, 4)
    key, value = inputs(2, key_heads)[1], inputs(2, value_heads)[2]
    mask = randn(2, 6, 5, 7, seed=3) > -0.5
    options = {"attn_mask": mask, "hard": hard, "need_weights": True}
    repeated = (
        key.repeat_interleave(6 // key_heads, 1),
        value.repeat_interleave(6 // value_heads, 1),
    )
    found = soft_topk_attention(query, key, value, topk, enable_gqa=True, **options)
    assert_close(found, soft_topk_attention(query, *repeated, topk, **options))


@both_paths
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("topk", [2, 7])
def test_layouts_and_empty_inputs(hard, topk):
    """Transposed inputs, as of a module with (length, batch) axes, and sizes of zero."""
    query, key, value = inputs(2, 3)
    turned = (x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (query, key, value))
    assert_close(
        soft_topk_attention(*turned, topk, hard=hard),
        soft_topk_attention(query, key, value, topk, hard=hard),
    )
    for batch, length in (((0, 3), 5), ((2, 3), 0)):
        query, key, value = inputs(*batch, length=length)
        assert soft_topk_attention(query, key, value, topk, hard=hard).shape == (*batch, length, 3)
    query, key, value = inputs(2, keys=0)
    assert soft_topk_attention(query, key, value, topk, hard=hard).eq(0).all()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("topk", [2, 7])
def test_vectors_of_size_zero(hard, topk):
    """Every score is zero, so that the weights are equal."""
    query, key, value = inputs(2, size=0)
    output, weights = soft_topk_attention(query, key, value, topk, hard=hard, need_weights=True)
    assert_close(output, weights @ value)
    kept = topk if hard else 7
    assert (weights > 0).sum(-1).eq(kept).all()
    assert_close(weights, (weights > 0) / torch.tensor(kept).double())


# ------------------------------------------------------------------------------ ordinary attention


@st.composite
def problems(draw):
    sizes = st.integers(1, 6)
    batch = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    length, keys, size, value_size = (draw(sizes) for _ in range(4))
    seed = draw(st.integers(0, 1000))
    query, key, value = (
        randn(*batch, *shape, seed=seed + i)
        for i, shape in enumerate([(length, size), (keys, size), (keys, value_size)])
    )
    kind = draw(st.sampled_from(["none", "causal", "boolean", "floating"]))
    shape = draw(st.sampled_from([(length, keys), (1, keys), (*batch, length, keys)]))
    keep = randn(*shape, seed=seed + 3) > draw(st.sampled_from([-1.0, 0.0, 1.0]))
    bias = torch.where(keep, randn(*shape, seed=seed + 4), -INF)
    masks = {"boolean": keep, "floating": bias}
    options = {"attn_mask": masks.get(kind), "is_causal": kind == "causal"}
    options["scale"] = draw(st.sampled_from([None, 0.5, 2.0]))
    return (query, key, value), options, keys + draw(st.integers(0, 2))


@settings(max_examples=40, deadline=None)
@given(problems())
def test_with_every_key_it_is_torchs_attention(problem):
    tensors, options, topk = problem
    found = [x.clone().requires_grad_() for x in tensors]
    expected = [x.clone().requires_grad_() for x in tensors]
    output = soft_topk_attention(*found, topk, **options)
    with sdpa_kernel(SDPBackend.MATH):
        answer = F.scaled_dot_product_attention(*expected, **options)
    assert_close(output, answer, rtol=1e-12, atol=1e-13)
    upstream = randn(*output.shape, seed=9)
    assert_close(
        torch.autograd.grad(output, found, upstream),
        torch.autograd.grad(answer, expected, upstream),
        rtol=1e-10,
        atol=1e-12,
    )


def test_with_every_key_and_shared_heads_it_is_torchs_attention():
    query, (_, key, value) = randn(2, 6, 5, 4), inputs(2, 2)
    with sdpa_kernel(SDPBackend.MATH):
        expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    assert_close(soft_topk_attention(query, key, value, 7, enable_gqa=True), expected)


def test_as_eps_grows_it_becomes_ordinary_and_as_it_falls_hard():
    query, key, value = inputs(2, 3)
    ordinary = soft_topk_attention(query, key, value, 7)
    assert_close(soft_topk_attention(query, key, value, 2, eps=1e9), ordinary, rtol=0, atol=1e-8)
    hard = soft_topk_attention(query, key, value, 2, hard=True)
    assert_close(soft_topk_attention(query, key, value, 2, eps=1e-6), hard, rtol=0, atol=1e-8)


# ---------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("topk", [3, 7])
def test_dropout(topk):
    query, key, value = inputs(2, 3)
    kept = soft_topk_attention(query, key, value, topk, need_weights=True)[1]
    torch.manual_seed(0)
    output, weights = soft_topk_attention(query, key, value, topk, dropout_p=0.4, need_weights=True)
    torch.manual_seed(0)
    assert_close(weights, F.dropout(kept, 0.4))  # the weights as they are applied
    assert_close(output, weights @ value)
    assert soft_topk_attention(query, key, value, topk, dropout_p=1.0).eq(0).all()


def test_dropout_of_few_keys():
    query, key, value = inputs(2, 3)
    torch.manual_seed(0)
    kept = soft_topk_attention(query, key, value, 3, hard=True, need_weights=True)[1]
    output, weights = soft_topk_attention(
        query, key, value, 3, hard=True, dropout_p=0.5, need_weights=True
    )
    assert_close(output, weights @ value)
    dropped = (kept > 0) & (weights == 0)
    assert 0 < dropped.sum() < (kept > 0).sum()
    assert_close(weights, torch.where(dropped, 0.0, 2 * kept))


# -------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("bias", MASKS)
@pytest.mark.parametrize("topk", [2, 7])
def test_gradients(bias, topk):
    mask = (bias if bias.ndim == 2 else bias[:, -1])[..., :3, :4]

    def attention(query, key, value, eps):
        return soft_topk_attention(query, key, value, topk, eps=eps, attn_mask=mask)

    tensors = [x.requires_grad_() for x in inputs(2, length=3, keys=4, size=2, value_size=2)]
    eps = torch.tensor([[0.5], [3.0]]).double().requires_grad_(topk == 2)
    torch.autograd.gradcheck(attention, (*tensors, eps))
    torch.autograd.gradgradcheck(attention, (*tensors, eps), fast_mode=True)


def test_gradient_in_a_floating_mask():
    query, key, value = inputs(2, length=3, keys=4)
    bias = SOME[0, :1, :3, :4].expand(2, 3, 4).clone()
    free = bias.isfinite()

    def attention(values):
        mask = bias.masked_scatter(free, values)
        return soft_topk_attention(query, key, value, 2, attn_mask=mask)

    torch.autograd.gradcheck(attention, bias[free].clone().requires_grad_())


@both_paths
@pytest.mark.parametrize("topk", [3, 7])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize("form", ["boolean", "floating"])
def test_no_gradient_is_nan(topk, hard, dtype, size, form):
    query, key, value = inputs(2, 3, dtype=dtype)
    query, key = query * size, key * size
    for tensor in (query, key, value):
        tensor.requires_grad_()
    eps = torch.tensor(1.0, requires_grad=True)
    bias = (SOME + CAUSAL).to(dtype)
    mask = bias.isfinite() if form == "boolean" else bias.requires_grad_()
    output = soft_topk_attention(query, key, value, topk, eps=eps, attn_mask=mask, hard=hard)
    output.sum().backward()
    empty = ~bias.isfinite().any(-1)
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert output[empty].eq(0).all()
    assert query.grad[empty].eq(0).all()
    for tensor in (query, key, value, bias, eps):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@both_paths
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("topk", [3, 7])
def test_huge_scores(dtype, topk):
    query, key, value = inputs(2, 3, dtype=dtype)
    root = torch.finfo(dtype).max ** 0.5 / 100
    query, key = (x.mul_(root).requires_grad_() for x in (query, key))
    output, weights = soft_topk_attention(query, key, value, topk, need_weights=True)
    best = (query @ key.mT).argmax(-1)
    assert torch.equal(weights, F.one_hot(best, 7).to(dtype))
    output.sum().backward()
    assert query.grad.isfinite().all()


# ------------------------------------------------------------------------------ dtypes, transforms


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("topk", [3, 7])
def test_autocast(hard, topk):
    query, key, value = inputs(2, 3, dtype=torch.float32)
    mask = SOME.to(torch.float32)
    expected = soft_topk_attention(query, key, value, topk, attn_mask=mask, hard=hard)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = soft_topk_attention(
            query, key.bfloat16(), value, topk, attn_mask=mask, hard=hard, need_weights=True
        )
    assert output.dtype == weights.dtype == torch.bfloat16
    if not hard:  # rounded scores may have other largest ones
        assert_close(output.float(), expected, rtol=0.05, atol=0.05)


def test_weights_wider_than_scores(monkeypatch):
    """As of CUDA's autocast, which has softmax in float32."""

    def widened(*arguments):
        weights, index = softmax_of_largest(*arguments)
        return weights.float(), index

    query, key, value = inputs(2, 3, dtype=torch.bfloat16)
    expected = soft_topk_attention(query, key, value, 3, hard=True, need_weights=True)
    monkeypatch.setattr("softtopk.nn._attention.softmax_of_largest", widened)
    found = soft_topk_attention(query, key, value, 3, hard=True, need_weights=True)
    assert_close(found, expected)


def test_compiled():
    torch._dynamo.reset()
    query, key, value = (x.requires_grad_() for x in inputs(2, 4))

    def attention(query, key, value):
        shared = key[:, :2], value[:, :2]
        return soft_topk_attention(query, *shared, 2, is_causal=True, enable_gqa=True)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    results = [function(query, key, value) for function in (attention, compiled)]
    assert_close(*results)
    grads = [torch.autograd.grad(r.square().sum(), (query, key, value)) for r in results]
    assert_close(*grads)


@pytest.mark.slow  # test_multihead.py has one that is always run
@pytest.mark.parametrize("hard", [False, True])
def test_compiled_for_any_length(hard):
    torch._dynamo.reset()
    compiled = torch.compile(soft_topk_attention, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 8, 11):
        tensors = inputs(2, 3, length=length, keys=length)
        assert_close(
            compiled(*tensors, 3, is_causal=True, hard=hard),
            soft_topk_attention(*tensors, 3, is_causal=True, hard=hard),
        )


def test_compiled_without_gradient():
    """The compiler takes the sparse path of hard=True too, and that of ordinary attention."""
    torch._dynamo.reset()
    query, key, value = inputs(2, 3)
    mask = SOME.isfinite()

    def attention(query, key, value):
        few = soft_topk_attention(query, key, value, 2, attn_mask=mask, hard=True)
        return few, soft_topk_attention(query, key, value, 7, attn_mask=mask)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    assert_close(compiled(query, key, value), attention(query, key, value))


@pytest.mark.parametrize("topk", [3, 7])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": "row"},
        {"is_causal": True},
        {"attn_mask": CAUSAL.isfinite()},
        {"attn_mask": CAUSAL},
        {"dropout_p": 0.4},
        {"eps": torch.tensor([[0.5], [2.0], [1.0], [0.1]])},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_defaults_of_torch_do_not_matter(other_defaults, topk, hard, gradients, options):
    """Two heads of the query share a key."""
    query, _, _ = inputs(2, 4, dtype=torch.float32)
    _, key, value = inputs(2, 2, dtype=torch.float32)
    direction = randn(2, 4, 5, 3, seed=3, dtype=torch.float32)
    options = {"hard": hard, "enable_gqa": True, **options}

    def attend():
        torch.manual_seed(0)
        tensors = [x.clone().requires_grad_(gradients) for x in (query, key, value)]
        output, weights = soft_topk_attention(*tensors, topk, **options, need_weights=True)
        alone = soft_topk_attention(*tensors, topk, **options)
        found = torch.autograd.grad(output, tensors, direction) if gradients else ()
        return [output, weights, alone, *found]

    expected = attend()
    with other_defaults():
        got = attend()
    for left, right in zip(got, expected, strict=True):
        assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("topk", [2, 7])
def test_transforms(hard, topk):
    query, key, value = inputs(3, 2)
    mask = SOME[:, :2, :, :].isfinite()[0]

    def attention(query, key, value):
        return soft_topk_attention(query, key, value, topk, attn_mask=mask, hard=hard)

    def loss(query, key, value):
        return attention(query, key, value).square().sum()

    assert_close(vmap(attention)(query, key, value), attention(query, key, value))
    assert_close(
        vmap(attention, in_dims=(0, None, None))(query, key[0], value[0]),
        attention(query, key[0], value[0]),
    )
    leaf = query.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, key, value), leaf)
    assert_close(grad(loss)(query, key, value), expected)
    assert_close(vmap(grad(loss))(query, key, value), expected)
    assert_close(grad(lambda *x: vmap(loss)(*x).sum())(query, key, value), expected)
    tangent = randn(3, 2, 5, 4, seed=8)
    _, along = jvp(lambda query: loss(query, key, value), (query,), (tangent,))
    assert_close(along, (expected * tangent).sum())


# ----------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"topk": 0}, ValueError, "topk must be at least 1, got topk=0"),
        ({"topk": 2.0}, TypeError, r"topk must be an int, got topk=2\.0"),
        ({"topk": True}, TypeError, "topk must be an int, got topk=True"),
        ({"eps": 0.0}, ValueError, r"eps must be positive and finite, got eps=0\.0"),
        ({"eps": -1.0, "topk": 7}, ValueError, "eps must be positive"),
        ({"eps": torch.ones(4)}, ValueError, r"eps of shape \(4,\) does not broadcast"),
        ({"normalize": "all"}, ValueError, "normalize must be one of None, 'row', got"),
        ({"normalize": "batch"}, ValueError, "depend on later ones .* use normalize='row' or None"),
        ({"dropout_p": 1.5}, ValueError, r"dropout_p must be between 0 and 1, got dropout_p=1\.5"),
        ({"dropout_p": "0"}, TypeError, "dropout_p must be a number"),
        ({"scale": "1"}, TypeError, "scale must be a number"),
        ({"hard": 1}, TypeError, "hard must be True or False, got 1"),
        ({"need_weights": None}, TypeError, "need_weights must be True or False"),
        ({"is_causal": 1}, TypeError, "is_causal must be True or False"),
        ({"enable_gqa": 1}, TypeError, "enable_gqa must be True or False"),
        ({"is_causal": True, "attn_mask": CAUSAL}, ValueError, "leave one of them out"),
        ({"attn_mask": CAUSAL.numpy()}, TypeError, "attn_mask must be a torch.Tensor, got ndarray"),
        ({"attn_mask": CAUSAL.int()}, TypeError, r"attn_mask must be .* got torch\.int32"),
        ({"attn_mask": CAUSAL.mT}, ValueError, r"attn_mask of shape \(7, 5\) does not broadcast"),
        ({"query": [1.0]}, TypeError, "query must be a torch.Tensor, got list"),
        ({"key": randn(7, 4).long()}, TypeError, "key must be of a floating dtype, got"),
        ({"value": randn(7)}, ValueError, r"value must have axes .* got shape \(7,\)"),
        ({"key": randn(7, 3)}, ValueError, r"last axes of one size, got query .* key \(7, 3\)"),
        ({"value": randn(6, 3)}, ValueError, r"as many rows \(axis -2\), got .* value \(6, 3\)"),
        ({"key": randn(3, 7, 4)}, ValueError, "leading axes do not broadcast: .* enable_gqa=True"),
        (
            {"key": randn(3, 7, 4), "enable_gqa": True, "value": randn(3, 7, 4)},
            ValueError,
            "must be a multiple of those of key",
        ),
        ({"enable_gqa": True, "key": randn(7, 4)}, ValueError, r"key must have axes \(..., heads"),
        ({"key": randn(2, 7, 4).float()}, TypeError, "of one dtype, got torch.float64, .*float32"),
    ],
)
def test_wrong_arguments(change, kind, message):
    arguments = dict(zip(("query", "key", "value"), inputs(2), strict=True)) | {"topk": 2} | change
    positional = [arguments.pop(name) for name in ("query", "key", "value", "topk")]
    with pytest.raises(kind, match=message):
        soft_topk_attention(*positional, **arguments)


def test_nested_tensors_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        nested = torch.nested.nested_tensor([randn(3, 4), randn(5, 4)])
    with pytest.raises(TypeError, match="query must not be nested; use query"):
        soft_topk_attention(nested, nested, nested, 2)


def test_a_mask_in_the_place_of_topk():
    query, mask = randn(2, 3, 4), torch.ones(3, 3, dtype=torch.bool)
    with pytest.raises(TypeError, match="topk must be an int, got a tensor; a mask is given as"):
        soft_topk_attention(query, query, query, mask)
