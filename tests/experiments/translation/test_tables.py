"""The comparison of objectives, from records made up for it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import Run, open_run
from softtopk.experiments.translation._rows import collect, forcing_beside, softmax_beside
from softtopk.experiments.translation._settings import Settings
from softtopk.experiments.translation._tables import results

CORPUS = {
    "name": "text", "source": "en", "target": "fr", "fingerprint": "f", "builtin": False,
    "pairs": {"train": 1000, "valid": 10, "test": 10}, "max_words": 12, "subset": None,
}  # fmt: skip


class Records:
    """Makes runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, []

    def add(
        self,
        stage: str,
        seed: int,
        test: float | None = None,
        *,
        valid: float = 30.0,
        init: str | None = "abcdefghijk",
        pieces: dict[str, str] | None = None,
        finished: bool = True,
        tokens: dict[str, float] | None = None,
        **settings: Any,
    ) -> Run:
        config = {
            "command": "translate train",
            "stage": stage,
            "seed": seed,
            "init": init,
            "pieces": pieces,
            "corpus": CORPUS,
            **asdict(Settings(data="somewhere", max_words=12, **settings)),
        }
        run = open_run(self.folder / str(len(self.runs)), config, resume=False)
        self.runs.append(run)
        if finished:
            scores = {"valid": {"5": {"bleu": valid, "chrf": 50.0}}}
            if test is not None:
                scores["test"] = {"5": {"bleu": test, "chrf": 51.0}}
            run.finish(
                {
                    "updates": 900,
                    "best_update": 500,
                    "update_seconds": 90.0,
                    "update_cpu_seconds": 45.0,
                    "signatures": {"bleu": "s"},
                    "attention_tokens": tokens or {},
                    **scores,
                }
            )
        return run


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path)


def cells(records: Records) -> list[dict[str, str]]:
    (table,) = results(records.runs).tables
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_differences_are_taken_seed_by_seed(records: Records) -> None:
    for seed, (forced, hybrid) in enumerate([(36.0, 36.5), (37.0, 37.7), (35.0, 35.6)]):
        records.add("soft-beam", seed, hybrid)
        records.add("teacher-forcing", seed, forced)
    records.add("soft-beam", 3, 90.0)  # a seed that teacher forcing does not have
    first, second = cells(records)
    assert first["Objective"] == "teacher-forcing"
    assert first["test, beam 5"] == "36.00 ± 1.00 (3)"
    assert first["Over teacher forcing"] == ""
    assert second["Over teacher forcing"] == "+0.60 ± 0.10 (3)"
    assert second["Updates"] == "900"
    assert second["Seconds per update"] == "0.100"
    text = results(records.runs).markdown
    assert "--init WEIGHTS --pieces PIECES --objective soft-beam --seed 0,1,2,3" in text
    assert "# WEIGHTS: a file with the SHA-256 abcdefghijk\n" in text
    assert "--max-words 12" in text
    assert "somewhere" not in text
    assert "36.27" in text


def test_the_command_has_no_option_that_would_be_refused(records: Records) -> None:
    known = {"en": "123", "fr": "456"}
    records.add("soft-beam", 0, 30.0, init=None, pieces=known, vocab=60, normalization="nfkc")
    records.add("membership", 0, 30.0, init=None, vocab=60, schedule="constant", final_lr=0.5)
    text = results(records.runs).markdown.split("```")[1]
    first, second = re.findall("softtopk.*", text)
    assert "--pieces PIECES" in first
    assert "--vocab" not in first
    assert "--normalization" not in first
    assert "# PIECES: a folder with pieces.fr.model, which has the SHA-256 456\n" in text
    assert "--vocab 60" in second
    assert "--schedule constant" in second
    assert "PIECES" not in second
    assert "--final-lr" not in second


def test_the_baseline_has_the_same_updates_and_weights(records: Records) -> None:
    records.add("membership", 0, 37.0)
    records.add("teacher-forcing", 0, 30.0, updates=500)
    records.add("teacher-forcing", 0, 31.0, init="other")
    records.add("teacher-forcing", 0, 32.0, batch_size=32)
    rows = collect(records.runs)
    assert forcing_beside(rows[-1], rows) is None
    records.add("teacher-forcing", 0, 36.0, valid=35.0, lr=1e-3)
    records.add("teacher-forcing", 0, 36.8, valid=34.0)
    rows = collect(records.runs)
    best = forcing_beside(rows[-1], rows)
    assert best is not None
    assert best.settings["lr"] == 1e-3  # by its validation, not by its test
    found = results(records.runs).records[-1]["test"]["5"]["over_teacher_forcing"]
    assert found["bleu"] == [pytest.approx(1.0)]
    written = json.loads(json.dumps(results(records.runs).records))[-1]
    assert written["stage"] == "membership"
    assert (written["seconds_per_update"], written["cpu_seconds_per_update"]) == (0.1, 0.05)


def test_attention_is_compared_with_that_of_the_same_model(records: Records) -> None:
    shared = {"init": None, "pretrain_epochs": 2}
    for seed, (all_tokens, few) in enumerate([(20.0, 20.4), (21.0, 21.8)]):
        records.add("pretrain", seed, all_tokens, tokens={"test": 6.0 + seed}, **shared)
        records.add(
            "pretrain", seed, few, tokens={"valid": 9.0, "test": 3.0}, attention="soft-topk",
            attention_k=3, **shared,
        )  # fmt: skip
    records.add("pretrain", 0, 25.0, attention="soft-topk", model="transformer", **shared)
    softmax, topk, other = cells(records)
    assert softmax["Settings"] == "model recurrent, attention softmax"
    assert topk["Settings"].endswith("attention soft-topk, attention_k 3, attention_eps 1.0")
    assert softmax["Over softmax attention"] == ""
    assert topk["Over softmax attention"] == "+0.60 ± 0.28 (2)"
    assert other["Over softmax attention"] == ""
    assert softmax["Tokens with 95 %"] == "6.50 ± 0.71 (2)"
    assert topk["Tokens with 95 %"] == "3.00 ± 0.00 (2)"
    assert other["Tokens with 95 %"] == ""
    assert "Over teacher forcing" not in softmax
    rows = collect(records.runs)
    assert [softmax_beside(row, rows) for row in rows] == [None, rows[0], None]
    text = results(records.runs).markdown
    assert "37.30" in text
    assert "36.27" not in text
    assert "--attention soft-topk --attention-k 3" in text
    assert results(records.runs).records[1]["attention_tokens"] == {
        "valid": [9.0, 9.0],
        "test": [3.0, 3.0],
    }


def test_attention_is_compared_with_that_from_the_same_weights(records: Records) -> None:
    records.add("teacher-forcing", 0, 20.0, init="first")
    records.add("teacher-forcing", 0, 21.0, init="second", attention="soft-topk", attention_k=3)
    rows = collect(records.runs)
    assert [softmax_beside(row, rows) for row in rows] == [None, None]
    records.add("teacher-forcing", 0, 22.0, init="second")
    rows = collect(records.runs)
    assert [softmax_beside(row, rows) for row in rows] == [None, rows[2], None]


def test_settings_of_the_search_tell_its_rows_apart_only(records: Records) -> None:
    for seed, eps in enumerate((None, 0.1)):  # the same temperature
        records.add("soft-beam", seed, 30.0, eps=eps)
    records.add("soft-beam", 0, 31.0, follow="gold")
    for seed, rho in enumerate((0.8, 0.5)):  # which teacher forcing does not have
        records.add("teacher-forcing", seed, 30.0, rho=rho)
    rows = cells(records)
    assert [row["Objective"] for row in rows] == ["teacher-forcing", "soft-beam", "soft-beam"]
    assert [row["Settings"] for row in rows] == ["", "follow best", "follow gold"]
    assert rows[0]["test, beam 5"].endswith("(2)")


def test_a_run_that_is_not_finished_is_said_to_be(records: Records) -> None:
    records.add("soft-beam", 0, 30.0)
    records.add("membership", 0, finished=False)
    rows = cells(records)
    assert rows[1]["Updates"] == "not finished"
    assert "membership" not in results(records.runs).markdown.split("```")[1]


def test_runs_without_a_test_have_no_column_of_it(records: Records) -> None:
    records.add("soft-beam", 0)
    records.add("teacher-forcing", 0, valid=29.0)
    rows = cells(records)
    assert "test, beam 5" not in rows[0]
    assert rows[1]["Over teacher forcing"] == "+1.00"


def test_two_results_of_one_run_are_refused(records: Records) -> None:
    records.add("soft-beam", 0, 30.0)
    records.add("soft-beam", 0, 30.0, valid=31.0)
    with pytest.raises(UsageError, match="differ in their result"):
        collect(records.runs)


def test_settings_that_a_model_does_not_have_tell_no_rows_apart(records: Records) -> None:
    records.add("soft-beam", 0, 30.0, model="transformer", cell="gru", attention_k=3)
    records.add("soft-beam", 1, 31.0, model="transformer", cell="lstm", embedding=8)
    records.add("soft-beam", 0, 32.0, heads=8, layers=1, attention_in="all")
    records.add("soft-beam", 1, 33.0)
    rows = cells(records)
    assert [row["Settings"] for row in rows] == ["model transformer", "model recurrent"]
    assert [row["test, beam 5"].split()[0] for row in rows] == ["30.50", "32.50"]
    text = results(records.runs).markdown.split("```")[1]
    assert re.findall("--(?:model|cell|heads|layers|embedding|attention-).*? .*? ", text) == [
        "--model transformer "
    ]


def test_the_baseline_is_of_the_same_model(records: Records) -> None:
    records.add("membership", 0, 37.0, model="transformer", attention="soft-topk")
    records.add("teacher-forcing", 0, 30.0, attention="soft-topk")
    records.add("teacher-forcing", 0, 31.0, model="transformer")
    records.add("teacher-forcing", 0, 32.0, model="transformer", attention="soft-topk", heads=8)
    records.add(
        "teacher-forcing", 0, 33.0, model="transformer", attention="soft-topk", attention_k=4
    )
    rows = collect(records.runs)
    assert forcing_beside(rows[-1], rows) is None
    records.add("teacher-forcing", 0, 36.0, model="transformer", attention="soft-topk", cell="lstm")
    rows = collect(records.runs)
    best = forcing_beside(rows[-1], rows)
    assert best is not None
    assert best.bleu("test", "5") == {0: 36.0}


def test_the_command_says_what_the_weights_would_bring_otherwise(records: Records) -> None:
    records.add("teacher-forcing", 0, 30.0)
    records.add("teacher-forcing", 0, 31.0, attention="soft-topk", dropout=0.1)
    first, second = re.findall("softtopk.*", results(records.runs).markdown.split("```")[1])
    assert "--attention softmax --dropout 0.2" in first
    assert "--attention-k" not in first
    assert "--dropout 0.1" in second
    assert "--attention soft-topk --attention-k 5 --attention-eps 1.0" in second
