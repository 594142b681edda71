"""Scores in a DTensor: the operator of the local part, or the sharded one, and a DTensor again.

Along a mesh dimension that shards the dimension to select along, the ranks talk to each other
(`_sharded`). Along every other one each rank has rows of its own, or the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor

from .._checks import Dims, check_mask, check_scores
from ._collectives import Scaled

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

P = ParamSpec("P")


def takes_dtensors(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """An operator whose first argument may be a DTensor."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        scores = args[0] if args else kwargs.get("scores")
        if type(scores) is not Tensor and is_dtensor(scores):
            return _over_mesh(function, *args, **kwargs)  # type: ignore[arg-type]
        return function(*args, **kwargs)

    return wrapper


def is_dtensor(value: object) -> bool:
    # Importing its module takes a second; whoever has one has done so.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _over_mesh(
    function: Callable[..., Tensor],
    scores: DTensor,
    k: Any,
    *,
    eps: Any = 0.1,
    dim: Dims = -1,
    mask: Tensor | None = None,
    offsets: Tensor | None = None,
    **options: Any,
) -> Tensor:
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    if offsets is not None:
        raise NotImplementedError(
            f"{function.__name__} takes no offsets for a DTensor; use scores.to_local() and the "
            "offsets of its rows"
        )

    _register_rules()
    if not isinstance(dim, int):
        raise NotImplementedError(
            f"scores in a DTensor need one dim, got dim={dim}; flatten these dimensions"
        )
    dim = check_scores(scores, dim)
    if function.__name__ == "sorted_soft_topk" and isinstance(k, Tensor):
        raise NotImplementedError("scores in a DTensor need an int as the k of sorted_soft_topk")
    check_mask(mask, scores)  # a plain one is the mask of all ranks
    mesh = scores.device_mesh
    if any(not isinstance(placement, Replicate | Shard) for placement in scores.placements):
        whole = [p if isinstance(p, Replicate | Shard) else Replicate() for p in scores.placements]
        scores = scores.redistribute(mesh, whole)
    placements = scores.placements
    along = [axis for axis, place in enumerate(placements) if place.is_shard(dim)]
    if len(along) > 1:
        raise NotImplementedError(
            f"scores are sharded along dim={dim} over {len(along)} dimensions of the mesh, got "
            f"placements={placements}; use a mesh in which these are one"
        )
    if options.get("normalize") == "batch" and any(
        place.is_shard() and not place.is_shard(dim) for place in placements
    ):
        raise NotImplementedError(
            "normalize='batch' needs all rows on every rank, got "
            f"placements={placements}; use normalize='row'"
        )
    batch = scores.shape[:dim] + scores.shape[dim + 1 :]
    # Where the rows are, without the dimension to select along.
    of_rows = [_without(place, dim) for place in placements]
    # A gradient in k or eps is the sum of what the ranks of a row contribute.
    summed = [Partial() if axis in along else place for axis, place in enumerate(of_rows)]
    local = scores.to_local()
    k = _local(k, batch, mesh, of_rows, summed)
    eps = _local(eps, batch, mesh, of_rows, summed)
    if mask is not None:
        mask = _local(mask, scores.shape, mesh, placements, placements)
    if along:
        result = _sharded(function)(
            local, k, eps=eps, dim=dim, mask=mask, group=mesh.get_group(along[0]), **options
        )
    else:
        result = function(local, k, eps=eps, dim=dim, mask=mask, **options)
    shape = torch.Size([*scores.shape, *result.shape[local.ndim :]])
    if result.ndim < local.ndim:
        shape, placements = batch, tuple(of_rows)
        if along:  # the same on all ranks of a row, each of which gets the whole gradient
            result = Scaled.apply(result, 1.0, 1.0 / mesh.size(along[0]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(result, mesh, placements, shape=shape, stride=stride)


def _local(
    value: Any,
    shape: torch.Size,
    mesh: Any,
    placements: Sequence[Placement],
    of_gradient: Sequence[Placement],
) -> Any:
    """The local part of an argument that broadcasts to a shape; a plain tensor is the same on all
    ranks."""
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(value, Tensor):
        return value
    if not isinstance(value, DTensor):
        value = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim)
    value = value.expand(shape).redistribute(mesh, placements)
    return value.to_local(grad_placements=of_gradient)


def _without(place: Placement, dim: int) -> Placement:
    from torch.distributed.tensor import Replicate, Shard

    if not isinstance(place, Shard) or place.dim < dim:
        return place
    return Replicate() if place.dim == dim else Shard(place.dim - 1)


def _sharded(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    from . import _sharded

    name = function.__name__
    sharded = getattr(_sharded, name, None)
    if sharded is None:
        raise NotImplementedError(
            f"{name} takes no scores that are sharded along dim; use scores.redistribute(...)"
        )

    @wraps(sharded)
    def checked(*args: Any, solver: Any = "exact", **options: Any) -> Tensor:
        if solver != "exact":
            raise NotImplementedError(
                f"scores that are sharded along dim need solver='exact', got solver={solver!r}"
            )
        return sharded(*args, **options)

    return checked


@cache
def _register_rules() -> None:
    """The custom operators, which exported programs call, keep shards of rows where they are."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def rows_apart(*args: Any) -> list[Any]:
        tensors = [hasattr(value, "ndim") for value in args]
        places = [Replicate(), *(Shard(axis) for axis in range(args[0].ndim - 1))]
        return [
            ([place], [place if is_tensor else None for is_tensor in tensors]) for place in places
        ]

    register_sharding([torch.ops.softtopk.soft_topk.default, torch.ops.softtopk.offset.default])(
        rows_apart
    )
