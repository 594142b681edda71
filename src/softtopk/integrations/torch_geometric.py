"""Soft top-k pooling inside the models of PyTorch Geometric.

    pool = TopKPooling(in_channels, ratio=0.5)
    pool.select = SelectSoftTopK(in_channels, ratio=0.5)

`SelectSoftTopK` takes the place of ``SelectTopK``, the select step of ``TopKPooling``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._optional import require
from ..nn import TopKPool


class SelectSoftTopK(TopKPool):
    """`softtopk.nn.TopKPool` as a select step: returns a ``SelectOutput``, whose weight is the soft
    selection. Arguments and call are those of `TopKPool`.
    """

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Any:
        select = require("torch_geometric.nn.pool.select", "SelectSoftTopK")
        kept = super().forward(x.view(-1, 1) if x.ndim == 1 else x, batch)
        index = kept.node_index
        return select.SelectOutput(
            node_index=index,
            num_nodes=len(x),
            cluster_index=torch.arange(len(index), device=index.device),
            num_clusters=len(index),
            weight=kept.weight,
        )
