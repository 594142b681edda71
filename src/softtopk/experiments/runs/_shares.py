"""Rows of a batch for each process, such that all of them together do what one would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from softtopk.distributed import gather

from ._processes import count, rank


def share(n: int) -> slice:
    """The rows of this process, of ``n``; the shares differ by one row at most."""
    return slice(rank() * n // count(), (rank() + 1) * n // count())


def share_out(network: nn.Module) -> None:
    """In training, let every process compute its rows of a batch; all get the output of all rows.

    What comes after the network is then the same in all processes, whatever it is: a loss that
    compares rows, its noise, a cost that is divided by its largest entry.
    """
    if count() == 1:
        return
    whole = network.forward

    def forward(inputs: Tensor) -> Tensor:
        if not network.training:
            return whole(inputs)
        rows = share(len(inputs))
        with AsInWholeBatch(rows, len(inputs)):
            mine = whole(inputs[rows])
        return gather(mine)

    network.forward = forward


#: What draws at random and is not among the functions that `AsInWholeBatch` replaces.
_UNKNOWN = {
    *("dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("rand_like", "randn", "randn_like", "bernoulli", "normal", "gumbel_softmax"),
}


class AsInWholeBatch(TorchFunctionMode):
    """Inside, a network does to some rows of a batch what it would do to them among all rows.

    What it draws at random is drawn for all rows, and its own rows are taken of that. So the
    generators are afterwards in the same state in all processes. Batch norm takes the mean and the
    variance of all rows. These are the functions that our networks have; others that draw or mix
    rows have to be added here.

    Args:
        rows: Those that the network is given. An input may have several rows for each, adjacent, as
            the hypotheses of a sentence are.
        n: The number of all rows.
    """

    def __init__(self, rows: slice, n: int) -> None:
        super().__init__()
        self._start, self._count, self._n = rows.start, rows.stop - rows.start, n
        self._replaced: dict[Any, Callable[..., Tensor]] = {
            F.dropout: self._dropout,
            F.batch_norm: self._batch_norm,
            torch.rand: self._rand,
            torch.Tensor.multinomial: self._multinomial,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") in _UNKNOWN:
            raise NotImplementedError(
                f"{func.__name__} draws at random, and does not know of other processes: train "
                "this network with one"
            )
        return self._replaced.get(func, func)(*args, **(kwargs or {}))

    def _all(self, size: int) -> tuple[int, slice]:
        """Of a tensor of ``size`` rows: how many it would have for all rows, and which it has."""
        each = size // self._count if self._count else 1
        return each * self._n, slice(each * self._start, each * self._start + size)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training:
            return input
        n, rows = self._all(len(input))
        # Numbers are drawn in the order of the memory: this is for inputs that are contiguous.
        return input * F.dropout(input.new_ones(n, *input.shape[1:]), p)[rows]

    def _rand(self, size: int, *sizes: int, **options: Any) -> Tensor:
        n, rows = self._all(size)
        return torch.rand(n, *sizes, **options)[rows]

    def _multinomial(self, weights: Tensor, *options: Any) -> Tensor:
        n, rows = self._all(len(weights))
        whole = weights.new_ones(n, weights.shape[1])
        whole[rows] = weights
        return whole.multinomial(*options)[rows]

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(
                input, running_mean, running_var, weight, bias, False, momentum, eps
            )
        n = self._all(len(input))[0] * input.shape[2:].numel()
        over = [dim for dim in range(input.ndim) if dim != 1]
        mean = _total(input.sum(over)) / n
        centred = input - _as_channels(mean, input)
        variance = _total(centred.square().sum(over)) / n
        if running_mean is not None and running_var is not None:
            running_mean.lerp_(mean.detach(), momentum)
            running_var.lerp_(variance.detach() * (n / (n - 1)), momentum)
        scale = (variance + eps).rsqrt()
        if weight is not None:
            scale = scale * weight
        out = centred * _as_channels(scale, input)
        return out if bias is None else out + _as_channels(bias, input)


def _total(x: Tensor) -> Tensor:
    """The sum over all processes, with its derivative."""
    return gather(x.unsqueeze(0)).sum(0)


def _as_channels(x: Tensor, like: Tensor) -> Tensor:
    """(c,) -> (1, c, 1, ...)."""
    return x.view(1, -1, *[1] * (like.ndim - 2))
