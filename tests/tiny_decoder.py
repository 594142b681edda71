"""A tiny decoder with a state of every kind, for the tests of beam search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot


class Pair(NamedTuple):
    hidden: Tensor  #: (N, 4)
    trace: Tensor  #: (N, 2, 3)


class Tiny:
    """A recurrent decoder in float64.

    Its state has nested containers and an integer tensor that tells the hypotheses apart. The
    larger ``sharpness``, the more certain its predictions.
    """

    def __init__(
        self, seed: int = 0, *, batch: int = 3, vocabulary: int = 6, sharpness: float = 2.0
    ) -> None:
        generator = torch.Generator().manual_seed(seed)

        def random(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(*shape, dtype=torch.float64, generator=generator)
            return (scale * values).requires_grad_()

        self.batch, self.vocabulary = batch, vocabulary
        self.embedding = random(vocabulary, 3)
        self.from_inputs, self.from_hidden = random(3, 4), random(4, 4)
        self.from_trace = random(6, 4, scale=0.5)
        self.output = random(4, vocabulary, scale=sharpness)
        self.by_code = random(5, vocabulary, scale=sharpness / 3)
        self.hidden, self.trace = random(batch, 4), random(batch, 2, 3)
        self.code = torch.arange(batch) % 5

    @property
    def inputs(self) -> list[Tensor]:
        """Everything that a loss can be differentiated in."""
        return [
            *(self.embedding, self.from_inputs, self.from_hidden, self.from_trace),
            *(self.output, self.by_code, self.hidden, self.trace),
        ]

    def state(self, sentences: Sequence[int] | slice = slice(None)) -> Any:
        pair = Pair(self.hidden[sentences], self.trace[sentences])
        return {"pair": pair, "rest": [None, (self.code[sentences],)]}

    def step(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        (hidden, trace), (_, (code,)) = state["pair"], state["rest"]
        hidden = torch.tanh(
            inputs @ self.from_inputs
            + hidden @ self.from_hidden
            + trace.flatten(1) @ self.from_trace
        )
        trace = 0.5 * trace + 0.5 * hidden[:, :2, None] * inputs[:, None, :]
        logits = hidden @ self.output + one_hot(code, 5).to(inputs.dtype) @ self.by_code
        code = (2 * code + (hidden[:, 0] > 0)) % 5
        return logits.log_softmax(-1), {"pair": Pair(hidden, trace), "rest": [None, (code,)]}


def packed_rows(needed: Sequence[int]) -> int:
    """How many rows a packed step is asked for, if so many of each sentence are needed."""
    filled = math.ceil(sum(needed) / 32) * 32
    plain = len(needed) * max(needed)
    return filled if filled <= 0.6 * plain else plain


class Packed:
    """A step that takes any number of hypotheses of each sentence, with something of each sentence
    that is not in its state. ``asked`` has the sentences of all its calls."""

    def __init__(self, decoder: Tiny, sentences: Tensor | None = None) -> None:
        self.decoder, self.asked = decoder, []
        self.own = torch.linspace(0.5, 1.5, decoder.batch, dtype=torch.float64)
        self.sentences = torch.arange(decoder.batch) if sentences is None else sentences

    def __call__(self, inputs: Tensor, state: Any) -> tuple[Tensor, Any]:
        sentences = self.sentences.repeat_interleave(len(inputs) // len(self.sentences))
        self.asked.append(sentences)
        log_probs, state = self.decoder.step(inputs, state)
        return (log_probs * self.own[sentences, None]).log_softmax(-1), state

    def for_sentences(self, sentences: Tensor) -> Packed:
        packed = Packed(self.decoder, self.sentences[sentences])
        packed.asked = self.asked
        return packed
