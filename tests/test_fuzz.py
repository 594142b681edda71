"""Every public function with any arguments: a result that keeps what it promises, or an error that
names the argument.

A case has right arguments only, or exactly one wrong one. Right ones have to be accepted; the wrong
one has to be refused with its name.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_decoder import Tiny
from torch import Tensor

import softtopk
from softtopk import compat, kernels, knn, losses, nn, relaxations, seq2seq
from softtopk.knn._distances import METRICS

# There are many functions: some hundred cases in `make test`, some thousand in `make test-all`.
FEW = settings(max_examples=settings.default.max_examples // 4)

INF, NAN = math.inf, math.nan
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (torch.bool, torch.uint8, torch.int64, torch.complex64)


class Case(NamedTuple):
    arguments: dict[str, Any]
    wrong: str | None  #: the argument that has to be refused
    plain: bool  #: without the native library

    def __repr__(self) -> str:
        return f"Case(wrong={self.wrong!r}, plain={self.plain}, {self.arguments})"


# Tensors: the values of a kind, then seen through a layout.

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "ordinary": lambda x: x,
    "tied": lambda x: x.round(),
    "equal": lambda x: torch.full_like(x, 0.5),
    "steep": lambda x: 1e4 * x,
    "subnormal": lambda x: x.sign() * torch.finfo(x.dtype).tiny / 4,
    "huge": lambda x: x.clamp(-1, 1) * torch.finfo(x.dtype).max,
    "infinite": lambda x: torch.where(x.abs() > 1, x.sign() * INF, x),
    "with NaN": lambda x: torch.where(x > 1, NAN, x),
}
FINITE = tuple(KINDS)[:6]


def strided(x: Tensor) -> Tensor:
    """Every other element along every dimension."""
    for dim in range(x.ndim):
        x = x.repeat_interleave(2, dim)
    return x[(slice(None, None, 2),) * x.ndim]


def negated(x: Tensor) -> Tensor:
    """A view with a pending negation."""
    if x.dtype not in (torch.float32, torch.float64):
        return x
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def transposed(x: Tensor) -> Tensor:
    return x.clone().movedim(0, -1).contiguous().movedim(-1, 0) if x.ndim else x


def expanded(x: Tensor) -> Tensor:
    return x[:1].expand(x.shape) if x.ndim and x.shape[0] else x


LAYOUTS = (torch.clone, transposed, strided, negated, expanded)


@st.composite
def tensors(draw, shape, *, dtype=None, kinds=tuple(KINDS), device="cpu"):
    """A tensor that can be differentiated in."""
    dtype = draw(st.sampled_from(FLOATS)) if dtype is None else dtype
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)
    leaf = KINDS[draw(st.sampled_from(kinds))](values).requires_grad_(draw(st.booleans()))
    return draw(st.sampled_from(LAYOUTS))(leaf).to(device)


def flags(shape, share):
    """Booleans, of which about this share is true."""
    return st.integers(0, 99).map(
        lambda seed: torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share
    )


def broadcastable(shape):
    """Shapes that broadcast to the given one."""
    kept = st.tuples(*(st.sampled_from((size, 1)) for size in shape))
    return st.tuples(kept, st.integers(0, len(shape))).map(lambda pair: pair[0][pair[1] :])


# Arguments: right ones, and wrong ones of all sorts.


@st.composite
def cases(draw, right, wrong):
    """One of the right ones of every argument, and of one of them perhaps a wrong one."""
    arguments = {name: draw(values) for name, values in right.items()}
    name = draw(st.none() | st.sampled_from(sorted(wrong)))
    if name is not None:
        arguments[name] = draw(wrong[name])
    return Case(arguments, name, draw(st.booleans()))


def right_k(n, batch, whole, device):
    integers = st.integers(0, n)
    if whole:
        return integers
    numbers = integers | st.floats(0, n)
    per_row = st.tuples(broadcastable(batch), numbers, st.sampled_from((torch.int64, *FLOATS)))
    return numbers | per_row.map(lambda t: torch.full(t[0], t[1], device=device).to(t[2]))


def wrong_k(n, batch, whole, bounded=True):
    values = [-1, -0.5, NAN, INF, "1", None, True, [1], torch.ones(*batch, 7)]
    values += [torch.tensor(True), torch.tensor(1j), torch.tensor(NAN), torch.tensor(INF)]
    values += [n + 1, torch.tensor(n + 2.0)] if bounded else []
    return st.sampled_from(values + ([n / 2 + 0.25, torch.tensor(0.5)] if whole else []))


def right_eps(batch, number, device):
    numbers = st.sampled_from((1e-30, 1e-3, 1.0, 1e3, 1e30)) | st.floats(1e-3, 1e2)
    if number:
        return numbers
    per_row = st.tuples(broadcastable(batch), st.floats(0.01, 100), st.sampled_from(FLOATS))
    return numbers | per_row.map(
        lambda t: torch.full(t[0], t[1], dtype=t[2], device=device).requires_grad_()
    )


def wrong_eps(batch, number):
    values = [0, -1.0, NAN, INF, "1", True, [0.1], torch.ones(*batch, 7), torch.tensor(1)]
    values += [torch.tensor(-1.0), torch.tensor(NAN), torch.tensor(1j)]
    return st.sampled_from(values + ([torch.tensor(0.1)] if number else []))


def wrong_mask(shape):
    return st.sampled_from(
        [torch.ones(shape), torch.ones(*shape, 7, dtype=torch.bool), [True], 1, "no"]
    )


@st.composite
def selections(draw, function, whole=False, number=False, last=False, ragged=False):
    """Arguments of what selects k of n: `whole` says that k is an int, `number` that eps is no
    tensor, `last` that there is no ``dim``, `ragged` that rows may be shorter than k."""
    known = inspect.signature(function).parameters
    shape = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    dim = -1 if last else draw(st.integers(-len(shape), len(shape) - 1))
    n = shape[dim] = max(1, shape[dim])
    batch = shape[: dim % len(shape)] + shape[dim % len(shape) :][1:]
    device = draw(st.sampled_from(("cpu", "cpu", "cpu", "meta")))
    right = {
        "scores": tensors(shape, device=device),
        "k": right_k(n, batch, whole, device),
        "eps": right_eps(batch, number, device),
        "dim": st.just(dim),
        "mask": st.none()
        | broadcastable(shape)
        .flatmap(lambda size: flags(size, 0.6) | flags(size, 0.0))
        .map(lambda mask: mask.to(device)),
        "largest": st.booleans(),
        "descending": st.booleans(),
        "q": st.floats(0, 1) | st.sampled_from((torch.tensor(0.3), torch.tensor([0.0, 0.5, 1.0]))),
        "normalize": st.sampled_from((None, "row", "batch")),
        "hard": st.booleans(),
        "width": st.floats(0.1, n),
        "per_row": st.booleans() if device == "cpu" else st.just(True),
    }
    wrong = {
        "scores": st.sampled_from(
            [torch.tensor(1.0), [0.1], None]
            + ([] if ragged else [torch.zeros(shape).narrow(dim, 0, 0)])
        )
        | st.just(torch.ones(shape).to_sparse())
        | st.sampled_from(OTHERS).map(lambda dtype: torch.ones(shape).to(dtype)),
        "k": wrong_k(n, batch, whole, bounded=not ragged),
        "eps": wrong_eps(batch, number),
        "dim": st.sampled_from([len(shape), -len(shape) - 1, 0.0, None, "0", True]),
        "mask": wrong_mask(shape),
        "largest": st.sampled_from([1, None, "yes"]),
        "descending": st.sampled_from([1, None, "yes"]),
        "q": st.sampled_from([-0.1, 2, NAN, "1", None, True, torch.ones(2, 2), torch.tensor(2.0)]),
        "normalize": st.sampled_from(["column", 1, True]),
        "hard": st.sampled_from([1, None, "yes"]),
        "width": st.sampled_from([0, -1.0, NAN, INF, n + 1, "2", None, True]),
        "per_row": st.sampled_from([1, None]),
        "solver": st.sampled_from(["fast", None, 3]),
        "offsets": st.sampled_from([[0, n], "no", torch.tensor([0.0, n]), torch.tensor(0)])
        | st.sampled_from([torch.tensor([0, n + 1]), torch.tensor([0, n, n - 1, n])]),
    }
    right = {name: values for name, values in right.items() if name in known}
    return draw(cases(right, {name: values for name, values in wrong.items() if name in known}))


# What a result promises.


def places(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """How many places a row can fill, and in which rows a NaN takes part or infinity comes first,
    with the dimension at the end as one element."""
    scores, k, dim = case.arguments["scores"], case.arguments["k"], case.arguments.get("dim", -1)
    x = scores.detach().double()
    if not case.arguments.get("largest", case.arguments.get("descending", True)):
        x = -x
    mask = case.arguments.get("mask")
    if mask is not None:
        x = x.masked_fill(~mask, -INF)
    x = x.movedim(dim, -1)
    part = (x != -INF).sum(-1)
    k = torch.as_tensor(k, dtype=torch.float64).detach().expand(part.shape)
    return torch.minimum(k, part.double()), x.isnan().any(-1), (x == INF).any(-1)


def tolerance(case: Case) -> float:
    """Of a sum over a row."""
    scores = case.arguments["scores"]
    return 2 * max(1, max(scores.shape)) * max(torch.finfo(scores.dtype).eps, 1e-6)


def at_the_end(case: Case, result: Tensor, end: int = -1) -> Tensor:
    dim = case.arguments.get("dim", -1) % case.arguments["scores"].ndim
    return result.detach().double().movedim(dim, end)


def check_kind(case: Case, result: Tensor, shape: tuple[int, ...] | None = None) -> None:
    scores = case.arguments["scores"]
    assert result.shape == (scores.shape if shape is None else shape)
    assert (result.dtype, result.device) == (scores.dtype, scores.device)


def check_indicator(case: Case, a: Tensor) -> None:
    check_kind(case, a)
    if a.is_meta:
        return
    total, broken, _ = places(case)
    a = at_the_end(case, a)[~broken]
    assert ((a >= 0) & (a <= 1)).all()
    if case.arguments.get("hard"):
        assert ((a == 0) | (a == 1)).all()
        assert (a.sum(-1) - total[~broken]).abs().le(0.5).all()
    else:
        assert (a.sum(-1) - total[~broken]).abs().le(tolerance(case)).all()


def check_log(case: Case, log_a: Tensor) -> None:
    assert log_a.is_meta or not (log_a > 0).any()
    check_indicator(case, log_a.exp())


def check_filled(case: Case, a: Tensor) -> None:
    """Of the listing, in which -inf is a score; NaN and +inf are not foreseen there."""
    check_kind(case, a)
    scores = case.arguments["scores"]
    if not a.is_meta and scores.numel() and (scores < INF).all():
        assert ((a >= 0) & (a <= 1)).all()
        assert (a.detach().double().sum(-1) - case.arguments["k"]).abs().le(tolerance(case)).all()


def check_relaxation(case: Case, a: Tensor) -> None:
    """Not all of them are bounded by one, and +inf is refused like NaN."""
    check_kind(case, a)
    if a.is_meta:
        return
    total, broken, first = places(case)
    a, total = a.detach().double()[~(broken | first)], total[~(broken | first)]
    assert (a >= -tolerance(case)).all()
    assert (a.sum(-1) - total).abs().le(4 * tolerance(case)).all()


def check_ranks(case: Case, a: Tensor) -> None:
    scores, k = case.arguments["scores"], case.arguments["k"]
    check_kind(case, a, (*scores.shape, k))
    if a.is_meta:
        return
    total, broken, _ = places(case)
    a, total = at_the_end(case, a, -2)[~broken], total[~broken]
    assert ((a >= 0) & (a <= 1 + tolerance(case))).all()
    filled = torch.arange(k) < total.unsqueeze(-1)
    assert (a.sum(-2) - filled.double()).abs().le(tolerance(case)).all()
    assert (a.sum(-1) <= 1 + tolerance(case)).all()


def check_softmax(case: Case, w: Tensor) -> None:
    check_kind(case, w)
    if w.is_meta:
        return
    total, broken, first = places(case)
    w, total = at_the_end(case, w)[~(broken | first)], total[~(broken | first)]
    assert ((w >= 0) & (w <= 1 + tolerance(case))).all()
    if case.arguments["hard"]:
        total = total.round()
    assert (w.sum(-1) - (total > 0).double()).abs().le(tolerance(case)).all()


def check_threshold(case: Case, threshold: Tensor) -> None:
    scores = case.arguments["scores"]
    dim = case.arguments.get("dim", -1) % scores.ndim
    check_kind(case, threshold, scores.shape[:dim] + scores.shape[dim + 1 :])
    if not threshold.is_meta:
        assert not threshold[~places(case)[1]].isnan().any()


def check_sorted(case: Case, values: Tensor) -> None:
    """In order, and 0 in the ranks that are empty."""
    scores, k, dim = (case.arguments[name] for name in ("scores", "k", "dim"))
    descending = case.arguments["descending"]
    shape = list(scores.shape)
    shape[dim] = k
    check_kind(case, values, tuple(shape))
    if values.is_meta:
        return
    total, broken, _ = places(case)
    values, total = at_the_end(case, values)[~broken], total[~broken]
    filled = torch.arange(k) < total.unsqueeze(-1)
    assert (values[~filled] == 0).all()
    size = values[values.isfinite()].abs()
    slack = tolerance(case) * (size.max() if size.numel() else 0.0)
    steps = values.diff(dim=-1)[filled[..., 1:]].nan_to_num(0.0)  # from infinity to infinity
    assert ((-steps if descending else steps) >= -slack - 1e-30).all()


def check_soft_ranks(case: Case, ranks: Tensor) -> None:
    check_kind(case, ranks)
    if ranks.is_meta:
        return
    _, broken, _ = places(case)
    ranks = at_the_end(case, ranks)[~broken]
    slack = tolerance(case) * (case.arguments["k"] + 1)
    assert ((ranks == 0) | (ranks >= 1 - slack)).all()
    assert (ranks <= case.arguments["k"] + 1 + slack).all()


def check_quantile(case: Case, quantile: Tensor) -> None:
    scores, q = case.arguments["scores"], case.arguments["q"]
    dim = case.arguments["dim"] % scores.ndim
    several = q.shape if isinstance(q, Tensor) else ()
    check_kind(case, quantile, (*several, *scores.shape[:dim], *scores.shape[dim + 1 :]))
    if not quantile.is_meta:
        broken = places(Case({**case.arguments, "k": 0}, None, False))[1]
        assert not quantile[..., ~broken].isnan().any()


def check_eps_for(case: Case, eps: Tensor | float) -> None:
    if isinstance(eps, float):
        assert 0 < eps < INF
    elif not eps.is_meta:
        assert ((eps > 0) & eps.isfinite()).all()


def check_sharpness(case: Case, result: softtopk.Sharpness) -> None:
    scores = case.arguments["scores"]
    if not scores.is_meta:
        sound = ~places(case)[1]
        assert not any(field[sound].isnan().any() for field in result if field.is_floating_point())
        assert str(result)


def as_module(module: type) -> Callable[..., Tensor]:
    """The module as a function, with the signature of its operator."""

    def call(scores, k, *, eps=0.1, dim=-1, largest=True, mask=None, normalize=None, hard=False):
        options = {"dim": dim, "largest": largest, "normalize": normalize, "hard": hard}
        return module(k, eps=eps, **options)(scores, mask)

    return call


def joined(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The operator of rows that are joined and cut apart by offsets."""

    def flat(value: Any, shape: torch.Size) -> Any:
        try:  # one for all rows stays, as there may be no rows
            return value.squeeze() if value.numel() == 1 else value.expand(shape).flatten()
        except (AttributeError, RuntimeError):  # a number, or a wrong argument
            return value

    def call(scores, k, *, eps=0.1, mask=None, **options):
        if not isinstance(scores, Tensor) or scores.layout is not torch.strided or not scores.ndim:
            return operator(scores, k, offsets=torch.tensor([0, 1]))
        shape, n = scores.shape, scores.shape[-1]
        offsets = torch.arange(0, scores.numel() + 1, n, device=scores.device)
        options |= {"eps": flat(eps, shape[:-1]), "mask": flat(mask, shape)}
        result = operator(scores.flatten(), flat(k, shape[:-1]), offsets=offsets, **options)
        return result.view(shape[:-1] if operator is softtopk.topk_threshold else shape)

    taken = inspect.signature(operator).parameters.values()
    left_out = ("dim", "solver", "offsets")
    call.__signature__ = inspect.Signature([each for each in taken if each.name not in left_out])
    return call


# A function, the peculiarities of its arguments, and what its result promises.
RAGGED = {"last": True, "ragged": True}
OPERATORS = {
    "soft_topk": (softtopk.soft_topk, {}, check_indicator),
    "log_soft_topk": (softtopk.log_soft_topk, {}, check_log),
    "topk_threshold": (softtopk.topk_threshold, {}, check_threshold),
    "soft_topk_softmax": (softtopk.soft_topk_softmax, {}, check_softmax),
    "sorted_soft_topk": (softtopk.sorted_soft_topk, {"whole": True}, check_ranks),
    "soft_sort": (softtopk.soft_sort, {"whole": True}, check_sorted),
    "soft_rank": (softtopk.soft_rank, {"whole": True}, check_soft_ranks),
    "soft_quantile": (softtopk.soft_quantile, {}, check_quantile),
    "SmallestTopK_custom": (
        lambda scores, k: compat.SmallestTopK_custom(k)(scores),
        {"whole": True, "last": True},
        check_filled,
    ),
    "TopK.apply": (lambda scores, k: compat.TopK.apply(scores, k), {"last": True}, check_indicator),
    "joined soft_topk": (joined(softtopk.soft_topk), RAGGED, check_indicator),
    "joined log_soft_topk": (joined(softtopk.log_soft_topk), RAGGED, check_log),
    "joined topk_threshold": (joined(softtopk.topk_threshold), RAGGED, check_threshold),
    "joined soft_topk_softmax": (joined(softtopk.soft_topk_softmax), RAGGED, check_softmax),
    "eps_for": (softtopk.eps_for, {}, check_eps_for),
    "sharpness": (softtopk.sharpness, {}, check_sharpness),
    "SoftTopK": (as_module(nn.SoftTopK), {}, check_indicator),
    "SortedSoftTopK": (as_module(nn.SortedSoftTopK), {"whole": True}, check_ranks),
} | {
    name: (relaxation, {"whole": True, "number": True, "last": True}, check_relaxation)
    for name, relaxation in {
        "hard_topk": relaxations.hard_topk,
        "neural_sort": relaxations.neural_sort,
        "relaxed_subset": relaxations.relaxed_subset,
        "sinkhorn_sort": relaxations.sinkhorn_sort,
        "successive_softmax": relaxations.successive_softmax,
    }.items()
}


def run(function: Callable[..., Any], case: Case, check: Callable[[Case, Any], None]) -> None:
    with kernels.plain() if case.plain else nullcontext():
        if case.wrong is not None:
            with pytest.raises((TypeError, ValueError), match=rf"\b{case.wrong}\b"):
                function(**case.arguments)
            return
        result = function(**case.arguments)
        check(case, result)
        check_gradients(case, result)


def check_gradients(case: Case, result: Any) -> None:
    """No NaN comes from finite arguments."""
    values = [x for x in case.arguments.values() if isinstance(x, Tensor)]
    if not isinstance(result, Tensor) or not result.requires_grad or result.is_meta:
        return
    if not all(x.isfinite().all() for x in values):
        return
    given = [x for x in values if x.requires_grad]
    weight = torch.linspace(-1, 2, result.numel(), dtype=result.dtype).view(result.shape)
    total = (weight * torch.where(result.isfinite(), result, 0.0)).sum()
    for grad in torch.autograd.grad(total, given, allow_unused=True):
        assert grad is None or not grad.isnan().any()


@pytest.mark.parametrize("name", OPERATORS)
@FEW
@given(data=st.data())
def test_selections(name, data):
    function, peculiarities, check = OPERATORS[name]
    run(function, data.draw(selections(function, **peculiarities)), check)


# The other functions. Their scores are products or distances, which overflow if features are huge.

TAME = ("ordinary", "tied", "equal", "subnormal")
NO_INT = st.sampled_from([0, -1, 1.5, "1", None, True])
NO_EPS = st.sampled_from([0.0, -1.0, NAN, "1", True])


def check_attention(case: Case, result: tuple[Tensor, Tensor]) -> None:
    output, weights = result
    assert output.shape == (*weights.shape[:-1], case.arguments["value"].shape[-1])
    assert ((weights >= 0) & (weights <= 1.01)).all()
    total = weights.detach().double().sum(-1)
    none = (weights == 0).all(-1)
    assert (total[~none] - 1).abs().le(0.05).all()
    assert none.sum() == 0 or case.arguments["attn_mask"] is not None
    assert output.isfinite().all()


@FEW
@given(data=st.data(), sizes=st.tuples(*[st.integers(1, 5)] * 4), heads=st.sampled_from([(), (2,)]))
def test_attention(data, sizes, heads):
    queries, keys, width, depth = sizes
    dtype = data.draw(st.sampled_from(FLOATS))
    tensor = partial(tensors, dtype=dtype, kinds=TAME)
    masks = flags((queries, keys), 0.7) | tensor((queries, keys))
    right = {
        "query": tensor((*heads, queries, width)),
        "key": tensor((*heads, keys, width)),
        "value": tensor((*heads, keys, depth)),
        "topk": st.integers(1, keys + 2),
        "eps": st.floats(1e-3, 1e3),
        "attn_mask": st.none() | masks,
        "normalize": st.sampled_from([None, "row"]),
        "hard": st.booleans(),
        "need_weights": st.just(True),
    }
    wrong = {
        "query": st.sampled_from([None, torch.ones(queries, width + 1), torch.ones(2).long()]),
        "topk": NO_INT,
        "eps": NO_EPS | st.just(torch.ones(7)),
        "attn_mask": st.sampled_from([torch.ones(queries, keys + 1).bool(), [True]]),
        "normalize": st.sampled_from(["batch", 1]),
        "dropout_p": st.sampled_from([-0.1, 1.5, "0"]),
        "scale": st.sampled_from(["1", True]),
        "hard": st.sampled_from([1, None]),
    }
    run(nn.soft_topk_attention, data.draw(cases(right, wrong)), check_attention)


def check_plan(case: Case, result: softtopk.EntropicPlan) -> None:
    plan = result.plan.detach().double()
    assert (plan >= 0).all()
    for name, dim in (("mu", -1), ("nu", -2)):
        gap = (plan.sum(dim) - case.arguments[name].detach()).abs().amax(-1)
        assert gap[result.converged].le(0.02).all()


@FEW
@given(data=st.data(), n=st.integers(1, 5), m=st.integers(1, 5), batch=st.sampled_from([(), (3,)]))
@pytest.mark.filterwarnings("ignore::softtopk.ConvergenceWarning")
def test_plans(data, n, m, batch):
    right = {
        "cost": tensors((*batch, n, m), kinds=TAME),
        "mu": tensors((n,), dtype=torch.float64, kinds=TAME).map(partial(torch.softmax, dim=-1)),
        "nu": tensors((m,), dtype=torch.float64, kinds=TAME).map(partial(torch.softmax, dim=-1)),
        "eps": st.floats(0.05, 1e3),
        "gradient": st.sampled_from(["implicit", "unrolled"]),
        "max_iter": st.just(50),
    }
    wrong = {
        "cost": st.sampled_from([None, torch.ones(n), torch.ones(0, m), torch.ones(n, m).long()]),
        "mu": st.sampled_from([torch.ones(n + 1), -torch.ones(n), torch.full((n,), NAN), 1.0]),
        "nu": st.sampled_from([torch.ones(m + 1), torch.ones(m).long(), torch.full((m,), 3.0)]),
        "eps": NO_EPS,
        "gradient": st.sampled_from(["none", None]),
        "max_iter": NO_INT,
        "tol": st.sampled_from([-1.0, NAN, "0"]),
    }
    run(softtopk.entropic_plan, data.draw(cases(right, wrong)), check_plan)


def check_indices(case: Case, result: softtopk.TopKIndices) -> None:
    total, broken, _ = places(case)
    assert (result.mask.sum(-1) == total)[~broken].all()
    weights = result.weights[~broken]
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (weights[~result.mask[~broken]] == 0).all()


@FEW
@given(data=st.data(), n=st.integers(1, 6), rows=st.integers(0, 3))
def test_indices(data, n, rows):
    right = {
        "scores": tensors((rows, n)),
        "k": st.integers(0, n) | st.integers(0, n).map(lambda k: torch.full((rows,), k)),
        "eps": st.floats(1e-3, 1e3),
        "mask": st.none() | flags((rows, n), 0.6),
        "largest": st.booleans(),
        "hard": st.booleans(),
    }
    wrong = {
        "scores": st.sampled_from([None, torch.ones(rows, n).long(), torch.ones(rows, 0)]),
        "k": st.sampled_from([-1, n + 1, 1.5, "1", None, True, torch.ones(rows), torch.ones(7, 1)]),
        "eps": NO_EPS,
        "mask": st.sampled_from([torch.ones(rows, n), [True]]),
        "hard": st.sampled_from([1, None]),
    }
    run(softtopk.select_topk, data.draw(cases(right, wrong)), check_indices)


def check_balance(case: Case, result: softtopk.BalancedTopK) -> None:
    a, capacity = result.selection.detach().double(), case.arguments["capacity"]
    scores, k = case.arguments["scores"], case.arguments["k"]
    assert a.shape == scores.shape
    slack = 0.02 if scores.dtype in (torch.float32, torch.float64) else 0.2
    sound = result.converged & ~scores.isnan().flatten(-2).any(-1)
    a = a[sound]
    assert ((a >= 0) & (a <= 1)).all()
    assert (a.sum(-1) <= k + slack).all()
    assert (a.sum(-2) <= capacity + slack).all()


@FEW
@given(data=st.data(), t=st.integers(1, 5), e=st.integers(1, 4), batch=st.sampled_from([(), (2,)]))
@pytest.mark.filterwarnings("ignore::softtopk.ConvergenceWarning")
def test_balance(data, t, e, batch):
    right = {
        "scores": tensors((*batch, t, e), kinds=TAME),
        "k": st.just(k := data.draw(st.integers(0, e))),
        "capacity": st.integers(-(-k * t // e), t + 1),
        "eps": st.floats(1e-6, 1e3),
        "mask": st.none() | flags((t, 1), 0.7),
        "hard": st.booleans(),
    }
    wrong = {
        "scores": st.sampled_from([None, torch.ones(e), torch.ones(0, e), torch.ones(t, e).int()]),
        "k": st.sampled_from(
            [-1, e + 1, 1.5, "1", None, True, torch.ones(t), torch.ones(7).long()]
        ),
        "capacity": st.sampled_from([-1, NAN, INF, "1", None, torch.ones(7, 7)]),
        "eps": NO_EPS,
        "mask": st.sampled_from([torch.ones(t, e), [True]]),
        "hard": st.sampled_from([1, None]),
    }
    run(softtopk.balanced_soft_topk, data.draw(cases(right, wrong)), check_balance)


def check_distances(case: Case, distances: Tensor) -> None:
    query, templates = case.arguments["query"], case.arguments["templates"]
    assert distances.shape == (len(query), len(templates))
    assert distances.isfinite().all()
    assert (distances >= -1e-2).all()


def check_vote(case: Case, votes: Tensor) -> None:
    assert (votes >= -1e-2).all()
    assert (votes.detach().double().sum(-1) - 1).abs().le(0.05).all()


def check_loss(case: Case, loss: Tensor) -> None:
    assert loss.isfinite().all()


NEIGHBOURS = {
    "pairwise_distances": (knn.pairwise_distances, check_distances),
    "soft_vote": (knn.soft_vote, check_vote),
    "knn_loss": (knn.knn_loss, check_loss),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
@FEW
@given(data=st.data(), m=st.integers(1, 4), n=st.integers(1, 6), d=st.integers(1, 4))
def test_neighbours(name, data, m, n, d):
    function, check = NEIGHBOURS[name]
    known = inspect.signature(function).parameters
    tensor = partial(tensors, dtype=data.draw(st.sampled_from(FLOATS)), kinds=TAME)
    labels = st.integers(0, 9).map(lambda seed: (torch.arange(n + m) * seed) % 3)
    right = {
        "query": tensor((m, d)),
        "templates": tensor((n, d)),
        "query_labels": labels.map(lambda values: values[:m]),
        "template_labels": labels.map(lambda values: values[:n]),
        "k": st.integers(1, n),
        "eps": st.none() | st.floats(1e-3, 1e3),
        "metric": st.sampled_from(METRICS),
        "objective": st.sampled_from(["vote", "nll"]),
        "relaxation": st.sampled_from(relaxations.names()),
        "reduction": st.sampled_from(["mean", "sum", "none"]),
    }
    wrong = {
        "query": st.sampled_from(
            [None, torch.ones(d), torch.ones(m, d + 1), torch.ones(m, d).int()]
        ),
        "templates": st.sampled_from([[1.0], torch.ones(n, d, 1)]),
        "query_labels": st.sampled_from([torch.ones(m + 1).long(), torch.ones(m), [1]]),
        "template_labels": st.sampled_from([torch.ones(n + 1).long(), torch.ones(n), None]),
        "k": NO_INT | st.just(n + 1),
        "eps": NO_EPS,
        "metric": st.sampled_from(["l1", None]),
        "objective": st.sampled_from(["mse", None]),
        "relaxation": st.sampled_from(["none", None]),
        "reduction": st.sampled_from(["max", None]),
    }
    right, wrong = ({k: v for k, v in each.items() if k in known} for each in (right, wrong))
    run(function, data.draw(cases(right, wrong)), check)


def check_ranking_loss(case: Case, loss: Tensor) -> None:
    scores = case.arguments["scores"]
    assert loss.dtype is torch.promote_types(scores.dtype, torch.float32)
    if case.arguments["reduction"] == "none":
        assert loss.shape == scores.shape[:-1]
    if not scores.isnan().any():
        assert loss.isfinite().all()
        assert (loss >= -1e-5).all()


RANKING = (
    losses.recall_at_k_loss,
    losses.precision_at_k_loss,
    losses.hit_at_k_loss,
    losses.ndcg_at_k_loss,
    losses.average_precision_loss,
    losses.topk_cross_entropy,
)


@pytest.mark.parametrize("function", RANKING, ids=lambda function: function.__name__)
@FEW
@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=2), n=st.integers(1, 7))
def test_ranking_losses(function, data, shape, n):
    known = inspect.signature(function).parameters
    full = (*shape, n)
    labels = st.integers(-1, n - 1).map(lambda label: torch.full(shape, label))
    cutoffs = st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=1, max_size=3)
    right = {
        "scores": tensors(full),
        "positives": broadcastable(full).flatmap(lambda size: flags(size, 0.4)),
        "relevance": flags(full, 0.4).map(lambda flag: 3 * flag.int()),
        "labels": flags(full, 0.4) | labels,
        "k": cutoffs,
        "eps": right_eps(shape, False, "cpu"),
        "mask": st.none() | broadcastable(full).flatmap(lambda size: flags(size, 0.6)),
        "capped": st.booleans(),
        "ignore_index": st.just(-1),
        "reduction": st.sampled_from(["mean", "sum", "none"]),
    }
    wrong = {
        "scores": st.sampled_from([None, torch.ones(full).long(), torch.ones(*shape, 0)]),
        "positives": st.sampled_from([None, torch.ones(full), torch.ones(*full, 7).bool()]),
        "relevance": st.sampled_from([None, torch.ones(*full, 7), torch.ones(full).cfloat()]),
        "labels": st.sampled_from([None, torch.ones(shape), torch.ones(*shape, 7, 7).long()]),
        "k": st.sampled_from([0, -1, 1.5, "1", None, True, [], [1, 0]]),
        "weights": st.sampled_from([[1.0] * 9, [-1.0] * 9, 1.0, "1"]),
        "eps": wrong_eps(shape, False),
        "mask": wrong_mask(full),
        "capped": st.sampled_from([1, None]),
        "ignore_index": st.sampled_from([None, 0.5]),
        "reduction": st.sampled_from(["max", None]),
    }
    right, wrong = ({k: v for k, v in each.items() if k in known} for each in (right, wrong))
    run(function, data.draw(cases(right, wrong)), check_ranking_loss)


@pytest.mark.parametrize("kind", [knn.SoftKNNClassifier, knn.SoftKNNRegressor])
@FEW
@given(data=st.data())
def test_estimators(kind, data):
    """Wrong arguments only, which have to be refused before the training."""
    no_text = st.sampled_from([1, "none", True])
    no_int = st.sampled_from([0, -1, 1.5, "1", True])
    no_number = st.sampled_from([-1.0, NAN, "1"])
    wrong = {
        **dict.fromkeys(["weights", "relaxation", "metric", "optimizer", "schedule"], no_text),
        **dict.fromkeys(["index", "backend", "objective"], no_text),
        **dict.fromkeys(["n_neighbors", "epochs", "batch_size", "template_size"], no_int),
        **dict.fromkeys(["lr", "eps", "momentum", "weight_decay", "warmup"], no_number),
        "patience": no_int,
        "validation_fraction": st.sampled_from([0.0, 1.0, NAN, "1"]),
        "n_probe": no_int,
    }
    known = inspect.signature(kind).parameters
    case = data.draw(cases({}, {name: wrong[name] for name in wrong if name in known}))
    assume(case.wrong is not None)
    if case.wrong in ("patience", "validation_fraction"):
        case.arguments["early_stopping"] = True
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).numpy()
    run(lambda **arguments: kind(**arguments).fit(x, x[:, 0] > 0), case, check_loss)


def check_beams(case: Case, result: Any) -> None:
    assert ((result.tokens >= 0) & (result.tokens < VOCABULARY)).all()
    assert not result.log_likelihoods.isnan().any()


SEARCHES = {
    "soft_beam_loss": (seq2seq.soft_beam_loss, check_loss),
    "beam_membership_loss": (seq2seq.beam_membership_loss, check_loss),
    "hybrid_loss": (seq2seq.hybrid_loss, check_loss),
    "teacher_forcing_loss": (seq2seq.teacher_forcing_loss, check_loss),
    "beam_search": (seq2seq.beam_search, check_beams),
    "soft_beam_search": (seq2seq.soft_beam_search, check_beams),
}
VOCABULARY = 6


@pytest.mark.parametrize("name", SEARCHES)
@FEW
@given(data=st.data(), seed=st.integers(0, 9), sharpness=st.sampled_from([0.0, 2.0, 200.0]))
def test_searches(name, data, seed, sharpness):
    function, check = SEARCHES[name]
    known = set(inspect.signature(function).parameters)
    if name == "soft_beam_search":
        known.remove("gold")  # which would take the place of max_len
    batch = data.draw(st.integers(1, 3))
    decoder = Tiny(seed, batch=batch, vocabulary=VOCABULARY, sharpness=sharpness)
    tokens = st.lists(st.sampled_from([1, 4, 5]), max_size=3)
    sentences = data.draw(st.lists(tokens, min_size=batch, max_size=batch))
    gold = torch.zeros(batch, 4, dtype=torch.long)
    for row, sentence in zip(gold, sentences, strict=True):
        row[: len(sentence) + 1] = torch.tensor([*sentence, 3])
    right = {
        "beam_size": st.integers(1, 8),
        "eps": st.floats(1e-3, 1e3),
        "max_len": st.integers(1, 4),
        "length_penalty": st.floats(0, 2),
        "normalize": st.sampled_from([None, "row"]),
        "rho": st.floats(0, 1),
        "candidates": st.integers(9, 40),
    }
    wrong = {
        "embedding": st.sampled_from([None, torch.ones(VOCABULARY)]),
        "gold": st.sampled_from([None, gold.float(), gold[:, :0], gold + VOCABULARY, 0 * gold]),
        "beam_size": NO_INT,
        "eps": NO_EPS,
        "max_len": NO_INT,
        "bos": st.sampled_from([-1, VOCABULARY, 1.5]),
        "length_penalty": st.sampled_from([-1.0, NAN, "0"]),
        "rho": st.sampled_from([-0.1, 1.1, NAN, "1"]),
        "candidates": NO_INT,
    }
    right, wrong = ({k: v for k, v in each.items() if k in known} for each in (right, wrong))
    case = data.draw(cases(right, wrong))
    fixed = {"step": decoder.step, "init_state": decoder.state(), "embedding": decoder.embedding}
    if "gold" in known:
        fixed["gold"] = gold
    if "objective" in known:
        fixed["objective"] = "soft-beam"
    run(function, case._replace(arguments=fixed | case.arguments), check)
