"""A command from declared settings. Imported when a command is run: it needs cyclopts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING
from typing import Annotated, Any, Literal

from cyclopts import App, Group, Parameter

from softtopk.experiments.settings import Setting, declared


def add(
    app: App,
    run: Callable[..., Any],
    options: type,
    *,
    settings: type | None = None,
    only: Collection[str] | None = None,
    name: str | None = None,
) -> None:
    """Make ``run`` a command of ``app``.

    It is called with ``options``, a dataclass of declared settings, made from what was given. A
    training also has ``settings``, whose defaults depend on a preset or on the run to go on with:
    it gets those that were given, by name. ``only`` names the ones that the command has.
    """
    own = declared(options)
    more = {
        key: one
        for key, one in (declared(settings) if settings else {}).items()
        if only is None or key in only
    }

    def command(*arguments: Any, **given: Any) -> Any:
        positional = (one.name for one in own.values() if one.argument)
        given.update(zip(positional, arguments, strict=False))
        made = options(**{key: value for key, value in given.items() if key in own})
        if settings is None:
            return run(made)
        return run(made, {key: value for key, value in given.items() if key in more})

    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        list(_parameters([*own.values(), *more.values()]))
    )
    *text, example = _paragraphs(options)
    app.command(command, name=name or run.__name__, help="\n\n".join(text), help_epilogue=example)


def _paragraphs(options: type) -> list[str]:
    """Those of the docstring, each on a line, which the terminal wraps. The last is an example."""
    return [" ".join(text.split()) for text in (inspect.getdoc(options) or "").split("\n\n")]


def _parameters(settings: Collection[Setting]) -> Iterator[inspect.Parameter]:
    ordered = sorted(settings, key=lambda one: not one.argument)
    headings = dict.fromkeys(one.group for one in settings)
    groups = {name: Group(name, sort_key=i) for i, name in enumerate(headings)}
    for one in ordered:
        kind = inspect.Parameter.POSITIONAL_ONLY if one.argument else inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        said: dict[str, Any] = {
            "help": one.help,
            "negative": None if one.kind is bool and not one.switch else (),
            "converter": _as_text if _is_text(one) else None,
            "show_default": _shown(one),
        }
        if not one.argument:
            said["group"] = groups[one.group]
        annotation = Annotated[_type_of(one), Parameter(**said)]  # type: ignore[valid-type]
        yield inspect.Parameter(one.name, kind, default=default, annotation=annotation)


def _shown(one: Setting) -> Callable[[Any], str] | bool:
    text = one.default_text
    return False if text is None else lambda _: text


def _is_text(one: Setting) -> bool:
    """Whether the declaration parses the value, which is one of several texts or has commas."""
    return bool(one.choices) or _has_commas(one)


def _has_commas(one: Setting) -> bool:
    return one.is_list and not one.argument


def _type_of(one: Setting) -> Any:
    """The type that cyclopts shows and parses."""
    kind: Any = Literal[one.names] if one.choices else str if _has_commas(one) else one.kind
    return list[kind] if one.is_list else kind


def _as_text(_: Any, tokens: Any) -> str:
    return ",".join(token.value for token in tokens)
