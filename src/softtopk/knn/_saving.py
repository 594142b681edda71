"""Fitted estimators as safetensors files.

The tensors are the network's weights and the numeric arrays among the attributes. All else is JSON.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .. import _model_files
from ._networks import OURS, NetworkLike

if TYPE_CHECKING:
    from ._estimator import SoftKNNEstimator

Estimator = TypeVar("Estimator", bound="SoftKNNEstimator")

_REBUILT = ("network_", "_neighbours")  # from the tensors, not attributes of the file
_AS_TENSORS = ("float32", "float64", "int64", "bool")


def save(model: SoftKNNEstimator, path: str | Path) -> None:
    parameters = model.get_params(deep=False)
    given = parameters.pop("network")
    kept = {}
    for name, value in parameters.items():
        try:
            kept[name] = _plain(value)
        except TypeError:
            warnings.warn(
                f"{name}={value!r} is not a plain value and is not saved; the loaded estimator has "
                "the default",
                stacklevel=3,
            )
    fitted = model._neighbours  # parameters that were set since then would give another index
    kept |= {"index": fitted.index, "n_probe": fitted.n_probe}
    learned = model.network_.state_dict()  # copied, as a file cannot hold a tensor twice
    tensors = {f"network.{name}": value.clone() for name, value in learned.items()}
    attributes = {}
    for name, value in vars(model).items():
        if name in (*parameters, "network", *_REBUILT):
            continue
        if isinstance(value, np.ndarray) and value.dtype.name in _AS_TENSORS:
            tensors[name] = torch.from_numpy(np.array(value))
        else:
            try:
                attributes[name] = _plain(value)
            except TypeError as error:
                raise TypeError(f"{name} cannot be saved: {error}") from error
    kind = type(model.network_)
    network = {"kind": kind.__name__, "is_default": given is None, "arguments": None}
    if OURS.get(kind.__name__) is kind:
        network["arguments"] = model.network_.arguments
    description = {"parameters": kept, "attributes": attributes, "network": network}
    _model_files.write(path, _format(type(model)), description, tensors)


def load(cls: type[Estimator], path: str | Path, network: NetworkLike | None) -> Estimator:
    stored = _model_files.read(path, [_format(cls)])
    weights = dict(stored.weights)
    with _model_files.naming(path):
        described = stored.description["network"]
        learned = {
            name.removeprefix("network."): weights.pop(name)
            for name in stored.weights
            if name.startswith("network.")
        }
        parameters = {k: _restored(v) for k, v in stored.description["parameters"].items()}
        model = cls(network, **parameters)
        arrays = {name: tensor.numpy() for name, tensor in weights.items()}
        values = {k: _restored(v) for k, v in stored.description["attributes"].items()}
        model.__dict__.update({**values, **arrays})
        model._neighbours = model._new_index().fit(model._features)
        if network is None and described["arguments"] is not None:
            with torch.device("meta"):  # where a new network draws no random weights
                module = OURS[described["kind"]](**described["arguments"])
            module.to(torch.float32).to_empty(device="cpu")
            model.network_ = _with_weights(module, learned, model.input_shape_)
            model.network = None if described["is_default"] else model.network_
            return model
    if network is None:
        raise ValueError(
            f"{path} has the weights of a network of your own ({described['kind']}) and not its "
            f"architecture; give it: {cls.__name__}.load(path, network=...)"
        )
    module = model._new_network(
        torch.zeros(1, *model.input_shape_, dtype=torch.float32, device="cpu"), seed=0
    )
    try:
        model.network_ = _with_weights(module, learned, model.input_shape_)
    except RuntimeError as error:
        raise ValueError(
            f"network={network!r} does not fit the weights in {path}: {error}"
        ) from error
    return model


def _format(cls: type[SoftKNNEstimator]) -> str:
    return f"softtopk.{cls.__name__} 1"


def _with_weights(
    network: nn.Module, weights: dict[str, Tensor], shape: tuple[int, ...]
) -> nn.Module:
    network.load_state_dict(weights)
    if len(shape) == 3:  # as in training: convolutions round differently in another layout
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # not in stubs
    return network.eval()


def _plain(value: Any) -> Any:
    """A value as JSON. A dict of one key stands for what JSON does not have."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(item) for item in value]}
    if isinstance(value, dict):  # a list of pairs: a key need not be a string
        return {"dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUO":
        return {"array": _plain(value.tolist()), "dtype": value.dtype.str}
    kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
    raise TypeError(f"{kind} is not a number, a string, or made of such")


def _restored(value: Any) -> Any:
    """What `_plain` was given."""
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(_restored(value["array"]), dtype=np.dtype(value["dtype"]))
    if "tuple" in value:
        return tuple(_restored(item) for item in value["tuple"])
    return {_restored(key): _restored(item) for key, item in value["dict"]}
