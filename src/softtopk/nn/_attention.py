"""Attention to about k keys."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import (
    Strength,
    check_broadcast,
    check_choice,
    check_eps,
    check_flag,
    check_integer,
    check_number,
)
from .._dispatch import fits_blocks, in_onnx_export, may_differentiate
from ..functional import soft_topk_softmax
from ..functional._softmax import softmax_of_largest, softmax_or_zero
from ..functional._temperature import common_eps
from ._blocks import Call, attend_in_blocks


@overload
def soft_topk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk: int,
    *,
    eps: Strength = 1.0,
    normalize: Literal["row"] | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    need_weights: Literal[False] = False,
    hard: bool = False,
) -> Tensor: ...


@overload
def soft_topk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk: int,
    *,
    eps: Strength = 1.0,
    normalize: Literal["row"] | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    need_weights: Literal[True],
    hard: bool = False,
) -> tuple[Tensor, Tensor]: ...


@overload
def soft_topk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk: int,
    *,
    eps: Strength = 1.0,
    normalize: Literal["row"] | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    need_weights: bool,
    hard: bool = False,
) -> Tensor | tuple[Tensor, Tensor]: ...


def soft_topk_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    topk: int,
    *,
    eps: Strength = 1.0,
    normalize: Literal["row"] | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    hard: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Scaled dot-product attention in which every query attends to about ``topk`` keys.

    With the scores f = scale * query @ key.mT + mask and their soft selection A =
    ``soft_topk(f, topk, eps=eps)``, the result is ``softmax(f + log A) @ value``: a relaxation of
    the attention to the ``topk`` keys with the largest scores. A query with at most ``topk`` keys
    left attends to all of them, as in ordinary attention, and one without any has an output and a
    gradient of zero.

    Shapes and arguments are those of ``torch.nn.functional.scaled_dot_product_attention``, except
    that ``topk`` is the fourth and the others are given by name; and so is the result for
    ``topk >= S``.

    Args:
        query: (..., L, E). Leading axes broadcast.
        key: (..., S, E).
        value: (..., S, Ev).
        topk: How many keys, an int of at least 1.
        eps: Regularisation strength, in units of the scores: a float, or a tensor that broadcasts
            to (..., L), say (heads, 1) for one per head. The default suits scores of unit variance.
        normalize: None, or "row" to divide the cost of each query by its largest entry, as in the
            paper's settings of ``eps``. Larger scores then give a softer selection. A finite low
            mask, say -1e9, sets that entry: mask by -inf or a boolean. Not "batch": a query would
            depend on others, on later ones too.
        attn_mask: Broadcasts to (..., L, S): boolean, True takes part, or floating, added to the
            scores, where -inf takes no part.
        is_causal: Query i takes the keys up to i. Not together with ``attn_mask``.
        dropout_p: Probability with which a weight is dropped, whenever it is above zero: pass 0 for
            evaluation.
        scale: Of the scores; 1/sqrt(E) if None.
        enable_gqa: The heads, axis -3, of query are a multiple of those of key and of value; each
            of these serves as many consecutive heads of query.
        need_weights: Return the weights too, as they are applied: after dropout, as in
            ``nn.MultiheadAttention``.
        hard: Attend to exactly the ``topk`` keys with the largest scores, with the gradient of the
            soft attention (straight-through). If no gradient is wanted, only their values are read,
            and under one seed dropout drops others than with a gradient.

    Returns:
        (..., L, Ev), and the weights (..., L, S) if ``need_weights``.

    >>> query, key, value = torch.randn(3, 2, 4, 10, 8).unbind()
    >>> soft_topk_attention(query, key, value, 3, is_causal=True).shape
    torch.Size([2, 4, 10, 8])
    """
    if isinstance(topk, Tensor):
        raise TypeError("topk must be an int, got a tensor; a mask is given as attn_mask=...")
    topk = check_integer("topk", topk)
    check_normalize(normalize)
    check_dropout("dropout_p", dropout_p)
    check_flag("need_weights", need_weights)
    check_flag("hard", hard)
    shape = _shape_of_scores(query, key, value, enable_gqa)
    check_eps(eps, shape[:-1])
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else check_number("scale", scale)
    _check_mask(attn_mask, is_causal, shape)
    call = Call(topk, eps, attn_mask, is_causal, scale, hard, shape)
    whole = need_weights or dropout_p > 0.0 or normalize is not None
    if not whole and fits_blocks(query, key, value, fixed=(eps, attn_mask)):
        return attend_in_blocks(query, key, value, call, _attend)
    return _attend(query, key, value, call, normalize, dropout_p, need_weights)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: Call,
    normalize: Literal["row"] | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with all scores at once."""
    topk, eps, hard = call.topk, call.eps, call.hard
    scores, mask = _scores_of(query, key, call)
    if topk >= scores.shape[-1]:
        # Ordinary attention. A causal mask leaves every query a key, so that no row is empty.
        masked = scores if mask is None else scores.masked_fill(~mask, -math.inf)
        weights = masked.softmax(-1) if call.mask is None else softmax_or_zero(masked)
    elif hard and not may_differentiate(scores, value, eps):
        return _attend_to_few(scores, mask, value, topk, dropout_p, need_weights)
    else:
        weights = soft_topk_softmax(
            scores, topk, eps=eps, mask=mask, normalize=normalize, hard=hard
        )
    if dropout_p > 0.0:
        weights = F.dropout(weights, dropout_p)
    output = _per_group(weights, value)
    return (output, weights) if need_weights else output


def eps_per_head(
    query: Tensor, key: Tensor, topk: int, *, width: float, attn_mask: Tensor | None
) -> Tensor:
    """The eps of every head, (heads,), that leaves ``width`` keys of a query undecided.

    query (N, heads, L, E), key (N, heads, S, E).
    """
    shape = _shape_of_scores(query, key, key, False)
    call = Call(topk, 1.0, attn_mask, False, query.shape[-1] ** -0.5, False, shape)
    scores, mask = _scores_of(query.detach(), key.detach(), call)
    n = shape[-1]
    options: dict[str, Any] = {"width": min(width, n), "dim": -1, "largest": True, "sorted": False}
    masks = [None] * shape[1] if mask is None else mask.expand(shape).unbind(1)
    return torch.stack(
        [
            common_eps(head, min(topk, n), mask=allowed, **options)
            for head, allowed in zip(scores.unbind(1), masks, strict=True)
        ]
    )


def _scores_of(query: Tensor, key: Tensor, call: Call) -> tuple[Tensor, Tensor | None]:
    """The scores, a floating mask added, and a boolean mask."""
    # The scores are the larger tensor: scale before the product.
    scores = _per_group(query * call.scale, key.mT)
    if scores.shape != call.shape:  # the values have more leading axes
        scores = scores.expand(call.shape)
    if call.is_causal:
        return scores, torch.ones(call.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if call.mask is None or call.mask.dtype is torch.bool:
        return scores, call.mask
    return scores + call.mask.to(scores.dtype), None


def _check_mask(attn_mask: Tensor | None, is_causal: bool, shape: torch.Size) -> None:
    check_flag("is_causal", is_causal)
    if attn_mask is None:
        return
    if is_causal:
        raise ValueError("is_causal=True excludes attn_mask; leave one of them out")
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a torch.Tensor, got {type(attn_mask).__name__}")
    check_broadcast("attn_mask", attn_mask.shape, shape, "the shape (..., L, S) of the scores")
    if not (attn_mask.dtype is torch.bool or attn_mask.is_floating_point()):
        raise TypeError(
            "attn_mask must be boolean (True takes part) or floating (added to the scores), "
            f"got {attn_mask.dtype}; convert with attn_mask.bool()"
        )


def _per_group(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` (..., L, X), (..., X, Y) -> (..., L, Y), where the heads of ``left`` may be
    a multiple of those of ``right``.

    The heads that share a matrix are laid one below the other, so that nothing is copied.
    """
    heads = left.shape[-3] if left.ndim > 2 else 1
    groups = right.shape[-3] if right.ndim > 2 else 1
    if groups in (1, heads) or heads == 1:
        return left @ right
    length = left.shape[-2]
    folded = left.unflatten(-3, (groups, heads // groups)).flatten(-3, -2)
    return (folded @ right).unflatten(-2, (heads // groups, length)).flatten(-4, -3)


def _attend_to_few(
    scores: Tensor,
    mask: Tensor | None,
    value: Tensor,
    topk: int,
    dropout_p: float,
    need_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention to the ``topk`` keys with the largest scores, which reads their values only."""
    weights, index = softmax_of_largest(scores, mask, topk)
    weights = weights.to(scores.dtype)  # autocast may leave them wider
    if dropout_p > 0.0:
        weights = F.dropout(weights, dropout_p)
    if in_onnx_export():  # where embedding_bag is a loop over the queries
        placed = torch.zeros_like(scores).scatter(-1, index, weights)
        output = _per_group(placed, value)
        return (output, placed) if need_weights else output
    # One table of all values, and for every query a bag of its rows: unlike a gather, which would
    # copy topk rows per query, this sums them where they are.
    length, size = value.shape[-2:]
    first = torch.arange(math.prod(value.shape[:-2]), device=value.device) * length
    first = first.view(value.shape[:-2])
    if first.ndim and first.shape[-1] > 1:
        first = first.repeat_interleave(scores.shape[-3] // first.shape[-1], -1)
    output = F.embedding_bag(
        (index + first[..., None, None]).flatten(0, -2),
        value.flatten(0, -2).to(weights.dtype),  # and these
        per_sample_weights=weights.flatten(0, -2),
        mode="sum",
    ).view(*index.shape[:-1], size)
    if not need_weights:
        return output
    return output, torch.zeros_like(scores).scatter_(-1, index, weights)


def _shape_of_scores(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> torch.Size:
    """Check the three against each other; (..., L, S) with all leading axes."""
    check_flag("enable_gqa", enable_gqa)
    named = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be of a floating dtype, got {tensor.dtype}")
        if tensor.is_nested:
            raise TypeError(f"{name} must not be nested; use {name}.to_padded_tensor() and a mask")
        if tensor.ndim < 2 + enable_gqa:
            axes = "(..., heads, length, size)" if enable_gqa else "(..., length, size)"
            raise ValueError(f"{name} must have axes {axes}, got shape {tuple(tensor.shape)}")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key must have last axes of one size, got {describe(named)}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key and value must have as many rows (axis -2), got {describe(named)}")
    dtypes = [tensor.dtype for tensor in named.values()]
    if len(set(dtypes)) > 1 and not torch.is_autocast_enabled(query.device.type):
        raise TypeError(
            f"query, key and value must be of one dtype, got {', '.join(map(str, dtypes))}; "
            "convert them, or use torch.autocast"
        )
    batches = [tensor.shape[:-2] for tensor in named.values()]
    if enable_gqa:
        heads = query.shape[-3]
        if any(batch[-1] == 0 or heads % batch[-1] for batch in batches):
            raise ValueError(
                "with enable_gqa the heads (axis -3) of query must be a multiple of those of key "
                f"and of value, got {describe(named)}"
            )
        batches = [torch.Size((*batch[:-1], heads)) for batch in batches]
    try:
        batch = torch.broadcast_shapes(*batches)
    except RuntimeError:
        remedy = "" if enable_gqa else "; for shared heads pass enable_gqa=True"
        raise ValueError(f"the leading axes do not broadcast: {describe(named)}{remedy}") from None
    return torch.Size((*batch, query.shape[-2], key.shape[-2]))


def describe(named: dict[str, Tensor]) -> str:
    """The shapes, for an error. Not before there is one: torch.compile takes no text of sizes."""
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())


def check_normalize(value: str | None) -> None:
    if value == "batch":
        raise ValueError(
            "normalize='batch' would make a query depend on later ones and on other sequences of "
            "the batch, which set the scale too; use normalize='row' or None"
        )
    check_choice("normalize", value, (None, "row"))


def check_dropout(name: str, value: float) -> None:
    """A probability, as it is applied to the weights."""
    if not 0.0 <= check_number(name, value) <= 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {name}={value}")
