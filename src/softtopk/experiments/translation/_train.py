"""The commands `softtopk translate prepare | train | compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from softtopk.seq2seq import EncoderDecoder

from .._files import check_out, remove_drafts
from ..errors import UsageError, require_modules
from ..runs import (
    Interrupt,
    Report,
    Run,
    Table,
    announce,
    attempt,
    check_device,
    open_run,
    processes,
    sealed,
    write_atomic,
)
from ..settings import TableOptions, setting
from ._batches import Pair
from ._corpus import Corpus
from ._data import load_corpus, prepare_folder, read_prepared, write_prepared
from ._execute import add_test, execute
from ._lookup import DATA, EXPERIMENT, INIT, load_model
from ._model import shape_of
from ._pieces import Prepared, pairs_of, prepare_corpus
from ._plan import Plan, Train, WithPieces, make_plan, whole_paths
from ._record import is_prepared
from ._settings import BUILTIN, PRETRAIN, Settings

FREE = ("device", "test")  # may change when a run is resumed


@dataclass(frozen=True, kw_only=True)
class Prepare(WithPieces):
    """Split text into pieces of words, for several runs: give the folder to train as --data.

    A run that gets other data prepares them by itself.

    Example: softtopk translate prepare --data text --vocab 8000 --out prepared
    """

    out: Path = setting(help="Folder to write; one that is there is kept.")


@dataclass(frozen=True, kw_only=True)
class Compare(TableOptions):
    """Make the table of objectives from the records of one or several runs.

    Example: softtopk translate compare run another-run --out table.md
    """


def prepare(options: Prepare, given: Mapping[str, Any]) -> int:
    """Write a folder with the text and the pieces, and print what there is in it."""
    require_modules("rich", "sentencepiece")
    settings, out = Settings(**whole_paths(given)), options.out
    there = is_prepared(out)
    if not there and str(out.resolve()) == settings.data:
        raise UsageError(f"--out {out}: give another folder than --data")
    check_out(out, folder=True)
    remove_drafts(out.glob(".*.tmp"))
    report = Report()
    corpus = load_corpus(settings)
    _say_dropped(corpus, report)
    prepared = prepare_folder(corpus, settings, out, options.pieces)
    report.console.print(_counts(prepared).to_rich())
    report.say(f"{'was prepared already' if there else 'prepared'}: {out}")
    return 0


def train(options: Train, given: Mapping[str, Any]) -> int:
    """Run all stages with all seeds, print and write the table, and return the exit code."""
    require_modules("rich", "sentencepiece", "sacrebleu", "safetensors")
    plan = make_plan(options, given)
    check_device(plan.settings.device)
    torch.set_float32_matmul_precision(plan.settings.matmul_precision)
    with processes.joined(plan.settings.device):
        return _train(options, plan)


def _train(options: Train, plan: Plan) -> int:
    out, settings, report = options.out, plan.settings, Report()
    _check_shared(plan)
    # Before the folder is made: what was named may be missing or may not fit.
    begun = processes.lead((out / "config.json").exists)
    corpus = None if begun else load_corpus(settings)
    if corpus is not None:
        _say_dropped(corpus, report)

    def work(interrupt: Interrupt) -> int:
        processes.check_agreement(plan.to_config())
        if corpus is None:
            free = ("objectives", "seeds", *FREE) if options.resume else FREE
            resume = options.resume or processes.is_restarted()
            processes.lead(lambda: open_run(out, plan.to_config(), resume=resume, free=free))
            prepared = read_prepared(out / DATA, settings.source, settings.target)
            pairs = _training_pairs(prepared, settings, report)
        else:
            prepared = prepare_corpus(corpus, settings.vocab, settings.normalization, plan.pieces)
            pairs = _training_pairs(prepared, settings, report)
            processes.lead(lambda: _start(out, plan, prepared, pairs))
        processes.check_agreement({}, data=lambda: sealed(prepared.record).encode())
        return _run_all(out, plan, prepared, pairs, report, interrupt)

    return EXPERIMENT.train(out, work, report, resume=options.resume, threads=settings.threads)


def _check_shared(plan: Plan) -> None:
    if processes.count() > 1 and plan.settings.normalize == "batch":
        raise UsageError(
            "--normalize batch: it needs the largest cost of the whole batch, which no process "
            "has; give row or none, or start a single process"
        )


def compare(options: Compare) -> int:
    """Print the table of these runs, and write it if that is asked for."""
    require_modules("rich")
    return EXPERIMENT.tabulate(options.runs, options.out)


def _say_dropped(corpus: Corpus, report: Report) -> None:
    if corpus.dropped:
        report.say(f"{corpus.dropped:,} training pairs with an empty line are left out")


def _start(out: Path, plan: Plan, prepared: Prepared, pairs: Callable[[], Sequence[Pair]]) -> None:
    """Write what a new run needs, after everything that could be wrong with it was looked at.

    The config.json, which makes the folder a run, is last: killed before, it is started again.
    """
    pairs()
    if plan.init:
        _load_checked(plan.init, plan.settings, prepared)
    announce(out, (DATA, INIT))
    write_prepared(prepared, out / DATA)
    if plan.init:
        write_atomic(out / INIT, plan.init.read_bytes())
    open_run(out, plan.to_config(), resume=False)


def _training_pairs(
    prepared: Prepared, settings: Settings, report: Report
) -> Callable[[], list[Pair]]:
    """Gives the pairs to train on, which are made at the first call."""

    @cache
    def pairs() -> list[Pair]:
        split = prepared.corpus.train
        kept, dropped = pairs_of(split, prepared.source, prepared.target, settings.max_length)
        if dropped:
            report.say(f"{dropped:,} of {len(split):,} training pairs are longer than --max-length")
        return kept

    return pairs


def _run_all(
    out: Path,
    plan: Plan,
    prepared: Prepared,
    pairs: Callable[[], Sequence[Pair]],
    report: Report,
    interrupt: Interrupt,
) -> int:
    code = 0
    for seed in plan.seeds:
        for stage in plan.stages:
            interrupt.check()
            part = Run(EXPERIMENT.folder(out, stage, seed))
            result = processes.lead(lambda part=part: part.result)  # type: ignore[misc]
            if result is None:
                code |= _run_one(out, plan, stage, seed, prepared, pairs(), report, interrupt)
            elif plan.settings.test and "test" not in result:
                run = _open_part(out, plan, stage, seed, prepared.corpus)
                model = load_model(run.checked_weights(), plan.settings.device)
                result = processes.lead(
                    partial(add_test, result, model, plan.settings, prepared, run)
                )
                report.say(f"{stage}, seed {seed}: {_scores(result, 'test')}")
    return code


def _open_part(out: Path, plan: Plan, stage: str, seed: int, corpus: Corpus) -> Run:
    """The folder of one stage with one seed."""
    settings = plan.settings
    config = {
        "command": EXPERIMENT.command,
        "stage": stage,
        "seed": seed,
        "init": plan.init_digest,
        "pieces": plan.pieces_digests,
        "corpus": {
            "name": corpus.name,
            "source": corpus.source,
            "target": corpus.target,
            "fingerprint": corpus.fingerprint,
            "pairs": {part: len(split) for part, split in corpus.parts},
            "builtin": settings.data == BUILTIN,
            "max_words": corpus.max_words,
            "subset": settings.subset,
        },
        **asdict(settings),
    }
    folder = EXPERIMENT.folder(out, stage, seed)
    return processes.lead(lambda: open_run(folder, config, resume=True, free=FREE))


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
    run = _open_part(out, plan, stage, seed, prepared.corpus)
    weights = None
    if stage != PRETRAIN:
        first = Run(EXPERIMENT.folder(out, PRETRAIN, seed))
        if not plan.init_digest and processes.lead(lambda: first.result) is None:
            report.say(f"{stage}, seed {seed}: left out, there are no weights to begin with")
            return 1
        file = out / INIT if plan.init_digest else first.checked_weights()
        weights = _load_checked(file, plan.settings, prepared).state_dict()

    def work() -> str:
        result = execute(
            stage, plan.settings, seed, prepared, pairs, weights, run, report, interrupt
        )
        return _scores(result, "valid", "test")

    return attempt(f"{stage}, seed {seed}", work, report)


def _scores(result: Mapping[str, Any], *splits: str) -> str:
    return ", ".join(
        f"{split} BLEU {figures['bleu']:.2f} at beam {beam}"
        for split in splits
        for beam, figures in result.get(split, {}).items()
    )


def _load_checked(file: Path, settings: Settings, prepared: Prepared) -> EncoderDecoder:
    """The weights, if they are of this model."""
    model = load_model(file)
    wanted = {
        "source_vocab": prepared.source.size,
        "target_vocab": prepared.target.size,
        **asdict(settings),
    }
    found = {
        "source_vocab": model.config.source_vocab,
        "target_vocab": model.config.target_vocab,
        **shape_of(model),
    }
    differing = ", ".join(
        f"{name} {value}, not {wanted[name]}"
        for name, value in found.items()
        if value != wanted[name]
    )
    if differing:
        raise UsageError(f"--init: the weights are of another model ({differing})")
    return model


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
