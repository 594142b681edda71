"""How fast and how exact are the exact solver and Sinkhorn's algorithm?

    python benchmarks/exact_vs_sinkhorn.py                                    # make bench
    python benchmarks/exact_vs_sinkhorn.py --sizes 128x1000x10,64x10000x64 --out runs/bench.json
    python benchmarks/exact_vs_sinkhorn.py --plot runs/time_against_n.png --repeats 3

All methods get the same standard normal float32 scores and run in one process, in turn: one
repetition of each, then the next of each, so that a busy minute of the machine hits all of them. A
repetition is a forward pass and a backward pass with a random cotangent. The first command takes a
minute or two on two cores, the third ten; most of it goes to Sinkhorn on the sorted operator. Use
an idle machine, or fewer threads than there are idle cores: when one thread has to wait for a core,
the others wait for it, in every operation.

The error is the largest |A - truth|. The truth is computed here, in float64, and shares no code
with the package: a bisection for the unsorted operator, a damped Newton method that checks its
marginals for the sorted one (the first rows only). Sinkhorn runs its 200 iterations whether or not
it gets there; its ConvergenceWarning is suppressed, as the error column says the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import softtopk
from softtopk import ConvergenceWarning, Sinkhorn, soft_topk, sorted_soft_topk

# The number of iterations in the paper's listing. With tol=0 it stops before only if the marginals
# are met to the last bit in every row, which takes a high temperature (eps = 0.1).
SINKHORN = Sinkhorn(max_iter=200, tol=0)
# The truth of the sorted operator takes float64 arrays of size n (k + 1) per row.
ROWS_CHECKED = 8
EXACT, SORTED_EXACT = "soft_topk, exact", "sorted_soft_topk, exact"


class Size(NamedTuple):
    rows: int
    n: int
    k: int


PLOT_SIZES = [Size(64, n, 10) for n in (100, 1_000, 10_000)]


@dataclass(frozen=True)
class Method:
    run: Callable[[Tensor], Tensor]
    truth: Callable[[Tensor, int, float], Tensor] | None = None
    exact: str | None = None  #: name of the exact solver of the same operator
    differentiable: bool = True


class Repetition(NamedTuple):
    seconds: float
    a: Tensor


@dataclass(frozen=True)
class Result:
    size: Size
    method: str
    seconds: list[float]
    median: float
    ratio: float  #: of the medians, to soft_topk with the exact solver
    ratio_to_exact: float | None  #: to the same operator with the exact solver
    error: float | None


def methods(k: int, eps: float) -> dict[str, Method]:
    def soft(x: Tensor) -> Tensor:
        return soft_topk(x, k, eps=eps, normalize="batch")

    def ranked(x: Tensor) -> Tensor:
        return sorted_soft_topk(x, k, eps=eps, normalize="batch")

    def soft_sinkhorn(x: Tensor) -> Tensor:
        return soft_topk(x, k, eps=eps, normalize="batch", solver=SINKHORN)

    def ranked_sinkhorn(x: Tensor) -> Tensor:
        return sorted_soft_topk(x, k, eps=eps, normalize="batch", solver=SINKHORN)

    iterations = f"{SINKHORN.max_iter} Sinkhorn"
    return {
        EXACT: Method(soft, true_selection),
        f"soft_topk, {iterations}": Method(soft_sinkhorn, true_selection, EXACT),
        SORTED_EXACT: Method(ranked, true_ranking),
        f"sorted_soft_topk, {iterations}": Method(ranked_sinkhorn, true_ranking, SORTED_EXACT),
        "torch.softmax": Method(lambda x: x.softmax(-1)),
        "torch.topk (forward only)": Method(lambda x: x.topk(k).values, differentiable=False),
    }


def true_selection(scores: Tensor, k: int, eps: float) -> Tensor:
    """A = sigmoid(2 (x - t) / eps') with sum k, by bisection for t: (rows, n) -> (rows, n)."""
    x = scores.double()
    tau = eps * max(x.square().max().item(), (x - 1).square().max().item()) / 2
    # At these ends A sums to more than n - 1 and to less than 1.
    margin = tau * math.log(x.shape[-1])
    low, high = x.amin(-1, keepdim=True) - margin, x.amax(-1, keepdim=True) + margin
    for _ in range(100):
        t = (low + high) / 2
        too_many = torch.sigmoid((x - t) / tau).sum(-1, keepdim=True) > k
        low, high = torch.where(too_many, t, low), torch.where(too_many, high, t)
    return torch.sigmoid((x - t) / tau)


def true_ranking(scores: Tensor, k: int, eps: float) -> Tensor:
    """The sorted operator for the first rows, (rows, n) -> (ROWS_CHECKED, n, k)."""
    x = scores.double()
    tau = eps * max((x - anchor).square().max().item() for anchor in range(k + 1)) / 2
    return torch.stack([_true_ranks(row, k, tau) for row in x[:ROWS_CHECKED]])


def _true_ranks(x: Tensor, k: int, tau: float) -> Tensor:
    """Newton's method for the k thresholds between the ranks of one row: (n,) -> (n, k).

    The plan is the softmax over ranks j = 0..k of the sum over l >= j of (x_i - threshold_l) / tau,
    and j + 1 elements come before threshold j. That is the minimum of a convex function of the
    thresholds, so a short enough step along Newton's direction shortens the residual.
    """
    places = torch.arange(1, k + 1).double()
    best = x.topk(k + 1).values
    distance = (x.unsqueeze(-1) - (best[:-1] + best[1:]) / 2) / tau  # from the answer at eps = 0

    def solve(shift: Tensor) -> tuple[Tensor, Tensor]:
        logits = (distance - shift).flip(-1).cumsum(-1).flip(-1)
        plan = torch.cat([logits, torch.zeros_like(logits[:, :1])], -1).softmax(-1)
        return plan, plan.cumsum(-1)[:, :k].sum(0) - places

    shift = torch.zeros_like(places)
    plan, residual = solve(shift)
    for _ in range(100):
        if residual.norm() < 1e-9:  # and about so large is the error in A
            return plan[:, :k]
        before, after = plan.cumsum(-1)[:, :k], plan.flip(-1).cumsum(-1).flip(-1)[:, 1:]
        upper = (before.mT @ after).triu()
        # A threshold that moves less than this has a residual of rounding only: it stays.
        scale = upper.diagonal().clamp(min=1e-12).rsqrt()
        hessian = scale.unsqueeze(-1) * (upper + upper.triu(1).mT) * scale
        hessian.fill_diagonal_(1.0)  # changes the clamped ones only
        step = scale * torch.linalg.solve(hessian, scale * residual)
        for _ in range(50):
            trial, trial_residual = solve(shift + step)
            if trial_residual.norm() < residual.norm():
                break
            step = step / 2
        shift, plan, residual = shift + step, trial, trial_residual
    raise RuntimeError(f"the true ranks are off by {residual.norm():.2g} at tau={tau:g}")


def repeat(method: Method, scores: Tensor, cotangents: dict[torch.Size, Tensor]) -> Repetition:
    """One forward and one backward pass. ``cotangents`` keeps the random ones, by shape."""
    x = scores.detach().requires_grad_(method.differentiable)
    start = time.perf_counter()
    a = method.run(x)
    seconds = time.perf_counter() - start
    if method.differentiable:
        cotangent = cotangents.setdefault(a.shape, torch.randn(a.shape))
        start = time.perf_counter()
        torch.autograd.grad(a, x, cotangent)
        seconds += time.perf_counter() - start
    return Repetition(seconds, a.detach())


def measure(size: Size, eps: float, repeats: int) -> list[Result]:
    torch.manual_seed(0)
    scores = torch.randn(size.rows, size.n)
    candidates = methods(size.k, eps)
    cotangents: dict[torch.Size, Tensor] = {}
    runs: dict[str, list[Repetition]] = {name: [] for name in candidates}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for method in candidates.values():
            repeat(method, scores[:1], {})  # pays for what torch sets up at a first call
        for _ in range(repeats):
            for name, method in candidates.items():
                runs[name].append(repeat(method, scores, cotangents))
    medians = {name: statistics.median(r.seconds for r in runs[name]) for name in candidates}
    return [
        Result(
            size,
            name,
            [run.seconds for run in runs[name]],
            medians[name],
            medians[name] / medians[EXACT],
            medians[name] / medians[method.exact] if method.exact else None,
            largest_error(method, runs[name][-1].a, scores, size.k, eps),
        )
        for name, method in candidates.items()
    ]


def largest_error(method: Method, a: Tensor, scores: Tensor, k: int, eps: float) -> float | None:
    if method.truth is None:
        return None
    truth = method.truth(scores, k, eps)
    return (a[: len(truth)] - truth).abs().max().item()


def print_header(threads: int) -> None:
    cpus = os.cpu_count() or 1
    print(
        f"softtopk {softtopk.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"CPUs: {cpus}, threads: {threads}"
    )
    print(f"python {shlex.join(sys.argv)}")
    # Includes nothing of this run yet, so it is the load by others.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > cpus - threads + 0.5:
        print(f"WARNING: the load is {load:.1f} before the start: expect noise, try fewer threads")


def print_table(results: list[Result], eps: float) -> None:
    rows, n, k = results[0].size
    print(f"\n{rows} rows, n = {n}, k = {k}, eps = {eps:g} of the largest cost in the batch")
    print(
        "milliseconds, forward + backward    median         min .. max   × soft   × own     error"
    )
    print("                                                                exact   exact")
    for result in results:
        spread = f"{digits(1e3 * min(result.seconds))} .. {digits(1e3 * max(result.seconds))}"
        own = "-" if result.ratio_to_exact is None else digits(result.ratio_to_exact)
        error = "-" if result.error is None else f"{result.error:.1e}"
        print(
            f"{result.method:<33}{digits(1e3 * result.median):>9}{spread:>19}"
            f"{digits(result.ratio):>9}{own:>8}{error:>10}"
        )


def digits(value: float) -> str:
    """Three significant ones, but no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def draw(path: Path, results: list[Result]) -> None:
    """Time against n, one line per method; Sinkhorn's with the ratio at the largest n."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    # Hue for the operator (Okabe and Ito's colours), dashes for Sinkhorn.
    styles = [
        ("#0072B2", "o-"),
        ("#0072B2", "o--"),
        ("#D55E00", "s-"),
        ("#D55E00", "s--"),
        ("#666666", "^-"),
        ("#000000", "v-"),
    ]
    figure = Figure(figsize=(7.0, 3.8), layout="constrained")  # README width: 700 px at 100 dpi
    axes = figure.subplots()
    names = list(dict.fromkeys(result.method for result in results))
    ends = []
    for name, (colour, style) in zip(names, styles, strict=True):
        line = [result for result in results if result.method == name]
        ns, milliseconds = [r.size.n for r in line], [1e3 * r.median for r in line]
        ratio = line[-1].ratio_to_exact
        own = "" if ratio is None else f" (×{digits(ratio)})"
        axes.plot(ns, milliseconds, style, color=colour, ms=4, lw=1.5)
        ends.append((milliseconds[-1], f"{name}{own}", colour))
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="milliseconds")
    axes.set_xticks(ns, labels=[f"{n:,}" for n in ns])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    rows, n, k = results[-1].size
    figure.suptitle(
        f"Forward + backward, {rows} rows, k = {k} (×: ratio to exact at n = {n:,})", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)
    # Labels at the right of their lines, moved up where two would touch.
    low, high = axes.get_ylim()
    height = -1.0
    for value, label, colour in sorted(ends):
        position = math.log(value / low) / math.log(high / low)
        height = max(position, height + 0.07)
        axes.text(1.02, height, label, color=colour, va="center", transform=axes.transAxes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)


def parse_size(text: str) -> Size:
    try:
        size = Size(*(int(number) for number in text.split("x")))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"need ROWSxNxK like 128x1000x10, got {text!r}") from None
    if size.rows < 1 or not 0 < size.k < size.n:
        raise argparse.ArgumentTypeError(f"need rows >= 1 and 0 < k < n, got {text!r}")
    return size


def parse_sizes(text: str) -> list[Size]:
    return [parse_size(item) for item in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time and error of the exact solver and of Sinkhorn's algorithm."
    )
    parser.add_argument("--rows", type=int, help="default 128")
    parser.add_argument("--n", type=int, help="default 1000")
    parser.add_argument("--k", type=int, help="default 10")
    # The paper's value for kNN on MNIST, of the normalised cost.
    parser.add_argument("--eps", type=float, default=1e-3, help="default 1e-3")
    parser.add_argument("--repeats", type=int, default=5, help="default 5")
    parser.add_argument("--threads", type=int, default=2, help="default 2")
    parser.add_argument("--sizes", type=parse_sizes, metavar="ROWSxNxK,...", help="several sizes")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the results there")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="draw time against n; without --sizes, 64 rows, k = 10 and n = 100, 1000, 10000",
    )
    args = parser.parse_args()
    if (args.sizes or args.plot) and (args.rows or args.n or args.k):
        parser.error("--rows, --n and --k make one size: give --sizes instead")
    if args.plot and args.sizes is None:
        args.sizes = PLOT_SIZES
    if args.plot and len({(size.rows, size.k) for size in args.sizes}) > 1:
        parser.error("--plot needs --sizes that differ in n only")
    if args.sizes is None:
        try:
            args.sizes = [parse_size(f"{args.rows or 128}x{args.n or 1000}x{args.k or 10}")]
        except argparse.ArgumentTypeError as error:
            parser.error(str(error))
    if args.repeats < 1 or args.threads < 1:
        parser.error(f"--repeats {args.repeats} --threads {args.threads}: both must be at least 1")
    return args


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    print_header(args.threads)
    results = []
    for size in args.sizes:
        table = measure(size, args.eps, args.repeats)
        print_table(table, args.eps)
        results += table
    if args.out:
        record = {
            "command": sys.argv,
            "softtopk": softtopk.__version__,
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
            "threads": args.threads,
            "eps": args.eps,
            "results": [{**asdict(r), "size": r.size._asdict()} for r in results],
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=2) + "\n")
    if args.plot:
        draw(args.plot, results)


if __name__ == "__main__":
    main()
