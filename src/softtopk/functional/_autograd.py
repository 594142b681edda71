"""What the autograd functions share: a batching rule, and a form that the compiler can call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


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


def opaque(
    name: str,
    schema: str,
    solve: Callable[..., Any],
    function: type[torch.autograd.Function],
    fake: Callable[..., Any],
) -> Callable[..., Any]:
    """A solver as a custom operator, for compilation and export.

    It is one opaque call in the graph: traced, its loop would be unrolled and could not stop early.
    ``fake`` makes outputs of the right shapes. The operator has the derivative of ``function``, so
    that an exported program can be trained, and a batching rule.

    Anyone can call it by its name in ``torch.ops``, so ``solve`` checks its arguments. It must not
    call the operator again, as the forward of ``function`` does for tensors that are traced.
    """
    operator = torch.library.custom_op(name, solve, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    operator.register_autograd(function.backward, setup_context=function.setup_context)
    operator.register_vmap(
        lambda info, in_dims, *inputs: batch_first(operator, info.batch_size, in_dims, inputs)
    )
    return operator


def refuse_forward_mode() -> None:
    """The compiler traces no autograd function that has a jvp; without one, tangents are lost."""
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            "softtopk has no forward-mode derivative inside torch.compile; take it outside, or use "
            "reverse mode"
        )
