"""The commands `softtopk translate evaluate | translate | attention`, what models are good for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from softtopk.seq2seq import EncoderDecoder
from softtopk.seq2seq._checks import MOST_LENGTH_PENALTY

from .._drawing import check_picture
from .._files import check_out, opened
from ..errors import UsageError, require_modules
from ..runs import Report, Run, Table, check_device, check_tables, write_tables
from ..settings import MACHINE, Declared, recorded, setting
from ._batches import Pair
from ._corpus import Split, clean_line, read_measured
from ._data import max_words_of, read_part, read_pieces
from ._decoding import BATCH_SIZE, Translation, Translator, signatures
from ._execute import evaluate_beams
from ._lookup import EXPERIMENT, data_of, load_model, part_to_translate
from ._maps import MOST_TOKENS, attention_map, mean_tokens_holding, write_attention
from ._pieces import Pieces
from ._settings import Settings


@dataclass(frozen=True, kw_only=True)
class Use(Declared):
    """What every command is given that uses a trained model."""

    run: Path = setting(help="Folder with a run, or with a part of one.", argument=True)
    hard_attention: bool = setting(
        False,
        "Attend to exactly k source tokens, with a model trained by --attention soft-topk.",
        switch=True,
    )
    device: str = setting("cpu", "cpu, cuda, mps, ...", group=MACHINE)
    threads: int | None = setting(None, "CPU threads.", group=MACHINE, low=1, shown="torch's")

    def model(self, run: Run) -> EncoderDecoder:
        """The trained model of a part."""
        model = load_model(run.checked_weights(), self.device)
        if self.hard_attention:
            if model.config.attention_k is None:
                raise UsageError(
                    f"--hard-attention: the model in {run.path} attends to all tokens; train one "
                    "with --attention soft-topk"
                )
            model.hard_eval = True
        return model

    def prepare_machine(self) -> None:
        check_device(self.device)
        if self.threads is not None:
            torch.set_num_threads(self.threads)


@dataclass(frozen=True, kw_only=True)
class UseWithPenalty(Use):
    """With a length penalty that may differ from the run's."""

    length_penalty: float | None = setting(
        None,
        "Divide log-likelihoods by the length to this power.",
        low=0,
        high=MOST_LENGTH_PENALTY,
        shown="the run's",
    )

    def penalty(self, settings: Settings) -> float:
        return settings.length_penalty if self.length_penalty is None else self.length_penalty


@dataclass(frozen=True, kw_only=True)
class Evaluate(UseWithPenalty):
    """Print BLEU and chrF of all finished models of a run, and to how many tokens they attend.

    Example: softtopk translate evaluate run --split valid --beam 1,5
    """

    beam: tuple[int, ...] = setting((1, 5), "Beam sizes, with commas between them.", low=1)
    split: str = setting("test", "The part of the text to translate.", choices=("valid", "test"))
    data: Path | None = setting(
        None,
        "Folder with other text of the same languages. The run's --max-words holds for it too.",
        shown="the run's",
    )
    out: Path | None = setting(None, "Write the table here, as Markdown and as JSON.")


@dataclass(frozen=True, kw_only=True)
class Translate(UseWithPenalty):
    """Translate text, line by line, to standard output. Blank lines stay where they are.

    Example: echo 'Monday, 3 March' | softtopk translate translate run
    """

    file: Path | None = setting(
        None, "Text, a sentence on every line.", argument=True, shown="standard input"
    )
    beam: int | None = setting(None, "Beam size.", low=1, shown="the largest that the run reports")
    n_best: int = setting(
        1, "Above 1: this many for each line, as 'line ||| translation ||| score'.", low=1
    )
    batch_size: int = setting(
        BATCH_SIZE, "Lines to read before their translations are printed.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class Attention(Use):
    """Draw where in a sentence a model looks, and print what it looks at most for each token.

    Example: softtopk translate attention run --text 'Monday, 3 March' --out attention.png
    """

    text: str = setting(help="The sentence to translate.")
    translation: str | None = setting(None, "Its translation.", shown="the model's own")
    out: Path = setting(Path("attention.png"), "Picture to write, .png, .svg or .pdf.")


def evaluate(options: Evaluate) -> int:
    """Translate a split with all finished models of a run, and print BLEU and chrF.

    Also the number of source tokens that hold 95 % of the attention.
    """
    require_modules("rich", "sentencepiece", "sacrebleu", "safetensors")
    options.prepare_machine()
    split, out = options.split, options.out
    if out is not None:
        check_tables(out)
    report = Report()
    records = []
    read: dict[Path, tuple[Split, Pieces, Pieces]] = {}
    runs = EXPERIMENT.finished(options.run)
    if options.hard_attention:  # before the first of them is used
        for run in runs:
            options.model(run)
    for run in runs:
        settings = Settings(**recorded(Settings, run.config))
        penalty = options.penalty(settings)
        data, languages = data_of(run), (settings.source, settings.target)
        if data not in read:
            text = (
                read_part(data, split, *languages)
                if options.data is None
                else _other_text(options.data, split, *languages, max_words_of(data))
            )
            read[data] = text, *read_pieces(data, *languages)
        part, source, target = read[data]
        model = options.model(run)
        scores = evaluate_beams(model, source, target, part, options.beam, penalty)
        tokens = mean_tokens_holding(model, source, target, part)
        records += [
            {
                "stage": run.config["stage"],
                "seed": run.config["seed"],
                "split": split,
                "sentences": len(part),
                "data": options.data.name if options.data else run.config["corpus"]["name"],
                "text": part.fingerprint,
                "beam": int(beam),
                "length_penalty": penalty,
                **figures,
                "attention_tokens": tokens,
                "hard_attention": options.hard_attention,
                "signatures": signatures(part),
            }
            for beam, figures in scores.items()
        ]
    table = Table(
        f"{split} of {records[0]['data']}, {records[0]['sentences']:,} sentences",
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


def _other_text(folder: Path, split: str, source: str, target: str, words: int | None) -> Split:
    """The part of other text than the run's, as much of it as the run would take."""
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: give a folder with {split}.*")
    text = read_measured(folder, split, source, target)
    few = text if words is None else text.at_most(words)
    if not len(few):
        raise UsageError(
            f"--data {folder}: no sentence has at most {words} words, the --max-words of the run"
        )
    return few


def translate(options: Translate) -> int:
    """Translate lines to standard output: one for each, or a list as Moses has it."""
    for line in translations(options):
        print(line, flush=True)
    return 0


def translations(options: Translate) -> Iterator[str]:
    """The lines to print. As many as a batch has are read and given out before the next ones."""
    require_modules("sentencepiece", "safetensors")
    options.prepare_machine()
    run = part_to_translate(options.run)
    settings = Settings(**recorded(Settings, run.config))
    width, n_best = options.beam or max(settings.eval_beams), options.n_best
    if n_best > width:
        raise UsageError(f"--n-best {n_best}: give at most the beam size, {width}, or raise --beam")
    source, target = read_pieces(data_of(run), settings.source, settings.target)
    model = options.model(run)
    translator = Translator(model, source, target, width, options.penalty(settings), n_best)
    lines = _read_lines(options.file) if options.file else iter(sys.stdin.buffer)
    name = str(options.file or "standard input")
    numbered = enumerate(lines)
    while chunk := [
        (number, _decoded(line, number, name))
        for number, line in islice(numbered, options.batch_size)
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


def _read_lines(file: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped or not."""
    with opened(file) as (stream, _):
        yield from stream


def attention(options: Attention) -> int:
    """Draw what a model attends to in a sentence, and print the strongest alignments."""
    require_modules("rich", "sentencepiece", "safetensors", "matplotlib")
    text, translation, out = options.text, options.translation, options.out
    for option, given in (("text", text), ("translation", translation)):
        if given is not None and not given.strip():
            raise UsageError(f"--{option} {given!r}: give a sentence")
    check_picture(out, "--out")
    check_out(out)
    options.prepare_machine()
    run = part_to_translate(options.run)
    settings = Settings(**recorded(Settings, run.config))
    source, target = read_pieces(data_of(run), settings.source, settings.target)
    (asked,) = source.encode([text])
    _check_length("text", len(asked))
    model = options.model(run)
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


def _decoded(line: bytes, number: int, name: str) -> str:
    try:
        return clean_line(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name}, line {number + 1}: found the byte 0x{line[error.start]:02x} where it is not "
            "UTF-8; convert the text, as with iconv -t UTF-8"
        ) from error
