"""A wrong argument is refused, with its name."""

import pytest
import torch

from softtopk import losses

SCORES, POSITIVES = torch.randn(2, 5), torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("scores", SCORES.long(), "use scores.float"),
        ("scores", torch.randn(2, 0), "no element"),
        ("positives", POSITIVES.float(), "positives > 0"),
        ("positives", POSITIVES[:, :4], "does not broadcast"),
        ("positives", [True], "must be a torch.Tensor"),
        ("k", 0, "at least 1"),
        ("k", (1, 2.0), "must be an int"),
        ("k", (), "several"),
        ("weights", (1.0,), "for each of"),
        ("weights", (1.0, -1.0), "not negative"),
        ("weights", (0, 0), "positive sum"),
        ("eps", 0.0, "positive"),
        ("eps", torch.ones(3), "does not broadcast"),
        ("mask", POSITIVES.float(), "mask.bool"),
        ("reduction", "max", "'mean', 'sum', 'none'"),
        ("group", "WORLD", "leave group out"),
    ],
)
@pytest.mark.parametrize("loss", [losses.recall_at_k_loss, losses.hit_at_k_loss])
def test_one_wrong_argument(loss, name, value, message):
    given = {"scores": SCORES, "positives": POSITIVES, "k": (1, 2), name: value}
    if name == "group":
        given["reduction"] = "sum"
    with pytest.raises((TypeError, ValueError), match=f"{name}.*{message}"):
        loss(**given)


@pytest.mark.parametrize(
    ("relevance", "message"),
    [
        (torch.full((2, 5), -1.0), "between 0 and"),
        (torch.full((2, 5), torch.nan), "between 0 and"),
        (torch.ones(2, 5, dtype=torch.complex64), "real"),
        (torch.ones(3, 5), "does not broadcast"),
    ],
)
def test_wrong_relevance(relevance, message):
    with pytest.raises((TypeError, ValueError), match=f"relevance.*{message}"):
        losses.ndcg_at_k_loss(SCORES, relevance, 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 5]), "between 0 and 4"),
        (torch.tensor([0, -1]), "between 0 and 4"),
        (torch.tensor([0.0, 1.0]), "integers"),
        (torch.tensor([[0, 1]]), "of shape"),
        ([0, 1], "torch.Tensor"),
    ],
)
def test_wrong_labels(labels, message):
    with pytest.raises((TypeError, ValueError), match=f"labels.*{message}"):
        losses.topk_cross_entropy(SCORES, labels, 2)


def test_wrong_options_of_single_losses():
    with pytest.raises(TypeError, match="capped"):
        losses.recall_at_k_loss(SCORES, POSITIVES, 1, capped=1)
    with pytest.raises(TypeError, match="ignore_index"):
        losses.topk_cross_entropy(SCORES, torch.tensor([0, 1]), 1, ignore_index=None)
    with pytest.raises(TypeError, match="positives"):
        losses.valid_queries([True])
    with pytest.raises(ValueError, match="positives"):
        losses.valid_queries(torch.tensor(True))
