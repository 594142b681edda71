"""What the autograd functions share: a batching rule, and a form that the compiler can call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def batch_first(
    function: Callable[..., Any], size: int, in_dims: Sequence[int | None], inputs: Sequence[Any]
) -> tuple[Any, Any]:
    """Batching rule: bring the axis that ``torch.vmap`` maps over to the front of every tensor.

    All our functions take leading batch axes, so this alone is enough for them.
    """
    moved = [
        value
        if not isinstance(value, Tensor)
        else value.expand(size, *value.shape)
        if dim is None
        else value.movedim(dim, 0)
        for value, dim in zip(inputs, in_dims, strict=True)
    ]
    outputs = function(*moved)
    return outputs, 0 if isinstance(outputs, Tensor) else (0,) * len(outputs)


def _on_one_device(fake: Callable[..., Any]) -> Callable[..., Any]:
    """``fake``, if all tensors are on one device: torch would take a result from a meta tensor."""

    def checked(*inputs: Any) -> Any:
        devices = {value.device.type for value in inputs if isinstance(value, Tensor)}
        if len(devices) > 1:
            raise ValueError(f"all tensors must be on one device, got {', '.join(sorted(devices))}")
        return fake(*inputs)

    return checked


def opaque(
    name: str,
    schema: str,
    solve: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A solver as a custom operator, for compilation and export.

    It is one opaque call in the graph: traced, its loop would be unrolled and could not stop early.
    ``fake`` makes outputs of the right shapes. With a derivative, an exported program can be
    trained.

    Anyone can call it by its name in ``torch.ops``, so ``solve`` checks its arguments.
    """
    operator = torch.library.custom_op(name, solve, mutates_args=(), schema=schema)
    operator.register_fake(_on_one_device(fake))
    operator.register_vmap(
        lambda info, in_dims, *inputs: batch_first(operator, info.batch_size, in_dims, inputs)
    )
    if backward is None or setup_context is None:
        return operator
    operator.register_autograd(backward, setup_context=setup_context)
    space, _, short = name.partition("::")
    in_graph = getattr(getattr(torch.ops, space), short).default  # as Dynamo knows it
    return _as_function(in_graph, solve, setup_context, backward)


def _as_function(
    operator: Callable[..., Any],
    solve: Callable[..., Any],
    setup: Callable[..., None],
    pull: Callable[..., Any],
) -> Callable[..., Any]:
    """The operator for Dynamo, whose ``torch.func.grad`` knows the derivative of an autograd
    function, but not that of a custom operator. It knows no function that has a jvp."""

    class Traced(torch.autograd.Function):
        @staticmethod
        @wraps(solve)  # Dynamo counts the parameters
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            setup(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return pull(ctx, *grads)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            return batch_first(Traced.apply, info.batch_size, in_dims, inputs)

    # A view: Dynamo does not see that the argument of torch.func.grad requires a gradient.
    return lambda x, *others: Traced.apply(x.view_as(x), *others)
