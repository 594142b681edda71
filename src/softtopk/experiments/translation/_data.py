"""The folder with all that a run knows of its languages: the text, and the pieces of words.

It is a folder of parallel text itself, in the convention that `read_corpus` reads, with
`pieces.en.model`, `pieces.fr.model` and `prepared.json`.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._files import sha256
from ..errors import UsageError
from ..runs import check_digest, write_atomic, write_sealed
from ._builtin import SOURCE, TARGET, builtin_corpus
from ._corpus import Corpus, Split, read_corpus, read_measured
from ._pieces import (
    Pieces,
    Prepared,
    asked_of,
    model_path,
    pieces_from,
    prepare_corpus,
)
from ._record import RECORD, is_prepared, read_record
from ._settings import BUILTIN, Settings


def settings_of_pieces(folder: Path) -> dict[str, Any]:
    """What the pieces of a prepared folder were asked for with."""
    record = read_record(folder) if is_prepared(folder) else {}
    return {name: record[name] for name in ("vocab", "normalization") if name in record}


def load_corpus(settings: Settings) -> Corpus:
    """The text that the settings name, as much of it as they ask for."""
    if settings.data == BUILTIN:
        if (settings.source, settings.target) != (SOURCE, TARGET):
            raise UsageError(
                f"--source {settings.source} --target {settings.target}: the built-in corpus is "
                f"for {SOURCE} to {TARGET}; for others give --data DIR"
            )
        corpus = builtin_corpus()
    else:
        read = _read_text if is_prepared(settings.data) else read_corpus
        corpus = read(Path(settings.data), settings.source, settings.target)
    if settings.max_words is not None:
        corpus = corpus.at_most(settings.max_words)
    return corpus if settings.subset is None else corpus.first(settings.subset)


def write_prepared(prepared: Prepared, folder: Path) -> None:
    """Write the text and the pieces, and `prepared.json` last: it is what makes them whole."""
    corpus = prepared.corpus
    (folder / RECORD).unlink(missing_ok=True)  # of a start that did not get to its end
    for part, split in corpus.parts:
        # What is large is packed; what people look at is not.
        packed = part == "train"
        for language, sentences in (
            (corpus.source, split.sources),
            (corpus.target, split.targets),
        ):
            name = f"{part}.{language}.gz" if packed else f"{part}.{language}"
            write_atomic(folder / name, _content(sentences, packed))
    write_atomic(model_path(folder, corpus.source), prepared.source.model)
    write_atomic(model_path(folder, corpus.target), prepared.target.model)
    write_sealed(folder / RECORD, prepared.record)


def read_prepared(folder: Path, source: str, target: str) -> Prepared:
    """What `write_prepared` wrote."""
    corpus = _read_text(folder, source, target)
    pieces = read_pieces(folder, source, target)
    return Prepared(corpus, *pieces, read_record(folder))


def _read_text(folder: Path, source: str, target: str) -> Corpus:
    """The text of a prepared folder, with what the record knows of where it was copied from."""
    record = read_record(folder)
    reverse = source != record["source"]
    words = None if reverse else record["max_words"]  # those of the other side
    corpus = replace(read_corpus(folder, source, target), name=record["corpus"], max_words=words)
    for part, split in corpus.parts:
        recorded = Split(split.targets, split.sources) if reverse else split
        _check_text(folder, part, recorded, record)
    return corpus


def max_words_of(folder: Path) -> int | None:
    """What the source sentences of a prepared folder were limited to."""
    return read_record(folder)["max_words"]


def _check_text(folder: Path, part: str, split: Split, record: dict[str, Any]) -> None:
    files = folder / f"{part}.{{{record['source']},{record['target']}}}"
    check_digest(files, split.fingerprint, record["parts"][part]["sha256"])


def read_pieces(folder: Path, source: str, target: str) -> tuple[Pieces, Pieces]:
    """The pieces alone, of both languages."""
    return pieces_from(folder, source), pieces_from(folder, target)


def read_part(folder: Path, part: str, source: str, target: str) -> Split:
    """The valid or the test part alone."""
    split = read_measured(folder, part, source, target)
    _check_text(folder, part, split, read_record(folder))
    return split


def prepare_folder(
    corpus: Corpus, settings: Settings, folder: Path, pieces: Path | None = None
) -> Prepared:
    """Prepare a corpus in a folder, or take what is there, if it is of this corpus."""
    if not is_prepared(folder):
        prepared = prepare_corpus(corpus, settings.vocab, settings.normalization, pieces)
        write_prepared(prepared, folder)
        return prepared
    record = read_record(folder)
    asked = asked_of(corpus, settings.vocab, settings.normalization)
    changes = [
        f"{name} was {record.get(name)!r}, not {value!r}"
        for name, value in asked.items()
        if record.get(name) != value
    ]
    if pieces is not None:
        changes += [
            f"the pieces of {language} were others"
            for language in (corpus.source, corpus.target)
            if record["sha256"].get(language) != sha256(pieces_from(pieces, language).model)
        ]
    if changes:
        raise UsageError(
            f"{folder} was prepared differently ({', '.join(changes)}): give the same data and "
            f"--vocab, or another folder, or delete {folder / RECORD} to prepare it again"
        )
    return Prepared(corpus, *read_pieces(folder, corpus.source, corpus.target), record)


def _content(sentences: Sequence[str], packed: bool) -> bytes:
    data = "".join(f"{sentence}\n" for sentence in sentences).encode()
    # Without the time, so that the same text is the same file.
    return gzip.compress(data, mtime=0) if packed else data
