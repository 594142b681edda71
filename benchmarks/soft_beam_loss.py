"""Why does the paper's loss make a trained model worse? What it compares, and its gradient.

    softtopk translate train --data DIR --objective teacher-forcing --out RUN
    python benchmarks/soft_beam_loss.py RUN/pretrain/seed-0

Takes a trained model and the sentences of its run, and prints four Markdown tables.

The first: the loss scores the reference's token t from the state of the best hypothesis before its
own token t. Nats per token and numbers of tokens, for validation sentences: at all positions; up to
the first at which the hypothesis takes another token than the reference; after it, and of these at
the positions at which both have the same token all the same.

The second: the norm of the gradient of each loss, for 8 training sentences of each length, without
dropout.

The third: the membership loss of 50 training sentences by the number of candidates.

The fourth: how sharp the selection is at their first token, with the cost as it is and normalised:
the largest weight of the first rank, and how many extensions it takes for half of it. A few
minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from softtopk import sorted_soft_topk
from softtopk.experiments.translation import Pieces, Split, pairs_of, read_corpus
from softtopk.experiments.translation._batches import Batch, Pair, make_batch
from softtopk.seq2seq import (
    Seq2Seq,
    beam_membership_loss,
    soft_beam_loss,
    soft_beam_search,
    teacher_forcing_loss,
)

BATCH = 50
LENGTHS = (8, 16, 24, 32)
SENTENCES = 8  # of each length, for the gradients
LOSSES: dict[str, Callable[..., Tensor]] = {
    "teacher forcing": teacher_forcing_loss,
    "soft beam": soft_beam_loss,
    'soft beam, `follow="gold"`': partial(soft_beam_loss, follow="gold"),
    "soft beam, `selection_clip=1`": partial(soft_beam_loss, selection_clip=1.0),
    "soft beam, `selection_clip=0`": partial(soft_beam_loss, selection_clip=0.0),
    "membership": beam_membership_loss,
}


@torch.no_grad()
def positions(model: Seq2Seq, batch: Batch) -> dict[str, Tensor]:
    """The nats of the reference's tokens, by kind of position; all sentences of one length."""
    memory, state = model.encode(batch.source)
    step, embedding, gold = model.decoder(memory), model.target_embedding.weight, batch.target
    found = soft_beam_search(step, state, embedding, gold=gold)
    forced = teacher_forcing_loss(step, state, embedding, gold)
    assert found.gold_log_probs is not None
    best = found.log_likelihoods.argmax(1)
    departed = (found.tokens[torch.arange(len(best)), best] != gold).long()
    before = departed.cumsum(1) - departed == 0
    nats = -found.gold_log_probs
    return {
        "teacher forcing, all": forced.expand(gold.numel()),
        "soft beam, all": nats.flatten(),
        "soft beam, up to the first departure": nats[before],
        "soft beam, after it": nats[~before],
        "soft beam, after it, the same token": nats[~before & (departed == 0)],
    }


def print_positions(model: Seq2Seq, pairs: Sequence[Pair]) -> None:
    parts: dict[str, list[Tensor]] = {}
    for length in sorted({len(pair.target) for pair in pairs}):
        same = [pair for pair in pairs if len(pair.target) == length]
        for start in range(0, len(same), BATCH):
            batch = batch_of(model, same[start : start + BATCH])
            for name, nats in positions(model, batch).items():
                parts.setdefault(name, []).append(nats)
    print("| positions | tokens | nats per token |\n|---|--:|--:|")
    for name, nats in parts.items():
        values = torch.cat(nats)
        print(f"| {name} | {len(values):,} | {values.mean():.2f} |")


def print_gradients(model: Seq2Seq, pairs: Sequence[Pair]) -> None:
    batches = {}
    for length in LENGTHS:
        same = [pair for pair in pairs if len(pair.target) == length][:SENTENCES]
        if len(same) == SENTENCES:
            batches[length] = batch_of(model, same)
    print(f"| norm of the gradient | {' | '.join(f'{n} tokens' for n in batches)} |")
    print(f"|---|{'--:|' * len(batches)}")
    for name, loss in LOSSES.items():
        norms = [gradient_norm(model, batch, loss) for batch in batches.values()]
        print(f"| {name} | {' | '.join(f'{norm:.2g}' for norm in norms)} |")


@torch.no_grad()
def print_candidates(model: Seq2Seq, pairs: Sequence[Pair]) -> None:
    batch = batch_of(model, [pair for pair in pairs if len(pair.target) == LENGTHS[1]][:BATCH])
    memory, state = model.encode(batch.source)
    embedding = model.target_embedding.weight
    print("| candidates | membership loss |\n|--:|--:|")
    for candidates in (8, 32, 128, 1000, 5 * len(embedding)):
        loss = beam_membership_loss(
            model.decoder(memory), state, embedding, batch.target, candidates=candidates
        )
        print(f"| {candidates:,} | {loss.item():.3f} |")


@torch.no_grad()
def print_sharpness(model: Seq2Seq, pairs: Sequence[Pair]) -> None:
    batch = batch_of(model, [pair for pair in pairs if len(pair.target) == LENGTHS[1]][:BATCH])
    memory, state = model.encode(batch.source)
    first = model.embed(torch.full((len(batch.source),), model.config.bos))
    log_probs, _ = model.decoder(memory)(first, state)
    print("| cost | largest weight of rank 1 | extensions for half of it |\n|---|--:|--:|")
    for name, normalize in (("plain", None), ("normalised", "batch")):
        # The smallest of the negative log-likelihoods, as in Algorithm 2.
        ranks = sorted_soft_topk(-log_probs, 5, eps=0.1, largest=False, normalize=normalize)
        weights = ranks[..., 0].sort(descending=True).values
        needed = (weights.cumsum(-1) < 0.5).sum(-1) + 1.0
        print(f"| {name} | {weights[:, 0].mean():.4f} | {needed.median():.0f} |")


def gradient_norm(model: Seq2Seq, batch: Batch, loss: Callable[..., Tensor]) -> float:
    memory, state = model.encode(batch.source)
    step = model.decoder(memory)
    model.zero_grad()
    loss(step, state, model.target_embedding.weight, batch.target).backward()
    norms = [p.grad.double().norm() for p in model.parameters() if p.grad is not None]
    return torch.stack(norms).norm().item()


def batch_of(model: Seq2Seq, pairs: Sequence[Pair]) -> Batch:
    return make_batch(pairs, pad=model.config.pad, eos=model.config.eos)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("unit", type=Path, help="a finished part of a run: RUN/pretrain/seed-0")
    parser.add_argument("--sentences", type=int, default=400, help="for the first table")
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="fr")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    data = args.unit.resolve().parents[1] / "data"
    corpus = read_corpus(data, args.source, args.target)
    pieces = [
        Pieces((data / f"pieces.{language}.model").read_bytes())
        for language in (args.source, args.target)
    ]
    model = Seq2Seq.load(args.unit / "model.safetensors").eval()
    valid = Split(
        *(side[: args.sentences] for side in (corpus.valid.sources, corpus.valid.targets))
    )
    print_positions(model, pairs_of(valid, *pieces)[0])
    print()
    pairs = pairs_of(corpus.train, *pieces)[0]
    print_gradients(model, pairs)
    print()
    print_candidates(model, pairs)
    print()
    print_sharpness(model, pairs)


if __name__ == "__main__":
    main()
