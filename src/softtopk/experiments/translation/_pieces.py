"""Sentences as numbers: byte-pair encoding by sentencepiece, a model for each language."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._files import sha256
from ..errors import UsageError, require_modules
from ..runs import check_digest
from ._batches import Pair
from ._corpus import Corpus, Split
from ._record import FORMAT, is_prepared, read_record

PAD, UNK, BOS, EOS = SPECIAL = range(4)
NORMALIZATIONS = ("identity", "nmt_nfkc", "nfkc")
# Bytes. Longer sentences are skipped by sentencepiece without a word.
LONGEST = 2**30


def train_pieces(
    sentences: Iterable[str], vocab_size: int, normalization: str = NORMALIZATIONS[0]
) -> bytes:
    """Learn pieces of words from sentences, and give the model as the bytes of its file.

    The same sentences give the same model. It has ``vocab_size`` pieces, with the four special
    ones, or as many as there are to be had in short texts. All characters of the sentences are
    among them. By default text is taken as it is, so that what is learned can be written as the
    references have it; only white space becomes a single space.

    Args:
        sentences: The training part of one language, and nothing else.
        vocab_size: How many pieces there may be.
        normalization: Sentencepiece's rule for characters.
    """
    require_modules("sentencepiece", what="byte-pair encoding")
    from sentencepiece import SentencePieceTrainer

    texts = [text for text in map(_plain, sentences) if text]
    if not texts:
        raise UsageError("found no text to learn pieces of words from, expected sentences")
    if vocab_size <= len(SPECIAL):
        raise UsageError(
            f"--vocab {vocab_size}: give more than {len(SPECIAL)}, which are the special pieces"
        )
    model = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=1.0,
            normalization_rule_name=normalization,
            max_sentence_length=LONGEST,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=1,
            minloglevel=2,  # errors, which are raised as well
        )
    except RuntimeError as error:
        needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error))
        if needed is None:
            raise
        raise UsageError(
            f"--vocab {vocab_size}: the text has so many different characters that it needs "
            f"{needed[1]} or more"
        ) from error
    return model.getvalue()


class Pieces:
    """Turns sentences into pieces and back.

    >>> pieces = Pieces(train_pieces(["one two", "two three"], 30))
    >>> pieces.decode(pieces.encode(["three one"]))
    ['three one']
    """

    def __init__(self, model: bytes) -> None:
        require_modules("sentencepiece", what="byte-pair encoding")
        from sentencepiece import SentencePieceProcessor

        self.model = model
        """The bytes of a sentencepiece model, to be stored."""
        self._processor = SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UsageError(f"found {len(model)} bytes, expected a sentencepiece model") from error
        processor = self._processor
        found = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if found != tuple(SPECIAL):
            raise UsageError(
                f"found a sentencepiece model with padding, unknown, begin and end as {found}, "
                f"expected {tuple(SPECIAL)}"
            )

    @property
    def size(self) -> int:
        """The number of pieces, with the special ones."""
        return self._processor.vocab_size()

    def encode(self, sentences: Sequence[str]) -> list[tuple[int, ...]]:
        """The pieces of every sentence, without begin and end."""
        return [tuple(row) for row in self._processor.encode(list(map(_plain, sentences)))]

    def texts(self, row: Sequence[int]) -> list[str]:
        """The text of every piece; one that begins a word begins with a low line, "\u2581"."""
        return [self._processor.id_to_piece(token) for token in row]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The sentences again; special pieces are left out."""
        plain = [[token for token in row if token not in SPECIAL] for row in rows]
        return [self._processor.decode(row) for row in plain]


def _plain(sentence: str) -> str:
    return " ".join(sentence.split())


@dataclass(frozen=True)
class Prepared:
    """A corpus with the pieces of its languages."""

    corpus: Corpus
    source: Pieces
    target: Pieces
    record: dict[str, Any]
    """What ``prepared.json`` says: the settings, and for each part the numbers of pairs and pieces
    and the share of unknown pieces."""


def prepare_corpus(
    corpus: Corpus,
    vocab_size: int,
    normalization: str = NORMALIZATIONS[0],
    pieces: Path | None = None,
) -> Prepared:
    """Learn the pieces of a corpus from its training part, or take those in the folder `pieces`.

    Writes nothing.
    """
    texts = {corpus.source: corpus.train.sources, corpus.target: corpus.train.targets}
    sides = {
        language: pieces_from(pieces, language)
        if pieces
        else Pieces(_train(language, sentences, vocab_size, normalization))
        for language, sentences in texts.items()
    }
    record = {
        **asked_of(corpus, vocab_size, normalization),
        "corpus": corpus.name,
        "dropped": corpus.dropped,
        "max_words": corpus.max_words,
        "sizes": {language: side.size for language, side in sides.items()},
        "sha256": {language: sha256(side.model) for language, side in sides.items()},
        "parts": {
            part: {
                "pairs": len(split),
                "sha256": split.fingerprint,
                corpus.source: _counts(sides[corpus.source].encode(split.sources)),
                corpus.target: _counts(sides[corpus.target].encode(split.targets)),
            }
            for part, split in corpus.parts
        },
    }
    return Prepared(corpus, sides[corpus.source], sides[corpus.target], record)


def asked_of(corpus: Corpus, vocab_size: int, normalization: str) -> dict[str, Any]:
    """What determines the pieces, as the record has it."""
    return {
        "format": FORMAT,
        "source": corpus.source,
        "target": corpus.target,
        "fingerprint": corpus.fingerprint,
        "vocab": vocab_size,
        "normalization": normalization,
    }


def pieces_from(folder: Path, language: str) -> Pieces:
    """The pieces of a language in a folder; of a prepared one, if they are as its record says."""
    path = model_path(folder, language)
    if not path.is_file():
        raise UsageError(f"{path} is missing: put it there, or give another folder as --pieces")
    model = path.read_bytes()
    if is_prepared(folder):
        check_digest(path, sha256(model), read_record(folder)["sha256"].get(language))
    try:
        return Pieces(model)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def model_path(folder: Path, language: str) -> Path:
    return folder / f"pieces.{language}.model"


def _train(language: str, sentences: Sequence[str], vocab_size: int, normalization: str) -> bytes:
    try:
        return train_pieces(sentences, vocab_size, normalization)
    except UsageError as error:
        raise UsageError(f"{error} (training part, language {language})") from error


def _counts(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    tokens = sum(map(len, rows))
    unknown = sum(row.count(UNK) for row in rows)
    return {"tokens": tokens, "unknown": unknown / max(tokens, 1)}


def pairs_of(
    split: Split, source: Pieces, target: Pieces, max_length: int | None = None
) -> tuple[list[Pair], int]:
    """The pairs as pieces, and how many were left out.

    Args:
        split: The sentences.
        source: The pieces of the language to translate from.
        target: The pieces of the language to translate into.
        max_length: Pairs with more pieces on either side are left out. For training only: a
            measured part has to be whole.
    """
    rows = zip(source.encode(split.sources), target.encode(split.targets), strict=True)
    pairs = [Pair(*row) for row in rows]
    if max_length is None:
        return pairs, 0
    kept = [pair for pair in pairs if max(map(len, pair)) <= max_length]
    if not kept:
        shortest = min(max(map(len, pair)) for pair in pairs)
        raise UsageError(
            f"--max-length {max_length}: no pair is so short; the shortest has {shortest} pieces"
        )
    return kept, len(pairs) - len(kept)
