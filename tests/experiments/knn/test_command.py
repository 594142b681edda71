"""`softtopk knn ...` as users run it, on the digits that scikit-learn ships."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier

from softtopk import cli
from softtopk.experiments.errors import UsageError
from softtopk.experiments.knn._execute import Model, Samples, relaxation_options
from softtopk.experiments.knn._methods import METHODS, TABLE
from softtopk.experiments.knn._settings import NETWORKS, make_settings
from softtopk.experiments.knn._tables import collect, results
from softtopk.experiments.runs import Experiment, Run, read_sealed, write_sealed
from softtopk.knn import resnet8
from stopping import stop_at_the_third_record

QUICK = ("--subset", "200", "--epochs", "2", "--threads", "1")


def exit_code(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["knn", *args])
    return caught.value.code


def complaint(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command that is refused says, in one line."""
    assert exit_code(*args) == 2
    return re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def result(out: Path, method: str, seed: int = 0) -> dict[str, Any]:
    return json.loads((out / method / f"seed-{seed}" / "result.json").read_text())


def curve(out: Path, method: str, seed: int = 0) -> list[dict[str, Any]]:
    """The metrics without the times."""
    lines = (out / method / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is cut into lines."""
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all methods."""
    out = tmp_path_factory.mktemp("all") / "run"
    assert exit_code("train", "--method", "all", *QUICK, "--out", str(out)) == 0
    return out


def test_all_methods_end_with_the_papers_table(everything: Path) -> None:
    rows = json.loads((everything / "table.json").read_text())
    assert [row["method"] for row in rows] == [method.name for method in TABLE]
    assert len(TABLE) == 10
    for row in rows:
        found = result(everything, row["method"])
        assert row["accuracy"] == [100 * found["accuracy"]]
        assert found["accuracy"] == found["correct"] / found["test_images"]
        assert found["test_images"] == found["training_images"] == 200
        if not METHODS[row["method"]].head:  # which takes more than two epochs
            assert found["accuracy"] > 0.5  # of ten classes
    lines = (everything / "table.md").read_text().splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| ")][1:]
    assert [row[0].removeprefix("| ") for row in cells] == [method.label for method in TABLE]
    assert [float(row[1]) for row in cells] == [round(row["accuracy"][0], 2) for row in rows]


def test_a_run_says_how_it_was_made(everything: Path) -> None:
    text = (everything / "table.md").read_text()
    command = re.search(r"softtopk (knn train .*)", text)
    assert command
    assert command[1] == (
        "knn train --data digits --preset tuned --method all --seed 0 --subset 200 --epochs 2 "
        "--out RUN"
    )
    assert str(everything.parent) not in text
    assert torch.__version__ in text
    config = json.loads((everything / "soft-topk" / "seed-0" / "config.json").read_text())
    assert (config["method"], config["seed"], config["epochs"]) == ("soft-topk", 0, 2)
    assert curve(everything, "soft-topk")[-1]["epoch"] == 2


def test_the_pretrained_features_are_those_of_the_classifier(everything: Path) -> None:
    files = [everything / name / "seed-0" / "model.safetensors" for name in ("ce", "pretrained")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not (everything / "pretrained" / "seed-0" / "metrics.jsonl").exists()


def test_pretrained_alone_trains_the_same_features(everything: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert exit_code("train", "--method", "pretrained", *QUICK, "--out", str(out)) == 0
    assert result(out, "pretrained")["accuracy"] == result(everything, "pretrained")["accuracy"]


def test_knn_on_pixels_agrees_with_scikit_learn(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert exit_code("train", "--method", "knn", "--k", "5", "--seed", "3", "--out", str(out)) == 0
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=0.4, stratify=labels, random_state=3)
    oracle = KNeighborsClassifier(5).fit(parts[0], parts[2])
    assert result(out, "knn", 3)["accuracy"] == pytest.approx(oracle.score(parts[1], parts[3]))


def test_the_table_is_made_again_from_records(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("table", str(everything), "--out", str(tmp_path / "results.md")) == 0
    assert (tmp_path / "results.md").read_text() == (everything / "table.md").read_text()
    assert (tmp_path / "results.json").read_text() == (everything / "table.json").read_text()
    assert "kNN+NeuralSort" in capsys.readouterr().out


def test_runs_that_differ_in_settings_are_told_apart(everything: Path, tmp_path: Path) -> None:
    out = tmp_path / "other"
    options = ["--method", "knn", *QUICK, "--k", "3", "--seed", "0,1", "--out", str(out)]
    assert exit_code("train", *options) == 0
    both = [str(everything), str(out)]
    assert exit_code("table", *both, "--out", str(tmp_path / "t.md")) == 0
    text = (tmp_path / "t.md").read_text()
    assert re.search(r"\| kNN \| k 9 \|", text)
    assert re.search(r"\| kNN \| k 3 \| [\d.]+ ± [\d.]+ \(2\) \|", text)


def test_methods_and_seeds_can_be_added(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert exit_code("train", "--method", "ce", *QUICK, "--out", str(out)) == 0
    before = (out / "ce" / "seed-0" / "result.json").stat().st_mtime_ns
    more = ["--method", "pretrained,knn", "--seed", "1", "--resume", "--out", str(out)]
    assert exit_code("train", *more) == 0
    assert (out / "ce" / "seed-0" / "result.json").stat().st_mtime_ns == before
    rows = json.loads((out / "table.json").read_text())
    assert {row["method"]: row["seeds"] for row in rows} == {
        name: [0, 1] for name in ("knn", "pretrained", "ce")
    }


def command(out: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "softtopk", "knn", "train", "--out", str(out), *args]


STOPPED = ("--method", "relaxed-subset", "--subset", "300", "--epochs", "5", "--threads", "1")


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unstopped") / "run"
    assert exit_code("train", *STOPPED, "--out", str(out)) == 0
    return out


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGKILL, -signal.SIGKILL),
        # These take one way, which the translation's test of Ctrl-C takes too.
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_result(
    tmp_path: Path, unstopped: Path, number: signal.Signals, code: int
) -> None:
    """Of the method that draws noise in every step."""
    out = tmp_path / "run"
    records = out / "relaxed-subset" / "seed-0" / "metrics.jsonl"
    args = ["knn", "train", *STOPPED, "--out", str(out)]
    stopped = stop_at_the_third_record(args, records, number)
    assert stopped.returncode == code, stopped.stderr
    assert not (out / "relaxed-subset" / "seed-0" / "result.json").exists()
    assert exit_code("train", "--resume", "--out", str(out)) == 0
    assert curve(out, "relaxed-subset") == curve(unstopped, "relaxed-subset")
    found, expected = (result(o, "relaxed-subset") for o in (out, unstopped))
    assert found["correct"] == expected["correct"]
    weights = [o / "relaxed-subset" / "seed-0" / "model.safetensors" for o in (out, unstopped)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_ctrl_c_while_the_table_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "_show", interrupted)
    assert exit_code("train", "--method", "knn", *QUICK, "--out", str(tmp_path / "run")) == 130
    assert "--resume" in capsys.readouterr().out


def test_what_another_process_has_finished_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After this one had looked what there is to do, and before it had the lock."""
    out = tmp_path / "run"
    args = ["train", "--data", "digits", "--method", "ce", *QUICK, "--out", str(out), "--resume"]
    real = Experiment.train

    def wait(*arguments: Any, **options: Any) -> int:
        monkeypatch.setattr(Experiment, "train", real)
        assert exit_code(*args) == 0
        files.update({file: file.stat().st_mtime_ns for file in out.glob("ce/seed-0/*")})
        return real(*arguments, **options)

    files: dict[Path, int] = {}
    monkeypatch.setattr(Experiment, "train", wait)
    assert exit_code(*args) == 0
    assert len(files) == 5
    assert files == {file: file.stat().st_mtime_ns for file in out.glob("ce/seed-0/*")}


def test_predict_classifies_a_file(everything: Path, tmp_path: Path, capsys: Any) -> None:
    images = load_digits().images[:50].astype(np.uint8)
    np.save(tmp_path / "some.npy", images)
    header = struct.pack(">HBBIII", 0, 8, 3, 50, 8, 8)
    (tmp_path / "some.idx.gz").write_bytes(gzip.compress(header + images.tobytes()))
    capsys.readouterr()
    outputs = []
    for name in ("some.npy", "some.idx.gz"):
        assert exit_code("predict", str(everything), str(tmp_path / name)) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    rows = list(csv.DictReader(io.StringIO(outputs[0])))
    assert [row["image"] for row in rows] == [str(i) for i in range(50)]
    right = [
        row["class"] == str(label)
        for row, label in zip(rows, load_digits().target[:50], strict=True)
    ]
    assert sum(right) > 40
    assert all(0 < float(row["probability"]) <= 1 for row in rows)


def test_predict_with_the_classifier_and_into_a_file(everything: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", load_digits().images[7])
    args = ["--method", "ce", "--out", str(tmp_path / "out.csv")]
    assert exit_code("predict", str(everything), str(tmp_path / "one.npy"), *args) == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 2


def test_plot_draws_features_and_curves(everything: Path, tmp_path: Path) -> None:
    args = ["--projection", "pca", "--out", str(tmp_path)]
    assert exit_code("plot", str(everything), *args) == 0
    for name in ("features.png", "curves.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("data", ["digits", "mnist", "fashion-mnist", "cifar10"])
@pytest.mark.parametrize("preset", ["paper", "tuned"])
@pytest.mark.parametrize("given", [{}, {"eps": 0.02}, {"normalize": "row"}])
def test_the_temperature_on_record_is_the_one_that_is_used(
    data: str, preset: str, given: dict[str, Any]
) -> None:
    settings = make_settings({"data": data, "preset": preset, **given})
    images, labels = torch.zeros(30, 1, 8, 8), torch.arange(30) % 10
    samples = Samples(images, labels, images, labels, tuple("0123456789"))
    for method in METHODS.values():
        if not method.relaxation:
            continue
        recorded = relaxation_options(method, settings)
        if "eps" in given:
            assert recorded["eps"] == given["eps"]
        objective = Model(method, settings, samples, seed=0).objective
        used = objective._selection.options
        assert {name: used[name] for name in recorded} == recorded
    settings = make_settings({"data": "cifar10", "preset": "paper"})
    paper = relaxation_options(METHODS["soft-topk"], settings)
    assert paper == {"eps": 1e-5, "normalize": "batch"}


def test_a_finished_run_needs_no_data_to_be_tabulated(
    everything: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the data were loaded")

    monkeypatch.setattr("softtopk.experiments.images.load", refuse)
    assert exit_code("train", "--resume", "--out", str(everything)) == 0


def copy_run(run: Path, to: Path, **changes: Any) -> Path:
    """A copy of a single run, with other entries in its config.json."""
    shutil.copytree(run, to)
    config = read_sealed(to / "config.json")
    write_sealed(to / "config.json", {**config, **changes})
    return to


def test_a_finished_run_counts_before_an_unfinished_one(everything: Path, tmp_path: Path) -> None:
    finished = everything / "ce" / "seed-0"
    other = copy_run(finished, tmp_path / "other")
    (other / "result.json").unlink()
    for runs in ([finished, other], [other, finished]):
        (row,) = collect([Run(path) for path in runs])
        assert row.accuracies == (100 * result(everything, "ce")["accuracy"],)


def test_two_results_of_one_run_are_refused(everything: Path, tmp_path: Path) -> None:
    other = copy_run(everything / "ce" / "seed-0", tmp_path / "other")
    found = read_sealed(other / "result.json")
    write_sealed(other / "result.json", {**found, "accuracy": 0.123})
    with pytest.raises(UsageError, match="differ in their result"):
        collect([Run(everything / "ce" / "seed-0"), Run(other)])


def test_temperatures_tell_runs_apart(everything: Path, tmp_path: Path) -> None:
    first = everything / "soft-topk" / "seed-0"
    relaxation = {"eps": 8.0, "normalize": None}
    other = copy_run(first, tmp_path / "other", relaxation=relaxation, seed=1)
    rows = collect([Run(first), Run(other)])
    assert [row.settings["eps"] for row in rows] == [0.5, 8.0]
    text = results([Run(first), Run(other)]).markdown
    assert "--seed 1 --epochs 2 --subset 200 --eps 8.0" in text
    assert "| eps 0.5 |" in text


def test_what_a_method_does_not_depend_on_does_not_tell_its_runs_apart(
    everything: Path, tmp_path: Path
) -> None:
    first = everything / "ce" / "seed-0"
    other = copy_run(first, tmp_path / "other", leave_one_out=True, k=3, seed=1)
    (row,) = collect([Run(first), Run(other)])
    assert row.seeds == (0, 1)


def test_commands_have_the_seeds_that_were_run(everything: Path, tmp_path: Path) -> None:
    runs = [everything / name / "seed-0" for name in ("ce", "soft-topk")]
    runs.append(copy_run(runs[0], tmp_path / "other", seed=1))
    text = results([Run(path) for path in runs]).markdown
    assert "--method ce --seed 0,1 " in text
    assert "--method soft-topk --seed 0 " in text


def test_a_record_of_another_device_can_be_read(everything: Path, tmp_path: Path) -> None:
    other = copy_run(everything / "ce" / "seed-0", tmp_path / "run", device="cuda")
    assert exit_code("table", str(other), "--out", str(tmp_path / "v0.1")) == 0
    assert "--device cuda" in (tmp_path / "v0.1.md").read_text()
    np.save(tmp_path / "one.npy", load_digits().images[7])
    assert exit_code("predict", str(other), str(tmp_path / "one.npy")) == 0


def test_a_run_to_resume_that_is_not_there_is_said(tmp_path: Path, capsys: Any) -> None:
    args = ["--method", "knn", "--resume", "--out", str(tmp_path / "typo")]
    said = complaint(capsys, "train", *args)  # not trained on the default data
    assert re.search(r"there is no run in .*typo.* --data to start a new one", said)
    assert exit_code("train", "--data", "digits", *args) == 0
    assert "there is no run in" in capsys.readouterr().out


def test_a_second_run_in_the_same_folder_is_refused(
    everything: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, "train", "--method", "knn", *QUICK, "--out", str(everything))
    assert "there is a run already" in said
    assert "--resume" in said


def test_resuming_with_other_options_is_refused(
    everything: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, "train", "--lr", "0.5", "--resume", "--out", str(everything))
    assert re.search(r"lr was [\d.]+, not 0\.5", said)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--method", "magic"], "--method 'magic'"),
        (["--data", "imagenet"], "--data 'imagenet'"),
        (["--preset", "lucky"], "--preset 'lucky'"),
        (["--seed", "one"], "--seed 'one'"),
        (["--seed", "-1"], "--seed '-1'"),
        (["--k", "0"], "--k 0"),
        (["--k", "200"], "--k 200"),
        (["--eps", "-1"], "--eps -1"),
        (["--eps", "nan"], "--eps nan"),
        (["--epochs", "0"], "--epochs must be an int of at least 1"),
        (["--batch-size", "0"], "--batch-size must be an int of at least 1"),
        (["--holdout", "100000"], "--holdout 100000"),
        (["--lr", "nan"], "lr must be finite"),
        (["--schedule", "weekly"], "--schedule 'weekly': give one of constant, cosine, linear"),
        (["--objective", "hope"], "--objective 'hope'"),
        (["--metric", "taxicab"], "--metric 'taxicab'"),
        (["--normalize", "all"], "--normalize 'all'"),
        (["--network", "brain"], "--network 'brain': give one of auto, convnet, resnet8"),
        (["--device", "abacus"], "--device abacus"),
        (["--subset", "5"], "--subset"),
        (["--data", "mnist"], "--data-dir"),
        (["--threads", "0"], "--threads 0"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    out = tmp_path / "run"
    assert expected in complaint(capsys, "train", "--out", str(out), *options)
    assert not (out / "config.json").exists()


def test_a_folder_without_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["table"], ["plot"], ["predict", "x.npy"]):
        order = [args[0], str(tmp_path), *args[1:]]
        assert "no run" in complaint(capsys, *order)


@pytest.mark.parametrize("method", ["ce", "soft-topk"])
def test_a_diverging_method_does_not_take_the_others_with_it(tmp_path: Path, method: str) -> None:
    out = tmp_path / "run"
    args = ["--method", f"{method},knn", *QUICK, "--optimizer", "sgd", "--lr", "1e30"]
    assert exit_code("train", *args, "--weight-decay", "0", "--out", str(out)) == 1
    assert (out / "knn" / "seed-0" / "result.json").exists()
    assert "not finished" in (out / "table.md").read_text()


def write_cifar10(folder: Path, n: int) -> None:
    """The six files of the binary version, with n random images each."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records = generator.integers(0, 256, (n, 3073), dtype=np.uint8)
        records[:, 0] = np.arange(n) % 10
        (folder / name).write_bytes(records.tobytes())


def write_mnist(folder: Path, n: int) -> None:
    """The four files, with n random images each."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    for part in ("train", "t10k"):
        images = generator.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        header = struct.pack(">HBBIII", 0, 8, 3, n, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = (np.arange(n) % 10).astype(np.uint8)
        packed = gzip.compress(struct.pack(">HBBI", 0, 8, 1, n) + labels.tobytes())
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(packed)


@pytest.mark.parametrize(
    "data", ["mnist", "fashion-mnist", pytest.param("cifar10", marks=pytest.mark.slow)]
)
def test_data_from_files(tmp_path: Path, data: str) -> None:
    write = write_cifar10 if data == "cifar10" else write_mnist
    write(tmp_path / data, 10)
    out = tmp_path / "run"
    args = ["--data", data, "--data-dir", str(tmp_path), "--k", "3", "--epochs", "1"]
    methods = ["--method", "knn,soft-topk,ce", "--threads", "1"]
    assert exit_code("train", *args, *methods, "--out", str(out)) == 0
    rows = json.loads((out / "table.json").read_text())
    assert rows[0]["images"] == [50 if data == "cifar10" else 10, 10]
    assert all(row["paper"] is None for row in rows)  # which is about other numbers of images
    settings = {"cifar10": 1e-5, "mnist": 1e-3, "fashion-mnist": 0.5}
    assert rows[-1]["settings"]["eps"] == settings[data]


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"])
def test_changed_images_are_noticed(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By all that read them again; the same images may lie in another folder."""
    data, out = tmp_path / "mnist", tmp_path / "run"
    write_mnist(data, 20)
    args = ["--data", "mnist", "--data-dir", str(tmp_path), "--subset", "10", "--k", "3"]
    args += ["--epochs", "1", "--threads", "1", "--method", "knn"]
    assert exit_code("train", *args, "--out", str(out)) == 0
    (tmp_path / "copy").mkdir()
    shutil.copytree(data, tmp_path / "copy" / "mnist")
    file = data / name
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    file.write_bytes(changed)
    np.save(tmp_path / "one.npy", np.zeros((28, 28), dtype=np.uint8))
    predict = ["predict", str(out), str(tmp_path / "one.npy")]
    before = (out / "config.json").read_bytes()
    for command in (
        predict,
        ["plot", str(out), "--projection", "pca"],
        *(["train", "--resume", "--out", str(out), *more]
          for more in (["--seed", "1"], ["--method", "pca"])),
    ):  # fmt: skip
        said = complaint(capsys, *command)
        assert "these are not the images that the run was made with" in said
        assert "restore the files" in said
    assert (out / "config.json").read_bytes() == before
    for command in (predict, ["train", "--resume", "--seed", "1", "--out", str(out)]):
        assert exit_code(*command, "--data-dir", str(tmp_path / "copy")) == 0


def test_another_network(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is trained, recorded, named in the table and its command, and used to predict."""
    out = tmp_path / "run"
    args = ["--method", "knn,ce,soft-topk", *QUICK, "--network", "resnet8"]
    assert exit_code("train", *args, "--out", str(out)) == 0
    weights = load_file(out / "soft-topk" / "seed-0" / "model.safetensors")
    expected = {f"network.{name}": value.shape for name, value in resnet8(1).state_dict().items()}
    assert {name: value.shape for name, value in weights.items()} == expected
    text = (out / "table.md").read_text()
    assert text.startswith("## Digits, resnet8: 200 training")
    assert re.search(r"--method knn,ce,soft-topk --seed 0 .*--network resnet8 .*--out RUN", text)
    assert exit_code("train", "--network", "resnet20", "--resume", "--out", str(out)) == 2
    assert "network was 'resnet8', not 'resnet20'" in capsys.readouterr().err
    np.save(tmp_path / "one.npy", load_digits().images[7])
    assert exit_code("predict", str(out), str(tmp_path / "one.npy")) == 0
    both = [str(everything), str(out), "--out", str(tmp_path / "t.md")]
    assert exit_code("table", *both) == 0
    text = (tmp_path / "t.md").read_text()
    assert "| kNN+SOFT top-k | network auto |" in text
    assert "| kNN+SOFT top-k | network resnet8 |" in text
    assert text.count("| kNN |") == 1  # which has no network


@pytest.mark.parametrize("data", ["digits", "mnist", "cifar10"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_takes_every_image(data: str, name: str) -> None:
    shape = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "cifar10": (3, 32, 32)}[data]
    with torch.no_grad():
        assert NETWORKS[name](shape).eval()(torch.zeros(2, *shape)).ndim == 2


def test_missing_data_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--data", "mnist", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run")]
    said = complaint(capsys, "train", *args)
    for part in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "https://"):
        assert part in said.replace(" ", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_sinkhorn_says_that_it_did_not_converge(tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["--method", "soft-topk-sinkhorn", "--preset", "paper", "--subset", "200"]
    run = subprocess.run(
        command(out, *args, "--epochs", "1", "--threads", "1"), capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("ConvergenceWarning: Sinkhorn stopped after 200 iterations") == 1


def test_names_of_methods_are_those_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("train", "--help") == 0
    words = set(re.findall(r"[a-z][a-z-]+", capsys.readouterr().out))
    assert {name for name in METHODS if len(name) < 12} <= words


# --- damaged files, and files that cannot be written ---


@pytest.fixture
def images(tmp_path: Path) -> Path:
    np.save(tmp_path / "one.npy", load_digits().images[7])
    return tmp_path / "one.npy"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_predict_refuses_damaged_weights(
    everything: Path, tmp_path: Path, images: Path, share: float, capsys: Any
) -> None:
    run = copy_run(everything / "soft-topk" / "seed-0", tmp_path / "run")
    file = run / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[int(share * len(data))] ^= 1
    file.write_bytes(data)
    said = complaint(capsys, "predict", str(run), str(images))
    assert "model.safetensors is damaged" in said
    assert "restore it" in said


@pytest.mark.parametrize("content", ["{", "{}", '{"format": 1, "command": "knn train"}'])
def test_a_run_with_a_broken_config_is_not_left_out(
    everything: Path, tmp_path: Path, images: Path, content: str, capsys: Any
) -> None:
    run = tmp_path / "run"
    for name in ("ce", "knn"):
        copy_run(everything / name / "seed-0", run / name)
    (run / "ce" / "config.json").write_text(content)
    for args in (["table", str(run)], ["plot", str(run)], ["predict", str(run), str(images)]):
        said = complaint(capsys, *args)
        assert "ce/config.json is damaged" in said


@pytest.mark.parametrize("place", ["file/below", "missing/below", "locked/below", "device"])
@pytest.mark.parametrize("command", ["predict", "table", "plot"])
def test_an_out_that_cannot_be_written_is_refused_before_the_work(
    everything: Path,
    tmp_path: Path,
    images: Path,
    command: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(*_: Any) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr("softtopk.experiments.knn._use._trained", work)
    monkeypatch.setattr(Experiment, "_show", work)
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    os.mkfifo(tmp_path / "device.md" if command == "table" else tmp_path / "device")
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: "locked" not in str(path) and real(path, mode)
    )
    out = tmp_path / place
    args = [command, str(everything), *[str(images)][: command == "predict"]]
    said = complaint(capsys, *args, "--out", str(out))
    assert f"--out {out}" in said
    assert "give" in said
    assert not (tmp_path / "missing").exists()


def disk_full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("survived", range(7))
def test_a_full_disk_while_training_is_said_and_can_be_mended(
    tmp_path: Path, survived: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """At each of the first writes: records, metrics, checkpoints, weights."""
    out = tmp_path / "run"
    args = ["train", "--data", "digits", "--method", "ce", *QUICK[:2], "--epochs", "1"]
    args += ["--threads", "1", "--out", str(out), "--resume"]
    real, writes = os.fsync, iter(range(survived))
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda file: disk_full() if next(writes, None) is None else real(file)
        )
        said = complaint(capsys, *args)
    assert "No space left on device" in said
    assert re.search(r"(json|jsonl|pt|safetensors): No space", said)
    assert not list(out.rglob(".*.tmp"))
    assert exit_code(*args) == 0
    assert (out / "table.md").exists()


def test_a_full_disk_while_predicting_is_said(
    everything: Path, tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(os, "fsync", disk_full)
    for args in (
        ["predict", str(everything), str(images), "--out", str(tmp_path / "classes.csv")],
        ["table", str(everything), "--out", str(tmp_path / "table.md")],
        ["plot", str(everything), "--projection", "pca", "--method", "knn", "--out", str(tmp_path)],
    ):
        assert re.search(r"(csv|md|png): No space left on device", complaint(capsys, *args))
    assert {path.name for path in tmp_path.iterdir()} == {images.name}


def test_resuming_in_a_folder_that_is_read_only_is_refused(
    everything: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ("train", "--resume", "--out", str(everything))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
        assert "nothing can be written in" in complaint(capsys, *args)

    def read_only(self: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if mode != "r":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return real(self, mode, *rest, **options)

    real = Path.open
    monkeypatch.setattr(Path, "open", read_only)
    assert "Read-only file system" in complaint(capsys, *args)
