"""Which path a call takes, and nothing else.

An operator has four paths, with the same results:

- ``"native"``: a call of the native library (`softtopk.kernels`) each way. On the CPU, when nothing
  watches the single operations.
- ``"triton"``: a launch each way. On a GPU, likewise.
- ``"opaque"``: a custom operator, one node of a graph. For tensors that are traced: inside of
  ``torch.compile`` and ``torch.export``, fake tensors, subclasses that take operations over.
- ``"plain"``: ordinary operations of torch. For all else: ``torch.func``, forward mode, and where
  there are no kernels.

This is the only module that calls private functions of torch. For a version that lacks one, the
second argument of `_private` is what takes its place: the answer that leads to the plain path.

ONNX has neither custom operators nor derivatives: a graph for it takes the plain path, where the
solvers are unrolled or refused (`opaque` in `functional/_autograd`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import kernels

if TYPE_CHECKING:
    from .kernels._triton import Triton

Path = Literal["native", "triton", "opaque", "plain"]


def _private(owner: str, name: str, otherwise: Any) -> Callable[..., Any]:
    found: Any = torch
    for part in owner.split("."):
        found = getattr(found, part, None)
    return getattr(found, name, lambda *_: otherwise)


_is_transformed = _private("_C._functorch", "is_functorch_wrapped_tensor", True)
_is_batched = _private("_C._functorch", "is_legacy_batchedtensor", False)  # by gradcheck alone
_transform = _private("_C._functorch", "peek_interpreter_stack", True)
_tracing_state = _private("_C", "_get_tracing_state", True)  # of torch.jit.trace
_observers = _private("_C", "_len_torch_dispatch_stack", 1)  # make_fx and other dispatch modes


def path_of(scores: Tensor, *others: object, fixed: Sequence[object] = ()) -> Path:
    """The path of an operator of the scores and others, whose derivative in the ``fixed`` arguments
    only the plain path has. Numbers and None do not matter."""
    constants = [value for value in fixed if isinstance(value, Tensor)]
    if in_onnx_export():
        return "plain"
    if torch.is_grad_enabled() and any(value.requires_grad for value in constants):
        return "plain"
    tensors = [scores, *constants, *(value for value in others if isinstance(value, Tensor))]
    if is_traced(scores):
        same = all(tensor.device == scores.device for tensor in tensors)
        return "opaque" if same and kernels.covers(scores.device) else "plain"
    if _transform() is not None:  # which the tensors need not show, but an autograd function does
        return "plain"
    if library_for(*tensors) is not None:
        return "native"
    return "triton" if triton_for(*tensors) is not None else "plain"


def library_for(*tensors: Tensor) -> kernels.Native | None:
    """The native library if it can work on these tensors now, else None."""
    if not is_readable(*tensors) or in_forward_mode() or tensors[0].numel() == 0:
        return None
    return kernels.native()


def triton_for(*tensors: Tensor) -> Triton | None:
    """The Triton kernels if they can work on these tensors now, else None."""
    if _is_watched() or in_forward_mode() or tensors[0].numel() == 0:
        return None
    device = tensors[0].device
    if not all(tensor.device == device and is_ordinary(tensor) for tensor in tensors):
        return None
    return kernels.triton_for(device)


def is_traced(tensor: Tensor) -> bool:
    """Whether there may be no value behind the tensor: it is being compiled, fake, or meta."""
    return torch.compiler.is_compiling() or _is_dispatched(tensor) or tensor.is_meta


def is_readable(*tensors: Tensor) -> bool:
    """Whether the values may decide what is done next, at no cost.

    There are values, no device has to be waited for, and neither a ``torch.func`` transform nor a
    tracer is in the way.
    """
    if kernels.is_interpreting():
        return False
    return all(tensor.is_cpu for tensor in tensors) and is_immediate(*tensors)


def is_immediate(*tensors: Tensor) -> bool:
    """Whether an operation on the tensors is done when it is called, and nothing else with it."""
    if _is_watched():
        return False
    return all(is_ordinary(tensor) and not tensor.is_meta for tensor in tensors)


def fits_blocks(*tensors: Tensor, fixed: Sequence[object]) -> bool:
    """Whether attention may go over its queries in blocks, which has no derivative in the ``fixed``
    arguments, none in forward mode and none for ``torch.func``."""
    constants = [value for value in fixed if isinstance(value, Tensor)]
    return (
        not may_differentiate(*constants)
        and is_immediate(*tensors, *constants)
        and all(tensor.numel() > 0 for tensor in tensors)
    )


def _is_watched() -> bool:
    """Whether something has to see every single operation."""
    return torch.compiler.is_compiling() or _tracing_state() is not None or _observers() > 0


def is_ordinary(tensor: Tensor) -> bool:
    """Whether the tensor is its memory: no subclass that takes operations over, no transform."""
    return not (_is_dispatched(tensor) or _is_transformed(tensor) or _is_batched(tensor))


def _is_dispatched(tensor: Tensor) -> bool:
    # A subclass that inherits torch's own handler is an ordinary tensor under another name.
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__


def may_differentiate(*values: object) -> bool:
    """Whether a derivative in one of the values may be asked for, in any mode.

    Inside of a ``torch.func`` transform, which a tensor need not show: always. In ONNX: never.
    """
    if in_onnx_export():
        return False
    if _transform() is not None or in_forward_mode():
        return True
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )


def in_forward_mode() -> bool:
    return getattr(forward_ad, "_current_level", 0) >= 0


def in_onnx_export() -> bool:
    """Whether ``torch.onnx.export(..., dynamo=True)`` is making the graph."""
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()


def refuse_forward_mode() -> None:
    """A custom operator has no forward mode; tangents would be lost without a word."""
    if in_forward_mode():
        raise RuntimeError(
            "softtopk has no forward-mode derivative inside torch.compile; take it outside, or use "
            "reverse mode"
        )


def dense(x: Tensor) -> Tensor:
    """As the native library reads it: contiguous, without a pending negation, in memory."""
    if x.is_neg():
        x = x.resolve_neg()
    if getattr(x, "_is_zerotensor", lambda: False)():  # a gradient of zero that has no memory yet
        x = x.clone()
    return x.contiguous()
