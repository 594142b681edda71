"""Which objective gains most from training through the search? The paper's Table 2, again.

    python benchmarks/translation_objectives.py --data DIR --source en --target fr --out RUNS
    python benchmarks/translation_objectives.py --quick --out RUNS    # built-in text, minutes

DIR has train.*, valid.* and test.*. The last TAIL training pairs are held back as the test set
before anything is trained; test.* is a second one, for the end. Then, by `softtopk translate`:

1. Pieces are learned, and a model is pre-trained by teacher forcing with each of two seeds.
2. Every objective goes on from the first one with each of the three TRIALS, and is judged on the
   validation part. The best trial is kept. No test set is translated.
3. Every objective, as its best trial, goes on from both models with other seeds: PLACES. So does
   teacher forcing with as many updates as fit into the CPU time of an objective, by that of the
   trials.

RUNS/table.md has all of it. RUNS/summary.md has the differences, seed by seed, on both test sets:
mean and standard deviation, and the means by pre-trained model. A run that diverges is left out of
both. A call that was killed or stopped is taken up again by the same call. Each run has one thread,
and --jobs of them run at a time. It takes two to three hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

#: Lines at the end of train.*, of which about half have at most --max-words words.
TAIL = 6000
#: Of all trainings. On an AMD CPU updates are faster with medium.
EVERY = {"threads": 1, "matmul_precision": "medium", "eval_beams": 5}
#: Long enough that more teacher forcing gains little.
PRETRAINING = {"updates": 0, "pretrain_epochs": 12, "pretrain_lr": 2e-3, "pretrain_final_lr": 2e-4}
#: What all continuations share. The learning rate ends at a tenth of where it begins.
COMMON = {"batch_size": 32, "updates": 400}
TUNING_UPDATES = 100
TUNING_SEED = 1000
#: Seeds of the pre-training, and of the continuations that go on from it.
PLACES: Mapping[int, Sequence[int]] = MappingProxyType({0: (0, 1), 1: (2,)})


#: What is tried for every objective.
TRIALS = tuple({"lr": lr} for lr in (1e-4, 2e-4, 4e-4))


class Objective(NamedTuple):
    """One row of the table: an objective of the command, with its options."""

    objective: str
    options: Mapping[str, Any] = MappingProxyType({})


#: A model of almost nothing.
QUICK = {"hidden": 32, "embedding": 32, "max_length": 20, "pretrain_epochs": 2}

FORCING = "teacher-forcing"
#: How `softtopk translate train` ends if a part of a run has failed; it said why.
DIVERGED = 1
ROWS = {
    FORCING: Objective(FORCING),
    "risk": Objective("risk"),
    "softmax-risk": Objective("risk", {"risk_selection": "softmax"}),
    "membership": Objective("membership"),
    "soft-beam": Objective("soft-beam"),
}
#: With whose CPU time teacher forcing goes on, too. That of both risks is nearly the same.
TIMED = ("risk",)


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
    small = QUICK if args.quick else {}
    common = {**COMMON, "updates": 4} if args.quick else COMMON
    tuning = {"updates": 2 if args.quick else TUNING_UPDATES}

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
        call("train", "--resume", *as_options(given))  # of a finished run: compares the options
        return folder

    def train_all(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
        with ThreadPoolExecutor(args.jobs) as pool:
            return dict(zip(runs, pool.map(train, runs, runs.values()), strict=True))

    models = train_all(
        {
            f"pretrained-{seed}": {
                **(corpus | PRETRAINING | small | {"pieces": pieces, "seed": seed})
            }
            for seed in PLACES
        }
    )

    def further(seed: int, seeds: Sequence[int], row: Objective, more: Mapping[str, Any]) -> Any:
        """Go on from a pre-trained model, to the last update: no other weights are looked at.

        So the validation in training decides nothing. That of the result has all sentences.
        """
        options = {**common, **row.options, **more}
        return {
            **options,
            "eval_every": options["updates"],
            "eval_sentences": 50,
            "final_lr": options["lr"] / 10,
            "objective": row.objective,
            "init": models[f"pretrained-{seed}"],
            "seed": ",".join(map(str, seeds)),
        }

    tried = train_all(
        {
            f"trials/{name}-{i}": further(
                next(iter(PLACES)), [TUNING_SEED], row, {**tuning, **trial, "test": False}
            )
            for i, trial in enumerate(TRIALS)
            for name, row in ROWS.items()
        }
    )
    judging, cost = {}, {}
    for name, row in ROWS.items():
        trials = [tried[f"trials/{name}-{i}"] for i in range(len(TRIALS))]
        scores = list(map(validation, trials))
        judging[name] = row, {**common, **TRIALS[scores.index(max(scores))]}
        cost[name] = fmean(map(cpu_seconds, trials))
    row, options = judging[FORCING]
    for name in TIMED:
        updates = round(common["updates"] * cost[name] / cost[FORCING])
        judging[f"{FORCING}, time of {name}"] = row, {**options, "updates": updates}
    judged = train_all(
        {
            folder_of(name, seed): further(seed, seeds, row, options)
            for name, (row, options) in judging.items()
            for seed, seeds in PLACES.items()
        }
    )
    runs = [*models.values(), *judged.values()]
    call("compare", *map(str, runs), "--out", str(args.out / "table"))
    if not args.quick:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: translate_second(run, args.data), runs))
    text = summary(list(judging), judged, models, not args.quick)
    (args.out / "summary.md").write_text(text)
    print(text)


def folder_of(name: str, seed: int) -> str:
    return f"judged/{name.replace(', ', '-').replace(' ', '-')}-{seed}"


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
    done = subprocess.run([sys.executable, "-m", "softtopk", "translate", *args])
    if done.returncode not in (0, DIVERGED):
        done.check_returncode()


def translate_second(run: Path, data: Path) -> None:
    out = run / "second"
    if not out.with_suffix(".json").exists():
        beam = str(EVERY["eval_beams"])
        call(
            *("evaluate", str(run), "--data", str(data), "--beam", beam),
            *("--threads", str(EVERY["threads"]), "--out", str(out)),
        )


def row_of(run: Path) -> dict[str, Any]:
    """The one row of a run's table."""
    (row,) = json.loads((run / "table.json").read_text())
    return row


def bleu_of(row: Mapping[str, Any], part: str) -> dict[int, float]:
    """By the seeds that were finished."""
    found = row[part].get(str(EVERY["eval_beams"]), {"bleu": []})["bleu"]
    return dict(zip(row["seeds"], found, strict=True))


def validation(run: Path) -> float:
    return max(bleu_of(row_of(run), "valid").values(), default=-math.inf)


def cpu_seconds(run: Path) -> float:
    return row_of(run)["cpu_seconds_per_update"] or math.nan


def scores_of(run: Path, test_set: str) -> dict[int, float]:
    """BLEU by seed."""
    if test_set != "second":
        return bleu_of(row_of(run), test_set)
    return {r["seed"]: r["bleu"] for r in json.loads((run / "second.json").read_text())}


def summary(
    names: Sequence[str], judged: Mapping[str, Path], models: Mapping[str, Path], second: bool
) -> str:
    """BLEU of all, and differences seed by seed with their means by pre-trained model."""
    test_sets = ["valid", "test", "second"][: 2 + second]

    def scores(name: str, test_set: str) -> dict[tuple[int, int], float]:
        """By the seeds of the pre-training and of what followed."""
        return {
            (seed, one): bleu
            for seed in PLACES
            for one, bleu in scores_of(judged[folder_of(name, seed)], test_set).items()
        }

    def difference(name: str, rival: str, test_set: str) -> str:
        ours, theirs = scores(name, test_set), scores(rival, test_set)
        found = {place: ours[place] - theirs[place] for place in ours if place in theirs}
        if len(found) < 2:
            return "diverged"
        seeds = dict.fromkeys(seed for seed, _ in found)
        means = (fmean(x for place, x in found.items() if place[0] == seed) for seed in seeds)
        by_model = ", ".join(f"{mean:+.2f}" for mean in means)
        return f"{fmean(found.values()):+.2f} ± {stdev(found.values()):.2f} ({by_model})"

    rows = [["BLEU, beam 5", "updates", "learning rate", "CPU seconds", *test_sets]]
    # As often as others go on from them.
    counts = [len(seeds) for seeds in PLACES.values()]
    before = [
        [scores_of(models[f"pretrained-{seed}"], one)[seed] for seed in PLACES] for one in test_sets
    ]
    rows.append(["pre-trained", "", "", "", *(f"{fmean(bleu, counts):.2f}" for bleu in before)])
    for name in names:
        runs = [row_of(judged[folder_of(name, seed)]) for seed in PLACES]
        (updates,) = {row["settings"]["updates"] for row in runs}
        (lr,) = {row["settings"]["lr"] for row in runs}
        seconds = fmean(row["cpu_seconds_per_update"] or math.nan for row in runs) * updates
        found = [scores(name, one).values() for one in test_sets]
        bleu = [f"{fmean(some):.2f}" if some else "diverged" for some in found]
        rows.append([name, f"{updates:,}", f"{lr:g}", f"{seconds:.0f}", *bleu])
    pairs = [(name, FORCING) for name in ROWS if name != FORCING]
    pairs += [(name, f"{FORCING}, time of {name}") for name in TIMED]
    pairs += [("risk", "softmax-risk"), ("risk", "membership")]
    more = [["difference", *test_sets]]
    more += [
        [f"{name} - {rival}", *(difference(name, rival, one) for one in test_sets)]
        for name, rival in pairs
    ]
    return f"{table_of(rows)}\n{table_of(more)}"


def table_of(rows: Sequence[Sequence[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |\n" for row in rows]
    return head + "|---|" + "--:|" * (len(rows[0]) - 1) + "\n" + "".join(body)


if __name__ == "__main__":
    main()
