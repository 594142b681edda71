"""`softtopk figures` as users meet it, and the pictures it draws."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from softtopk import cli
from softtopk.experiments._drawing import save_figure
from softtopk.experiments.errors import UsageError
from softtopk.experiments.figures import CATALOGUE, Options, _command, _convergence, main
from softtopk.experiments.figures._exhibit import plain
from softtopk.experiments.figures._index import index_page
from softtopk.plotting import new_figure

DOCS = Path(__file__).parents[3] / "docs" / "figures"
MAGIC = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
FEW = {"queries": 3, "tried": (1, 10, 200)}


@pytest.fixture(autouse=True)
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the slowest figure as they are."""
    exhibit = CATALOGUE["convergence"]
    few = dataclasses.replace(exhibit, make=partial(_convergence.make, **FEW))
    monkeypatch.setitem(CATALOGUE, "convergence", few)


def exit_code(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["figures", *args])
    return caught.value.code


def draw(out: Path, only: Sequence[str] = (), formats: Sequence[str] = ("png",)) -> int:
    return main(Options(out=out, only=tuple(only), format=tuple(formats)))


# ---------------------------------------------------------------------------------------- command


def test_all_figures_with_their_captions_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "figures"
    assert exit_code("--out", str(out), "--format", "png,svg") == 0
    assert {path.name for path in out.iterdir()} == {"index.md"} | {
        f"{name}.{kind}" for name in CATALOGUE for kind in ("png", "svg", "caption.md", "json")
    }
    printed = capsys.readouterr().out.splitlines()
    index = (out / "index.md").read_text()
    for name, exhibit in CATALOGUE.items():
        for kind in ("png", "svg"):
            picture = out / f"{name}.{kind}"
            assert picture.read_bytes().startswith(MAGIC[kind])
            assert f"figure: {picture}" in printed
        caption = (out / f"{name}.caption.md").read_text()
        assert len(caption) > 100
        assert f"## {exhibit.title}" in index
        assert f"![{exhibit.title}]({name}.png)" in index
        assert caption in index
        assert f"Also as [{name}.svg]({name}.svg)." in index
        assert json.loads((out / f"{name}.json").read_text()) == plain(exhibit.make())
    assert printed[-1] == f"index: {out / 'index.md'}"


@pytest.mark.parametrize(
    ("args", "names", "kinds"),
    [
        (("--only", "plan"), {"plan"}, {"png"}),
        (("--only", "Plan,bias,", "--only", "plan"), {"plan", "bias"}, {"png"}),
        (("--only", "plan", "--format", "svg", "--format", "pdf"), {"plan"}, {"svg", "pdf"}),
    ],
)
def test_some_figures(args: tuple[str, ...], names: set, kinds: set, tmp_path: Path) -> None:
    assert exit_code(*args, "--out", str(tmp_path)) == 0
    pictures = {path for path in tmp_path.iterdir() if path.suffix[1:] in MAGIC}
    assert {path.stem for path in pictures} == names
    assert {path.suffix[1:] for path in pictures} == kinds
    for path in pictures:
        assert path.read_bytes().startswith(MAGIC[path.suffix[1:]])


def test_the_index_keeps_the_figures_of_earlier_calls(tmp_path: Path) -> None:
    draw(tmp_path, ["bias"])
    draw(tmp_path, ["plan"], ["pdf"])
    index = (tmp_path / "index.md").read_text()
    titles = re.findall("^## (.*)", index, re.MULTILINE)
    assert titles == [CATALOGUE["plan"].title, CATALOGUE["bias"].title, "The others"]
    assert "(bias.png)" in index
    assert "As [plan.pdf](plan.pdf)." in index  # which no browser shows inside of a page
    for link in re.findall(r"\]\(([^)]+)\)", index):
        assert (tmp_path / link).is_file()


@pytest.mark.parametrize("kind", MAGIC)
def test_the_same_picture_is_the_same_file(kind: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        draw(tmp_path / folder, ["plan"], [kind])
    first, second = ((tmp_path / folder / f"plan.{kind}").read_bytes() for folder in ("a", "b"))
    assert first == second
    assert not any(mark in first for mark in (b"CreationDate", b"<dc:date>"))  # and so tomorrow


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only", "plans"), "--only 'plans': give one or more of indicator, plan, temperatures"),
        (("--only", ""), "--only '': give one or more of indicator, plan"),
        (("--format", ","), "--format ',': give one or more of png, svg, pdf"),
        (("--format", "jpg"), "--format 'jpg': give one or more of png, svg, pdf"),
    ],
)
def test_a_wrong_option_is_named(
    args: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert exit_code(*args, "--out", str(tmp_path / "new")) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match=r"--out .*file: it is a file; give a folder"):
        draw(file)
    for home in (file, tmp_path / "missing"):
        with pytest.raises(UsageError, match=r"--out .*below: there is no folder .*; make it"):
            draw(home / "below", ["plan"])
        assert not (tmp_path / "missing").exists()
    (tmp_path / "out" / "plan.png").mkdir(parents=True)
    assert exit_code("--out", str(tmp_path / "out"), "--only", "plan") == 2
    assert "plan.png: Is a directory" in re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_a_page_of_others_is_not_replaced(tmp_path: Path) -> None:
    for name in ("index.md", "plan.md"):
        (tmp_path / name).write_text("# My own")
    with pytest.raises(UsageError, match=r"its index\.md is not one of this command"):
        draw(tmp_path, ["plan"])
    assert (tmp_path / "index.md").read_text() == "# My own"
    (tmp_path / "index.md").unlink()
    draw(tmp_path, ["plan"])
    assert (tmp_path / "plan.md").read_text() == "# My own"


def test_an_error_leaves_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path, ["plan"])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(_: Any) -> Figure:
        raise RuntimeError("cannot be drawn")

    broken = dataclasses.replace(CATALOGUE["plan"], draw=fail, caption=lambda _: "")
    monkeypatch.setitem(CATALOGUE, "plan", broken)
    with pytest.raises(RuntimeError, match="cannot be drawn"):
        draw(tmp_path, ["plan"])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_format_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--format '': give one or more of png, svg, pdf"):
        draw(tmp_path, formats=())


@pytest.mark.parametrize(("name", "extra"), [("rich", "cli"), ("matplotlib", "plot")])
def test_a_missing_dependency_names_its_extra(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"needs {name}: pip install 'softtopk\[{extra}\]'"):
        draw(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    broken = dataclasses.replace(CATALOGUE["temperatures"], make=interrupt)
    monkeypatch.setitem(CATALOGUE, "temperatures", broken)
    assert draw(tmp_path) == 130
    assert f"interrupted; 2 of 8 figures are in {tmp_path}" in capsys.readouterr().out
    assert "(plan.png)" in (tmp_path / "index.md").read_text()
    names = {path.name.partition(".")[0] for path in tmp_path.iterdir()}
    assert names == {"indicator", "plan", "index"}


def test_the_help_names_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    assert exit_code("--help") == 0
    text = re.sub(r"[│\s]+", " ", capsys.readouterr().out)
    assert ", ".join(CATALOGUE) in text


def test_importing_the_figures_loads_no_optional_dependency() -> None:
    code = "import softtopk.experiments.figures, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not set(loaded) & {"cyclopts", "rich", "matplotlib", "sklearn", "scipy"}


# --------------------------------------------------------------------------------------- pictures


def drawn_texts(figure: Figure) -> dict[str, Bbox]:
    """Where each piece of text is, by its content and a number."""
    hidden = set()
    for axes in figure.axes:
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not min(low, high) <= tick.get_loc() <= max(low, high):
                    hidden |= {tick.label1, tick.label2}
    found = [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]
    return {f"{text.get_text()!r} {i}": text.get_window_extent() for i, text in enumerate(found)}


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_text_covers_another_or_is_cut_off(name: str) -> None:
    exhibit = CATALOGUE[name]
    figure = exhibit.draw(exhibit.make())
    figure.draw_without_rendering()
    boxes = drawn_texts(figure)
    assert len(boxes) > 5
    for (one, a), (other, b) in itertools.combinations(boxes.items(), 2):
        assert not a.overlaps(b), f"{one} covers {other}"
    for text, box in boxes.items():
        inside = figure.bbox.contains(box.x0, box.y0) and figure.bbox.contains(box.x1, box.y1)
        assert inside, f"{text} is cut off"
    assert all(text.get_fontsize() >= 7 for text in figure.findobj(Text))


def test_the_check_of_the_texts_can_fail() -> None:
    exhibit = CATALOGUE["plan"]
    figure = exhibit.draw(exhibit.make())
    axes = figure.axes[0]
    axes.annotate("on another", axes.texts[0].xy, (0, 12), textcoords="offset points")
    figure.draw_without_rendering()
    boxes = drawn_texts(figure)
    assert any(a.overlaps(b) for a, b in itertools.combinations(boxes.values(), 2))


def content(axes: Axes) -> int:
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    return len(lines) + len(axes.collections) + len(axes.images) + len(axes.patches)


@pytest.mark.parametrize("name", CATALOGUE)
def test_no_axes_are_empty(name: str) -> None:
    exhibit = CATALOGUE[name]
    figure = exhibit.draw(exhibit.make())
    assert all(content(axes) for axes in figure.axes)
    assert figure.get_size_inches()[0] == pytest.approx(8.0)  # the width of a README


# ------------------------------------------------------------------------------------------- docs


def test_the_index_in_the_docs_is_that_of_its_folder() -> None:
    assert (DOCS / "index.md").read_text() == index_page(DOCS)
    assert all((DOCS / f"{name}.png").is_file() for name in CATALOGUE)


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "convergence"])
def test_the_docs_have_the_numbers_of_this_code(name: str) -> None:
    exhibit = CATALOGUE[name]
    data = exhibit.make()
    assert_same(json.loads((DOCS / f"{name}.json").read_text()), plain(data))
    assert (DOCS / f"{name}.caption.md").read_text().split() == exhibit.caption(data).split()


def assert_same(old: Any, new: Any) -> None:
    assert type(old) is type(new)
    if isinstance(old, dict):
        assert list(old) == list(new)
        for name in old:
            assert_same(old[name], new[name])
    elif isinstance(old, list):
        assert len(old) == len(new)
        if old and isinstance(old[0], float):
            np.testing.assert_allclose(old, new, rtol=1e-9, atol=1e-12)
        else:
            for a, b in zip(old, new, strict=True):
                assert_same(a, b)
    elif isinstance(old, float):
        assert old == pytest.approx(new, rel=1e-9)
    else:
        assert old == new


@pytest.mark.slow
def test_the_docs_have_the_convergence_of_this_code() -> None:
    """The caption is compared with the numbers of the docs elsewhere."""
    data = _convergence.make()
    old = json.loads((DOCS / "convergence.json").read_text())
    for before, curve in zip(old["curves"], data.curves, strict=True):
        assert before["iterations"] == list(curve.iterations)
        np.testing.assert_allclose(before["errors"], curve.errors, rtol=0.01, atol=1e-12)


def test_write_exhibit_names_its_files(tmp_path: Path) -> None:
    written = _command.write_exhibit(CATALOGUE["plan"], tmp_path, ["svg", "png"])
    assert written == [tmp_path / "plan.svg", tmp_path / "plan.png"]


def test_pictures_do_not_depend_on_settings(tmp_path: Path) -> None:
    draw(tmp_path / "usual", ["plan"])
    odd = {"axes.facecolor": "black", "font.size": 20.0, "savefig.bbox": "tight"}
    with rc_context(odd):
        draw(tmp_path / "odd", ["plan"])
        assert rcParams["font.size"] == 20.0
    usual, odd_one = ((tmp_path / name / "plan.png").read_bytes() for name in ("usual", "odd"))
    assert usual == odd_one


def test_the_suffix_names_the_format(tmp_path: Path) -> None:
    figure = new_figure()
    path = save_figure(figure, tmp_path / "x.PNG")
    assert path.read_bytes().startswith(MAGIC["png"])
    assert imread(path).shape == (840, 1600, 4)  # twice the width of a README, for sharp screens
    for name in ("x.jpg", "x"):
        with pytest.raises(ValueError, match=rf"{name}: give a file that ends in .png, .svg, .pdf"):
            save_figure(figure, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["x.PNG"]
