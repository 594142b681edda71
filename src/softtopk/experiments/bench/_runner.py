"""A run: every case in order, every installed peer in every case."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import softtopk
from softtopk import _environment
from softtopk.experiments._truth import true_ranking, true_selection
from softtopk.experiments.errors import UsageError
from softtopk.experiments.runs import surroundings
from softtopk.experiments.settings import Declared, setting

from ._cases import Case, Output, Problem, problem_of, scores_of
from ._device import Cpu, Device, device_of
from ._measure import (
    MIN_REPEATS,
    Contestant,
    available_cores,
    pinned_threads,
    time_in_turn,
    variables,
)
from ._peers import PEERS, Peer
from ._probe import Probe, probe, probe_here
from ._results import CaseResult, Record, Result, Status
from ._targets import TARGET_PEERS

# The float64 solution takes up to this many numbers at a time: enough for a row of any case.
CHECKED_NUMBERS = 10**6
# A cost that was measured at a size this many times smaller says nothing: it may be overhead.
FAR = 100
GIVEN_UP = "given up at a smaller size: "
ALL_PEERS = PEERS + TARGET_PEERS
EFFORT = "Effort"

Trial = Callable[[Peer, Case], Probe]
Absent = dict[str, tuple[Status, str]]
"""The peers that take no part, by key, with the reason."""


@dataclass(frozen=True)
class Settings(Declared):
    """How to run."""

    cases: tuple[Case, ...]
    out: Path = setting(Path("bench"), "Folder for the results.")
    device: str = setting("cpu", "As torch names it: cpu, cuda, cuda:1, mps, xpu.")
    peers: tuple[str, ...] = setting(
        (),
        "Only these, with commas between them.",
        choices=tuple(dict.fromkeys(peer.key for peer in PEERS)),
        shown="all that are installed",
    )
    resume: bool = setting(False, "Keep the finished cases in --out.", switch=True)
    repeats: int = setting(
        7, "Repetitions of each peer.", group=EFFORT, low=MIN_REPEATS, shown="the preset's"
    )
    budget: float = setting(
        6.0, "Seconds for one peer in one case.", group=EFFORT, above=0, shown="the preset's"
    )
    memory: float = setting(
        factory=lambda: Cpu().free_memory() / 2 / 2**30,
        help="GiB for one call of one peer.",
        group=EFFORT,
        above=0,
        shown="half of what the device has free",
    )
    threads: int = setting(
        factory=lambda: min(2, available_cores()),
        help="CPU threads, at most the cores that this process may use.",
        group=EFFORT,
        low=1,
        high=available_cores(),
        shown="2, or 1 on one core",
    )

    @property
    def record(self) -> Path:
        return self.out / "results.json"


class Report(Protocol):
    """What is told of a run while it goes on."""

    def case(self, number: int, total: int, case: Case) -> None:
        """A case begins."""

    def step(self, text: str) -> None:
        """Something begins that may take a while."""

    def finished(self, result: CaseResult, reused: bool) -> None:
        """A case is done, now or in an earlier run."""


def survey(settings: Settings, peers: Sequence[Peer] = ALL_PEERS) -> tuple[list[Peer], Absent]:
    """The peers of the cases that the settings ask for and that can run; why the others cannot.

    This package is always among them: the others are compared with it.
    """
    present: list[Peer] = []
    absent: Absent = {}
    wanted = {*settings.peers, "softtopk", *(peer.key for peer in TARGET_PEERS)}
    on_cpu = torch.device(settings.device).type == "cpu"
    for peer in peers:
        if settings.peers and peer.key not in wanted:
            continue
        if not any(_taking_part([peer], case) for case in settings.cases):
            continue
        if peer.package.version() is None:
            absent[peer.key] = "not installed", f"pip install {peer.package.install}"
        elif peer.cpu_only and not on_cpu:
            absent[peer.key] = "CPU only", peer.cpu_only
        else:
            present.append(peer)
    return present, absent


def run(
    settings: Settings,
    report: Report,
    peers: Sequence[Peer] = ALL_PEERS,
    try_once: Trial | None = None,
) -> Record:
    """Run the cases and keep `results.json` up to date; an interrupt loses the case under way."""
    device = device_of(settings.device)
    present, absent = survey(settings, peers)
    record = _start(settings, present, device)
    record.write(settings.record)
    with (
        device.current(),
        pinned_threads(settings.threads),
        tempfile.TemporaryDirectory(prefix="softtopk-bench-") as cache,
        # What the trial process compiles, this one finds.
        variables(JAX_COMPILATION_CACHE_DIR=cache, JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0"),
    ):
        for number, case in enumerate(settings.cases, 1):
            report.case(number, len(settings.cases), case)
            done = record.find(case)
            if done is None:
                trial = try_once or _trial(settings, device)
                runner = _CaseRunner(case, settings, report, record, device, trial)
                result = runner.run(_taking_part(present, case))
                result = CaseResult(case, (*result.results, *_absent(peers, absent, case)))
                record.cases.append(result)
                record.write(settings.record)
                report.finished(result, reused=False)
            else:
                report.finished(done, reused=True)
    return record


def _trial(settings: Settings, device: Device) -> Trial:
    memory = int(settings.memory * 2**30)
    if isinstance(device, Cpu):
        return partial(probe, threads=settings.threads, seconds=settings.budget, memory=memory)
    return partial(probe_here, device=device, memory=memory)


def _taking_part(peers: Sequence[Peer], case: Case) -> list[Peer]:
    here = [peer for peer in peers if peer.operator == case.operator]
    if case.peers:
        return [peer for peer in here if peer.key in case.peers]
    return [peer for peer in here if peer not in TARGET_PEERS]


def _absent(peers: Sequence[Peer], absent: Absent, case: Case) -> list[Result]:
    here = [peer for peer in peers if peer.key in absent]
    return [Result(p.key, p.label, *absent[p.key]) for p in _taking_part(here, case)]


def _start(settings: Settings, peers: Sequence[Peer], device: Device) -> Record:
    """An empty record, or the one to go on with."""
    conditions = {
        "device": device.describe(),
        "threads": settings.threads,
        "repeats": settings.repeats,
        "budget": settings.budget,
        "peers": {p.key: p.package.version() for p in peers},
        "torch": torch.__version__,
        "softtopk": softtopk.__version__,
        "sources": _digest_of_sources(),
        "kernels": str(_environment.collect().native),
    }
    environment = {
        **surroundings(),
        "device": device.describe(),
        "cores": available_cores(),
        "command": sys.argv,
    }
    if not settings.resume or not settings.record.exists():
        return Record(conditions, environment)
    record = Record.read(settings.record)
    different = [
        f"{name} was {record.settings.get(name)!r} and is {value!r}"
        for name, value in conditions.items()
        if record.settings.get(name) != value
    ]
    if different:
        raise UsageError(
            f"--resume: {settings.record} was made differently ({'; '.join(different)}); "
            "run without --resume to measure anew, or give another --out"
        )
    return record


def _digest_of_sources() -> str:
    """Changes with the code under test, whatever the version says."""
    package = Path(softtopk.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        relative = path.relative_to(package)
        if (
            path.suffix in (".py", ".so", ".dylib", ".dll", ".cpp", ".hpp")
            and relative.parts[0] != "experiments"
        ):
            digest.update(str(relative).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass
class _CaseRunner:
    """One case: try every peer, then time those that are fit, in turn."""

    case: Case
    settings: Settings
    report: Report
    record: Record
    device: Device
    try_once: Trial

    def run(self, peers: Sequence[Peer]) -> CaseResult:
        results: dict[str, Result] = {}
        probes: dict[str, Probe] = {}
        for peer in peers:
            self.report.step(f"trying {peer.label}")
            trial = self._try(peer)
            if trial.status == "measured":
                probes[peer.key] = trial
            else:
                results[peer.key] = Result(
                    peer.key, peer.label, trial.status, trial.message, memory=trial.memory
                )
        fit = [peer for peer in peers if peer.key in probes]
        results.update(self._measure(fit, probes))
        return CaseResult(self.case, tuple(results[peer.key] for peer in peers))

    def _try(self, peer: Peer) -> Probe:
        budget = self.settings.budget
        hopeless = self._predict(peer)
        if hopeless is not None:
            return hopeless
        trial = self.try_once(peer, self.case)
        # A first call takes longer than the next ones, of which there will be at least four.
        if trial.status == "measured" and trial.seconds > budget / 2:
            message = (
                f"one call takes {trial.seconds:.1f} s, more than half of the budget of "
                f"{budget:g} s"
            )
            return Probe("too slow", message, trial.seconds, trial.memory)
        return trial

    def _predict(self, peer: Peer) -> Probe | None:
        """Give up without a trial where the largest case so far leaves no doubt."""
        earlier = [
            (_work(peer, done.case), result)
            for done in self.record.cases
            if done.case.operator == self.case.operator
            and (result := done.of(peer.key)) is not None
            and _work(peer, done.case) <= _work(peer, self.case)
        ]
        if not earlier:
            return None
        work, result = max(earlier, key=lambda pair: pair[0])
        if result.status in ("too slow", "too large"):
            return Probe(result.status, GIVEN_UP + result.reason.removeprefix(GIVEN_UP))
        growth = _work(peer, self.case) / work
        if growth > FAR:
            return None
        scale = growth / 2  # because a part of the cost may not grow with the size
        seconds = scale * result.both.median if result.both else 0.0
        memory = scale * (result.memory or 0) / 2**30
        if seconds > self.settings.budget / 2:
            return Probe("too slow", f"one call would take more than {seconds:.1f} s")
        if memory > self.settings.memory:
            return Probe("too large", f"one call would need more than {memory:.1f} GiB")
        return None

    def _measure(self, peers: Sequence[Peer], probes: dict[str, Probe]) -> dict[str, Result]:
        self.report.step("preparing inputs")
        scores = scores_of(self.case, self.device.where)
        problems: dict[Output, Problem] = {}
        contestants: dict[str, Contestant] = {}
        for peer in peers:
            self.report.step(f"preparing {peer.label}")
            if peer.output not in problems:
                problems[peer.output] = problem_of(self.case, peer.output, scores)
            prepared = peer.prepare(problems[peer.output])
            contestants[peer.key] = Contestant(prepared, peer.gradient)
        repeats = self.settings.repeats
        with warnings.catch_warnings():
            # Such as that Sinkhorn's algorithm has not converged, which the error says too.
            warnings.simplefilter("ignore")
            time_in_turn(
                list(contestants.values()),
                repeats,
                self.settings.budget,
                lambda repetition: self.report.step(f"repetition {repetition + 1} of {repeats}"),
                self.device,
            )
            errors = self._errors(peers, contestants, scores.cpu())
        results = {}
        for peer in peers:
            failure = contestants[peer.key].failure
            if failure:
                results[peer.key] = Result(peer.key, peer.label, "failed", failure)
                continue
            forward, backward, both = contestants[peer.key].timings()
            results[peer.key] = Result(
                peer.key,
                peer.label,
                forward=forward,
                backward=backward,
                both=both,
                memory=probes[peer.key].memory,
                error=errors.get(peer.key),
            )
        return results

    def _errors(
        self, peers: Sequence[Peer], contestants: dict[str, Contestant], scores: Tensor
    ) -> dict[str, float]:
        """Largest error of each peer that solves our problem, over the first rows."""
        if not self.case.check:
            return {}
        self.report.step("computing the errors")
        case = self.case
        numbers = case.n * (case.k if case.operator == "sorted" else 1)
        some = scores[: max(1, CHECKED_NUMBERS // numbers)]
        errors: dict[str, float] = {}
        truths: dict[Any, Tensor] = {}
        for peer in peers:
            if not peer.same_problem or contestants[peer.key].failure:
                continue
            if peer.tau not in truths:
                tau = peer.tau(scores, case.k, case.eps)
                truths[peer.tau] = _truth(case, some, tau)
            truth = truths[peer.tau]
            run = contestants[peer.key].run
            selection = run.selection(run.forward())[: len(truth)]
            errors[peer.key] = (selection.cpu() - truth).abs().max().item()
        return errors


def _truth(case: Case, some: Tensor, tau: float | Tensor) -> Tensor:
    if case.operator == "unsorted":
        return true_selection(some, case.k, tau[: len(some)] if isinstance(tau, Tensor) else tau)
    assert isinstance(tau, float), "the sorted problem has one temperature"
    return true_ranking(some, case.k, tau)


def _work(peer: Peer, case: Case) -> float:
    """What time and memory grow with."""
    ranks = case.k if case.operator == "sorted" else 1
    return float(case.rows * case.n**peer.growth * ranks)
