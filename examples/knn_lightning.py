"""Train features for kNN on several processes, with PyTorch Lightning.

    torchrun --nproc-per-node 2 examples/knn_lightning.py

Every process embeds its share of a batch. Its queries choose among the templates of all processes.
It takes seconds on a CPU, and ends with an accuracy of about 98 %.
"""

import os

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from softtopk.distributed import gather, mean
from softtopk.knn import MLP, knn_loss

K = 5
EPS = 0.1  # the features are about 0.7 apart at first


class Features(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = MLP((64,), features=32)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, classes = batch
        features, half = self.network(inputs), len(inputs) // 2
        templates, others = gather(features[half:]), gather(classes[half:])
        options = {"objective": "nll", "eps": EPS, "reduction": "none"}
        return mean(knn_loss(features[:half], classes[:half], templates, others, K, **options))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    train, test, y, y_test = train_test_split(images.float() / 16, labels, random_state=0)
    loader = DataLoader(TensorDataset(train, y), batch_size=64, shuffle=True, drop_last=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = pl.Trainer(max_epochs=10, devices=devices, **quiet)
    module = Features()
    trainer.fit(module, loader)
    if trainer.is_global_zero:
        network = module.network.cpu().eval()
        with torch.no_grad():
            neighbours = KNeighborsClassifier(K).fit(network(train).numpy(), y)
            print(f"test accuracy {100 * neighbours.score(network(test).numpy(), y_test):.1f} %")


if __name__ == "__main__":
    main()
