"""What a call of the training command is to do, and what contradicts itself in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .._files import sha256
from ..errors import UsageError
from ..runs import check_digest, parse_seeds
from ._data import load_corpus, settings_of_pieces
from ._lookup import (
    COMMAND,
    DATA,
    INIT,
    data_beside,
    digest_of,
    load_model,
    read_config,
    require_modules,
    weights_file,
)
from ._model import habits_of, shape_of
from ._pieces import pieces_from
from ._record import is_prepared, read_record
from ._settings import (
    BUILTIN,
    PRETRAIN,
    SELECTION,
    STAGES,
    Settings,
    flag,
    foreign_to,
    parse_objectives,
    settings_in,
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
            "command": COMMAND,
            "objectives": list(self.objectives),
            "seeds": list(self.seeds),
            "init": self.init_digest,
            "pieces": self.pieces_digests,
            **asdict(self.settings),
        }


def make_plan(
    out: Path,
    *,
    resume: bool,
    objectives: str | None,
    seeds: str | None,
    init: Path | None,
    pieces: Path | None,
    given: Mapping[str, Any],
) -> Plan:
    """What was asked for, and with ``resume`` the rest as the run in ``out`` has it."""
    require_modules("rich", "sentencepiece", "sacrebleu", "safetensors")
    chosen = parse_objectives(objectives) if objectives else ()
    numbers = parse_seeds(seeds) if seeds else ()
    given = whole_paths(given)
    if resume and (out / "config.json").exists():
        plan = _resumed(out, chosen, numbers, init, pieces, given)
    elif resume and not (given or chosen or numbers or init or pieces):
        raise UsageError(
            f"--resume: there is no run in {out}; give its folder, or what a new one is to do"
        )
    else:
        plan = _new(chosen, numbers, init, pieces, given)
    _check_use(plan.settings, given)
    return plan


def _check_use(settings: Settings, given: Mapping[str, Any]) -> None:
    """Refuse options that would do nothing."""
    reasons = dict.fromkeys(foreign_to(settings.model), f"a {settings.model} model has none")
    if "embedding" in reasons:
        reasons["embedding"] = f"the embeddings of a {settings.model} are of the size --hidden"
    if settings.attention == "softmax":
        reasons |= dict.fromkeys(SELECTION, "it is for --attention soft-topk")
    if settings.schedule == "constant":
        end = "with --schedule constant the learning rate has no other end"
        reasons |= {"final_lr": end, "pretrain_final_lr": end}
    for name, reason in reasons.items():
        if name in given:
            raise UsageError(f"{flag(name)} {given[name]}: {reason}; leave it out")


def whole_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """With the data folder as it can be found from anywhere."""
    out = dict(given)
    if out.get("data", BUILTIN) != BUILTIN:
        out["data"] = str(Path(out["data"]).resolve())
    return out


def _resumed(
    out: Path,
    objectives: tuple[str, ...],
    seeds: tuple[int, ...],
    init: Path | None,
    pieces: Path | None,
    given: dict[str, Any],
) -> Plan:
    before = read_config(out)
    if not is_prepared(out / DATA):
        raise UsageError(
            f"--resume: the data of the run in {out} are not there: delete the folder, and start "
            "without --resume"
        )
    if pieces is not None:
        raise UsageError(f"--pieces {pieces}: leave it out with --resume, the run has its pieces")
    settings = Settings(**{**settings_in(before), **given, "data": before["data"]})
    _check_data(out, settings, given.get("data", before["data"]))
    if before["init"]:
        remedy = (
            f"put the file with the SHA-256 {before['init']} there, or start again in a new folder"
        )
        if not (out / INIT).is_file():
            raise UsageError(f"{out / INIT} is missing: {remedy}")
        check_digest(out / INIT, digest_of(out / INIT), before["init"], remedy)
    weights = weights_file(init) if init else out / INIT if before["init"] else None
    return Plan(
        settings=settings,
        objectives=tuple(x for x in STAGES if x in {*objectives, *before["objectives"]}),
        seeds=tuple(sorted({*seeds, *before["seeds"]})),
        init=weights,
        init_digest=digest_of(weights) if weights else None,
        pieces=None,
        pieces_digests=before.get("pieces"),
    )


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


def _new(
    objectives: tuple[str, ...],
    seeds: tuple[int, ...],
    init: Path | None,
    pieces: Path | None,
    given: dict[str, Any],
) -> Plan:
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
        objectives=objectives or ("soft-beam",),
        seeds=seeds or (0,),
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
