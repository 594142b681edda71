"""What should a risk select, where only one output is right?

    python benchmarks/risk_selection.py

A recurrent network learns to sort digits by teacher forcing, until that gains little, and goes on
with teacher forcing or with the risk of 8 hypotheses: the share of digits that are wrong. Prints
the share of sequences that beam search gets right, mean and standard deviation over the seeds. In
a translation many hypotheses are nearly as good as the best, and it is another matter:
docs/translation_results.md. Seven minutes.
"""

from __future__ import annotations

import copy
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from softtopk.seq2seq import beam_search, hybrid_loss

LENGTH, FIRST, VOCABULARY = 10, 4, 14  # 0 to 3 are no digits; 3 is the end
BATCH, FURTHER, SEEDS = 64, 200, 5
#: The learning rate falls to nothing over the first part: more of it gains little.
UPDATES, LR, FURTHER_LR = 1500, 3e-3, 3e-4
Options = dict[str, Any]
ROWS: dict[str, Options] = {
    "teacher forcing": {"rho": 1.0},
    **{f"risk, k = {k}": {"objective": "risk", "k": k} for k in (1, 2, 4)},
    "risk, k = 1, width = 1": {"objective": "risk", "k": 1, "width": 1},
    "risk, softmax": {"objective": "risk", "k": None},
}


class Sorter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCABULARY, 32), nn.Linear(64, VOCABULARY)
        self.encoder, self.cell = nn.GRU(32, 64, batch_first=True), nn.GRUCell(32, 64)

    def step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(inputs, state)
        return self.output(state).log_softmax(-1), state

    def sample(self, rows: int) -> tuple[tuple[Any, ...], Tensor]:
        """What a search needs, and the right results."""
        digits = torch.randint(FIRST, VOCABULARY, (rows, LENGTH))
        gold = nn.functional.pad(digits.sort(1).values, (0, 1), value=3)
        return (self.step, self.encoder(self.embedding(digits))[1][0], self.embedding.weight), gold


def wrong_digits(found: Tensor, gold: Tensor) -> Tensor:
    """(B, n, L), (B, T) -> (B, n)."""
    found = nn.functional.pad(found, (0, max(0, gold.shape[1] - found.shape[2])))
    return (found[..., : gold.shape[1]] != gold[:, None]).double().mean(-1)


def train(model: Sorter, updates: int, lr: float, options: Options) -> float:
    """The share of sequences that are right then."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, updates)
    if "objective" in options:
        options = {**options, "risk": wrong_digits, "max_len": LENGTH + 1, "length_penalty": 1.0}
    for _ in range(updates):
        search, gold = model.sample(BATCH)
        optimizer.zero_grad()
        hybrid_loss(*search, gold, **options).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    search, gold = model.sample(4000)
    found = beam_search(*search, max_len=LENGTH + 1, length_penalty=1.0).tokens[:, 0]
    return (wrong_digits(found[:, None], gold) == 0).double().mean().item()


def main() -> None:
    torch.set_num_threads(1)
    shares: dict[str, list[float]] = {"before": [], **{name: [] for name in ROWS}}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        first = Sorter()
        shares["before"].append(train(first, UPDATES, LR, ROWS["teacher forcing"]))
        for name, options in ROWS.items():
            torch.manual_seed(1000 + seed)
            shares[name].append(train(copy.deepcopy(first), FURTHER, FURTHER_LR, options))
        print(f"seed {seed}: " + ", ".join(f"{name} {x[-1]:.3f}" for name, x in shares.items()))
    print("\n| | right | over teacher forcing |\n|---|--:|--:|")
    for name, found in shares.items():
        more = [x - y for x, y in zip(found, shares["teacher forcing"], strict=True)]
        print(
            f"| {name} | {fmean(found):.3f} ± {stdev(found):.3f} "
            f"| {fmean(more):+.3f} ± {stdev(more):.3f} |"
        )


if __name__ == "__main__":
    main()
