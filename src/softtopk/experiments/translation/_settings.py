"""What a run of the translation experiment is asked to do, with the reason beside each default."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from softtopk._training import SCHEDULES
from softtopk.seq2seq._checks import MOST_LENGTH_PENALTY
from softtopk.seq2seq._losses import RHO

from ..errors import UsageError
from ..settings import MACHINE, Declared, Effect, in_groups, relevant, setting
from ._pieces import NORMALIZATIONS
from ._risk import RISKS
from ._training import OBJECTIVES, OPTIMIZERS, Recipe

BUILTIN = "cldr"
PRETRAIN = "pretrain"
STAGES = (PRETRAIN, *OBJECTIVES)
"""The parts of a run, in order: the pre-training, and what goes on from it."""

# Defaults that each search objective has for itself. Those of soft-beam are the paper's. eps is in
# units of log-likelihood: 0.1 makes nearly hard selections of candidates whose log-likelihoods
# differ by a few units; membership needs a gradient for gold tokens that are well off the beam, and
# has it at 1.
OWN: dict[str, dict[str, float]] = {
    "soft-beam": {"rho": RHO["soft-beam"], "eps": 0.1},
    "membership": {"rho": RHO["membership"], "eps": 1.0},
    "risk": {"rho": RHO["risk"]},
}

# The groups of settings.
TEXT, MODEL, ATTENTION = "Text", "Model", "Attention"
FIRST, TRAINING, SEARCH, VALIDATION = "Pre-training", "Training", "Search", "Validation"
# What a setting has an effect with.
_RECURRENT: Effect = {"model": ("recurrent",)}
_TRANSFORMER: Effect = {"model": ("transformer",)}
_TOPK: Effect = {"attention": ("soft-topk",)}
_MOVING: Effect = {"schedule": tuple(name for name in SCHEDULES if name != "constant")}
_AFTERWARDS: Effect = {"objective": OBJECTIVES}
_SEARCHING: Effect = {"objective": tuple(OWN)}
_IN_NATS: Effect = {"objective": ("soft-beam", "membership")}
_SOFT_BEAM: Effect = {"objective": ("soft-beam",)}
_RISK: Effect = {"objective": ("risk",)}


def _own(name: str) -> str:
    """The defaults of a setting by objective, for its help."""
    found = {objective: own[name] for objective, own in OWN.items() if name in own}
    return ", ".join(f"{value:g} for {objective}" for objective, value in found.items())


@dataclass(frozen=True, kw_only=True)
class Settings(Declared):
    """The settings that all stages of a run share, with the reason for a default above it."""

    data: str = setting(
        BUILTIN,
        "Folder with train.en, train.fr, valid.* and test.*, gzipped or not, or one that prepare "
        "made; or cldr: dates, amounts and names in English and French, which needs no file.",
    )
    source: str = setting("en", "Suffix of the files to translate from.")
    target: str = setting("fr", "Suffix of the files to translate into.")

    max_words: int | None = setting(
        None, "Use sentences of at most this many words on the source side.", group=TEXT, low=1
    )
    subset: int | None = setting(
        None, "Use only this many training pairs, the first ones.", group=TEXT, low=1
    )
    # Not tuned. The time that the output layer takes grows with it.
    vocab: int = setting(4000, "Pieces of each language, at most.", group=TEXT, low=8)
    # Sentencepiece's own default, nmt_nfkc, makes three dots of an ellipsis, which can then never
    # match the reference.
    normalization: str = setting(
        NORMALIZATIONS[0],
        "How sentencepiece normalises characters before it splits words.",
        group=TEXT,
        choices=NORMALIZATIONS,
    )

    # The paper's is the model of Bahdanau et al. (2014).
    model: str = setting(
        "recurrent",
        "The recurrent model is the paper's.",
        group=MODEL,
        choices=("recurrent", "transformer"),
    )
    # Three gates where lstm has four, so three quarters of the weights of its recurrent layers.
    cell: str = setting(
        "gru", "Cell of the recurrent model.", group=MODEL, choices=("gru", "lstm"), only=_RECURRENT
    )
    # With these sizes an epoch of 40,000 short pairs takes minutes on one core.
    hidden: int = setting(256, "Size of the states, or width of a transformer.", group=MODEL, low=1)
    embedding: int = setting(
        256,
        "Size of the recurrent model's embeddings. A transformer's have the size --hidden.",
        group=MODEL,
        low=1,
        only=_RECURRENT,
    )
    # With these a transformer has about as many weights as the recurrent model.
    layers: int = setting(
        2,
        "Layers of a transformer's encoder, and of its decoder.",
        group=MODEL,
        low=1,
        only=_TRANSFORMER,
    )
    heads: int = setting(
        4, "Heads of a transformer's attentions.", group=MODEL, low=1, only=_TRANSFORMER
    )
    feedforward: int = setting(
        512, "Size of a transformer's hidden layers.", group=MODEL, low=1, only=_TRANSFORMER
    )
    tied: bool = setting(False, "Use the target embeddings in the output layer too.", group=MODEL)
    attention: str = setting(
        "softmax",
        "Attention to the source: of all tokens, or of about k of them, the paper's.",
        group=ATTENTION,
        choices=("softmax", "soft-topk"),
    )
    attention_k: int = setting(
        5, "Tokens that soft-topk attends to.", group=ATTENTION, low=1, only=_TOPK
    )
    attention_eps: float = setting(
        1.0,
        "Temperature of soft-topk, in units of the scores.",
        group=ATTENTION,
        above=0,
        only=_TOPK,
    )
    attention_in: str = setting(
        "cross",
        "Where a transformer has soft-topk: to the source alone, or in its self-attentions too.",
        group=ATTENTION,
        choices=("cross", "all"),
        only=_TRANSFORMER | _TOPK,
    )

    pretrain_epochs: int = setting(
        16, "Epochs of teacher forcing before all objectives.", group=FIRST, low=1
    )
    # Adam's usual one.
    pretrain_lr: float = setting(1e-3, "Learning rate.", group=FIRST, above=0)
    pretrain_final_lr: float = setting(
        1e-4, "Learning rate at the end.", group=FIRST, low=0, only=_MOVING
    )
    # A transformer wants some hundreds.
    pretrain_warmup: int = setting(
        0, "Updates in which the learning rate rises at the beginning.", group=FIRST, low=0
    )

    updates: int = setting(
        1000,
        "Updates of each objective, from the pre-trained weights. 0: pre-train only.",
        group=TRAINING,
        low=0,
        only=_AFTERWARDS,
    )
    # Close to where the pre-training ended: a higher one undoes some of it first.
    lr: float = setting(2e-4, "Learning rate.", group=TRAINING, above=0, only=_AFTERWARDS)
    final_lr: float = setting(
        2e-5, "Learning rate at the end.", group=TRAINING, low=0, only=_AFTERWARDS | _MOVING
    )
    schedule: str = setting(
        "linear",
        "How the learning rate goes to its end; of the pre-training too.",
        group=TRAINING,
        choices=tuple(SCHEDULES),
    )
    # The paper pre-trains with sgd from 1, which takes many more epochs.
    optimizer: str = setting(
        "adam", "The optimizer, of the pre-training too.", group=TRAINING, choices=OPTIMIZERS
    )
    batch_size: int = setting(64, "Pairs in an update.", group=TRAINING, low=1)
    # The longest pair of a batch decides its memory. A run says how many pairs are left out.
    max_length: int = setting(
        60, "Train on pairs of at most this many pieces.", group=TRAINING, low=1
    )
    dropout: float = setting(
        0.2,
        "Share of the activations that are dropped in training.",
        group=TRAINING,
        low=0,
        below=1,
    )
    # As for recurrent networks everywhere.
    clip: float = setting(1.0, "Largest norm of the gradient. 0: no bound.", group=TRAINING, low=0)
    label_smoothing: float = setting(
        0.0, "Label smoothing of teacher forcing.", group=TRAINING, low=0, below=1, shown="0"
    )
    # Off, as in the paper.
    scheduled_sampling: float = setting(
        0.0,
        "Probability that teacher forcing feeds the decoder its own token.",
        group=TRAINING,
        low=0,
        high=1,
        shown="0",
    )

    rho: float | None = setting(
        None,
        "Weight of teacher forcing; the search objective has the rest.",
        group=SEARCH,
        low=0,
        below=1,
        shown=_own("rho"),
        only=_SEARCHING,
    )
    # The paper's.
    beam: int = setting(5, "Beam size in training.", group=SEARCH, low=1, only=_IN_NATS)
    eps: float | None = setting(
        None,
        "Temperature, in nats.",
        group=SEARCH,
        above=0,
        shown=_own("eps"),
        only=_IN_NATS,
    )
    # The paper's is the best hypothesis.
    follow: str = setting(
        "best",
        "What soft-beam scores the reference along: the best hypothesis, as the paper, or the "
        "reference itself.",
        group=SEARCH,
        choices=("best", "gold"),
        only=_SOFT_BEAM,
    )
    normalize: str | None = setting(
        None,
        "How soft-beam scales its cost.",
        group=SEARCH,
        choices=("row", "batch"),
        only=_SOFT_BEAM,
    )
    # None, as in the paper.
    selection_clip: float | None = setting(
        None,
        "Bound of the gradient through the selections of soft-beam, in units of that of one token. "
        "0 stops it.",
        group=SEARCH,
        low=0,
        shown="no bound",
        only=_SOFT_BEAM,
    )
    solver: str = setting(
        "exact",
        "Solver of soft-beam; sinkhorn has 200 iterations.",
        group=SEARCH,
        choices=("exact", "sinkhorn"),
        only=_SOFT_BEAM,
    )
    # The candidates that crowd gold out are among the first: for a trained model the loss with 32
    # was 2 % below that with all, at eps = 1.
    candidates: int = setting(
        32,
        "Candidates of membership, for each sentence and step.",
        group=SEARCH,
        low=1,
        only={"objective": ("membership",)},
    )
    risk: str = setting(
        "bleu+chrf",
        "The score of a sentence that risk raises: its risk is 1 less this.",
        group=SEARCH,
        choices=RISKS,
        only=_RISK,
    )
    risk_candidates: int = setting(
        8, "Hypotheses that the search of risk returns.", group=SEARCH, low=2, only=_RISK
    )
    risk_selection: str = setting(
        "soft-topk",
        "What weighs these: SOFT top-k, or the softmax of minimum risk training.",
        group=SEARCH,
        choices=("soft-topk", "softmax"),
        only=_RISK,
    )
    # What the search returns. With more the runners-up have to be good as well. That gained nothing
    # in one trial, docs/notebook.md, and did harm in benchmarks/risk_selection.py.
    risk_k: int = setting(
        1,
        "How many of them SOFT top-k selects.",
        group=SEARCH,
        low=1,
        only=_RISK | {"risk_selection": ("soft-topk",)},
    )
    # The trials behind this and the other defaults of risk are in docs/notebook.md: one seed, by
    # validation. Half of them undecided gained nothing over teacher forcing, all of them 1.3 BLEU.
    risk_width: float | None = setting(
        None,
        "How many of them are undecided, neither in nor out: the temperature.",
        group=SEARCH,
        above=0,
        shown="all",
        only=_RISK,
    )
    risk_reference: bool = setting(
        False, "Have the reference among them.", group=SEARCH, only=_RISK
    )

    eval_every: int = setting(
        250,
        "Updates from one validation to the next. The pre-training has one each epoch.",
        group=VALIDATION,
        low=1,
        only=_AFTERWARDS,
    )
    eval_sentences: int | None = setting(
        None,
        "Validate on this many sentences while training.",
        group=VALIDATION,
        low=1,
        shown="all",
    )
    eval_beams: tuple[int, ...] = setting(
        (1, 5), "Beam sizes to report. Validations have the largest.", group=VALIDATION, low=1
    )
    # With 0, wide beams prefer short sentences.
    length_penalty: float = setting(
        1.0,
        "Divide log-likelihoods by the length to this power.",
        group=VALIDATION,
        low=0,
        high=MOST_LENGTH_PENALTY,
    )
    patience: int = setting(
        5,
        "Stop after this many validations without a better BLEU. 0: never.",
        group=VALIDATION,
        low=0,
    )
    test: bool = setting(
        True,
        "Translate the test set at the end. --no-test leaves it alone while tuning; --resume "
        "--test makes up for it.",
        group=VALIDATION,
        only={"objective": ()},
    )
    device: str = setting("cpu", "cpu, cuda, mps, ...", group=MACHINE)
    threads: int = setting(1, "CPU threads.", group=MACHINE, low=1, shown="torch's")
    # torch's own. On a CPU medium is another library, faster on AMD's. In one trial there errors
    # were those of float32; where the CPU has instructions for it, it may round to bfloat16.
    matmul_precision: str = setting(
        "highest",
        "Of products of float32 matrices, as in torch.set_float32_matmul_precision. Less may be "
        "faster.",
        group=MACHINE,
        choices=("highest", "high", "medium"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == "transformer" and self.hidden % self.heads:
            raise UsageError(
                f"--hidden {self.hidden}: give a multiple of --heads, which is {self.heads}"
            )
        if self.source == self.target:
            raise UsageError(f"--target {self.target!r}: give another language than --source")


def check_search(settings: Settings, objectives: Collection[str]) -> None:
    """Refuse settings of these objectives that do not go together."""
    if "membership" in objectives and settings.candidates <= settings.beam:
        raise UsageError(
            f"--candidates {settings.candidates}: give more than --beam, which is {settings.beam}"
        )
    if "risk" not in objectives:
        return
    most = {"risk_width": settings.risk_candidates}  # without the reference
    if settings.risk_selection == "soft-topk":  # where all are selected, nothing is learned
        most["risk_k"] = settings.risk_candidates - 1 + settings.risk_reference
    for name, limit in most.items():
        if (getattr(settings, name) or 0) > limit:
            raise UsageError(
                f"--{name.replace('_', '-')} {getattr(settings, name):g}: give at most {limit}, "
                f"with --risk-candidates {settings.risk_candidates}"
            )


CORPUS = ("data", "source", "target", *in_groups(Settings, TEXT))
"""The settings that determine the text and the pieces."""


def search_options(objective: str, settings: Settings) -> dict[str, Any]:
    """The settings of a search objective, with its own defaults.

    >>> search_options("membership", Settings())
    {'rho': 0.3, 'beam': 5, 'eps': 1.0, 'candidates': 32}
    """
    names = relevant(Settings, {**asdict(settings), "objective": objective}, SEARCH)
    options = {name: getattr(settings, name) for name in names}
    return options | {
        name: value for name, value in OWN.get(objective, {}).items() if options[name] is None
    }


def make_recipe(stage: str, settings: Settings, batches: int) -> Recipe:
    """How to train in a stage whose epochs have this number of ``batches``."""
    first = stage == PRETRAIN
    search = search_options(stage, settings)
    rho = search.pop("rho", 1.0)
    if stage == "risk":
        search = {
            "beam_size": settings.risk_candidates,
            "k": search.get("risk_k"),
            "width": settings.risk_width,
            "include_gold": settings.risk_reference,
            "length_penalty": settings.length_penalty,
        }
    elif search:
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
        rho=rho,
        search=search,
        period=batches if first else settings.eval_every,
        patience=settings.patience,
    )
