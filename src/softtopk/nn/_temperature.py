"""The temperature of a module: a number, calibrated by a width, or learned; and its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._checks import (
    Count,
    Strength,
    check_choice,
    check_eps,
    check_flag,
    check_integer,
    check_number,
    check_positive,
)
from .._dispatch import is_ordinary, may_differentiate
from ..functional._rows import algebra_dtype
from ..functional._temperature import common_eps

#: The width of a module that learns only from its input how many elements it selects.
TWICE_K = float("nan")  # itself, and no other NaN


class Tempered(nn.Module):
    """A module with an eps. Its subclasses call `_hold` when they are made, and `_eps_now` to run.

    What is given is kept as it is. What is calibrated is the buffer ``calibrated_eps``, NaN until
    the first training batch. What is learned is the parameter ``log_eps``: eps is its exponential,
    so that no step of an optimiser can make it negative.
    """

    log_eps: Tensor
    calibrated_eps: Tensor
    _eps: Any
    _given_eps: Any
    _width: float | None = None
    _again = False  # a training batch shall decide although there is an eps
    _settled = False  # there is one, and it stays: no need to look at its value
    learn_eps = False

    def _hold(
        self,
        eps: Strength | None,
        width: float | None,
        learn_eps: bool,
        *,
        shape: tuple[int, ...] = (),
        like: Tensor | None = None,
        normalize: str | None = None,
    ) -> None:
        """``eps`` or ``width``, not both. What is calibrated or learned has the ``shape``."""
        if eps is None and normalize is not None:
            raise ValueError(
                f"normalize={normalize!r} needs an eps of its own; a calibrated one is for the "
                "cost as it is"
            )
        check_flag("learn_eps", learn_eps)
        if (eps is None) == (width is None):
            both = "" if eps is None else f", got eps={eps} and width={width}"
            raise ValueError(f"give eps, the temperature, or width, to have it calibrated{both}")
        self.learn_eps = learn_eps
        follows = width is TWICE_K
        self._width = width if width is None or follows else check_positive("width", width)
        self._shape = torch.Size(shape)
        start = (torch.empty(()) if like is None else like).new_full(shape, math.nan)
        if learn_eps:
            self.log_eps = nn.Parameter(start)
        elif width is not None:
            self.register_buffer("calibrated_eps", start)
        if eps is not None:
            self._give(eps)

    def _give(self, eps: Strength) -> None:
        if isinstance(eps, nn.Parameter):
            raise TypeError("eps must not be a parameter, which can become negative; use learn_eps")
        per_row = isinstance(eps, Tensor) and not self._shape and not self.learn_eps
        check_eps(eps, eps.shape if isinstance(eps, Tensor) and per_row else self._shape)
        # Also as it was given: the meta device keeps no values.
        self._given_eps = eps.detach().clone() if isinstance(eps, Tensor) else float(eps)
        if self.learn_eps:
            self._keep(torch.as_tensor(self._given_eps, device=self.log_eps.device))
            return
        if hasattr(self, "_eps"):  # what was a buffer may become a number
            del self._eps
        if isinstance(eps, Tensor):
            # Not persistent: like k and dim it is a setting, and no result of training.
            self.register_buffer("_eps", self._given_eps, persistent=False)
        else:
            self._eps = self._given_eps

    def _keep(self, eps: Tensor) -> None:
        """What was calibrated, or where learning starts."""
        held = self._held()
        limits = torch.finfo(held.dtype)
        with torch.no_grad():
            eps = eps.to(held.dtype).clamp(limits.tiny, limits.max)
            held.copy_(eps.log() if self.learn_eps else eps)
        self._again, self._settled = False, True

    def _held(self) -> Tensor:
        return self.log_eps if self.learn_eps else self.calibrated_eps

    @property
    def eps(self) -> Strength:
        """The temperature: a float or a tensor. It can be set. NaN while it is to be calibrated."""
        if self.learn_eps:
            # Neither infinite nor zero, nor so after a half of it.
            limits = torch.finfo(self.log_eps.dtype)
            return self.log_eps.clamp(math.log(limits.tiny) + 1, math.log(limits.max) - 1).exp()
        given: Any = getattr(self, "_eps", None)
        return given if self._width is None else self.calibrated_eps

    @eps.setter
    def eps(self, eps: Strength) -> None:
        if self._width is None:
            self._give(eps)
        else:
            check_eps(eps, self._shape)
            self._keep(torch.as_tensor(eps, device=self._held().device))

    def _shown(self) -> str:
        """The temperature, for ``extra_repr``."""
        if self._width is None:
            return f"eps={brief(self.eps)}, learn_eps={self.learn_eps}"
        width = "2 * k" if math.isnan(self._width) else repr(self._width)
        return f"width={width}, learn_eps={self.learn_eps}"

    @property
    def width(self) -> float | None:
        """How many elements the calibration leaves undecided. Set, it calibrates anew."""
        return self._width

    @width.setter
    def width(self, width: float) -> None:
        if self._width is None:
            raise ValueError(f"{type(self).__name__} was made with an eps; make it with width=")
        self._width = check_positive("width", width)
        self.recalibrate()

    def recalibrate(self) -> None:
        """Let the next training batch decide eps again."""
        if self._width is None:
            raise ValueError(f"{type(self).__name__} was made with an eps; make it with width=")
        self._again, self._settled = True, False

    def _eps_now(
        self, calibrate: Callable[[float], Tensor], hard: bool = False, *inputs: object
    ) -> Strength:
        """eps for this call. ``calibrate`` finds the one for a width and the scores of the call, or
        NaN if they have no scale. A ``hard`` selection has an eps for the derivative only, in the
        ``inputs`` or in eps itself."""
        if self._settled or self._width is None:
            return self.eps
        if hard and not self.training and not may_differentiate(*inputs, self._held()):
            return 1.0
        again = self._again and self.training
        if torch.compiler.is_compiling() or self._held().is_meta:
            return self._decide(calibrate(self._width), again)
        # The tensor itself says whether it is known: it may have been copied from another module.
        if not again and not bool(self._held().isnan().any()):
            self._settled = not self._again
            return self.eps
        found = calibrate(self._width)
        if is_ordinary(found) and not bool(found.isnan().any()):
            return self._decide(found, again)
        return self._or_held(found, again).nan_to_num(nan=1.0)  # for this call alone

    def _decide(self, found: Tensor, again: bool) -> Strength:
        eps = self._or_held(found, again)
        if not self.training:  # nothing to keep: it is for this call
            return eps
        self._keep(eps)
        return self.eps

    def _or_held(self, found: Tensor, again: bool) -> Tensor:
        """The eps that was found, where it is needed."""
        held = self._held().detach()
        known = held.exp() if self.learn_eps else held
        wanted = ~found.isnan() if again else known.isnan()
        return torch.where(wanted, found.to(known.dtype), known)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        name = "log_eps" if self.learn_eps else "calibrated_eps"
        held: Tensor | None = getattr(self, name, None)
        if held is not None:  # a state dict without it loads, and leaves it as it is
            loaded = (value for key, value in state_dict.items() if key.startswith(prefix))
            like = next((value for value in loaded if value.is_floating_point()), held)
            state_dict.setdefault(prefix + name, self._known(held, like.dtype))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self._width is not None:
            # Looked at now: a tracer cannot, and would put the calibration into every graph.
            held, self._again = self._held(), False
            readable = is_ordinary(held) and not held.is_meta
            self._settled = readable and not bool(held.isnan().any())
        given = self._buffers.get("_eps")
        if given is not None and given.is_meta:
            self._eps = self._given_eps

    def _known(self, held: Tensor, dtype: torch.dtype) -> Tensor:
        """The value of a tensor of ours, which the meta device does not keep."""
        if not held.is_meta:
            return held.detach()
        if self._width is not None:
            return torch.full(held.shape, math.nan, dtype=dtype, device="cpu")
        given = torch.as_tensor(self._given_eps, dtype=dtype, device="cpu")
        return given.log().expand(held.shape)


def brief(value: object) -> str:
    """An option, for ``extra_repr``."""
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"tensor of shape {tuple(value.shape)}"
    return f"{value.item():.6g}" if isinstance(value, Tensor) else repr(value)


def width_to_eps(
    scores: Tensor,
    k: Count,
    size: float = 0.0,
    mask: Tensor | None = None,
    dim: int = -1,
    offsets: Tensor | None = None,
) -> Callable[[float], Tensor]:
    """How a module calibrates that selects k along ``dim`` of these scores, ``size`` at most."""

    def calibrate(width: float) -> Tensor:
        wanted = max(2.0, 2.0 * size) if math.isnan(width) else width
        return common_eps(
            scores,
            k,
            width=min(wanted, scores.shape[dim]),
            dim=dim,
            largest=True,
            mask=mask,
            sorted=False,
            offsets=offsets,
        )

    return calibrate


def share_of(ratio: float, n: Any) -> Any:
    """ceil(ratio n), of an int or a tensor of ints, where 0.1 of 30 are 3 whatever the rounding."""
    if isinstance(n, Tensor):
        wide = n.to(algebra_dtype(n))
        return (wide * ratio * (1 - 1e-9)).ceil().long()
    return math.ceil(ratio * n * (1 - 1e-9))


def check_ratio(name: str, value: float) -> float:
    if not 0 < check_number(name, value) <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {name}={value}")
    return float(value)


Shape = Literal["exponential", "linear", "cosine"]
_SHAPES: dict[str, Callable[[float, float, float], float]] = {
    "exponential": lambda start, end, done: start ** (1 - done) * end**done,
    "linear": lambda start, end, done: start + (end - start) * done,
    "cosine": lambda start, end, done: end + (start - end) * 0.5 * (1 + math.cos(math.pi * done)),
}


class WidthSchedule:
    """Anneals the width of all modules in ``module`` that have one, from soft to hard.

    Made and used like a schedule of ``torch.optim``: call ``step()`` after every training step. The
    next training batch then decides eps for the new width; in eval mode nothing is decided. After
    ``total_steps`` steps the width is ``end``, and the batch after the last step is the last to
    decide.

    Args:
        module: One made with ``width=``, or a model that contains some.
        total_steps: Steps from ``start`` to ``end``.
        start: Elements that are undecided at first; None for the width that each module has.
        end: Elements that are undecided at the end. 2 is nearly hard.
        shape: ``"exponential"``, ``"linear"`` or ``"cosine"``.

    >>> select = SoftTopK(10, width=100)
    >>> schedule = WidthSchedule(select, total_steps=50)
    >>> for _ in range(25):
    ...     _ = select(torch.randn(4, 100))
    ...     schedule.step()
    >>> round(select.width, 1)
    14.1
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        total_steps: int,
        start: float | None = None,
        end: float = 2.0,
        shape: Shape = "exponential",
    ) -> None:
        self.total_steps = check_integer("total_steps", total_steps)
        check_choice("shape", shape, tuple(_SHAPES))
        self.shape = shape
        self._modules = [
            part
            for part in module.modules()
            if isinstance(part, Tempered) and part.width is not None
        ]
        if not self._modules:
            raise ValueError(
                f"module has no part with a width, got {type(module).__name__}; make it with width="
            )
        if any(part.learn_eps for part in self._modules):
            raise ValueError("a schedule would overwrite what learn_eps=True learns; use one")
        given = None if start is None else check_positive("start", start)
        self._starts = [float(given or part.width or 0) for part in self._modules]
        if any(map(math.isnan, self._starts)):
            raise ValueError(
                "give start, or make the part with width=: it selects a ratio of its input, whose "
                "size it does not know yet"
            )
        self.end = check_positive("end", end)
        self.last_step = 0
        self._apply()

    def step(self) -> None:
        """Go on to the width of the next step."""
        if self.last_step < self.total_steps:
            self.last_step += 1
            self._apply()

    def get_last_width(self) -> list[float]:
        """The width of every module."""
        done = min(1.0, self.last_step / self.total_steps)
        return [_SHAPES[self.shape](start, self.end, done) for start in self._starts]

    def _apply(self) -> None:
        for part, width in zip(self._modules, self.get_last_width(), strict=True):
            part.width = width

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on, with the state of the modules, which has their eps."""
        return {
            "last_step": self.last_step,
            "total_steps": self.total_steps,
            "end": self.end,
            "shape": self.shape,
            "starts": list(self._starts),
            "again": [part._again for part in self._modules],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the schedule that made ``state`` was."""
        self.last_step = check_integer("last_step", state["last_step"], 0)
        self.total_steps = check_integer("total_steps", state["total_steps"])
        self.end, self.shape = check_positive("end", state["end"]), state["shape"]
        self._starts = [check_number("start", start) for start in state["starts"]]
        self._apply()
        for part, again in zip(self._modules, state["again"], strict=True):
            part._again = bool(again)
