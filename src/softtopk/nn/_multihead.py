"""Multi-head attention to about k keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._checks import Strength, check_flag, check_integer
from ._attention import (
    check_dropout,
    check_normalize,
    describe,
    eps_per_head,
    soft_topk_attention,
)
from ._temperature import Tempered


class SoftTopKAttention(Tempered, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` in which every query attends to about ``topk`` keys.

    The attention is `soft_topk_attention`. The constructor, the call, the returned weights and the
    state dict are those of ``nn.MultiheadAttention``, so that one can take the other's place, in
    ``nn.TransformerEncoderLayer`` too. (With ``width`` or ``learn_eps`` the state dict also has the
    temperature.) With ``topk`` at least the number of keys they compute the same, but for a query
    without any key: it attends to nothing here.

    Args:
        topk: How many keys; those of ``add_bias_kv`` and ``add_zero_attn`` count among them.
        eps: Regularisation strength, in units of the scores: a float or a tensor (num_heads,). None
            is 1, which suits scores of unit variance, as those of newly made layers mostly are.
        width: Instead: how many keys shall be undecided. The first training batch decides eps for
            every head, as in `SoftTopK`; a state dict without it loads.
        learn_eps: Learn one eps for every head from there: its logarithm is the parameter
            ``log_eps`` (num_heads,). A state dict without it loads and leaves it as it is. Weight
            decay pulls it towards 0, and so eps towards 1.
        normalize: As in `soft_topk_attention`: None or "row".
        hard_eval: In eval mode attend to exactly the ``topk`` keys with the largest scores.

    The other arguments, by position or by name, are those of ``nn.MultiheadAttention``.

    >>> attention = SoftTopKAttention(16, 4, batch_first=True, topk=3, learn_eps=True)
    >>> x = torch.randn(2, 10, 16)
    >>> output, weights = attention(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 10, 16]), torch.Size([2, 10, 10]))
    >>> attention.eps.detach()
    tensor([1., 1., 1., 1.])
    """

    def __init__(
        self,
        *arguments: Any,
        topk: int,
        eps: Strength | None = None,
        width: float | None = None,
        learn_eps: bool = False,
        normalize: Literal["row"] | None = None,
        hard_eval: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        check_dropout("dropout", self.dropout)
        check_normalize(normalize)
        check_flag("hard_eval", hard_eval)
        # In eval mode nn.TransformerEncoderLayer computes ordinary attention itself, past our
        # forward, unless it finds projections that it does not know.
        self._qkv_same_embed_dim = False
        self.topk = check_integer("topk", topk)
        self.normalize = normalize
        self.hard_eval = hard_eval
        if eps is None and width is None:
            eps = 1.0
        weight = self.out_proj.weight
        shape = (self.num_heads,)
        self._hold(eps, width, learn_eps, shape=shape, like=weight, normalize=normalize)

    @classmethod
    def from_multihead(cls, attention: nn.MultiheadAttention, **options: Any) -> SoftTopKAttention:
        """One with the very parameters of ``attention``; ``options`` are those of the constructor:
        ``topk``, and any that shall differ.

        >>> layer = nn.TransformerEncoderLayer(16, 4)
        >>> layer.self_attn = SoftTopKAttention.from_multihead(layer.self_attn, topk=3)
        """
        if not isinstance(attention, nn.MultiheadAttention):
            raise TypeError(
                f"attention must be an nn.MultiheadAttention, got {type(attention).__name__}"
            )
        weight = attention.out_proj.weight
        same = {
            "dropout": attention.dropout,
            "bias": attention.in_proj_bias is not None,
            "add_bias_kv": attention.bias_k is not None,
            "add_zero_attn": attention.add_zero_attn,
            "kdim": attention.kdim,
            "vdim": attention.vdim,
            "batch_first": attention.batch_first,
            "device": weight.device,
            "dtype": weight.dtype,
        }
        made = cls(attention.embed_dim, attention.num_heads, **same | options)
        theirs, own = (dict(each.named_parameters(recurse=False)) for each in (attention, made))
        differing = sorted((theirs.keys() ^ own.keys()) - {"log_eps"})
        if differing:
            raise ValueError(
                "attention must have the parameters of an nn.MultiheadAttention with these "
                f"options, but it differs in {', '.join(differing)}; if it is parametrized or "
                "pruned, make that permanent first"
            )
        for name in theirs.keys() - {"log_eps"}:
            setattr(made, name, theirs[name])
        made.out_proj = attention.out_proj
        return made.train(attention.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention``: in masks True takes no part, unlike in
        `soft_topk_attention`, and ``is_causal`` is a hint about ``attn_mask``, which has to be
        given and which alone counts.
        """
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True says what attn_mask is; pass attn_mask too")
        self._check(query, key, value)
        batched = query.ndim == 3
        queries, keys, values = map(self._heads, self._project(query, key, value))
        shape = (*queries.shape[:-1], keys.shape[-2])
        mask = self._mask(shape, batched, key_padding_mask, attn_mask)
        if self.bias_k is not None and self.bias_v is not None:
            keys = self._with_row(keys, self.bias_k)
            values = self._with_row(values, self.bias_v)
        if self.add_zero_attn:
            keys, values = F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))
        if mask is not None:
            # The rows that were added take part: True, or 0 to add.
            mask = F.pad(mask, (0, keys.shape[-2] - mask.shape[-1]), value=mask.dtype == torch.bool)

        hard = self.hard_eval and not self.training
        eps = self._eps_now(
            lambda width: eps_per_head(queries, keys, self.topk, width=width, attn_mask=mask),
            hard,
            queries,
            keys,
            values,
        )
        result = soft_topk_attention(
            queries,
            keys,
            values,
            self.topk,
            eps=eps.unsqueeze(-1) if isinstance(eps, Tensor) else eps,
            normalize=self.normalize,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
            hard=hard,
        )
        output, weights = result if isinstance(result, tuple) else (result, None)
        output = self.out_proj(output.transpose(1, 2).flatten(-2))  # (N, L, E)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
        if self.in_proj_weight is None:
            weights: Sequence[Any] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        elif query is key and key is value:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(*each) for each in zip((query, key, value), weights, biases, strict=True)]

    def _heads(self, projected: Tensor) -> Tensor:
        """(L, N, E), (N, L, E) if ``batch_first``, or (L, E) -> (N, heads, L, E / heads)."""
        projected = projected.unflatten(-1, (self.num_heads, self.head_dim))
        if projected.ndim == 3:
            return projected.transpose(0, 1).unsqueeze(0)
        return projected.permute(0, 2, 1, 3) if self.batch_first else projected.permute(1, 2, 0, 3)

    def _with_row(self, heads: Tensor, row: Tensor) -> Tensor:
        """(N, heads, S, d) with one more row, out of (1, 1, heads * d)."""
        row = row.view(1, self.num_heads, 1, self.head_dim)
        return torch.cat([heads, row.expand(heads.shape[0], -1, -1, -1)], -2)

    def _mask(
        self,
        shape: tuple[int, ...],
        batched: bool,
        padding: Tensor | None,
        attn_mask: Tensor | None,
    ) -> Tensor | None:
        """Both masks as one for `soft_topk_attention`, of ``shape`` (N, heads, L, S)."""
        batch, heads, length, size = shape
        masks = []
        if padding is not None:
            _check_mask("key_padding_mask", padding, [(batch, size) if batched else (size,)])
            masks.append(padding.view(batch, 1, 1, size))
        if attn_mask is not None:
            _check_mask("attn_mask", attn_mask, [(length, size), (batch * heads, length, size)])
            masks.append(attn_mask if attn_mask.ndim == 2 else attn_mask.view(shape))
        if all(mask.dtype is torch.bool for mask in masks):
            return ~reduce(torch.logical_or, masks) if masks else None
        return reduce(torch.add, map(_additive, masks))

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        named = {"query": query, "key": key, "value": value}
        if any(tensor.is_nested for tensor in named.values()):
            raise TypeError(
                "SoftTopKAttention takes no nested tensors. If nn.TransformerEncoder makes them of "
                "padded input, give it enable_nested_tensor=False, or set use_nested_tensor=False"
            )
        if not query.ndim == key.ndim == value.ndim or query.ndim not in (2, 3):
            raise ValueError(
                f"query, key and value must all be 3-d, or all 2-d, got {describe(named)}"
            )
        sizes = (self.embed_dim, self.kdim, self.vdim)
        if (query.shape[-1], key.shape[-1], value.shape[-1]) != sizes:
            raise ValueError(
                f"the last axes must be of embed_dim, kdim, vdim = {sizes}, got {describe(named)}"
            )
        across = 0 if self.batch_first else 1
        if key.shape[:-1] != value.shape[:-1] or (
            query.ndim == 3 and query.shape[across] != key.shape[across]
        ):
            order = "(batch, length, size)" if self.batch_first else "(length, batch, size)"
            raise ValueError(
                f"batch sizes, and lengths of key and value, must agree; axes are {order} with "
                f"batch_first={self.batch_first}, got {describe(named)}"
            )

    def extra_repr(self) -> str:
        shown = f"eps={self.eps.tolist() if isinstance(self.eps, Tensor) else self.eps}"
        if self.width is not None:
            shown = f"width={self.width}"
        return (
            f"{self.embed_dim}, {self.num_heads}, topk={self.topk}, {shown}, "
            f"learn_eps={self.learn_eps}, normalize={self.normalize!r}, hard_eval={self.hard_eval}"
        )


def _check_mask(name: str, mask: Tensor, shapes: Sequence[tuple[int, ...]]) -> None:
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        raise TypeError(
            f"{name} must be boolean (True takes no part) or floating, got {mask.dtype}; "
            f"convert with {name}.bool()"
        )
    if mask.shape not in shapes:
        raise ValueError(
            f"{name} must be of shape {' or '.join(map(str, shapes))}, got {tuple(mask.shape)}"
        )


def _additive(mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -math.inf)
