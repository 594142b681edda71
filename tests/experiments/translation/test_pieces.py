"""Sentences as pieces, and the folder they are kept in."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import read_sealed, write_sealed
from softtopk.experiments.translation import (
    Corpus,
    Pieces,
    Prepared,
    Split,
    _data,
    _pieces,
    pairs_of,
    prepare_corpus,
    read_corpus,
    train_pieces,
)
from softtopk.experiments.translation._data import (
    load_corpus,
    max_words_of,
    prepare_folder,
    read_part,
    read_prepared,
)
from softtopk.experiments.translation._settings import Settings

ENGLISH = ["the house is small", "a small tree", "the tree is old", "an old house"] * 3
FRENCH = ["la maison est petite", "un petit arbre", "l’arbre est âgé", "une vieille maison"] * 3
CORPUS = Corpus(
    "c", "en", "fr", Split(ENGLISH, FRENCH), Split(["tree"], ["arbre"]), Split(["a xyz"], ["un"])
)
TEXT = {"train.en.gz", "train.fr.gz", "valid.en", "valid.fr", "test.en", "test.fr"}
FILES = {*TEXT, "pieces.en.model", "pieces.fr.model", "prepared.json"}


@pytest.fixture(scope="module")
def english() -> Pieces:
    return Pieces(train_pieces(ENGLISH, 40))


def refused(*parts: str) -> Any:
    """An error with these parts, in this order."""
    return pytest.raises(UsageError, match=".*".join(map(re.escape, parts)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- the model ---


def test_there_and_back(english: Pieces) -> None:
    rows = english.encode(ENGLISH)
    assert english.decode(rows) == ENGLISH
    assert english.size == 40
    assert all(4 <= token < 40 for row in rows for token in row)
    assert all(isinstance(row, tuple) for row in rows)


def test_words_become_pieces_of_several_letters(english: Pieces) -> None:
    assert len(english.encode(["the small house"])[0]) < len("the small house") / 2


def test_text_is_not_normalised() -> None:
    """The references have these characters, so that a translation must be able to."""
    texts = ["Ouvrir… H² ﬁn ™ É E\u0301"]
    pieces = Pieces(train_pieces(texts, 60))
    assert pieces.decode(pieces.encode(texts)) == texts


def test_white_space_becomes_a_space(english: Pieces) -> None:
    spaced = "the\u00a0 house\u202fis\tsmall "
    assert english.encode([spaced]) == english.encode(["the house is small"])
    learned = train_pieces(["the\u00a0house\u202fis\tsmall"], 40)
    assert learned == train_pieces(["the house is small"], 40)


def test_special_pieces(english: Pieces) -> None:
    row = english.encode(["old house"])[0]
    assert english.decode([(2, *row, 1, 3, 0, 0), (), (3,)]) == ["old house", "", ""]
    assert english.encode(["", "日"])[0] == ()
    assert 1 in english.encode(["日"])[0]


def test_the_names_of_special_pieces_are_text(english: Pieces) -> None:
    for row in english.encode(["<s> </s> <pad>"]):
        assert not {0, 2, 3} & set(row)


def test_training_is_deterministic(english: Pieces) -> None:
    assert train_pieces(iter(ENGLISH), 40) == english.model
    assert Pieces(english.model).encode(ENGLISH) == english.encode(ENGLISH)


def test_training_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    train_pieces(ENGLISH, 40)
    assert capfd.readouterr() == ("", "")


def test_long_sentences_are_learned_from() -> None:
    """Of 4192 bytes and more, which sentencepiece skips unless told otherwise."""
    long = "wordy " * 2_000
    pieces = Pieces(train_pieces(["z", long], 30))
    assert 1 not in pieces.encode([long])[0]


def test_few_characters_give_few_pieces() -> None:
    assert 6 < Pieces(train_pieces(["ab ab"], 10_000)).size < 20


def test_vocab_is_too_small() -> None:
    characters = len({*"".join(ENGLISH).replace(" ", "▁")})
    with refused("--vocab 10: the text has so many", f"needs {characters + 4} or more"):
        train_pieces(ENGLISH, 10)
    assert Pieces(train_pieces(ENGLISH, characters + 4)).size == characters + 4


@pytest.mark.parametrize("vocab", [-1, 0, 4])
def test_vocab_has_room_for_special_pieces(vocab: int) -> None:
    with refused(f"--vocab {vocab}: give more than 4"):
        train_pieces(ENGLISH, vocab)


@pytest.mark.parametrize("sentences", [[], ["", " "]])
def test_no_text(sentences: list[str]) -> None:
    with refused("no text"):
        train_pieces(sentences, 100)


def test_not_a_model() -> None:
    with refused("found 7 bytes, expected a sentencepiece model"):
        Pieces(b"rubbish")


def test_a_model_with_other_special_pieces() -> None:
    import io

    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_writer=model,
        vocab_size=30,
        model_type="bpe",
        minloglevel=2,
    )
    with refused("(-1, 0, 1, 2), expected (0, 1, 2, 3)"):
        Pieces(model.getvalue())


def test_it_needs_sentencepiece(english: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with refused("needs sentencepiece", "softtopk[translate]"):
        train_pieces(ENGLISH, 40)
    with refused("needs sentencepiece", "softtopk[translate]"):
        Pieces(english.model)


# --- the folder ---


def prepare(corpus: Corpus, vocab: int, folder: Path) -> Prepared:
    return prepare_folder(corpus, Settings(vocab=vocab), folder)


def test_prepare(tmp_path: Path) -> None:
    prepared = prepare(CORPUS, 50, tmp_path / "folder")
    files = contents(tmp_path / "folder")
    assert set(files) == FILES
    # From the training part of one language, and from nothing else.
    assert files["pieces.en.model"] == prepared.source.model == train_pieces(ENGLISH, 50)
    assert files["pieces.fr.model"] == prepared.target.model == train_pieces(FRENCH, 50)
    record = read_sealed(tmp_path / "folder" / "prepared.json")
    assert record == prepared.record
    assert record["fingerprint"] == CORPUS.fingerprint
    assert record["vocab"] == 50
    assert record["sizes"] == {"en": prepared.source.size, "fr": prepared.target.size}
    assert record["parts"]["train"]["pairs"] == 12
    tokens = sum(map(len, prepared.target.encode(FRENCH)))
    assert record["parts"]["train"]["fr"] == {"tokens": tokens, "unknown": 0.0}
    row = prepared.source.encode(["a xyz"])[0]
    expected = {"tokens": len(row), "unknown": row.count(1) / len(row)}
    assert expected["unknown"] > 0
    assert record["parts"]["test"]["en"] == expected


def test_prepare_again_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(CORPUS, 50, tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(_pieces, "train_pieces", None)
    again = prepare(replace(CORPUS, name="moved"), 50, tmp_path)
    assert (again.source.model, again.target.model) == (first.source.model, first.target.model)
    assert again.record == first.record
    assert contents(tmp_path) == before


def test_prepare_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any of the files."""
    prepare(CORPUS, 50, tmp_path / "whole")

    for survived in range(len(FILES)):
        folder = tmp_path / str(survived)
        writes = iter(range(survived))

        def crash(path: Path, content: Any, writes: Any = writes) -> None:
            if next(writes, None) is None:
                raise KeyboardInterrupt
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)

        with monkeypatch.context() as patch:
            patch.setattr(_data, "write_atomic", crash)
            patch.setattr(_data, "write_sealed", crash)
            with pytest.raises(KeyboardInterrupt):
                prepare(CORPUS, 50, folder)
        prepare(CORPUS, 50, folder)
        assert contents(folder) == contents(tmp_path / "whole")


def test_prepare_for_something_else(tmp_path: Path) -> None:
    prepare(CORPUS, 50, tmp_path)
    before = contents(tmp_path)
    with refused("prepared differently (vocab was 50, not 60)", "delete", "prepared.json"):
        prepare(CORPUS, 60, tmp_path)
    other = CORPUS.first(8)
    with refused(f"fingerprint was '{CORPUS.fingerprint}', not '{other.fingerprint}'"):
        prepare(other, 50, tmp_path)
    assert contents(tmp_path) == before


def test_another_version(tmp_path: Path) -> None:
    write_sealed(tmp_path / "prepared.json", {"format": 99})
    with refused("prepared.json is not of this version"):
        prepare(CORPUS, 50, tmp_path)
    (tmp_path / "prepared.json").write_text("[]")
    with refused("prepared.json is damaged"):
        prepare(CORPUS, 50, tmp_path)


def test_a_model_that_was_changed(tmp_path: Path) -> None:
    prepare(CORPUS, 50, tmp_path)
    (tmp_path / "pieces.fr.model").write_bytes(train_pieces(ENGLISH, 50))
    with refused("pieces.fr.model is damaged", "restore"):
        prepare(CORPUS, 50, tmp_path)
    with refused("pieces.fr.model is damaged", "restore"):  # also as --pieces of other text
        prepare_corpus(CORPUS.first(8), 50, pieces=tmp_path)
    (tmp_path / "pieces.fr.model").unlink()
    with refused("pieces.fr.model is missing"):
        prepare(CORPUS, 50, tmp_path)


def test_a_vocab_that_does_not_do_says_for_which_language(tmp_path: Path) -> None:
    short = replace(CORPUS, train=Split(["a b"], ["abcdefghijklmnopq"]))
    with refused("--vocab 10", "language fr"):
        prepare(short, 10, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file/folder"):
        prepare(CORPUS, 50, tmp_path / "file" / "folder")


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    """Sentences with a mark or with line ends of their own too, wherever they come to stand."""
    odd = Split(["long line", "\ufeff\ufeffa tree\r", "a\rb\r\r"], ["x", "\ufeffy\r", "z"])
    text = tmp_path / "text"
    text.mkdir()
    for part in ("train", "valid", "test"):
        for code, sentences in (("en", odd.sources), ("fr", odd.targets)):
            data = "".join(f"{sentence}\r\n" for sentence in sentences).encode()
            (text / f"{part}.{code}").write_bytes(data)
    corpus = replace(read_corpus(text, "en", "fr"), train=CORPUS.train)
    corpus = replace(corpus, valid=Split(corpus.valid.sources[1:], corpus.valid.targets[1:]))
    assert corpus.valid == Split(["a tree", "a\rb"], ["y", "z"])
    prepare(corpus, 50, tmp_path / "folder")
    again = read_prepared(tmp_path / "folder", "en", "fr")
    assert again.corpus.fingerprint == corpus.fingerprint
    assert again.corpus == corpus
    assert read_part(tmp_path / "folder", "valid", "en", "fr") == corpus.valid


def test_text_that_was_changed(tmp_path: Path) -> None:
    prepare(CORPUS, 50, tmp_path)
    (tmp_path / "test.en").write_text("a house\n")
    with refused("test.{en,fr} is damaged", "restore"):
        read_part(tmp_path, "test", "en", "fr")
    assert read_part(tmp_path, "valid", "en", "fr") == CORPUS.valid
    with refused("test.{en,fr} is damaged", "restore"):
        read_prepared(tmp_path, "en", "fr")
    for source, target in (("en", "fr"), ("fr", "en")):  # as the text of another run
        with refused("test.{en,fr} is damaged", "restore"):
            load_corpus(Settings(data=str(tmp_path), source=source, target=target))


def test_prepared_text_can_be_used_in_both_directions(tmp_path: Path) -> None:
    """Its limit of words is known to what goes on with it, in the direction that it was for."""
    prepare(CORPUS.at_most(20), 50, tmp_path)
    corpus = load_corpus(Settings(data=str(tmp_path), source="fr", target="en"))
    assert corpus.test == Split(CORPUS.test.targets, CORPUS.test.sources)
    assert corpus.max_words is None
    assert load_corpus(Settings(data=str(tmp_path))).max_words == max_words_of(tmp_path) == 20


def test_one_changed_bit_in_a_prepared_folder_is_noticed(tmp_path: Path) -> None:
    prepare(CORPUS, 50, tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) == len(FILES)
    for file in files:
        good = file.read_bytes()
        for place in range(0, len(good), max(1, len(good) // 30)):
            if file.suffix == ".gz" and place in range(4, 10):  # its date and system: not the text
                continue
            changed = bytearray(good)
            changed[place] ^= 1
            file.write_bytes(changed)
            with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
                read_prepared(tmp_path, "en", "fr")
        file.write_bytes(good)
    assert read_prepared(tmp_path, "en", "fr").corpus == CORPUS


# --- pairs ---


def test_pairs() -> None:
    prepared = prepare_corpus(CORPUS, 50)
    pairs, dropped = pairs_of(CORPUS.train, prepared.source, prepared.target)
    assert dropped == 0
    assert [pair.source for pair in pairs] == prepared.source.encode(ENGLISH)
    assert [pair.target for pair in pairs] == prepared.target.encode(FRENCH)


def test_long_pairs_are_counted() -> None:
    """Long on either side, and not those at the limit."""
    prepared = prepare_corpus(CORPUS, 50)
    word, mot = prepared.source.encode(["a"])[0], prepared.target.encode(["un"])[0]
    assert (len(word), len(mot)) == (1, 1)
    split = Split(["a a", "a a a", "a a"], ["un un", "un", "un un un"])
    pairs, dropped = pairs_of(split, prepared.source, prepared.target, max_length=2)
    assert pairs == [(word * 2, mot * 2)]
    assert dropped == 2
    with refused("--max-length 1: no pair is so short; the shortest has 2 pieces"):
        pairs_of(split, prepared.source, prepared.target, max_length=1)
