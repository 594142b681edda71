"""Top-k attention in the models of transformers.

Importing this module registers the attention implementation ``"soft_topk"`` and its mask. Every
model that takes its attention from the interface of transformers then has it::

    from softtopk.integrations.transformers import use_soft_topk

    model = AutoModelForCausalLM.from_pretrained(folder)
    use_soft_topk(model, topk=32)

or, by the name, ``AutoModel.from_config(config, attn_implementation="soft_topk")`` with
``config.soft_topk = {"topk": 32}``. See docs/transformers.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .._checks import check_choice, check_eps, check_integer
from .._optional import require
from ..nn import soft_topk_attention

require("transformers", __name__)

from transformers import (  # noqa: E402  # the line above says what to install
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import sdpa_mask  # noqa: E402

try:  # what a model is asked to return, beside its output
    from transformers.utils.output_capturing import _active_collector as _collector
except ImportError:  # in earlier versions
    _collector = None

__all__ = ["NAME", "soft_topk_options", "use_soft_topk"]

NAME = "soft_topk"
"""The name of the attention implementation, and of the attribute of a config with its options."""

Hard = Literal["eval"] | bool
# Not "batch": every score of a batch would count, those of later keys and of other samples too.
Normalize = Literal["row"] | None
Target = TypeVar("Target", PreTrainedModel, PreTrainedConfig)


class _Options(NamedTuple):
    topk: int
    eps: float | Tensor = 1.0
    normalize: Normalize = None
    hard: Hard = False


# What a model may hand to its attention, and top-k attention does not do.
_REFUSED = {
    "softcap": "a soft cap on the scores",
    "s_aux": "attention sinks",
    "indices": "keys that the model itself selects",
    "block_indices": "blocks of keys that the model itself selects",
    "cache": "a paged cache (continuous batching)",
}


class _Entry:
    """The options of one `soft_topk_options`, equal to no other."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options


# Of every `soft_topk_options` that is open, the latest last. One list for all threads, as the
# backward pass runs in its own and a text streamer needs one; and torch.compile traces a global,
# but no context variable. Threads and generators may leave in another order than they came.
_entries: list[_Entry] = []

# Whether the weights of an attention module were asked for when its model was last called.
_asked: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def use_soft_topk(
    target: Target,
    topk: int,
    *,
    eps: float = 1.0,
    normalize: Normalize = None,
    hard: Hard = False,
) -> Target:
    """Give a model top-k attention, or every model that is made from a config.

    Sets the implementation to ``"soft_topk"`` and the attribute ``soft_topk`` to the options, in
    the config and in the configs inside it, such as those of an encoder and a decoder. Both are
    saved with the config, so that a saved model has top-k attention when it is loaded.

    Args:
        target: a model or a config of transformers. It is changed.
        topk: how many keys a query attends to. A query with no more than that has the usual
            attention.
        eps: the temperature of the selection, see `softtopk.nn.soft_topk_attention`.
        normalize: ``"row"`` divides the cost by its largest entry for a query, see there.
        hard: whether to keep exactly the ``topk`` largest scores: ``True``, ``False``, or
            ``"eval"``, which is in evaluation mode only.

    Returns:
        ``target``.
    """
    if not isinstance(target, (PreTrainedModel, PreTrainedConfig)):
        raise TypeError(
            "target must be a model or a config of transformers, got "
            f"{type(target).__name__}; of a wrapped model, pass the one inside"
        )
    if isinstance(eps, Tensor):
        raise TypeError(
            "eps must be a float, as it is saved with the config, got a tensor; "
            "run the model in `with soft_topk_options(eps=...)` for that"
        )
    options = _checked(_Options(topk, eps, normalize, hard)._asdict())
    _require_interface(target)
    if isinstance(target, PreTrainedConfig):
        target._attn_implementation = NAME
    else:
        target.set_attn_implementation(NAME)
    for config in _configs(target):
        setattr(config, NAME, dict(options))
    return target


@contextmanager
def soft_topk_options(**options: Any) -> Iterator[None]:
    """Set some of the options ``topk``, ``eps``, ``normalize`` and ``hard`` for every model.

    Those given here win over those of an outer or earlier ``with``, which win over those of a
    config::

        with soft_topk_options(hard=True):
            model.generate(...)

    ``eps`` may be a tensor here. They hold in every thread until the end of the block. Gradient
    checkpointing calls the attention again in the backward pass: have that in the block, too, or
    the options in the config.
    """
    entry = _Entry(_checked(options))
    _entries.append(entry)
    try:
        yield
    finally:
        _entries.remove(entry)


def soft_topk_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers calls it.

    ``(batch, heads, L, E), (batch, kv_heads, S, E), (batch, kv_heads, S, Ev) ->
    (batch, L, heads, Ev), (batch, heads, L, S)``: the output and the weights. Instead of weights
    that the model is not asked for there is None.

    The mask is the whole truth, as for eager attention: `soft_topk_mask` leaves out no causal mask,
    for which ``is_causal`` would have to stand in, so that is not looked at. A step with a cache
    has one query, which sees every key.
    """
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"{type(module).__name__} asks for {what} ({name}=...), which attn_implementation="
                f"{NAME!r} does not have: turn it off in the config, or use 'eager'"
            )
    options = _options(module)
    result = soft_topk_attention(
        query,
        key,
        value,
        options.topk,
        eps=options.eps,
        normalize=options.normalize,
        attn_mask=_combined(attention_mask, position_bias),
        dropout_p=dropout if module.training else 0.0,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        need_weights=_needs_weights(module, kwargs),
        hard=not module.training if options.hard == "eval" else options.hard,
    )
    output, weights = result if isinstance(result, tuple) else (result, None)
    return output.transpose(1, 2).contiguous(), weights


def soft_topk_mask(*, config: PreTrainedConfig, **kwargs: Any) -> Tensor | None:
    """The mask as transformers asks for it: boolean, True takes part, never left out if causal."""
    # Such a family would go on to add the boolean mask to its scores.
    if _has_own_attention(_modeling_of(config)):
        raise NotImplementedError(_no_interface(type(config).__name__))
    return sdpa_mask(config=config, **{**kwargs, "allow_is_causal_skip": False})


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, numbers as plain ones, which can be saved."""
    unknown = sorted(options.keys() - set(_Options._fields))
    if unknown:
        raise ValueError(f"no such option of {NAME}: {unknown}; there are {list(_Options._fields)}")
    checked = dict(options)
    if "topk" in options:
        checked["topk"] = check_integer("topk", options["topk"])
    # The shape of a tensor is a matter of the scores.
    if "eps" in options and not isinstance(options["eps"], Tensor):
        checked["eps"] = check_eps(options["eps"], torch.Size())
    check_choice("normalize", options.get("normalize"), (None, "row"))
    hard = options.get("hard", False)
    if not (type(hard) is bool or hard == "eval"):
        raise ValueError(f"hard must be True, False or 'eval', got {hard!r}")
    return checked


def _options(module: nn.Module) -> _Options:
    options = {**(getattr(module.config, NAME, None) or {})}
    for entry in list(_entries):
        options.update(entry.options)
    options = _checked(options)
    if "topk" not in options:
        raise ValueError(
            f"{type(module).__name__} has attn_implementation={NAME!r}, but no topk: call "
            "use_soft_topk(model, topk=...), which reaches configs inside the config, or set "
            f"config.{NAME} = {{'topk': ...}} before the model is made, or run the model in "
            "`with soft_topk_options(topk=...)`"
        )
    return _Options(**options)


def _needs_weights(module: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether the weights may be asked for. Without them there is no tensor of their size."""
    if kwargs.get("output_attentions") or _collector is None or torch.compiler.is_compiling():
        return True
    collected = _collector.get()
    if collected is not None:
        _asked[module] = any("attentions" in name for name in collected)
    # Gradient checkpointing calls a layer again without its model, and wants the same from it.
    return _asked.get(module, True)


def _combined(mask: Tensor | None, position_bias: Tensor | None) -> Tensor | None:
    """One mask out of two. A masked key must be deleted: at a low score it would still count."""
    if mask is not None and mask.dtype != torch.bool:
        # Masks that a model or a user makes have the lowest number of their type.
        mask = mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)
    if position_bias is None or mask is None:
        return mask if position_bias is None else position_bias
    if mask.dtype == torch.bool:
        return torch.where(mask, position_bias, -torch.inf)
    return position_bias + mask


def _configs(target: PreTrainedModel | PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A config and those inside it, at any depth; or those of every part of a model."""
    if isinstance(target, PreTrainedConfig):
        yield target
        parts = [*vars(target).values()]
    else:
        parts = [getattr(module, "config", None) for module in target.modules()]
    for part in parts:
        if isinstance(part, PreTrainedConfig):
            yield from _configs(part)


def _has_own_attention(modeling: str) -> bool:
    """Whether a module of models has attention classes, none of which uses the interface."""
    names = vars(sys.modules[modeling]) if modeling in sys.modules else {}
    return "ALL_ATTENTION_FUNCTIONS" not in names and any(
        isinstance(value, type) and issubclass(value, nn.Module) and "Attention" in name
        for name, value in names.items()
    )


def _modeling_of(config: PreTrainedConfig) -> str:
    """The module with the models of a config, by the naming rule of transformers."""
    return type(config).__module__.replace("configuration_", "modeling_")


def _require_interface(target: PreTrainedModel | PreTrainedConfig) -> None:
    """transformers itself takes the name for any model, and some go on with their own attention."""
    if isinstance(target, PreTrainedConfig):
        modules = [_modeling_of(config) for config in _configs(target)]
        for module in modules:
            with suppress(ImportError):  # a family that breaks the rule cannot be checked
                import_module(module)
    else:
        parts = [part for part in target.modules() if isinstance(part, PreTrainedModel)]
        modules = [type(part).__module__ for part in parts]
    if all(map(_has_own_attention, modules)):
        raise NotImplementedError(_no_interface(type(target).__name__))


def _no_interface(name: str) -> str:
    return (
        f"the attention of {name} does not go through the attention interface of transformers, "
        f"so attn_implementation={NAME!r} cannot reach it: use another model, or 'eager'"
    )


def _saves_the_name(to_dict: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """`PreTrainedConfig.to_dict` leaves out the implementation: add it if it is this one.

    transformers itself reads ``attn_implementation`` when it makes a config of a dictionary, and
    refuses to make a model of that config if nothing has registered the name.
    """

    @wraps(to_dict)
    def with_name(config: PreTrainedConfig) -> dict[str, Any]:
        saved = to_dict(config)
        own, *inside = (getattr(each, "_attn_implementation", None) for each in _configs(config))
        if NAME in (own, *inside):
            # A dictionary: a plain name, or none, would be set in the configs inside, too.
            saved["attn_implementation"] = {"": NAME} if own == NAME else {}
        return saved

    return with_name


AttentionInterface.register(NAME, soft_topk_attention_forward)
AttentionMaskInterface.register(NAME, soft_topk_mask)
PreTrainedConfig.to_dict = _saves_the_name(PreTrainedConfig.to_dict)
