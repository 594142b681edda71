"""docs/coming_from.md: its code prints what it says, and every row of its tables is run.

A row has the call of another library, ours, and how the numbers compare. The second and the third
are read from the page. Instead of the other library there is an implementation of its definition
here, in float64, under the text of the first.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
from scipy.optimize import isotonic_regression
from torch.testing import assert_close

PAGE = (Path(__file__).parents[1] / "docs" / "coming_from.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", PAGE, re.DOTALL)
#: Their call, ours, how the numbers compare.
ROWS = re.findall(r"^\| `(.+?)`[^|]*\| `(.+?)` \| ([^|]*?) \|", PAGE, re.MULTILINE)
COLD = 0.03  #: an eps at which the limit is reached to 0.02, and Sinkhorn's algorithm still ends


# Definitions of the others, for one row of scores x.


def transport(x, anchors, places, eps):
    """n times the entropic plan to these anchors, each with so many places."""
    cost = (x[:, None] - np.asarray(anchors)) ** 2
    shares = np.asarray(places) / len(x)
    uniform = np.full(len(x), 1 / len(x))
    tol = 1e-4 if eps == COLD else 1e-13
    return len(x) * reference.sinkhorn_plan(cost, uniform, shares, eps, 10**5, tol=tol)


def sorting(x, eps):
    """The plan of ott and softtorch for a sort: anchors from 0 to 1, one place each, ascending."""
    return transport(x, np.linspace(0, 1, len(x)), np.ones(len(x)), eps)


def first_places(x, k, eps):
    """The same for the k largest, ascending, all others at 0."""
    return transport(x, np.linspace(0, 1, k + 1), [len(x) - k] + [1] * k, eps)[:, 1:]


def listing(x, anchors, places, eps, x_of_the_batch):
    """The cost divided by its largest entry, of the batch or of the row."""
    largest = np.square(x_of_the_batch[..., None] - np.asarray(anchors)).max()
    return transport(x, anchors, places, eps * largest)


def permutahedron(z, w):
    """The projection of z onto the hull of all permutations of w (Blondel et al., 2020)."""
    order = np.argsort(-z)
    dual = isotonic_regression(z[order] - np.sort(w)[::-1], increasing=False).x
    result = np.empty_like(z)
    result[order] = z[order] - dual
    return result


def projected_sort(x, strength):
    """Ascending: that of -x in descending order, negated."""
    return -permutahedron(np.arange(len(x), 0, -1) / strength, -x)


def projected_rank(x, strength):
    return permutahedron(x / strength, np.arange(len(x), 0, -1.0))


def budget(x, k):
    """clamp(x - t, 0, 1) with sum k."""
    low, high = x.min() - 2, x.max() + 1
    for _ in range(100):
        t = (low + high) / 2
        low, high = (t, high) if np.clip(x - t, 0, 1).sum() > k else (low, t)
    return np.clip(x - t, 0, 1)


def sigmoids(x, k, alpha):
    return reference.soft_topk(x, k, 2 / alpha)[0]


def squash(x):
    return 1 / (1 + np.exp(-(x - x.mean()) / x.std()))


def hard(x, k):
    return (x >= np.sort(x)[-k]).astype(float)


def window(x, eps):
    """ott's median: a share of 0.02 at the anchor in the middle."""
    n, share = len(x), 0.02
    plan = transport(x, [0, 0.5, 1], [n * (1 - share) / 2, n * share, n * (1 - share) / 2], eps)
    return plan[:, 1] @ x / (n * share)


def fourth_of_seven(x, eps):
    """softtorch's median of seven: the second of four anchors, the fourth place."""
    return transport(x, np.linspace(0, 1, 4), [3, 1, 1, 2], eps)[:, 1] @ x


THEIRS = {
    "torch.topk(x, k).values": lambda x, eps, _: np.sort(x)[::-1][:2],
    "torch.zeros_like(x).scatter(-1, x.topk(k).indices, 1.0)": lambda x, eps, _: hard(x, 2),
    "torch.sort(x).values": lambda x, eps, _: np.sort(x),
    'torch.quantile(x, 0.5, dim=-1, interpolation="nearest")': lambda x, eps, _: np.median(x),
    "TopK_custom(k, epsilon=eps)(x)[0]": lambda x, eps, batch: listing(
        x, [2, 1, 0], [1, 1, 5], eps, batch
    )[:, :2],
    "TopK_custom(k, epsilon=eps)(x)": lambda x, eps, batch: listing(x, [0, 1], [2, 5], eps, batch)[
        :, 0
    ],
    "n * TopK_custom(k, epsilon=eps)(x)[..., 0]": lambda x, eps, _: listing(
        x, [0, 1], [2, 5], eps, x
    )[:, 0],
    "TopK.apply(x, k)": lambda x, eps, _: sigmoids(x, 2, 1.0),
    "TopK.apply(x, k, alpha)": lambda x, eps, _: sigmoids(x, 2, 4.0),
    "torchsort.soft_sort(x, regularization_strength=eps)": lambda x, eps, _: projected_sort(x, eps),
    "torchsort.soft_rank(x, regularization_strength=eps)": lambda x, eps, _: projected_rank(x, eps),
    'pytorch_ops.soft_sort(x, "DESCENDING", eps)': lambda x, eps, _: -projected_sort(-x, eps),
    'pytorch_ops.soft_rank(x, "DESCENDING", eps)': lambda x, eps, _: projected_rank(-x, eps),
    "entmax.budget_bisect(x / (2 * eps), budget=k)": lambda x, eps, _: budget(x / (2 * eps), 2),
    "entmax.sparsemax(x / (2 * eps))": lambda x, eps, _: budget(x / (2 * eps), 1),
    "topk_mask(x, k=k, epsilon=eps, **plain)": lambda x, eps, _: transport(x, [0, 1], [5, 2], eps)[
        :, 1
    ],
    "sort(x, epsilon=eps, **plain)": lambda x, eps, _: sorting(x, eps).T @ x,
    "sort(x, topk=k, epsilon=eps, **plain)": lambda x, eps, _: first_places(x, 2, eps).T @ x,
    "ranks(x, epsilon=eps, **plain)": lambda x, eps, _: sorting(x, eps) @ np.arange(7),
    "ranks(x, epsilon=eps)": lambda x, eps, _: sorting(squash(x), eps) @ np.arange(7),
    "quantile(x, q=0.5, epsilon=eps, **plain)[..., 0]": lambda x, eps, _: window(x, eps),
    "st.topk(x, k, softness=eps, **ot).values": lambda x, eps, _: (first_places(x, 2, eps).T @ x)[
        ::-1
    ],
    "st.topk(x, k, softness=eps, **ot).indices": lambda x, eps, _: first_places(x, 2, eps).T[::-1],
    "st.sort(x, softness=eps, **ot).values": lambda x, eps, _: sorting(x, eps).T @ x,
    "st.rank(x, dim=-1, softness=eps, **ot)": lambda x, eps, _: sorting(-x, eps) @ np.arange(1, 8),
    "st.quantile(x, 0.5, dim=-1, softness=eps, **ot)": lambda x, eps, _: fourth_of_seven(x, eps),
}


def test_every_call_has_a_row():
    assert sorted(theirs for theirs, _, _ in ROWS) == sorted(THEIRS)
    assert len(ROWS) == PAGE.count("\n| `")


@pytest.fixture(scope="module")
def names():
    """Those that the page defines for its tables."""
    scope = {}
    exec(next(code for code, _ in CODE if "def squash" in code), scope)
    return scope


@pytest.mark.parametrize(("theirs", "ours", "claim"), ROWS, ids=[row[0] for row in ROWS])
def test_every_row(names, theirs, ours, claim):
    def both(eps):
        batch = names["x"].numpy()
        expected = np.stack([np.array(THEIRS[theirs](row, eps, batch)) for row in batch])
        return eval(ours, {**names, "eps": eps}), torch.from_numpy(expected)

    found, expected = both(names["eps"])
    assert found.shape == expected.shape
    if claim == "same numbers":
        assert_close(found, expected, rtol=0, atol=1e-9)
        return
    apart = re.fullmatch(r"same limit, ([\d.]+) apart", claim)[1]
    assert f"{(found - expected).abs().max().item():.2f}" == apart
    assert_close(*both(COLD), rtol=0, atol=0.02)


@pytest.mark.parametrize(("code", "printed"), CODE, ids=range(len(CODE)))
def test_the_code_prints_what_the_page_says(code, printed, capsys):
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_the_definitions_are_those_of_their_manuals():
    """The examples that torchsort, fast-soft-sort and entmax show."""
    x = np.array([8.0, 0, 5, 3, 2, 1, 6, 7, 9])
    np.testing.assert_allclose(projected_sort(x, 1.0), np.arange(9) + 0.5556, atol=1e-4)
    np.testing.assert_allclose(projected_sort(x, 0.1), np.sort(x), atol=1e-12)
    np.testing.assert_allclose(projected_rank(x, 1.0), [8, 1, 5, 4, 3, 2, 6, 7, 9], atol=1e-12)
    short = projected_rank(np.array([5.0, 1, 2]), 2.0)
    np.testing.assert_allclose(short, [3, 1.25, 1.75], atol=1e-12)
    np.testing.assert_allclose(budget(np.array([-2, 0, 0.5]), 2), [0, 1, 1], atol=1e-12)
    np.testing.assert_allclose(budget(np.array([-2, 0, 0.5]), 1), [0, 0.25, 0.75], atol=1e-12)
