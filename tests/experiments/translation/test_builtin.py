"""The corpus that needs no files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from softtopk.experiments.errors import UsageError
from softtopk.experiments.translation import Corpus, builtin_corpus

MONTHS = "January February March April May June July August September October November December"
DATE = re.compile(rf"({'|'.join(MONTHS.split())}) (\d+), (\d{{4}})")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return builtin_corpus()


def parts(corpus: Corpus) -> Iterator[tuple[list[str], list[str]]]:
    yield from ((split.sources, split.targets) for _, split in corpus.parts)


def test_sizes(corpus: Corpus) -> None:
    assert (corpus.name, corpus.source, corpus.target) == ("cldr", "en", "fr")
    assert len(corpus.train) >= 6_000
    assert 300 <= len(corpus.valid) <= 500
    assert 300 <= len(corpus.test) <= 500
    lengths = [len(source.split()) for source in corpus.train.sources]
    assert 3 < sum(lengths) / len(lengths) < 8
    assert max(lengths) <= 16


def test_no_sentence_occurs_twice(corpus: Corpus) -> None:
    """In one part or in two."""
    for side in zip(*parts(corpus), strict=True):
        sentences = [sentence for part in side for sentence in part]
        assert len(set(sentences)) == len(sentences)


def test_no_date_is_in_two_parts(corpus: Corpus) -> None:
    """In another format: with a time, without the weekday."""
    dates = [
        {match.groups() for s in sources for match in DATE.finditer(s)}
        for sources, _ in parts(corpus)
    ]
    assert all(len(part) > 30 for part in dates)
    assert not dates[0] & dates[1]
    assert not dates[0] & dates[2]
    assert not dates[1] & dates[2]


def test_no_list_is_in_two_parts(corpus: Corpus) -> None:
    """In another order, or with another conjunction."""
    lists = [
        [
            frozenset(re.split(r", (?:and |or )?| and | or ", source))
            for source in sources
            if re.search(" (and|or) ", source)
        ]
        for sources, _ in parts(corpus)
    ]
    assert all(len(part) > 50 for part in lists)
    everything = [members for part in lists for members in part]
    assert len(set(everything)) == len(everything)


def test_no_distance_is_in_two_parts(corpus: Corpus) -> None:
    """In the other direction."""
    ways = [
        {
            m[1]
            for s in sources
            if (m := re.fullmatch(r"(?:in )?(\d+ \w+?s?)(?: ago)?", s)) and re.search("^in|ago$", s)
        }
        for sources, _ in parts(corpus)
    ]
    assert all(len(part) > 10 for part in ways)
    assert not ways[0] & ways[1]
    assert not ways[0] & ways[2]
    assert not ways[1] & ways[2]


def test_every_kind_is_measured(corpus: Corpus) -> None:
    kinds = {
        "date": rf"(\w+day, )?{DATE.pattern}",
        "date and time": rf".*{DATE.pattern}, \d+:\d\d [AP]M",
        "interval": r".* – .*\d{4}",
        "distance": r"in \d+ \w+|\d+ \w+ ago",
        "amount": r"[\d,]+\.\d\d [^\d]+",
        "rate": r"\d+ [\w ]+ per \w+",
        "measures": r"[\d.]+ [\w -]+, [\d.]+ [\w -]+",
        "list": r"[^\d]+ (and|or) [^\d]+",
    }
    for sources, _ in parts(corpus):
        found = {kind: sum(bool(re.fullmatch(p, s)) for s in sources) for kind, p in kinds.items()}
        assert min(found.values()) >= 8, found


def test_the_sides_say_the_same(corpus: Corpus) -> None:
    """Known translations, not made by this code."""
    known = {
        "Germany": "Allemagne",
        "Swiss Franc": "franc suisse",
        "Japanese": "japonais",
    }
    pairs = dict(zip(corpus.train.sources, corpus.train.targets, strict=True))
    assert {source: pairs[source] for source in known} == known
    for sources, targets in parts(corpus):
        for source, target in zip(sources, targets, strict=True):
            if match := re.fullmatch(r"(in )?(\d+) days( ago)?", source):
                start = "dans" if match[1] else "il y a"
                assert target in (f"{start} {match[2]} jours", f"{match[2]} jours")
            if match := re.search(r"(\d+):(\d\d) ([AP])M$", source):
                hour = int(match[1]) % 12 + 12 * (match[3] == "P")
                assert target.endswith(f", {hour:02}:{match[2]}")
            if match := DATE.search(source):
                assert re.search(rf"\b{match[2]} \w+\.? {match[3]}\b", target)


def test_plain_spaces(corpus: Corpus) -> None:
    for part in parts(corpus):
        for sentence in (*part[0], *part[1]):
            assert sentence
            assert sentence == " ".join(sentence.split())


def test_it_does_not_depend_on_the_process(corpus: Corpus) -> None:
    """Nor on where and when it runs, as far as that can be set from outside."""
    code = (
        "from softtopk.experiments.translation import builtin_corpus;"
        "print(builtin_corpus().fingerprint)"
    )
    changes = {"PYTHONHASHSEED": "7", "LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **changes, "TZ": "Pacific/Kiritimati"},
    )
    assert result.stdout.strip() == corpus.fingerprint


def test_it_needs_babel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(UsageError, match=r"built-in corpus needs babel: .*softtopk\[translate\]"):
        builtin_corpus()
