"""Settings that are declared once, and the help and the checks that follow from it."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from softtopk import cli
from softtopk.experiments import knn, translation
from softtopk.experiments.errors import UsageError
from softtopk.experiments.settings import (
    Declared,
    as_options,
    declared,
    parse_given,
    recorded,
    refuse_idle,
    relevant,
    setting,
)

COMMANDS = (
    ["bench"], ["figures"], ["knn", "train"], ["knn", "table"], ["knn", "plot"],
    ["knn", "predict"], ["translate", "prepare"], ["translate", "train"],
    ["translate", "evaluate"], ["translate", "translate"], ["translate", "attention"],
    ["translate", "compare"],
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Some(Declared):
    size: int = setting(4, "How large.", low=1)
    share: float = setting(0.5, "How much.", group="Rest", low=0, below=1)
    kind: Literal["a", "b"] | None = setting(None, "Which.")
    several: tuple[int, ...] = setting((1, 5), "Which ones.", low=1)
    names: tuple[str, ...] = setting((), choices=("x", "y", "z"), all_of=("x", "y"))
    tall: bool = setting(False, "Whether.", only={"kind": ("a",)})
    file: Path | None = setting(None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 0}, "--size 0: give a number of at least 1"),
        ({"size": float("inf")}, "--size inf: give a number of at least 1"),
        ({"share": 1.0}, "--share 1: give a number from 0 to below 1"),
        ({"share": float("nan")}, "--share nan: give a number from 0 to below 1"),
        ({"kind": "c"}, "--kind 'c': give one of a, b, none"),
        ({"several": "1,0"}, "--several '0,1': give one or more numbers of at least 1"),
        ({"several": "one"}, "--several 'one': give one or more numbers"),
        ({"several": ","}, "--several ',': give one or more numbers"),
        ({"several": ()}, "--several '': give one or more numbers"),
        ({"names": "x,w"}, "--names 'w': give one or more of x, y, z, all"),
    ],
)
def test_a_value_outside_of_the_limits_is_named(given: dict[str, Any], message: str) -> None:
    for make in (lambda: Some(**given), lambda: parse_given(Some, given)):
        with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
            make()


def test_texts_become_values() -> None:
    made = Some(kind="none", several="5,1,5", names="all")  # type: ignore[arg-type]
    assert (made.kind, made.several, made.names) == (None, (1, 5), ("x", "y"))
    assert Some(names="Z, x").names == ("z", "x")  # type: ignore[arg-type]
    assert Some(several=[2, 3]).several == (2, 3)  # type: ignore[arg-type]  # as JSON has it


def test_what_has_no_effect_is_refused_and_not_relevant() -> None:
    refuse_idle(Some, {"tall": True}, {"kind": "a"})
    with pytest.raises(UsageError, match=r"^--tall True: it is for --kind a; leave it out$"):
        refuse_idle(Some, {"tall": True}, {"kind": "b"})
    refuse_idle(Some, {"tall": True}, {"kind": "b"}, {"kind": "a"}, {"kind": "b"})
    with pytest.raises(UsageError, match="it is for --kind a"):
        refuse_idle(Some, {"tall": True}, {"kind": "b"}, {"kind": None})
    assert "tall" not in relevant(Some, {"kind": None})
    assert "tall" in relevant(Some, {"kind": "a"})
    assert relevant(Some, {}, "Rest") == ("share",)


def test_options_make_the_same_settings_again() -> None:
    some = Some(size=7, kind="b", several=(2, 3), tall=True)
    text = as_options(Some(), asdict(some))
    assert text == ["--size 7", "--kind b", "--several 2,3", "--tall"]
    assert as_options(some, asdict(Some()), always=["share"]) == [
        "--size 4", "--share 0.5", "--kind none", "--several 1,5", "--no-tall",
    ]  # fmt: skip
    assert Some(**recorded(Some, asdict(some))) == some


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_has_groups_defaults_and_an_example(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "─ Main options ─" in text
    assert f"softtopk {' '.join(command)} " in text.split("Example: ")[1]
    assert not re.search(r"--[\w-]+ [A-Z. ]*│", text)  # no option without a word about it


@pytest.mark.parametrize(("name", "settings"), [("knn", knn), ("translate", translation)])
def test_every_setting_is_in_the_help_with_its_default(
    name: str, settings: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        cli.main([name, "train", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for one in declared(settings.Settings).values():
        (line,) = (line for line in lines if re.match(rf"│[ *]*{one.flag}(?![\w-])", line))
        assert one.help in line
        assert one.default_text is None or f"[default: {one.default_text}]" in line
        assert all(choice in line for choice in one.choices)
