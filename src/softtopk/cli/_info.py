"""The command `softtopk info`."""

from __future__ import annotations

import json
from dataclasses import asdict

from softtopk import _environment


def describe(environment: _environment.Environment) -> str:
    """One fact on each line."""
    rows = {
        "softtopk": environment.softtopk,
        "Python": environment.python,
        "platform": environment.platform,
        "torch": environment.torch,
    }
    for name, version in environment.optional.items():
        extra = _environment.OPTIONAL[name]
        rows[name] = version or f"not installed (pip install 'softtopk[{extra}]')"
    rows["CPU threads"] = str(environment.cpu_threads)
    rows["devices"] = ", ".join(("cpu", *environment.accelerators))
    rows["kernels"] = str(environment.native)
    for device, status in environment.triton.items():
        rows[f"kernels on {device}"] = str(status)
    width = max(map(len, rows)) + 2
    return "\n".join(f"{name + ':':<{width}}{value}" for name, value in rows.items())


def as_json(environment: _environment.Environment) -> str:
    return json.dumps(asdict(environment), indent=2)
