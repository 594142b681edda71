"""A corpus that needs no files: what the Unicode CLDR calls things in English and in French.

Babel has these data and the rules for dates, amounts, measures and lists, which differ between the
two languages in words, in their order, in agreement and in punctuation.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeVar

from ..errors import require_modules
from ._corpus import Corpus, Split

if TYPE_CHECKING:
    from babel import Locale

TimeUnit = Literal["second", "minute", "hour", "day", "week", "month", "year"]

SOURCE, TARGET = "en", "fr"
SEED = 2020
HELD_OUT = 400  # pairs of valid and of test, but for a few that are also in the training part

FIRST, DAYS = datetime(1950, 1, 1), 36_525  # a century of dates
MONEY_ON = date(2020, 1, 1)  # a fixed day, lest the currencies change with today's
NO_PLACES = {"QO", "XA", "XB", "ZZ"}  # codes for no territory in particular
SECONDS: dict[TimeUnit, int] = {  # as Babel counts them
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 7 * 86_400,
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
PERIODS = ("duration-second", "duration-minute", "duration-hour", "duration-day", "duration-week")
UNITS = (
    *("angle-degree", "area-acre", "area-hectare", "area-square-kilometer", "area-square-meter"),
    *("digital-byte", "digital-gigabyte", "digital-megabyte", "electric-volt", "energy-calorie"),
    *("energy-joule", "energy-kilowatt-hour", "frequency-hertz", "length-centimeter"),
    *("length-foot", "length-inch", "length-kilometer", "length-light-year", "length-meter"),
    *("length-mile", "length-millimeter", "length-nautical-mile", "length-yard", "mass-gram"),
    *("mass-kilogram", "mass-ounce", "mass-pound", "mass-tonne", "power-horsepower"),
    *("power-watt", "volume-barrel", "volume-cubic-meter", "volume-cup", "volume-gallon"),
    *("volume-liter", "volume-milliliter", "volume-pint", "volume-tablespoon"),
)

T = TypeVar("T", bound=Hashable)
Wording = tuple[str, str]
Fact = list[Wording]  # the ways to say one thing, which all go into the same part


def builtin_corpus() -> Corpus:
    """The corpus, which is always the same with the same version of Babel.

    A date, an amount or a list is in one part in all its forms: if the training part has a date in
    one format, the test part does not have it in another, nor a list in another order. In all
    parts together no source and no target occurs twice. Plain names are for training only: they
    are what the sentences are composed of, and could not be guessed.

    The parts do share what sentences are made of. A single measure can occur in training and in
    test, each time in a pair with another one, and a few short test sentences are within longer
    training sentences, as "6 seconds ago" is within "16 seconds ago".
    """
    require_modules("babel", what="the built-in corpus")
    rng = random.Random(SEED)
    cldr = _Cldr(rng)
    facts = list(cldr.facts())
    rng.shuffle(facts)
    remaining = iter(facts)
    valid, test = _take(remaining, HELD_OUT), _take(remaining, HELD_OUT)
    train = [*cldr.names(), *chain.from_iterable(remaining)]
    rng.shuffle(train)
    seen: set[Wording] = set()
    # In this order: what two parts have in common stays in the training part.
    splits = [_unseen(wordings, seen) for wordings in (train, valid, test)]
    return Corpus("cldr", SOURCE, TARGET, splits[0], splits[1], splits[2])


def _take(facts: Iterator[Fact], n: int) -> Fact:
    """Whole facts, which are `n` wordings or one or two more."""
    taken: Fact = []
    while len(taken) < n:
        taken += next(facts)
    return taken


def _unseen(wordings: Sequence[Wording], seen: set[Wording]) -> Split:
    """The wordings with two new sides; ``seen`` has sides, each with its language."""
    split = Split([], [])
    for source, target in wordings:
        sides = {(SOURCE, source), (TARGET, target)}
        if seen.isdisjoint(sides):
            seen |= sides
            split.sources.append(source)
            split.targets.append(target)
    return split


class _Cldr:
    """Draws facts and puts them into words."""

    def __init__(self, rng: random.Random) -> None:
        from babel import Locale
        from babel.numbers import get_territory_currencies

        self.rng = rng
        self.locales = Locale(SOURCE), Locale(TARGET)
        places = _codes(*(locale.territories for locale in self.locales))
        self.territories = [place for place in places if place not in NO_PLACES]
        self.languages = _codes(*(locale.languages for locale in self.locales))
        # Most currencies of CLDR are historical.
        used = (get_territory_currencies(place, MONEY_ON) for place in self.territories)
        self.currencies = sorted(set(chain.from_iterable(used)))

    def names(self) -> Fact:
        from babel.numbers import get_currency_name

        return [
            *(self._say(_territory, code) for code in self.territories),
            *(self._say(_language, code) for code in self.languages),
            *(self._say(get_currency_name, code) for code in self.currencies),
        ]

    def facts(self) -> Iterator[Fact]:
        """In shares that give every kind some hundreds of sentences."""
        yield from self._dates(1_200)
        yield from self._intervals(500)
        yield from self._distances(350)
        yield from self._amounts(1_000)
        yield from self._measures(700)
        yield from self._rates(500)
        yield from self._lists(_territory, self.territories, 1_200)
        yield from self._lists(_language, self.languages, 700)

    def _dates(self, n: int) -> Iterator[Fact]:
        """Friday, March 5, 2021, and that day with a time; the weekday may be missing."""
        from babel.dates import format_date

        for day in self.rng.sample(range(DAYS), n):
            moment = FIRST + timedelta(days=day, minutes=self.rng.randrange(24 * 60))
            one, other = self.rng.choices(("full", "long"), k=2)
            yield [self._say(format_date, moment, one), self._say(_date_and_time, moment, other)]

    def _intervals(self, n: int) -> Iterator[Fact]:
        """Mar 5 - 9, 2021."""
        from babel.dates import format_interval

        for day, length in _distinct(n, lambda: (self._below(DAYS), 1 + self._below(60))):
            start = (FIRST + timedelta(days=day)).date()
            skeleton = self.rng.choice(("yMMMd", "yMMMEd"))
            yield [self._say(format_interval, start, start + timedelta(days=length), skeleton)]

    def _distances(self, n: int) -> Iterator[Fact]:
        """In 3 days, and 3 days ago."""
        units = sorted(SECONDS)
        for count, unit in _distinct(n, lambda: (1 + self._below(99), self.rng.choice(units))):
            yield [self._say(_distance, sign * count, unit) for sign in (1, -1)]

    def _amounts(self, n: int) -> Iterator[Fact]:
        """1,234.50 Swiss francs."""
        from babel.numbers import format_currency

        for cents, code in _distinct(n, lambda: (self._cents(), self.rng.choice(self.currencies))):
            amount = Decimal(cents) / 100
            yield [self._say(format_currency, amount, code, format_type="name")]

    def _measures(self, n: int) -> Iterator[Fact]:
        """5.2 kilograms, and 5.2 kilograms with another measure."""

        def draw() -> tuple[Decimal, str]:
            # Many whole numbers, and among them many a one: that is where the forms differ.
            tenths = self.rng.choice((10, 10 * self._below(1_000), self._below(1_000)))
            return Decimal(tenths) / 10, self.rng.choice(UNITS)

        for measure, other in _distinct(n, lambda: (draw(), draw())):
            yield [self._say(_measures, [measure]), self._say(_measures, [measure, other])]

    def _rates(self, n: int) -> Iterator[Fact]:
        """20 liters per day."""
        from babel.units import format_compound_unit

        for count, unit, period in _distinct(
            n, lambda: (1 + self._below(500), self.rng.choice(UNITS), self.rng.choice(PERIODS))
        ):
            yield [self._say(format_compound_unit, count, unit, denominator_unit=period)]

    def _lists(self, name: Callable[..., str], codes: list[str], n: int) -> Iterator[Fact]:
        """Chad, Peru, and Italy; also with or."""
        for members in _distinct(
            n, lambda: frozenset(self.rng.sample(codes, self.rng.randint(2, 4)))
        ):
            ordered = self.rng.sample(sorted(members), len(members))  # a set has no order
            yield [self._say(_list, name, ordered, self.rng.choice(("standard", "or")))]

    def _below(self, n: int) -> int:
        return self.rng.randrange(n)

    def _cents(self) -> int:
        """An amount with one to four digits before the point, all as likely."""
        return 1 + self._below(10 ** self.rng.randint(3, 6))

    def _say(self, word: Callable[..., str | None], *args: object, **kwargs: object) -> Wording:
        """Both languages, with plain spaces in the place of CLDR's narrow and unbreakable ones."""
        source, target = (
            " ".join((word(*args, **kwargs, locale=locale) or "").split())
            for locale in self.locales
        )
        return source, target


def _codes(source: Mapping[str, str], target: Mapping[str, str]) -> list[str]:
    """The codes of two letters with a name in both languages; sorted, as tables have no order."""
    return sorted(c for c in source if len(c) == 2 and c in target)


def _distinct(n: int, draw: Callable[[], T]) -> list[T]:
    """Draw until there are `n` different ones."""
    found: dict[T, None] = {}
    while len(found) < n:
        found.setdefault(draw())
    return list(found)


def _territory(code: str, locale: Locale) -> str:
    return locale.territories[code]


def _language(code: str, locale: Locale) -> str:
    return locale.languages[code]


def _date_and_time(moment: datetime, style: Literal["full", "long"], locale: Locale) -> str:
    """As Babel's format_datetime, but without seconds and time zone."""
    from babel.dates import format_date, format_time, get_datetime_format

    pattern = str(get_datetime_format(style, locale=locale)).replace("'", "")
    return pattern.format(
        format_time(moment, "short", locale=locale), format_date(moment, style, locale=locale)
    )


def _distance(count: int, unit: TimeUnit, locale: Locale) -> str:
    from babel.dates import format_timedelta

    distance = timedelta(seconds=count * SECONDS[unit])
    # A threshold out of reach, so that 30 days do not become a month.
    return format_timedelta(
        distance, granularity=unit, threshold=10**9, add_direction=True, locale=locale
    )


def _measures(measures: list[tuple[Decimal, str]], locale: Locale) -> str:
    from babel.lists import format_list
    from babel.units import format_unit

    parts = [format_unit(number, unit, "long", locale=locale) for number, unit in measures]
    return format_list(parts, style="unit", locale=locale)


def _list(
    name: Callable[..., str], codes: list[str], style: Literal["standard", "or"], locale: Locale
) -> str:
    from babel.lists import format_list

    return format_list([name(code, locale=locale) for code in codes], style=style, locale=locale)
