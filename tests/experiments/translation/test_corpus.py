"""Parallel text from files that the tests write, and everything that is refused."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softtopk.experiments.errors import UsageError
from softtopk.experiments.translation import Corpus, Split, read_corpus

FILES = {
    "train.en": "one\ntwo words\nthree small words\n",
    "train.fr": "un\ndeux mots\ntrois petits mots\n",
    "valid.en": "a house\nhouse\n",
    "valid.fr": "une maison\nmaison\n",
    "test.en": "a tree\n",
    "test.fr": "un arbre\n",
}


def write(folder: Path, **changed: str | bytes | None) -> Path:
    """`train_en=...` takes the place of that file's contents; None leaves the file out."""
    for name, content in FILES.items():
        content = changed.get(name.replace(".", "_"), content)
        if content is not None:
            data = content.encode() if isinstance(content, str) else content
            (folder / name).write_bytes(data)
    return folder


def read(folder: Path, **changed: str | bytes | None) -> Corpus:
    return read_corpus(write(folder, **changed), "en", "fr")


def refused(*parts: str) -> Any:
    """An error with these parts, in this order."""
    return pytest.raises(UsageError, match=".*".join(map(re.escape, parts)))


def made_up() -> Corpus:
    train = Split(["a", "a b", "a b c", "d"], ["x", "x y z w", "x", "v"])
    return Corpus("c", "en", "fr", train, Split(["a"], ["x"]), Split(["b c"], ["y"]))


# --- reading ---


def test_round_trip(tmp_path: Path) -> None:
    (tmp_path / "my-corpus").mkdir()
    corpus = read(tmp_path / "my-corpus")
    assert (corpus.name, corpus.source, corpus.target) == ("my-corpus", "en", "fr")
    assert corpus.train.sources == ["one", "two words", "three small words"]
    assert corpus.train.targets == ["un", "deux mots", "trois petits mots"]
    assert corpus.valid == Split(["a house", "house"], ["une maison", "maison"])
    assert corpus.test == Split(["a tree"], ["un arbre"])
    assert corpus.dropped == 0


def test_the_other_direction(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path), "fr", "en")
    assert corpus.test == Split(["un arbre"], ["a tree"])


def test_packed_and_plain_files_mix(tmp_path: Path) -> None:
    expected = read(tmp_path)
    for name in ("train.en", "test.fr"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    assert read_corpus(tmp_path, "en", "fr") == expected


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    odd = "a\x0cb\x0bc\u2028d\u2029e\x85f\x1cg\rh"
    corpus = read(tmp_path, train_en=f"{odd}\nx\ny\n")
    assert corpus.train.sources == [odd, "x", "y"]


@pytest.mark.parametrize("last", ["", "\n", "\r\n"])
def test_line_ends_and_byte_order_mark(last: str, tmp_path: Path) -> None:
    data = b"\xef\xbb\xbf" + f"é\r\nb\nc{last}".encode()
    assert read(tmp_path, train_en=data).train.sources == ["é", "b", "c"]


def test_training_pairs_with_an_empty_side_are_counted(tmp_path: Path) -> None:
    corpus = read(tmp_path, train_en="a\n\n \t\nd\n\n", train_fr="x\ny\nz\n\u00a0\n\n")
    assert corpus.train == Split(["a"], ["x"])
    assert corpus.dropped == 4


def test_no_training_pair_is_left(tmp_path: Path) -> None:
    with refused("train.en", "no line with a sentence in both languages among 2"):
        read(tmp_path, train_en="a\n\n", train_fr="\nb\n")


@pytest.mark.parametrize("name", ["valid.en", "valid.fr"])
def test_empty_lines_of_a_measured_part(name: str, tmp_path: Path) -> None:
    with refused(f"{name}, line 2: found an empty line", "delete the line in both"):
        read(tmp_path, **{name.replace(".", "_"): "a\n \n"})


def test_empty_lines_in_both_languages_of_a_measured_part(tmp_path: Path) -> None:
    with refused("test.en, line 1"):
        read(tmp_path, test_en="\n", test_fr="\n")


def test_missing_folder(tmp_path: Path) -> None:
    with refused(f"--data {tmp_path / 'no'}: found nothing, expected a folder"):
        read_corpus(tmp_path / "no", "en", "fr")
    with refused("found a file"):
        read_corpus(write(tmp_path) / "train.en", "en", "fr")


def test_missing_file_names_the_languages(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train.pt-br.gz").write_bytes(b"")
    with refused("neither train.de nor train.de.gz", "train has languages en, fr, pt-br"):
        read_corpus(tmp_path, "en", "de")


def test_missing_part(tmp_path: Path) -> None:
    with refused("neither valid.en nor valid.en.gz", "valid is there in no language"):
        read(tmp_path, valid_en=None, valid_fr=None)


def test_packed_and_plain_at_once(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test.en.gz").write_bytes(b"")
    with refused("both test.en and test.en.gz"):
        read_corpus(tmp_path, "en", "fr")


def test_one_language(tmp_path: Path) -> None:
    with refused("--source en --target en", "two different"):
        read_corpus(write(tmp_path), "en", "en")


def test_different_numbers_of_lines(tmp_path: Path) -> None:
    with refused("valid.fr: found 3 lines, expected 2", "valid.en"):
        read(tmp_path, valid_fr="a\nb\nc")


@pytest.mark.parametrize(
    "data", [b"", b"\xef\xbb\xbf", gzip.compress(b"")], ids=["nothing", "mark", "gzip"]
)
def test_empty_file(data: bytes, tmp_path: Path) -> None:
    with refused("train.fr: found an empty file"):
        read(tmp_path, train_fr=data)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_wrong_encoding(mark: bytes, tmp_path: Path) -> None:
    with refused("train.fr, line 3: found the byte 0xe9", "not UTF-8"):
        read(tmp_path, train_fr=mark + "un\ndeux\né\n".encode("latin-1").replace(b"deux", b"d"))


def test_utf_16(tmp_path: Path) -> None:
    with refused("train.fr, line 1: found the byte 0xff"):
        read(tmp_path, train_fr="un\n".encode("utf-16"))
    with refused("train.fr, line 2: found a zero byte"):
        read(tmp_path, train_fr="un\nd\0e\n")


def test_damaged_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(b"some words\n" * 100)
    for damaged in (packed[:-9], packed[:20] + b"\xff\xff" + packed[22:]):
        with refused("train.en: found gzip that is cut off or damaged"):
            read(tmp_path, train_en=damaged)


# --- the corpus itself ---


def test_lengths_are_checked() -> None:
    with pytest.raises(ValueError, match="1 sources and 2 targets"):
        Split(["a"], ["b", "c"])
    with pytest.raises(ValueError, match="valid part is empty"):
        replace(made_up(), valid=Split([], []))


def test_at_most_looks_at_the_sources_only() -> None:
    corpus = made_up().at_most(2)
    assert corpus.train == Split(["a", "a b", "d"], ["x", "x y z w", "v"])
    assert (corpus.valid, corpus.test) == (made_up().valid, made_up().test)
    assert corpus.max_words == corpus.at_most(3).max_words == 2
    assert replace(made_up().at_most(3), max_words=None) == made_up()


def test_at_most_leaves_no_part_empty() -> None:
    with refused("--max-words 1", "of the test part of c has 2 words"):
        made_up().at_most(1)


def test_first_takes_training_pairs() -> None:
    corpus = made_up().first(2)
    assert corpus == replace(made_up(), train=Split(["a", "a b"], ["x", "x y z w"]))
    assert made_up().first(4) == made_up()


@pytest.mark.parametrize("n", [0, -1, 5])
def test_first_is_in_range(n: int) -> None:
    with refused(f"--subset {n}: give 1 to 4", "c"):
        made_up().first(n)


def test_the_fingerprint_is_that_of_the_content() -> None:
    corpus = made_up()
    assert re.fullmatch("[0-9a-f]{64}", corpus.fingerprint)
    assert made_up().fingerprint == corpus.fingerprint
    assert replace(corpus, name="other", dropped=3).fingerprint == corpus.fingerprint
    changed = [
        replace(corpus, source="de"),
        replace(corpus, target="de"),
        replace(corpus, valid=Split(["b"], ["x"])),
        replace(corpus, test=Split(["b c"], ["z"])),
        replace(corpus, valid=corpus.test, test=corpus.valid),
        corpus.first(3),
        # Bounds between sentences and sides that a plain concatenation would not show.
        replace(corpus, test=Split(["b "], ["cy"])),
        replace(corpus, valid=Split(["a", "x"], ["", ""])),
        replace(corpus, valid=Split(["a", ""], ["x", ""])),
    ]
    assert len({corpus.fingerprint, *(other.fingerprint for other in changed)}) == 10
