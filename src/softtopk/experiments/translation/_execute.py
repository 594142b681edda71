"""One stage with one seed: train the model, translate, record the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from softtopk.seq2seq import EncoderDecoder

from ..._files import replacing
from ..runs import Interrupt, Report, Run, processes, train
from ._batches import Pair, batches_per_epoch
from ._corpus import Split
from ._decoding import Translator, evaluate, signatures, spaced
from ._maps import mean_tokens_holding
from ._model import make_model
from ._pieces import Pieces, Prepared
from ._risk import TextRisk
from ._settings import PRETRAIN, Settings, make_recipe
from ._training import Training


def execute(
    stage: str,
    settings: Settings,
    seed: int,
    prepared: Prepared,
    pairs: Sequence[Pair],
    weights: Mapping[str, torch.Tensor] | None,
    run: Run,
    report: Report,
    interrupt: Interrupt,
) -> dict[str, Any]:
    """Run to the end, from where it stands; returns the result, which is then on disk too.

    ``weights`` are those to start from, None for random ones.
    """
    model = make_model(settings, prepared, seed)
    if weights is not None:
        model.load_state_dict(weights)
    training = make_training(stage, settings, seed, prepared, pairs, model)
    seconds = train(
        training,
        run,
        report,
        interrupt,
        title=f"{stage}, seed {seed}",
        period="epoch" if stage == PRETRAIN else "validation",
        evaluate=training.validate,
    )
    return processes.lead(lambda: _finish(stage, settings, seed, prepared, training, run, seconds))


def _finish(
    stage: str,
    settings: Settings,
    seed: int,
    prepared: Prepared,
    training: Training,
    run: Run,
    seconds: float,
) -> dict[str, Any]:
    """Write the best weights, translate with them, and write the result."""
    model = training.model
    assert training.best is not None
    model.load_state_dict(training.best["weights"])
    with replacing(run.weights) as draft:
        model.save(draft)
    result = {
        "stage": stage,
        "seed": seed,
        "updates": training.step,
        "best_update": training.best["step"],
        "skipped_updates": training.skipped,
        "training_pairs": len(training.pairs),
        "sentences": {},
        "signatures": signatures(prepared.corpus.valid),
        "seconds": seconds,
        "update_seconds": training.seconds,
        "update_cpu_seconds": training.cpu_seconds,
    }
    for part in ("valid", "test")[: 1 + settings.test]:
        result = _with_scores(result, part, model, settings, prepared)
    run.finish(result)
    return result


def add_test(
    result: Mapping[str, Any],
    model: EncoderDecoder,
    settings: Settings,
    prepared: Prepared,
    run: Run,
) -> dict[str, Any]:
    """Translate the test part with a ``model`` that was finished without it, and record it."""
    whole = _with_scores(result, "test", model, settings, prepared)
    run.finish(whole)
    return whole


def _with_scores(
    result: Mapping[str, Any],
    part: str,
    model: EncoderDecoder,
    settings: Settings,
    prepared: Prepared,
) -> dict[str, Any]:
    split = dict(prepared.corpus.parts)[part]
    scores = evaluate_beams(
        model,
        prepared.source,
        prepared.target,
        split,
        settings.eval_beams,
        settings.length_penalty,
    )
    tokens = mean_tokens_holding(model, prepared.source, prepared.target, split)
    return {
        **result,
        "sentences": {**result["sentences"], part: len(split)},
        "attention_tokens": {**result.get("attention_tokens", {}), part: tokens},
        part: scores,
    }


def make_training(
    stage: str,
    settings: Settings,
    seed: int,
    prepared: Prepared,
    pairs: Sequence[Pair],
    model: EncoderDecoder,
) -> Training:
    """The training of a stage, validated by BLEU at the largest beam that is reported."""
    valid = spaced(prepared.corpus.valid, settings.eval_sentences)
    beam = max(settings.eval_beams)

    def validate(model: EncoderDecoder) -> float:
        beams, penalty = (beam,), settings.length_penalty
        scores = processes.lead(
            lambda: evaluate_beams(model, prepared.source, prepared.target, valid, beams, penalty)
        )
        return scores[str(beam)]["bleu"]

    recipe = make_recipe(stage, settings, batches_per_epoch(len(pairs), settings.batch_size))
    if stage == "risk":
        risk = TextRisk(prepared.target, settings.risk)
        recipe = replace(recipe, search={**recipe.search, "risk": risk})
    device = processes.own_device(settings.device)
    return Training(model, pairs, recipe, seed=seed, validate=validate, device=device)


def evaluate_beams(
    model: EncoderDecoder,
    source: Pieces,
    target: Pieces,
    split: Split,
    beams: Sequence[int],
    length_penalty: float,
) -> dict[str, dict[str, float]]:
    """BLEU and chrF by beam size, which is text in JSON."""
    return {
        str(beam): evaluate(Translator(model, source, target, beam, length_penalty), split)
        for beam in beams
    }
