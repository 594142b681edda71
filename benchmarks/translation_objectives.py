"""Which objective gains most from training through the search? The paper's Table 2, again.

    python benchmarks/translation_objectives.py --data DIR --source en --target fr --out RUNS
    python benchmarks/translation_objectives.py --quick --out RUNS    # built-in text, minutes

A model is trained by teacher forcing with each of three --seeds. Every objective goes on from each
of them, with the same number of updates, the same learning rate and the model's seed. So does
teacher forcing with as many updates as fit into the CPU time that an objective took. What DIR has,
and what is held back of it, is in translation_runs.py.

RUNS/objectives_runs.md has all runs. RUNS/objectives.md has BLEU and the differences, seed by seed,
on both test sets, mean and standard deviation; RUNS/objectives.json the scores that it was made of.
A run that diverges is left out. It takes about two and a half hours on two cores; --rows leaves
objectives out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from translation_runs import Study, mean_and_deviation, row_of, scores_of

#: What all continuations share. The learning rate is near that with which the models ended: in
#: trials of three, 1e-4 was the best for every objective (docs/notebook.md).
COMMON = {"batch_size": 32, "updates": 400, "lr": 1e-4, "final_lr": 1e-5}


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
TIMED = "risk"
LONGER = f"{FORCING}, time of {TIMED}"
Runs = dict[str, list[Path]]
"""Of each row, by seed."""


def main() -> None:
    study = Study("objectives", __doc__.splitlines()[0], ROWS)
    common = {**COMMON, "updates": 4} if study.quick else COMMON
    rows = [name for name in ROWS if name in {FORCING, TIMED, *study.rows}]
    models = study.begin(
        {
            f"recurrent-softmax-{seed}": {
                "model": "recurrent",
                "attention": "softmax",
                "seed": seed,
            }
            for seed in study.seeds
        }
    )

    def go_on(names: Sequence[str], row: Mapping[str, Objective], updates: int) -> Runs:
        """To the last update: no other weights are looked at.

        So the validation in training decides nothing. That of the result has all sentences.
        """
        trained = study.train(
            {
                f"further/{name.replace(', ', '-').replace(' ', '-')}-{seed}": {
                    **common,
                    **row[name].options,
                    "updates": updates,
                    "eval_every": updates,
                    "eval_sentences": 50,
                    "objective": row[name].objective,
                    "init": init,
                    "seed": seed,
                }
                for seed, init in zip(study.seeds, models.values(), strict=True)
                for name in names
            }
        )
        found = list(trained.values())
        return {name: found[i :: len(names)] for i, name in enumerate(names)}

    runs = go_on(rows, ROWS, common["updates"])
    longer = round(common["updates"] * seconds(runs[TIMED]) / seconds(runs[FORCING]))
    runs |= go_on([LONGER], {LONGER: ROWS[FORCING]}, longer)
    every = [*models.values(), *(run for some in runs.values() for run in some)]
    study.compare(every)
    study.second(every)
    study.summarise(every, *summary({"pre-trained": [*models.values()], **runs}, study.test_sets))


def seconds(runs: Sequence[Path]) -> float:
    """Of the CPU, for an update; not of runs that diverged."""
    found = [row_of(run)["cpu_seconds_per_update"] for run in runs]
    return fmean([x for x in found if x] or [math.nan])


def summary(runs: Runs, test_sets: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """BLEU of all, and differences seed by seed."""

    def scores(name: str, test_set: str) -> dict[int, float]:
        return {seed: bleu for run in runs[name] for seed, bleu in scores_of(run, test_set).items()}

    def difference(name: str, rival: str, test_set: str) -> str:
        ours, theirs = scores(name, test_set), scores(rival, test_set)
        found = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        each = ", ".join(f"{x:+.2f}" for x in found)
        return f"{mean_and_deviation(found)} ({each})" if found else "diverged"

    rows = [["BLEU, beam 5", "updates", "CPU seconds", *test_sets]]
    for name, some in runs.items():
        (updates,) = {row_of(run)["settings"].get("updates", 0) for run in some}
        cells = [f"{updates:,}", f"{seconds(some) * updates:.0f}"] if updates else ["", ""]
        found = [scores(name, one).values() for one in test_sets]
        rows.append([name, *cells, *(mean_and_deviation(x, "") or "diverged" for x in found)])
    pairs = [(name, FORCING) for name in runs if name != FORCING]
    pairs += [(name, LONGER) for name in runs if "risk" in name and name != LONGER]
    pairs += [(TIMED, name) for name in ("softmax-risk", "membership") if name in runs]
    more = [["difference", *test_sets]]
    more += [
        [f"{name} - {rival}", *(difference(name, rival, one) for one in test_sets)]
        for name, rival in pairs
    ]
    return rows, more


if __name__ == "__main__":
    main()
