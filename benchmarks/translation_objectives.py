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

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from translation_runs import Study, mean_and_deviation, row_of, scores_of

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


FORCING = "teacher-forcing"
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
    study = Study(__doc__.splitlines()[0])
    common = {**COMMON, "updates": 4} if study.quick else COMMON
    tuning = {"updates": 2 if study.quick else TUNING_UPDATES}
    models = study.train(
        {f"pretrained-{seed}": {**PRETRAINING, **study.fresh, "seed": seed} for seed in PLACES}
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

    tried = study.train(
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
        scores = [max(scores_of(run, "valid").values(), default=-math.inf) for run in trials]
        judging[name] = row, {**common, **TRIALS[scores.index(max(scores))]}
        seconds = [row_of(run)["cpu_seconds_per_update"] for run in trials]
        cost[name] = fmean(filter(None, seconds))  # not of a trial that diverged
    row, options = judging[FORCING]
    for name in TIMED:
        updates = round(common["updates"] * cost[name] / cost[FORCING])
        judging[f"{FORCING}, time of {name}"] = row, {**options, "updates": updates}
    judged = study.train(
        {
            folder_of(name, seed): further(seed, seeds, row, options)
            for name, (row, options) in judging.items()
            for seed, seeds in PLACES.items()
        }
    )
    runs = [*models.values(), *judged.values()]
    study.compare(runs)
    study.second(runs)
    study.summarise(*summary(list(judging), judged, models, study.test_sets))


def folder_of(name: str, seed: int) -> str:
    return f"judged/{name.replace(', ', '-').replace(' ', '-')}-{seed}"


def summary(
    names: Sequence[str],
    judged: Mapping[str, Path],
    models: Mapping[str, Path],
    test_sets: Sequence[str],
) -> tuple[list[list[str]], list[list[str]]]:
    """BLEU of all, and differences seed by seed with their means by pre-trained model."""

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
        return f"{mean_and_deviation([*found.values()])} ({by_model})"

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
    return rows, more


if __name__ == "__main__":
    main()
