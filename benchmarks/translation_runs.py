"""What translation_objectives.py and translation_attention.py share: runs of `softtopk translate`.

DIR has train.*, valid.* and test.*. The last TAIL training pairs are held back as the test set
before anything is trained; test.* is a second one, for the end. Both may have the same folder RUNS:
the objectives then go on from models of the other comparison. A call that was killed or stopped is
taken up again by the same call. Each run has one thread, and --jobs of them run at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any

#: Lines at the end of train.*, of which about half have at most --max-words words.
TAIL = 6000
#: Of all trainings. On an AMD CPU updates are faster with medium.
EVERY = {"threads": 1, "matmul_precision": "medium", "eval_beams": 5}
#: From random weights, by teacher forcing. The learning rate ends near nothing; the last of eight
#: epochs raised validation by 0.3 to 0.7 BLEU.
TRAINING: Mapping[str, Any] = MappingProxyType(
    {
        "updates": 0,
        "pretrain_epochs": 8,
        "batch_size": 32,
        "pretrain_lr": 1.5e-3,
        "pretrain_final_lr": 5e-5,
    }
)
#: A model of almost nothing.
QUICK = {"hidden": 32, "max_length": 20, "pretrain_epochs": 2}
#: How `softtopk translate train` ends if a part of a run has failed; it said why.
DIVERGED = 1


class Study:
    """Runs in one folder, on one text.

    Args:
        name: Of the files with the outcome: RUNS/name_runs.md, RUNS/name.md, RUNS/name.json.
        description: Of the script, for its help.
        rows: What --rows can choose from.
    """

    def __init__(self, name: str, description: str, rows: Iterable[str] = ()) -> None:
        self.name, self.rows = name, list(rows)
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--data", type=Path, help="folder with train.*, valid.* and test.*")
        parser.add_argument("--source", default="en")
        parser.add_argument("--target", default="fr")
        parser.add_argument("--max-words", type=int, default=12, help="of a source sentence")
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--epochs", type=int, help="of trainings from random weights: 8")
        parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
        parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
        parser.add_argument("--quick", action="store_true", help="see that it runs, on own text")
        if self.rows:
            known = ", ".join(self.rows)
            parser.add_argument("--rows", nargs="+", choices=self.rows, metavar="ROW", help=known)
        args = parser.parse_args()
        self.rows = getattr(args, "rows", None) or self.rows
        if args.quick == (args.data is not None):
            parser.error("give --data or --quick, and not both")
        if len(set(args.seeds)) < len(args.seeds):
            parser.error(f"--seeds {args.seeds}: give each of them once")
        self.data, self.out, self.jobs, self.quick = args.data, args.out, args.jobs, args.quick
        self.seeds = args.seeds
        self.out.mkdir(parents=True, exist_ok=True)
        text = self.out / "text"
        corpus: dict[str, Any] = {}
        if not self.quick:
            _hold_back(self.data, text, (args.source, args.target))
            corpus = {"data": text, "source": args.source, "target": args.target}
            corpus |= {"max_words": args.max_words}
        pieces = self.out / "pieces"
        _call("prepare", *_as_options({**corpus, "out": pieces}))
        self._fresh = {**TRAINING, **corpus, "pieces": pieces, **(QUICK if self.quick else {})}
        if args.epochs:
            self._fresh["pretrain_epochs"] = args.epochs
        self.test_sets = ("valid", "test", *(() if self.quick else ("second",)))

    def begin(self, models: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        """Runs from random weights, in folders of these names."""
        return self.train({name: {**self._fresh, **given} for name, given in models.items()})

    def train(self, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        """Runs with their options, in folders of these names: begun, resumed, or finished."""
        return dict(zip(runs, self._each(self._train, runs.items()), strict=True))

    def _train(self, run: tuple[str, Mapping[str, Any]]) -> Path:
        name, options = run
        folder = self.out / name
        folder.parent.mkdir(exist_ok=True)
        given = {**EVERY, **options, "out": folder}
        if (folder / "config.json").exists():
            given.pop("pieces", None)  # which the run has; all else has to be as it was
        # Of a finished run this compares the options.
        _call("train", "--resume", *_as_options(given), fine=(0, DIVERGED))
        return folder

    def compare(self, runs: Iterable[Path]) -> None:
        """The table of all runs."""
        _call("compare", *map(str, runs), "--out", str(self.out / f"{self.name}_runs"))

    def second(self, runs: Iterable[Path]) -> None:
        """Translate the second test set, if there is one."""
        if not self.quick:
            self.evaluate(runs, "second", {"data": self.data})

    def evaluate(self, runs: Iterable[Path], name: str, options: Mapping[str, Any]) -> None:
        """Translate once more, by what did not diverge; the outcome is RUN/name.json."""

        def translate(run: Path) -> None:
            out = run / name
            if row_of(run)["seeds"] and not out.with_suffix(".json").exists():
                given = {"beam": EVERY["eval_beams"], "threads": EVERY["threads"], **options}
                _call("evaluate", str(run), *_as_options({**given, "out": out}))

        self._each(translate, runs)

    def _each(self, work: Any, items: Iterable[Any]) -> list[Any]:
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(work, items))

    def summarise(self, runs: Iterable[Path], *tables: Sequence[Sequence[str]]) -> None:
        """Write the scores of the runs, and write and print the tables made of them."""
        scores = {
            str(run.relative_to(self.out)): {name: scores_of(run, name) for name in self.test_sets}
            for run in runs
        }
        (self.out / f"{self.name}.json").write_text(json.dumps(scores, indent=1) + "\n")
        text = "\n".join(map(_table, tables))
        (self.out / f"{self.name}.md").write_text(text)
        print(text)


def row_of(run: Path) -> dict[str, Any]:
    """The one row of a run's table."""
    (row,) = json.loads((run / "table.json").read_text())
    return row


def scores_of(run: Path, test_set: str) -> dict[int, float]:
    """BLEU by the seeds that were finished: in the run's table, or of what `evaluate` wrote."""
    row = row_of(run)
    if row["seeds"] and test_set not in ("valid", "test"):
        return {r["seed"]: r["bleu"] for r in json.loads((run / f"{test_set}.json").read_text())}
    found = row[test_set].get(str(EVERY["eval_beams"]), {"bleu": []})["bleu"]
    return dict(zip(row["seeds"], found, strict=True))


def mean_and_deviation(figures: Iterable[float], sign: str = "+") -> str:
    figures = list(figures)
    spread = f" ± {stdev(figures):.2f}" if len(figures) > 1 else ""
    return f"{fmean(figures):{sign}.2f}{spread}" if figures else ""


def _hold_back(data: Path, text: Path, languages: tuple[str, str]) -> None:
    """The text with its last training pairs as the test part."""
    text.mkdir(parents=True, exist_ok=True)
    for code in languages:
        lines = (data / f"train.{code}").read_text(encoding="utf-8").split("\n")
        lines = lines[:-1] if not lines[-1] else lines
        if len(lines) < 2 * TAIL:
            raise SystemExit(
                f"{data}/train.{code} has {len(lines)} lines: too few to hold back {TAIL}"
            )
        for name, some in (("train", lines[:-TAIL]), ("test", lines[-TAIL:])):
            (text / f"{name}.{code}").write_text("\n".join(some) + "\n", encoding="utf-8")
        shutil.copy(data / f"valid.{code}", text / f"valid.{code}")


def _as_options(options: Mapping[str, Any]) -> list[str]:
    """As the command takes them; True and False are switches."""
    out: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            out += [f"--{flag}", str(value)]
    return out


def _call(*args: str, fine: Sequence[int] = (0,)) -> None:
    print("softtopk translate", *args, flush=True)
    done = subprocess.run([sys.executable, "-m", "softtopk", "translate", *args])
    if done.returncode not in fine:
        done.check_returncode()


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |\n" for row in rows]
    return head + "|---|" + "--:|" * (len(rows[0]) - 1) + "\n" + "".join(body)
