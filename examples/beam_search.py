"""Beam search: does training through the search find more right sequences?

A recurrent network learns to sort 8 digits. After some teacher forcing it goes on with that, or
with the membership loss of `hybrid_loss`, which asks that the right prefix stays in the beam.
"""

import copy

import torch
from torch import Tensor, nn

from softtopk.seq2seq import beam_search, hybrid_loss

LENGTH, VOCABULARY, BEAM, FIRST, MORE = 8, 14, 3, 300, 100  # 0 to 3 are no digits; 3 is the end


class Sorter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(VOCABULARY, 32), nn.Linear(64, VOCABULARY)
        self.encoder, self.cell = nn.GRU(32, 64, batch_first=True), nn.GRUCell(32, 64)

    def step(self, inputs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(inputs, state)
        return self.output(state).log_softmax(-1), state

    def search(self, digits: Tensor) -> tuple:  # what a search and its losses need
        return self.step, self.encoder(self.embedding(digits))[1][0], self.embedding.weight


def sample(rows: int) -> tuple[Tensor, Tensor]:
    digits = torch.randint(4, VOCABULARY, (rows, LENGTH))
    return digits, nn.functional.pad(digits.sort(1).values, (0, 1), value=3)


def train(model: Sorter, steps: int, rho: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        digits, gold = sample(64)
        optimizer.zero_grad()
        options = {"rho": rho, "objective": "membership", "beam_size": BEAM}
        hybrid_loss(*model.search(digits), gold, **options).backward()
        optimizer.step()


def right(model: Sorter) -> float:
    digits, gold = sample(1000)
    found = beam_search(*model.search(digits), max_len=LENGTH + 1, beam_size=BEAM).tokens[:, 0]
    return (found == gold).all(1).float().mean().item()


torch.manual_seed(0)
train(first := Sorter(), FIRST, rho=1.0)  # rho = 1 is teacher forcing alone
print(f"before                            {right(first):.3f}")
# An update through the search takes about as long as four others.
for name, steps, rho in (("search", MORE, 0.3), ("forcing", MORE, 1.0), ("forcing", 4 * MORE, 1.0)):
    train(model := copy.deepcopy(first), steps, rho)
    print(f"after {steps:3d} updates by {name:12s} {right(model):.3f}")
