"""How fast is the search for neighbours among a million features, and what does it miss?

    python benchmarks/neighbours.py                                   # half an hour
    python benchmarks/neighbours.py --draw docs/results/neighbours.json

Each index of `softtopk.knn.Neighbours` in a process of its own, with one thread: the time of `fit`,
the memory that it takes beside the features, and for several `n_probe` the queries per second and
the recall, the share of the k nearest that are found. Writes OUT.json, a table OUT.md and, with
--picture, a picture. --draw makes table and picture of a record again. Results of other --classes
in OUT.json are kept.

The features are synthetic: 100 classes around random centres, spread along 16 directions with a
little noise along all 64, as a trained network leaves them; and the same without classes. Queries
come from the same distribution.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIRECTIONS, NOISE = 16, 0.2
REPEATS = 3  # of a search, the fastest of which counts
# From where much is missed to where nearly nothing is. None is the default.
SWEEPS: dict[str, tuple[int | None, ...]] = {
    "exact": (None,),
    "ivf": (1, 2, 4, 8, 16, 32, 64, None),
    "hnsw": (32, 64, None, 256, 512),
}


def features(n: int, d: int, classes: int, seed: int) -> np.ndarray:
    shared = np.random.default_rng(0)
    centres = shared.normal(size=(classes, d)).astype(np.float32)
    directions = shared.normal(size=(DIRECTIONS, d)).astype(np.float32) / 4
    own = np.random.default_rng(seed)
    x = centres[own.integers(classes, size=n)]
    x += own.standard_normal((n, DIRECTIONS), dtype=np.float32) @ directions
    x += NOISE * own.standard_normal((n, d), dtype=np.float32)
    return x


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def measure(
    index: str, classes: int, options: argparse.Namespace, truth: np.ndarray | None
) -> dict[str, Any]:
    """The measurements of one index; those of the exact one have the neighbours too."""
    import faiss
    from threadpoolctl import threadpool_limits

    from softtopk.knn import Neighbours

    faiss.omp_set_num_threads(1)
    threadpool_limits(1)
    x = features(options.rows, options.features, classes, seed=1)
    queries = features(options.queries, options.features, classes, seed=2)
    before, start = resident(), time.perf_counter()
    neighbours = Neighbours(index=index, backend="faiss").fit(x)
    result: dict[str, Any] = {
        "classes": classes,
        "index": index,
        "fit_seconds": time.perf_counter() - start,
        "memory_bytes": resident() - before,
        "searches": [],
    }
    for neighbours.n_probe in SWEEPS[index]:
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            found = neighbours.kneighbors(queries, options.k)[1]
            times.append(time.perf_counter() - start)
        if truth is None:
            truth = result["neighbours"] = found
        hits = [len({*a} & {*b}) for a, b in zip(truth.tolist(), found.tolist(), strict=True)]
        search = {
            "n_probe": neighbours.n_probe,
            "queries_per_second": options.queries / min(times),
            "recall": float(np.mean(hits)) / options.k,
        }
        result["searches"].append(search)
        print(classes, index, search, flush=True)
    return result


def table(record: dict[str, Any]) -> str:
    lines = [
        "| classes | index | `fit` | memory | `n_probe` | queries/s | recall |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for result in record["results"]:
        cells = [str(result["classes"]), result["index"], f"{result['fit_seconds']:.0f} s"]
        cells.append(f"{result['memory_bytes'] / 2**20:,.0f} MiB")
        for search in result["searches"]:
            cells.append("default" if search["n_probe"] is None else str(search["n_probe"]))
            cells += [f"{search['queries_per_second']:,.0f}", f"{search['recall']:.4f}"]
            lines.append("| " + " | ".join(cells) + " |")
            cells = [""] * 4
    about = (
        f"{record['rows']:,} rows of {record['features']} features, the {record['k']} nearest of "
        f"{record['queries']:,} queries, one thread of {record['processor']}, faiss "
        f"{record['faiss']}. Made by `python benchmarks/neighbours.py`."
    )
    return "\n".join([*lines, "", about, ""])


def draw(record: dict[str, Any], path: Path) -> None:
    from softtopk.plotting import style

    kinds = sorted({result["classes"] for result in record["results"]}, reverse=True)
    with style.standard_look():
        figure = style.new_figure(columns=len(kinds))
        for classes, axes in zip(kinds, figure.axes, strict=True):
            if axes is not figure.axes[0]:
                axes.sharey(figure.axes[0])
            results = [result for result in record["results"] if result["classes"] == classes]
            draw_results(results, 0.1 / (record["k"] * record["queries"]), axes)
            axes.set_title("without classes" if classes == 1 else f"{classes} classes")
            axes.set_xlabel(f"share of the {record['k']} nearest that is missed")
        figure.axes[0].set_ylabel("queries per second, one thread")
        style.legend_beside(figure.axes[-1])
        figure.savefig(path, dpi=style.DPI)


def draw_results(results: list[dict[str, Any]], none: float, axes: Axes) -> None:
    """``none`` is the place of nothing on a log axis. The default of an index is circled."""
    from softtopk.plotting import style

    looks = dict(zip(SWEEPS, zip(style.COLOURS, style.MARKERS, strict=False), strict=False))
    for result in results:
        colour, marker = looks[result["index"]]
        searches = sorted(result["searches"], key=lambda search: -search["queries_per_second"])
        x = [max(none, 1 - search["recall"]) for search in searches]
        y = [search["queries_per_second"] for search in searches]
        axes.plot(x, y, color=colour, marker=marker, label=result["index"])
        chosen = [search["n_probe"] for search in searches].index(None)
        if result["index"] != "exact":
            axes.plot(x[chosen], y[chosen], marker="o", ms=13, mfc="none", mec=colour)
    ticks = [share for share in (1e-4, 1e-3, 1e-2, 0.1) if share > 5 * none]
    axes.set_xscale("log")
    axes.set_xticks([none, *ticks], ["none", *(f"{100 * share:g} %" for share in ticks)])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlim(1, none / 2)
    style.plain_numbers(axes.yaxis)


def run(options: argparse.Namespace) -> dict[str, Any]:
    import faiss

    from softtopk.experiments.runs import cpu_name

    record: dict[str, Any] = {
        **{name: getattr(options, name) for name in ("rows", "features", "k", "queries")},
        "processor": cpu_name(),
        "faiss": faiss.__version__,
        "results": [],
    }
    if options.out.exists():
        others = json.loads(options.out.read_text())["results"]
        record["results"] += [each for each in others if each["classes"] not in options.classes]
    for classes in options.classes:
        truth = None
        for index in SWEEPS:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                result = process.apply(measure, (index, classes, options, truth))
            truth = result.pop("neighbours", truth)
            record["results"].append(result)
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1])
    parser.add_argument("--out", type=Path, default=Path("docs/results/neighbours.json"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/neighbours.png"))
    parser.add_argument("--draw", type=Path, help="a record, instead of measuring")
    options = parser.parse_args()
    if options.draw is None:
        record = run(options)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    else:
        record = json.loads(options.draw.read_text())
    options.out.with_suffix(".md").write_text(table(record))
    draw(record, options.picture)
    print(table(record))


if __name__ == "__main__":
    main()
