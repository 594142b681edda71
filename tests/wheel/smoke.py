"""Does an installed softtopk compute what the README says? Needs nothing but torch."""

import torch

from softtopk import kernels, soft_topk, sorted_soft_topk

SCORES = [0.4, 0.7, 2.3, 1.9, -0.2, 1.4, 0.1]
SELECTED = [0.0713, 0.1227, 0.7744, 0.6066, 0.0226, 0.3620, 0.0404]
GRADIENT = [-0.0348, -0.0566, -0.0918, -0.1254, -0.0116, 0.3405, -0.0204]
VALUES = [2.0820, 1.6606]


def main() -> None:
    kernels.native()  # raises if SOFTTOPK_NATIVE requires it and it is not there
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor(SCORES, dtype=dtype, requires_grad=True)
        selected = soft_topk(scores, k=2, eps=1.0)
        selected[5].backward()
        ranks = sorted_soft_topk(scores, k=2, eps=1.0)
        check("soft_topk", selected, SELECTED)
        check("its gradient", scores.grad, GRADIENT)
        check("sorted_soft_topk", ranks.T @ scores, VALUES)

    many = torch.randn(64, 1000)
    check("the sum of soft_topk", soft_topk(many, k=10, eps=0.01).sum(-1), [10.0] * 64)
    print(f"softtopk computes what it should, by {kernels.status()}")


def check(name: str, actual: torch.Tensor, expected: list[float]) -> None:
    wanted = torch.tensor(expected, dtype=actual.dtype)
    message = f"{name}: {actual.tolist()} instead of {expected}"
    assert torch.allclose(actual, wanted, rtol=0, atol=1e-4), message


if __name__ == "__main__":
    main()
