"""`softtopk translate ...` as users run it, on number words."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch

from softtopk import cli
from softtopk.experiments.runs import Experiment
from softtopk.experiments.translation._training import Training
from softtopk.seq2seq import Seq2Seq, Seq2SeqConfig
from stopping import stop_at_the_third_record

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
FRENCH = ["un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit"]
SMALL = (
    "--vocab", "60", "--hidden", "24", "--embedding", "24", "--batch-size", "16",
    "--threads", "1", "--eval-sentences", "10", "--eval-beams", "1,3",
)  # fmt: skip
TINY = (*SMALL, "--pretrain-lr", "0.02")
LEARNING = ("--pretrain-epochs", "8", "--updates", "12", "--eval-every", "5")


def exit_code(*args: str) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["translate", *args])
    return caught.value.code


def complaint(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a command that is refused says, in one line."""
    assert exit_code(*args) == 2
    return re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def write_corpus(folder: Path, english: list[str] = ENGLISH, french: list[str] = FRENCH) -> Path:
    """Numbers in two languages."""
    folder.mkdir()
    draw = random.Random(0)
    for part, n in (("train", 250), ("valid", 20), ("test", 15)):
        rows = [[draw.randrange(8) for _ in range(draw.randint(1, 4))] for _ in range(n)]
        for code, words in (("en", english), ("fr", french)):
            lines = [" ".join(words[i] for i in row) for row in rows]
            (folder / f"{part}.{code}").write_text("\n".join(lines) + "\n")
    return folder


def result(out: Path, stage: str, seed: int = 0) -> dict[str, Any]:
    found = json.loads((out / stage / f"seed-{seed}" / "result.json").read_text())
    del found["digest"], found["sha256"]  # which depend on the times
    return {name: value for name, value in found.items() if "seconds" not in name}


def curve(out: Path, stage: str) -> list[dict[str, Any]]:
    """The metrics without the times."""
    lines = (out / stage / "seed-0" / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is cut into lines."""
    monkeypatch.setenv("COLUMNS", "500")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "numbers")


@pytest.fixture(scope="module")
def everything(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of all objectives."""
    out = tmp_path_factory.mktemp("all") / "run"
    args = ["--data", str(corpus), "--objective", "all", "--beam", "3", *TINY, *LEARNING]
    assert exit_code("train", *args, "--out", str(out)) == 0
    return out


STAGES = ["pretrain", "teacher-forcing", "soft-beam", "membership", "risk"]


def test_all_objectives_end_with_the_table(everything: Path) -> None:
    rows = json.loads((everything / "table.json").read_text())
    assert [row["stage"] for row in rows] == STAGES
    for row in rows:
        found = result(everything, row["stage"])
        for split, n in (("valid", 20), ("test", 15)):
            assert found["sentences"][split] == n
            for beam in ("1", "3"):
                assert row[split][beam]["bleu"] == [found[split][beam]["bleu"]]
                assert found[split][beam]["bleu"] > 20  # it has learned most of the words
        assert "version" in found["signatures"]["bleu"]
    base = rows[1]["test"]["3"]["bleu"][0]
    for row in rows[2:]:
        difference = row["test"]["3"]["over_teacher_forcing"]["bleu"]
        assert difference == [pytest.approx(row["test"]["3"]["bleu"][0] - base)]
    text = (everything / "table.md").read_text()
    assert "35.38" in text
    assert torch.__version__ in text
    assert str(everything.parent) not in text


def test_a_run_says_how_it_was_made(everything: Path) -> None:
    commands = re.findall(r"softtopk (translate train .*)", (everything / "table.md").read_text())
    assert len(commands) == 1
    for part in (
        "--data DIR --source en --target fr --objective teacher-forcing,soft-beam,membership,risk",
        "--hidden 24", "--eval-beams 1,3", "--updates 12", "--beam 3", "--vocab 60", "--out RUN",
    ):  # fmt: skip
        assert part in commands[0]
    assert "--eps" not in commands[0]
    assert "--max-words" not in commands[0]


def test_validations_are_on_record(everything: Path) -> None:
    pretrain, after = curve(everything, "pretrain"), curve(everything, "membership")
    assert [record["epoch"] for record in pretrain] == list(range(1, 9))
    assert [(r["validation"], r["step"]) for r in after] == [(1, 5), (2, 10), (3, 12)]
    assert {"loss", "teacher_forcing", "search", "bleu"} <= set(after[0])
    found = result(everything, "membership")
    best = max(after, key=lambda record: record["bleu"])
    assert found["best_update"] == best["step"]
    assert found["updates"] == 12


def test_the_weights_that_are_kept_are_the_best(everything: Path, corpus: Path) -> None:
    """BLEU of the stored model, by other means than those of the run."""
    found = result(everything, "membership")
    sources, targets = (
        (corpus / f"valid.{code}").read_text().splitlines() for code in ("en", "fr")
    )
    run = everything / "membership" / "seed-0"
    outputs = translations(run, sources, "--beam", "3")
    score = sacrebleu.corpus_bleu(outputs, [targets]).score
    assert score == pytest.approx(found["valid"]["3"]["bleu"])


def translations(run: Path, sources: list[str], *args: str) -> list[str]:
    """Through standard input and output."""
    process = subprocess.run(
        [sys.executable, "-m", "softtopk", "translate", "translate", str(run), *args],
        input="".join(f"{line}\n" for line in sources).encode(),
        capture_output=True,
        check=True,
    )
    return process.stdout.decode().removesuffix("\n").split("\n")


def test_translate_keeps_the_order_and_blank_lines(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["five six seven", "", "one", "  ", "two three four five", "eight", ""]
    (tmp_path / "text.en").write_text("\n".join(lines) + "\n")
    run = str(everything / "teacher-forcing" / "seed-0")
    outputs = []
    for size in ("2", "64"):
        capsys.readouterr()
        args = ["--batch-size", size]
        assert exit_code("translate", run, str(tmp_path / "text.en"), *args) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    out = outputs[0].split("\n")[:-1]
    assert [bool(line) for line in out] == [bool(line.strip()) for line in lines]
    alone = translations(Path(run), ["one"])
    assert out[2] == alone[0]
    assert len({line for line in out if line}) == 4


def test_n_best_is_a_list_in_order_of_the_score(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.en").write_text("one two\n\nthree\n")
    run = str(everything / "teacher-forcing" / "seed-0")
    capsys.readouterr()
    args = ["--n-best", "3", "--beam", "3"]
    assert exit_code("translate", run, str(tmp_path / "text.en"), *args) == 0
    rows = [line.split(" ||| ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] + ["2"] * 3
    scores = [float(row[2]) for row in rows]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[0] > scores[2]
    assert len({row[1] for row in rows[:3]}) == 3


def test_evaluate_finds_what_the_run_found(everything: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.md"
    args = ["--split", "test", "--beam", "3,1", "--out", str(out)]
    assert exit_code("evaluate", str(everything), *args) == 0
    records = json.loads(out.with_suffix(".json").read_text())
    assert [(r["stage"], r["beam"]) for r in records] == [(s, b) for s in STAGES for b in (1, 3)]
    for record in records:
        expected = result(everything, record["stage"])["test"][str(record["beam"])]
        assert {"bleu": record["bleu"], "chrf": record["chrf"]} == pytest.approx(expected)
    assert "tok:13a" in out.read_text()


def test_evaluate_on_other_text(
    everything: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On what was the validation part, under another name."""
    other = tmp_path / "other"
    other.mkdir()
    for code in ("en", "fr"):
        (other / f"test.{code}").write_bytes((corpus / f"valid.{code}").read_bytes())
    out = tmp_path / "scores"
    one = str(everything / "risk" / "seed-0")
    args = ["evaluate", one, "--beam", "3", "--data"]
    assert exit_code(*args, str(other), "--out", str(out)) == 0
    (record,) = json.loads(out.with_suffix(".json").read_text())
    expected = result(everything, "risk")
    assert record["bleu"] == pytest.approx(expected["valid"]["3"]["bleu"])
    assert record["sentences"] == 20
    assert "test of other, 20 sentences" in capsys.readouterr().out
    assert "found neither valid.en" in complaint(capsys, *args, str(other), "--split", "valid")
    assert f"--data {tmp_path / 'none'}: give a folder" in complaint(
        capsys, *args, str(tmp_path / "none")
    )


def test_other_text_is_as_short_as_that_of_the_first_run(corpus: Path, tmp_path: Path) -> None:
    first, then, out = (tmp_path / name for name in ("first", "then", "scores"))
    new = ["--data", str(corpus), "--max-words", "3", *TINY, "--pretrain-epochs", "1"]
    assert exit_code("train", *new, "--updates", "0", "--no-test", "--out", str(first)) == 0
    further = ["--init", str(first), "--objective", "teacher-forcing", "--updates", "1"]
    assert exit_code("train", *further, "--threads", "1", "--no-test", "--out", str(then)) == 0
    args = ["--data", str(corpus), "--beam", "1", "--out", str(out)]
    assert exit_code("evaluate", str(then), *args) == 0
    (record,) = json.loads(out.with_suffix(".json").read_text())
    words = [len(line.split()) for line in (corpus / "test.en").read_text().splitlines()]
    assert 0 < record["sentences"] == sum(n <= 3 for n in words) < len(words)


def test_the_table_is_made_again_from_records(everything: Path, tmp_path: Path) -> None:
    assert exit_code("compare", str(everything), "--out", str(tmp_path / "t.md")) == 0
    assert (tmp_path / "t.md").read_text() == (everything / "table.md").read_text()
    assert (tmp_path / "t.json").read_text() == (everything / "table.json").read_text()


def test_init_goes_on_from_a_finished_run(everything: Path, tmp_path: Path) -> None:
    """The same continuation as in the run itself, from the run, a part of it, or its weights."""
    weights = everything / "pretrain" / "seed-0" / "model.safetensors"
    expected = (everything / "membership" / "seed-0" / "model.safetensors").read_bytes()
    args = ["--objective", "membership", "--updates", "12", "--eval-every", "5"]
    args += ["--batch-size", "16", "--threads", "1", "--eval-sentences", "10", "--beam", "3"]
    args += ["--eval-beams", "1,3"]
    for number, init in enumerate((everything, weights.parent, weights)):
        out = tmp_path / f"run{number}"
        assert exit_code("train", "--init", str(init), *args, "--out", str(out)) == 0
        assert (out / "membership" / "seed-0" / "model.safetensors").read_bytes() == expected
        assert not (out / "pretrain").exists()
    config = json.loads((out / "config.json").read_text())
    assert (config["hidden"], config["vocab"], len(config["init"])) == (24, 60, 64)
    shutil.move(everything / "data", tmp_path / "data")  # a run needs no other folder
    try:
        assert exit_code("train", "--resume", "--seed", "1", "--out", str(out)) == 0
    finally:
        shutil.move(tmp_path / "data", everything / "data")
    assert (out / "membership" / "seed-1" / "result.json").exists()
    table = (out / "table.md").read_text()
    assert "--init" in table
    assert "--pretrain-epochs" not in table


def test_runs_from_other_weights_are_told_apart(everything: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    init = everything / "membership" / "seed-0"
    args = ["--init", str(init), "--objective", "teacher-forcing", "--updates", "3", "--no-test"]
    args += ["--matmul-precision", "medium"]
    try:
        assert exit_code("train", *args, "--threads", "1", "--out", str(out)) == 0
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert "test" not in result(out, "teacher-forcing")
    both = [str(everything), str(out)]
    assert exit_code("compare", *both, "--out", str(tmp_path / "t.md")) == 0
    rows = json.loads((tmp_path / "t.json").read_text())
    assert [row["stage"] for row in rows].count("teacher-forcing") == 2
    assert "init" in (tmp_path / "t.md").read_text()


def stopped(
    out: Path, stage: str, number: signal.Signals, *args: str
) -> subprocess.CompletedProcess[str]:
    records = out / stage / "seed-0" / "metrics.jsonl"
    return stop_at_the_third_record(
        ["translate", "train", "--out", str(out), *args], records, number
    )


def test_prepare_train_kill_resume_evaluate_translate(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole chain: killed twice, it comes to the result of a run that was not."""
    prepared = tmp_path / "prepared"
    args = ["--data", str(corpus), "--vocab", "60", "--out", str(prepared)]
    assert exit_code("prepare", *args) == 0
    assert "250" in capsys.readouterr().out
    options = ["--data", str(prepared), "--objective", "membership", *TINY[2:]]
    options += ["--pretrain-epochs", "4", "--updates", "24", "--eval-every", "4"]
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert exit_code("train", *options, "--out", str(whole)) == 0
    for stage, args in (("pretrain", options), ("membership", ["--resume"])):
        killed = stopped(out, stage, signal.SIGKILL, *args)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert not (out / stage / "seed-0" / "result.json").exists()
    assert exit_code("train", "--resume", "--out", str(out)) == 0
    for stage in ("pretrain", "membership"):
        assert curve(out, stage) == curve(whole, stage)
        assert result(out, stage) == result(whole, stage)
        weights = [o / stage / "seed-0" / "model.safetensors" for o in (out, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    assert exit_code("evaluate", str(out), "--beam", "3", "--out", str(tmp_path / "e")) == 0
    scores = {r["stage"]: r["bleu"] for r in json.loads((tmp_path / "e.json").read_text())}
    assert scores["membership"] == pytest.approx(result(whole, "membership")["test"]["3"]["bleu"])
    lines = ["one two", "three"]
    assert translations(out, lines) == translations(whole, lines)


def test_ctrl_c_stops_after_a_step_and_says_how_to_go_on(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["--data", str(corpus), "--updates", "0", "--pretrain-epochs", "5", *TINY]
    process = stopped(out, "pretrain", signal.SIGINT, *args)
    assert process.returncode == 130, process.stderr
    assert f"softtopk translate train --out {out} --resume" in process.stdout
    assert (out / "pretrain" / "seed-0" / "checkpoint.pt").exists()


def test_early_stopping_ends_a_run(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["--data", str(corpus), "--updates", "0", "--pretrain-epochs", "20", *SMALL]
    # A rate at which nothing is learned: no validation is better than the first.
    args += ["--patience", "2", "--pretrain-lr", "1e-12", "--pretrain-final-lr", "0", "--no-test"]
    assert exit_code("train", *args, "--out", str(out)) == 0
    assert len(curve(out, "pretrain")) == 3
    found = result(out, "pretrain")
    assert (found["updates"], found["best_update"]) == (3 * 16, 16)


def test_pieces_of_another_folder_are_used(everything: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    args = ["--data", str(corpus), "--subset", "100", "--out", str(out)]
    assert exit_code("prepare", *args, "--pieces", str(everything / "data")) == 0
    for code in ("en", "fr"):
        name = f"pieces.{code}.model"
        assert (out / name).read_bytes() == (everything / "data" / name).read_bytes()
    assert json.loads((out / "prepared.json").read_text())["parts"]["train"]["pairs"] == 100


def test_prepared_data_are_kept_and_not_mixed(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "prepared"
    args = ["prepare", "--data", str(corpus), "--out", str(out), "--vocab"]
    assert exit_code(*args, "60") == 0
    before = (out / "pieces.en.model").stat().st_mtime_ns
    capsys.readouterr()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    draft = out / f".train.en.gz.{ended.pid}.tmp"  # of one that was killed
    draft.write_text("half")
    assert exit_code(*args, "60") == 0
    assert not draft.exists()
    assert "already" in capsys.readouterr().out
    assert (out / "pieces.en.model").stat().st_mtime_ns == before
    assert "vocab was 60, not 50" in complaint(capsys, *args, "50")


def test_the_builtin_corpus_needs_no_files(tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ["--subset", "60", "--updates", "2", "--pretrain-epochs", "1", *TINY[2:]]
    args += ["--vocab", "200", "--no-test", "--eval-beams", "1"]
    assert exit_code("train", *args, "--out", str(out)) == 0
    (text,) = re.findall(r"softtopk (translate train .*)", (out / "table.md").read_text())
    assert "--data" not in text
    assert "--subset 60" in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--objective", "hope"], "--objective 'hope'"),
        (["--data", "no-such-folder"], "no-such-folder"),
        (["--source", "de"], "--source de"),
        (["--seed", "-1"], "--seed '-1'"),
        (["--rho", "1"], "--rho 1"),
        (["--rho", "nan"], "--rho nan"),
        (["--eps", "0"], "--eps 0"),
        (["--beam", "0"], "--beam 0"),
        (["--follow", "me"], "--follow 'me'"),
        (["--normalize", "all"], "--normalize 'all'"),
        (["--solver", "guess"], "--solver 'guess'"),
        (["--lr", "inf"], "--lr inf"),
        (["--final-lr", "-1"], "--final-lr -1"),
        (["--schedule", "weekly"], "--schedule 'weekly'"),
        (["--schedule", "constant", "--final-lr", "1e-3"], "--final-lr 0.001"),
        (["--schedule", "constant", "--pretrain-final-lr", "1e-3"], "--pretrain-final-lr 0.001"),
        (["--optimizer", "magic"], "--optimizer 'magic'"),
        (["--cell", "rnn"], "--cell 'rnn'"),
        (["--model", "rnn"], "--model 'rnn'"),
        (["--heads", "2"], "--heads 2: it is for --model transformer; leave it out"),
        (["--model", "transformer", "--cell", "gru"], "--cell gru: it is for --model recurrent"),
        (
            ["--model", "transformer", "--embedding", "8"],
            "it is for --model recurrent",
        ),
        (["--model", "transformer", "--hidden", "30"], "--hidden 30: give a multiple of --heads"),
        (["--attention-k", "3"], "--attention-k 3: it is for --attention soft-topk"),
        (["--attention-in", "all", "--attention", "soft-topk"], "--attention-in all"),
        (["--model", "transformer", "--layers", "0"], "--layers 0"),
        (["--pretrain-warmup", "-1"], "--pretrain-warmup -1"),
        (["--dropout", "1"], "--dropout 1"),
        (["--scheduled-sampling", "2"], "--scheduled-sampling 2"),
        (["--eval-beams", "0"], "--eval-beams '0'"),
        (["--eval-beams", "one"], "--eval-beams 'one': give one or more numbers"),
        (["--follow", "until-departure"], "--follow 'until-departure': give one of best, gold"),
        (["--pretrain-epochs", "0"], "--pretrain-epochs 0"),
        (["--updates", "-1"], "--updates -1"),
        (["--candidates", "5"], "--candidates 5: it is for --objective membership; leave it out"),
        (
            ["--objective", "membership", "--candidates", "5"],
            "--candidates 5: give more than --beam, which is 5",
        ),
        (
            ["--objective", "membership", "--risk-width", "9"],
            "--risk-width 9.0: it is for --objective risk; leave it out",
        ),
        (["--risk-width", "9"], "--risk-width 9: give at most 8, with --risk-candidates 8"),
        (
            ["--objective", "teacher-forcing,risk", "--eps", "1"],
            "--eps 1.0: it is for --objective soft-beam or membership; leave it out",
        ),
        (["--risk-selection", "softmax", "--risk-k", "3"], "it is for --risk-selection soft-topk"),
        (["--length-penalty", "50"], "--length-penalty 50"),
        (["--max-words", "0"], "--max-words 0"),
        (["--device", "abacus"], "--device abacus"),
        (["--init", "no-such-run"], "no-such-run"),
        (["--target", "en"], "--target 'en'"),
    ],
)
def test_bad_options_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], expected: str
) -> None:
    out = tmp_path / "run"
    assert expected in complaint(capsys, "train", "--out", str(out), *options)
    assert not (out / "config.json").exists()


def test_other_mistakes_are_explained(
    everything: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, one = str(everything), str(everything / "membership" / "seed-0")
    again = ["train", "--data", str(corpus), *TINY, *LEARNING, "--objective", "all", "--beam", "3"]
    assert "there is a run already" in complaint(capsys, *again, "--out", run)
    assert "lr was" in complaint(capsys, "train", "--lr", "0.5", "--resume", "--out", run)
    new = ["train", "--out", str(tmp_path / "new")]
    assert "--updates 0" in complaint(capsys, *new, "--init", run, "--updates", "0")
    assert "--hidden 8" in complaint(capsys, *new, "--init", run, "--hidden", "8")
    assert "--vocab 80" in complaint(capsys, *new, "--init", run, "--vocab", "80")
    assert "several models" in complaint(capsys, "translate", run)
    for option in ("--n-best", "--beam", "--batch-size"):
        assert f"{option} 0" in complaint(capsys, "translate", one, option, "0")
    assert "--n-best 4" in complaint(capsys, "translate", one, "--n-best", "4")
    assert "--split 'train'" in complaint(capsys, "evaluate", run, "--split", "train")
    for name in ("evaluate", "translate", "compare"):
        assert "no run" in complaint(capsys, name, str(tmp_path))
    (tmp_path / "latin").write_bytes("one\nd\u00e9j\u00e0\n".encode("latin-1"))
    said = complaint(capsys, "translate", one, str(tmp_path / "latin"))
    assert "latin, line 2: found the byte 0xe9" in said
    assert "iconv" in said
    (tmp_path / "weights").write_bytes(b"nothing")
    assert "Seq2Seq.save" in complaint(capsys, *new, "--init", str(tmp_path / "weights"))
    assert not (tmp_path / "new" / "config.json").exists()


def test_weights_of_another_vocabulary_are_refused(
    everything: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Seq2Seq(Seq2SeqConfig(source_vocab=9, target_vocab=9, hidden=4, embedding=4))
    model.save(tmp_path / "model.safetensors")
    args = ["--init", str(tmp_path / "model.safetensors"), "--data", str(corpus)]
    args += ["--pieces", str(everything / "data")]
    said = complaint(capsys, "train", *args, "--out", str(tmp_path / "run"))
    assert "source_vocab 9, not 60" in said


TRANSFORMER = (
    "--subset", "60", "--vocab", "60", "--model", "transformer", "--hidden", "16", "--heads", "2",
    "--layers", "1", "--feedforward", "16", "--attention", "soft-topk", "--attention-k", "3",
    "--attention-in", "all", "--pretrain-warmup", "3", "--pretrain-epochs", "2", "--updates", "3",
    "--eval-every", "2", "--batch-size", "16", "--beam", "2", "--eval-beams", "2", "--threads", "1",
    "--eval-sentences", "5", "--objective", "membership", "--no-test",
)  # fmt: skip


def test_a_transformer_is_trained_and_resumed(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stopped in both stages, it comes to the weights of a run that was not; then --init."""
    whole, out, new = tmp_path / "whole", tmp_path / "run", tmp_path / "new"
    args = ["train", "--data", str(corpus), *TRANSFORMER]
    assert exit_code(*args, "--out", str(whole)) == 0
    steps = []

    def advance(training: Training) -> dict[str, float]:
        steps.append(training.step)
        if len(steps) in (2, 8):  # of 7 in the first stage and 3 in the second
            signal.raise_signal(signal.SIGINT)
        return original(training)

    original = Training.advance
    with monkeypatch.context() as patch:
        patch.setattr(Training, "advance", advance)
        assert exit_code(*args, "--out", str(out)) == 130
        assert exit_code("train", "--resume", "--out", str(out)) == 130
    assert exit_code("train", "--resume", "--out", str(out)) == 0
    for stage in ("pretrain", "membership"):
        assert curve(out, stage) == curve(whole, stage)
        weights = [o / stage / "seed-0" / "model.safetensors" for o in (out, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
    (text,) = re.findall(r"softtopk (translate train .*)", (out / "table.md").read_text())
    assert "--model transformer --hidden 16 --layers 1 --heads 2 --feedforward 16" in text
    assert "--attention soft-topk --attention-k 3 --attention-in all" in text
    init = ["train", "--init", str(out / "pretrain" / "seed-0"), *FEW, "--out", str(new)]
    for option, value in (("--heads", "4"), ("--model", "recurrent")):
        assert f"{option} {value}: the weights" in complaint(capsys, *init, option, value)
    assert exit_code(*init, "--objective", "teacher-forcing") == 0
    config = json.loads((new / "config.json").read_text())
    assert (config["model"], config["attention"], config["attention_k"]) == (
        "transformer", "soft-topk", 3,
    )  # fmt: skip


FEW = ("--threads", "1", "--updates", "2", "--no-test", "--eval-sentences", "5")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other text, whose pieces are as many as those of the numbers."""
    folder = tmp_path_factory.mktemp("text") / "words"
    return write_corpus(folder, [word[::-1] for word in ENGLISH], [word[::-1] for word in FRENCH])


def pieces_in(folder: Path) -> list[bytes]:
    return [(folder / f"pieces.{code}.model").read_bytes() for code in ("en", "fr")]


def test_init_has_the_pieces_of_its_run(
    everything: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other text too, and other pieces are refused, though they are as many."""
    part = everything / "pretrain" / "seed-0"
    init, out = ["--init", str(part), *FEW], tmp_path / "run"
    prepared = tmp_path / "prepared"
    args = ["--data", str(words), "--vocab", "60", "--out", str(prepared)]
    assert exit_code("prepare", *args) == 0
    sizes = [
        json.loads((f / "prepared.json").read_text())["sizes"]
        for f in (prepared, everything / "data")
    ]
    assert sizes[0] == sizes[1]
    assert pieces_in(prepared) != pieces_in(everything / "data")
    refused = ["train", *init, "--data", str(words), "--pieces", str(prepared)]
    said = complaint(capsys, *refused, "--out", str(out))
    assert "not the pieces that the weights of --init were trained with" in said
    for number, data in enumerate((words, prepared)):
        out = tmp_path / f"run{number}"
        assert exit_code("train", *init, "--data", str(data), "--out", str(out)) == 0
        assert pieces_in(out / "data") == pieces_in(everything / "data")
        assert (out / "data" / "test.en").read_bytes() == (words / "test.en").read_bytes()
    # The weights that a run began with lie in a run too.
    args = ["--init", str(out / "init.safetensors"), *FEW, "--data", str(words)]
    assert "not the pieces" in complaint(
        capsys, "train", *args, "--pieces", str(prepared), "--out", str(tmp_path / "new")
    )
    swapped = ["--init", str(part), *FEW, "--source", "fr", "--target", "en"]
    said = complaint(capsys, "train", *swapped, "--out", str(tmp_path / "new"))
    assert "--source fr" in said
    assert "from en into fr" in said


def test_a_file_of_weights_needs_pieces(
    everything: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.safetensors"
    shutil.copy(everything / "pretrain" / "seed-0" / "model.safetensors", weights)
    init = ["train", "--init", str(weights), *FEW]
    for data in ([], ["--data", str(corpus)]):
        said = complaint(capsys, *init, *data, "--out", str(tmp_path / "no"))
        assert "lies in no run" in said
        assert "--pieces" in said
    known = str(everything / "data")
    for number, args in enumerate((["--data", known], ["--data", str(corpus), "--pieces", known])):
        out = tmp_path / f"run{number}"
        assert exit_code(*init, *args, "--out", str(out)) == 0
        assert pieces_in(out / "data") == pieces_in(everything / "data")
        text = (out / "table.md").read_text()
        assert "--init WEIGHTS --pieces PIECES" in text
        assert json.loads((out / "config.json").read_text())["init"] in text
        assert "--vocab" not in text


def test_resuming_with_other_data_is_refused(
    corpus: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(corpus, moved)
    args = ["--data", str(moved), *TINY, "--pretrain-epochs", "1", "--updates", "0", "--no-test"]
    assert exit_code("train", *args, "--subset", "100", "--out", str(out)) == 0
    again = ["train", "--resume", "--out", str(out)]
    said = complaint(capsys, *again, "--data", str(words))
    assert "--data" in said
    assert "has other text" in said
    said = complaint(capsys, *again, "--pieces", str(words))
    assert "--pieces" in said
    assert "with --resume" in said
    assert exit_code(*again, "--data", str(corpus)) == 0  # the same text, elsewhere
    assert exit_code(*again, "--data", "cldr") == 2
    shutil.rmtree(moved)
    assert exit_code(*again, "--data", str(moved)) == 0  # what it was made from may be gone
    assert json.loads((out / "config.json").read_text())["data"] == str(moved)


def test_a_test_can_be_made_up_for(everything: Path, corpus: Path, tmp_path: Path) -> None:
    """The figures are those of a run that had its test at once."""
    out = tmp_path / "run"
    args = ["--data", str(corpus), "--objective", "membership", *TINY, *LEARNING, "--no-test"]
    assert exit_code("train", *args, "--out", str(out)) == 0
    assert "test" not in result(out, "membership")
    weights = (out / "membership" / "seed-0" / "model.safetensors").read_bytes()
    assert exit_code("train", "--resume", "--out", str(out)) == 0
    assert "test" not in result(out, "membership")
    assert exit_code("train", "--resume", "--test", "--out", str(out)) == 0
    for stage in ("pretrain", "membership"):
        assert result(out, stage) == result(everything, stage)
    assert (out / "membership" / "seed-0" / "model.safetensors").read_bytes() == weights
    assert json.loads((out / "config.json").read_text())["test"] is True
    assert "test, beam 3" in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (["--vocab", "9"], "--vocab 9"),
        (["--vocab", "60", "--max-length", "1"], "--max-length 1"),
        (["--pieces", "."], "pieces.en.model is missing"),
        (["--vocab", "60", "--device", "abacus"], "--device abacus"),
    ],
)
def test_after_a_wrong_option_the_folder_can_be_used(
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    wrong: list[str],
    expected: str,
) -> None:
    out = tmp_path / "run"
    text = tmp_path / "text"
    shutil.copytree(corpus, text)
    for part in ("train.en", "train.fr"):  # no pair of one piece, of which numbers have some
        lines = (text / part).read_text().splitlines()
        (text / part).write_text("".join(f"{line} zzz zzz\n" for line in lines))
    args = ["train", "--data", str(text), *TINY[2:], "--pretrain-epochs", "1", "--updates", "0"]
    args += ["--no-test", "--out", str(out)]
    for resume in ([], ["--resume"]):
        assert expected in complaint(capsys, *args, *wrong, *resume)
        assert [entry for entry in out.glob("*") if entry.name[0] != "."] == []
    assert exit_code(*args, "--vocab", "60") == 0


def test_after_weights_that_do_not_fit_the_folder_can_be_used(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Seq2Seq(Seq2SeqConfig(source_vocab=9, target_vocab=9, hidden=4, embedding=4))
    model.save(tmp_path / "model.safetensors")
    out, data = tmp_path / "run", str(everything / "data")
    args = ["train", "--data", data, *FEW, "--out", str(out), "--init"]
    assert "source_vocab 9" in complaint(capsys, *args, str(tmp_path / "model.safetensors"))
    assert exit_code(*args, str(everything / "pretrain" / "seed-0")) == 0


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("resume", [[], ["--resume"]])
@pytest.mark.parametrize("survived", [0, 4, 9])
def test_a_start_that_was_killed_is_made_again(
    everything: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resume: list[str],
    survived: int,
) -> None:
    """In the text, before the weights to begin with, and before the config.json."""
    out = tmp_path / "run"
    args = ["train", "--init", str(everything), *FEW, "--seed", "3", "--out", str(out)]
    writes = iter(range(survived))

    def write(path: Path, content: Any) -> None:
        if next(writes, None) is None:
            raise KilledError
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        for module in ("_data", "_train"):
            patch.setattr(f"softtopk.experiments.translation.{module}.write_atomic", write)
        patch.setattr("softtopk.experiments.translation._data.write_sealed", write)
        with pytest.raises(KilledError):
            cli.main(["translate", *args])
    assert len(list((out / "data").glob("*"))) == survived
    assert not (out / "config.json").exists()
    assert exit_code(*args, *resume) == 0
    assert result(out, "risk", 3)["updates"] == 2
    assert not (out / ".start.json").exists()


def test_a_run_without_the_weights_it_began_with(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert exit_code("train", "--init", str(everything), *FEW, "--out", str(out)) == 0
    (out / "init.safetensors").unlink()
    said = complaint(capsys, "train", "--resume", "--seed", "1", "--out", str(out))
    assert "missing: put the file with the SHA-256" in said


def test_translating_and_evaluating_read_what_they_need(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(everything, run)
    for part in ("train", "valid"):
        for file in (run / "data").glob(f"{part}.*"):
            file.unlink()
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfone two\r\n")
    (tmp_path / "plain").write_bytes(b"one two\n")
    outputs = []
    for name in ("text", "plain"):
        capsys.readouterr()
        one = str(run / "membership" / "seed-0")
        args = ["--threads", "1", "--device", "cpu"]
        assert exit_code("translate", one, str(tmp_path / name), *args) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""
    assert exit_code("evaluate", str(run), "--beam", "1", "--threads", "1") == 0
    for command in (["evaluate", str(run)], ["translate", one]):
        for option, value in (
            ("--length-penalty", "nan"), ("--length-penalty", "-1"), ("--threads", "0"),
            ("--device", "abacus"),
        ):  # fmt: skip
            assert f"{option} {value}" in complaint(capsys, *command, option, value)
    shutil.rmtree(run / "data")
    for command in (["evaluate", str(run)], ["translate", one]):
        said = complaint(capsys, *command)
        assert "copy the run as a whole" in said
        assert "--out" not in said


def test_a_diverging_stage_is_said(corpus: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "run"
    args = ["--data", str(corpus), *SMALL, "--optimizer", "sgd", "--clip", "0"]
    args += ["--pretrain-lr", "1e38", "--pretrain-final-lr", "1e38", "--updates", "3"]
    assert exit_code("train", *args, "--out", str(out)) == 1
    said = capsys.readouterr().out
    assert "smaller learning rate" in said
    assert "no weights to begin with" in said
    assert "not finished" in (out / "table.md").read_text()


def test_resuming_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip in the name would else train the default model for hours."""
    out = tmp_path / "slip"
    assert "there is no run in" in complaint(capsys, "train", "--resume", "--out", str(out))
    assert not out.exists()


def test_pairs_with_an_empty_line_are_told(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "text"
    shutil.copytree(corpus, data)
    lines = (data / "train.en").read_text().splitlines()
    (data / "train.en").write_text("\n".join(["", *lines[1:]]) + "\n")
    assert exit_code("prepare", "--data", str(data), "--out", str(tmp_path / "p")) == 0
    assert "1 training pairs with an empty line are left out" in capsys.readouterr().out


def test_translating_from_a_pipe(everything: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(everything / "membership" / "seed-0")
    read, write = os.pipe()
    os.write(write, b"one\n\n")
    os.close(write)
    try:
        assert exit_code("translate", run, f"/dev/fd/{read}") == 0
    finally:
        os.close(read)
    assert capsys.readouterr().out.count("\n") == 2


@pytest.fixture(scope="module")
def attentive(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with SOFT top-k attention, so soft that without --hard-attention it is not sparse."""
    out = tmp_path_factory.mktemp("attention") / "run"
    args = ["--data", str(corpus), *TINY, "--pretrain-epochs", "6", "--updates", "0"]
    args += ["--attention", "soft-topk", "--attention-k", "2", "--attention-eps", "20"]
    assert exit_code("train", *args, "--out", str(out)) == 0
    return out


def test_training_with_topk_attention(attentive: Path) -> None:
    found = result(attentive, "pretrain")
    first, *_, last = (record["loss"] for record in curve(attentive, "pretrain"))
    assert last < 0.7 * first
    assert found["attention_tokens"].keys() == {"valid", "test"}
    weights = attentive / "pretrain" / "seed-0" / "model.safetensors"
    config = Seq2Seq.load(weights).config
    assert (config.attention_k, config.attention_eps) == (2, 20.0)


def test_hard_attention_in_evaluation(attentive: Path, tmp_path: Path) -> None:
    figures = []
    for options in ([], ["--hard-attention"]):
        args = ["evaluate", str(attentive), "--beam", "1", "--out", str(tmp_path / "e.md")]
        assert exit_code(*args, *options) == 0
        (record,) = json.loads((tmp_path / "e.json").read_text())
        assert record["hard_attention"] == bool(options)
        figures.append(record["attention_tokens"])
    assert figures[0] == pytest.approx(result(attentive, "pretrain")["attention_tokens"]["test"])
    assert figures[1] <= 2.0 < figures[0]


def test_attention_map(attentive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "map.png"
    args = ["attention", str(attentive), "--out", str(picture)]
    given = ["--text", "one [/b] $$\ntwo", "--translation", "un deux trois"]
    assert exit_code(*args, *given) == 0
    printed = capsys.readouterr().out
    assert re.search(r"▁deux\W+[▁<]\w+\W+[01]\.\d\d", printed)
    assert "one [/b] $$ two - un deux trois" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    picture.unlink()
    assert exit_code(*args, "--text", "one two", "--hard-attention") == 0  # its own translation
    assert picture.exists()


def test_what_attention_refuses(
    attentive: Path, everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["attention", str(attentive), "--text"]
    assert "give a sentence" in complaint(capsys, *asked, " ")
    assert "a picture holds 120" in complaint(capsys, *asked, "one two " * 100)
    (tmp_path / "folder.png").mkdir()
    assert "it is a folder" in complaint(
        capsys, *asked, "one", "--out", str(tmp_path / "folder.png")
    )
    for out in (tmp_path, tmp_path / "map.jpg"):
        assert "ends in .png" in complaint(capsys, *asked, "one", "--out", str(out))
    part = str(everything / "pretrain" / "seed-0")
    said = complaint(capsys, "attention", part, "--text", "one", "--hard-attention")
    assert "attends to all tokens" in said
    for option, value in (("k", "0"), ("eps", "0")):
        args = ["--attention", "soft-topk", f"--attention-{option}", value, "--out", "nowhere"]
        assert f"--attention-{option} 0: give" in complaint(capsys, "train", *args)
    assert "softmax, soft-topk" in complaint(capsys, "train", "--attention", "x", "--out", "no")


# --- damaged files, and files that cannot be written ---


def with_a_changed_byte(file: Path, share: float = 0.5) -> None:
    data = bytearray(file.read_bytes())
    data[int(share * len(data))] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "result.json", "config.json"])
def test_damage_in_a_part_is_noticed_by_all_that_use_it(
    everything: Path, corpus: Path, tmp_path: Path, name: str, capsys: Any
) -> None:
    run, part = tmp_path / "run", tmp_path / "run" / "pretrain" / "seed-0"
    shutil.copytree(everything, run)
    with_a_changed_byte(part / name)
    new = ["train", *FEW, "--out", str(tmp_path / "new"), "--init"]
    uses = [
        ["evaluate", str(part)],
        ["translate", str(part), str(corpus / "test.en")],
        ["attention", str(part), "--text", "one", "--out", str(tmp_path / "a.png")],
        [*new, str(part)],
        ["train", "--resume", "--seed", "0,1", "--objective", "all", "--out", str(run)],
    ]
    if name == "model.safetensors":
        uses = [*uses[:-1], [*new, str(part / name)]]
    for args in uses:
        assert f"{name} is damaged" in complaint(capsys, *args)
    assert not (tmp_path / "new").exists()


def test_damage_to_the_weights_a_run_began_with(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert exit_code("train", "--init", str(everything), *FEW, "--out", str(out)) == 0
    with_a_changed_byte(out / "init.safetensors")
    said = complaint(capsys, "train", "--resume", "--seed", "1", "--out", str(out))
    assert "init.safetensors is damaged" in said
    assert "put the file with the SHA-256" in said


def test_compare_does_not_leave_out_a_run_with_a_broken_config(
    everything: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(everything, run)
    file = run / "membership" / "seed-0" / "config.json"
    file.write_text(file.read_text()[:-20])
    assert "membership/seed-0/config.json is damaged" in complaint(capsys, "compare", str(run))


@pytest.mark.parametrize("home", ["file", "missing"])
@pytest.mark.parametrize("name", ["evaluate", "compare", "attention", "prepare", "train"])
def test_an_out_that_cannot_be_written_is_refused_before_the_work(
    everything: Path,
    tmp_path: Path,
    name: str,
    home: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("the work has begun")

    for work_of in ("_use.part_to_translate", "_train.prepare_folder", "_train.prepare_corpus"):
        monkeypatch.setattr(f"softtopk.experiments.translation.{work_of}", work)
    for work_of in ("finished", "_show"):
        monkeypatch.setattr(Experiment, work_of, work)
    (tmp_path / "file").touch()
    out = tmp_path / home / "below.png"
    args = {"attention": [str(everything), "--text", "one"], "prepare": [], "train": []}
    said = complaint(capsys, name, *args.get(name, [str(everything)]), "--out", str(out))
    assert "there is no folder" in said
    assert "make it, or give another" in said
    assert not (tmp_path / "missing").exists()
