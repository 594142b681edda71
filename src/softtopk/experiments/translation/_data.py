"""The folder with all that a run knows of its languages: the text, and the pieces of words."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..runs import read_json, write_atomic
from ._builtin import SOURCE, TARGET, builtin_corpus
from ._corpus import Corpus, read_corpus
from ._pieces import RECORD, Prepared, prepare
from ._settings import BUILTIN, Settings


def is_prepared(folder: str | Path) -> bool:
    return (Path(folder) / RECORD).is_file()


def settings_of_pieces(folder: Path) -> dict[str, Any]:
    """What the pieces of a prepared folder were asked for with."""
    record = read_json(folder / RECORD) if is_prepared(folder) else {}
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
        corpus = read_corpus(settings.data, settings.source, settings.target)
        if is_prepared(settings.data):  # a copy, with the name of what it was copied from
            corpus = replace(corpus, name=read_json(Path(settings.data) / RECORD)["corpus"])
    if settings.max_words is not None:
        corpus = corpus.at_most(settings.max_words)
    return corpus if settings.subset is None else corpus.first(settings.subset)


def make_folder_of(
    corpus: Corpus, folder: Path, settings: Settings, pieces: Path | None
) -> Prepared:
    """Write the text and the pieces, unless they are there; ``pieces`` may be another such folder.

    The result is a folder of parallel text itself, in the convention that `read_corpus` reads.
    """
    if not is_prepared(folder):
        for part, split in corpus.parts:
            # What is large is packed; what people look at is not.
            packed = part == "train"
            for language, sentences in (
                (corpus.source, split.sources),
                (corpus.target, split.targets),
            ):
                name = f"{part}.{language}.gz" if packed else f"{part}.{language}"
                write_atomic(folder / name, _content(sentences, packed))
    return prepare(corpus, settings.vocab, folder, pieces, settings.normalization)


def read_folder(folder: Path, settings: Settings) -> Prepared:
    """What `make_folder_of` wrote."""
    if not is_prepared(folder):
        raise UsageError(f"{folder}: there is no {RECORD}; prepare the data again")
    corpus = read_corpus(folder, settings.source, settings.target)
    corpus = replace(corpus, name=read_json(folder / RECORD)["corpus"])
    return prepare(corpus, settings.vocab, folder, normalization=settings.normalization)


def _content(sentences: Sequence[str], packed: bool) -> bytes:
    data = "".join(f"{sentence}\n" for sentence in sentences).encode()
    # Without the time, so that the same text is the same file.
    return gzip.compress(data, mtime=0) if packed else data
