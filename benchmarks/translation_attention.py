"""What does top-k attention to the source do for translation? The paper's Table 3, again.

    python benchmarks/translation_attention.py --data DIR --source en --target fr --out RUNS
    python benchmarks/translation_attention.py --quick --out RUNS    # built-in text, minutes

A recurrent model and a Transformer, with softmax attention and with SOFT top-k, each with three
--seeds, are trained from random weights by `softtopk translate`. Then those with SOFT top-k
translate once more, each token by exactly k of the source. What DIR has, and what is held back of
it, is in translation_runs.py.

RUNS/attention_runs.md has all runs. RUNS/attention.md has BLEU and the number of source tokens that
hold 95 % of the attention, mean and standard deviation over the seeds, and the differences seed by
seed; RUNS/attention.json the scores that it was made of. It takes about three hours on two cores;
--rows names one of the models.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from translation_runs import Study, mean_and_deviation, row_of, scores_of

MODELS: Mapping[str, Mapping[str, Any]] = {
    "recurrent": {"model": "recurrent"},
    "transformer": {"model": "transformer", "pretrain_warmup": 400},
}
SOFTMAX, TOPK = "softmax", "soft-topk"
#: k and eps were chosen by validation BLEU, in shorter trainings: docs/notebook.md.
ATTENTIONS: Mapping[str, Mapping[str, Any]] = {
    SOFTMAX: {"attention": SOFTMAX},
    TOPK: {"attention": TOPK, "attention_k": 5, "attention_eps": 1.0},
}
HARD = "hard"
TOKENS = "source tokens with 95 %"


def main() -> None:
    study = Study("attention", __doc__.splitlines()[0], MODELS)
    cells = list(itertools.product(study.seeds, study.rows, ATTENTIONS))
    trained = study.begin(
        {
            f"{model}-{attention}-{seed}": {
                **(MODELS[model] | ATTENTIONS[attention]),
                "seed": seed,
            }
            for seed, model, attention in cells
        }
    )
    runs: dict[tuple[str, str], list[Path]] = {}
    for (_, *cell), run in zip(cells, trained.values(), strict=True):
        runs.setdefault(tuple(cell), []).append(run)
    study.compare(trained.values())
    study.second(trained.values())
    selecting = [run for model in study.rows for run in runs[model, TOPK]]
    study.evaluate(selecting, HARD, {"hard_attention": True})

    columns = [*study.test_sets, TOKENS]
    rows = [["BLEU, beam 5", *columns]]
    for model in study.rows:
        soft, top = (
            [figures(runs[model, attention], column) for column in columns]
            for attention in (SOFTMAX, TOPK)
        )
        exact = [figures(runs[model, TOPK], HARD) if column == "test" else {} for column in columns]
        rows += [
            [f"{model}, {SOFTMAX}", *(mean_and_deviation(x.values(), "") for x in soft)],
            [f"{model}, {TOPK}", *(mean_and_deviation(x.values(), "") for x in top)],
            [f"{model}, {TOPK} - {SOFTMAX}", *map(difference, top, soft)],
            [f"{model}, exactly k in use - {TOPK}", *map(difference, exact, top)],
        ]
    study.summarise(trained.values(), rows)


def figures(runs: Sequence[Path], column: str) -> dict[int, float]:
    """By the seeds that were finished."""
    found: dict[int, float] = {}
    for run in runs:
        row = row_of(run)
        if column == TOKENS:
            found |= dict(zip(row["seeds"], row["attention_tokens"]["test"], strict=True))
        else:
            found |= scores_of(run, column)
    return found


def difference(left: Mapping[int, float], right: Mapping[int, float]) -> str:
    """Seed by seed."""
    return mean_and_deviation(left[seed] - right[seed] for seed in left if seed in right)


if __name__ == "__main__":
    main()
