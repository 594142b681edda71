"""The model of a run: which settings make it, and which settings a stored one has."""

from __future__ import annotations

from typing import Any

import torch

from softtopk._training import mix, seeded
from softtopk.seq2seq import EncoderDecoder, Seq2Seq, Seq2SeqConfig, Transformer, TransformerConfig

from ..settings import relevant
from ._pieces import Prepared
from ._settings import ATTENTION, MODEL, Settings


def make_model(settings: Settings, prepared: Prepared, seed: int) -> EncoderDecoder:
    """The model with random weights, which depend on the seed alone."""
    sizes: dict[str, Any] = {
        "source_vocab": prepared.source.size,
        "target_vocab": prepared.target.size,
        "dropout": settings.dropout,
        "attention_k": settings.attention_k if settings.attention == "soft-topk" else None,
        "attention_eps": settings.attention_eps,
        **{theirs: getattr(settings, ours) for ours, theirs in _shape(settings.model).items()},
    }
    with seeded(mix(seed, "weights", 0), torch.device("cpu")):
        if settings.model == "transformer":
            sizes["attention_in"] = settings.attention_in
            return Transformer(TransformerConfig(**sizes))
        return Seq2Seq(Seq2SeqConfig(**sizes))


def shape_of(model: EncoderDecoder) -> dict[str, Any]:
    """The settings that a model's weights cannot be used without."""
    kind = "transformer" if isinstance(model, Transformer) else "recurrent"
    found = {ours: getattr(model.config, theirs) for ours, theirs in _shape(kind).items()}
    return {"model": kind, **found}


def _shape(kind: str) -> dict[str, str]:
    """The settings that the weights depend on, each with the name in the model's configuration."""
    names = [name for name in relevant(Settings, {"model": kind}, MODEL) if name != "model"]
    return {name: "width" if (kind, name) == ("transformer", "hidden") else name for name in names}


def habits_of(model: EncoderDecoder) -> dict[str, Any]:
    """The settings that a model was trained with, and that may change."""
    config = model.config
    habits: dict[str, Any] = {"dropout": config.dropout}
    if config.attention_k is not None:
        habits["attention"] = "soft-topk"
        habits |= {
            name: getattr(config, name)
            for name in relevant(Settings, shape_of(model), ATTENTION)
            if name != "attention"
        }
    return habits
