"""What a run of the kNN experiment is asked to do, and the presets.

The reasons for the tuned figures stand beside them. They come from few trials on images held out of
the training set, one seed each; docs/knn_experiment.md says where the test set was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn

from softtopk.knn import (
    ConvNet,
    Recipe,
    default_network,
    resnet8,
    resnet18,
    resnet20,
    sizes_for,
)

from .._splits import Data
from ..errors import UsageError
from ..settings import MACHINE, Declared, Effect, relevant, setting
from ._methods import METHODS, RELAXED, Method

DATA = ("digits", "mnist", "fashion-mnist", "cifar10")
FILE, FOLDER = "FILE", "FOLDER"  # data of the user's own: a table, or images
NETWORKS: dict[str, Callable[[Sequence[int]], nn.Module]] = {
    "auto": default_network,
    "convnet": ConvNet,
    "resnet8": lambda shape: resnet8(shape[0]),
    "resnet18": lambda shape: resnet18(shape[0]),
    "resnet20": lambda shape: resnet20(shape[0]),
}
"""By name, what makes the network for images of a shape."""

# The groups of settings.
DIVISION, TRAINING, NEIGHBOURS, IMAGES = "Data", "Training", "Loss", "Images"
PRESET = "the preset's"
# What a setting has an effect with.
_TRAINED: Effect = {"is_trained": (True,)}
_RELAXED: Effect = {"relaxation": RELAXED}
_VOTED: Effect = {"head": (False,)}
_FILE: Effect = {"data": (FILE,)}
_OWN: Effect = {"data": (FILE, FOLDER)}
_SEEN: Effect = {"data": (*DATA, FOLDER)}


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe, Declared):
    """The settings that all methods share. Those of the recipe have its defaults and limits."""

    epochs: int = setting(
        Recipe.epochs, "Passes through all training samples.", group=TRAINING, only=_TRAINED,
        shown=PRESET,
    )  # fmt: skip
    batch_size: int = setting(
        Recipe.batch_size,
        "Queries in a step.",
        group=TRAINING,
        only=_TRAINED,
        shown="100; by the number of rows for your own table",
    )
    template_size: int = setting(
        Recipe.template_size,
        "Templates in a step.",
        group=TRAINING,
        only=_TRAINED | _RELAXED,
        shown="100; by the number of rows for your own table",
    )
    templates_per_class: int = setting(
        Recipe.templates_per_class,
        "Templates of every class in a step, at least.",
        group=TRAINING,
        low=0,
        only=_TRAINED | _RELAXED,
        shown=PRESET,
    )
    optimizer: Literal["sgd", "adamw"] = setting(
        Recipe.optimizer, "The optimizer.", group=TRAINING, only=_TRAINED, shown=PRESET
    )
    lr: float = setting(Recipe.lr, "Learning rate.", group=TRAINING, only=_TRAINED, shown=PRESET)
    momentum: float = setting(Recipe.momentum, "Momentum of sgd.", group=TRAINING, only=_TRAINED)
    weight_decay: float = setting(
        Recipe.weight_decay,
        "Weight decay of either optimizer.",
        group=TRAINING,
        only=_TRAINED,
        shown=PRESET,
    )
    schedule: Literal["constant", "cosine", "linear"] = setting(
        Recipe.schedule, "How the learning rate goes to zero.", group=TRAINING, only=_TRAINED,
        shown=PRESET,
    )  # fmt: skip
    warmup: float = setting(
        Recipe.warmup,
        "Share of the steps in which the learning rate rises.",
        group=TRAINING,
        only=_TRAINED,
        shown=PRESET,
    )

    data: str = setting(
        "digits",
        f"{', '.join(DATA)}; or your own: a table (.csv, .csv.gz, .parquet, .npz), or a folder "
        "with a folder of images for each class.",
    )
    target: str | None = setting(None, "The table's column of classes.", only=_FILE)
    ignore: tuple[str, ...] | None = setting(
        None,
        "Columns of the table to leave out, with commas between them.",
        group=DIVISION,
        only=_FILE,
    )
    test_share: float | None = setting(
        None,
        "Share of your own data to test on, the same of every class.",
        group=DIVISION,
        above=0,
        below=1,
        only=_OWN,
        shown="0.25, unless there are folders train and test",
    )
    preset: str = setting(
        "paper",
        "Where the other settings start from: the paper's, or those that were tuned for the data.",
        choices=("paper", "tuned"),
        shown="paper for mnist and cifar10, which the paper has; tuned for the others",
    )
    # The paper's networks by default. An epoch of ResNet-18 takes most of an hour on a core: the
    # smaller residual networks bring CIFAR-10 within reach of a CPU.
    network: str = setting(
        "auto",
        "The feature network for images. auto is the paper's: resnet18 for cifar10, convnet for "
        "the others; for your own images it is one for their size.",
        choices=tuple(NETWORKS),
        group=IMAGES,
        only=_TRAINED | _SEEN,
    )
    subset: int | None = setting(
        None, "Use only this many samples, for a quick run.", group=DIVISION, low=1
    )
    holdout: int | None = setting(
        None,
        "Test on this many samples of the training set, to tune without the test set.",
        group=DIVISION,
        low=1,
    )
    k: int = setting(9, "Number of neighbours.", low=1, only=_VOTED)
    eps: float | None = setting(
        None,
        "Temperature of the relaxation.",
        group=NEIGHBOURS,
        above=0,
        only=_RELAXED,
        shown="each method's own",
    )
    normalize: Literal["row", "batch"] | None = setting(
        None,
        "How SOFT top-k scales its cost.",
        group=NEIGHBOURS,
        only={"relaxation": ("soft-topk",)},
        shown=PRESET,
    )
    objective: Literal["vote", "nll"] = setting(
        "vote",
        "The share of the right class among the votes, as in the paper, or its logarithm.",
        group=NEIGHBOURS,
        only=_RELAXED,
        shown=PRESET,
    )
    metric: Literal["euclidean", "squared", "cosine"] = setting(
        "euclidean", "Distance of two features.", group=NEIGHBOURS, only=_VOTED
    )
    leave_one_out: bool = setting(
        False,
        "Let the queries and templates of a step be each other's templates.",
        group=NEIGHBOURS,
        only=_RELAXED,
        shown=PRESET,
    )
    shift: int = setting(
        0,
        "Shift the images at random by at most this many pixels.",
        group=IMAGES,
        low=0,
        only=_TRAINED | _SEEN,
        shown=PRESET,
    )
    flip: bool = setting(
        False, "Reflect half of the images.", group=IMAGES, only=_TRAINED | _SEEN, shown=PRESET
    )
    device: str = setting("cpu", "cpu, cuda, mps, ...", group=MACHINE)
    threads: int = setting(1, "CPU threads.", group=MACHINE, low=1, shown="torch's")

    def __post_init__(self) -> None:
        Declared.__post_init__(self)
        try:
            Recipe.__post_init__(self)
        except ValueError as error:
            name, _, rest = str(error).partition(" ")
            raise UsageError(f"--{name.replace('_', '-')} {rest}") from error
        if self.k > self.template_size:
            raise UsageError(
                f"--k {self.k}: give at most the {self.template_size} templates of a step, or "
                "raise --template-size"
            )


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
# For the user's own tables, as `SoftKNNClassifier` is for. The sizes depend on the number of rows.
_TABLE: dict[str, Any] = {
    **_TUNED,
    "optimizer": "adamw",
    "lr": 3e-3,
    "weight_decay": 5e-4,
    "warmup": 0.05,
    "shift": 0,
}
# Whether a shifted image is still of its class, only the user knows.
_IMAGES: dict[str, Any] = {**_TUNED, **_DIGITS, "shift": 0}
_SPLIT = {"test_share": 0.25}  # as scikit-learn has it
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {"paper": {**_PAPER, "epochs": 30}, "tuned": {**_TUNED, **_DIGITS}},
    "mnist": {"paper": _PAPER, "tuned": _TUNED},
    "fashion-mnist": {"paper": _PAPER, "tuned": {**_TUNED, "flip": True, "epochs": 6}},
    "cifar10": {"paper": _PAPER, "tuned": {**_TUNED, "flip": True, "epochs": 30}},
    FILE: {"paper": {**_PAPER, **_SPLIT}, "tuned": {**_TABLE, **_SPLIT}},
    FOLDER: {"paper": {**_PAPER, **_SPLIT}, "tuned": {**_IMAGES, **_SPLIT}},
}
"""By what `kind_of` says of the data."""
PUBLISHED = ("mnist", "cifar10")
"""For these the paper's own settings are the default."""

# Temperatures by relaxation. The paper has none for the methods that it copies figures of.
_EPS = {
    "neural-sort": 4.0,
    "relaxed-subset": 1.0,
    "successive-softmax": 0.5,
    "sinkhorn-sort": 0.01,
}
# SOFT top-k: the paper's, which refer to a normalised cost, and ours for the cost as it is.
_NORMALIZED_EPS = {"cifar10": 1e-5}  # elsewhere 1e-3
_PLAIN_EPS = 0.5


def temperature(settings: Settings, relaxation: str) -> float | None:
    """What is given, or else that of the relaxation; None lets the first step decide."""
    if settings.eps is not None:
        return settings.eps
    if relaxation != "soft-topk":
        return _EPS[relaxation]
    if settings.normalize is not None:
        return _NORMALIZED_EPS.get(settings.data, 1e-3)
    return _PLAIN_EPS if settings.data in DATA else None


def make_settings(given: Mapping[str, Any]) -> Settings:
    """The settings of a preset, with what was ``given`` in their place."""
    data = given.get("data", Settings.data)
    preset = given.get("preset", "paper" if data in PUBLISHED else "tuned")
    return Settings(**{"data": data, "preset": preset, **preset_of(data, preset), **given})


def kind_of(data: str) -> str:
    """The name of a data set, or `FILE` or `FOLDER`; the names of folders end with a slash."""
    return data if data in DATA else FOLDER if data.endswith("/") else FILE


def preset_of(data: str, preset: str) -> dict[str, Any]:
    return PRESETS[kind_of(data)][preset]


def sized(given: Mapping[str, Any], data: Data) -> dict[str, Any]:
    """What was ``given``, and the sizes of a training for the user's own table."""
    if kind_of(data.name) != FILE or given.get("preset", "tuned") != "tuned":
        return dict(given)
    rows = len(data.train) * (1 - given.get("test_share", _SPLIT["test_share"]))
    sizes = sizes_for(max(2, int(rows)), len(data.classes), given.get("k", Settings.k))
    return {**sizes, **given}


def method_for(name: str, data: str) -> Method:
    """A method as it is called for these data: the network for tables has no convolutions."""
    method, is_table = METHODS[name], kind_of(data) == FILE
    return replace(method, label=method.label.replace("CNN", "MLP")) if is_table else method


def relevant_settings(method: Method, data: str) -> tuple[str, ...]:
    """The settings that a method's result or its training time depends on."""
    return relevant(
        Settings,
        {
            "head": method.head,
            "relaxation": method.relaxation,
            "is_trained": method.is_trained,
            "data": kind_of(data),
        },
    )


def given_settings(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a row of the table, with a temperature only if it had to be given."""
    out = dict(settings)
    if method.relaxation:
        plain = Settings(**{**asdict(Settings()), **settings, "eps": None})
        if temperature(plain, method.relaxation) == settings["eps"]:
            out["eps"] = None
    return out
