"""SoftTopKAttention: nn.MultiheadAttention for every key, soft_topk_attention for fewer."""

import copy
import itertools
import math
import pickle
import warnings

import pytest
import torch
from paths import both_paths
from torch import nn
from torch.testing import assert_close

from softtopk.nn import SoftTopKAttention, soft_topk_attention

INF = math.inf
N, L, S, E, H = 2, 5, 7, 8, 4
PADDING = torch.tensor([[False] * 5 + [True] * 2, [False] * 3 + [True] * 4])
# Every query keeps a key that is not padded: without one nn.MultiheadAttention returns NaN.
MASK = torch.rand(L, S, generator=torch.Generator().manual_seed(0)) > 0.6
MASK[:, 0] = False
MASKS = torch.rand(N * H, L, S, generator=torch.Generator().manual_seed(1)) > 0.6
MASKS[..., 0] = False


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def additive(mask, seed=2):
    return randn(*mask.shape, seed=seed).masked_fill(mask, -INF)


def pair(topk=S + 2, **options):
    """An nn.MultiheadAttention and one of ours with its state dict."""
    torch.manual_seed(0)
    ours = {
        k: options.pop(k) for k in ("eps", "learn_eps", "normalize", "hard_eval") & options.keys()
    }
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **options)
    for parameter in theirs.parameters():  # biases too
        nn.init.normal_(parameter, std=0.5)
    made = SoftTopKAttention(E, H, dtype=torch.float64, topk=topk, **ours, **options)
    made.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, made


def inputs(kdim=E, vdim=E, batch_first=False, batched=True):
    tensors = randn(N, L, E), randn(N, S, kdim, seed=1), randn(N, S, vdim, seed=2)
    if not batched:
        return [x[0].requires_grad_() for x in tensors]
    return [(x if batch_first else x.transpose(0, 1)).requires_grad_() for x in tensors]


def compare(theirs, made, tensors, **call):
    """Outputs, weights and gradients."""
    found, expected = made(*tensors, **call), theirs(*tensors, **call)
    assert_close(found, expected, rtol=1e-11, atol=1e-12)
    upstream = randn(*found[0].shape, seed=9)
    wanted = (*dict.fromkeys(tensors), *theirs.parameters())
    given = (
        *dict.fromkeys(tensors),
        *(dict(made.named_parameters())[n] for n, _ in theirs.named_parameters()),
    )
    assert_close(
        torch.autograd.grad(found[0], given, upstream),
        torch.autograd.grad(expected[0], wanted, upstream),
        rtol=1e-9,
        atol=1e-11,
    )


# ------------------------------------------------------------------- as nn.MultiheadAttention


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain"),
        pytest.param({"bias": False, "batch_first": True}, id="no bias"),
        pytest.param({"add_bias_kv": True, "batch_first": True}, id="bias_kv"),
        pytest.param({"add_zero_attn": True}, id="zero"),
        pytest.param({"add_bias_kv": True, "add_zero_attn": True, "kdim": 6}, id="both"),
        pytest.param({"kdim": 6, "vdim": 10, "batch_first": True}, id="kdim, vdim"),
        pytest.param({"vdim": 3, "bias": False}, id="vdim"),
    ],
)
def test_with_every_key(options, batched):
    theirs, made = pair(**options)
    shape = {k: options[k] for k in ("kdim", "vdim", "batch_first") & options.keys()}
    tensors = inputs(batched=batched, **shape)
    padding, masks = (PADDING, MASKS) if batched else (PADDING[0], MASKS[:H])
    for attn_mask, key_padding_mask, need_weights, average in itertools.product(
        (None, MASK, masks), (None, padding), (False, True), (False, True)
    ):
        call = {"need_weights": need_weights, "average_attn_weights": average}
        compare(
            *(theirs, made, tensors),
            attn_mask=attn_mask,
            key_padding_mask=key_padding_mask,
            **call,
        )


@pytest.mark.parametrize("need_weights", [False, True])
def test_with_every_key_and_floating_masks(need_weights):
    theirs, made = pair(add_bias_kv=True)
    tensors = inputs()
    for attn_mask, padding in itertools.product((None, MASK, MASKS), (None, PADDING)):
        call = {
            "attn_mask": None if attn_mask is None else additive(attn_mask),
            "key_padding_mask": None if padding is None else additive(padding, seed=3),
        }
        compare(theirs, made, tensors, need_weights=need_weights, **call)
    # nn.MultiheadAttention warns about masks of two kinds.
    mixed = made(*tensors, attn_mask=additive(MASK), key_padding_mask=PADDING)
    same = torch.zeros(PADDING.shape).double().masked_fill(PADDING, -INF)
    assert_close(mixed, made(*tensors, attn_mask=additive(MASK), key_padding_mask=same))


@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention(batch_first):
    theirs, made = pair(batch_first=batch_first)
    x = randn(N, S, E).requires_grad_()
    compare(theirs, made, [x, x, x])
    both = randn(N, S, E, seed=1).requires_grad_()
    compare(theirs, made, [x, both, both])


@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_hint(need_weights):
    theirs, made = pair()
    x = randn(S, N, E).requires_grad_()
    causal = nn.Transformer.generate_square_subsequent_mask(S, dtype=torch.float64)
    for mask in (causal, causal < 0):
        call = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
        compare(theirs, made, [x, x, x], **call)
    fewer = SoftTopKAttention.from_multihead(theirs, topk=2)
    call = {"attn_mask": causal, "need_weights": need_weights}
    assert_close(fewer(x, x, x, is_causal=True, **call), fewer(x, x, x, **call))


def test_dropout():
    """The same numbers are dropped, in training only, and the weights are as applied."""
    theirs, made = pair(dropout=0.5)
    tensors = inputs()
    results = []
    for module in (theirs, made):
        torch.manual_seed(3)
        results.append(module(*tensors))
    assert_close(*results)
    assert results[0][1].eq(0).any()
    compare(theirs.eval(), made.eval(), tensors)


@both_paths
@pytest.mark.parametrize("topk", [2, S])
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_query_without_a_key_attends_to_nothing(topk, need_weights):
    _, made = pair(topk)
    tensors, all_padded = inputs(), PADDING.clone()
    all_padded[1] = True
    output, weights = made(*tensors, key_padding_mask=all_padded, need_weights=need_weights)
    assert_close(output[:, 1], made.out_proj.bias.expand(L, E))
    assert not need_weights or weights[1].eq(0).all()
    output.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in (*tensors, *made.parameters()))
    assert all(x.grad[:, 1].eq(0).all() for x in tensors)


# ---------------------------------------------------------------------------- fewer keys


@both_paths
@pytest.mark.parametrize("kind", ["float", "tensor", "learned"])
@pytest.mark.parametrize("normalize", [None, "row"])
def test_fewer_keys(kind, normalize):
    """The projections by hand, a head at a time."""
    strengths = [0.5] * H if kind == "float" else [0.2, 0.5, 1.0, 4.0]
    eps = 0.5 if kind == "float" else torch.tensor(strengths)
    _, made = pair(2, eps=eps, learn_eps=kind == "learned", normalize=normalize)
    query, key, value = inputs()
    weights, biases = made.in_proj_weight.chunk(3), made.in_proj_bias.chunk(3)
    q, k, v = (
        (x.transpose(0, 1) @ w.T + b).unflatten(-1, (H, E // H))
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    keep = ~(PADDING[:, None] | MASK)
    heads = [
        soft_topk_attention(
            *(x[:, :, h] for x in (q, k, v)),
            *(2,),
            eps=strengths[h],
            normalize=normalize,
            attn_mask=keep,
            need_weights=True,
        )
        for h in range(H)
    ]
    expected = made.out_proj(torch.cat([output for output, _ in heads], -1)).transpose(0, 1)
    call = {"key_padding_mask": PADDING, "attn_mask": MASK}
    output, weights = made(query, key, value, average_attn_weights=False, **call)
    assert_close(output, expected, rtol=1e-6, atol=1e-7)  # eps was learned in float32
    assert_close(weights, torch.stack([w for _, w in heads], 1), rtol=1e-6, atol=1e-7)
    assert_close(made(query, key, value, **call)[1], weights.mean(1))


@both_paths
def test_hard_eval():
    _, made = pair(2, hard_eval=True)
    tensors = inputs()
    call = {"key_padding_mask": PADDING, "average_attn_weights": False}
    assert (made(*tensors, **call)[1] > 0).sum(-1).eq((~PADDING).sum(-1)[:, None, None]).all()
    made.eval()
    with torch.no_grad():
        sparse = made(*tensors, **call)
    dense = made(*tensors, **call)
    assert dense[0].requires_grad
    assert_close(sparse, dense)
    assert (sparse[1] > 0).sum(-1).eq(2).all()


def test_learned_strengths():
    """Of data made with a small eps, the module finds it."""
    x = randn(16, 6, E)
    torch.manual_seed(0)
    target = SoftTopKAttention(E, H, batch_first=True, dtype=x.dtype, topk=2, eps=0.3)
    for parameter in target.parameters():
        nn.init.normal_(parameter)
    made = SoftTopKAttention.from_multihead(target, topk=2, eps=2.0, learn_eps=True)
    answer = target(x, x, x)[0].detach()
    optimizer = torch.optim.LBFGS([made.log_eps], line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = (made(x, x, x)[0] - answer).square().mean()
        value.backward()
        return value

    optimizer.step(loss)
    assert_close(made.eps.detach(), torch.full((H,), 0.3).double(), rtol=0.05, atol=0)


# ------------------------------------------------------------------------------- state


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 3, "add_bias_kv": True}])
@pytest.mark.parametrize("learn_eps", [False, True])
def test_state_dict(options, learn_eps):
    theirs, made = pair(2, learn_eps=learn_eps, eps=torch.full((H,), 0.7), **options)
    extra = {"log_eps"} if learn_eps else set()
    assert set(made.state_dict()) == set(theirs.state_dict()) | extra
    assert_close(made.eps.detach().double(), torch.full((H,), 0.7).double(), rtol=1e-6, atol=0)
    if learn_eps:
        with torch.no_grad():
            made.log_eps.fill_(1.0)
        # Inside of another module, and its own state dict with the learned values.
        holder, other = nn.ModuleDict({"a": made}), nn.ModuleDict({"a": copy.deepcopy(made)})
        nn.init.zeros_(other["a"].log_eps)
        other.load_state_dict({f"a.{name}": value for name, value in theirs.state_dict().items()})
        assert other["a"].log_eps.eq(0.0).all()
        other.load_state_dict(holder.state_dict())
        assert other["a"].log_eps.eq(1.0).all()
    else:
        theirs.load_state_dict(made.state_dict())
    broken = dict(theirs.state_dict())
    del broken["out_proj.weight"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "out_proj.weight"'):
        made.load_state_dict(broken)


def test_copies_and_dtypes():
    _, made = pair(2, eps=torch.tensor([0.2, 0.5, 1.0, 4.0]), hard_eval=True)
    tensors = inputs()
    expected = made(*tensors)
    assert_close(copy.deepcopy(made)(*tensors), expected)
    assert_close(pickle.loads(pickle.dumps(made))(*tensors), expected)
    assert made.float().eps.dtype == torch.float32
    assert_close(made(*(x.float() for x in tensors))[0], expected[0].float(), rtol=1e-4, atol=1e-5)
    assert SoftTopKAttention(E, H, topk=2, learn_eps=True, device="meta").eps.is_meta


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kdim": 6, "vdim": 3, "add_bias_kv": True, "batch_first": True},
        {"bias": False, "add_zero_attn": True, "dropout": 0.2},
    ],
)
def test_from_multihead(options):
    theirs, _ = pair(**options)
    theirs.eval()
    made = SoftTopKAttention.from_multihead(theirs, topk=S + 2, eps=0.3, learn_eps=True)
    assert not made.training
    assert made.dropout == theirs.dropout
    own = dict(made.named_parameters())
    assert own.pop("log_eps").dtype == torch.float64
    assert own.keys() == dict(theirs.named_parameters()).keys()
    assert all(own[name] is parameter for name, parameter in theirs.named_parameters())
    shape = {k: options[k] for k in ("kdim", "vdim", "batch_first") & options.keys()}
    compare(theirs, made, inputs(**shape), key_padding_mask=PADDING)


def test_from_multihead_with_other_options():
    theirs, _ = pair(dropout=0.3)
    made = SoftTopKAttention.from_multihead(theirs, topk=2, dropout=0.1, batch_first=True)
    assert made.dropout == 0.1
    assert made.batch_first
    assert made.in_proj_weight is theirs.in_proj_weight


def test_from_multihead_refuses_what_it_would_not_share():
    theirs, _ = pair()
    nn.utils.parametrizations.weight_norm(theirs, "in_proj_weight")
    with pytest.raises(ValueError, match="differs in in_proj_weight; if it is parametrized"):
        SoftTopKAttention.from_multihead(theirs, topk=2)


def test_setting_eps():
    _, made = pair(2, eps=0.5)
    tensors = inputs()
    for eps in (torch.full((H,), 0.3), 2.0, torch.tensor(0.7)):
        made.eps = eps
        assert made.eps == eps if isinstance(eps, float) else torch.equal(made.eps, eps)
        assert_close(made(*tensors), pair(2, eps=eps)[1](*tensors))
    assert set(made.state_dict()) == set(nn.MultiheadAttention(E, H).state_dict())
    with pytest.raises(ValueError, match="eps must be positive"):
        made.eps = 0.0


def test_setting_a_learned_eps():
    _, made = pair(2, learn_eps=True)
    parameter = made.log_eps
    for eps in (0.5, torch.tensor([0.2, 0.5, 1.0, 4.0], dtype=torch.float64)):
        made.eps = eps
        assert made.log_eps is parameter
        assert_close(made.eps.detach(), torch.as_tensor(eps).double().expand(H))
    with pytest.raises(ValueError, match=r"eps of shape \(3,\) does not broadcast"):
        made.eps = torch.ones(3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logarithm", [-1000.0, 1000.0])
def test_learned_eps_stays_within_its_dtype(dtype, logarithm):
    _, made = pair(2, learn_eps=True)
    made.to(dtype)
    nn.init.constant_(made.log_eps, logarithm)
    limits = torch.finfo(dtype)
    assert (made.eps >= limits.tiny).all()
    assert made.eps.isfinite().all()
    output, _ = made(*(x.detach().to(dtype) for x in inputs()))
    output.sum().backward()
    assert output.isfinite().all()
    assert made.log_eps.grad.eq(0).all()


@pytest.mark.parametrize("learn_eps", [False, True])
def test_from_the_meta_device(learn_eps):
    """The state dict brings the weights, the module its eps."""
    eps = torch.tensor([0.2, 0.5, 1.0, 4.0], dtype=torch.float64)
    theirs, expected = pair(2, learn_eps=learn_eps, eps=eps)
    made = SoftTopKAttention(E, H, topk=2, eps=eps, learn_eps=learn_eps, device="meta")
    made.load_state_dict(theirs.state_dict(), assign=True)
    assert_close(made.eps.detach(), eps)
    tensors = inputs()
    assert_close(made(*tensors), expected(*tensors))


# --------------------------------------------------------- in torch's layers, and transformed


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"hard_eval": True, "dropout": 0.3},
        {"learn_eps": True, "add_bias_kv": True},
        {"eps": torch.tensor([0.5, 2.0, 1.0, 0.1]), "add_zero_attn": True, "normalize": "row"},
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": PADDING, "attn_mask": MASK},
        {"key_padding_mask": PADDING, "attn_mask": additive(MASK).float()},
    ],
    ids=["unmasked", "boolean", "mixed"],
)
def test_the_defaults_of_torch_do_not_matter(other_defaults, training, options, masks):
    """Once the module is made."""
    made = SoftTopKAttention(E, H, topk=2, **options).train(training)
    tensors = [x.detach().float() for x in inputs()]

    def attend():
        torch.manual_seed(0)
        output, weights = made(*tensors, **masks)
        with torch.no_grad():
            without_gradient, _ = made(*tensors, **masks, need_weights=False)
        gradients = torch.autograd.grad(output.square().sum(), [*made.parameters()])
        return [output, weights, without_gradient, *gradients]

    expected = attend()
    with other_defaults():
        got = attend()
    for left, right in zip(got, expected, strict=True):
        assert_close(left, right, rtol=0, atol=0)


def test_setting_eps_under_other_defaults(other_defaults):
    for options in ({}, {"learn_eps": True}):
        made = SoftTopKAttention(E, H, topk=2, **options)
        for eps in (0.5, torch.tensor([0.5, 2.0, 1.0, 0.1])):
            made.eps = eps
            expected = torch.as_tensor(made.eps).detach().clone()
            with other_defaults():
                made.eps = eps
            assert_close(torch.as_tensor(made.eps).detach(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_in_an_encoder_layer(training, norm_first):
    """Its fast path would compute ordinary attention without a call of ours."""
    torch.manual_seed(0)
    options = {"batch_first": True, "norm_first": norm_first, "dropout": 0.0}
    layer = nn.TransformerEncoderLayer(E, H, 16, **options).train(training).requires_grad_(False)
    x = randn(N, S, E, dtype=torch.float32)
    ordinary = layer(x, src_key_padding_mask=PADDING)
    layer.self_attn = SoftTopKAttention.from_multihead(layer.self_attn, topk=1, eps=0.01)
    y = layer.norm1(x) if norm_first else x
    attended = x + layer.self_attn(y, y, y, key_padding_mask=PADDING)[0]
    if norm_first:
        expected = attended + layer._ff_block(layer.norm2(attended))
    else:
        attended = layer.norm1(attended)
        expected = layer.norm2(attended + layer._ff_block(attended))
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context:
            assert_close(layer(x, src_key_padding_mask=PADDING), expected)
    assert not torch.allclose(ordinary, expected, atol=0.01)
    layer.self_attn.topk = S
    assert_close(layer(x, src_key_padding_mask=PADDING)[~PADDING], ordinary[~PADDING])


def test_in_an_encoder():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(E, H, 16, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = randn(N, S, E, dtype=torch.float32)
    with torch.no_grad():
        ordinary = encoder(x, src_key_padding_mask=PADDING)
        for layer in encoder.layers:
            layer.self_attn = SoftTopKAttention.from_multihead(layer.self_attn, topk=S)
        found = encoder(x, src_key_padding_mask=PADDING)
        assert_close(found[~PADDING], ordinary[~PADDING])
        for layer in encoder.layers:
            layer.self_attn.topk = 1
        assert not torch.allclose(encoder(x, src_key_padding_mask=PADDING), found, atol=0.01)
        encoder.use_nested_tensor = True  # what it is if the layers are replaced afterwards
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls nested tensors a prototype
            with pytest.raises(TypeError, match="use_nested_tensor=False"):
                encoder(x, src_key_padding_mask=PADDING)


def test_in_a_decoder_layer():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(E, H, 16, dropout=0.0, dtype=torch.float64)
    x, memory = randn(L, N, E), randn(S, N, E, seed=1)
    causal = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    call = {"tgt_mask": causal, "tgt_is_causal": True}
    expected = layer(x, memory, **call)
    layer.self_attn = SoftTopKAttention.from_multihead(layer.self_attn, topk=L)
    layer.multihead_attn = SoftTopKAttention.from_multihead(layer.multihead_attn, topk=S)
    assert_close(layer(x, memory, **call), expected)


def test_autocast():
    _, made = pair(2, learn_eps=True)
    made.float()
    tensors = [x.detach().float() for x in inputs()]
    expected = made(*tensors, key_padding_mask=PADDING)[0]
    with torch.autocast("cpu", torch.bfloat16):
        output, _ = made(*tensors, key_padding_mask=PADDING)
    assert output.dtype == torch.bfloat16
    assert_close(output.float(), expected, rtol=0.1, atol=0.1)
    output.float().square().sum().backward()
    assert made.log_eps.grad.isfinite().all()


def test_compiled():
    torch._dynamo.reset()
    _, made = pair(2, learn_eps=True, add_bias_kv=True)
    tensors = inputs()
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    call = {"key_padding_mask": PADDING, "attn_mask": MASK}
    results = [module(*tensors, **call) for module in (made, compiled)]
    assert_close(*results)
    wanted = (*tensors, *made.parameters())
    assert_close(*(torch.autograd.grad(r[0].square().sum(), wanted) for r in results))


@pytest.mark.slow
def test_compiled_for_any_length():
    torch._dynamo.reset()
    _, made = pair(2, batch_first=True)
    compiled = torch.compile(made, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (5, 8, 11):
        x = randn(N, length, E)
        assert_close(compiled(x, x, x), made(x, x, x))


def test_gradients_of_samples():
    _, made = pair(2, learn_eps=True, batch_first=True)
    x = randn(3, S, E)
    parameters = {name: value.detach() for name, value in made.named_parameters()}

    def loss(parameters, x):
        output, _ = torch.func.functional_call(made, parameters, (x, x, x))
        return output.square().sum()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    loss(dict(made.named_parameters()), x).backward()
    for name, parameter in made.named_parameters():
        assert_close(each[name].sum(0), parameter.grad)


# ------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"topk": 0}, ValueError, "topk must be at least 1, got topk=0"),
        ({"topk": 1.5}, TypeError, r"topk must be an int, got topk=1\.5"),
        ({"eps": 0.0}, ValueError, "eps must be positive"),
        ({"eps": torch.ones(3)}, ValueError, r"eps of shape \(3,\) does not broadcast"),
        ({"eps": torch.zeros(4), "learn_eps": True}, ValueError, "eps must be positive"),
        ({"learn_eps": 1}, TypeError, "learn_eps must be True or False"),
        ({"hard_eval": 1}, TypeError, "hard_eval must be True or False"),
        ({"normalize": "all"}, ValueError, "normalize must be one of"),
        ({"normalize": "batch"}, ValueError, "use normalize='row' or None"),
        ({"dropout": 1.5}, ValueError, "dropout must be between 0 and 1"),
    ],
)
def test_wrong_options_fail_at_construction(options, kind, message):
    with pytest.raises(kind, match=message):
        SoftTopKAttention(E, H, **{"topk": 2} | options)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"is_causal": True}, ValueError, "is_causal=True says what attn_mask is; pass attn_mask"),
        ({"attn_mask": MASK.mT}, ValueError, r"attn_mask must be of shape \(5, 7\) or \(8, 5, 7\)"),
        ({"attn_mask": MASK.int()}, TypeError, "attn_mask must be boolean .* got torch.int32"),
        ({"key_padding_mask": PADDING[0]}, ValueError, r"key_padding_mask must be of shape \(2, 7"),
        ({"key_padding_mask": PADDING.int()}, TypeError, "key_padding_mask must be boolean"),
        ({"query": randn(L, E)}, ValueError, r"all be 3-d, or all 2-d, got query \(5, 8\), key"),
        ({"key": randn(S, N, 3)}, ValueError, r"embed_dim, kdim, vdim = \(8, 8, 8\), got .*2, 3\)"),
        ({"value": randn(6, N, E)}, ValueError, r"lengths of key and value, must agree; axes are"),
        ({"query": randn(L, 3, E)}, ValueError, r"\(length, batch, size\) with batch_first=False"),
    ],
)
def test_wrong_arguments(change, kind, message):
    _, made = pair(2)
    arguments = dict(zip(("query", "key", "value"), inputs(), strict=True)) | change
    with pytest.raises(kind, match=message):
        made(**arguments)


def test_repr():
    text = repr(SoftTopKAttention(E, 2, topk=3, eps=torch.tensor([0.5, 1.0])))
    assert text.startswith(
        "SoftTopKAttention(\n  8, 2, topk=3, eps=[0.5, 1.0], learn_eps=False, normalize=None, "
    )


def test_only_attention_becomes_attention():
    with pytest.raises(TypeError, match=r"must be an nn\.MultiheadAttention, got Linear"):
        SoftTopKAttention.from_multihead(nn.Linear(2, 2), topk=2)
