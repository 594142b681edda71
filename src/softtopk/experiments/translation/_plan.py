"""What a call of the training command is to do, and what contradicts itself in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..._files import sha256
from ..errors import UsageError
from ..runs import check_digest
from ..settings import Declared, TrainOptions, parse_given, recorded, refuse_idle, setting
from ._data import load_corpus, settings_of_pieces
from ._lookup import DATA, EXPERIMENT, INIT, data_beside, digest_of, load_model, weights_file
from ._model import habits_of, shape_of
from ._pieces import pieces_from
from ._record import is_prepared, read_record
from ._settings import BUILTIN, PRETRAIN, TEXT, Settings, check_search
from ._training import OBJECTIVES


@dataclass(frozen=True, kw_only=True)
class WithPieces(Declared):
    """What a command is given that splits text."""

    pieces: Path | None = setting(
        None,
        "Folder with pieces.en.model and pieces.fr.model, of sentencepiece, to use in place of new "
        "ones.",
        group=TEXT,
    )


@dataclass(frozen=True, kw_only=True)
class Train(WithPieces, TrainOptions):
    """Pre-train by teacher forcing, go on with each objective, and print the table.

    The folder gets a run for each stage and seed, the data, table.md and table.json. The weights
    that are kept are those with the best validation BLEU. Ctrl-C stops after the step at hand;
    --resume goes on to the same result.

    Example: softtopk translate train --data text --source en --target fr --objective all --out
    run
    """

    objective: tuple[str, ...] = setting(
        (),
        "Names with commas between them. risk, membership and soft-beam are mixed with teacher "
        "forcing. soft-beam is the paper's, which does harm to small models.",
        choices=OBJECTIVES,
        all_of=OBJECTIVES,
        shown="risk",
    )
    init: Path | None = setting(
        None,
        "Begin with these weights in place of the pre-training: a finished run, whose pieces are "
        "then used, or the file of a model, with --pieces.",
    )


@dataclass(frozen=True)
class Plan:
    """All that a call of the training command is to do."""

    settings: Settings
    objectives: tuple[str, ...]
    seeds: tuple[int, ...]
    init: Path | None
    """The weights to begin with, in place of a pre-training."""
    init_digest: str | None
    """Of these weights."""
    pieces: Path | None
    """A folder to take the pieces from, in place of learning them; of a new run."""
    pieces_digests: dict[str, str] | None
    """By language, of pieces that were not learned."""

    @property
    def stages(self) -> tuple[str, ...]:
        first = () if self.init_digest else (PRETRAIN,)
        return (*first, *(self.objectives if self.settings.updates else ()))

    def to_config(self) -> dict[str, Any]:
        return {
            "command": EXPERIMENT.command,
            "objectives": list(self.objectives),
            "seeds": list(self.seeds),
            "init": self.init_digest,
            "pieces": self.pieces_digests,
            **asdict(self.settings),
        }


def make_plan(options: Train, given: Mapping[str, Any]) -> Plan:
    """What was asked for, and with ``--resume`` the rest as the run in ``--out`` has it."""
    given = whole_paths(parse_given(Settings, given))
    asked = given or options.objective or options.seed or options.init or options.pieces
    if options.resume and (options.out / "config.json").exists():
        plan = _resumed(options, given)
    elif options.resume and not asked:
        raise UsageError(
            f"--resume: there is no run in {options.out}; give its folder, or what a new one is to "
            "do"
        )
    else:
        plan = _new(options, given)
    settings = asdict(plan.settings)
    refuse_idle(Settings, given, *({**settings, "objective": one} for one in plan.objectives))
    check_search(plan.settings, plan.objectives)
    return plan


def whole_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """With the data folder as it can be found from anywhere."""
    out = dict(given)
    if out.get("data", BUILTIN) != BUILTIN:
        out["data"] = str(Path(out["data"]).resolve())
    return out


def _resumed(options: Train, given: dict[str, Any]) -> Plan:
    out, pieces = options.out, options.pieces
    before = EXPERIMENT.config(out)
    if not is_prepared(out / DATA):
        raise UsageError(
            f"--resume: the data of the run in {out} are not there: delete the folder, and start "
            "without --resume"
        )
    if pieces is not None:
        raise UsageError(f"--pieces {pieces}: leave it out with --resume, the run has its pieces")
    settings = Settings(**{**recorded(Settings, before), **given, "data": before["data"]})
    _check_data(out, settings, given.get("data", before["data"]))
    if before["init"]:
        remedy = (
            f"put the file with the SHA-256 {before['init']} there, or start again in a new folder"
        )
        if not (out / INIT).is_file():
            raise UsageError(f"{out / INIT} is missing: {remedy}")
        check_digest(out / INIT, digest_of(out / INIT), before["init"], remedy)
    weights = out / INIT if before["init"] else None
    if options.init:
        weights = weights_file(options.init)
    return Plan(
        settings=settings,
        objectives=_in_order([*options.objective, *before["objectives"]]),
        seeds=tuple(sorted({*options.seed, *before["seeds"]})),
        init=weights,
        init_digest=digest_of(weights) if weights else None,
        pieces=None,
        pieces_digests=before["pieces"],
    )


def _in_order(objectives: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in OBJECTIVES if name in objectives)


def _check_data(out: Path, settings: Settings, data: str) -> None:
    """Refuse other data than the run has; the same may have moved, or may be gone."""
    if data == settings.data:
        return
    found = load_corpus(replace(settings, data=data)).fingerprint
    if found != read_record(out / DATA)["fingerprint"]:
        raise UsageError(
            f"--data {data}: the run in {out} has other text, from {settings.data}; leave it out, "
            "or give another --out"
        )


def _new(options: Train, given: dict[str, Any]) -> Plan:
    init, pieces = options.init, options.pieces
    weights = weights_file(init) if init else None
    home = data_beside(weights) if weights else None
    base: dict[str, Any] = {"threads": torch.get_num_threads()}
    if weights:
        base |= _shape_of(weights, given)
    if home:
        base |= _languages_of(home, given)
    settings = Settings(**{**base, **given})
    if weights and not settings.updates:
        raise UsageError("--updates 0: with --init there is no pre-training; give 1 or more")
    if pieces is None:
        # A model knows its own pieces only.
        pieces = home or (Path(settings.data) if is_prepared(settings.data) else None)
    if weights and pieces is None:
        raise UsageError(
            f"--init {init}: the file lies in no run, so that the pieces it was trained with are "
            "not known; give their folder as --pieces, or data that were prepared with them as "
            "--data"
        )
    digests = None
    if pieces is not None:
        settings = _with_pieces(settings, pieces, given)
        languages = settings.source, settings.target
        digests = {code: sha256(pieces_from(pieces, code).model) for code in languages}
        if home and digests != read_record(home)["sha256"]:
            raise UsageError(
                f"--pieces {pieces}: these are not the pieces that the weights of --init were "
                f"trained with, which are in {home}; leave it out"
            )
    return Plan(
        settings=settings,
        objectives=_in_order(options.objective or ["risk"]),
        seeds=options.seed or (0,),
        init=weights,
        init_digest=digest_of(weights) if weights else None,
        pieces=pieces,
        pieces_digests=digests,
    )


def _shape_of(weights: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a model's weights bring with them."""
    model = load_model(weights)
    shape = shape_of(model)
    for name, value in shape.items():
        if given.get(name, value) != value:
            raise UsageError(
                f"--{name} {given[name]}: the weights of --init have {value}; leave it out"
            )
    return {**shape, **habits_of(model)}


def _languages_of(home: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The languages of the run whose weights are to be trained further, and its text."""
    record = read_record(home)
    for name in ("source", "target"):
        if given.get(name, record[name]) != record[name]:
            raise UsageError(
                f"--{name} {given[name]}: the weights of --init translate from "
                f"{record['source']} into {record['target']}; leave it out"
            )
    return {"source": record["source"], "target": record["target"], "data": str(home)}


def _with_pieces(settings: Settings, pieces: Path, given: Mapping[str, Any]) -> Settings:
    """With what these pieces were asked for with, which cannot be asked for again."""
    for name in ("vocab", "normalization"):
        if name in given:
            raise UsageError(f"--{name} {given[name]}: leave it out, {pieces} has the pieces")
    return replace(settings, **settings_of_pieces(pieces))
