"""Parallel text: sentences with their translations, in three parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from .._files import opened
from ..errors import UsageError

PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Split:
    """Sentences and, at the same places, their translations."""

    sources: list[str]
    targets: list[str]

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ValueError(
                f"found {len(self.sources)} sources and {len(self.targets)} targets, expected as "
                "many of each"
            )

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all sentences, in order."""
        digest = hashlib.sha256()
        _add_split(digest, self)
        return digest.hexdigest()

    def at_most(self, words: int) -> Split:
        """The pairs whose source has at most this many words."""
        kept = [i for i, source in enumerate(self.sources) if len(source.split()) <= words]
        return Split([self.sources[i] for i in kept], [self.targets[i] for i in kept])


@dataclass(frozen=True)
class Corpus:
    """What to learn from, what to tune with, and what to be judged by."""

    name: str
    source: str
    """The language to translate from, and so is target the one to translate into."""
    target: str
    train: Split
    valid: Split
    test: Split
    dropped: int = 0
    """Training pairs that were left out because a side of them was empty."""
    max_words: int | None = None
    """What the source sentences were limited to; None if they were not."""

    def __post_init__(self) -> None:
        for part, split in self.parts:
            if not len(split):
                raise ValueError(f"the {part} part is empty, expected one pair or more")

    @property
    def parts(self) -> Iterator[tuple[str, Split]]:
        """The three parts with their names."""
        return zip(PARTS, (self.train, self.valid, self.test), strict=True)

    def at_most(self, words: int) -> Corpus:
        """The pairs whose source has at most this many words.

        The targets are not looked at, so that the reference has no say in what is asked.
        """
        splits = {part: split.at_most(words) for part, split in self.parts}
        for part, split in self.parts:
            if not len(splits[part]):
                shortest = min(len(source.split()) for source in split.sources)
                raise UsageError(
                    f"--max-words {words}: the shortest {self.source} sentence of the {part} part "
                    f"of {self.name} has {shortest} words; give that or more"
                )
        limit = words if self.max_words is None else min(words, self.max_words)
        return replace(self, **splits, max_words=limit)  # type: ignore[arg-type]  # keys of splits

    def first(self, n: int) -> Corpus:
        """Only the first `n` training pairs; the other parts as they are."""
        if not 1 <= n <= len(self.train):
            raise UsageError(
                f"--subset {n}: give 1 to {len(self.train)}, the number of training pairs of "
                f"{self.name}"
            )
        return replace(self, train=Split(self.train.sources[:n], self.train.targets[:n]))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the languages and of all sentences, in order; the name is not part of it."""
        digest = hashlib.sha256()
        _add(digest, self.source)
        _add(digest, self.target)
        for _, split in self.parts:
            _add_split(digest, split)
        return digest.hexdigest()


def _add_split(digest: hashlib._Hash, split: Split) -> None:
    _add(digest, str(len(split)))
    for sentence in (*split.sources, *split.targets):
        _add(digest, sentence)


def _add(digest: hashlib._Hash, text: str) -> None:
    data = text.encode()
    digest.update(b"%d:" % len(data) + data)  # the length keeps neighbours apart


def read_corpus(folder: str | Path, source: str, target: str) -> Corpus:
    """Read the files `train`, `valid` and `test`, each with a language as suffix, `train.en`.

    They are UTF-8 with a sentence on every line, packed by gzip (`train.en.gz`) or not; line N of a
    file is the translation of line N of the other. Byte-order marks before a sentence and carriage
    returns after it are no part of it. Training pairs with an empty side are left out
    and counted, because crawled text has some. In the other parts they are refused: a score over
    fewer sentences could not be compared with others.
    """
    folder = Path(folder)
    if source == target:
        raise UsageError(f"--source {source} --target {target}: give two different languages")
    if not folder.is_dir():
        found = "a file" if folder.is_file() else "nothing"
        raise UsageError(f"--data {folder}: found {found}, expected a folder")
    for part in PARTS:  # before a long file is read, all have to be there
        _find(folder, part, source), _find(folder, part, target)
    pairs = _read_split(*(_find(folder, "train", code) for code in (source, target)))
    train, dropped = _without_empty(pairs, _find(folder, "train", source))
    valid, test = (read_measured(folder, part, source, target) for part in PARTS[1:])
    return Corpus(folder.resolve().name, source, target, train, valid, test, dropped)


def read_measured(folder: Path, part: str, source: str, target: str) -> Split:
    """The valid or the test part of such a folder alone."""
    paths = _find(folder, part, source), _find(folder, part, target)
    split = _read_split(*paths)
    _refuse_empty(split, paths)
    return split


def _find(folder: Path, part: str, language: str) -> Path:
    spellings = (f"{part}.{language}", f"{part}.{language}.gz")
    found = [folder / name for name in spellings if (folder / name).is_file()]
    if len(found) == 2:
        raise UsageError(
            f"--data {folder}: found both {spellings[0]} and {spellings[1]}, expected one of them; "
            "move the other away"
        )
    if not found:
        there = _languages(folder, part)
        languages = f"has languages {', '.join(there)}" if there else "is there in no language"
        raise UsageError(
            f"--data {folder}: found neither {spellings[0]} nor {spellings[1]}; {part} {languages}"
        )
    return found[0]


def _languages(folder: Path, part: str) -> list[str]:
    """The languages that a part is there in, by the names of the files."""
    names = (path.name.removesuffix(".gz") for path in folder.glob(f"{part}.*") if path.is_file())
    return sorted({name.removeprefix(f"{part}.") for name in names} - {""})


def _read_split(source: Path, target: Path) -> Split:
    sources, targets = _read_lines(source), _read_lines(target)
    if len(sources) != len(targets):
        raise UsageError(
            f"{target}: found {len(targets)} lines, expected {len(sources)}, as there are that "
            f"many in {source.name}"
        )
    return Split(sources, targets)


def _read_lines(path: Path) -> list[str]:
    with opened(path) as (stream, _):
        data = stream.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The error counts without the byte-order mark, if there is one: it has no line feed.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}, line {line}: found the byte 0x{error.object[error.start]:02x} where it is "
            "not UTF-8; convert the file, as with iconv -t UTF-8"
        ) from error
    if not text:
        raise UsageError(f"{path}: found an empty file, expected a sentence on every line")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UsageError(
            f"{path}, line {line}: found a zero byte, expected UTF-8 text; convert the file, as "
            "with iconv -f UTF-16 -t UTF-8"
        )
    # str.splitlines would also split at form feeds, U+2028 and others, in one language only.
    return list(map(clean_line, text.removesuffix("\n").split("\n")))


def clean_line(line: str) -> str:
    """A line without byte-order marks in front and without its end.

    In every line, not the first alone, and as many as there are: of files that were put together
    or converted twice too, what is read is then the same again when it was written and read.
    """
    return line.lstrip("\ufeff").rstrip("\r\n")


def _without_empty(split: Split, path: Path) -> tuple[Split, int]:
    """The pairs with two sentences, and the number of the others."""
    pairs = zip(split.sources, split.targets, strict=True)
    kept = [pair for pair in pairs if all(map(str.strip, pair))]
    if not kept:
        raise UsageError(
            f"{path}: found no line with a sentence in both languages among {len(split)}"
        )
    return Split([pair[0] for pair in kept], [pair[1] for pair in kept]), len(split) - len(kept)


def _refuse_empty(split: Split, paths: tuple[Path, Path]) -> None:
    for path, sentences in zip(paths, (split.sources, split.targets), strict=True):
        for number, sentence in enumerate(sentences, 1):
            if not sentence.strip():
                raise UsageError(
                    f"{path}, line {number}: found an empty line, expected a sentence; delete the "
                    "line in both languages"
                )
