"""Train features for kNN on several processes, with Hugging Face accelerate.

    torchrun --nproc-per-node 2 examples/knn_accelerate.py

Every process embeds its share of a batch. Its queries choose among the templates of all processes.
It takes seconds on a CPU, and ends with an accuracy of about 98 %.
"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch.utils.data import DataLoader, TensorDataset

from softtopk.distributed import gather, mean
from softtopk.knn import MLP, knn_loss

K = 5
EPS = 0.1  # the features are about 0.7 apart at first


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    train, test, y, y_test = train_test_split(images.float() / 16, labels, random_state=0)
    torch.manual_seed(0)
    network = MLP((64,), features=32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(train, y), batch_size=64, shuffle=True, drop_last=True)
    network, optimizer, loader = accelerator.prepare(network, optimizer, loader)

    for _ in range(10):
        for inputs, classes in loader:
            features, half = network(inputs), len(inputs) // 2
            losses = knn_loss(
                features[:half],
                classes[:half],
                gather(features[half:]),
                gather(classes[half:]),
                K,
                objective="nll",
                eps=EPS,
                reduction="none",
            )
            accelerator.backward(mean(losses))
            optimizer.step()
            optimizer.zero_grad()

    if accelerator.is_main_process:
        network = accelerator.unwrap_model(network).cpu().eval()
        with torch.no_grad():
            neighbours = KNeighborsClassifier(K).fit(network(train).numpy(), y)
            print(f"test accuracy {100 * neighbours.score(network(test).numpy(), y_test):.1f} %")
    accelerator.end_training()


if __name__ == "__main__":
    main()
