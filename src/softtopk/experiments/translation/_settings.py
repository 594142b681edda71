"""What a run of the translation experiment is asked to do, with the reason beside each default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import UsageError
from ._pieces import NORMALIZATIONS
from ._training import OBJECTIVES, OPTIMIZERS, SCHEDULES, Recipe

BUILTIN = "cldr"
PRETRAIN = "pretrain"
STAGES = (PRETRAIN, *OBJECTIVES)
"""The parts of a run, in order: the pre-training, and what goes on from it."""

# Units of log-likelihood. The paper's 0.1 makes nearly hard selections of candidates whose
# log-likelihoods differ by a few units; the membership loss needs a gradient for gold tokens that
# are well off the beam, and has it at 1.
EPS = {"soft-beam": 0.1, "membership": 1.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that all stages of a run share."""

    data: str = BUILTIN
    """The built-in corpus, or a folder with a parallel one."""
    source: str = "en"
    target: str = "fr"
    max_words: int | None = None
    """Use sentences of up to so many words only, on the source side, in all splits."""
    subset: int | None = None
    """Train on the first so many pairs only."""
    max_length: int = 60
    """Train on pairs of up to so many tokens: the longest pair of a batch decides its memory. A run
    says how many pairs are left out."""
    vocab: int = 4000
    """Pieces per language, at most. Not tuned; the output layer takes the more time, the more."""
    normalization: str = NORMALIZATIONS[0]
    """Sentencepiece's rule for characters. Its default, nmt_nfkc, makes three dots of an ellipsis,
    which can then never match the reference."""

    model: str = "recurrent"
    """Of Bahdanau et al. (2014), or a transformer."""
    cell: str = "gru"
    """Three gates where lstm has four, so three quarters of the weights of its recurrent layers."""
    hidden: int = 256
    embedding: int = 256
    """Sizes at which an epoch of 40,000 short pairs takes minutes on one core. The embeddings of a
    transformer are of the size hidden."""
    layers: int = 2
    heads: int = 4
    feedforward: int = 512
    """Of a transformer: with them it has about as many weights as the recurrent model."""
    dropout: float = 0.2
    tied: bool = False
    attention: str = "softmax"
    """Of the decoder to the source: softmax, or soft-topk, the paper's."""
    attention_k: int = 5
    attention_eps: float = 1.0
    """Number of tokens to attend to, and temperature, of soft-topk."""
    attention_in: str = "cross"
    """Where a transformer has soft-topk: to the source, or in all of its attentions."""

    pretrain_epochs: int = 16
    pretrain_lr: float = 1e-3  # Adam's usual one
    pretrain_final_lr: float = 1e-4
    pretrain_warmup: int = 0
    """Updates over which the learning rate rises. A transformer wants some hundreds."""
    updates: int = 1000
    """Of every objective, from the pre-trained weights; 0 for the pre-training alone."""
    lr: float = 2e-4
    """Close to where the pre-training ended: a higher one undoes some of it first."""
    final_lr: float = 2e-5
    batch_size: int = 64
    optimizer: str = "adam"
    """The paper pre-trains with sgd from 1, which takes many more epochs."""
    schedule: str = "linear"
    clip: float = 1.0
    """Largest norm of the gradient, as for recurrent networks everywhere; 0 for any."""
    label_smoothing: float = 0.0
    scheduled_sampling: float = 0.0
    """Probability of feeding the decoder its own token in teacher forcing. Off, as in the paper."""

    rho: float = 0.8  # the paper's
    """Weight of teacher forcing; the search objective has the rest."""
    beam: int = 5  # the paper's
    eps: float | None = None
    """Temperature of the search objective; None for its own."""
    normalize: str | None = None
    """How soft-beam scales its cost: row, batch or not at all."""
    solver: str = "exact"
    follow: str = "best"
    """Which hypothesis soft-beam scores the reference along. The paper's is the best one."""
    selection_clip: float | None = None
    """Bounds the gradient through the selections of soft-beam; None for none, as in the paper."""
    candidates: int = 32
    """Of a sentence and step, for membership. Those that crowd gold out are among the first:
    for a trained model the loss with 32 was 2 % below that with all, at eps = 1."""

    eval_every: int = 250
    """Updates between two validations; the pre-training has one at the end of every epoch."""
    eval_sentences: int | None = None
    """Validate on so many sentences, evenly spaced, while training."""
    eval_beams: tuple[int, ...] = (1, 5)
    """Beam sizes to report. The largest is that of the validations."""
    length_penalty: float = 1.0
    """Divide log-likelihoods by length to this power. With 0, wide beams prefer short sentences."""
    patience: int = 5
    """Stop after so many validations without a better BLEU; 0 for never."""
    test: bool = True
    """Translate the test set at the end. Not while tuning."""
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "eval_beams", tuple(self.eval_beams))  # a list in JSON
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise UsageError(f"{flag(name)} {value:g}: give at least {least:g}")
        for name in ("lr", "pretrain_lr", "eps", "attention_eps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"{flag(name)} {value:g}: give a positive number")
        for name in ("dropout", "label_smoothing", "rho"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(
                    f"{flag(name)} {getattr(self, name):g}: give a number from 0 to below 1"
                )
        if not 0 <= self.scheduled_sampling <= 1:
            raise UsageError(
                f"--scheduled-sampling {self.scheduled_sampling:g}: give a number from 0 to 1"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                wanted = ", ".join(choice or "none" for choice in choices)
                raise UsageError(f"{flag(name)} {getattr(self, name)!r}: give one of {wanted}")
        if self.candidates <= self.beam:
            raise UsageError(
                f"--candidates {self.candidates}: give more than --beam, which is {self.beam}"
            )
        if self.model == "transformer" and self.hidden % self.heads:
            raise UsageError(
                f"--hidden {self.hidden}: give a multiple of --heads, which is {self.heads}"
            )
        if self.source == self.target:
            raise UsageError(f"--target {self.target!r}: give another language than --source")
        if not self.eval_beams or min(self.eval_beams) < 1:
            raise UsageError(f"--eval-beams {self.eval_beams}: give beam sizes of 1 or above")


_LEAST: dict[str, float] = {
    "max_words": 1, "subset": 1, "max_length": 1, "vocab": 8, "hidden": 1, "embedding": 1,
    "pretrain_epochs": 1, "pretrain_final_lr": 0, "updates": 0, "final_lr": 0, "batch_size": 1,
    "clip": 0, "selection_clip": 0, "beam": 1, "candidates": 1, "eval_every": 1,
    "eval_sentences": 1, "length_penalty": 0, "patience": 0, "threads": 1, "attention_k": 1,
    "layers": 1, "heads": 1, "feedforward": 1, "pretrain_warmup": 0,
}  # fmt: skip
_CHOICES: dict[str, tuple[str | None, ...]] = {
    "model": ("recurrent", "transformer"),
    "cell": ("gru", "lstm"),
    "attention": ("softmax", "soft-topk"),
    "attention_in": ("cross", "all"),
    "optimizer": OPTIMIZERS,
    "schedule": tuple(SCHEDULES),
    "normalize": ("row", "batch", None),
    "solver": ("exact", "sinkhorn"),
    "follow": ("best", "until-departure", "gold"),
    "normalization": NORMALIZATIONS,
}
CORPUS = ("data", "source", "target", "max_words", "subset", "vocab", "normalization")
"""The settings that determine the text and the pieces."""
SHAPES = {
    "recurrent": {name: name for name in ("cell", "hidden", "embedding", "tied")},
    "transformer": {
        "hidden": "width",
        **{name: name for name in ("layers", "heads", "feedforward", "tied")},
    },
}
"""By model, the settings that its weights depend on, as they and its configuration call them."""
SELECTION = ("attention_k", "attention_eps", "attention_in")
"""The settings of soft-topk."""
HABITS = ("dropout", "attention", *SELECTION)
"""The settings that a model's file has, and that may change when it is trained further."""
MODEL = (
    "model",
    *dict.fromkeys(name for shape in SHAPES.values() for name in shape),
    "attention",
    *SELECTION,
)
"""The settings that determine what the model computes."""
PRETRAIN_ONLY = ("pretrain_epochs", "pretrain_lr", "pretrain_final_lr", "pretrain_warmup")
_SEARCH = {
    "soft-beam": ("beam", "eps", "normalize", "solver", "follow", "selection_clip"),
    "membership": ("beam", "eps", "candidates"),
}


def search_options(objective: str, settings: Settings) -> dict[str, Any]:
    """The options of a search objective that the settings determine.

    >>> search_options("membership", Settings())
    {'beam': 5, 'eps': 1.0, 'candidates': 32}
    """
    options = {name: getattr(settings, name) for name in _SEARCH.get(objective, ())}
    if options and options["eps"] is None:
        options["eps"] = EPS[objective]
    return options


def make_recipe(stage: str, settings: Settings, batches: int) -> Recipe:
    """How to train in a stage, if an epoch has so many ``batches``."""
    first = stage == PRETRAIN
    search = search_options(stage, settings)
    if search:
        search["beam_size"] = search.pop("beam")
    return Recipe(
        objective="teacher-forcing" if first else stage,
        updates=settings.pretrain_epochs * batches if first else settings.updates,
        lr=settings.pretrain_lr if first else settings.lr,
        final_lr=settings.pretrain_final_lr if first else settings.final_lr,
        batch_size=settings.batch_size,
        optimizer=settings.optimizer,
        schedule=settings.schedule,
        warmup=settings.pretrain_warmup if first else 0,
        clip=settings.clip,
        label_smoothing=settings.label_smoothing,
        scheduled_sampling=settings.scheduled_sampling,
        rho=settings.rho,
        search=search,
        period=batches if first else settings.eval_every,
        patience=settings.patience,
    )


def parse_objectives(text: str) -> tuple[str, ...]:
    """``"all"`` or names with commas between them, in the order of the table.

    >>> parse_objectives("soft-beam,teacher-forcing")
    ('teacher-forcing', 'soft-beam')
    """
    names = [name.strip() for name in text.split(",")]
    if names == ["all"]:
        return OBJECTIVES
    for name in names:
        if name not in OBJECTIVES:
            raise UsageError(f"--objective {name!r}: give all, or some of {', '.join(OBJECTIVES)}")
    return tuple(name for name in OBJECTIVES if name in names)


def parse_beams(option: str, text: str) -> tuple[int, ...]:
    """
    >>> parse_beams("--beam", "5,1")
    (1, 5)
    """
    try:
        beams = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        beams = (0,)
    if beams[0] < 1:
        raise UsageError(f"{option} {text!r}: give one or more beam sizes, as in 1,5")
    return beams


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in the record of a run, which may be older than some of them."""
    return {field.name: config.get(field.name, field.default) for field in fields(Settings)}


def foreign_to(model: str) -> tuple[str, ...]:
    """The settings of other models that this one does not have.

    >>> foreign_to("transformer")
    ('cell', 'embedding')
    """
    own = {*SHAPES[model], *(["attention_in"] if model == "transformer" else [])}
    other = {name for shape in SHAPES.values() for name in shape} | {"attention_in"}
    return tuple(sorted(other - own))


def relevant_settings(stage: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that a stage's result or its training time depends on."""
    search = {name for names in _SEARCH.values() for name in names}
    irrelevant = {"test", *search} - set(_SEARCH.get(stage, ()))
    if stage == PRETRAIN:
        irrelevant |= {"updates", "lr", "final_lr", "eval_every"}
    if stage not in _SEARCH:
        irrelevant.add("rho")
    irrelevant.update(foreign_to(settings["model"]))
    if settings["attention"] == "softmax":
        irrelevant.update(SELECTION)
    return tuple(field.name for field in fields(Settings) if field.name not in irrelevant)


def changes_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Which of the settings have to be given."""
    base = asdict(Settings())
    return {name: value for name, value in settings.items() if value != base[name]}


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
