"""Top-k pooling of graphs: the select step, on ragged rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .._checks import Strength, check_integer
from ..functional import soft_topk
from ._temperature import TWICE_K, Tempered, check_ratio, share_of, width_to_eps


class PooledNodes(NamedTuple):
    """Result of `TopKPool`, for m nodes that stay."""

    x: Tensor
    """(m, in_channels): their features times their weights."""
    node_index: Tensor
    """(m,): which nodes they are, ascending."""
    weight: Tensor
    """(m,): in training their soft selection, in eval mode one."""
    batch: Tensor
    """(m,): the graph of each."""


class TopKPool(Tempered):
    """Keeps the best nodes of every graph of a batch, and learns which.

    The select step of ``TopKPooling`` in PyTorch Geometric, whose hard expression it relaxes: the
    ceil(ratio n) nodes of a graph with the largest scores ``x @ p / |p|``. Always exactly these
    are kept, so that graphs shrink. There, the features are multiplied by tanh(score), which tells
    a node nothing of the others. Here they are multiplied by the soft selection,
    ``soft_topk(score, k, offsets=...)`` within the graph: a node that was dropped has a gradient
    too, through the threshold. In eval mode, and as eps -> 0, the weights are one.

    Args:
        in_channels: The size of the features of a node.
        ratio: A float in (0, 1]: the share of the nodes that stay, rounded up. Or an int: how many;
            a graph with fewer keeps all.
        eps: The temperature, in units of the scores.
        width: Instead: how many nodes of a graph shall be undecided on the first training batch, as
            in `SoftTopK`. Without eps and width: twice as many as the largest graph keeps.
        learn_eps: As in `SoftTopK`.

    Called with x (nodes, in_channels) and ``batch`` (nodes,), the graph of every node, ascending;
    None for one graph.

    >>> pool = TopKPool(8, ratio=0.5)
    >>> nodes, batch = torch.randn(7, 8), torch.tensor([0, 0, 0, 0, 0, 1, 1])
    >>> pool(nodes, batch).batch
    tensor([0, 0, 0, 1])
    """

    def __init__(
        self,
        in_channels: int,
        ratio: float | int = 0.5,
        *,
        eps: Strength | None = None,
        width: float | None = None,
        learn_eps: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer("in_channels", in_channels)
        whole = isinstance(ratio, int) and not isinstance(ratio, bool)
        self.ratio = check_integer("ratio", ratio) if whole else check_ratio("ratio", ratio)
        self.weight = nn.Parameter(torch.empty(1, in_channels))
        self.reset_parameters()
        if eps is None and width is None:
            width = max(2.0, 2.0 * ratio) if whole else TWICE_K
        self._hold(eps, width, learn_eps)

    def reset_parameters(self) -> None:
        bound = self.in_channels**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, batch: Tensor | None = None) -> PooledNodes:
        batch = self._batch_of(x, batch)
        scores = (x * self.weight).sum(-1) / self.weight.norm().clamp(min=1e-12)
        if not len(x):
            return PooledNodes(x, batch, scores, batch)
        count = torch.bincount(batch)
        k = count.clamp(max=self.ratio) if self._whole else share_of(self.ratio, count)
        offsets = torch.cat([count.new_zeros(1), count.cumsum(0)])
        calibrate = width_to_eps(scores, k, float(k.max()), offsets=offsets)
        eps = self._eps_now(calibrate, not self.training, scores)
        chosen = soft_topk(scores.detach(), k, offsets=offsets, hard=True)
        index = chosen.nonzero().flatten()
        soft = soft_topk(scores, k, eps=eps, offsets=offsets) if self.training else chosen
        weight = soft[index]
        return PooledNodes(x[index] * weight.unsqueeze(-1), index, weight, batch[index])

    @property
    def _whole(self) -> bool:
        return isinstance(self.ratio, int)

    def _batch_of(self, x: Tensor, batch: Tensor | None) -> Tensor:
        if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[-1] != self.in_channels:
            found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"x must be (nodes, in_channels={self.in_channels}), got {found}")
        if batch is None:
            return torch.zeros(len(x), dtype=torch.long, device=x.device)
        if batch.shape != x.shape[:1] or batch.is_floating_point():
            raise ValueError(
                f"batch must be integers, one for each of {len(x)} nodes, got {batch.dtype} of "
                f"shape {tuple(batch.shape)}"
            )
        if bool((batch[1:] < batch[:-1]).any()):
            raise ValueError("batch must be ascending: sort the nodes by their graph")
        return batch

    def extra_repr(self) -> str:
        return f"{self.in_channels}, ratio={self.ratio}, {self._shown()}"
