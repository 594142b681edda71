"""What torch's default device and dtype are makes no difference."""

import pytest
import torch

from softtopk import relaxations

SCORES = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
MASK = torch.arange(7) < torch.tensor([[7], [5], [2]])
COTANGENT = torch.linspace(-1, 1, 21).view(3, 7)


def results(relaxation, mask, dtype):
    """Values and gradients; the noise is that of a seed."""
    torch.manual_seed(3)
    scores = SCORES.to(dtype).requires_grad_()
    selection = relaxation(scores, 3, mask=mask)
    return [selection, *torch.autograd.grad(selection, scores, COTANGENT.to(dtype))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", [None, MASK], ids=["all", "masked"])
@pytest.mark.parametrize("name", relaxations.names())
def test_selections(name, mask, dtype, other_defaults):
    expected = results(relaxations.get(name), mask, dtype)
    with other_defaults():
        found = results(relaxations.get(name), mask, dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
