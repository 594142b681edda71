"""Search for nearest neighbours, by faiss or by scikit-learn."""

from __future__ import annotations

import math
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .._checks import check_choice, check_integer
from .._optional import is_installed, missing, require
from ._distances import METRICS, Metric

Index = Literal["exact", "ivf", "hnsw"]
Backend = Literal["auto", "faiss", "sklearn"]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

INDICES: tuple[Index, ...] = ("exact", "ivf", "hnsw")
BACKENDS: tuple[Backend, ...] = ("auto", "faiss", "sklearn")

_ROWS = 1024  # queries whose distances are computed at once
_PER_LIST = 39  # what k-means of faiss asks for, at least
_LINKS = 32  # of an element of the graph


class _Search(Protocol):
    """Finds at least k candidates; their order and distances are not its business."""

    def search(self, queries: Floats, k: int, n_probe: int | None) -> Ints: ...


class Neighbours:
    """The k nearest of a set of features.

    Args:
        index: ``"exact"``, or one that misses some neighbours and is many times as fast. ``"ivf"``,
            an inverted file: features are grouped into about sqrt(n) cells around the centres of a
            k-means, and only the cells nearest to a query are searched. With fewer than 78 rows
            there is one cell, and the search is exact. ``"hnsw"``: a graph of near features, in
            which a query finds its way. It takes longer to build and more memory, and is worth that
            where features form no clusters. Both give the same answer every time: the k-means has
            a fixed seed, and one thread builds the graph.
        backend: ``"faiss"``, or ``"sklearn"``, which has the exact index only. ``"auto"`` is faiss
            if it is installed. Both give the same neighbours, except where more rows are equally
            distant than there is room for among the k: which of those are found is the backend's.
        metric: As in `pairwise_distances`.
        n_probe: How much of an index that is not exact is searched for a query. More is slower and
            misses less. Of ``"ivf"`` cells, None for one in eight, at least 8; of ``"hnsw"``
            features that the way through the graph keeps in view, None for 128. It can be changed
            after `fit`.

    >>> found = Neighbours().fit(np.array([[0.0], [1.0], [3.0]]))
    >>> distances, indices = found.kneighbors(np.array([[2.5]]), 2)
    >>> distances, indices
    (array([[0.5, 1.5]], dtype=float32), array([[2, 1]]))
    """

    def __init__(
        self,
        *,
        index: Index = "exact",
        backend: Backend = "auto",
        metric: Metric = "euclidean",
        n_probe: int | None = None,
    ) -> None:
        check_choice("index", index, INDICES)
        check_choice("backend", backend, BACKENDS)
        check_choice("metric", metric, METRICS)
        _check_n_probe(n_probe, index)
        self.index, self.backend, self.metric, self._n_probe = index, backend, metric, n_probe
        self._features: Floats | None = None
        self._search: _Search | None = None

    @property
    def n_probe(self) -> int | None:
        """How many cells of the index a search looks at; None for the default."""
        return self._n_probe

    @n_probe.setter
    def n_probe(self, value: int | None) -> None:
        _check_n_probe(value, self.index)
        self._n_probe = value

    def fit(self, features: npt.ArrayLike) -> Neighbours:
        """Index ``features``, (n, d). They are kept, as float32."""
        array = _matrix("features", features)
        if len(array) == 0:
            raise ValueError("features must have at least one row, got none")
        self._features = _directions(array) if self.metric == "cosine" else array
        self._search = self._build(self._features)
        return self

    def __len__(self) -> int:
        return 0 if self._features is None else len(self._features)

    def kneighbors(self, features: npt.ArrayLike, k: int) -> tuple[Floats, Ints]:
        """Distances to the k nearest and their row numbers, (m, k) each, nearest first.

        Among those found at equal distances the smaller row number comes first. If more than k rows
        are candidates because the last of them are equally distant, any of these may be found.
        """
        if self._features is None or self._search is None:
            raise ValueError("there is nothing to search yet; call fit first")
        queries = _matrix("features", features)
        if queries.shape[1] != self._features.shape[1]:
            raise ValueError(
                f"features must have {self._features.shape[1]} columns, as in fit, "
                f"got shape {queries.shape}"
            )
        if check_integer("k", k) > len(self):
            raise ValueError(f"k must be at most {len(self)}, the number of fitted rows, got k={k}")
        if self.metric == "cosine":
            queries = _directions(queries)
        distances = np.empty((len(queries), k), dtype=np.float32)
        indices = np.empty((len(queries), k), dtype=np.int64)
        for start in range(0, len(queries), _ROWS):
            rows = slice(start, start + _ROWS)
            found = self._search.search(queries[rows], k, self.n_probe)
            distances[rows], indices[rows] = self._nearest(queries[rows], found, k)
        return distances, indices

    def _nearest(self, queries: Floats, found: Ints, k: int) -> tuple[Floats, Ints]:
        """The k nearest of the candidates with their distances, in order.

        The backends obtain distances by products of matrices, in ways that round differently,
        and differently for other numbers of queries. Here they are differences, as they should be.
        """
        assert self._features is not None
        gaps = np.empty(found.shape, dtype=np.float64)
        for column in range(found.shape[1]):  # one at a time: (m, k, d) would be large
            other = self._features[found[:, column]]
            difference = (queries - other).astype(np.float64)
            gaps[:, column] = np.einsum("md,md->m", difference, difference)
        if self.metric == "euclidean":
            gaps = np.sqrt(gaps)
        elif self.metric == "cosine":
            # |q - t|² = 2 - 2 cos for directions; a feature of zero has none, see _distances.
            gaps /= 2
            nowhere = _is_zero(queries)[:, None] | _is_zero(self._features)[found]
            gaps[nowhere] = 1
        distances = gaps.astype(np.float32)
        order = np.lexsort((found, distances), axis=1)[:, :k]
        return np.take_along_axis(distances, order, 1), np.take_along_axis(found, order, 1)

    def _build(self, features: Floats) -> _Search:
        installed = is_installed("faiss")
        if self.backend == "faiss" or (self.backend == "auto" and installed):
            return _Faiss(features, self.index, self.metric)
        if self.index != "exact":
            if not installed:
                needed = missing("faiss", f"index={self.index!r}")
                raise ImportError(f"{needed}, or use index='exact'")
            raise ValueError(f"index={self.index!r} needs backend='faiss', or use index='exact'")
        return _Sklearn(features, self.metric)

    def __getstate__(self) -> dict[str, Any]:
        # An index of faiss cannot be pickled, and is built anew just as well: perhaps by the other
        # backend, on a machine without faiss.
        return {**self.__dict__, "_search": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._features is not None:
            self._search = self._build(self._features)


class _Faiss:
    def __init__(self, features: Floats, index: Index, metric: Metric) -> None:
        self._faiss = faiss = require("faiss", "backend='faiss'")
        n, d = features.shape
        # See _distances: products of matrices lose digits far from the origin.
        self._centre = np.zeros(d, np.float32) if metric == "cosine" else features.mean(0)
        self._features = features
        self._measure = faiss.METRIC_INNER_PRODUCT if metric == "cosine" else faiss.METRIC_L2
        cells = max(1, min(round(math.sqrt(n)), n // _PER_LIST))
        if index == "hnsw":
            self._index = faiss.IndexHNSWFlat(d, _LINKS, self._measure)
        elif index == "ivf" and cells > 1:
            flat = faiss.IndexFlat(d, self._measure)
            self._index = faiss.IndexIVFFlat(flat, d, cells, self._measure)
            self._index.train(features - self._centre)
        else:
            self._index = faiss.IndexFlat(d, self._measure)
        threads = faiss.omp_get_max_threads()
        if index == "hnsw":  # which depends on the order in which several threads would build it
            faiss.omp_set_num_threads(1)
        try:
            self._index.add(features - self._centre)
        finally:
            faiss.omp_set_num_threads(threads)

    def search(self, queries: Floats, k: int, n_probe: int | None) -> Ints:
        queries = np.ascontiguousarray(queries - self._centre)
        # More than k, for those that rounding puts into the wrong order, as within a narrow class.
        k = min(2 * k + 8, self._index.ntotal)
        found: Ints = self._index.search(queries, k, params=self._parameters(k, n_probe))[1]
        short = (found < 0).any(1)
        if short.any():  # what was searched holds fewer than k
            templates = self._features - self._centre
            found[short] = self._faiss.knn(queries[short], templates, k, self._measure)[1]
        return found

    def _parameters(self, k: int, n_probe: int | None) -> Any:
        """How much is searched; None for all."""
        if isinstance(self._index, self._faiss.IndexHNSWFlat):
            return self._faiss.SearchParametersHNSW(efSearch=max(n_probe or 128, k))
        if isinstance(self._index, self._faiss.IndexIVFFlat):
            cells = self._index.nlist
            probes = min(cells, n_probe or max(8, cells // 8))
            return self._faiss.SearchParametersIVF(nprobe=probes)
        return None


class _Sklearn:
    def __init__(self, features: Floats, metric: Metric) -> None:
        require("sklearn", "backend='sklearn'")
        from sklearn.neighbors import NearestNeighbors

        measure = "cosine" if metric == "cosine" else "euclidean"
        self._index = NearestNeighbors(metric=measure).fit(features)

    def search(self, queries: Floats, k: int, n_probe: int | None) -> Ints:
        # n_probe is for indices that are not exact
        found: Ints = self._index.kneighbors(queries, k, return_distance=False)
        return found


def _check_n_probe(n_probe: int | None, index: Index) -> None:
    if n_probe is None:
        return
    if index == "exact":
        raise ValueError(f"n_probe={n_probe} has no effect on index='exact'; leave it out")
    check_integer("n_probe", n_probe)


def _matrix(name: str, features: npt.ArrayLike) -> Floats:
    array = np.ascontiguousarray(features, dtype=np.float32)
    if array.ndim != 2:
        raise ValueError(f"{name} must be of shape (rows, columns), got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinite values")
    return array


def _directions(features: Floats) -> Floats:
    norms: Floats = np.linalg.norm(features, axis=1, keepdims=True)
    norms[norms < np.finfo(np.float32).tiny] = math.inf  # as in _distances
    return features / norms


def _is_zero(features: Floats) -> npt.NDArray[np.bool_]:
    return np.asarray((features == 0).all(1))
