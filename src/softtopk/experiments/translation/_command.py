"""The commands `softtopk translate prepare | train | evaluate | translate | compare`.

Without their parsing and printing.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from softtopk._training import DivergedError
from softtopk.seq2seq import Seq2Seq

from .._files import opened
from ..errors import UsageError, require
from ..runs import (
    INTERRUPTED,
    Interrupt,
    Interrupted,
    Report,
    Run,
    Table,
    check_device,
    find_runs,
    locked,
    parse_seeds,
    prepare,
    read_json,
    write_atomic,
    write_tables,
)
from ._batches import Pair
from ._data import is_prepared, load_corpus, make_folder_of, read_folder, settings_of_pieces
from ._decoding import BATCH_SIZE, Translation, Translator, signatures
from ._execute import evaluate_beams, execute
from ._pieces import Prepared, pairs_of
from ._settings import (
    BUILTIN,
    MODEL,
    PRETRAIN,
    STAGES,
    Settings,
    parse_beams,
    parse_objectives,
    settings_in,
)
from ._tables import collect, tables, to_json, to_markdown

COMMAND = "translate train"
DATA, INIT = "data", "init.safetensors"  # of a run, which needs no other files
WHAT = ("objectives", "seeds")
FREE = ("data", "device", "test")  # may change when a run is resumed
ABSENT = settings_in({})


@dataclass(frozen=True)
class Plan:
    """All that a call of the training command is to do."""

    settings: Settings
    objectives: tuple[str, ...]
    seeds: tuple[int, ...]
    init: Path | None
    """The weights to begin with, in place of a pre-training."""
    pieces: Path | None
    """A folder to take the pieces from, in place of learning them."""
    digest: str | None
    """Of the weights to begin with."""

    @property
    def stages(self) -> tuple[str, ...]:
        first = () if self.digest else (PRETRAIN,)
        return (*first, *(self.objectives if self.settings.updates else ()))

    def to_config(self) -> dict[str, Any]:
        return {
            "command": COMMAND,
            "objectives": list(self.objectives),
            "seeds": list(self.seeds),
            "init": self.digest,
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
    _require("rich", "sentencepiece", "sacrebleu", "safetensors")
    chosen = parse_objectives(objectives) if objectives else ()
    numbers = parse_seeds(seeds) if seeds else ()
    given = _whole_paths(given)
    if resume and (out / "config.json").exists():
        before = _config(out)
        if not is_prepared(out / DATA):
            raise UsageError(
                f"--resume: the run in {out} was stopped before its data were there: delete the "
                "folder, and start without --resume"
            )
        weights = _weights_file(init) if init else out / INIT if before["init"] else None
        return Plan(
            settings=Settings(**{**settings_in(before), **given}),
            objectives=tuple(x for x in STAGES if x in {*chosen, *before["objectives"]}),
            seeds=tuple(sorted({*numbers, *before["seeds"]})),
            init=weights,
            pieces=None,
            digest=_digest(weights) if weights else None,
        )
    weights = _weights_file(init) if init else None
    base: dict[str, Any] = {"threads": torch.get_num_threads()}
    if weights:
        base.update(_settings_of_weights(weights, given))
    settings = Settings(**{**base, **given})
    if pieces is None and is_prepared(settings.data):
        pieces = Path(settings.data)
    if pieces is not None:
        for name in ("vocab", "normalization"):
            if name in given:
                raise UsageError(f"--{name} {given[name]}: leave it out, {pieces} has the pieces")
        settings = replace(settings, **settings_of_pieces(pieces))
    if weights and not settings.updates:
        raise UsageError("--updates 0: with --init there is no pre-training; give 1 or more")
    return Plan(
        settings=settings,
        objectives=chosen or ("soft-beam",),
        seeds=numbers or (0,),
        init=weights,
        pieces=pieces,
        digest=_digest(weights) if weights else None,
    )


def prepare_data(out: Path, *, pieces: Path | None, given: Mapping[str, Any]) -> int:
    """Write a folder with the text and the pieces, and print what there is in it."""
    _require("rich", "sentencepiece")
    settings = Settings(**_whole_paths(given))
    corpus = load_corpus(settings)
    there = is_prepared(out)
    prepared = make_folder_of(corpus, out, settings, pieces)
    report = Report()
    report.console.print(_counts(prepared).to_rich())
    report.say(f"{'was prepared already' if there else 'prepared'}: {out}")
    return 0


def train(out: Path, plan: Plan, *, resume: bool) -> int:
    """Run all stages with all seeds, print and write the table, and return the exit code."""
    report = Report()
    settings = plan.settings
    check_device(settings.device)
    exists = (out / "config.json").exists()
    # Before anything is written: what was named may be missing or may not fit.
    corpus = None if exists else load_corpus(settings)
    if resume and not exists:
        report.say(f"there is no run in {out} yet: starting one")
    torch.set_num_threads(settings.threads)
    code = 0
    with locked(out), Interrupt() as interrupt:
        prepare(out, plan.to_config(), resume=resume, free=(*WHAT, *FREE), absent=ABSENT)
        if corpus is not None:
            prepared = make_folder_of(corpus, out / DATA, settings, plan.pieces)
            if plan.init:
                write_atomic(out / INIT, plan.init.read_bytes())
        else:
            prepared = _data_of(out)
        try:
            code = _run_all(out, plan, prepared, report, interrupt)
        except (Interrupted, KeyboardInterrupt):
            again = shlex.join(["softtopk", *COMMAND.split(), "--out", str(out), "--resume"])
            report.say(f"stopped; go on with: {again}")
            return INTERRUPTED
        rows = collect(_units(out))
        for table in tables(rows):
            report.console.print(table.to_rich())
        written = write_tables(out / "table", to_markdown(rows), to_json(rows))
        report.say(f"results: {', '.join(map(str, written))}")
    return code


def evaluate(
    path: Path, *, beams: str, split: str, length_penalty: float | None, out: Path | None
) -> int:
    """Translate a split with all finished models of a run, and print BLEU and chrF."""
    _require("rich", "sentencepiece", "sacrebleu", "safetensors")
    if split not in ("valid", "test"):
        raise UsageError(f"--split {split!r}: give valid or test")
    sizes = parse_beams("--beam", beams)
    report = Report()
    records = []
    for run in _finished(path):
        settings = Settings(**settings_in(run.config))
        penalty = settings.length_penalty if length_penalty is None else length_penalty
        if penalty < 0:
            raise UsageError(f"--length-penalty {penalty:g}: give at least 0")
        prepared, model = _data_of(_root(run)), _model(run.weights)
        part = dict(prepared.corpus.parts)[split]
        scores = evaluate_beams(model, prepared, part, sizes, penalty)
        records += [
            {
                "stage": run.config["stage"],
                "seed": run.config["seed"],
                "split": split,
                "sentences": len(part),
                "beam": int(beam),
                "length_penalty": penalty,
                **figures,
                "signatures": signatures(part),
            }
            for beam, figures in scores.items()
        ]
    table = Table(
        f"{split}, {records[0]['sentences']:,} sentences",
        ["Stage", "Seed", "Beam", "BLEU", "chrF"],
        [
            [r["stage"], str(r["seed"]), str(r["beam"]), f"{r['bleu']:.2f}", f"{r['chrf']:.2f}"]
            for r in records
        ],
    )
    report.console.print(table.to_rich())
    signs = list(records[0]["signatures"].items())
    lines = [f"{name}: {sign}" for name, sign in signs]
    for line in lines:
        report.say(line)
    if out is not None:
        markdown = "\n\n".join([f"## {table.title}", table.to_markdown(), *lines]) + "\n"
        written = write_tables(out, markdown, records)
        report.say(f"written: {', '.join(map(str, written))}")
    return 0


def translate(
    path: Path,
    lines: Iterable[bytes],
    *,
    beam: int | None,
    n_best: int,
    length_penalty: float | None,
    batch_size: int = BATCH_SIZE,
) -> Iterator[str]:
    """Translate lines: one line for each, or with ``n_best`` above 1 a list as Moses has it.

    ``batch_size`` lines are read, translated and given out before the next are read.
    """
    _require("sentencepiece", "safetensors")
    for option, number in (("beam", beam), ("n-best", n_best), ("batch-size", batch_size)):
        if number is not None and number < 1:
            raise UsageError(f"--{option} {number}: give 1 or above")
    run = _only(path)
    settings = Settings(**settings_in(run.config))
    width = beam or max(settings.eval_beams)
    if n_best > width:
        raise UsageError(f"--n-best {n_best}: give at most the beam size, {width}, or raise --beam")
    penalty = settings.length_penalty if length_penalty is None else length_penalty
    if penalty < 0:
        raise UsageError(f"--length-penalty {penalty:g}: give at least 0")
    prepared = _data_of(_root(run))
    translator = Translator(
        _model(run.weights), prepared.source, prepared.target, width, penalty, n_best
    )
    numbered = enumerate(lines)
    while chunk := [
        (number, _decoded(line, number)) for number, line in islice(numbered, batch_size)
    ]:
        asked = [(number, text) for number, text in chunk if text.strip()]
        found = dict(
            zip((n for n, _ in asked), translator([text for _, text in asked]), strict=True)
        )
        for number, _ in chunk:
            best = found.get(number, [Translation("", 0.0)])  # a blank line stays one
            if n_best == 1:
                yield best[0].text
            else:
                yield from (f"{number} ||| {text} ||| {score:.4f}" for text, score in best)


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped or not."""
    with opened(file) as (stream, _):
        yield from stream


def compare(paths: Sequence[Path], out: Path | None) -> int:
    """Print the table of these runs; with ``out``, write it as Markdown and beside it as JSON."""
    _require("rich")
    rows = collect(_units(*paths))
    report = Report()
    for table in tables(rows):
        report.console.print(table.to_rich())
    if out is not None:
        written = write_tables(out, to_markdown(rows), to_json(rows))
        report.say(f"written: {', '.join(map(str, written))}")
    return 0


def _run_all(
    out: Path, plan: Plan, prepared: Prepared, report: Report, interrupt: Interrupt
) -> int:
    code = 0

    @lru_cache(maxsize=1)
    def pairs() -> list[Pair]:
        split = prepared.corpus.train
        kept, dropped = pairs_of(split, prepared.source, prepared.target, plan.settings.max_length)
        if dropped:
            report.say(f"{dropped:,} of {len(split):,} training pairs are longer than --max-length")
        return kept

    for seed in plan.seeds:
        for stage in plan.stages:
            if Run(_folder(out, stage, seed)).result is None:
                code |= _run_one(out, plan, stage, seed, prepared, pairs(), report, interrupt)
    return code


def _run_one(
    out: Path,
    plan: Plan,
    stage: str,
    seed: int,
    prepared: Prepared,
    pairs: Sequence[Pair],
    report: Report,
    interrupt: Interrupt,
) -> int:
    interrupt.check()
    corpus, settings = prepared.corpus, plan.settings
    config = {
        "command": COMMAND,
        "stage": stage,
        "seed": seed,
        "init": plan.digest,
        "corpus": {
            "name": corpus.name,
            "source": corpus.source,
            "target": corpus.target,
            "fingerprint": corpus.fingerprint,
            "pairs": {part: len(split) for part, split in corpus.parts},
            "builtin": settings.data == BUILTIN,
            "max_words": settings.max_words,
            "subset": settings.subset,
        },
        **asdict(settings),
    }
    run = prepare(_folder(out, stage, seed), config, resume=True, free=FREE, absent=ABSENT)
    weights = None
    if stage != PRETRAIN:
        first = out / INIT if plan.digest else Run(_folder(out, PRETRAIN, seed)).weights
        if not first.exists():
            report.say(f"{stage}, seed {seed}: left out, there are no weights to begin with")
            return 1
        weights = _load(first, settings, prepared).state_dict()
    try:
        with report.warnings():
            result = execute(
                stage, settings, seed, prepared, pairs, weights, run, report, interrupt
            )
    except DivergedError as error:
        report.say(f"{stage}, seed {seed}: {error}")
        return 1
    scores = ", ".join(
        f"{split} BLEU {figures['bleu']:.2f} at beam {beam}"
        for split in ("valid", "test")
        for beam, figures in result.get(split, {}).items()
    )
    report.say(f"{stage}, seed {seed}: {scores}")
    return 0


def _folder(out: Path, stage: str, seed: int) -> Path:
    return out / stage / f"seed-{seed}"


def _root(run: Run) -> Path:
    """The folder of the run that a part belongs to."""
    return run.path.resolve().parent.parent


def _data_of(out: Path) -> Prepared:
    return read_folder(out / DATA, Settings(**settings_in(_config(out))))


def _model(file: Path) -> Seq2Seq:
    try:
        return Seq2Seq.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error


def _load(file: Path, settings: Settings, prepared: Prepared) -> Seq2Seq:
    """The weights, if they are of this model."""
    model = _model(file)
    wanted = {
        "source_vocab": prepared.source.size,
        "target_vocab": prepared.target.size,
        **{name: getattr(settings, name) for name in MODEL},
    }
    found = {name: getattr(model.config, name) for name in wanted}
    if found != wanted:
        differing = ", ".join(
            f"{name} {found[name]}, not {wanted[name]}"
            for name in wanted
            if found[name] != wanted[name]
        )
        raise UsageError(f"--init: the weights are of another model ({differing})")
    return model


def _weights_file(path: Path) -> Path:
    """The file that ``--init`` means."""
    if path.is_file():
        return path
    runs = _finished(path)
    first = [run for run in runs if run.config["stage"] == PRETRAIN]
    for some in (runs, first):
        if len(some) == 1:
            return some[0].weights
    names = ", ".join(str(run.path) for run in first or runs)
    raise UsageError(f"--init {path}: there are several models in it; give one of {names}")


def _settings_of_weights(file: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a model's weights bring with them: its shape and its languages."""
    config = _model(file).config
    shape = {name: getattr(config, name) for name in MODEL}
    for name, value in shape.items():
        if given.get(name, value) != value:
            raise UsageError(
                f"--{name} {given[name]}: the weights of --init have {value}; leave it out"
            )
    settings = {**shape, "dropout": config.dropout}
    root = file.resolve().parent.parent.parent
    if is_prepared(root / DATA):  # the weights of a run, whose text and pieces lie beside them
        before = _config(root)
        kept = ("source", "target", "vocab", "normalization")
        settings.update({name: before[name] for name in kept})
        settings["data"] = str(root / DATA)
    return settings


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _whole_paths(given: Mapping[str, Any]) -> dict[str, Any]:
    """With the data folder as it can be found from anywhere."""
    out = dict(given)
    if out.get("data", BUILTIN) != BUILTIN:
        out["data"] = str(Path(out["data"]).resolve())
    return out


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"line {number + 1} of the input is not UTF-8: {error}") from error


def _counts(prepared: Prepared) -> Table:
    corpus, record = prepared.corpus, prepared.record
    languages = (corpus.source, corpus.target)
    return Table(
        f"{corpus.name}: pieces "
        + ", ".join(f"{record['sizes'][language]:,} {language}" for language in languages),
        ["Part", "Pairs", *(f"Tokens, {language}" for language in languages)],
        [
            [
                part,
                f"{len(split):,}",
                *(f"{record['parts'][part][language]['tokens']:,}" for language in languages),
            ]
            for part, split in corpus.parts
        ],
    )


def _units(*paths: Path) -> list[Run]:
    """The runs of single stages in these folders."""
    runs = [run for run in find_runs(paths) if run.config.get("command") == COMMAND]
    units = [run for run in runs if "stage" in run.config]
    if not units:
        names = ", ".join(map(str, paths))
        raise UsageError(f"{names}: there is no run of softtopk {COMMAND} in it")
    return units


def _finished(path: Path) -> list[Run]:
    """The finished ones, in the order of the table."""
    runs = [run for run in _units(path) if run.result]
    if not runs:
        raise UsageError(f"{path}: nothing in it is finished; go on with --resume")
    return sorted(runs, key=lambda r: (STAGES.index(r.config["stage"]), r.config["seed"]))


def _only(path: Path) -> Run:
    """The model to translate with: that of the one objective, else of the pre-training."""
    runs = _finished(path)
    trained = [run for run in runs if run.config["stage"] != PRETRAIN] or runs
    if len({run.config["stage"] for run in trained}) > 1:
        names = ", ".join(str(run.path) for run in trained)
        raise UsageError(f"{path}: there are several models in it; give one of {names}")
    return trained[0]  # of the smallest seed


def _config(out: Path) -> dict[str, Any]:
    config = read_json(out / "config.json")
    if not isinstance(config, dict) or config.get("command") != COMMAND:
        raise UsageError(f"--out {out}: this is not a run of softtopk {COMMAND}")
    if "objectives" not in config:
        raise UsageError(f"--out {out}: this is a part of a run; give the folder that holds it")
    return config


def _require(*modules: str) -> None:
    for module in modules:
        require(module, "this command", "cli" if module == "rich" else "translate")
