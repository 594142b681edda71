"""One method with one seed: train its features, classify the test images, record the outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softtopk import knn

from .._splits import Data
from ..runs import Interrupt, Report, Run, processes, share_out, train
from ._augmentation import Augmentation
from ._methods import Method
from ._objectives import Classification, Reconstruction
from ._settings import NETWORKS, Settings, temperature

PCA_COMPONENTS = 50  # as in the paper


@dataclass(frozen=True)
class Samples:
    """The samples of one seed, as the networks take them."""

    train: Tensor
    """(n, channels, height, width) or (n, columns), normalised."""
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: tuple[str, ...]

    @staticmethod
    def of(data: Data) -> Samples:
        train, test = (data.normalise(split.inputs) for split in (data.train, data.test))
        return Samples(train, data.train.labels, test, data.test.labels, data.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.shape[1:])


class Model:
    """The features of a method, as a map of images, and the classes it predicts."""

    def __init__(self, method: Method, settings: Settings, samples: Samples, seed: int) -> None:
        self.method, self.settings, self.samples = method, settings, samples
        self.objective = _objective(method, settings, samples, seed) if method.is_trained else None
        self._pca: Any = None

    def features(self, images: Tensor) -> Tensor:
        """(n, ...) images -> (n, d) features."""
        if self.objective is not None:
            return _apply(self.objective.network, images, self.settings.device)
        flat = images.flatten(1)
        if self.method.features == "pixels":
            return flat
        if self._pca is None:
            from sklearn.decomposition import PCA

            n, d = self.samples.train.flatten(1).shape
            self._pca = PCA(min(PCA_COMPONENTS, n, d), random_state=0)
            self._pca.fit(self.samples.train.flatten(1).numpy())
        return torch.from_numpy(self._pca.transform(flat.numpy())).float()

    def probabilities(self, images: Tensor) -> Tensor:
        """(n, ...) images -> (n, classes): shares of the k neighbours' votes, or softmax."""
        features = self.features(images)
        if self.method.head:
            assert self.objective is not None
            return _apply(self.objective.head, features, self.settings.device).softmax(-1)
        neighbours = knn.Neighbours(metric=self.settings.metric)
        neighbours.fit(self.features(self.samples.train).numpy())
        k = min(self.settings.k, len(self.samples.train))
        _, indices = neighbours.kneighbors(features.numpy(), k)
        labels = self.samples.train_labels[torch.from_numpy(indices)]
        votes = torch.zeros(len(images), len(self.samples.classes))
        return votes.scatter_add_(1, labels, torch.full(labels.shape, 1 / k))


def execute(
    method: Method,
    settings: Settings,
    seed: int,
    samples: Samples,
    run: Run,
    report: Report,
    interrupt: Interrupt,
    relatives: Sequence[Run] = (),
) -> dict[str, Any]:
    """Run to the end, from where it stands; returns the result, which is then on disk too.

    ``relatives`` are finished runs with the same settings and seed. The features of kNN+pretrained
    CNN are those of CE+CNN, so one of them takes the weights of the other if it is there.
    """
    model = Model(method, settings, samples, seed)
    seconds = 0.0
    if model.objective is not None:
        relative = processes.lead(lambda: _same_training(method, run, relatives))
        if relative is not None:
            processes.lead(run.restart)  # it may have begun to train by itself
            model.objective.load_state_dict(relative.load_weights())
            seconds = (relative.result or {})["training_seconds"]
        else:
            title = f"{method.label}, seed {seed}"
            training = make_training(model, seed)
            seconds = train(training, run, report, interrupt, title=title)
    return processes.lead(lambda: _finish(model, seed, seconds, run))


def _finish(model: Model, seed: int, seconds: float, run: Run) -> dict[str, Any]:
    """Classify the test samples, and write the weights and the result."""
    method, samples = model.method, model.samples
    if model.objective is not None:
        run.save_weights(model.objective.state_dict())
    start = time.perf_counter()
    predicted = model.probabilities(samples.test).argmax(-1)
    correct = int((predicted == samples.test_labels).sum())
    result = {
        "method": method.name,
        "seed": seed,
        "accuracy": correct / len(predicted),
        "correct": correct,
        "test_images": len(predicted),
        "training_images": len(samples.train),
        "training_seconds": seconds,
        "prediction_seconds": time.perf_counter() - start,
    }
    run.finish(result)
    return result


def make_training(model: Model, seed: int) -> knn.Training:
    """The training of a model's objective, by all processes that there are."""
    settings, samples = model.settings, model.samples
    changes = settings.shift or settings.flip
    assert model.objective is not None
    training = knn.Training(
        model.objective,
        samples.train,
        samples.train_labels,
        settings,
        seed=seed,
        augment=Augmentation(settings.shift, settings.flip) if changes else None,
        device=processes.own_device(settings.device),
    )
    share_out(model.objective.network)
    training.forward = processes.spread(training.objective)
    return training


def relaxation_options(method: Method, settings: Settings) -> dict[str, Any]:
    """The options of the method's relaxation that the settings determine."""
    options = {**method.options, "eps": temperature(settings, method.relaxation)}
    if method.relaxation == "soft-topk":
        options["normalize"] = settings.normalize
    return options


def _objective(method: Method, settings: Settings, samples: Samples, seed: int) -> Any:
    """The module to train; the networks of all methods start from the same weights."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        network = NETWORKS[settings.network](samples.shape)
        with torch.no_grad():
            n_features = network.eval()(samples.train[:1]).shape[1]
        if method.features == "classifier":
            return Classification(network, n_features, len(samples.classes))
        if method.features == "autoencoder":
            return Reconstruction(network, n_features, samples.train[0].numel())
        options = relaxation_options(method, settings)
        return knn.KNNObjective(
            network,
            settings.training_k(settings.k, len(samples.train), settings.leave_one_out),
            relaxation=method.relaxation,
            metric=settings.metric,
            objective=settings.objective,
            eps=options.pop("eps"),
            options=options,
            leave_one_out=settings.leave_one_out,
        )


def _same_training(method: Method, run: Run, relatives: Sequence[Run]) -> Run | None:
    if method.features != "classifier":
        return None
    return next(
        (
            other
            for other in relatives
            if other.path != run.path
            and (other.path / "config.json").exists()
            and other.config["features"] == "classifier"
            and other.result
        ),
        None,
    )


@torch.no_grad()
def _apply(module: nn.Module, inputs: Tensor, device: str, batch: int = 1000) -> Tensor:
    """The module's output, computed in batches, on the CPU."""
    module.eval()
    layout = torch.channels_last if inputs.ndim == 4 else torch.contiguous_format
    parts = [module(part.to(device, memory_format=layout)).cpu() for part in inputs.split(batch)]
    out = torch.cat(parts)
    if not out.isfinite().all():
        raise knn.DivergedError("the network's output is not finite: try a smaller learning rate")
    return out
