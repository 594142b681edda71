// What the page shows: its state, as text in a link, and as a call in Python.
"use strict";

const MOST_SCORES = 5000;
// Sorted selections cost memory and time in proportion to n k, and more than this many rows of a
// plan cannot be told apart.
const MOST_RANKS = 64;
const LARGEST_SCORE = 1e9;

const STORY_SCORES = [2.1, 0.3, 1.2, -0.6, 1.9, 0.8, -1.4, 1.5, 0.1, 1.0, -0.2, 0.5];
const PRESETS = {
  cold: {
    eps: 0.005,
    story: "The selection is right, but nothing is undecided: the marked score gets no gradient, and no training could bring it in.",
  },
  right: {
    eps: 0.5,
    story: "The elements near the threshold share the places. The arrows say how to bring the marked score in: raise it, lower its rivals.",
  },
  hot: {
    eps: 20,
    story: "All elements look alike: A is about k / n for each, and more than half of the places are misplaced.",
  },
};

function presetState(name) {
  return {
    scores: [...STORY_SCORES],
    mask: STORY_SCORES.map(() => true),
    targets: new Set([9]), // the first one that is not among the k largest
    k: 4,
    by: "eps",
    eps: PRESETS[name].eps,
    width: 4,
    largest: true,
    sorted: false,
    ordered: false,
  };
}

// The numbers of a text, or an error that says which word is none.
function parseScores(text) {
  const words = text.split(/[\s,;[\]()]+/).filter((word) => word !== "");
  const scores = words.map((word) => {
    const value = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(word) ? Number(word) : NaN;
    if (!(Math.abs(value) <= LARGEST_SCORE)) {
      throw new Error(`“${word.slice(0, 20)}” is not a number from -1e9 to 1e9`);
    }
    return value;
  });
  if (scores.length < 2) throw new Error("give two numbers or more, such as 0.4 1.7 2.3");
  if (scores.length > MOST_SCORES) {
    throw new Error(`${scores.length} numbers are too many: this page takes up to ${MOST_SCORES}`);
  }
  return scores;
}

// Bring what depends on the scores back into its limits.
function settle(state) {
  const n = state.scores.length;
  if (state.mask.length !== n) state.mask = state.scores.map(() => true);
  state.targets = new Set([...state.targets].filter((i) => i < n));
  const clamp = (value, most) => Math.min(Math.max(Math.round(value) || 1, 1), most);
  state.k = clamp(state.k, state.sorted ? Math.min(n, MOST_RANKS) : n);
  state.width = clamp(state.width, n);
  return state;
}

// The state as a part of a link, and back. What a link does not say, or says wrongly, is as in the
// first preset that the page shows.
function toLink(state) {
  const places = (chosen) => state.scores.flatMap((_, i) => (chosen(i) ? [i] : [])).join(",");
  const parts = {
    x: state.scores.join(","),
    k: state.k,
    [state.by]: state[state.by],
    largest: state.largest ? "" : "0",
    sorted: state.sorted ? "1" : "",
    ordered: state.ordered ? "1" : "",
    out: places((i) => !state.mask[i]),
    targets: places((i) => state.targets.has(i)),
  };
  const said = Object.entries(parts).filter(([, value]) => value !== "");
  return "#" + said.map(([name, value]) => `${name}=${value}`).join("&");
}

function fromLink(link) {
  const said = new URLSearchParams(link.replace(/^#/, "").replaceAll("+", "%2B"));
  const state = presetState("right");
  if (!said.has("x")) return { state, problem: "" };
  try {
    state.scores = parseScores(said.get("x"));
    const n = state.scores.length;
    const places = (name) => (said.get(name) ?? "").split(",").filter(Boolean).map(Number);
    const out = new Set(places("out"));
    state.mask = state.scores.map((_, i) => !out.has(i));
    state.targets = new Set(places("targets").filter((i) => Number.isInteger(i) && i >= 0));
    state.by = said.has("width") ? "width" : "eps";
    state.largest = said.get("largest") !== "0";
    state.sorted = said.get("sorted") === "1";
    state.ordered = said.get("ordered") === "1";
    state.k = numberOf(said, "k", 1, n, state.k);
    state.eps = numberOf(said, "eps", 1e-9, 1e9, state.eps);
    state.width = numberOf(said, "width", 1, n, state.width);
    return { state: settle(state), problem: "" };
  } catch (error) {
    return { state: presetState("right"), problem: `The link was not understood: ${error.message}.` };
  }
}

function numberOf(said, name, least, most, otherwise) {
  if (!said.has(name)) return otherwise;
  const value = Number(said.get(name));
  if (!(value >= least && value <= most)) {
    throw new Error(`${name} is “${said.get(name)}”, and has to be from ${least} to ${most}`);
  }
  return value;
}

// The call that gives what is on the screen.
function toPython(state) {
  const operator = state.sorted ? "sorted_soft_topk" : "soft_topk";
  const out = state.mask.flatMap((takes, i) => (takes ? [] : [i]));
  const targets = [...state.targets].sort((a, b) => a - b);
  const options = (state.largest ? "" : ", largest=False") + (out.length ? ", mask=mask" : "");
  const byWidth = state.by === "width";
  const lines = [
    "import torch",
    `from softtopk import ${byWidth ? "eps_for, " : ""}${operator}`,
    "",
    `scores = torch.tensor([${state.scores.join(", ")}], dtype=torch.float64)`,
  ];
  if (targets.length) lines.push("scores.requires_grad_()");
  if (out.length) {
    lines.push("mask = torch.ones_like(scores, dtype=torch.bool)", `mask[[${out.join(", ")}]] = False`);
  }
  if (byWidth) {
    const ranks = state.sorted ? ", sorted=True" : "";
    lines.push(`eps = eps_for(scores, ${state.k}, width=${state.width}${options}${ranks})`);
  }
  const eps = byWidth ? "eps" : state.eps;
  lines.push(`A = ${operator}(scores, ${state.k}, eps=${eps}${options})`);
  if (targets.length) {
    lines.push(`A[[${targets.join(", ")}]].sum().backward()  # the arrows are scores.grad`);
  }
  return lines.join("\n") + "\n";
}
