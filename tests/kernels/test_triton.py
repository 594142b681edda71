"""The Triton kernels, in Triton's interpreter: values, derivatives, special values, and how they are
launched. `make test-all` runs the tests of tests/functional on them too."""

from __future__ import annotations

import inspect
import math
import threading
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softtopk import (
    kernels,
    log_soft_topk,
    soft_topk,
    soft_topk_softmax,
    sorted_soft_topk,
    topk_threshold,
)
from softtopk.kernels import _accelerator

pytest.importorskip("triton")
# numpy warns where the kernels overflow on purpose.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

OPERATORS = [soft_topk, log_soft_topk, topk_threshold, soft_topk_softmax]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1e-2}
LONG = 8192 + 700
"""More than registers hold."""


def outcome(operator, scores, k, eps, **options):
    """The result and its derivatives in the scores and in eps, in units of 1 / eps."""
    scores = scores.clone().requires_grad_()
    eps = torch.as_tensor(eps, dtype=torch.float32 if scores.dtype.itemsize < 8 else torch.float64)
    eps = eps.clone().requires_grad_()
    result = operator(scores, k, eps=eps, **options)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    grad = grad.masked_fill(result.isinf(), 0.0).to(result.dtype)
    slope, in_eps = torch.autograd.grad(result, (scores, eps), grad)
    unit = eps.detach().unsqueeze(-1)
    if operator is soft_topk_softmax:  # whose logits have the scores themselves as a term
        unit = unit.clamp(max=1.0)
    return result.detach(), slope * unit, in_eps * eps.detach()


def assert_exact(operator, scores, k, eps, tolerance=None, **options):
    """Against the plain operations in float64, and relative to the size of the numbers."""
    with kernels.interpreted():
        found = outcome(operator, scores, k, eps, **options)
    eps = torch.as_tensor(eps, dtype=torch.float64)
    with kernels.plain():
        expected = outcome(operator, scores.double(), k, eps, **options)
    tolerance = tolerance or TOLERANCE[scores.dtype]
    assert found[0].dtype is scores.dtype
    for one, other, slack in zip(found, expected, (1, 20, 100), strict=True):
        assert torch.equal(one.isnan(), other.isnan())
        size = max(1.0, float(other.nan_to_num(posinf=0.0, neginf=0.0).abs().max()))
        torch.testing.assert_close(
            one.double(), other, rtol=tolerance, atol=slack * tolerance * size, equal_nan=True
        )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("operator", OPERATORS)
def test_values_and_derivatives(operator, dtype):
    scores = torch.randn(3, 50).to(dtype)
    assert_exact(operator, scores, 5, 0.1)
    assert_exact(operator, (2 * scores).round(), 7.5, 0.5, mask=scores > -1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("eps", [1e-5, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 2), (100, 99), (300, 2.5), (LONG, 100)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_temperature(operator, n, k, eps, dtype):
    scores = torch.randn(2, n).to(dtype)
    assert_exact(operator, scores, k, eps)
    if operator is not soft_topk_softmax:
        assert_exact(operator, scores.round(), k, eps, largest=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_that_do_not_fit_into_registers(operator, dtype):
    scores = torch.randn(1, LONG).to(dtype)
    options = {} if operator is soft_topk_softmax else {"largest": False}
    assert_exact(operator, (4 * scores).round() / 4, 100.5, 0.1, **options)


@contextmanager
def programs_side_by_side(monkeypatch):
    """As on a device: the programs of a launch run at once, so that they can wait for each other.
    The interpreter runs one after the other."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    own = threading.local()

    class Builder(type(builder)):
        grid_idx = property(lambda self: own.index, lambda self, index: setattr(own, "index", index))

    def call(self, *args, **kwargs):
        kwargs = {name: kwargs[name] for name in inspect.getfullargspec(self.fn).args}
        _, hosted = self._init_args_hst(args, kwargs)
        scope = interpreter._patch_lang(self.fn)
        given = {
            name: value if name in self.constexprs else interpreter._implicit_cvt(value)
            for name, value in hosted.items()
        }
        (size,) = self.grid
        builder.set_grid_dim(size, 1, 1)
        failures = []

        def program(i):
            builder.set_grid_idx(i, 0, 0)
            try:
                self.fn(**given)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=program, args=(i,), daemon=True) for i in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        scope.restore()
        assert not failures, failures
        assert not any(thread.is_alive() for thread in threads)
        self._restore_args_dev(args, args, kwargs, hosted)

    monkeypatch.setattr(builder, "__class__", Builder)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", call)
    yield


@pytest.mark.parametrize("operator", OPERATORS)
def test_several_programs_share_a_row(operator, monkeypatch):
    from softtopk.kernels._triton import _launch
    from softtopk.kernels._triton._configuration import Device

    monkeypatch.setattr(_launch, "device_of", lambda _: Device(7, 32))
    monkeypatch.setattr("softtopk.kernels._triton._configuration.PART", 4000)
    scores = torch.randn(2, LONG)
    scores[1] = (2 * scores[1]).round()
    with programs_side_by_side(monkeypatch):
        assert_exact(operator, scores, 100.5, 0.3)
