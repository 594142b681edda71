"""Settings, each declared once: `setting` makes a field of a `Declared` dataclass.

The name, the type and the default are those of the field. The help, the group and the limits stand
with it. The command line, the checks, the records of runs and the commands below tables take all
of this from the declaration.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import UsageError

MAIN, MACHINE = "Main options", "Machine"  # groups that many commands have
Effect = dict[str, Collection[Any]]
"""By the names of settings, the values of them with which another one has an effect."""
_KEY = "setting"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is declared of a setting. The first five are read off the field."""

    name: str = ""
    kind: type = str
    """Of the value, or of the parts of a list."""
    is_list: bool = False
    can_be_none: bool = False
    default: Any = None
    """`dataclasses.MISSING` if the setting has to be given."""
    help: str = ""
    group: str = MAIN
    """The heading that it stands under in the help of a command."""
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    """``low`` and ``high`` are the least and the largest value, the others no values themselves."""
    choices: tuple[str, ...] = ()
    """The values of a text, or of the parts of a list; a `Literal` type has them too."""
    all_of: tuple[str, ...] = ()
    """What ``all`` stands for in a list."""
    only: Effect = field(default_factory=dict)
    """What it has an effect with."""
    shown: str = ""
    """The default as the help names it, if that says more than its value."""
    argument: bool = False
    """Given by its place, without its name."""
    switch: bool = False
    """Off unless it is given, with no option to turn it off."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def names(self) -> tuple[str, ...]:
        """The texts that can be given, if only these can."""
        more = ["all"] if self.all_of else ["none"] if self.choices and self.can_be_none else []
        return (*self.choices, *more)

    @property
    def default_text(self) -> str | None:
        """The default for the help; None if there is nothing to say."""
        if self.shown or self.switch or self.default in (MISSING, ()):
            return self.shown or None
        if self.default is None:
            return "none" if self.choices else None
        return self.as_option(self.default) if self.kind is bool else as_text(self.default)

    def parse(self, value: Any) -> Any:
        """The value of a text with commas, or of ``none``; others are values already."""
        if self.is_list and isinstance(value, str):
            parts = [part.strip() for part in value.split(",") if part.strip()]
            if self.choices:
                parts = [part.lower() for part in parts]
            if not parts:
                raise self._wrong(value)
            if self.all_of and parts == ["all"]:
                return self.all_of
            try:
                found = dict.fromkeys(self.kind(part) for part in parts)
                return tuple(sorted(found) if self.kind is int else found)
            except ValueError:
                raise self._wrong(value) from None
        if self.choices and self.can_be_none and value == "none":
            return None
        return value

    def check(self, value: Any) -> None:
        """Refuse a value that is not within the limits."""
        if value is None and self.can_be_none:
            return
        parts = value if self.is_list else (value,)
        if self.is_list and not parts and self.default != ():
            raise self._wrong("")
        for part in parts:
            if self.choices and part not in self.choices:
                raise self._wrong(part)
            if self._bounds and not (
                math.isfinite(part)
                and all(_HOLDS[name](part, bound) for name, bound in self._bounds.items())
            ):
                raise self._wrong(as_text(value) if self.is_list else part)

    def _wrong(self, value: Any) -> UsageError:
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        return UsageError(f"{self.flag} {shown}: give {self._wanted()}")

    def _wanted(self) -> str:
        if self.choices:
            return f"one {'or more ' if self.is_list else ''}of {', '.join(self.names)}"
        if self.is_list:
            kind = "names" if self.kind is str else f"numbers{self._range()}"
            return f"one or more {kind}, with commas between them"
        return f"a number{self._range()}"

    @property
    def _bounds(self) -> dict[str, float]:
        bounds = {name: getattr(self, name) for name in _HOLDS}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    def _range(self) -> str:
        """
        >>> Setting(low=1)._range(), Setting(low=0, below=1)._range()
        (' of at least 1', ' from 0 to below 1')
        """
        words = {"low": "from", "above": "above", "high": "to", "below": "to below"}
        if len(self._bounds) == 1:
            words |= {"low": "of at least", "high": "of at most", "below": "below"}
        return "".join(f" {words[name]} {bound:g}" for name, bound in self._bounds.items())

    def missing(self, values: Mapping[str, Any]) -> str | None:
        """The setting in ``values`` with which this one has no effect, if there is one."""
        return next(
            (name for name, few in self.only.items() if name in values and values[name] not in few),
            None,
        )

    def as_option(self, value: Any) -> str:
        """The setting as it is given on the command line."""
        if self.kind is bool:
            return self.flag if value else f"--no-{self.flag.removeprefix('--')}"
        return f"{self.flag} {as_text(value)}"


_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "low": lambda value, bound: value >= bound,
    "above": lambda value, bound: value > bound,
    "high": lambda value, bound: value <= bound,
    "below": lambda value, bound: value < bound,
}


def setting(
    default: Any = MISSING, help: str = "", *, factory: Callable[[], Any] | None = None, **said: Any
) -> Any:
    """A field of a `Declared` dataclass; ``said`` are fields of `Setting`.

    ``factory`` makes a default that depends on the machine.
    """
    metadata = {_KEY: Setting(help=help, **said)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def as_text(value: Any) -> str:
    """A value as it is given on the command line.

    >>> as_text(None), as_text((1, 5)), as_text(2e-05)
    ('none', '1,5', '2e-05')
    """
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return "none" if value is None else str(value)


class Declared:
    """The base of a frozen dataclass whose fields are settings: they are parsed and checked."""

    def __post_init__(self) -> None:
        for one in declared(type(self)).values():
            value = one.parse(getattr(self, one.name))
            value = tuple(value) if isinstance(value, list) else value  # as JSON has it
            one.check(value)
            object.__setattr__(self, one.name, value)


def declared(settings: type) -> dict[str, Setting]:
    """The settings of a dataclass by name, in the order in which they stand there."""
    return _declared(settings)


@cache
def _declared(settings: Any) -> dict[str, Setting]:
    hints = get_type_hints(settings)
    return {
        item.name: replace(
            item.metadata[_KEY],
            name=item.name,
            default=item.default if item.default_factory is MISSING else None,
            **_read_type(hints[item.name]),
        )
        for item in fields(settings)
        if _KEY in item.metadata
    }


def _read_type(hint: Any) -> dict[str, Any]:
    """What a type says of a setting.

    >>> _read_type(tuple[int, ...] | None)
    {'kind': <class 'int'>, 'is_list': True, 'can_be_none': True}
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    (kind,) = (option for option in options if option is not type(None))
    is_list = get_origin(kind) is tuple
    kind = get_args(kind)[0] if is_list else kind
    literals = {"choices": get_args(kind)} if get_origin(kind) is Literal else {}
    kind = str if literals else kind
    return {"kind": kind, "is_list": is_list, "can_be_none": type(None) in options, **literals}


def parse_given(settings: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Some of the settings of a dataclass, parsed and each checked by itself."""
    known, values = declared(settings), {}
    for name, value in given.items():
        values[name] = known[name].parse(value)
        known[name].check(values[name])
    return values


def in_groups(settings: type, *groups: str) -> tuple[str, ...]:
    """The names of the settings in these groups."""
    return tuple(name for name, one in declared(settings).items() if one.group in groups)


def relevant(settings: type, values: Mapping[str, Any], *groups: str) -> tuple[str, ...]:
    """The names of the settings, by default of all groups, that have an effect with ``values``."""
    return tuple(
        name
        for name, one in declared(settings).items()
        if (not groups or one.group in groups) and one.missing(values) is None
    )


def refuse_idle(settings: type, given: Mapping[str, Any], *parts: Mapping[str, Any]) -> None:
    """Refuse what was given and has no effect with the settings of any part of the work.

    What no value of a setting is said to make use of has its effect elsewhere.
    """
    for name, value in given.items():
        one = declared(settings)[name]
        missing = [one.missing(part) for part in parts]
        *_, other = missing
        if all(missing) and other and one.only[other]:
            wanted = " or ".join(map(str, one.only[other]))
            raise UsageError(
                f"{one.flag} {as_text(value)}: it is for --{other.replace('_', '-')} {wanted}; "
                "leave it out"
            )


def recorded(settings: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a dataclass in the record of a run.

    A record from before a setting was there has none of it: it was as the default is.
    """
    return {name: config.get(name, one.default) for name, one in declared(settings).items()}


def as_options(settings: Any, values: Mapping[str, Any], always: Collection[str] = ()) -> list[str]:
    """Those of the ``values`` that differ from ``settings``, as they are given to a command.

    Those in ``always`` are given in any case.
    """
    base, known = asdict(settings), declared(type(settings))
    return [
        known[name].as_option(value)
        for name, value in values.items()
        if value != base[name] or name in always
    ]


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Declared):
    """What every command that trains is given beside its settings."""

    out: Path = setting(help="Folder of the run: a new one, or with --resume one that is there.")
    resume: bool = setting(
        False,
        "Go on with the run in --out, with its settings. Parts and seeds may be added.",
        switch=True,
    )
    seed: tuple[int, ...] = setting(
        (), "One or several, as in 0,1,2.", low=0, below=2**32, shown="0"
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(Declared):
    """What a command is given that makes a table from records."""

    runs: tuple[Path, ...] = setting(help="Folders with runs.", argument=True)
    out: Path | None = setting(None, "Write the table here, as Markdown and as JSON.")
