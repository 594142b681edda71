"""What a run of the kNN experiment is asked to do, and the presets.

The reasons for the tuned figures stand beside them. They come from few trials on images held out of
the training set, one seed each; docs/knn_experiment.md says where the test set was seen before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from softtopk.knn import Recipe

from ..errors import UsageError
from ._methods import Method

DATA = ("digits", "mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    """The settings that all methods share, with the recipe of the training."""

    data: str = "digits"
    preset: str = "paper"
    """Where the other settings come from, as far as they were not given."""
    subset: int | None = None
    """Train and test on so many images only."""
    holdout: int | None = None
    """Test on so many images of the training set instead of on the test set."""
    k: int = 9
    eps: float | None = None
    """Temperature of the relaxation of every method; None for the one of each, see below."""
    normalize: Literal["row", "batch"] | None = None
    """How SOFT top-k scales its cost: row, batch or not at all."""
    objective: Literal["vote", "nll"] = "vote"
    metric: Literal["euclidean", "squared", "cosine"] = "euclidean"
    leave_one_out: bool = False
    """Let queries and templates of a step be each other's templates."""
    shift: int = 0
    """Augmentation: random shifts by up to so many pixels."""
    flip: bool = False
    """Augmentation: random reflections, left to right."""
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            raise UsageError(f"--{name.replace('_', '-')} {rest}") from error
        for name, least in (("k", 1), ("threads", 1), ("shift", 0), ("holdout", 1), ("subset", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name} {value}: give at least {least}")
        if self.k > self.template_size:
            raise UsageError(
                f"--k {self.k}: give at most the {self.template_size} templates of a step, or "
                "raise --template-size"
            )
        if self.eps is not None and not 0 < self.eps < float("inf"):
            raise UsageError(f"--eps {self.eps:g}: give a positive number")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                wanted = ", ".join(choice or "none" for choice in choices)
                raise UsageError(f"--{name} {getattr(self, name)!r}: give one of {wanted}")


_CHOICES: dict[str, tuple[str | None, ...]] = {
    "data": DATA,
    "normalize": ("row", "batch", None),
    "objective": ("vote", "nll"),
    "metric": ("euclidean", "squared", "cosine"),
}

# The paper's table of settings, and its listing, which divides the cost by its largest entry in the
# batch. The number of epochs is ours: the paper has none.
_PAPER: dict[str, Any] = {
    "k": 9,
    "normalize": "batch",
    "objective": "vote",
    "batch_size": 100,
    "template_size": 100,
    "optimizer": "sgd",
    "lr": 1e-3,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "epochs": 10,
}
_TUNED: dict[str, Any] = {
    **_PAPER,
    # The cost as it is: the network itself finds the scale of its features, and the logarithm lets
    # a query learn that is far from all templates of its class. With a normalised cost the
    # logarithm makes the features collapse.
    "normalize": None,
    "objective": "nll",
    # 200 queries with 199 templates each, for the network's time of 100 with 100. Of 100 templates
    # fewer than nine are of the query's class every third time; of 199, hardly ever.
    "leave_one_out": True,
    # With 0.05 the loss is a third higher after two epochs.
    "lr": 0.02,
    "schedule": "cosine",
    "warmup": 0.02,
    "shift": 2,
    "epochs": 8,
}
_DIGITS: dict[str, Any] = {
    # The sorting relaxations take 8 times as long with twice the templates.
    "leave_one_out": False,
    # A thousand images make few steps, in which AdamW gets further.
    "optimizer": "adamw",
    "lr": 2e-3,
    "weight_decay": 0.01,
    "shift": 1,
    "epochs": 30,
}
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {"paper": {**_PAPER, "epochs": 30}, "tuned": {**_TUNED, **_DIGITS}},
    "mnist": {"paper": _PAPER, "tuned": _TUNED},
    "fashion-mnist": {"paper": _PAPER, "tuned": {**_TUNED, "flip": True, "epochs": 6}},
    "cifar10": {"paper": _PAPER, "tuned": {**_TUNED, "flip": True, "epochs": 30}},
}
DEFAULT_PRESET = {"mnist": "paper", "cifar10": "paper", "digits": "tuned", "fashion-mnist": "tuned"}
"""The paper's own settings where the paper has some."""

# Temperatures by relaxation. The paper has none for the methods that it copies figures of.
_EPS = {"neural-sort": 4.0, "relax-subsample": 1.0, "softmax-k-times": 0.5, "cuturi": 0.01}
# SOFT top-k: the paper's, which refer to a normalised cost, and ours for the cost as it is.
_NORMALIZED_EPS = {"digits": 1e-3, "mnist": 1e-3, "fashion-mnist": 1e-3, "cifar10": 1e-5}
_PLAIN_EPS = 0.5


def temperature(settings: Settings, relaxation: str) -> float:
    """What is given, or else that of the relaxation."""
    if settings.eps is not None:
        return settings.eps
    if relaxation != "soft-topk":
        return _EPS[relaxation]
    return _PLAIN_EPS if settings.normalize is None else _NORMALIZED_EPS[settings.data]


def make_settings(data: str, preset: str | None, given: Mapping[str, Any]) -> Settings:
    """The settings of a preset, with what was ``given`` in their place."""
    if data not in DATA:
        raise UsageError(f"--data {data!r}: give one of {', '.join(DATA)}")
    preset = preset or DEFAULT_PRESET[data]
    if preset not in PRESETS[data]:
        raise UsageError(f"--preset {preset!r}: give one of {', '.join(PRESETS[data])}")
    return Settings(**{"data": data, "preset": preset, **PRESETS[data][preset], **given})


def setting_names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Settings))


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the record of a run, which may be older than some of them."""
    return {field.name: config.get(field.name, field.default) for field in fields(Settings)}


def relevant_settings(method: Method) -> tuple[str, ...]:
    """The settings that a method's result or its training time depends on."""
    irrelevant: set[str] = set()
    if method.head:
        irrelevant |= {"k", "metric"}
    if not method.relaxation:
        irrelevant |= {"eps", "normalize", "objective", "leave_one_out", "template_size"}
    elif method.relaxation != "soft-topk":
        irrelevant |= {"normalize"}
    if not method.is_trained:
        irrelevant |= {field.name for field in fields(Recipe)} | {"shift", "flip"}
    return tuple(name for name in setting_names() if name not in irrelevant)


def given_settings(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row of the table, with a temperature only if it had to be given."""
    out = dict(settings)
    if method.relaxation:
        plain = Settings(**{**settings_in(settings), "eps": None})
        if temperature(plain, method.relaxation) == settings["eps"]:
            out["eps"] = None
    return out


def changes_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Which of the settings have to be given beside the data and the preset."""
    base = asdict(make_settings(settings["data"], settings["preset"], {}))
    return {name: value for name, value in settings.items() if value != base[name]}
