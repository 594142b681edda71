"""What the autograd functions share: a batching rule, and a form that the compiler can call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from .._dispatch import in_onnx_export


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


def _checked(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """``fake``, if all tensors are on one device: torch would take a result from a meta tensor.

    Not for ONNX: its exporter calls this one before it fails to translate the operator.
    """

    def checked(*inputs: Any) -> Any:
        if torch.onnx.is_in_onnx_export():
            raise NotImplementedError(
                f"{name} cannot be exported to ONNX; export the hard selection: hard_eval=True and "
                ".eval(). Of the soft operators the unsorted ones can be exported, with "
                "solver='exact', if torch.onnx.export is given the module, not an ExportedProgram"
            )
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
    unrolled: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """A solver as a custom operator, for compilation and export.

    It is one opaque call in the graph: traced, its loop would be unrolled and could not stop early.
    ``fake`` makes outputs of the right shapes. With a derivative, an exported program can be
    trained. ``unrolled`` takes the place of the operator in ONNX, which has only operations of its
    own; without it, an export to ONNX is refused.

    Anyone can call it by its name in ``torch.ops``, so ``solve`` checks its arguments.
    """
    operator = torch.library.custom_op(name, solve, mutates_args=(), schema=schema)
    operator.register_fake(_checked(name, fake))
    operator.register_vmap(
        lambda info, in_dims, *inputs: batch_first(operator, info.batch_size, in_dims, inputs)
    )
    if backward is None or setup_context is None:
        return operator
    operator.register_autograd(backward, setup_context=setup_context)
    space, _, short = name.partition("::")
    in_graph = getattr(getattr(torch.ops, space), short).default  # as Dynamo knows it
    function = _as_function(in_graph, solve, setup_context, backward)
    if unrolled is None:
        return function
    return lambda *inputs: (unrolled if in_onnx_export() else function)(*inputs)


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
