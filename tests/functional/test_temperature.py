"""The eps that leaves a given number of elements undecided, and what a given eps does."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softtopk import eps_for, sharpness, soft_topk, sorted_soft_topk

SMOOTH = {
    "normal": torch.randn,
    "uniform": torch.rand,
    "exponential": lambda *shape: -torch.rand(*shape).log(),
    "logistic": lambda *shape: torch.rand(*shape).logit(),
}


def undecided(a: torch.Tensor) -> torch.Tensor:
    return ((a > 0.05) & (a < 0.95)).sum(-1).double()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("family", SMOOTH)
def test_about_so_many_elements_are_undecided(family: str, scale: float) -> None:
    # Widths that some eps reaches; for k = 5 of 1000 no eps reaches 20 in every family.
    for n, k, widths in [(100, 10, (2, 10, 30)), (1000, 5, (4, 9)), (500, 250, (20, 200, 500))]:
        scores = scale * SMOOTH[family](20, n) + 3 * scale
        for width in widths:
            eps = eps_for(scores, k, width=width)
            found = undecided(soft_topk(scores, k, eps=eps)) / width
            assert found.min() > 1 / 1.3, (n, k, width)
            assert found.max() < 1.3, (n, k, width)


@pytest.mark.parametrize("width", [2, 6, 12])
def test_of_the_sorted_operator(width: int) -> None:
    scores = 50 * torch.randn(8, 40)
    eps = eps_for(scores, 6, width=width, sorted=True)
    up_to = sorted_soft_topk(scores, 6, eps=eps).cumsum(-1)
    found = undecided(up_to.mT).mean(-1) / width
    assert found.min() > 1 / 1.3
    assert found.max() < 1.3


def test_of_the_sorted_operator_with_own_ks() -> None:
    scores, k = torch.randn(4, 40), torch.tensor([1, 6, 3, 6])
    eps = eps_for(scores, k, width=5, sorted=True)
    up_to = sorted_soft_topk(scores, k, eps=eps).cumsum(-1)
    for row, own in zip(up_to, k.tolist(), strict=True):
        found = undecided(row[:, :own].mT).mean() / 5
        assert 1 / 1.3 < found < 1.3


def test_one_number_is_the_median_of_the_rows() -> None:
    scores = torch.randn(9, 30) * torch.logspace(-2, 2, 9).unsqueeze(-1)
    scores[3] = 1.0  # without a scale: does not count
    one = eps_for(scores, 5, width=6, per_row=False)
    assert isinstance(one, float)
    others = torch.cat([scores[:3], scores[4:]])
    assert one == eps_for(others, 5, width=6).sort().values[3].item()
    assert eps_for(scores[3], 5, width=6, per_row=False) == 1.0


def test_ragged_rows() -> None:
    lengths = [40, 0, 100, 1, 9]
    scores, offsets = torch.randn(sum(lengths)), torch.tensor([0, *lengths]).cumsum(0)
    eps = eps_for(scores, 5, width=8, offsets=offsets)
    found = sharpness(scores, 5, eps, offsets=offsets)
    for i, row in enumerate(scores.split(lengths)):
        if len(row) > 1:
            torch.testing.assert_close(eps[i], eps_for(row, 5, width=8))
            expected = sharpness(row, 5, eps[i])
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one[i], other, rtol=1e-5, atol=1e-5)
    assert found.choice.tolist() == [True, False, True, False, True]
    median = eps_for(scores, 5, width=8, per_row=False, offsets=offsets)
    assert median == eps[found.choice].median().item()
    nested = torch.nested.nested_tensor_from_jagged(scores, offsets)
    assert torch.equal(eps_for(nested, 5, width=8), eps)
    assert all(map(torch.equal, sharpness(nested, 5, eps), found))
    with pytest.raises(NotImplementedError, match="sorted=False"):
        eps_for(scores, 5, width=8, offsets=offsets, sorted=True)


numbers = st.one_of(
    st.integers(-3, 3).map(float),  # many ties
    st.floats(-100, 100, width=32),
    st.sampled_from([math.inf, -math.inf, -1e9]),
)
rows = st.lists(numbers, min_size=2, max_size=12)


@given(rows, st.data())
def test_larger_widths_have_no_smaller_eps(row: list[float], data: st.DataObject) -> None:
    scores, n = torch.tensor(row), len(row)
    k = data.draw(st.integers(0, n))
    is_sorted = data.draw(st.booleans())
    widths = torch.linspace(0.5, n, 7).tolist()
    found = torch.stack([eps_for(scores, k, width=w, sorted=is_sorted) for w in widths])
    assert found.isfinite().all()
    assert (found > 0).all()
    assert (found.diff() >= 0).all()
    assert soft_topk(scores, k, eps=found[0]).isfinite().all()  # fits


@given(rows, st.integers(-40, 40))
def test_it_scales_with_the_scores(row: list[float], power: int) -> None:
    scores = torch.tensor(row, dtype=torch.float64)
    if scores[scores.isfinite()].unique().numel() < 2:
        return  # no scale
    eps = eps_for(scores, 1, width=2)
    torch.testing.assert_close(eps_for(2.0**power * scores, 1, width=2), 2.0**power * eps)


def test_it_does_not_change_with_a_shift() -> None:
    scores = torch.randn(20, 50, dtype=torch.float64)
    eps = eps_for(scores, 5, width=8)
    torch.testing.assert_close(eps_for(scores - 1e3, 5, width=8), eps, rtol=0.02, atol=0)
    torch.testing.assert_close(eps_for(0.3 * scores, 5, width=8), 0.3 * eps, rtol=0.02, atol=0)


@pytest.mark.parametrize("sorted", [False, True])
def test_what_is_masked_is_as_if_deleted(sorted: bool) -> None:
    scores, mask = torch.randn(30), torch.arange(30) % 3 != 0
    for largest in (True, False):
        options = {"width": 5, "largest": largest, "sorted": sorted}
        expected = eps_for(scores[mask], 4, **options)
        assert eps_for(scores, 4, mask=mask, **options) == expected
        filled = scores.masked_fill(~mask, -math.inf if largest else math.inf)
        assert eps_for(filled, 4, **options) == expected
    # A low number in the place of -inf changes nothing either.
    low = scores.masked_fill(~mask, -1e30)
    found = eps_for(low, 4, width=5, sorted=sorted)
    expected = eps_for(scores[mask], 4, width=5, sorted=sorted)
    torch.testing.assert_close(found, expected, rtol=0.15, atol=0)


def test_shapes_and_dtypes() -> None:
    scores, k = torch.randn(4, 20, 3), torch.tensor([2, 5, 9])
    eps = eps_for(scores, k, width=4, dim=1)
    assert eps.shape == (4, 3)
    for i in range(3):
        assert torch.equal(eps[:, i], eps_for(scores[..., i], int(k[i]), width=4))
    assert soft_topk(scores, k, eps=eps, dim=1).shape == scores.shape
    half = eps_for(scores.bfloat16(), 2, width=4, dim=1)
    torch.testing.assert_close(half, eps_for(scores.bfloat16().float(), 2, width=4, dim=1))
    assert eps_for(torch.randn(0, 5), 2, width=2).shape == (0,)
    assert eps_for(scores.to("meta"), 2, width=3).shape == (4, 20)


def test_no_gradient() -> None:
    scores = torch.randn(3, 20, requires_grad=True)
    assert not eps_for(scores, 3, width=4).requires_grad
    assert not sharpness(scores, 3, 0.1).misplaced.requires_grad


def test_rows_without_a_choice_do_not_count() -> None:
    """As the first rows of a causal mask, which have no more than k elements."""
    scores, mask = torch.randn(16, 16), torch.ones(16, 16, dtype=torch.bool).tril()
    one = eps_for(scores, 8, width=6, mask=mask, per_row=False)
    rest = eps_for(scores, 8, width=6, mask=mask)[8:]
    assert one == rest.sort().values[3].item()
    assert eps_for(scores, 0, width=6, per_row=False) == 1.0
    assert eps_for(scores, 16, width=6, per_row=False) == 1.0


def test_a_small_k_has_as_many_as_there_can_be() -> None:
    """No eps leaves 100 of 1000 undecided for k = 1; none of a fine grid leaves many more."""
    scores = torch.randn(1000)
    most = max(undecided(soft_topk(scores, 1, eps=2.0**i)) for i in torch.arange(-5, 8, 0.1))
    found = undecided(soft_topk(scores, 1, eps=eps_for(scores, 1, width=100)))
    assert most < 20
    assert found >= 0.8 * most


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"width": 0}, ValueError, "width must be above 0 and at most n=9.* got width=0"),
        ({"width": 10}, ValueError, "width must be above 0 and at most n=9.* got width=10"),
        ({"width": math.nan}, ValueError, "got width=nan"),
        ({"width": "2"}, TypeError, "width must be a number"),
        ({"width": 2, "per_row": 1}, TypeError, "per_row must be True or False"),
        ({"width": 2, "sorted": 1}, TypeError, "sorted must be True or False"),
        ({"width": 2, "k": 2.5, "sorted": True}, TypeError, "k must be an int"),
    ],
)
def test_wrong_arguments(options: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        eps_for(torch.randn(9), **{"k": 2, **options})


# ---------------------------------------------------------------------------------------- sharpness


def test_sharpness_counts() -> None:
    scores, mask = torch.randn(6, 40), torch.rand(6, 40) > 0.2
    found = sharpness(scores, 5, 0.8, mask=mask)
    a = soft_topk(scores, 5, eps=0.8, mask=mask).double()
    top = scores.masked_fill(~mask, -math.inf).topk(5).indices
    assert torch.equal(found.undecided, undecided(a).long())
    torch.testing.assert_close(found.misplaced.double(), 5 - a.gather(-1, top).sum(-1))
    torch.testing.assert_close(found.k, torch.full((6,), 5.0))
    for i in range(6):  # the fewest elements that have 95 % of the slopes
        slope = (a[i] * (1 - a[i])).sort(descending=True).values
        least = int(found.receiving[i])
        assert slope[:least].sum() >= 0.95 * slope.sum() > slope[: least - 1].sum()


def test_sharpness_at_the_ends() -> None:
    scores = torch.randn(4, 50)
    cold, hot = sharpness(scores, 5, 1e-6), sharpness(scores, 5, 1e6)
    assert cold.undecided.sum() == 0
    assert cold.misplaced.max() < 1e-6
    assert torch.equal(hot.undecided, torch.full((4,), 50))
    torch.testing.assert_close(hot.misplaced, torch.full((4,), 4.5), rtol=1e-4, atol=0)
    assert hot.receiving.min() == 48
    assert sharpness(torch.zeros(4, 50), 5, 1e-6).receiving.min() == 48  # all tied


def test_sharpness_in_words() -> None:
    scores = torch.randn(10, 50)
    cold, hot = str(sharpness(scores, 5, 1e-6)), str(sharpness(scores, 5, 1e6))
    assert "0.0 elements undecided, 0.0 of 5 places misplaced" in cold
    assert "nothing is undecided in 10 of them: raise eps" in cold
    assert "50.0 elements undecided, 4.5 of 5 places misplaced" in hot
    assert "lower eps, the selection is nearly uniform" in hot
    assert str(sharpness(scores[:0], 5, 1.0)) == "no rows"
    for k, mask in ((0, None), (50, None), (5, torch.zeros(50, dtype=torch.bool))):
        assert str(sharpness(scores, k, 1.0, mask=mask)).startswith("nothing to decide")
    broken = torch.cat([scores, torch.full((1, 50), math.nan)])
    assert str(sharpness(broken, 5, 1.0)) == str(sharpness(scores, 5, 1.0))
    assert "; nothing is undecided: raise eps" in str(sharpness(scores[0], 5, 1e-6))
    for eps in (1.0, 1e1, 1e3):  # also where a uniform A is below what counts as undecided
        assert "lower eps" in str(sharpness(torch.randn(2000), 10, eps=eps * 3))
    right = str(sharpness(scores, 5, eps_for(scores, 5, width=6)))
    assert right.endswith("elements (mean of 10 rows)")


def test_there_is_no_number_without_values():
    with pytest.raises(ValueError, match=r"per_row=False asks for a number, .* device meta"):
        eps_for(torch.randn(3, 5, device="meta"), 2, width=2.0, per_row=False)
