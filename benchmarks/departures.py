"""What does the paper's loss compare, once the best hypothesis has left the reference?

    softtopk translate train --data DIR --objective teacher-forcing --out RUN
    python benchmarks/departures.py RUN/teacher-forcing/seed-0

Takes a trained model and the validation sentences of its run, and runs the soft beam search with
the reference beside it. The loss scores the reference's token t from the state of the best
hypothesis before its own token t. Prints a Markdown table of nats per token and numbers of tokens:
all positions; those up to the first at which the hypothesis takes another token than the
reference; those after it, and of these the ones at which both have the same token all the same.
A minute or two for 400 sentences.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from softtopk.experiments.translation import Pieces, read_corpus
from softtopk.experiments.translation._batches import Pair, make_batch
from softtopk.seq2seq import Seq2Seq, soft_beam_search, teacher_forcing_loss

BATCH = 50


@torch.no_grad()
def positions(model: Seq2Seq, source: Tensor, gold: Tensor, eps: float) -> dict[str, Tensor]:
    """The nats of the reference's tokens along the best hypothesis, by kind of position."""
    memory, state = model.encode(source)
    step, embedding = model.decoder(memory), model.target_embedding.weight
    found = soft_beam_search(step, state, embedding, gold=gold, eps=eps)
    assert found.gold_log_probs is not None
    best = found.log_likelihoods.argmax(1)
    tokens = found.tokens[torch.arange(len(best)), best]
    departed = (tokens != gold).long()
    before = departed.cumsum(1) - departed == 0
    counted, nats = gold != model.config.pad, -found.gold_log_probs
    return {
        "all positions": nats[counted],
        "up to the first departure": nats[counted & before],
        "after it": nats[counted & ~before],
        "after it, the same token": nats[counted & ~before & (departed == 0)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "unit", type=Path, help="a finished part of a run, as in RUN/pretrain/seed-0"
    )
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--sentences", type=int, default=400)
    parser.add_argument("--source", default="en")
    parser.add_argument("--target", default="fr")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    data = args.unit.resolve().parents[1] / "data"
    corpus = read_corpus(data, args.source, args.target)
    model = Seq2Seq.load(args.unit / "model.safetensors").eval()
    sides = [
        Pieces((data / f"pieces.{language}.model").read_bytes()).encode(sentences)
        for language, sentences in (
            (args.source, corpus.valid.sources),
            (args.target, corpus.valid.targets),
        )
    ]
    pairs = [Pair(*pair) for pair in zip(*sides, strict=True)][: args.sentences]
    # By length, since the best hypothesis of a batch is that after the last step of all.
    lengths = sorted({len(pair.target) for pair in pairs})
    parts: dict[str, list[Tensor]] = {}
    forced, count = 0.0, 0
    for length in lengths:
        same = [pair for pair in pairs if len(pair.target) == length]
        for start in range(0, len(same), BATCH):
            batch = make_batch(same[start : start + BATCH], pad=0, eos=3)
            for name, nats in positions(model, batch.source, batch.target, args.eps).items():
                parts.setdefault(name, []).append(nats)
            with torch.no_grad():
                memory, state = model.encode(batch.source)
                loss = teacher_forcing_loss(
                    model.decoder(memory), state, model.target_embedding.weight, batch.target
                )
            forced += loss.item() * batch.target.numel()
            count += batch.target.numel()
    print("| positions | tokens | nats per token |\n|---|--:|--:|")
    print(f"| teacher forcing, all | {count:,} | {forced / count:.2f} |")
    for name, nats in parts.items():
        values = torch.cat(nats)
        print(f"| soft beam, {name} | {len(values):,} | {values.mean():.2f} |")


if __name__ == "__main__":
    main()
