"""The code of the first pages prints what they say; the calls of docs/which.md do what it says."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pages import blocks_of, page, run_page
from torch import nn

import softtopk.distributed
import softtopk.knn
import softtopk.losses
import softtopk.nn
import softtopk.seq2seq
from softtopk import compat, relaxations

#: What it is for, and the call.
CALLS = re.findall(r"^\| (.+?) \| `([^`]+)` \| \[", page("which"), re.MULTILINE)


@pytest.mark.parametrize("name", ["README", "idea", "questions", "start"])
def test_the_code_prints_what_the_page_says(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(blocks_of(page(name)), capsys)


def test_every_row_has_a_call():
    assert len(CALLS) == page("which").count("\n| ") - page("which").count("\n|---") > 40


@pytest.fixture(scope="module")
def names():
    """The public names, and inputs: 8 rows of 50 scores, 8 samples of 16 features."""
    torch.manual_seed(0)
    scope = {}
    for package in (softtopk, softtopk.knn, softtopk.losses, softtopk.nn, softtopk.seq2seq, compat):
        scope |= {name: getattr(package, name) for name in package.__all__}
    embedding, cell, output = nn.Embedding(50, 32), nn.GRUCell(32, 64), nn.Linear(64, 50)

    def step(inputs, state):
        state = cell(inputs, state)
        return output(state).log_softmax(-1), state

    gold = torch.randint(4, 50, (8, 6))
    gold[:, -1] = 3
    scope |= {
        "torch": torch,
        "softtopk": softtopk,
        "relaxations": relaxations,
        "device": "cpu",
        "k": 3,
        "n": 50,
        "scores": torch.randn(8, 50, requires_grad=True),
        "features": torch.randn(8, 50),
        "weights": torch.randn(50),
        "targets": torch.arange(8) % 2,
        "labels": torch.arange(8),
        "tokens": torch.randn(2, 40, 16),
        "layer": nn.Linear(16, 16),
        "nodes": torch.randn(9, 16),
        "batch": torch.arange(9) // 5,
        "edge_index": torch.tensor([[0, 1, 2, 3, 5, 6, 7], [1, 2, 3, 4, 6, 7, 8]]),
        "positives": torch.rand(8, 50) < 0.2,
        "relevance": torch.rand(8, 50),
        "X": np.random.default_rng(0).normal(size=(40, 5)),
        "y": np.arange(40) % 2,
        "step": step,
        "encoded": torch.randn(8, 64),
        "embedding": embedding,
        "gold": gold,
        "risk": lambda found, gold: (found != 3).double().mean(-1),
        **dict(zip(("query", "key", "value"), torch.randn(3, 2, 4, 10, 16), strict=True)),
        "cost": torch.rand(4, 5),
        "mu": torch.full((4,), 0.25),
        "nu": torch.full((5,), 0.2),
        "mask": torch.rand(8, 50) < 0.9,
        "flat": torch.randn(12),
        "offsets": torch.tensor([0, 3, 3, 12]),
    }
    return scope


@pytest.fixture
def group():
    """One process is a group too."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tensors_of(found):
    if isinstance(found, torch.Tensor):
        return [found]
    return [each for part in found for each in tensors_of(part)] if isinstance(found, tuple) else []


@pytest.mark.parametrize("call", dict.fromkeys(call for _, call in CALLS))
def test_every_call_runs(call, names, request):
    if "distributed" in call:
        request.getfixturevalue("group")
    if "use_soft_topk" in call:
        transformers = pytest.importorskip("transformers")
        from softtopk.integrations.transformers import use_soft_topk

        config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=11)
        names = names | {"use_soft_topk": use_soft_topk, "model": transformers.GPT2Model(config)}
    found = eval(call, names)
    assert all(tensor.isfinite().all() for tensor in tensors_of(found))


# What the operators become at a low temperature, by torch alone.


def hard(x, k, largest=True):
    return torch.zeros_like(x).scatter(-1, x.topk(k, largest=largest).indices, 1.0)


def ordered(x, k):
    return torch.nn.functional.one_hot(x.topk(k).indices, x.shape[-1]).mT.to(x)


def among(x, k):
    return x.masked_fill(hard(x, k) == 0, -torch.inf).softmax(-1)


def midpoint(x, k):
    """Between those of rank k and k + 1."""
    return x.topk(k + 1).values[..., -2:].mean(-1)


def each(x, places):
    return torch.stack([hard(row, k) for row, k in zip(x, places, strict=True)])


def masked(x, k, mask):
    return hard(x.masked_fill(~mask, -torch.inf), k)


def in_parts(x, k, offsets):
    parts = [x[a:b] for a, b in pairwise(offsets)]
    return torch.cat([hard(part, min(k, len(part))) for part in parts])


LIMITS = {
    "soft_topk(scores, k, eps=0.1)": lambda s: hard(s["scores"], 3),
    "soft_topk(scores, k, eps=0.1, hard=True)": lambda s: hard(s["scores"], 3),
    "select_topk(scores, k, eps=0.1)": lambda s: hard(s["scores"], 3),
    # No column is full here.
    "balanced_soft_topk(scores, k, capacity=20, eps=0.1)": lambda s: hard(s["scores"], 3),
    "balanced_soft_topk(scores, k, capacity=20, hard=True)": lambda s: hard(s["scores"], 3),
    "soft_topk_softmax(scores, k, eps=1.0)": lambda s: among(s["scores"], 3),
    "sorted_soft_topk(scores, k, eps=0.1)": lambda s: ordered(s["scores"], 3),
    "soft_sort(scores, k, eps=0.1, descending=True)": lambda s: s["scores"].topk(3).values,
    "soft_sort(scores, eps=0.1)": lambda s: s["scores"].sort().values,
    "soft_rank(scores, eps=0.1)": lambda s: (
        s["scores"].argsort().argsort() + torch.ones_like(s["scores"])
    ),
    "soft_quantile(scores, 0.5, eps=0.1)": lambda s: midpoint(s["scores"], 25),
    "topk_threshold(scores, k, eps=0.1)": lambda s: midpoint(s["scores"], 3),
    "soft_topk(scores, k, eps=0.1, mask=mask)": lambda s: masked(s["scores"], 3, s["mask"]),
    "soft_topk(scores, torch.arange(1, 9), eps=0.1)": lambda s: each(s["scores"], range(1, 9)),
    "soft_topk(flat, k, eps=0.1, offsets=offsets)": lambda s: in_parts(
        s["flat"], 3, s["offsets"].tolist()
    ),
    "soft_topk(scores, k, eps=0.1, largest=False)": lambda s: hard(s["scores"], 3, False),
    "log_soft_topk(scores, k, eps=0.1)": lambda s: hard(s["scores"], 3),
    "softtopk.distributed.soft_topk(scores, k, eps=0.1)": lambda s: hard(s["scores"], 3),
    "soft_topk(scores.to(device), k, eps=0.1)": lambda s: hard(s["scores"], 3),
    "TopK_custom(k, epsilon=0.1)(scores)": lambda s: ordered(s["scores"], 3),
    "SmallestTopK_custom(k, epsilon=0.1)(scores)": lambda s: hard(s["scores"], 3, False),
    'relaxations.get("neural-sort")(scores, k, eps=1.0)': lambda s: hard(s["scores"], 3),
}


def test_every_operator_of_the_page_has_a_limit():
    operators = {name for name in softtopk.functional.__all__ if "topk" in name or "soft_" in name}
    operators |= {"softtopk", "relaxations", *compat.__all__}
    called = {call for _, call in CALLS if re.split(r"\W", call)[0] in operators}
    assert called == set(LIMITS)


@pytest.mark.parametrize("call", LIMITS)
def test_a_low_temperature_gives_the_hard_result(call, names, request):
    if "distributed" in call:
        request.getfixturevalue("group")
    names = names | {name: names[name].detach().double() for name in ("scores", "flat")}
    found = eval(re.sub(r"(eps|epsilon)=[\d.]+", r"\1=1e-5", call), names)
    if call.startswith("log_"):
        found = found.exp()
    if call.startswith("select_"):
        found = torch.zeros_like(names["scores"]).scatter(-1, found.indices, found.weights)
    if call.startswith("TopK_custom"):
        found, _ = found
    if call.startswith("balanced_"):
        found = found.selection
    torch.testing.assert_close(found, LIMITS[call](names), rtol=0, atol=1e-4)
