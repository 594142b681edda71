"""The temperature of the modules: given, calibrated, learned, annealed."""

import copy
import math

import pytest
import torch
from torch import nn

from softtopk import SoftTopK, SortedSoftTopK, eps_for, soft_topk, sorted_soft_topk
from softtopk.nn import SoftTopKAttention, WidthSchedule

MODULES = [SoftTopK, SortedSoftTopK]


def calibrated(module: type, scores: torch.Tensor, width: float) -> float:
    return eps_for(scores, 3, width=width, per_row=False, sorted=module is SortedSoftTopK)


@pytest.mark.parametrize("module", MODULES)
def test_the_first_training_batch_decides(module: type) -> None:
    first, second = 100 * torch.randn(5, 20), torch.randn(5, 20)
    layer = module(3, width=7)
    result = layer(first)
    eps = calibrated(module, first, 7)
    assert layer.eps.item() == pytest.approx(eps)
    function = soft_topk if module is SoftTopK else sorted_soft_topk
    torch.testing.assert_close(result, function(first, 3, eps=eps))
    layer(second)
    assert layer.eps.item() == pytest.approx(eps)
    layer.recalibrate()
    layer(second)
    assert layer.eps.item() == pytest.approx(calibrated(module, second, 7))


@pytest.mark.parametrize("module", MODULES)
def test_without_a_choice_the_width_is_twice_k(module: type) -> None:
    scores = 1e4 * torch.randn(5, 20)
    layer = module(3)
    layer(scores)
    assert layer.eps.item() == pytest.approx(calibrated(module, scores, 6))
    short = module(3)
    short(scores[:, :4])  # fewer than 6
    assert short.eps.item() == pytest.approx(calibrated(module, scores[:, :4], 4))


def test_options_reach_the_calibration() -> None:
    scores, mask = torch.randn(20, 5).exp(), torch.rand(20, 5) > 0.2
    layer = SoftTopK(3, width=5, dim=0, largest=False)
    layer(scores, mask)
    expected = eps_for(scores, 3, width=5, dim=0, largest=False, mask=mask, per_row=False)
    assert layer.eps.item() == pytest.approx(expected)


def test_in_eval_mode_nothing_is_kept() -> None:
    first, second = torch.randn(5, 20), 100 * torch.randn(5, 20)
    layer = SoftTopK(3, width=7).eval()
    for scores in (first, second):
        expected = soft_topk(scores, 3, eps=calibrated(SoftTopK, scores, 7))
        torch.testing.assert_close(layer(scores), expected)
    assert math.isnan(layer.eps)
    layer.train()(second)
    torch.testing.assert_close(
        layer.eval()(first), soft_topk(first, 3, eps=calibrated(SoftTopK, second, 7))
    )


@pytest.mark.parametrize("learn_eps", [False, True])
def test_the_state_dict_has_it(learn_eps: bool) -> None:
    layer, other = (SoftTopK(3, width=7, learn_eps=learn_eps) for _ in range(2))
    fresh = copy.deepcopy(layer.state_dict())
    scores = torch.randn(5, 20)
    layer(scores)
    other.load_state_dict(layer.state_dict())
    other(100 * scores)  # no calibration
    torch.testing.assert_close(other.eps, layer.eps)
    other.load_state_dict(fresh)
    other(100 * scores)
    torch.testing.assert_close(other.eps, 100 * layer.eps, rtol=0.02, atol=0)
    with torch.device("meta"):
        empty = SoftTopK(3, width=7, learn_eps=learn_eps)
    empty.load_state_dict(layer.state_dict(), assign=True)
    torch.testing.assert_close(empty(scores), layer(scores))


def test_learning_starts_there_and_stays_positive() -> None:
    scores = torch.randn(5, 20)
    layer = SoftTopK(3, width=10, learn_eps=True)
    layer(scores)
    assert layer.eps.item() == pytest.approx(calibrated(SoftTopK, scores, 10))
    optimizer = torch.optim.SGD(layer.parameters(), lr=100.0)  # far too much
    for _ in range(20):
        optimizer.zero_grad()
        (-layer(scores).square().sum()).backward()
        optimizer.step()
        assert 0 < layer.eps.item() < math.inf
        assert layer(scores).isfinite().all()


@pytest.mark.parametrize("learn_eps", [False, True])
def test_a_copy_that_is_filled_by_tensors_has_the_eps(learn_eps: bool) -> None:
    net = nn.Sequential(nn.Linear(20, 20), SoftTopK(3, width=7, learn_eps=learn_eps))
    average = torch.optim.swa_utils.AveragedModel(net, use_buffers=True)
    fresh = copy.deepcopy(net)
    x = torch.randn(5, 20)
    expected = net(x)
    average.update_parameters(net)
    torch.testing.assert_close(average.eval()(x), expected)
    torch.testing.assert_close(average(100 * x)[:1], average(100 * x[:1]))
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    torch.testing.assert_close(torch.func.functional_call(fresh.eval(), state, x), expected)


def test_scores_without_a_scale_decide_nothing() -> None:
    scores = torch.randn(5, 20)
    layer = SoftTopK(3, width=7)
    for nothing in (torch.zeros(5, 20), torch.full((5, 20), math.nan), scores[:0]):
        assert layer(nothing).shape == nothing.shape
        assert math.isnan(layer.eps)
    layer(torch.cat([scores, torch.full((2, 20), math.nan)]))
    assert layer.eps.item() == pytest.approx(calibrated(SoftTopK, scores, 7))
    kept = layer.eps.item()
    layer.recalibrate()
    layer(torch.zeros(5, 20))
    assert layer.eps.item() == kept


def test_compiled() -> None:
    layer = SoftTopK(3, width=7)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    first = torch.randn(5, 20)
    torch.testing.assert_close(compiled(first), soft_topk(first, 3, eps=layer.eps))
    assert layer.eps.item() == pytest.approx(calibrated(SoftTopK, first, 7))
    kept = layer.eps.item()
    compiled(100 * first)
    assert layer.eps.item() == kept


def test_hard_in_eval_mode() -> None:
    scores = torch.randn(5, 20)
    layer = SoftTopK(3, eps=1.0, hard_eval=True)
    assert torch.equal(layer(scores), soft_topk(scores, 3, eps=1.0))
    hard = torch.zeros(5, 20).scatter(1, scores.topk(3).indices, 1.0)
    assert torch.equal(layer.eval()(scores), hard)


def test_attention_has_one_for_every_head() -> None:
    torch.manual_seed(1)
    attention = SoftTopKAttention(16, 2, batch_first=True, topk=4, width=6, bias=False)
    x = torch.randn(3, 12, 16)
    mask = torch.ones(12, 12, dtype=torch.bool).triu(3)
    attention(x, x, x, attn_mask=mask)
    query, key, _ = torch.nn.functional.linear(x, attention.in_proj_weight).chunk(3, -1)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        scores = query[..., part] @ key[..., part].mT / math.sqrt(8)
        expected = eps_for(scores, 4, width=6, mask=~mask, per_row=False)
        assert attention.eps[head].item() == pytest.approx(expected, rel=0.02)
    kept = attention.eps.clone()
    attention(10 * x, x, x)
    assert torch.equal(attention.eps, kept)
    ordinary = nn.MultiheadAttention(16, 2, batch_first=True, bias=False)
    attention.load_state_dict(ordinary.state_dict())  # strictly, and eps stays
    assert torch.equal(attention.eps, kept)


# ----------------------------------------------------------------------------------------- schedule


@pytest.mark.parametrize(
    ("shape", "middle"), [("exponential", 6.0), ("linear", 10.0), ("cosine", 10.0)]
)
def test_the_schedule_goes_from_soft_to_hard(shape: str, middle: float) -> None:
    model = nn.Sequential(nn.Linear(20, 20), SoftTopK(3, width=18), SoftTopK(2, eps=1.0))
    schedule = WidthSchedule(model, total_steps=4, end=2, shape=shape)
    widths, temperatures = [], []
    for _ in range(7):
        model(torch.randn(50, 20, generator=torch.Generator().manual_seed(0)))
        widths.append(model[1].width)
        temperatures.append(model[1].eps.item())
        schedule.step()
    assert widths[0] == pytest.approx(18)
    assert widths[2] == pytest.approx(middle)
    assert widths[4:] == pytest.approx([2, 2, 2])
    assert temperatures == sorted(temperatures, reverse=True)
    assert temperatures[0] > 5 * temperatures[-1]


def test_between_its_steps_evaluation_has_the_eps_of_the_training() -> None:
    layer, x = SoftTopK(3, width=10), torch.randn(4, 20)
    schedule = WidthSchedule(layer, total_steps=3)
    for _ in range(3):
        layer.train()(x)
        schedule.step()
        eps = layer.eps.item()
        torch.testing.assert_close(layer.eval()(100 * x), soft_topk(100 * x, 3, eps=eps))
    other = SoftTopK(3, width=10).eval()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


def test_after_its_end_eps_stays() -> None:
    layer = SoftTopK(3, width=10)
    schedule = WidthSchedule(layer, total_steps=2)
    for _ in range(3):
        layer(torch.randn(4, 20))
        schedule.step()
    kept = layer.eps.item()
    layer(100 * torch.randn(4, 20))
    assert layer.eps.item() == kept


def test_a_schedule_can_be_taken_up_again() -> None:
    torch.manual_seed(0)
    batches = torch.randn(6, 4, 20)

    def run(stop: int | None) -> list[float]:
        layer = SoftTopK(3, width=10)
        schedule, seen = WidthSchedule(layer, total_steps=5, start=12), []
        for i, batch in enumerate(batches):
            if i == stop:
                saved = copy.deepcopy((layer.state_dict(), schedule.state_dict()))
                layer = SoftTopK(3, width=10)
                schedule = WidthSchedule(layer, total_steps=5, start=12)
                layer.load_state_dict(saved[0])
                schedule.load_state_dict(saved[1])
            layer(batch)
            seen.append((layer.width, layer.eps.item()))
            schedule.step()
        return seen

    assert run(3) == run(None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WidthSchedule(nn.Linear(2, 2), total_steps=3), "no part with a width, got Linear"),
        (lambda: WidthSchedule(SoftTopK(2, eps=1.0), total_steps=3), "make it with width="),
        (lambda: WidthSchedule(SoftTopK(2), total_steps=0), "total_steps must be at least 1"),
        (lambda: WidthSchedule(SoftTopK(2), total_steps=3, end=0), "end must be positive"),
        (lambda: WidthSchedule(SoftTopK(2), total_steps=3, shape="x"), "shape must be one of"),
        (lambda: SoftTopK(2, eps=1.0).recalibrate(), "was made with an eps"),
        (lambda: setattr(SoftTopK(2, eps=1.0), "width", 3), "was made with an eps"),
        (lambda: setattr(SoftTopK(2), "eps", -1.0), "eps must be positive"),
        (
            lambda: WidthSchedule(SoftTopK(2, learn_eps=True), total_steps=3),
            "would overwrite what learn_eps=True learns",
        ),
        (
            lambda: SoftTopKAttention(8, 2, topk=2, width=3, normalize="row"),
            "'row' needs an eps of its own",
        ),
        (
            lambda: SoftTopK(2, eps=torch.ones(4), learn_eps=True),
            r"eps of shape \(4,\) does not broadcast",
        ),
    ],
)
def test_wrong_use(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
