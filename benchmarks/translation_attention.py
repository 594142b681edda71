"""What does top-k attention to the source do for translation? The paper's Table 3, again.

    python benchmarks/translation_attention.py --data DIR --source en --target fr --out RUNS
    python benchmarks/translation_attention.py --quick --out RUNS    # built-in text, minutes

A recurrent model and a Transformer, with softmax attention and with SOFT top-k, each with three
seeds, are trained from random weights by `softtopk translate`. Then those with SOFT top-k translate
once more, each token by exactly k of the source. What DIR has, and what is held back of it, is in
translation_runs.py.

RUNS/table.md has all runs. RUNS/summary.md has BLEU and the number of source tokens that hold 95 %
of the attention, mean and standard deviation over the seeds, and the differences seed by seed. A
call that was killed or stopped is taken up again by the same call. It takes an hour and a half on
two cores.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from translation_runs import Study, mean_and_deviation, row_of, scores_of

SEEDS = (0, 1, 2)
#: The learning rate ends near nothing: in the last epochs validation hardly rises.
TRAINING = {"updates": 0, "pretrain_epochs": 8, "pretrain_lr": 2e-3, "pretrain_final_lr": 5e-5}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "recurrent": {"model": "recurrent"},
    "transformer": {"model": "transformer", "pretrain_warmup": 200},
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
    study = Study(__doc__.splitlines()[0])
    cells = list(itertools.product(SEEDS, MODELS, ATTENTIONS))
    trained = study.train(
        {
            f"{model}-{attention}-{seed}": {
                **(TRAINING | study.fresh | MODELS[model] | ATTENTIONS[attention]),
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
    selecting = [run for model in MODELS for run in runs[model, TOPK]]
    study.evaluate(selecting, HARD, {"hard_attention": True})

    rows = [["BLEU, beam 5", *study.test_sets, TOKENS]]
    for model in MODELS:
        found = [
            [figures(runs[model, attention], column) for column in rows[0][1:]]
            for attention in ATTENTIONS
        ]
        for attention, values in zip(ATTENTIONS, found, strict=True):
            cells = (f"{fmean(x):.2f} ± {stdev(x):.2f}" for x in values)
            rows.append([f"{model}, {attention}", *cells])
        softmax, topk = found
        pairs = (zip(y, x, strict=True) for x, y in zip(softmax, topk, strict=True))
        cells = (mean_and_deviation([y - x for y, x in pair]) for pair in pairs)
        rows.append([f"{model}, {TOPK} - {SOFTMAX}", *cells])
        exact = zip(
            figures(runs[model, TOPK], HARD), figures(runs[model, TOPK], "test"), strict=True
        )
        test = mean_and_deviation([x - y for x, y in exact])
        rows.append([f"{model}, exactly k in use - {TOPK}", "", test, *[""] * (len(rows[0]) - 3)])
    study.summarise(rows)


def figures(runs: Sequence[Path], column: str) -> list[float]:
    """One for each seed."""
    if column == TOKENS:
        return [row_of(run)["attention_tokens"]["test"][0] for run in runs]
    return [score for run in runs for score in scores_of(run, column).values()]


if __name__ == "__main__":
    main()
