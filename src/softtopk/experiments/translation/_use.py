"""The commands `softtopk translate evaluate | translate | attention`, what models are good for.

Without their parsing and printing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch

from softtopk.seq2seq import EncoderDecoder

from .._drawing import check_picture
from .._files import check_out, opened
from ..errors import UsageError
from ..runs import Report, Run, Table, check_device, check_tables, write_tables
from ._batches import Pair
from ._corpus import Split, clean_line
from ._data import read_part, read_pieces
from ._decoding import BATCH_SIZE, Translation, Translator, signatures
from ._execute import evaluate_beams
from ._lookup import data_of, finished_parts, load_model, part_to_translate, require_modules
from ._maps import MOST_TOKENS, attention_map, mean_tokens_holding, write_attention
from ._pieces import Pieces
from ._settings import Settings, parse_beams, settings_in


def evaluate(
    path: Path,
    *,
    beams: str,
    split: str,
    length_penalty: float | None,
    out: Path | None,
    hard_attention: bool = False,
    device: str = "cpu",
    threads: int | None = None,
) -> int:
    """Translate a split with all finished models of a run, and print BLEU and chrF.

    Also the number of source tokens that hold 95 % of the attention.
    """
    require_modules("rich", "sentencepiece", "sacrebleu", "safetensors")
    if split not in ("valid", "test"):
        raise UsageError(f"--split {split!r}: give valid or test")
    sizes = parse_beams("--beam", beams)
    _check(length_penalty, device, threads)
    if out is not None:
        check_tables(out)
    report = Report()
    records = []
    read: dict[Path, tuple[Split, Pieces, Pieces]] = {}
    runs = finished_parts(path)
    if hard_attention:  # before the first of them is used
        for run in runs:
            _model(run, device, hard_attention)
    for run in runs:
        settings = Settings(**settings_in(run.config))
        penalty = settings.length_penalty if length_penalty is None else length_penalty
        data, languages = data_of(run), (settings.source, settings.target)
        if data not in read:
            read[data] = read_part(data, split, *languages), *read_pieces(data, *languages)
        part, source, target = read[data]
        model = _model(run, device, hard_attention)
        scores = evaluate_beams(model, source, target, part, sizes, penalty)
        tokens = mean_tokens_holding(model, source, target, part)
        records += [
            {
                "stage": run.config["stage"],
                "seed": run.config["seed"],
                "split": split,
                "sentences": len(part),
                "beam": int(beam),
                "length_penalty": penalty,
                **figures,
                "attention_tokens": tokens,
                "hard_attention": hard_attention,
                "signatures": signatures(part),
            }
            for beam, figures in scores.items()
        ]
    table = Table(
        f"{split}, {records[0]['sentences']:,} sentences",
        ["Stage", "Seed", "Beam", "BLEU", "chrF", "Tokens with 95 %"],
        [
            [
                r["stage"],
                *(str(r[name]) for name in ("seed", "beam")),
                *(f"{r[name]:.2f}" for name in ("bleu", "chrf", "attention_tokens")),
            ]
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
    name: str,
    beam: int | None,
    n_best: int,
    length_penalty: float | None,
    batch_size: int = BATCH_SIZE,
    hard_attention: bool = False,
    device: str = "cpu",
    threads: int | None = None,
) -> Iterator[str]:
    """Translate lines: one line for each, or with ``n_best`` above 1 a list as Moses has it.

    ``batch_size`` lines are read, translated and given out before the next are read. ``name`` is
    what errors call the text.
    """
    require_modules("sentencepiece", "safetensors")
    for option, number in (("beam", beam), ("n-best", n_best), ("batch-size", batch_size)):
        if number is not None and number < 1:
            raise UsageError(f"--{option} {number}: give 1 or above")
    _check(length_penalty, device, threads)
    run = part_to_translate(path)
    settings = Settings(**settings_in(run.config))
    width = beam or max(settings.eval_beams)
    if n_best > width:
        raise UsageError(f"--n-best {n_best}: give at most the beam size, {width}, or raise --beam")
    penalty = settings.length_penalty if length_penalty is None else length_penalty
    source, target = read_pieces(data_of(run), settings.source, settings.target)
    model = _model(run, device, hard_attention)
    translator = Translator(model, source, target, width, penalty, n_best)
    numbered = enumerate(lines)
    while chunk := [
        (number, _decoded(line, number, name)) for number, line in islice(numbered, batch_size)
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
                yield from (f"{number} ||| {one.text} ||| {one.score:.4f}" for one in best)


def read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped or not."""
    with opened(file) as (stream, _):
        yield from stream


def show_attention(
    path: Path,
    text: str,
    *,
    translation: str | None,
    out: Path,
    hard_attention: bool = False,
    device: str = "cpu",
    threads: int | None = None,
) -> int:
    """Draw what a model attends to in a sentence, and print the strongest alignments.

    Along ``translation``, or along the model's own.
    """
    require_modules("rich", "sentencepiece", "safetensors", "matplotlib")
    for option, given in (("text", text), ("translation", translation)):
        if given is not None and not given.strip():
            raise UsageError(f"--{option} {given!r}: give a sentence")
    check_picture(out, "--out")
    check_out(out)
    _check(None, device, threads)
    run = part_to_translate(path)
    settings = Settings(**settings_in(run.config))
    source, target = read_pieces(data_of(run), settings.source, settings.target)
    (asked,) = source.encode([text])
    _check_length("text", len(asked))
    model = _model(run, device, hard_attention)
    if translation is None:
        beam, penalty = max(settings.eval_beams), settings.length_penalty
        best = Translator(model, source, target, beam, penalty)([text])[0][0]
        translation, answer = best.text, best.tokens
    else:
        (answer,) = target.encode([translation])
    _check_length("translation", len(answer))
    shown = attention_map(model, source, target, Pair(asked, answer))
    rows = zip(shown.alignments(), shown.tokens_holding(), strict=True)
    table = Table(
        " ".join(f"{text} - {translation}".split()),
        ["Target token", "Source token", "Weight", "Tokens with 95 %"],
        [
            [aligned.target, aligned.source, f"{aligned.weight:.2f}", f"{tokens:.1f}"]
            for aligned, tokens in rows
        ],
    )
    written = write_attention(shown, out)
    report = Report()
    report.console.print(table.to_rich())
    heads = len(shown.by_head)
    if heads > 1:
        report.say(f"weights: the mean of {heads} heads; tokens: counted in each, then averaged")
    report.say(f"written: {written}")
    return 0


def _check_length(option: str, tokens: int) -> None:
    if tokens > MOST_TOKENS:
        raise UsageError(
            f"--{option}: it has {tokens:,} tokens, and a picture holds {MOST_TOKENS}; give a "
            "shorter sentence"
        )


def _model(run: Run, device: str, hard_attention: bool) -> EncoderDecoder:
    model = load_model(run.checked_weights(), device)
    if hard_attention:
        if model.config.attention_k is None:
            raise UsageError(
                f"--hard-attention: the model in {run.path} attends to all tokens; train one with "
                "--attention soft-topk"
            )
        model.hard_eval = True
    return model


def _check(length_penalty: float | None, device: str, threads: int | None) -> None:
    """Refuse what cannot be, and use so many threads."""
    if length_penalty is not None and not 0 <= length_penalty < math.inf:
        raise UsageError(f"--length-penalty {length_penalty:g}: give a number of 0 or above")
    check_device(device)
    if threads is not None:
        if threads < 1:
            raise UsageError(f"--threads {threads}: give 1 or above")
        torch.set_num_threads(threads)


def _decoded(line: bytes, number: int, name: str) -> str:
    try:
        return clean_line(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name}, line {number + 1}: found the byte 0x{line[error.start]:02x} where it is not "
            "UTF-8; convert the text, as with iconv -t UTF-8"
        ) from error
