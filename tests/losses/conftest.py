"""Every loss with a common signature: scores, what they should be, and options."""

import pytest
from paths import first

from softtopk import losses


def with_k(loss):
    return lambda scores, target, k=3, **options: loss(scores, target, k, **options)


LOSSES = {
    "recall": with_k(losses.recall_at_k_loss),
    "precision": with_k(losses.precision_at_k_loss),
    "hit": with_k(losses.hit_at_k_loss),
    "ndcg": with_k(losses.ndcg_at_k_loss),
    "average precision": losses.average_precision_loss,
    "cross-entropy": with_k(losses.topk_cross_entropy),
}


def fixture_of(name, params):
    return pytest.fixture(lambda request: LOSSES[request.param], params=params, name=name)


loss = fixture_of("loss", LOSSES)
one_loss = fixture_of("one_loss", first(*LOSSES))  # where each takes its time
loss_at_k = fixture_of("loss_at_k", [name for name in LOSSES if name != "average precision"])
metric_loss = fixture_of("metric_loss", [name for name in LOSSES if name != "cross-entropy"])
