"""The commands `softtopk translate prepare | train | compare`, without parsing and printing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from softtopk._training import DivergedError
from softtopk.seq2seq import EncoderDecoder

from .._files import check_out
from ..errors import UsageError
from ..runs import (
    INTERRUPTED,
    Interrupt,
    Interrupted,
    Report,
    Run,
    Table,
    announce,
    check_device,
    check_tables,
    locked,
    open_run,
    write_atomic,
    write_tables,
)
from ._batches import Pair
from ._corpus import Corpus
from ._data import load_corpus, prepare_folder, read_prepared, write_prepared
from ._execute import add_test, execute
from ._lookup import (
    COMMAND,
    DATA,
    INIT,
    find_parts,
    folder_of,
    load_model,
    require_modules,
)
from ._model import shape_of
from ._pieces import Prepared, pairs_of, prepare_corpus
from ._plan import Plan, whole_paths
from ._record import is_prepared
from ._settings import BUILTIN, PRETRAIN, Settings, settings_in
from ._tables import collect, tables, to_json, to_markdown

WHAT = ("objectives", "seeds")
FREE = ("device", "test")  # may change when a run is resumed
ABSENT = settings_in({})


def prepare_data(out: Path, *, pieces: Path | None, given: Mapping[str, Any]) -> int:
    """Write a folder with the text and the pieces, and print what there is in it."""
    require_modules("rich", "sentencepiece")
    settings = Settings(**whole_paths(given))
    there = is_prepared(out)
    if not there and str(out.resolve()) == settings.data:
        raise UsageError(f"--out {out}: give another folder than --data")
    check_out(out, folder=True)
    report = Report()
    corpus = load_corpus(settings)
    _say_dropped(corpus, report)
    prepared = prepare_folder(corpus, settings, out, pieces)
    report.console.print(_counts(prepared).to_rich())
    report.say(f"{'was prepared already' if there else 'prepared'}: {out}")
    return 0


def train(out: Path, plan: Plan, *, resume: bool) -> int:
    """Run all stages with all seeds, print and write the table, and return the exit code."""
    report = Report()
    settings = plan.settings
    check_device(settings.device)
    exists = (out / "config.json").exists()
    # Before the folder is made: what was named may be missing or may not fit.
    corpus = None if exists else load_corpus(settings)
    if corpus is not None:
        _say_dropped(corpus, report)
    if resume and not exists:
        report.say(f"there is no run in {out} yet: starting one")
    torch.set_num_threads(settings.threads)
    with locked(out), Interrupt() as interrupt:
        try:
            if corpus is None:
                open_run(out, plan.to_config(), resume=resume, free=(*WHAT, *FREE), absent=ABSENT)
                prepared = read_prepared(out / DATA, settings.source, settings.target)
                pairs = _training_pairs(prepared, settings, report)
            else:
                prepared = prepare_corpus(
                    corpus, settings.vocab, settings.normalization, plan.pieces
                )
                pairs = _training_pairs(prepared, settings, report)
                _start(out, plan, prepared, pairs)
            code = _run_all(out, plan, prepared, pairs, report, interrupt)
        except (Interrupted, KeyboardInterrupt):
            report.say(f"stopped; {_how_to_go_on(out)}")
            return INTERRUPTED
        rows = collect(find_parts(out))
        for table in tables(rows):
            report.console.print(table.to_rich())
        written = write_tables(out / "table", to_markdown(rows), to_json(rows))
        report.say(f"results: {', '.join(map(str, written))}")
    return code


def _say_dropped(corpus: Corpus, report: Report) -> None:
    if corpus.dropped:
        report.say(f"{corpus.dropped:,} training pairs with an empty line are left out")


def compare(paths: Sequence[Path], out: Path | None) -> int:
    """Print the table of these runs; with ``out``, write it as Markdown and beside it as JSON."""
    require_modules("rich")
    if out is not None:
        check_tables(out)
    rows = collect(find_parts(*paths))
    report = Report()
    for table in tables(rows):
        report.console.print(table.to_rich())
    if out is not None:
        written = write_tables(out, to_markdown(rows), to_json(rows))
        report.say(f"written: {', '.join(map(str, written))}")
    return 0


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


def _how_to_go_on(out: Path) -> str:
    if not (out / "config.json").exists():
        return "there is no run yet: start it again with the same command"
    again = shlex.join(["softtopk", *COMMAND.split(), "--out", str(out), "--resume"])
    return f"go on with: {again}"


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
            result = Run(folder_of(out, stage, seed)).result
            if result is None:
                code |= _run_one(out, plan, stage, seed, prepared, pairs(), report, interrupt)
            elif plan.settings.test and "test" not in result:
                run = _open_part(out, plan, stage, seed, prepared.corpus)
                model = load_model(run.checked_weights(), plan.settings.device)
                result = add_test(result, model, plan.settings, prepared, run)
                report.say(f"{stage}, seed {seed}: {_scores(result, 'test')}")
    return code


def _open_part(out: Path, plan: Plan, stage: str, seed: int, corpus: Corpus) -> Run:
    """The folder of one stage with one seed."""
    settings = plan.settings
    config = {
        "command": COMMAND,
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
            "max_words": settings.max_words,
            "subset": settings.subset,
        },
        **asdict(settings),
    }
    return open_run(folder_of(out, stage, seed), config, resume=True, free=FREE, absent=ABSENT)


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
        first = Run(folder_of(out, PRETRAIN, seed))
        if not plan.init_digest and first.result is None:
            report.say(f"{stage}, seed {seed}: left out, there are no weights to begin with")
            return 1
        file = out / INIT if plan.init_digest else first.checked_weights()
        weights = _load_checked(file, plan.settings, prepared).state_dict()
    try:
        with report.warnings():
            result = execute(
                stage, plan.settings, seed, prepared, pairs, weights, run, report, interrupt
            )
    except DivergedError as error:
        report.say(f"{stage}, seed {seed}: {error}")
        return 1
    report.say(f"{stage}, seed {seed}: {_scores(result, 'valid', 'test')}")
    return 0


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
