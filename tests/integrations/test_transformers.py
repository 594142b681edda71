"""Top-k attention in small models of transformers, with random weights."""

from __future__ import annotations

import contextlib
import copy
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import log_soft_topk_tensor
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    CLIPConfig,
    CLIPModel,
    CodeGenConfig,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    Gemma2Config,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    XLNetConfig,
)
from transformers.masking_utils import eager_mask

from softtopk.integrations import transformers as integration
from softtopk.integrations.transformers import soft_topk_options, use_soft_topk

VOCABULARY = 50
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 1e4}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}


@dataclass(frozen=True)
class Family:
    """A kind of model, and how its batches are padded."""

    model: type[PreTrainedModel]
    config: PreTrainedConfig
    dropout: dict[str, float] = field(default_factory=dict)
    """The attributes of the config for dropout, and how much for the attention alone."""
    pads: str = ""
    """Where: left, right, or not at all."""
    has_decoder: bool = False
    """Besides an encoder."""


FAMILIES = {
    "bert": Family(
        BertForMaskedLM,
        BertConfig(**SIZES),
        {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0},
        pads="right",
    ),
    "gpt2": Family(
        GPT2LMHeadModel,
        GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, **TOKENS),
        {"attn_pdrop": 0.4, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
        pads="left",
    ),
    # Two heads share their keys, and rotary embeddings.
    "llama": Family(
        LlamaForCausalLM,
        LlamaConfig(**GROUPED, **TOKENS),
        {"attention_dropout": 0.4},
        pads="left",
    ),
    "mistral": Family(
        MistralForCausalLM,
        MistralConfig(**GROUPED, **TOKENS, sliding_window=5),
        {"attention_dropout": 0.4},
        pads="left",
    ),
    # A learned bias of the position, and no scale.
    "t5": Family(
        T5ForConditionalGeneration,
        T5Config(
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=40,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=None,
        ),
        {"dropout_rate": 0.0},
        pads="right",
        has_decoder=True,
    ),
    "bart": Family(
        BartForConditionalGeneration,
        BartConfig(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=40,
            decoder_ffn_dim=40,
            max_position_embeddings=64,
            decoder_start_token_id=2,
            forced_eos_token_id=None,
            **TOKENS,
        ),
        {"attention_dropout": 0.4, "dropout": 0.0, "activation_dropout": 0.0},
        pads="right",
        has_decoder=True,
    ),
    "vit": Family(
        ViTForImageClassification,
        ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=40,
            image_size=16,
            patch_size=4,
        ),
        {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0},
    ),
}
GENERATE = [
    name for name, family in FAMILIES.items() if family.pads == "left" or family.has_decoder
]
PADDED = [name for name, family in FAMILIES.items() if family.pads]

every_family = pytest.mark.parametrize("name", FAMILIES)


def build(name: str, attention: str = "soft_topk", **settings: Any) -> PreTrainedModel:
    """A model in evaluation mode whose attention is not flat, the same one at every call."""
    family = FAMILIES[name]
    config = copy.deepcopy(family.config)
    for key, value in settings.items():
        setattr(config, key, value)
    return randomized(family.model._from_config(config, attn_implementation=attention))


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    return model.eval()


def inputs_of(name: str, padding: bool = True) -> dict[str, Tensor]:
    """A batch of two, of which the second is shorter if there is padding."""
    family = FAMILIES[name]
    generator = torch.Generator().manual_seed(2)
    if not family.pads:
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=generator)
    real = torch.ones_like(ids)
    if padding:
        real[1, slice(4) if family.pads == "left" else slice(5, None)] = 0
    inputs = {"input_ids": ids * real, "attention_mask": real}
    if family.pads == "left":
        inputs["position_ids"] = (real.cumsum(1) - 1).clamp(min=0)
    if family.has_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    return inputs


def real_rows(name: str, inputs: dict[str, Tensor]) -> Tensor:
    """Which logits, or rows of them, are not those of padding."""
    if name in PADDED and not FAMILIES[name].has_decoder:
        return inputs["attention_mask"].bool()
    return torch.tensor([True, True])


def second_alone(name: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The shorter sentence of a batch, without its padding."""
    kept = inputs["attention_mask"][1].bool()
    return {
        key: value[1:] if key.startswith("decoder") else value[1:, kept]
        for key, value in inputs.items()
    }


@contextlib.contextmanager
def registered(attention: Callable[..., Any], topk: int, eps: float) -> Any:
    """The oracle as an implementation of its own, called oracle, with the masks of eager."""
    function = lambda *args, **kwargs: attention(*args, topk=topk, eps=eps, **kwargs)  # noqa: E731
    AttentionInterface.register("oracle", function)
    AttentionMaskInterface.register("oracle", eager_mask)
    try:
        yield
    finally:
        del AttentionInterface._global_mapping["oracle"]
        del AttentionMaskInterface._global_mapping["oracle"]


def oracle(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    topk: int,
    eps: float,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    hard: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Softmax among the soft top k, one query after another, masked keys left out."""
    del module, kwargs
    batch, heads, length, size = query.shape
    shared = heads // key.shape[1]
    output = query.new_zeros(batch, length, heads, value.shape[-1])
    for b, h, i in torch.cartesian_prod(*map(torch.arange, (batch, heads, length))).tolist():
        scores = key[b, h // shared] @ query[b, h, i] * (size**-0.5 if scaling is None else scaling)
        if position_bias is not None:
            scores = scores + position_bias[0, h, i]
        kept = torch.ones_like(scores, dtype=torch.bool)
        if attention_mask is not None:
            kept = attention_mask[b, 0, i] == 0
        scores, values = scores[kept], value[b, h // shared][kept]
        if hard:
            best = scores.topk(min(topk, len(scores))).indices
            output[b, i, h] = scores[best].softmax(0) @ values[best]
        elif len(scores):
            weights = (scores + log_soft_topk_tensor(scores, topk, eps)).softmax(0)
            output[b, i, h] = weights @ values
    return output, None


def hard_oracle(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    return oracle(*args, hard=True, **kwargs)


# ------------------------------------------------------------------------------------------- values


@every_family
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_attention_to_all_is_eager_attention(name: str, padding: bool, training: bool) -> None:
    """In training, too: with the same seed the same weights are dropped."""
    inputs = inputs_of(name, padding)
    results = []
    for attention in ("eager", "soft_topk"):
        model = build(name, attention, soft_topk={"topk": 64}, **FAMILIES[name].dropout)
        torch.manual_seed(3)
        results.append(model.train(training)(**inputs, output_attentions=True))
    real = real_rows(name, inputs)
    expected, got = results
    torch.testing.assert_close(got.logits[real], expected.logits[real], rtol=0, atol=2e-5)
    kinds = [key for key in expected if "attentions" in key]
    assert kinds
    for kind in kinds:
        assert len(got[kind]) == len(expected[kind])
        for ours, theirs in zip(got[kind], expected[kind], strict=True):
            if FAMILIES[name].pads == "left":
                ours, theirs = (weights.transpose(1, 2)[real] for weights in (ours, theirs))
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@every_family
def test_attention_to_few_against_the_oracle(name: str) -> None:
    inputs = {
        key: value.double() if value.is_floating_point() else value
        for key, value in inputs_of(name).items()
    }
    options = {"topk": 3, "eps": 0.7}
    results = []
    with registered(oracle, **options):
        for attention in ("oracle", "soft_topk"):
            model = build(name, attention, soft_topk=options).double()
            logits = model(**inputs).logits[real_rows(name, inputs)]
            direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
            gradients = torch.autograd.grad((logits * direction).sum(), [*model.parameters()])
            results.append((logits, gradients))
    (expected, gradients), (got, ours) = results
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    for (parameter, _), left, right in zip(model.named_parameters(), ours, gradients, strict=True):
        scale = right.abs().max().item()
        torch.testing.assert_close(
            left, right, rtol=0, atol=1e-8 * max(scale, 1e-3), msg=lambda m, p=parameter: p + m
        )
    # And it is not the attention to all of them.
    to_all = build(name, soft_topk={"topk": 64}).double()(**inputs).logits
    assert (got - to_all[real_rows(name, inputs)]).abs().max() > 0.05


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_hard_attention_against_the_oracle(name: str) -> None:
    inputs = inputs_of(name)
    with registered(hard_oracle, topk=3, eps=1.0):
        expected = build(name, "oracle").double()(**inputs).logits
    model = build(name, soft_topk={"topk": 3, "hard": True}).double()
    real = real_rows(name, inputs)
    torch.testing.assert_close(model(**inputs).logits[real], expected[real])
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits[real], expected[real])


@every_family
@pytest.mark.parametrize("topk", [1, 3])
def test_every_parameter_has_a_finite_gradient(name: str, topk: int) -> None:
    model = build(name, soft_topk={"topk": topk}).train()
    model(**inputs_of(name)).logits.square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []
    assert [key for key, p in model.named_parameters() if not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("hard", [False, True])
def test_padding_makes_no_difference(name: str, hard: bool) -> None:
    """The rows of left padding have no key at all: they must not be NaN, nor spread it."""
    inputs = inputs_of(name)
    model = build(name, soft_topk={"topk": 3, "hard": hard})
    logits = model(**inputs).logits
    assert logits.isfinite().all()
    alone = model(**second_alone(name, inputs)).logits[0]
    real = real_rows(name, inputs)[1]
    torch.testing.assert_close(logits[1, real].view_as(alone), alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_masks_of_four_dimensions(name: str) -> None:
    """Masks of the user: boolean, or with the lowest number where a key is masked."""
    inputs = inputs_of(name)
    model = build(name, soft_topk={"topk": 3})
    expected = model(**inputs).logits
    real = inputs.pop("attention_mask").bool()
    mask = real[:, None, None, :].expand(-1, 1, 9, -1)
    mask = mask if name == "bert" else mask.tril()
    lowest = torch.finfo(torch.float32).min
    for custom in (mask, torch.zeros(mask.shape).masked_fill(~mask, lowest)):
        got = model(**inputs, attention_mask=custom).logits
        torch.testing.assert_close(got[real], expected[real], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_floating_mask_deletes_keys(dtype: torch.dtype) -> None:
    """Beside a bias, in a row without keys, and where masked scores must not count as a scale."""
    module = build("t5", soft_topk={"topk": 3, "normalize": "row"}).encoder.block[0].layer[0]
    query, key, value = torch.randn(3, 2, 4, 6, 8).to(dtype)
    bias = torch.randn(1, 4, 6, 6).to(dtype)
    mask = torch.rand(2, 1, 6, 6) < 0.7
    mask[0, 0, 2] = False
    lowest = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    attend = AttentionInterface()["soft_topk"]
    expected, got = (
        attend(module.SelfAttention, query, key, value, m, position_bias=bias)[0]
        for m in (mask, lowest)
    )
    assert torch.equal(got, expected)
    assert (got[0, 2] == 0).all()
    without = attend(module.SelfAttention, query, key, value, mask)[0]
    assert not torch.allclose(got, without, atol=1e-2)


# --------------------------------------------------------------------------------------- generation


def generated(
    model: PreTrainedModel, inputs: dict[str, Tensor], **settings: Any
) -> tuple[Tensor, Tensor]:
    """The new tokens (batch, 8), and the logits they were chosen by, (batch, 8, vocabulary)."""
    prompt = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    result = model.generate(**prompt, max_new_tokens=8, do_sample=False, **settings)
    return result.sequences[:, -8:], torch.stack(result.logits, 1)


@pytest.mark.parametrize("name", GENERATE)
@pytest.mark.parametrize("hard", [False, True])
def test_generation_with_and_without_cache(name: str, hard: bool) -> None:
    inputs = inputs_of(name)
    model = build(name, soft_topk={"topk": 3, "hard": hard})
    tokens, logits = generated(model, inputs, use_cache=False)
    assert (logits[:, 1:] - logits[:, :-1]).abs().amax(-1).min() > 1e-3  # it goes on
    for settings in ({"use_cache": True}, {"cache_implementation": "static"}):
        got, their_logits = generated(model, inputs, **settings)
        assert torch.equal(got, tokens)
        torch.testing.assert_close(their_logits, logits, rtol=0, atol=1e-4)
    alone, their_logits = generated(model, second_alone(name, inputs))
    assert torch.equal(alone[0], tokens[1])
    torch.testing.assert_close(their_logits[0], logits[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_steps_with_a_cache_are_those_of_the_whole(name: str) -> None:
    ids = inputs_of(name, padding=False)["input_ids"]
    model = build(name, soft_topk={"topk": 3})
    whole = model(ids).logits
    first = model(ids[:, :4], use_cache=True)
    steps, cache = [first.logits], first.past_key_values
    for part in (ids[:, 4:5], ids[:, 5:8], ids[:, 8:]):  # one token, several, and one again
        result = model(part, past_key_values=cache, use_cache=True)
        steps.append(result.logits)
        cache = result.past_key_values
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=2e-5)


# -------------------------------------------------------------------------------------------- types


@every_family
@pytest.mark.parametrize("hard", [False, True])
def test_low_precision_is_close(name: str, hard: bool) -> None:
    """The scores differ by their rounding: a k of half the keys keeps what that moves small."""
    inputs = inputs_of(name)
    real = real_rows(name, inputs)
    model = build(name, soft_topk={"topk": 5, "hard": hard})
    with torch.no_grad():
        expected = model(**inputs).logits[real]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = model(**inputs).logits[real]
        low = {k: v.bfloat16() if v.is_floating_point() else v for k, v in inputs.items()}
        narrow = model.bfloat16()(**low).logits[real]
    assert narrow.dtype == torch.bfloat16
    for got in (mixed, narrow):
        assert got.isfinite().all()
        assert (got - expected).norm() < 0.1 * expected.norm()


def test_training_under_autocast() -> None:
    for name in FAMILIES:
        model = build(name, soft_topk={"topk": 3}).train()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**inputs_of(name)).logits.float().square().mean()
        loss.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters()), name


# ------------------------------------------------------------------------------------------ options


def logits_of(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        return model(**inputs_of("llama")).logits


def test_the_context_wins_over_the_config() -> None:
    options = {"topk": 3, "eps": 0.5}
    model = build("llama", soft_topk=options)
    expected = logits_of(model)
    two, warm = (
        logits_of(build("llama", soft_topk={**options, **o}))
        for o in ({"topk": 2}, {"topk": 2, "eps": 3.0})
    )
    assert not torch.allclose(two, expected, atol=1e-2)
    assert not torch.allclose(two, warm, atol=1e-2)
    with soft_topk_options(topk=2):
        assert torch.equal(logits_of(model), two)
        with soft_topk_options(eps=3.0):
            assert torch.equal(logits_of(model), warm)
        with pytest.raises(ZeroDivisionError), soft_topk_options(topk=7):
            _ = 1 / 0
        assert torch.equal(logits_of(model), two)
        assert torch.equal(logits_of(build("llama", soft_topk={"eps": 0.5})), two)
    assert torch.equal(logits_of(model), expected)


def test_contexts_that_overlap() -> None:
    """As two threads have them, or generators that are closed in another order."""
    module = build("llama", soft_topk={"topk": 9}).model.layers[0].self_attn
    settings: list[dict[str, Any]] = [{"topk": 3, "hard": True}, {"topk": 4}, {"topk": 3}]
    contexts = [soft_topk_options(**options) for options in settings]
    found = []
    for context in contexts:
        context.__enter__()
        found.append(integration._options(module))
    for index in (1, 0, 2):
        contexts[index].__exit__(None, None, None)
        found.append(integration._options(module))
    assert [options.topk for options in found] == [3, 4, 3, 3, 3, 9]
    assert [options.hard for options in found] == [True, True, True, True, False, False]


def test_threads_that_overlap() -> None:
    module = build("llama", soft_topk={"topk": 9}).model.layers[0].self_attn
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    found = {}

    def first() -> None:
        with soft_topk_options(topk=3):
            first_is_in.set()
            assert second_is_in.wait(30)
        first_is_out.set()

    def second() -> None:
        assert first_is_in.wait(30)
        with soft_topk_options(eps=0.5):
            found["both"] = integration._options(module)
            second_is_in.set()
            assert first_is_out.wait(30)
            found["second"] = integration._options(module)

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["none"] = integration._options(module)
    assert {name: (options.topk, options.eps) for name, options in found.items()} == {
        "both": (3, 0.5),
        "second": (9, 0.5),
        "none": (9, 1.0),
    }


def test_hard_in_evaluation_only() -> None:
    soft, hard, mixed = (
        build("llama", soft_topk={"topk": 3, "hard": hard}) for hard in (False, True, "eval")
    )
    assert not torch.allclose(logits_of(soft), logits_of(hard), atol=1e-2)
    assert torch.equal(logits_of(mixed), logits_of(hard))
    assert torch.equal(logits_of(mixed.train()), logits_of(soft.train()))


def test_normalize_is_handed_on() -> None:
    plain, by_row = (build("llama", soft_topk={"topk": 3, "normalize": n}) for n in (None, "row"))
    assert not torch.allclose(logits_of(plain), logits_of(by_row), atol=1e-2)


def test_normalize_by_the_batch_is_refused() -> None:
    """It would see the keys after a query, and the other samples."""
    refused = pytest.raises(ValueError, match="normalize must be one of None, 'row', got 'batch'")
    config = copy.deepcopy(FAMILIES["llama"].config)
    with refused:
        use_soft_topk(config, topk=3, normalize="batch")  # type: ignore[arg-type]
    assert not hasattr(config, "soft_topk")
    with refused, soft_topk_options(normalize="batch"):
        pass
    with refused:
        logits_of(build("llama", soft_topk={"topk": 3, "normalize": "batch"}))


def test_without_topk() -> None:
    model = build("llama")
    with pytest.raises(ValueError, match=r"LlamaAttention .* no topk: .*use_soft_topk.*options"):
        logits_of(model)
    with soft_topk_options(eps=2.0), pytest.raises(ValueError, match="no topk"):
        logits_of(model)
    with soft_topk_options(topk=2):
        logits_of(model)


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match=r"no such option of soft_topk: \['k'\]; there are .*topk"):
        logits_of(build("llama", soft_topk={"k": 3}))
    with pytest.raises(ValueError, match="no such option"), soft_topk_options(k=3):
        pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"topk": 0}, ValueError, "topk must be at least 1, got topk=0"),
        ({"topk": 2.5}, TypeError, "topk must be an int, got topk=2.5"),
        ({"topk": True}, TypeError, "topk must be an int, got topk=True"),
        ({"eps": -1}, ValueError, "eps must be positive and finite, got eps=-1"),
        ({"eps": "1"}, TypeError, "eps must be a float or a tensor, got '1'"),
        ({"normalize": "foo"}, ValueError, "normalize must be one of None, 'row', got 'foo'"),
        *(
            ({"hard": hard}, ValueError, f"hard must be True, False or 'eval', got {hard!r}")
            for hard in (1, 0, "train", None)
        ),
    ],
    ids=str,
)
def test_wrong_values(options: dict[str, Any], error: type[Exception], message: str) -> None:
    """Nothing is changed by them."""
    config = copy.deepcopy(FAMILIES["llama"].config)
    before = config.to_dict()
    with pytest.raises(error, match=message):
        use_soft_topk(config, **{"topk": 3, **options})
    assert config.to_dict() == before
    with pytest.raises(error, match=message), soft_topk_options(**options):
        pass
    with pytest.raises(error, match=message):
        logits_of(build("llama", num_hidden_layers=1, soft_topk={"topk": 3, **options}))


def test_a_tensor_of_eps() -> None:
    """It could not be saved."""
    config = LlamaConfig(**GROUPED)
    with pytest.raises(TypeError, match=r"eps must be a float, .*a tensor; .*soft_topk_options"):
        use_soft_topk(config, topk=3, eps=torch.tensor(0.5))  # type: ignore[arg-type]
    model = build("llama", soft_topk={"topk": 3, "eps": 0.5})
    expected = logits_of(model)
    with soft_topk_options(eps=torch.full((4, 1), 0.5)):
        torch.testing.assert_close(logits_of(model), expected, rtol=0, atol=1e-5)


def test_numbers_of_numpy_are_saved(tmp_path: Path) -> None:
    config = use_soft_topk(LlamaConfig(**GROUPED), topk=np.int64(3), eps=np.float32(0.5))
    config.save_pretrained(tmp_path)
    options = AutoConfig.from_pretrained(tmp_path).soft_topk
    assert options == {"topk": 3, "eps": 0.5, "normalize": None, "hard": False}


@pytest.mark.parametrize("target", ["x", nn.Linear(2, 2), None], ids=str)
def test_wrong_targets(target: Any) -> None:
    message = f"target must be a model or a config of transformers, got {type(target).__name__}"
    with pytest.raises(TypeError, match=message):
        use_soft_topk(target, 1)


@every_family
def test_use_soft_topk_on_a_finished_model(name: str) -> None:
    inputs = inputs_of(name)
    expected = build(name, soft_topk={"topk": 3, "eps": 0.7})(**inputs).logits
    model = build(name, "sdpa")
    before = model(**inputs).logits
    assert use_soft_topk(model, topk=3, eps=0.7) is model
    assert torch.equal(model(**inputs).logits, expected)
    model.set_attn_implementation("sdpa")
    assert torch.equal(model(**inputs).logits, before)
    model.set_attn_implementation("soft_topk")
    assert torch.equal(model(**inputs).logits, expected)


# --------------------------------------------------------------------------------- saved and loaded


AUTO = {
    "bert": AutoModelForMaskedLM,
    "gpt2": AutoModelForCausalLM,
    "llama": AutoModelForCausalLM,
    "mistral": AutoModelForCausalLM,
    "t5": AutoModelForSeq2SeqLM,
    "bart": AutoModelForSeq2SeqLM,
    "vit": AutoModelForImageClassification,
}


def implementations(model: PreTrainedModel) -> set[str]:
    """Of all the parts of a model."""
    return {part.config._attn_implementation for part in model.modules() if hasattr(part, "config")}


@every_family
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    """By the class, by the auto class, and once more."""
    inputs = inputs_of(name)
    model = use_soft_topk(build(name, "sdpa"), topk=3, eps=0.7, normalize="row", hard="eval")
    expected = model(**inputs).logits
    for times, loader in enumerate((type(model), AUTO[name], AUTO[name])):
        folder = tmp_path / str(times)
        model.save_pretrained(folder)
        model = loader.from_pretrained(folder)
        assert implementations(model) == {"soft_topk"}
        options = {"topk": 3, "eps": 0.7, "normalize": "row", "hard": "eval"}
        assert model.config.soft_topk == options
        assert torch.equal(model(**inputs).logits, expected)
    made = AUTO[name].from_config(AutoConfig.from_pretrained(folder))
    assert implementations(made) == {"soft_topk"}


def test_a_generation_config_has_none_of_it(tmp_path: Path) -> None:
    use_soft_topk(build("llama", "sdpa"), topk=3).save_pretrained(tmp_path)
    assert "soft_topk" in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert "soft_topk" not in (tmp_path / "generation_config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_an_implementation_that_is_asked_for_wins(attention: str, tmp_path: Path) -> None:
    expected = logits_of(build("llama", attention))
    use_soft_topk(build("llama"), topk=3).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert config._attn_implementation == "soft_topk"
    for loader in (LlamaForCausalLM, AutoModelForCausalLM):
        for given in ({}, {"config": config}):
            model = loader.from_pretrained(tmp_path, attn_implementation=attention, **given)
            assert torch.equal(logits_of(model), expected)
    made = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    assert implementations(made) == {attention}


def test_a_model_that_was_turned_back_is_saved_so(tmp_path: Path) -> None:
    expected = logits_of(build("llama", "sdpa"))
    model = use_soft_topk(build("llama", "sdpa"), topk=3)
    model.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not torch.allclose(logits_of(model), expected, atol=1e-2)
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(tmp_path)), expected)


COPIES: dict[str, Callable[[PreTrainedConfig], PreTrainedConfig]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda config: pickle.loads(pickle.dumps(config)),
    "dict": lambda config: type(config).from_dict(config.to_dict()),
    "difference": lambda config: type(config).from_dict(config.to_diff_dict()),
    "arguments": lambda config: type(config)(**config.to_dict()),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_a_config(way: str) -> None:
    config = use_soft_topk(clip_config(), topk=3, eps=0.7)
    copied = COPIES[way](config)
    assert copied.to_dict() == config.to_dict()
    assert implementations(AutoModel.from_config(copied)) == {"soft_topk"}


@pytest.mark.slow
def test_a_process_that_does_not_import_the_integration(tmp_path: Path) -> None:
    """It cannot have the attention: transformers refuses the model, unless another is asked for."""
    use_soft_topk(build("llama", "sdpa"), topk=3).save_pretrained(tmp_path)
    code = f"""
from transformers import AutoModelForCausalLM
AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}, attn_implementation="sdpa")
print("sdpa is loaded")
AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "sdpa is loaded"
    assert run.returncode == 1
    assert 'ValueError: Specified `attn_implementation="soft_topk"` is not supported' in run.stderr


def clip_config() -> CLIPConfig:
    text = {**SIZES, "projection_dim": 16, **TOKENS, "eos_token_id": 2}
    vision = {k: v for k, v in SIZES.items() if k not in ("vocab_size", "max_position_embeddings")}
    vision |= {"image_size": 16, "patch_size": 4, "projection_dim": 16}
    return CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)


CLIP_INPUTS = {
    "input_ids": inputs_of("bert")["input_ids"],
    "attention_mask": inputs_of("bert")["attention_mask"],
    "pixel_values": inputs_of("vit")["pixel_values"],
}


@pytest.mark.parametrize("loader", [AutoModel, CLIPModel])
def test_configs_inside_a_config(loader: Any, tmp_path: Path) -> None:
    config = use_soft_topk(clip_config(), topk=3, eps=0.7)
    model = AutoModel.from_config(config).eval()
    assert isinstance(model, CLIPModel)
    expected = model(**CLIP_INPUTS).logits_per_image
    model.save_pretrained(tmp_path)
    again = loader.from_pretrained(tmp_path)
    assert implementations(again) == {"soft_topk"}
    assert again.config.text_config.soft_topk == again.config.vision_config.soft_topk
    assert torch.equal(again(**CLIP_INPUTS).logits_per_image, expected)
    # One part of it can be another.
    again.config.vision_config.soft_topk = {"topk": 64}
    assert not torch.equal(again(**CLIP_INPUTS).logits_per_image, expected)
    ordinary = loader.from_pretrained(tmp_path, attn_implementation="sdpa")
    assert implementations(ordinary) == {"sdpa"}


@pytest.mark.parametrize("other", ["", "text_config", "vision_config"])
def test_a_part_with_another_implementation(other: str, tmp_path: Path) -> None:
    """The config outside and those inside are saved each with its own."""
    model = use_soft_topk(AutoModel.from_config(clip_config()).eval(), topk=3)
    model.set_attn_implementation({other: "sdpa"})
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    for config in (model.config, again.config):
        parts = {key: getattr(config, key, config) for key in ("", "text_config", "vision_config")}
        found = {name: part._attn_implementation for name, part in parts.items()}
        assert found == {**dict.fromkeys(parts, "soft_topk"), other: "sdpa"}
    logits = [each(**CLIP_INPUTS).logits_per_image for each in (model, again)]
    assert torch.equal(*logits)


ENCODER_DECODER_INPUTS = {
    **{key: inputs_of("bert")[key] for key in ("input_ids", "attention_mask")},
    "decoder_input_ids": inputs_of("gpt2")["input_ids"],
}


def encoder_decoder() -> PreTrainedModel:
    decoder = GPT2Config(**FAMILIES["gpt2"].config.to_diff_dict() | {"add_cross_attention": True})
    config = EncoderDecoderConfig.from_encoder_decoder_configs(FAMILIES["bert"].config, decoder)
    return randomized(EncoderDecoderModel(config))


def test_an_encoder_and_a_decoder_of_two_families() -> None:
    inputs = ENCODER_DECODER_INPUTS
    model = encoder_decoder()
    model.set_attn_implementation("eager")
    expected = model(**inputs).logits
    use_soft_topk(model, topk=64)
    torch.testing.assert_close(model(**inputs).logits, expected, rtol=0, atol=1e-5)
    use_soft_topk(model, topk=2)
    assert not torch.allclose(model(**inputs).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("part", ["both", "encoder"])
def test_an_encoder_and_a_decoder_saved(part: str, tmp_path: Path) -> None:
    inputs = ENCODER_DECODER_INPUTS
    model = encoder_decoder()
    ordinary = model(**inputs).logits
    use_soft_topk(model if part == "both" else model.encoder, topk=2)
    expected = model(**inputs).logits
    assert not torch.allclose(expected, ordinary, rtol=0, atol=1e-5)
    model.save_pretrained(tmp_path)
    for loader in (EncoderDecoderModel, AutoModelForSeq2SeqLM):
        again = loader.from_pretrained(tmp_path)
        assert torch.equal(again(**inputs).logits, expected)
        again = loader.from_pretrained(tmp_path, attn_implementation="sdpa")
        assert torch.equal(again(**inputs).logits, ordinary)


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            Gemma2Config(**GROUPED),
            r"Gemma2Attention asks for a soft cap on the scores \(softcap=",
        ),
        (
            GptOssConfig(**GROUPED, **TOKENS, num_local_experts=2, rope_parameters=PLAIN_ROPE),
            r"GptOssAttention asks for attention sinks \(s_aux=",
        ),
        (
            CodeGenConfig(
                vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **TOKENS
            ),
            "attention of CodeGenConfig does not go through the attention interface",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_models_that_ask_for_more(config: PreTrainedConfig, message: str) -> None:
    model = AutoModel.from_config(config, attn_implementation="soft_topk")
    with soft_topk_options(topk=3), pytest.raises(NotImplementedError, match=message):
        model(inputs_of("llama")["input_ids"])


def test_what_can_be_turned_off() -> None:
    config = Gemma2Config(**GROUPED, attn_logit_softcapping=None, sliding_window=5)
    model = AutoModel.from_config(use_soft_topk(config, topk=3))
    assert model(inputs_of("llama")["input_ids"]).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("name", ["indices", "block_indices", "cache"])
def test_arguments_that_are_refused(name: str) -> None:
    module = build("llama", soft_topk={"topk": 3}).model.layers[0].self_attn
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    attention = AttentionInterface()["soft_topk"]
    attention(module, query, key, key, None, **{name: None})
    with pytest.raises(NotImplementedError, match=rf"LlamaAttention asks for .* \({name}=..."):
        attention(module, query, key, key, None, **{name: torch.zeros(1)})


def test_nothing_is_dropped_in_evaluation() -> None:
    """Whatever dropout the model asks for: some do not look at the mode."""
    module = build("llama", soft_topk={"topk": 3}).model.layers[0].self_attn
    query, key = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    attention = AttentionInterface()["soft_topk"]
    whole, _ = attention(module.eval(), query, key, key, None)
    found, _ = attention(module, query, key, key, None, dropout=0.9)
    torch.testing.assert_close(found, whole)
    found, _ = attention(module.train(), query, key, key, None, dropout=0.9)
    assert not torch.allclose(found, whole)


def test_models_without_the_interface() -> None:
    """They would take the name and go on with their own attention."""
    config = XLNetConfig(vocab_size=VOCABULARY, d_model=32, n_layer=1, n_head=4, d_inner=40)
    model = AutoModel.from_config(config)
    with pytest.raises(NotImplementedError, match="attention of XLNetModel does not go through"):
        use_soft_topk(model, topk=3)


@pytest.mark.parametrize("family", ["bloom", "xlnet"])
def test_configs_without_the_interface(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything has imported the models of the family, too."""
    config = AutoConfig.for_model(family)
    modeling = f"transformers.models.{family}.modeling_{family}"
    monkeypatch.delitem(sys.modules, modeling, raising=False)
    with pytest.raises(NotImplementedError, match=rf"(?i)attention of {family}config does not go"):
        use_soft_topk(config, topk=3)
    assert not hasattr(config, "soft_topk")


def test_a_config_whose_models_are_not_known() -> None:
    class OwnConfig(PreTrainedConfig):
        model_type = "own"

    OwnConfig.__module__ = "nowhere.configuration_own"
    assert use_soft_topk(OwnConfig(), topk=3).soft_topk["topk"] == 3


def test_without_transformers() -> None:
    code = """
import sys
sys.modules["transformers"] = None
import softtopk.integrations.transformers
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.strip().endswith(
        "ImportError: softtopk.integrations.transformers needs transformers: "
        "pip install 'softtopk[transformers]'"
    )


# ----------------------------------------------------------------------------- with what torch does


def test_gradient_checkpointing() -> None:
    inputs = inputs_of("llama")
    gradients = []
    for checkpointing in (False, True):
        model = build("llama", soft_topk={"topk": 3}).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        loss = model(**inputs, use_cache=False).logits.square().mean()
        gradients.append(torch.autograd.grad(loss, [*model.parameters()]))
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right)


def test_compiled_without_a_break() -> None:
    """And again with other options."""
    inputs = inputs_of("llama")
    model = build("llama", soft_topk={"topk": 3}, num_hidden_layers=1)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for options in ({}, {"topk": 2}):
        with soft_topk_options(**options), torch.no_grad():
            got = compiled(**inputs, use_cache=False).logits
            torch.testing.assert_close(got, model(**inputs).logits, rtol=0, atol=2e-5)


def test_the_page() -> None:
    """The code of docs/transformers.md runs, and its list of options is complete."""
    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(block, names)
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert rows == [*integration._Options._fields]
