"""Pooling of graphs: the nodes with the largest learned scores, a share of every graph."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._checks import Strength, check_integer
from .._dispatch import is_readable
from ..functional import soft_topk
from ._temperature import Tempered, check_ratio, share_of, width_to_eps


class Nodes(NamedTuple):
    """The nodes that `TopKPool.select` keeps."""

    node_index: Tensor
    """Their numbers (kept,), in ascending order."""
    weight: Tensor
    """Their A (kept,), by which their features are multiplied."""
    batch: Tensor
    """Their graphs (kept,)."""


class Pooled(NamedTuple):
    """What `TopKPool` returns: the order is that of PyTorch Geometric's ``TopKPooling``."""

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor | None
    batch: Tensor
    perm: Tensor
    """The numbers that the nodes had."""
    score: Tensor
    """Their A."""


class TopKPool(Tempered):
    """Keeps a share of the nodes of every graph, those with the largest learned scores.

    In the place of PyTorch Geometric's ``TopKPooling``, which gates the kept nodes by the tanh of
    their scores: whether a node is kept then has no gradient. Here they are gated by `soft_topk` of
    the scores ``x @ weight / norm(weight)`` within each graph, so that every node near the cut has
    one. As eps -> 0 the gates become one. Graphs may have any number of nodes; nothing is padded.

    Args:
        in_channels: Features of a node.
        ratio: Which share of the nodes stays, a float: ``ceil(ratio * n)`` of n. Or how many, an
            int; a graph with fewer keeps all.
        eps, width, learn_eps: The temperature, as in `SoftTopK`. Without ``eps`` and ``width``, the
            width is 8: the first training batch decides the eps at which about 8 nodes of a graph
            are undecided.

    The parameter ``weight`` (1, in_channels) has the name and the start that it has there. The kept
    nodes stay in their order. It needs ``batch`` to be sorted, as a batch of graphs is.

    >>> pool = TopKPool(4, ratio=0.5, eps=0.1)
    >>> x, batch = torch.randn(5, 4), torch.tensor([0, 0, 0, 1, 1])
    >>> edge_index = torch.tensor([[0, 1, 3], [1, 2, 4]])
    >>> pooled = pool(x, edge_index, batch=batch)
    >>> pooled.x.shape, pooled.batch
    (torch.Size([3, 4]), tensor([0, 0, 1]))
    """

    def __init__(
        self,
        in_channels: int,
        ratio: float = 0.5,
        *,
        eps: Strength | None = None,
        width: float | None = None,
        learn_eps: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels)
        is_share = isinstance(ratio, float)
        self.ratio = check_ratio("ratio", ratio) if is_share else check_integer("ratio", ratio)
        if eps is None and width is None:
            width = 8.0
        self._hold(eps, width, learn_eps)
        self.weight = nn.Parameter(torch.empty(1, in_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        bound = 1.0 / math.sqrt(self.in_channels)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        attn: Tensor | None = None,
    ) -> Pooled:
        """Nodes ``x`` (n, in_channels), ``edge_index`` (2, edges), ``edge_attr`` (edges, ...), the
        graph of every node ``batch`` (n,); ``attn`` (n, in_channels) to be scored instead of x."""
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.is_floating_point():
            raise ValueError(
                "edge_index must be integers of shape (2, edges), got "
                f"{edge_index.dtype} of shape {tuple(edge_index.shape)}"
            )
        if attn is not None and len(attn) != len(x):
            raise ValueError(
                f"attn must have a row for each of the {len(x)} nodes, got {len(attn)}"
            )
        nodes = self.select(x if attn is None else attn, batch)
        place = edge_index.new_full((len(x),), -1)
        place[nodes.node_index] = torch.arange(
            len(nodes.node_index), device=place.device, dtype=place.dtype
        )
        ends = place[edge_index]
        kept = (ends >= 0).all(0)
        return Pooled(
            x[nodes.node_index] * nodes.weight.unsqueeze(-1),
            ends[:, kept],
            None if edge_attr is None else edge_attr[kept],
            nodes.batch,
            nodes.node_index,
            nodes.weight,
        )

    def select(self, x: Tensor, batch: Tensor | None = None) -> Nodes:
        """The nodes to keep of ``x`` (n, in_channels)."""
        if x.ndim != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must have shape (n, {self.in_channels}), got {tuple(x.shape)}")
        if batch is None:
            batch = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        counts = _nodes_per_graph(batch, len(x))
        scores = (x * self.weight).sum(-1) / self.weight.norm().clamp(min=1e-12)
        if not len(x):
            return Nodes(batch, scores, batch)
        offsets = nn.functional.pad(counts.cumsum(0), (1, 0))
        whole = isinstance(self.ratio, int)
        k = counts.clamp(max=self.ratio) if whole else share_of(self.ratio, counts)
        eps = self._eps_now(width_to_eps(scores, k, offsets=offsets), False, scores)
        weight = soft_topk(scores, k, eps=eps, offsets=offsets)
        # A NaN comes first: its graph stays, with weights that are NaN.
        order = scores.detach().nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        kept = soft_topk(order, k, offsets=offsets, hard=True) > 0.5
        index = kept.nonzero().squeeze(-1)
        return Nodes(index, weight[index], batch[index])

    def extra_repr(self) -> str:
        return f"{self.in_channels}, ratio={self.ratio}, {self._shown()}"


def _nodes_per_graph(batch: Tensor, n: int) -> Tensor:
    if batch.shape != (n,) or batch.is_floating_point():
        raise ValueError(
            f"batch must be integers of shape ({n},), one for every node, got {batch.dtype} of "
            f"shape {tuple(batch.shape)}"
        )
    if is_readable(batch) and n and bool((batch.diff() < 0).any() | (batch[0] < 0)):
        raise ValueError("batch must not be negative, and sorted: the nodes of a graph in a row")
    return torch.bincount(batch)
