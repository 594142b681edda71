"""Deployment: the same numbers from torch.export, and from ONNX in another runtime."""

import io
import math

import numpy as np
import onnxruntime
import pytest
import reference
import torch
from paths import first
from torch import nn
from torch.export import Dim

from softtopk import (
    SoftTopK,
    SortedSoftTopK,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    topk_threshold,
)
from softtopk.nn import SoftTopKAttention, soft_topk_attention

DYNAMIC = {0: Dim.DYNAMIC}


def onnx_of(model, *inputs, shapes=None):
    return torch.onnx.export(
        model.eval(), inputs, dynamo=True, dynamic_shapes=shapes, verbose=False
    )


def operations(program):
    return {node.op_type for node in program.model.graph}


def custom_operators(exported):
    parts = [part for part in exported.graph_module.modules() if hasattr(part, "graph")]
    targets = [str(node.target) for part in parts for node in part.graph.nodes]
    return [target for target in targets if target.startswith("softtopk")]


def in_runtime(program, *inputs):
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    return session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})


class Selections(nn.Module):
    """Of scores with a parameter in front of them: there could be a gradient."""

    def __init__(self, **options):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.largest = SoftTopK(3, hard_eval=True, **options)
        self.smallest = SoftTopK(5, hard_eval=True, largest=False, **options)
        self.ranks = SortedSoftTopK(3, hard_eval=True, **options)
        self.last_ranks = SortedSoftTopK(2, hard_eval=True, largest=False, **options)

    def forward(self, scores, mask):
        scores = self.scale * scores
        return (
            self.largest(scores),
            self.smallest(scores, mask),
            self.ranks(scores, mask),
            self.last_ranks(scores),
        )


def chosen(scores, mask, k, largest):
    """The ranking (..., n, k) by a stable sort; of equal scores the first, and no -inf."""
    x = np.where(mask, scores if largest else -scores, -np.inf)
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    ranks = (order[..., None, :] == np.arange(x.shape[-1])[:, None]).astype(scores.dtype)
    return np.where(np.isnan(x).any(-1)[:, None, None], np.nan, ranks * (x > -np.inf)[..., None])


@pytest.mark.parametrize("dtype", first(torch.float32, torch.float64, torch.float16))
def test_hard_selections_in_onnx(dtype):
    """With ties, infinities, a NaN and rows with fewer than k elements, of another batch size."""
    scores = torch.randint(-2, 3, (9, 8)).to(dtype)
    mask = torch.rand(9, 8) < 0.6
    scores[0, :5], scores[1, 2:], scores[2, 3], mask[3] = math.inf, -math.inf, math.nan, False
    program = onnx_of(
        Selections(), torch.randn(4, 8, dtype=dtype), mask[:4], shapes=(DYNAMIC, DYNAMIC)
    )
    assert not operations(program) & {"Exp", "Sigmoid", "Loop"}  # not the soft one too
    everything, x, m = np.ones(1, bool), scores.numpy(), mask.numpy()
    expected = (
        chosen(x, everything, 3, True).sum(-1),
        chosen(x, m, 5, False).sum(-1),
        chosen(x, m, 3, True),
        chosen(x, everything, 2, False),
    )
    for found, wanted in zip(in_runtime(program, scores, mask), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = SoftTopKAttention(16, 4, batch_first=True, topk=3, hard_eval=True)

    def forward(self, x, padding, groups):
        causal = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        output, weights = self.attention(x, x, x, padding, attn_mask=causal)
        heads = x.unflatten(-1, (4, 4)).transpose(1, 2)
        grouped = soft_topk_attention(
            heads, groups, groups, 3, is_causal=True, enable_gqa=True, hard=True
        )
        return output, weights, grouped


@pytest.fixture
def attended():
    """A model, and inputs of two batch sizes: with padding, a query without keys, equal scores."""
    inputs = []
    for batch in (2, 5):
        x, padding = torch.randn(batch, 10, 16), torch.rand(batch, 10) < 0.3
        x[:, 4:8], padding[0] = x[:, :1], True
        inputs.append((x, padding, torch.randn(batch, 2, 10, 4)))
    return Attention().eval(), *inputs


@pytest.mark.slow
def test_hard_attention_in_onnx(attended):
    model, example, other = attended
    program = onnx_of(model, *example, shapes=(DYNAMIC,) * 3)
    assert not operations(program) & {"Exp", "Loop"}
    expected = model(*other)
    for found, wanted in zip(in_runtime(program, *other), expected, strict=True):
        np.testing.assert_allclose(found, wanted.detach(), atol=2e-6)


@pytest.mark.parametrize("model", [Selections(), Attention()], ids=["selections", "attention"])
def test_hard_by_torch_export(model, attended):
    inputs = attended[1:]
    if isinstance(model, Selections):
        inputs = [(torch.randint(-2, 3, (n, 8)).float(), torch.rand(n, 8) < 0.6) for n in (4, 9)]
    with torch.no_grad():
        program = torch.export.export(
            model.eval(), inputs[0], dynamic_shapes=(DYNAMIC,) * len(inputs[0])
        )
        assert not custom_operators(program)
        for found, wanted in zip(program.module()(*inputs[1]), model(*inputs[1]), strict=True):
            torch.testing.assert_close(found, wanted)


class Soft(nn.Module):
    def forward(self, scores, mask):
        return soft_topk(scores, 2.5, eps=0.3, mask=mask, largest=False)


def awkward(rows, n):
    scores, mask = torch.randn(rows, n), torch.rand(rows, n) < 0.8
    scores[0, :3], scores[1], scores[2, 3], mask[3] = math.inf, 1.0, math.nan, False
    return scores, mask


def test_soft_selection_in_onnx():
    scores, mask = awkward(9, 12)
    program = onnx_of(Soft(), scores[:4], mask[:4], shapes=(DYNAMIC, DYNAMIC))
    found = in_runtime(program, scores, mask)[0]
    taking_part = mask & (scores != math.inf)
    for row, part, a in zip(scores.double().numpy(), taking_part.numpy(), found, strict=True):
        wanted = np.zeros_like(row)
        if np.isnan(row[part]).any():
            wanted[part] = np.nan
        elif part.any():
            wanted[part] = reference.soft_topk(-row[part], 2.5, 0.3)[0]
        np.testing.assert_allclose(a[part], wanted[part], atol=1e-6)
        assert np.isnan(wanted).any() or not a[~part].any()


class SoftOnes(nn.Module):
    def forward(self, scores, mask):
        return (
            soft_topk(scores, torch.tensor(3), eps=0.1, normalize="row"),
            log_soft_topk(scores, 2, eps=0.3, mask=mask),
            topk_threshold(scores, 7, eps=torch.tensor(0.3), mask=mask),
            soft_topk_softmax(scores, 2, eps=1.0, mask=mask),
        )


@pytest.mark.slow
def test_other_soft_operators_in_onnx():
    inputs = awkward(9, 12)
    model = SoftOnes()
    program = onnx_of(model, *(x[:4] for x in inputs), shapes=(DYNAMIC, DYNAMIC))
    for found, wanted in zip(in_runtime(program, *inputs), model(*inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "model",
    [SortedSoftTopK(2, eps=0.1), SoftTopK(2, eps=0.1, solver="sinkhorn"), SoftTopK(2).double()],
    ids=["sorted", "sinkhorn", "float64"],
)
def test_what_onnx_cannot_have_is_refused_with_the_remedy(model):
    scores = torch.randn(3, 8, dtype=getattr(model, "calibrated_eps", torch.empty(0)).dtype)
    with pytest.raises(torch.onnx.OnnxExporterError, match=r"hard_eval=True and \.eval\(\)"):
        onnx_of(model, scores)


def test_a_program_with_a_custom_operator_is_refused_with_the_remedy():
    program = torch.export.export(SoftTopK(2, eps=0.1), (torch.randn(3, 8),))
    with pytest.raises(torch.onnx.OnnxExporterError, match="the module, not an ExportedProgram"):
        torch.onnx.export(program, dynamo=True, verbose=False)


def test_a_loaded_temperature_is_not_calibrated_in_the_graph():
    trained, loaded = SoftTopK(2, width=4), SoftTopK(2, width=4)
    scores = torch.randn(3, 8)
    trained(scores)
    loaded.load_state_dict(trained.state_dict())
    program = torch.export.export(loaded.eval(), (scores,))
    assert custom_operators(program) == ["softtopk.soft_topk.default"]
    torch.testing.assert_close(program.module()(2 * scores), trained.eval()(2 * scores))
