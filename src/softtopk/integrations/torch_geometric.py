"""The soft top-k as the select step of PyTorch Geometric's pooling.

For a layer that takes its nodes by ``select`` and its edges by ``connect``, as ``TopKPooling``::

    from softtopk.integrations.torch_geometric import SelectSoftTopK

    pool = TopKPooling(64, ratio=0.5)
    pool.select = SelectSoftTopK(64, ratio=0.5)

Without PyTorch Geometric, `softtopk.nn.TopKPool` is the whole layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._optional import require
from ..nn import TopKPool

require("torch_geometric", __name__)

from torch_geometric.nn.pool.select import Select, SelectOutput  # noqa: E402  # see above

__all__ = ["SelectSoftTopK"]


class SelectSoftTopK(Select):  # type: ignore[misc]
    """`softtopk.nn.TopKPool.select` in the place of ``SelectTopK``: the arguments are those of
    `TopKPool`. The ``weight`` of the output is the soft top-k of the nodes that are kept."""

    def __init__(self, in_channels: int, ratio: float = 0.5, **options: Any) -> None:
        super().__init__()
        self.pool = TopKPool(in_channels, ratio, **options)

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        self.pool.reset_parameters()

    def forward(self, x: Tensor, batch: Tensor | None = None) -> SelectOutput:
        """Nodes (n, d) and the graph of each (n,) -> those that stay, with their gates."""
        nodes = self.pool.select(x, batch)
        kept = len(nodes.node_index)
        return SelectOutput(
            node_index=nodes.node_index,
            num_nodes=len(x),
            cluster_index=torch.arange(kept, device=x.device),
            num_clusters=kept,
            weight=nodes.weight,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool.extra_repr()})"
