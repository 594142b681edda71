"""What is installed and what the machine offers, as `softtopk info` reports it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata

import torch

from . import kernels

OPTIONAL = {
    "cyclopts": "cli",
    "filelock": "cli",
    "rich": "cli",
    "matplotlib": "plot",
    "numpy": "plot",
    "pillow": "plot",
    "scikit-learn": "knn",
    "faiss-cpu": "knn",
    "safetensors": "knn",
    "threadpoolctl": "knn",
    "pyarrow": "tables",
    "sentencepiece": "translate",
    "sacrebleu": "translate",
    "babel": "translate",
    "transformers": "transformers",
    "torch_geometric": "graphs",
    "triton": "triton",
}
"""The optional dependencies, each with the first extra that installs it."""


@dataclass(frozen=True)
class Environment:
    """One machine's set-up, everything needed to reproduce a report of a problem."""

    softtopk: str
    python: str
    platform: str
    torch: str
    optional: dict[str, str | None]
    """Version of each optional dependency, None if it is not installed."""
    cpu_threads: int
    accelerators: tuple[str, ...]
    """Devices besides the CPU."""
    native: kernels.Status
    """Whether the operators use the native library on the CPU, and why."""
    triton: dict[str, kernels.Status]
    """Whether they use Triton kernels on each of the accelerators, and why."""


def collect() -> Environment:
    """Look at the running interpreter and the machine."""
    accelerators = _accelerators()
    return Environment(
        softtopk=metadata.version("softtopk"),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=platform.platform(),
        torch=torch.__version__,
        optional={name: _installed(name) for name in OPTIONAL},
        cpu_threads=torch.get_num_threads(),
        accelerators=accelerators,
        native=kernels.status(),
        triton={name: kernels.accelerator_status(torch.device(name)) for name in accelerators},
    )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _accelerators() -> tuple[str, ...]:
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.accelerator.is_available():
        return ()
    return tuple(f"{device.type}:{i}" for i in range(torch.accelerator.device_count()))
