"""The select step for PyTorch Geometric."""

import importlib.util

import pytest
import torch

from softtopk.integrations.torch_geometric import SelectSoftTopK


def test_in_the_place_of_select_topk():
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    x, batch = torch.randn(9, 4), torch.tensor([0] * 5 + [1] * 4)
    edges = torch.randint(0, 5, (2, 12))
    pool = pyg.TopKPooling(4, ratio=0.5)
    theirs = pool(x, edges, batch=batch)
    soft = SelectSoftTopK(4, ratio=0.5)
    soft.weight.data.copy_(pool.select.weight)
    pool.select = soft.eval()
    ours = pool(x, edges, batch=batch)
    assert set(ours[4].tolist()) == set(theirs[4].tolist())  # the same nodes
    assert torch.equal(ours[0], x[ours[4]])
    assert torch.equal(ours[3], batch[ours[4]])
    soft.train()
    pool(x, edges, batch=batch)[0].sum().backward()
    assert soft.weight.grad.isfinite().all()


@pytest.mark.skipif(
    importlib.util.find_spec("torch_geometric") is not None, reason="torch_geometric is installed"
)
def test_says_what_to_install():
    with pytest.raises(ImportError, match=r"torch-geometric: pip install 'softtopk\[graphs\]'"):
        SelectSoftTopK(4)(torch.zeros(3, 4))
