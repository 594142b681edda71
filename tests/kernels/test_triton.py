"""The Triton kernels, in Triton's interpreter: values, derivatives, special values, launches.

`make test-all` runs the tests of tests/functional on them too.
"""

from __future__ import annotations

import inspect
import math
import threading
from contextlib import contextmanager

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from paths import first
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

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
    grad = grad.masked_fill(~result.isfinite(), 0.0).to(result.dtype)
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
    assert torch.equal(found[0].isnan(), expected[0].isnan())
    for one, other, slack in zip(found, expected, (1, 20, 100), strict=True):
        # In a row with a NaN the kernels have no derivative, plain operations may have a NaN.
        one = one.masked_fill(other.isnan(), math.nan)
        size = max(1.0, float(other.nan_to_num(posinf=0.0, neginf=0.0).abs().max()))
        torch.testing.assert_close(
            one.double(), other, rtol=tolerance, atol=slack * tolerance * size, equal_nan=True
        )


@pytest.mark.parametrize("dtype", first(*TOLERANCE))
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


@pytest.mark.parametrize("dtype", first(torch.float32, torch.bfloat16))
@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_rows_that_do_not_fit_into_registers(operator, dtype):
    """One with ties, one with a NaN, one with infinities, one with fewer elements than k."""
    scores = torch.randn(4, LONG).to(dtype)
    scores[0] = (4 * scores[0]).round() / 4
    scores[1, 5000] = math.nan
    scores[2, 3000:3003] = -math.inf
    scores[3, 50:] = -math.inf
    if operator is not soft_topk_softmax:
        scores[2, 7] = math.inf
    assert_exact(operator, scores, 100.5, 0.1)
    if operator is not soft_topk_softmax:
        assert_exact(operator, scores[:1], 100, 0.1, largest=False)


@contextmanager
def programs_side_by_side(monkeypatch):
    """As on a device: the programs of a launch run at once, so that they can wait for each other.
    The interpreter runs one after the other."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    own = threading.local()

    class Builder(type(builder)):
        grid_idx = property(
            lambda self: own.index, lambda self, index: setattr(own, "index", index)
        )

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


@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_several_programs_share_a_row(operator, monkeypatch):
    from softtopk.kernels._triton import _launch
    from softtopk.kernels._triton._configuration import Device

    monkeypatch.setattr(_launch, "device_of", lambda _: Device(7, 32))
    monkeypatch.setattr("softtopk.kernels._triton._configuration.PART", 4000)
    scores = torch.randn(2, LONG)
    scores[1] = (2 * scores[1]).round()
    with programs_side_by_side(monkeypatch):
        assert_exact(operator, scores, 100.5, 0.3)


@pytest.mark.parametrize("dtype", first(torch.float32, torch.float64, torch.bfloat16))
@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_ragged_rows(operator, dtype):
    """An empty one, and one of each launch."""
    offsets = torch.tensor([0, 0, 64, 65, 1025]).cumsum(0)
    scores, k = torch.randn(int(offsets[-1])).to(dtype), torch.tensor([1, 2.5, 99, 40])
    mask = torch.rand(scores.shape) < 0.9
    assert_exact(operator, scores, k, torch.rand(4) + 0.1, offsets=offsets, mask=mask)
    if operator is not soft_topk_softmax:
        short = (2 * scores[:64]).round().expand(2, -1)
        assert_exact(operator, short, 30, 0.1, offsets=offsets[:3], largest=False)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_several_programs_share_a_ragged_row(operator, monkeypatch):
    from softtopk.kernels._triton import _launch
    from softtopk.kernels._triton._configuration import Device

    monkeypatch.setattr(_launch, "device_of", lambda _: Device(9, 32))
    monkeypatch.setattr("softtopk.kernels._triton._configuration.PART", 2000)
    offsets = torch.tensor([0, 5, 5, 4505])  # three programs for each row, of which one is long
    with programs_side_by_side(monkeypatch):
        assert_exact(operator, torch.randn(4505), 30.5, 0.3, offsets=offsets)


special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-38, math.inf, -math.inf, math.nan])
numbers = special | st.floats(-4, 4, width=32)
#: Where these are decided already, plain operations have a logarithm of -inf; the kernels know it.
huge = st.sampled_from([1e30, -1e30, 3e38, -3e38])


@pytest.mark.parametrize("operator", first(*OPERATORS))
@settings(max_examples=15, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes
@given(data=st.data())
def test_special_values(operator, data):
    n = data.draw(st.integers(1, 12), "n")
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]), "dtype")
    values = numbers | huge if operator in (soft_topk, soft_topk_softmax) else numbers
    rows = data.draw(st.lists(st.lists(values, min_size=n, max_size=n), min_size=1, max_size=3))
    scores = torch.tensor(rows, dtype=dtype)
    if operator is soft_topk_softmax:  # an infinite weight is NaN in both, its gradient is not
        scores = scores.clamp(max=torch.finfo(torch.float32).max)
    k = data.draw(st.integers(0, n) | st.floats(1e-3, n), "k")
    eps = data.draw(st.sampled_from([1e-4, 0.1, 1.0, 1e6]), "eps")
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n), "mask"))
    options = {"mask": mask} if data.draw(st.booleans(), "masked") else {}
    if operator is not soft_topk_softmax:
        options["largest"] = data.draw(st.booleans(), "largest")
    with kernels.interpreted():
        found = outcome(operator, scores, k, eps, **options)
    with kernels.plain():
        expected = outcome(operator, scores, k, eps, **options)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
    torch.testing.assert_close(
        found[0], expected[0], rtol=tolerance, atol=tolerance, equal_nan=True
    )
    # A gradient is known relative to the largest one: the rounding of d is multiplied by 1 / eps.
    size = max(1.0, float(expected[1].nan_to_num().abs().max()))
    close = (found[1] - expected[1]).abs() <= 100 * tolerance * size
    assert (close | expected[1].isnan()).all()


@pytest.mark.slow
def test_rows_of_their_own():
    scores = torch.randn(4, 2, 20)
    k, eps = torch.tensor([[0], [3], [19], [20]]), torch.rand(4, 2) + 0.1
    for operator in (soft_topk, log_soft_topk):
        assert_exact(operator, scores, k, eps)
        assert_exact(operator, scores, 0.9 * k, 0.4, mask=scores > -0.5)
        assert_exact(operator, scores.movedim(2, 0), 0.9 * k, 0.4, dim=0)


@pytest.mark.parametrize(
    "shape", first((2, 1, 5, 9), (9,), (2, 1, 1, 9), (5, 9), (3, 1, 9), (2, 3, 5, 9))
)
def test_a_mask_that_is_expanded_is_not_copied(shape, monkeypatch):
    """But for one that is expanded in the middle."""
    from softtopk.kernels._triton._launch import repeated_rows

    scores, mask = torch.randn(2, 3, 5, 9), torch.rand(shape) > 0.4
    own, inner, count = repeated_rows(mask.expand(scores.shape))
    assert own.numel() == mask.numel() * (3 if shape == (2, 1, 5, 9) else 1)
    rows = own.view(-1, 9)[torch.arange(30).div(inner, rounding_mode="floor") % count]
    assert torch.equal(rows, mask.expand(scores.shape).reshape(-1, 9))
    assert_exact(soft_topk, scores, 2, 0.5, mask=mask)


class Launches:
    """Counts the launches and refuses to read a tensor's values on the host."""

    def __init__(self, monkeypatch):
        from triton.runtime.interpreter import InterpretedFunction

        self.names: list[str] = []

        def run(kernel, *_, grid, warmup, **arguments):
            self.names.append(kernel.__name__)
            for value in arguments.values():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value.detach().nan_to_num_()  # what is not computed is any number

        def refuse(*_, **__):
            raise AssertionError("the host waits for the device")

        monkeypatch.setattr(InterpretedFunction, "run", run)
        for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__float__"):
            monkeypatch.setattr(torch.Tensor, name, refuse)
        monkeypatch.setattr(torch.Tensor, "__int__", refuse)
        monkeypatch.setattr(torch.Tensor, "__index__", refuse)


@pytest.mark.parametrize("n", [30, 20_000])
@pytest.mark.parametrize("operator", OPERATORS)
def test_one_launch_each_way_and_nothing_waits(operator, n, monkeypatch):
    scores = torch.randn(3, n, dtype=torch.bfloat16, requires_grad=True)
    k, eps = torch.full((3,), 2.5), torch.full((3,), 0.3, requires_grad=True)
    mask = torch.rand(n) > 0.1
    kept = []

    def keep(tensor):
        kept.append(tensor.shape)
        return tensor

    with kernels.interpreted(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        launches = Launches(monkeypatch)
        result = operator(scores, k, eps=eps, mask=mask)
        assert launches.names == ["forward"]
        result.sum().backward()
        assert launches.names == ["forward", "backward"]
    # The scores, and a few numbers per row.
    large = [shape for shape in kept if shape.numel() >= 3 * n]
    assert large.count(scores.shape) <= 2  # and the mask, which is expanded
    assert len(large) <= 2


@pytest.mark.parametrize("dtype", first(*TOLERANCE))
def test_sorted(dtype):
    scores = torch.randn(2, 40).to(dtype)
    for options in ({}, {"largest": False, "mask": scores > -1}):
        with kernels.interpreted():
            found = outcome_of_ranks(scores, 4, 0.3, **options)
        with kernels.plain():
            expected = outcome_of_ranks(scores.double(), 4, 0.3, **options)
        for one, other, slack in zip(found, expected, (1, 20), strict=True):
            assert one.dtype is dtype
            tolerance = slack * TOLERANCE[dtype]
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


def outcome_of_ranks(scores, k, eps, **options):
    scores = scores.clone().requires_grad_()
    ranks = sorted_soft_topk(scores, k, eps=eps, **options)
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(ranks.shape, generator=generator, dtype=torch.float64).to(ranks.dtype)
    (slope,) = torch.autograd.grad(ranks, scores, grad)
    return ranks.detach(), slope * eps


def test_launches_of_the_sorted_operator(monkeypatch):
    scores = torch.randn(3, 30, requires_grad=True)
    with kernels.interpreted():
        launches = Launches(monkeypatch)
        sorted_soft_topk(scores, 4).sum().backward()
    assert launches.names == ["sort_out", "solve", "gradient"]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_derivative_can_be_differentiated(operator):
    scores = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    eps = torch.tensor([0.5, 0.8], dtype=torch.float64, requires_grad=True)

    def second(path):
        with path():
            result = operator(scores, 2, eps=eps)
            first = torch.autograd.grad(result.square().sum(), (scores, eps), create_graph=True)
            return torch.autograd.grad(sum(each.square().sum() for each in first), (scores, eps))

    found, expected = second(kernels.interpreted), second(kernels.plain)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_derivative_outside_of_the_context_is_the_same():
    scores = torch.randn(2, 9, requires_grad=True)
    with kernels.interpreted():
        result = soft_topk(scores, 2, eps=0.5)
        (expected,) = torch.autograd.grad(result[:, 0].sum(), scores, retain_graph=True)
    (found,) = torch.autograd.grad(result[:, 0].sum(), scores)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("operator", first(*OPERATORS))
def test_compiled(operator):
    """As a custom operator, which launches the kernel."""
    scores = torch.randn(2, 20, requires_grad=True)

    def call(function):
        result = function(scores, 3, eps=0.4)
        return result, *torch.autograd.grad(result.square().sum(), scores)

    expected = call(operator)
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    with kernels.interpreted():
        found = call(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_transforms_and_autocast():
    scores = torch.randn(3, 9, dtype=torch.float64)

    def gradients():
        loss = lambda x: soft_topk(x, 2, eps=0.5).square().sum()  # noqa: E731
        return torch.vmap(torch.func.grad(loss))(scores), torch.func.jvp(loss, (scores,), (scores,))

    expected = gradients()
    with kernels.interpreted():
        torch.testing.assert_close(gradients(), expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = soft_topk(scores.float() @ torch.eye(9), 2)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.sum(-1), torch.full((3,), 2.0).bfloat16(), rtol=0, atol=0.02)


CUDA = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """As if there were one: its kernels are not run."""
    _accelerator._look.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    yield monkeypatch
    _accelerator._look.cache_clear()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "Triton"),
        ("auto", "Triton"),
        ("require", "Triton"),
        ("off", "plain PyTorch operations: SOFTTOPK_TRITON=off"),
        (
            "maybe",
            "error: SOFTTOPK_TRITON must be one of auto, 1, on, require, 0, off, not 'maybe'",
        ),
    ],
)
def test_the_environment_variable(value, text, gpu):
    if value is None:
        gpu.delenv(_accelerator.VARIABLE, raising=False)
    else:
        gpu.setenv(_accelerator.VARIABLE, value)
    assert str(kernels.accelerator_status(CUDA)) == text
    if value == "maybe":
        with pytest.raises(RuntimeError, match="SOFTTOPK_TRITON must be one of"):
            kernels.triton_for(CUDA)
    else:
        assert (kernels.triton_for(CUDA) is not None) == (value != "off")
    with kernels.plain():
        assert kernels.triton_for(CUDA) is None
        assert "plain()" in str(kernels.accelerator_status(CUDA))


@pytest.mark.parametrize(("wish", "error"), [("auto", False), ("require", True)])
def test_a_gpu_without_kernels_says_why(wish, error, gpu):
    gpu.setenv(_accelerator.VARIABLE, wish)
    gpu.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    status = kernels.accelerator_status(CUDA)
    assert "the GPU is older than compute capability 8.0" in status.reason
    assert status.error is error
    _accelerator._look.cache_clear()
    gpu.setattr(_accelerator.importlib, "import_module", raise_import_error)
    status = kernels.accelerator_status(CUDA)
    assert "pip install triton" in status.reason
    assert status.error is error


def raise_import_error(name):
    raise ImportError(f"No module named {name!r}")


def test_other_accelerators_take_plain_operations(gpu):
    gpu.setenv(_accelerator.VARIABLE, "require")
    status = kernels.accelerator_status(torch.device("mps"))
    assert str(status) == "plain PyTorch operations: there are no kernels for the device mps"


@pytest.mark.parametrize("operator", [soft_topk, sorted_soft_topk])
def test_fake_tensors_of_a_gpu_are_one_operator(operator, gpu):
    """What the compiler sees of a GPU. A solver would be a loop of many operations."""
    with FakeTensorMode():
        scores = torch.empty(3, 20, device="cuda")
        with Operations() as seen:
            assert operator(scores, 4).device == CUDA
    assert sum(name.startswith("softtopk.") for name in seen.names) == 1
    assert len(seen.names) < 40


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_the_interpreter_has_to_be_asked_for_in_time(monkeypatch):
    import triton

    _accelerator._interpreter.cache_clear()
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(RuntimeError, match="set TRITON_INTERPRET=1"), kernels.interpreted():
        pass
    _accelerator._interpreter.cache_clear()
