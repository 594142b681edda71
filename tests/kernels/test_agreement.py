"""The native library gives the results of the plain operations, whatever surrounds the call."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.data import DataLoader, Dataset

from softtopk import (
    kernels,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)
from softtopk.kernels import _library

pytestmark = pytest.mark.skipif(
    not kernels.status().active, reason=f"no native library: {kernels.status().reason}"
)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
OPERATORS = [soft_topk, sorted_soft_topk, soft_topk_softmax]


def outcome(operator, scores, k, eps, **options):
    """The result and its gradient, in units of 1 / eps, or of 1 for a softmax at a large eps."""
    scores = scores.clone().requires_grad_()
    result = operator(scores, k, eps=eps, **options)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(result.shape, generator=generator).to(result.dtype)
    (slope,) = torch.autograd.grad(result, scores, grad)
    unit = torch.as_tensor(eps, dtype=slope.dtype).unsqueeze(-1)
    if operator is soft_topk_softmax:  # whose logits have the scores themselves as a term
        unit = unit.clamp(max=1.0)
    return result.detach(), slope * unit


def assert_agreement(operator, scores, k, eps, **options):
    """In float32 the plain gradient is itself less accurate than the tolerance: there both are
    measured against float64."""
    a, slope = outcome(operator, scores, k, eps, **options)
    tolerance = TOLERANCE[scores.dtype]
    with kernels.plain():
        plain_a, plain_slope = outcome(operator, scores, k, eps, **options)
        torch.testing.assert_close(a, plain_a, rtol=0, atol=tolerance, equal_nan=True)
        truth = plain_slope.double()
        if scores.dtype == torch.float32:
            truth = outcome(operator, scores.double(), k, eps, **options)[1]
    size = max(1.0, float(truth.nan_to_num().abs().max()))
    error = float((slope - truth).nan_to_num().abs().max())
    plain_error = float((plain_slope - truth).nan_to_num().abs().max())
    assert error <= max(10 * tolerance * size, 2 * plain_error)
    assert torch.equal(slope.isnan(), plain_slope.isnan())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("temperature", [1e-6, 1e-4, 1e-2, 0.1, 1.0, 10.0, 1e4])
@pytest.mark.parametrize(
    ("shape", "k"),
    [((3, 1), 1), ((2, 7), 3), ((9, 100), 9), ((3, 300), 299), ((2, 3000), 40), ((2, 9, 33), 17)],
)
def test_unsorted(shape, k, temperature, dtype):
    scores = torch.randn(shape, dtype=dtype)
    assert_agreement(soft_topk, scores, k, temperature)
    assert_agreement(soft_topk, scores.exp().exp(), 0.7 * k, temperature)  # heavy tails
    assert_agreement(soft_topk, scores.round(), k, temperature, largest=False)  # ties


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 0.1, 1.0, 1e3])
@pytest.mark.parametrize(
    ("shape", "k"), [((3, 1), 1), ((4, 100), 9), ((2, 30), 30), ((1, 999), 5), ((2, 20_001), 300)]
)
def test_softmax(shape, k, temperature, dtype):
    scores = torch.randn(shape, dtype=dtype)
    assert_agreement(soft_topk_softmax, scores, k, temperature)
    assert_agreement(soft_topk_softmax, scores.round(), k, temperature, mask=scores > 0)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_softmax_with_one_weight_at_a_huge_eps(dtype):
    """Its gradient is the rounding of zero."""
    assert_agreement(soft_topk_softmax, torch.tensor([[0.0] * 6 + [1e30]], dtype=dtype), 1, 1e30)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 0.1, 1.0, 1e3])
@pytest.mark.parametrize(("shape", "k"), [((3, 1), 1), ((4, 100), 9), ((2, 30), 30), ((1, 999), 5)])
def test_sorted(shape, k, temperature, dtype):
    scores = torch.randn(shape, dtype=dtype)
    assert_agreement(sorted_soft_topk, scores, k, temperature)
    assert_agreement(sorted_soft_topk, scores.round(), k, temperature, largest=False)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("k", [3, 4, 8, 9, 16, 17, 33, 64])
def test_sorted_in_squares(k, dtype):
    """As many ranks as elements at a time: the last ranks and the last elements fill no square.
    Ranks that are out of reach are skipped. Row 1 has fewer elements than ranks."""
    scores = torch.randn(3, 70, dtype=dtype)
    mask = torch.ones(3, 70, dtype=torch.bool)
    mask[1] = torch.randperm(70) < (k + 1) // 2
    for eps in (0.01, 0.3, 3.0):
        assert_agreement(sorted_soft_topk, scores, k, eps, mask=mask)


numbers = st.sampled_from(
    [0.0, -0.0, -0.0, 1.0, -1.0, 1.5, 1e-3, 1e30, -1e30, 3e38, -3e38, 1e-38, math.inf, -math.inf]
) | st.floats(-4, 4, width=32)


@pytest.mark.parametrize("operator", OPERATORS)
@given(data=st.data())
def test_special_values(operator, data):
    n = data.draw(st.integers(1, 20), "n")
    dtype = data.draw(st.sampled_from(list(TOLERANCE)), "dtype")
    rows = data.draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=1, max_size=3))
    scores = torch.tensor(rows, dtype=dtype)
    mask = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1, max_size=1))
    )
    k = data.draw(st.integers(1, n), "k")
    eps = data.draw(st.sampled_from([1e-30, 1e-4, 0.1, 1.0, 1e6, 1e30]), "eps")
    options = {"mask": mask} if data.draw(st.booleans(), "masked") else {}
    if operator is soft_topk_softmax:  # an infinite weight is NaN in both, its gradient is not
        scores = scores.clamp(max=torch.finfo(torch.float32).max)
    else:
        options["largest"] = data.draw(st.booleans(), "largest")
    assert_agreement(operator, scores, k, eps, **options)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("eps", [1e-3, 1e-8, 1e-12, 1e-30])
@pytest.mark.parametrize("k", [2, 2.5])
def test_the_gradient_of_the_softmax_at_low_temperature(k, eps, dtype):
    """Of one element at the threshold, or of two tied ones with equal cotangents. It has a limit:
    not that of a rounding divided by eps."""
    tied = torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0], dtype=dtype)
    alone = torch.tensor([2.0, 1.5, 1.0, 0.0, -1.0], dtype=dtype)
    grad = torch.tensor([0.3, 0.7, 0.7, 0.1, 2.0], dtype=dtype)
    for scores in [tied] if k == 2 else [tied, alone]:
        leaf = scores.requires_grad_()
        slopes = []
        for path in (contextlib.nullcontext(), kernels.plain()):
            with path:
                weights = soft_topk_softmax(leaf, k, eps=eps)
                slopes.append(torch.autograd.grad(weights, leaf, grad, create_graph=True)[0])
                slopes.append(torch.autograd.grad(weights, leaf, grad)[0])
        for slope in slopes[:-1]:
            torch.testing.assert_close(slope.detach(), slopes[-1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [50, 1000])  # searched as they are, and by a sample
@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_nan_stays_in_its_row(operator, n):
    scores = torch.randn(3, n)
    scores[1, 7] = math.nan
    scores[1, 8] = -math.inf
    assert_agreement(operator, scores, 4, 0.3)


def test_a_gradient_that_is_to_be_differentiated_is_the_same():
    """Also in a row with a NaN, which has no derivative."""
    scores = torch.randn(3, 9)
    scores[1, 2] = math.nan
    scores.requires_grad_()
    result = soft_topk(scores, 3, eps=0.5)
    weights = torch.randn(3, 9)
    (plain,) = torch.autograd.grad(result, scores, weights, create_graph=True)
    (native,) = torch.autograd.grad(result, scores, weights)
    torch.testing.assert_close(plain, native)
    assert not native[1].any()


def test_rows_of_their_own():
    scores = torch.randn(5, 2, 40, dtype=torch.float64)
    k = torch.randint(0, 41, (5, 1))
    eps = torch.rand(5, 2, dtype=torch.float64) + 0.01
    assert_agreement(soft_topk, scores, k, eps)
    assert_agreement(soft_topk, scores, k * 0.9, eps, mask=scores > -0.5)
    assert_agreement(sorted_soft_topk, scores, 6, eps, mask=scores > -0.5)


@pytest.mark.parametrize("operator", [soft_topk, log_soft_topk, topk_threshold])
def test_gradients_in_all_arguments(operator):
    """Then the library solves for the threshold only."""

    def gradients():
        scores = torch.linspace(-2, 2, 60, dtype=torch.float64).sin().reshape(3, 20)
        k = torch.tensor([2.5, 7.0, 19.0], dtype=torch.float64)
        eps = torch.tensor(0.4, dtype=torch.float64)
        inputs = [value.requires_grad_() for value in (scores, k, eps)]
        result = operator(scores, k, eps=eps)
        return [result, *torch.autograd.grad(result.square().sum(), inputs)]

    native = gradients()
    with kernels.plain():
        plain = gradients()
    torch.testing.assert_close(native, plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("n", [1000, 300_000])
def test_the_number_of_threads_changes_nothing(operator, n):
    """Long rows are cut into the same pieces whoever works on them."""
    scores = torch.randn(3, n)
    alone = outcome(operator, scores, 7, 0.2)
    try:
        for threads in (2, 3, 8):
            torch.set_num_threads(threads)
            for one, other in zip(outcome(operator, scores, 7, 0.2), alone, strict=True):
                assert torch.equal(one, other), threads
    finally:
        torch.set_num_threads(1)


def test_a_sample_that_misleads_the_search():
    """The k-th score is looked for where a sample has it. Of two values, of which all k ones are
    selected, the sample has far too many ones in some of so many rows."""
    scores = torch.randint(2, (40_000, 300)).float()
    found = soft_topk(scores, scores.sum(-1), eps=0.05)
    torch.testing.assert_close(found, scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("operator", OPERATORS)
def test_other_layouts(operator):
    base = torch.randn(6, 40, 3)
    for scores in (base[..., 1], base.movedim(1, 2)[::2], base[:, ::2, 0], base.mT):
        expected = operator(scores.contiguous(), 2)
        assert torch.equal(operator(scores, 2), expected)
        mask = torch.ones(scores.shape[-1], dtype=torch.bool)
        assert torch.equal(operator(scores, 2, mask=mask.expand(scores.shape)), expected)
    # A negation that is not carried out, of every other number or of all in a row.
    for pending in (
        torch.randn(4, 9, dtype=torch.complex64).conj().imag,
        torch._neg_view(torch.randn(4, 9)),
    ):
        assert pending.is_neg()
        torch.testing.assert_close(operator(pending, 2), operator(pending.resolve_neg(), 2))


@pytest.mark.parametrize("operator", OPERATORS)
def test_expanded_gradients(operator):
    """As a sum gives them: all elements in one place."""
    scores = torch.randn(4, 30, requires_grad=True)
    weights = torch.randn(30).reshape(30, *[1] * (operator is sorted_soft_topk))
    (slope,) = torch.autograd.grad((operator(scores, 3, eps=1.0) * weights).sum(), scores)
    with kernels.plain():
        (expected,) = torch.autograd.grad((operator(scores, 3, eps=1.0) * weights).sum(), scores)
    torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_change_in_place_is_noticed(operator):
    scores = torch.randn(2, 10, requires_grad=True)
    other = scores * 1.0
    result = operator(other, 3)
    (other if operator is sorted_soft_topk else result).mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.parametrize("operator", OPERATORS)
def test_several_threads_at_once(operator):
    inputs = [torch.randn(40, 500) for _ in range(6)]
    expected = [outcome(operator, scores, 5, 0.3) for scores in inputs]
    found: list[list] = [[] for _ in inputs]

    def work(i):
        torch.set_num_threads(2)
        found[i] = [outcome(operator, inputs[i], 5, 0.3) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.set_num_threads(1)
    for results, truth in zip(found, expected, strict=True):
        assert len(results) == 5
        for result in results:
            assert all(torch.equal(one, other) for one, other in zip(result, truth, strict=True))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # of torch 2.15
def test_what_is_traced_happens_in_sight(operator):
    """A tracer sees torch's operations only: a native call would leave its result out."""
    scores, others = torch.randn(3, 20), torch.randn(3, 20)
    traced = torch.jit.trace(lambda x: operator(x, 4, eps=0.5), scores)
    torch.testing.assert_close(traced(others), operator(others, 4, eps=0.5), rtol=0, atol=1e-5)


def test_what_is_recorded_happens_in_sight():
    scores, others = torch.randn(3, 20), torch.randn(3, 20)
    recorded = make_fx(lambda x: soft_topk(x, 4, eps=0.5))(scores)
    torch.testing.assert_close(recorded(others), soft_topk(others, 4, eps=0.5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("operator", OPERATORS)
def test_tangents_of_the_gradient(operator):
    scores = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    result = operator(scores, 3, eps=0.5)
    grad, tangent = torch.randn(2, *result.shape, dtype=torch.float64)
    with forward_ad.dual_level():
        (slope,) = torch.autograd.grad(
            result, scores, forward_ad.make_dual(grad, tangent), retain_graph=True
        )
        found = forward_ad.unpack_dual(slope).tangent
    (expected,) = torch.autograd.grad(result, scores, tangent)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_change_out_of_sight_corrupts_no_memory(operator):
    """What a backward pass finds may have been overwritten through numpy or ``.data``."""
    scores = torch.randn(2, 5000, requires_grad=True)
    result = operator(scores, 3)
    scores.data.neg_().add_(10.0)
    (slope,) = torch.autograd.grad(result.sum(), scores)
    assert slope.shape == scores.shape


def test_paths_may_change_between_forward_and_backward():
    scores = torch.randn(2, 30, requires_grad=True)
    expected = outcome(sorted_soft_topk, scores.detach(), 3, 0.5)[1] / 0.5
    compiled = torch.compile(
        lambda x: sorted_soft_topk(x, 3, eps=0.5), fullgraph=True, backend="aot_eager"
    )
    with kernels.plain():
        result = compiled(scores)
    grad = torch.randn(result.shape, generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad(result, scores, grad)
    torch.testing.assert_close(slope, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("largest", [True, False])
def test_the_compiled_derivative_on_the_plain_path(largest):
    scores = torch.randn(2, 30)
    expected = outcome(sorted_soft_topk, scores, 3, 0.5, largest=largest)
    compiled = torch.compile(sorted_soft_topk, fullgraph=True, backend="aot_eager")
    with kernels.plain():
        found = outcome(compiled, scores, 3, 0.5, largest=largest)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operator", OPERATORS)
def test_flushed_denormals(operator):
    """Then the neighbours of zero compare equal to it."""
    scores = torch.tensor([[0.0, 0.0, 3.0, 1.0, 0.0, 2.0, -1.0, -2.0, 0.0]])
    expected = operator(scores, 4, eps=0.5)
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush denormals")
    try:
        torch.testing.assert_close(operator(scores, 4, eps=0.5), expected)
    finally:
        torch.set_flush_denormal(False)


def test_values_are_checked_inside_the_compiler_too():
    """There, nobody looks at the values of a tensor k and eps before the operator is run."""
    scores = torch.randn(3, 300)
    one, bad = torch.ones(3, 1, dtype=torch.float64), torch.tensor([[1.0], [math.nan], [2.0]])
    for k, tau in ((bad.double(), one), (one, bad.double())):
        with pytest.raises(ValueError, match="must be between"):
            torch.ops.softtopk.soft_topk(scores, None, k, tau, True)
    with pytest.raises(ValueError, match="tau must be between"):
        torch.ops.softtopk.sorted_soft_topk(scores, None, 4, bad.double(), True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_hottest_temperature(operator):
    scores = torch.randn(2, 9)
    torch.testing.assert_close(operator(scores, 3, eps=1e300).sum(1), operator(scores, 3).sum(1))


def test_a_tensor_without_memory():
    zeros = torch._efficientzerotensor(3, 4)
    torch.testing.assert_close(soft_topk(zeros, 2), torch.full((3, 4), 0.5))


class Selections(Dataset):
    """Made in the worker processes of a loader, with threads of their own."""

    def __len__(self):
        return 4

    def __getitem__(self, i):
        scores = torch.linspace(-3, 3, 100_000).roll(i).reshape(2, -1)
        torch.set_num_threads(2)  # for us alone: torch's own threads do not survive a fork
        selected = soft_topk(scores, 10, eps=0.01)
        torch.set_num_threads(1)
        return selected.sum(-1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_after_a_fork():
    torch.set_num_threads(2)
    try:
        soft_topk(torch.randn(4, 100_000), 5)  # the workers of this process exist
        loader = DataLoader(Selections(), num_workers=2, multiprocessing_context="fork", timeout=60)
        sums = torch.cat(list(loader))
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(sums, torch.full_like(sums, 10.0), rtol=0, atol=1e-3)


FORK = """
import os, sys, torch, softtopk
torch.set_num_threads(2)
scores = torch.randn(4, 100_000)
scores.exp().sum()  # torch's threads exist
child = os.fork()
if child == 0:
    softtopk.soft_topk(scores, 5)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_the_first_call_after_a_fork():
    """The library is loaded in the child, where torch's threads are gone."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=120)


IN_PLACE = {**TOLERANCE, torch.bfloat16: 2.0**-8}


def assert_in_place(scores, k, tau):
    """The functions that work in place, on copies, against the others; bfloat16 in float32."""
    library, dtype = kernels.native(), scores.dtype
    wide = scores.float() if dtype == torch.bfloat16 else scores
    grad = torch.randn(scores.shape).to(dtype)
    a = torch.empty_like(wide)
    w = library.softmax(wide, None, k, tau, indicator=a)
    expected = library.softmax_gradient(w, a, grad.to(wide.dtype), tau)
    again, found = scores.clone(), scores.clone()
    root = library.softmax_in_place(found, k, tau)
    library.softmax_backward(again, root, grad, tau)
    size = 1.0 + float(expected.nan_to_num().abs().max())
    close = {"rtol": IN_PLACE[dtype], "atol": IN_PLACE[dtype] * size, "equal_nan": True}
    assert root.dtype == wide.dtype
    torch.testing.assert_close((found, again), (w.to(dtype),) * 2, **close)
    torch.testing.assert_close(grad, expected.to(dtype), **close)


@pytest.mark.parametrize("dtype", IN_PLACE)
@pytest.mark.parametrize("tau", [1e-4, 0.5, 10.0])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 2), (33, 40), (300, 5.5), (9000, 20)])
def test_softmax_in_place(n, k, tau, dtype):
    scores = torch.randn(9, n)
    scores[1, ::2], scores[2], scores[3, 0], scores[4, -1] = (
        -math.inf,
        -math.inf,
        math.inf,
        math.nan,
    )
    scores[5], scores[6] = scores[5].round(), 1e30 * scores[6]
    assert_in_place(scores.to(dtype), k, tau)
    assert_in_place(scores.to(dtype), k, torch.rand(9, 1, dtype=torch.float64) + tau)


@pytest.mark.parametrize("instruction_set", ["baseline", "avx2", "avx512"])
def test_every_instruction_set(instruction_set, tmp_path, monkeypatch):
    """With a copy of the library, which has a choice of its own. A set that this machine lacks is
    an error that says so."""
    shutil.copy(_library.FOLDER / _library.LIBRARY, tmp_path)
    monkeypatch.setattr(_library, "FOLDER", tmp_path)
    monkeypatch.setattr(_library, "_outcome", None)
    monkeypatch.setenv(_library.VARIABLE, instruction_set)
    status = kernels.status()
    if status.error:
        assert instruction_set != "baseline"
        assert "this machine or this build lacks it" in status.reason
        return
    assert status.instruction_set.lower().replace("-", "") == instruction_set
    for dtype in TOLERANCE:
        cases = (soft_topk, 300, 7), (soft_topk, 20_001, 3000), (sorted_soft_topk, 130, 9)
        for operator, n, k in (*cases, (soft_topk_softmax, 301, 7)):
            for eps in (1e-4, 0.1, 10.0):
                assert_agreement(operator, torch.randn(3, n, dtype=dtype), k, eps)
    for dtype in IN_PLACE:
        assert_in_place(torch.randn(3, 301, dtype=dtype), 7, 0.5)
