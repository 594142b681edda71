// The operators for one row of doubles: the kernels of the package, compiled to WebAssembly
// (core.js), and beside them what the package has in Python: eps_for, and Sinkhorn's algorithm.
"use strict";

const softtopk = (() => {
  // An element is decided if its A is this near to 0 or 1, as in eps_for.
  const DECIDED = 0.05;
  const ITERATIONS = 200; // of the paper
  let core;

  // To be called, and waited for, before the others.
  async function load() {
    const bytes = Uint8Array.from(atob(SOFTTOPK_CORE.module), (c) => c.charCodeAt(0));
    core = (await WebAssembly.instantiate(bytes)).instance.exports;
  }

  // Call body(write, space) and free the memory of all arrays afterwards. `write` copies numbers
  // to the core and returns their address, `space` makes room for so many numbers and returns the
  // address and a function that reads them.
  function withMemory(body) {
    const addresses = [];
    const allocate = (size) => {
      const address = core.allocate(size);
      if (address === 0) throw new Error("there is not enough memory for so many scores");
      addresses.push(address);
      return address;
    };
    const write = (numbers, Type = Float64Array) => {
      const address = allocate(numbers.length * Type.BYTES_PER_ELEMENT);
      new Type(core.memory.buffer, address, numbers.length).set(numbers);
      return address;
    };
    const space = (count) => {
      const address = allocate(8 * count);
      return [address, () => new Float64Array(core.memory.buffer, address, count).slice()];
    };
    try {
      return body(write, space);
    } finally {
      addresses.forEach((address) => core.release(address));
    }
  }

  // The statuses of kernels.hpp. Scores are finite here, so that the one for infinite ones is a fault.
  const check = (status) => {
    if (status === 1) throw new Error("there is not enough memory for so many scores");
    if (status !== 0) throw new Error(`the solver returned the status ${status}`);
  };

  // problem: { scores, mask (true takes part), k, eps, largest, sorted }
  // targets: indices; the gradient is that of the sum of their A.
  //
  // Returns a (n); plan (n x columns), which is the paper's plan times n, with a column for what is
  // selected (or for each rank) and a last one for the rest; the thresholds (one, or k), where
  // neighbouring columns have equal shares; the gradient (n) in the scores; and converged, whether
  // the thresholds are as exact as they can be.
  function solve(problem, targets = []) {
    // No places have no ranks.
    const ranked = problem.sorted && problem.k > 0;
    return ranked ? solveSorted(problem, targets) : solveUnsorted(problem, targets);
  }

  function solveUnsorted({ scores, mask, k, eps, largest }, targets) {
    const n = scores.length;
    const tau = eps / 2;
    return withMemory((write, space) => {
      const x = write(scores);
      const taking = write(mask, Uint8Array);
      const [aAt, a] = space(n);
      const [rootAt, root] = space(2);
      const [outAt, out] = space(n);
      check(core.indicator(n, x, taking, largest, k, tau, aAt, rootAt));
      const cotangent = new Float64Array(n);
      targets.forEach((i) => (cotangent[i] = 1));
      // A of the smallest falls with their scores.
      check(core.indicator_gradient(n, largest ? tau : -tau, aAt, write(cotangent), outAt));
      const [pivot, offset] = root();
      const selected = a();
      const plan = new Float64Array(2 * n);
      selected.forEach((share, i) => {
        plan[2 * i] = share;
        plan[2 * i + 1] = mask[i] ? 1 - share : 0;
      });
      const threshold = (pivot + offset * tau) * (largest ? 1 : -1);
      const thresholds = [threshold];
      return { a: selected, plan, columns: 2, thresholds, gradient: out(), converged: true };
    });
  }

  function solveSorted({ scores, mask, k, eps, largest }, targets) {
    const n = scores.length;
    const tau = eps / 2;
    return withMemory((write, space) => {
      const x = write(scores);
      const taking = write(mask, Uint8Array);
      const [ranksAt, ranks] = space(n * k);
      const [pivotAt, pivot] = space(k + 1);
      const [offsetAt, offset] = space(k);
      const [outAt, out] = space(n);
      const endedAt = write([0], Uint8Array);
      check(core.ranking(n, x, taking, largest, k, tau, ranksAt, pivotAt, offsetAt, endedAt));
      const converged = new Uint8Array(core.memory.buffer, endedAt, 1)[0] === 1;
      const cotangent = new Float64Array(n * k);
      targets.forEach((i) => cotangent.fill(1, i * k, (i + 1) * k));
      const grad = write(cotangent);
      check(core.ranking_gradient(n, x, taking, largest, k, tau, pivotAt, offsetAt, grad, outAt));
      const shares = ranks();
      const columns = k + 1;
      const plan = new Float64Array(n * columns);
      const a = new Float64Array(n);
      for (let i = 0; i < n; i++) {
        for (let j = 0; j < k; j++) a[i] += plan[i * columns + j] = shares[i * k + j];
        plan[i * columns + k] = mask[i] ? Math.max(0, 1 - a[i]) : 0;
      }
      const pivots = pivot();
      const sign = largest ? 1 : -1;
      const thresholds = Array.from(offset(), (o, j) => (pivots[j] + o * tau) * sign);
      return { a, plan, columns, thresholds, gradient: out(), converged };
    });
  }

  // The scores as the solvers see them: the largest are wanted, -Infinity takes no part.
  const canonical = ({ scores, mask, largest }) =>
    Float64Array.from(scores, (x, i) => (mask[i] ? (largest ? x : -x) : -Infinity));

  // Which elements the hard top-k takes: of equal ones the first.
  function hardTopk(problem) {
    const x = canonical(problem);
    const order = Array.from(x.keys()).filter((i) => problem.mask[i]);
    order.sort((i, j) => x[j] - x[i] || i - j);
    const hard = new Float64Array(x.length);
    order.slice(0, problem.k).forEach((i) => (hard[i] = 1));
    return hard;
  }

  const isUndecided = (share) => share > DECIDED && share < 1 - DECIDED;

  // How many elements have 0.05 < A < 0.95. Of ranks: the mean over the k thresholds of those with
  // 0.05 < P(rank <= j) < 0.95.
  function undecided({ k, sorted }, { a, plan, columns }) {
    if (!sorted) return a.filter(isUndecided).length;
    let count = 0;
    for (let i = 0; i < a.length; i++) {
      let upTo = 0;
      for (let j = 0; j < k; j++) count += isUndecided((upTo += plan[i * columns + j]));
    }
    return count / Math.max(k, 1);
  }

  // The eps at which `width` elements are undecided: the search of eps_for in
  // functional/_temperature.py, where the reasons are.
  function epsFor(problem, width) {
    const COARSE = 13;
    const BISECTIONS = 8;
    const x = canonical(problem)
      .filter((value) => value > -Infinity)
      .map((value) => 0.25 * value)
      .sort()
      .reverse();
    const span = x.length ? x[0] - x[x.length - 1] : 0;
    if (!(span > 0)) return 1;
    const pivot = problem.k <= x.length ? x[Math.max(problem.k, 1) - 1] : -Infinity;
    let gap = span;
    const consider = (distance) => {
      if (distance > 0) gap = Math.min(gap, distance);
    };
    x.forEach((value) => consider(Math.abs(value - pivot)));
    if (problem.sorted) {
      for (let j = 1; j < Math.min(problem.k, x.length); j++) consider(x[j - 1] - x[j]);
    }
    const count = (exponent) => {
      const warmed = { ...problem, eps: 2 ** exponent };
      return undecided(warmed, solve(warmed));
    };
    const low = Math.log2(gap);
    const step = (Math.log2(span) + 4 - low) / (COARSE - 1);
    let right = low;
    let most = -1;
    for (let i = 0; i < COARSE && most < width; i++) {
      const found = count(low + i * step);
      if (found > most) [right, most] = [low + i * step, found];
    }
    let left = Math.max(right - step, low);
    const goal = Math.min(most, width);
    for (let i = 0; i < BISECTIONS; i++) {
      const middle = 0.5 * (left + right);
      if (count(middle) >= goal) right = middle;
      else left = middle;
    }
    return 2 ** right;
  }

  // A (n) after 200 iterations, as many as the paper's, of Sinkhorn's algorithm in the log domain, as in
  // functional/_sinkhorn.py with tol=0. Stops after each iteration, so that a page can do
  // something else in between.
  function* sinkhornSteps(problem) {
    const { k, eps, largest, mask, sorted } = problem;
    const all = canonical(problem);
    const x = all.filter((value) => value > -Infinity);
    const m = x.length;
    const last = sorted ? k : 1;
    const columns = last + 1;
    const places = (edge) => Math.min(edge, m);
    const sizes = Array.from({ length: columns }, (_, j) =>
      sorted && j < k ? places(j + 1) - places(j) : m - places(k),
    );
    if (!sorted) sizes[0] = places(k);
    const used = sizes.flatMap((size, j) => (size > 0 ? [j] : []));
    const score = used.map((j) => {
      const anchor = largest ? last - j : -j;
      return x.map((value) => (-anchor * (anchor - 2 * value)) / eps);
    });
    const logNu = used.map((j) => Math.log(sizes[j] / m));
    const logMu = -Math.log(m);
    const logQ = new Float64Array(used.length);
    const logP = new Float64Array(m);
    for (let step = 0; step < ITERATIONS; step++) {
      yield;
      for (let i = 0; i < m; i++) {
        let top = -Infinity;
        for (let j = 0; j < used.length; j++) top = Math.max(top, score[j][i] + logQ[j]);
        let sum = 0;
        for (let j = 0; j < used.length; j++) sum += Math.exp(score[j][i] + logQ[j] - top);
        logP[i] = logMu - top - Math.log(sum);
      }
      for (let j = 0; j < used.length; j++) {
        let top = -Infinity;
        for (let i = 0; i < m; i++) top = Math.max(top, score[j][i] + logP[i]);
        let sum = 0;
        for (let i = 0; i < m; i++) sum += Math.exp(score[j][i] + logP[i] - top);
        logQ[j] = logNu[j] - top - Math.log(sum);
      }
    }
    const a = new Float64Array(all.length);
    let i = 0;
    mask.forEach((takes, place) => {
      if (!takes) return;
      used.forEach((j, c) => {
        if (j < last) a[place] += m * Math.exp(score[c][i] + logP[i] + logQ[c]);
      });
      i++;
    });
    return a;
  }

  // The same in one go.
  function sinkhorn(problem) {
    const steps = sinkhornSteps(problem);
    for (;;) {
      const { done, value } = steps.next();
      if (done) return value;
    }
  }

  return { load, solve, hardTopk, undecided, epsFor, sinkhorn, sinkhornSteps };
})();
