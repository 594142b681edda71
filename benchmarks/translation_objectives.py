"""Which objective gains most from training through the search? The paper's Table 2, again.

    python benchmarks/translation_objectives.py --data DIR --source en --target fr --out RUNS
    python benchmarks/translation_objectives.py --quick --out RUNS    # built-in text, ten minutes

DIR has train.*, valid.* and test.*. The last TAIL training pairs are held back as the test set
before anything is trained; test.* is a second one, for the end. Then, by `softtopk translate`:

1. Pieces are learned, and a model is pre-trained by teacher forcing with each of two seeds.
2. Every objective goes on from the first one with each of the three TRIALS, and is judged on the
   validation part. The best trial is kept. No test set is translated.
3. Every objective, as its best trial, goes on from both models with other seeds: PLACES.
4. Teacher forcing goes on with as many updates as fit into the CPU time of each search objective.

RUNS/table.md has all of it. RUNS/summary.md has the differences, seed by seed, on both test sets:
mean and standard deviation, and the means by pre-trained model. A call that was killed or stopped
is taken up again by the same call. Each run has one thread, and --jobs of them run at a time. It
takes many hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

#: Lines at the end of train.*, of which about half have at most MAX_WORDS words.
TAIL = 6000
#: Of all runs. On an AMD CPU, updates are 1.3 to 1.9 times as fast with medium. Beams of 1 would
#: double the time of the translations.
EVERY = {"threads": 1, "matmul_precision": "medium", "eval_beams": 5}
#: Long enough that more teacher forcing gains little.
PRETRAINING = {"updates": 0, "pretrain_epochs": 12, "pretrain_lr": 2e-3, "pretrain_final_lr": 2e-4}
#: What all continuations share. The learning rate ends at a tenth of where it begins.
COMMON = {"batch_size": 32, "updates": 250, "eval_every": 125}
TUNING = {"updates": 125, "eval_every": 125}
TUNING_SEED = 1000
#: Seeds of the pre-training, and of the continuations that go on from it.
PLACES = {0: (0, 1, 2), 1: (0, 1, 2)}


#: What is tried for every objective.
TRIALS = tuple({"lr": lr} for lr in (1e-4, 2e-4, 4e-4))


class Objective(NamedTuple):
    """One row of the table: an objective of the command, with its options."""

    objective: str
    options: Mapping[str, Any] = MappingProxyType({})


ROWS = {
    "teacher-forcing": Objective("teacher-forcing"),
    "soft-beam": Objective("soft-beam"),
    "membership": Objective("membership"),
    "softmax-risk": Objective("risk", {"risk_selection": "softmax"}),
    "risk": Objective("risk"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with train.*, valid.* and test.*")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="fr")
    parser.add_argument("--max-words", type=int, default=12, help="of a source sentence")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--quick", action="store_true", help="see that it runs, on built-in text")
    args = parser.parse_args()
    if not args.quick and args.data is None:
        parser.error("--data: give a folder, or --quick")
    small = {"hidden": 64, "embedding": 64, "max_length": 20} if args.quick else {}
    common = {**COMMON, "updates": 20, "eval_every": 10} if args.quick else COMMON
    tuning = {} if args.quick else TUNING

    args.out.mkdir(parents=True, exist_ok=True)
    text = args.out / "text"
    corpus: dict[str, Any] = {}
    if not args.quick:
        hold_back(args.data, text, (args.source, args.target))
        corpus = {"data": text, "source": args.source, "target": args.target}
        corpus |= {"max_words": args.max_words}
    pieces = args.out / "pieces"
    call("prepare", *as_options({**corpus, "out": pieces}))

    def train(name: str, options: Mapping[str, Any]) -> Path:
        """A run in the folder ``name``: begun, taken up again, or finished before."""
        folder = args.out / name
        folder.parent.mkdir(exist_ok=True)
        given = {**EVERY, **options, "out": folder}
        if (folder / "config.json").exists():
            given.pop("pieces", None)  # which the run has; all else has to be as it was
        if len(list(folder.glob("*/seed-*/result.json"))) < len(str(options["seed"]).split(",")):
            call("train", "--resume", *as_options(given))
        return folder

    def train_all(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        with ThreadPoolExecutor(args.jobs) as pool:
            return dict(zip(runs, pool.map(train, runs, runs.values()), strict=True))

    first_part = {**PRETRAINING, "pretrain_epochs": 4} if args.quick else PRETRAINING
    models = train_all(
        {
            f"pretrained-{seed}": {
                **(corpus | small | first_part | {"pieces": pieces, "seed": seed})
            }
            for seed in PLACES
        }
    )

    def further(seed: int, seeds: Sequence[int], row: Objective, more: Mapping[str, Any]) -> Any:
        """Go on from a pre-trained model."""
        options = {**common, **row.options, **more}
        return {
            **options,
            "final_lr": options["lr"] / 10,
            "objective": row.objective,
            "init": models[f"pretrained-{seed}"],
            "seed": ",".join(map(str, seeds)),
        }

    first = next(iter(PLACES))
    tried = train_all(
        {
            f"trials/{name}-{i}": further(
                first, [TUNING_SEED], row, {**tuning, **trial, "test": False}
            )
            for name, row in ROWS.items()
            for i, trial in enumerate(TRIALS)
        }
    )
    best = {}
    for name in ROWS:
        scores = [validation(tried[f"trials/{name}-{i}"]) for i in range(len(TRIALS))]
        best[name] = TRIALS[scores.index(max(scores))]
    judged = train_all(
        {
            f"judged/{name}-{seed}": further(seed, seeds, row, best[name])
            for name, row in ROWS.items()
            for seed, seeds in PLACES.items()
        }
    )
    forced = ROWS["teacher-forcing"]
    cost = {name: cpu_seconds(judged[f"judged/{name}-{first}"]) for name in ROWS}
    updates = {
        name: round(common["updates"] * cost[name] / cost["teacher-forcing"])
        for name in ROWS
        if name != "teacher-forcing"
    }
    in_time = train_all(
        {
            f"judged/time-of-{name}-{seed}": further(
                seed, seeds, forced, {**best["teacher-forcing"], "updates": n}
            )
            for name, n in updates.items()
            for seed, seeds in PLACES.items()
        }
    )
    runs = [*models.values(), *judged.values(), *in_time.values()]
    call("compare", *map(str, runs), "--out", str(args.out / "table"))
    if not args.quick:
        for run in runs:
            out = run / "second"
            if not out.with_suffix(".json").exists():
                call("evaluate", str(run), "--data", str(args.data), "--out", str(out))
    write_summary(args.out, judged | in_time, ["held back", "second"][: 1 if args.quick else 2])


def hold_back(data: Path, text: Path, languages: tuple[str, str]) -> None:
    """The text with its last training pairs as the test part."""
    text.mkdir(parents=True, exist_ok=True)
    for code in languages:
        lines = (data / f"train.{code}").read_text(encoding="utf-8").split("\n")
        lines = lines[:-1] if not lines[-1] else lines
        for name, some in (("train", lines[:-TAIL]), ("test", lines[-TAIL:])):
            (text / f"{name}.{code}").write_text("\n".join(some) + "\n", encoding="utf-8")
        shutil.copy(data / f"valid.{code}", text / f"valid.{code}")


def as_options(options: Mapping[str, Any]) -> list[str]:
    """As the command takes them; True and False are switches."""
    out: list[str] = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            out += [f"--{flag}", str(value)]
    return out


def call(*args: str) -> None:
    print("softtopk translate", *args, flush=True)
    subprocess.run([sys.executable, "-m", "softtopk", "translate", *args], check=True)


def row_of(run: Path) -> dict[str, Any]:
    """The one row of a run's table."""
    (row,) = json.loads((run / "table.json").read_text())
    return row


def validation(run: Path) -> float:
    scores = row_of(run)["valid"]
    return scores[max(scores, key=int)]["mean"]


def cpu_seconds(run: Path) -> float:
    return row_of(run)["cpu_seconds_per_update"]


def scores_of(run: Path, test_set: str) -> dict[int, float]:
    """BLEU at the largest beam by seed."""
    row = row_of(run)
    beam = max(row["test"], key=int)
    if test_set == "held back":
        return dict(zip(row["seeds"], row["test"][beam]["bleu"], strict=True))
    records = json.loads((run / "second.json").read_text())
    return {r["seed"]: r["bleu"] for r in records if r["beam"] == int(beam)}


def write_summary(out: Path, runs: Mapping[str, Path], test_sets: Sequence[str]) -> None:
    """Differences seed by seed, over all pre-trained models, and their means by model."""
    searching = [name for name in ROWS if name != "teacher-forcing"]
    pairs = [(name, "teacher-forcing") for name in searching]
    pairs += [(name, f"time-of-{name}") for name in searching]
    pairs += [("risk", "softmax-risk"), ("risk", "membership")]
    lines = ["| " + " | ".join(["BLEU", *test_sets]) + " |", "|---|" + "--:|" * len(test_sets)]
    for name, rival in pairs:
        cells = []
        for test_set in test_sets:
            by_model = []
            for seed, seeds in PLACES.items():
                ours, theirs = (
                    scores_of(runs[f"judged/{each}-{seed}"], test_set) for each in (name, rival)
                )
                by_model.append([ours[one] - theirs[one] for one in seeds])
            together = [each for found in by_model for each in found]
            means = ", ".join(f"{fmean(found):+.2f}" for found in by_model)
            cells.append(f"{fmean(together):+.2f} ± {stdev(together):.2f} ({means})")
        said = "teacher forcing in its time" if rival.startswith("time") else rival
        lines.append("| " + " | ".join([f"{name} over {said}", *cells]) + " |")
    (out / "summary.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
