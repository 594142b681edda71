"""What a run leaves: a record in JSON, written after every case and read back to resume."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import read_sealed, sealed, write_atomic

from ._cases import Case

FORMAT = 1

Status = Literal["measured", "not installed", "CPU only", "failed", "too slow", "too large"]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, one number for each repetition."""

    samples: tuple[float, ...]

    @cached_property
    def median(self) -> float:
        return statistics.median(self.samples)

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        """Between these lies the middle half of the repetitions.

        >>> Timing((1.0, 2.0, 3.0, 4.0, 9.0)).quartiles
        (2.0, 4.0)
        """
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Result:
    """One peer in one case: measured, or not, for a reason."""

    peer: str
    label: str
    status: Status = "measured"
    reason: str = ""
    """Why it was not measured."""
    forward: Timing | None = None
    backward: Timing | None = None
    both: Timing | None = None
    """Forward and backward pass; the forward pass alone if there is no other."""
    memory: int | None = None
    """Peak of the memory beyond the inputs, in bytes."""
    error: float | None = None
    """Largest deviation from the float64 solution, if it solves the same problem."""

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        for name in ("forward", "backward", "both"):
            timing = getattr(self, name)
            if timing is not None:
                out[name] = {
                    "median": timing.median,
                    "quartiles": timing.quartiles,
                    "samples": timing.samples,
                }
        return out

    @staticmethod
    def from_json(data: dict[str, Any]) -> Result:
        timings = {
            name: Timing(tuple(data[name]["samples"])) if data[name] else None
            for name in ("forward", "backward", "both")
        }
        return Result(**{**data, **timings})


@dataclass(frozen=True)
class CaseResult:
    """All peers in one case."""

    case: Case
    results: tuple[Result, ...]

    def of(self, peer: str) -> Result | None:
        """The result of the peer with this key."""
        return next((result for result in self.results if result.peer == peer), None)


@dataclass
class Record:
    """A run: how it was made and what is finished."""

    settings: dict[str, Any]
    """What has to agree for results to be comparable."""
    environment: dict[str, Any]
    cases: list[CaseResult] = field(default_factory=list)

    def find(self, case: Case) -> CaseResult | None:
        return next((done for done in self.cases if done.case == case), None)

    def write(self, path: Path) -> None:
        """Write all at once: a reader, or an interrupt, never meets half a file."""
        data = {
            "format": FORMAT,
            "settings": self.settings,
            "environment": self.environment,
            "cases": [
                {"case": asdict(done.case), "results": [r.to_json() for r in done.results]}
                for done in self.cases
            ],
        }
        write_atomic(path, sealed(data, allow_nan=True))  # an error can be NaN

    @staticmethod
    def read(path: Path) -> Record:
        data = read_sealed(path, "run without --resume, or give another --out")
        try:
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}")
            cases = [
                CaseResult(
                    Case(**{**item["case"], "peers": tuple(item["case"]["peers"])}),
                    tuple(Result.from_json(result) for result in item["results"]),
                )
                for item in data["cases"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--resume: {path} is not a record of this benchmark ({error}): run without "
                "--resume, or give another --out"
            ) from error
        return Record(data["settings"], data["environment"], cases)
