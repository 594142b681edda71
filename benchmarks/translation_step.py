"""What does an update that sees the beam search cost, next to teacher forcing?

    python benchmarks/translation_step.py
    python benchmarks/translation_step.py --profile

Random sentences of 20 tokens on both sides, 32 in a batch, 8,000 tokens, beam 5, and the model of
`softtopk translate` as it is by default, its output layer scaled until its predictions are about as
certain as those of a trained one: the number of candidates that matter depends on it, and without
training nearly all of them do. An update is forward, backward, clipping and a step of Adam.
Prints a Markdown table: the median CPU time of an update by each loss, its ratio to teacher
forcing, and what autograd keeps for the backward pass, the parameters not counted. The repeats of
all rows are interleaved, so that a disturbance of the machine meets all of them; a row that has
taken a minute is not repeated any more. With --profile, where the time of a hybrid update goes.
A few minutes. The CPU time, which other work on the machine disturbs
less, is that of all threads together; --threads changes their number from one.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softtopk import ConvergenceWarning, Sinkhorn
from softtopk.experiments.translation._training import Recipe, make_optimizer
from softtopk.seq2seq import (
    Seq2Seq,
    Seq2SeqConfig,
    _candidates,
    _membership,
    _risk,
    _soft_beam,
    hybrid_loss,
)

VOCABULARY, LENGTH, BATCH, BEAM = 8000, 20, 32, 5
PAD, BOS, EOS, FIRST = 0, 2, 3, 4
ENTROPY = 1.5  # nats, of a prediction; a model trained on en-fr has a loss of 1.3 per token
ROW_SECONDS = 60.0
RECIPE = Recipe(updates=1, period=1, lr=1e-4)  # for the optimiser of `softtopk translate`


def wrong_tokens(found: Tensor, gold: Tensor) -> Tensor:
    """(B, n, L), (B, T) -> (B, n). Takes no time, unlike a metric of text."""
    length = min(found.shape[-1], gold.shape[-1])
    return (found[..., :length] != gold[:, None, :length]).float().mean(-1)


# None is teacher forcing alone. The paper: beam 5, rho = 0.8, eps = 0.1.
Options = dict[str, Any] | None
SOFT = {"objective": "soft-beam", "rho": 0.8, "eps": 0.1, "beam_size": BEAM}
ROWS: dict[str, Options] = {
    "teacher forcing": None,
    "hybrid, soft beam": SOFT,
    "hybrid, membership": {"objective": "membership", "rho": 0.5, "eps": 1.0, "beam_size": BEAM},
    "hybrid, risk": {"objective": "risk", "risk": wrong_tokens, "length_penalty": 1.0},
    "hybrid, soft beam, normalised cost": {**SOFT, "normalize": "batch"},
}
# The paper's solver has 200 iterations, whatever they have reached. Such an update takes minutes,
# so it is timed with few of them, and the rest counted from the difference.
ITERATIONS, FEW = 200, (1, 11)


class Clock:
    """Time spent in named parts. A part inside another one counts as the outer one's."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._running = False

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self._running:
            yield
            return
        self._running, start = True, time.process_time()
        try:
            yield
        finally:
            self._running = False
            self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - start


CLOCK = Clock()


class Update:
    """Updates of a model by one loss, on the same batch again and again."""

    def __init__(self, options: Options) -> None:
        torch.manual_seed(0)
        config = Seq2SeqConfig(source_vocab=VOCABULARY, target_vocab=VOCABULARY)
        self.model = Seq2Seq(config)
        self.optimiser = make_optimizer(self.model, RECIPE, torch.device("cpu"))
        self.options = options
        ends = torch.full((BATCH, 1), EOS)
        tokens = torch.randint(FIRST, VOCABULARY, (2, BATCH, LENGTH - 1))
        self.source, self.gold = torch.cat([tokens[0], ends], 1), torch.cat([tokens[1], ends], 1)
        self.inputs = torch.cat([torch.full((BATCH, 1), BOS), self.gold[:, :-1]], 1)
        self.sharpen()

    @torch.no_grad()
    def sharpen(self) -> None:
        """Scale the output layer to predictions of the wanted entropy, by bisection."""
        logits = self.model(self.source, self.inputs).flatten(0, 1)[:100]
        low, high = 1.0, 1e4
        for _ in range(20):
            scale = (low * high) ** 0.5
            log_probs = (scale * logits).log_softmax(-1)
            entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
            low, high = (scale, high) if entropy > ENTROPY else (low, scale)
        self.model.output.weight *= scale
        self.model.output.bias *= scale

    def loss(self) -> Tensor:
        model = self.model
        with CLOCK.part("encoder"):
            memory, state = model.encode(self.source)
        with CLOCK.part("teacher forcing"):
            logits = model.logits(model.unroll(self.inputs, state, memory))
            forced = F.cross_entropy(logits.flatten(0, 1), self.gold.flatten(), ignore_index=PAD)
        if self.options is None:
            return forced
        return hybrid_loss(
            *(model.decoder(memory), state, model.target_embedding.weight, self.gold),
            teacher_forcing=forced,
            **self.options,
        )

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        loss = self.loss()
        with CLOCK.part("backward"):
            loss.backward()
        with CLOCK.part("optimiser"):
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()

    def kept(self) -> int:
        """Bytes that the graph of the loss holds: each storage once, without the parameters."""
        own = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        held: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                held[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = self.loss()
        del loss
        return sum(held.values())


def seconds(call: Callable[[], None]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def table(repeats: int) -> None:
    updates = {name: Update(options) for name, options in ROWS.items()}
    samples: dict[str, list[float]] = {name: [] for name in updates}
    for update in updates.values():
        update()  # the first one makes Adam's buffers
    for _ in range(repeats):
        for name, update in updates.items():
            if sum(samples[name]) < ROW_SECONDS:
                samples[name].append(seconds(update))
    base = statistics.median(samples["teacher forcing"])
    print("| update | CPU time | ratio | kept for backward |\n|---|--:|--:|--:|")
    for name, update in updates.items():
        median = statistics.median(samples[name])
        print(
            f"| {name} | {1e3 * median:.0f} ms | {median / base:.2f} "
            f"| {update.kept() / 2**20:.0f} MiB |"
        )
    whole = sinkhorn_seconds()
    print(
        f"| hybrid, soft beam, {ITERATIONS} Sinkhorn iterations, extrapolated "
        f"| {whole:.0f} s | {whole / base:.0f} | |"
    )


def sinkhorn_seconds() -> float:
    """Of an update with the paper's number of iterations, from two with few."""
    low, high = (seconds(Update({**SOFT, "solver": Sinkhorn(max_iter=n, tol=0.0)})) for n in FEW)
    return low + (high - low) / (FEW[1] - FEW[0]) * (ITERATIONS - FEW[0])


# ----------------------------------------------------------------------------------------- profile

# Where a part is looked up when it is called, and what it is called in the table.
PARTS: list[tuple[Any, str, str]] = [
    (Seq2Seq, "step", "decoder: attention and cell"),
    (Seq2Seq, "logits", "decoder: output layer"),
    (Tensor, "log_softmax", "decoder: softmax"),
    (_candidates, "best_candidates", "selection of candidates"),
    (_soft_beam, "extend", "scores of the extensions"),
    (_membership, "extend", "scores of the extensions"),
    (_membership, "best_candidates", "selection of candidates"),
    (_soft_beam, "sorted_soft_topk", "operator"),
    (_membership, "log_soft_topk", "operator"),
    (_soft_beam, "mix_rows", "mixing of the states"),
    (_membership, "take_rows", "choice of the states"),
    (_risk, "beam_search", "search, without gradient"),
    (_risk, "_scores_of", "scores of what was found, with gradient"),
]


@contextmanager
def labelled() -> Iterator[None]:
    """Have the clock see the parts of the search."""

    def wrap(function: Callable[..., Any], label: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with CLOCK.part(label):
                return function(*args, **kwargs)

        return call

    before = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
    try:
        for (owner, name, function), (_, _, label) in zip(before, PARTS, strict=True):
            setattr(owner, name, wrap(function, label))
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def show_profile(name: str, repeats: int) -> None:
    """Where the time of an update goes."""
    update = Update(ROWS[name])
    update()
    CLOCK.spent.clear()
    with labelled():
        total = sum(seconds(update) for _ in range(repeats)) / repeats
    parts = {part: spent / repeats for part, spent in CLOCK.spent.items()}
    parts["the rest"] = total - sum(parts.values())
    print(f"{name}: {1e3 * total:.0f} ms\n\n| part | time | share |\n|---|--:|--:|")
    for part, spent in sorted(parts.items(), key=lambda pair: -pair[1]):
        print(f"| {part} | {1e3 * spent:.1f} ms | {spent / total:.1%} |")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="where the time of a hybrid goes")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)  # of Sinkhorn, whose time is the question

    print(f"threads: {args.threads}\n")
    if args.profile:
        for name in ("hybrid, soft beam", "hybrid, membership", "hybrid, risk"):
            show_profile(name, args.repeats)
    else:
        table(args.repeats)


if __name__ == "__main__":
    main()
