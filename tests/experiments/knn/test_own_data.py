"""`softtopk knn train | predict` on tables and folders of images of the user's own."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from softtopk import cli
from softtopk.experiments.knn._data import load, own_data, read
from softtopk.experiments.knn._settings import make_settings
from softtopk.experiments.tabular import read_table

QUICK = ("--epochs", "3", "--threads", "1")
COLUMNS = ["height", "width", "depth", "flat"]
NAMES = ["ant", "bee", "cow"]


def run(*args: Any) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["knn", *map(str, args)])
    return caught.value.code


def complaint(capsys: pytest.CaptureFixture[str], *args: Any) -> str:
    """What a command that is refused says."""
    assert run(*args) == 2
    return capsys.readouterr().err


def predicted(capsys: pytest.CaptureFixture[str], *args: Any) -> list[dict[str, str]]:
    capsys.readouterr()
    assert run("predict", *args) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def make_frame(n: int = 60) -> pd.DataFrame:
    """Three classes that are apart, in columns of different scales, one of them constant."""
    generator = np.random.default_rng(0)
    labels = np.arange(n) % 3
    values = generator.normal(size=(n, 4)) * 0.5 + 3 * np.eye(4)[labels]
    frame = pd.DataFrame(values * [1, 100, 0.01, 0] + [0, 1e4, 0, 7], columns=COLUMNS)
    return frame.assign(animal=np.array(NAMES)[labels])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "zoo.csv"
    make_frame().to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def trained(table: Path) -> Path:
    """A run on a table that is not there any more."""
    out, copy = table.parent / "run", table.parent / "gone" / "zoo.csv"
    copy.parent.mkdir()
    shutil.copy(table, copy)
    methods = "knn,pca,ae,pretrained,ce,soft-topk"
    args = ["--data", copy, "--target", "animal", "--method", methods, *QUICK, "--out", out]
    assert run("train", *args) == 0
    copy.unlink()
    return out


# --- tables ---


def test_a_table_is_divided_trained_on_and_reported(trained: Path) -> None:
    rows = json.loads((trained / "table.json").read_text())
    assert [row["label"] for row in rows] == [
        "kNN", "kNN+PCA", "kNN+AE", "kNN+pretrained MLP", "CE+MLP", "kNN+SOFT top-k",
    ]  # fmt: skip
    assert all(row["images"] == [45, 15] for row in rows)
    accuracy = {row["method"]: row["accuracy"] for row in rows}
    assert accuracy["knn"] == accuracy["soft-topk"] == [100]
    text = (trained / "table.md").read_text()
    assert "zoo.csv: 45 training and 15 test rows" in text
    assert re.search(r"softtopk knn train --data zoo.csv --preset tuned .* --target animal", text)
    assert str(trained.parent) not in text
    assert str(trained.parent) not in (trained / "config.json").read_text()


@pytest.mark.parametrize("method", ["knn", "ce", "soft-topk"])
def test_predict_names_the_classes(
    trained: Path, table: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    rows = predicted(capsys, trained, table, "--method", method)
    assert [row["row"] for row in rows] == [str(i) for i in range(1, 61)]
    right = [row["class"] == name for row, name in zip(rows, make_frame().animal, strict=True)]
    assert sum(right) >= (40 if method == "ce" else 60)


def test_predict_finds_columns_by_name(
    trained: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = predicted(capsys, trained, table)
    frame = make_frame()[[*COLUMNS[::-1]]].assign(colour="red")
    frame.to_csv(tmp_path / "other.csv", index=False)
    assert run("predict", trained, tmp_path / "other.csv") == 0
    said = capsys.readouterr()
    assert list(csv.DictReader(io.StringIO(said.out))) == expected
    assert "not used, as zoo.csv had no such columns: 'colour'" in said.err
    assert "animal" not in said.err


def test_the_split_keeps_shares_and_statistics_are_of_the_training_part(table: Path) -> None:
    settings = make_settings({"data": "zoo.csv", "test_share": 0.2})
    own = read(str(table), "animal", None)
    data, again, other = (load(settings, None, own, seed) for seed in (0, 0, 1))
    assert data.test.labels.bincount().tolist() == [4, 4, 4]
    assert torch.equal(data.test.inputs, again.test.inputs)
    assert not torch.equal(data.test.inputs, other.test.inputs)
    both = torch.cat([data.train.inputs, data.test.inputs])
    assert torch.equal(both.sort(0).values, own.train.inputs.sort(0).values)
    scaler = StandardScaler().fit(data.train.inputs.numpy())
    for split in (data.train, data.test):
        expected = scaler.transform(split.inputs.numpy())
        np.testing.assert_allclose(data.normalise(split.inputs), expected, atol=1e-5)


def test_knn_on_columns_agrees_with_scikit_learn(tmp_path: Path) -> None:
    frame = make_frame()
    frame[COLUMNS[:3]] += np.random.default_rng(1).normal(size=(60, 3)) * [3, 300, 0.03]
    frame.to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "run"
    args = ["--data", tmp_path / "t.csv", "--target", "animal", "--method", "knn", "--k", "3"]
    assert run("train", *args, "--out", out) == 0
    found = json.loads((out / "knn" / "seed-0" / "result.json").read_text())
    data = load(make_settings({"data": "t.csv"}), None, read(str(args[1]), "animal", None), 0)
    scaler = StandardScaler().fit(data.train.inputs)
    oracle = KNeighborsClassifier(3).fit(scaler.transform(data.train.inputs), data.train.labels)
    expected = oracle.score(scaler.transform(data.test.inputs), data.test.labels)
    assert 0.3 < expected < 1
    assert found["accuracy"] == pytest.approx(expected)


def write_as(frame: pd.DataFrame, path: Path) -> str:
    """Write the table; returns the name of the column of classes."""
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, X=frame[COLUMNS].to_numpy(), animal=frame.animal.to_numpy("U"))
    elif path.name == "european.csv":
        path.write_bytes(frame.to_csv(index=False, sep=";").encode("utf-8-sig") + b"\r\n\r\n")
    else:
        frame.to_csv(path, index=False)
    return "animal"


@pytest.mark.parametrize("name", ["t.csv.gz", "t.parquet", "t.npz", "european.csv"])
def test_every_format_has_the_same_table(table: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    target = write_as(make_frame(), path)
    expected, data = read_table(table, "animal"), read_table(path, target)
    assert torch.equal(data.train.inputs, expected.train.inputs)
    assert torch.equal(data.train.labels, expected.train.labels)
    assert data.classes == expected.classes == tuple(NAMES)
    if name != "t.npz":
        assert data.columns == expected.columns
    assert torch.equal(data.read(path).inputs, expected.train.inputs)


def test_parquet_with_categories_booleans_and_numbers_as_classes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [True, False] * 4, "b": range(8), "y": [9, 10] * 4})
    frame.assign(z=pd.Categorical(["u", "v"] * 4)).to_parquet(tmp_path / "t.parquet")
    data = read_table(tmp_path / "t.parquet", "y", ["z"])
    assert data.classes == ("9", "10")
    assert data.train.inputs.tolist() == [[i % 2 == 0, i] for i in range(8)]
    assert read_table(tmp_path / "t.parquet", "z").classes == ("u", "v")


def test_a_table_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    lines = [f"{i},{i % 2}" for i in range(25_000)]
    path.write_text("\n".join(["a,y", *lines]))
    assert read_table(path, "y").train.inputs[:, 0].tolist() == list(range(25_000))
    path.write_text("\n".join(["a,y", *lines, "?,1"]))
    with pytest.raises(ValueError, match="'a' \\(1, first in row 25001\\)"):
        read_table(path, "y")


GOOD = "a,b,y\n1,2,u\n3,4,v\n5,6,u\n7,8,v\n"


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (GOOD, [], "--target: give the column of the classes"),
        (GOOD, ["--target", "z"], "--target z: "),
        (GOOD.replace("y", "species"), ["--target", "Spezies"], "did you mean 'species'?"),
        (GOOD, ["--target", "y", "--ignore", "c"], "--ignore c: "),
        (GOOD, ["--target", "y", "--ignore", "y"], "--ignore y: it is the column of the classes"),
        (GOOD, ["--target", "y", "--ignore", "a,b"], "no column besides 'y'"),
        (GOOD.replace("u", "1").replace("v", "2"), ["--target", "a"], "has 4 different values"),
        (GOOD, ["--target", "y", "--test-share", "0.9"], "--test-share 0.9: that is 4 of the 4"),
        (GOOD, ["--target", "y", "--flip"], "--flip True: it is for --data digits or mnist"),
        (GOOD, ["--target", "y", "--data-dir", "."], "--data-dir"),
        (GOOD.replace("2", ""), ["--target", "y"], "the column 'b' (1, first in row 1)"),
        (GOOD.replace("3", "NA"), ["--target", "y"], "the column 'a' (1, first in row 2)"),
        (GOOD.replace("3", "Rome"), ["--target", "y"], "text in the column 'a' (row 2: 'Rome')"),
        (GOOD.replace("3", "x").replace("6", "z"), ["--target", "y"], "--ignore a,b"),
        (GOOD.replace("5", "-inf"), ["--target", "y"], "infinite values, or above 1e+100"),
        (GOOD.replace("v", "u"), ["--target", "y"], "has one class only, 'u'"),
        (GOOD + "9,9,w\n1,1,v\n", ["--target", "y"], "1 class with one row only: 'w'"),
        (GOOD + "9,9,\n", ["--target", "y"], "no class in 1 of 5 rows, first in row 5"),
        (GOOD.replace("b", "a", 1), ["--target", "y"], "columns of the same name: 'a'"),
        (GOOD.replace("a", "", 1), ["--target", "y"], "column 1 has no name"),
        (GOOD + "1,2\n", ["--target", "y"], "found 2 cells in row 5 (line 6), expected 3"),
        (GOOD[6:].replace("u", "1"), ["--target", "y"], "the first line has numbers only, as 1"),
        ("", ["--target", "y"], "found an empty file"),
        ("a,b,y\n", ["--target", "y"], "found no rows"),
        (GOOD + '1,"2,u\n', ["--target", "y"], "not a CSV file in line 6"),
        (GOOD.encode() + b"1,2,\xe9\n", ["--target", "y"], "0xe9"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | bytes,
    options: list[str],
    expected: str,
) -> None:
    path, out = tmp_path / "t.csv", tmp_path / "run"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    said = complaint(capsys, "train", "--data", path, *options, "--out", out)
    assert expected in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ({"X": np.zeros((4, 2))}, "has no such column; it has 'X[0]', 'X[1]'"),
        ({"X": np.zeros((4, 2)), "y": np.array([{}] * 4)}, "save the arrays as numbers or text"),
        ({"X": np.zeros((4, 2)), "y": np.zeros(3)}, "different lengths"),
        ({"X": np.zeros((4, 2, 2)), "y": np.zeros(4)}, "expected one or two dimensions"),
        ({"X": np.zeros(4, "M8[D]"), "y": np.array(["a", "b"] * 2)}, "has text in the column 'X'"),
    ],
)
def test_what_is_wrong_with_a_numpy_file_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arrays: dict[str, np.ndarray],
    expected: str,
) -> None:
    np.savez(tmp_path / "t.npz", **arrays)
    args = ["--data", tmp_path / "t.npz", "--target", "y", "--out", tmp_path / "run"]
    assert expected in complaint(capsys, "train", *args)


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz"])
def test_a_damaged_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_as(make_frame(), tmp_path / name)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-30])
    args = ["--data", tmp_path / name, "--target", "animal", "--out", tmp_path / "run"]
    assert f"{name}: " in complaint(capsys, "train", *args)


def test_parquet_needs_an_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as(make_frame(), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    args = ["--data", tmp_path / "t.parquet", "--target", "animal", "--out", tmp_path / "run"]
    assert "pip install 'softtopk[tables]'" in complaint(capsys, "train", *args)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda frame: frame.drop(columns="width"), "it lacks 'width', which zoo.csv had"),
        (lambda frame: frame.assign(width=np.nan), "fill them in, or remove these rows\n"),
        (lambda frame: frame.assign(width="wide"), "has text in the column 'width'"),
    ],
)
def test_predict_says_what_is_wrong(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, expected: str
) -> None:
    change(make_frame()).to_csv(tmp_path / "new.csv", index=False)
    assert expected in complaint(capsys, "predict", trained, tmp_path / "new.csv")


# --- resuming, and the copy of the data ---


def test_a_run_goes_on_with_its_copy_and_refuses_other_data(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, moved = tmp_path / "run", tmp_path / "renamed.csv.gz"
    args = ["--target", "animal", "--method", "knn", "--out", out]
    assert run("train", "--data", table, *args) == 0
    moved.write_bytes(gzip.compress(table.read_bytes()))
    more = ["--method", "pca", "--resume", "--out", out]
    assert run("train", "--data", moved, *more) == 0
    assert run("train", *more, "--seed", "1") == 0
    rows = json.loads((out / "table.json").read_text())
    assert {row["method"]: row["seeds"] for row in rows} == {"knn": [0, 1], "pca": [0, 1]}
    changed = tmp_path / "zoo.csv"
    make_frame().replace({"flat": {7.0: 8.0}}).to_csv(changed, index=False)
    for other in (changed, "digits"):
        said = complaint(capsys, "train", "--data", other, *more)
        assert f"--data {other}: the run in {out} has other data, from zoo.csv" in said
    assert "ignore was None" in complaint(capsys, "train", "--ignore", "flat", *more)
    copy = out / "data.safetensors"
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    said = complaint(capsys, "predict", out, table, "--method", "knn")
    assert "data.safetensors is damaged" in said
    copy.unlink()
    said = complaint(capsys, "predict", out, table, "--method", "knn")
    assert "data of the run are not there" in said


def test_two_files_of_one_name_have_two_tables(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "zoo.csv"
    make_frame(90).to_csv(other, index=False)
    for data, out in ((table, tmp_path / "one"), (other, tmp_path / "two")):
        args = ["--data", data, "--target", "animal", "--method", "knn", "--out", out]
        assert run("train", *args) == 0
    capsys.readouterr()
    assert run("table", tmp_path / "one", tmp_path / "two") == 0
    said = capsys.readouterr().out
    assert "45 training and 15 test rows" in said
    assert "68 training and 22 test rows" in said


# --- folders of images ---


def picture(label: int, seed: int, size: tuple[int, int] = (6, 8)) -> Image.Image:
    """Grey, brighter in another third of the rows for each class."""
    pixels = np.random.default_rng(seed).integers(0, 60, size)
    pixels[2 * label : 2 * label + 2] += 150
    return Image.fromarray(pixels.astype(np.uint8))


def write_folder(folder: Path, n: int = 12, suffix: str = ".png") -> Path:
    for label, name in enumerate(NAMES):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            picture(label, 100 * label + i).save(folder / name / f"{i:02}{suffix}")
    (folder / "notes.txt").write_text("of the author")
    (folder / "ant" / ".thumbs").touch()
    return folder


def test_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = write_folder(tmp_path / "zoo"), tmp_path / "run"
    args = ["--data", folder, "--method", "knn,soft-topk", "--k", "3", "--test-share", "0.5"]
    assert run("train", *args, *QUICK, "--out", out) == 0
    rows = json.loads((out / "table.json").read_text())
    assert all(row["images"] == [18, 18] for row in rows)
    text = (out / "table.md").read_text()
    assert "--data zoo/ " in text
    assert "--test-share 0.5" in text
    shutil.move(folder, tmp_path / "elsewhere")
    rows = predicted(capsys, out, tmp_path / "elsewhere")
    assert len(rows) == 36
    assert all(row["image"].startswith(f"{row['class']}/") for row in rows)
    picture(1, 7).convert("RGB").save(tmp_path / "one.png")
    (row,) = predicted(capsys, out, tmp_path / "one.png")
    assert row["class"] == "bee"
    assert run("plot", out, "--projection", "pca") == 0


def test_folders_train_and_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "zoo" / "train", suffix=".jpg")
    write_folder(tmp_path / "zoo" / "test", n=2)
    colour = tmp_path / "zoo" / "test" / "cow" / "00.png"
    picture(2, 3).convert("RGB").save(colour)
    out = tmp_path / "run"
    args = ["--data", tmp_path / "zoo", "--method", "knn", "--k", "3", "--out", out]
    assert "has a folder test" in complaint(capsys, "train", *args, "--test-share", "0.5")
    assert run("train", *args) == 0
    config = json.loads((out / "config.json").read_text())
    data = own_data(out, config)
    assert data is not None
    assert data.classes == tuple(NAMES)
    assert data.train.inputs.shape == (36, 3, 6, 8)
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    with Image.open(colour) as image:
        pixels = np.array(image).transpose(2, 0, 1)
    assert np.array_equal(data.test.inputs[4], pixels)


def break_folder(folder: Path, how: str) -> None:
    if how == "size":
        picture(0, 0, (8, 6)).save(folder / "bee" / "x.png")
    elif how == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    elif how == "no images":
        shutil.rmtree(folder / "bee")
        (folder / "bee").mkdir()
    elif how == "other":
        (folder / "bee" / "table.csv").touch()
    elif how == "flat":
        picture(0, 0).save(folder / "x.png")
    elif how == "one class":
        for name in NAMES[1:]:
            shutil.rmtree(folder / name)
    elif how == "one image":
        for path in list((folder / "cow").iterdir())[1:]:
            path.unlink()
    elif how == "damaged":
        (folder / "bee" / "03.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    elif how == "unknown":
        shutil.copytree(folder, folder / "train")
        shutil.copytree(folder / "ant", folder / "test" / "dog")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("size", r"ant/00.png has 8 x 6 pixels and \S+bee/x.png 6 x 8"),
        ("empty", "found no folders, expected a folder of PNG or JPEG files for each class"),
        ("no images", "bee: found no images"),
        ("other", "bee: found table.csv, expected the PNG or JPEG files of a class only"),
        ("flat", "found images beside each other, as x.png, expected"),
        ("one class", "has one class only, 'ant'"),
        ("one image", "1 class with one image only: 'cow'"),
        ("damaged", "bee/03.png: not a whole PNG or JPEG file"),
        ("unknown", "found classes that .* lacks: 'dog'"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, expected: str
) -> None:
    folder = write_folder(tmp_path / "zoo", n=4)
    break_folder(folder, how)
    said = complaint(capsys, "train", "--data", folder, "--out", tmp_path / "run")
    assert re.search(expected, said)
    assert not (tmp_path / "run").exists()
