// What the page shows: its state, as text in a link, and as a call in Python.
"use strict";

const MOST_SCORES = 5000;
// Sorted selections cost memory and time in proportion to n k, and more than this many rows of a
// plan cannot be told apart.
const MOST_RANKS = 64;
const LARGEST_SCORE = 1e9;
// Of smaller ones, differences and what is divided by them leave the range of numbers.
const SMALLEST_SCORE = 1e-100;

const STORY_SCORES = [2.1, 0.3, 1.2, -0.6, 1.9, 0.8, -1.4, 1.5, 0.1, 1.0, -0.2, 0.5];
const PRESETS = {
  cold: {
    eps: 0.005,
    story: "The selection is right, but nothing is undecided: the marked score gets no gradient, and cannot come in.",
  },
  right: {
    eps: 0.5,
    story: "Those near the threshold share the places. The arrows bring the marked score in: raise it, lower its rivals.",
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

// A word of somebody else's text, in a message.
const quoted = (word) => `“${word.length > 20 ? `${word.slice(0, 20)}…` : word}”`;

// The numbers of a text, or an error that says which word is none.
function parseScores(text) {
  // A minus sign, such as that of the labels of this page, is one too.
  const words = text.replaceAll("−", "-").split(/[\s,;[\]()]+/).filter((word) => word !== "");
  const scores = words.map((word) => {
    const value = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(word) ? Number(word) : NaN;
    if (!(Math.abs(value) <= LARGEST_SCORE)) {
      throw new Error(`${quoted(word)} is not a number from -1e9 to 1e9`);
    }
    if (value !== 0 && Math.abs(value) < SMALLEST_SCORE) {
      throw new Error(`${quoted(word)} is nearer to 0 than 1e-100: write 0`);
    }
    return value;
  });
  if (scores.length === 0) throw new Error("give some numbers, such as 0.4 1.7 2.3");
  if (scores.length > MOST_SCORES) {
    throw new Error(`${scores.length} numbers are too many: this page takes up to ${MOST_SCORES}`);
  }
  return scores;
}

// Bring what depends on the scores back into its limits.
function settle(state) {
  const n = state.scores.length;
  state.mask = state.scores.map((_, i) => state.mask[i] ?? true);
  state.targets = new Set([...state.targets].filter((i) => i < n));
  state.k = Math.min(Math.round(state.k), mostPlaces(state));
  state.width = Math.min(Math.round(state.width), n);
  return state;
}

// The largest k.
const mostPlaces = ({ scores, sorted }) => (sorted ? Math.min(scores.length, MOST_RANKS) : scores.length);

// The state as a part of a link, and back. A link may name a preset instead. Without scores or a preset
// it leads to the preset that the page opens with; so does one that is wrong, and the problem is said.
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
  try {
    if (said.has("preset")) return { state: presetState(presetNamed(said.get("preset"))), problem: "" };
    if (!said.has("x")) return { state, problem: "" };
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
    state.k = numberOf(said, "k", 0, n, Math.min(state.k, n));
    state.eps = numberOf(said, "eps", 1e-9, 1e9, state.eps);
    state.width = numberOf(said, "width", 1, n, Math.min(state.width, n));
    return { state: settle(state), problem: "" };
  } catch (error) {
    return { state: presetState("right"), problem: `The link was not understood: ${error.message}.` };
  }
}

function presetNamed(name) {
  if (!Object.hasOwn(PRESETS, name)) {
    throw new Error(`there is no preset ${quoted(name)}, but ${Object.keys(PRESETS).join(", ")}`);
  }
  return name;
}

function numberOf(said, name, least, most, otherwise) {
  if (!said.has(name)) return otherwise;
  const text = said.get(name).trim();
  const value = text === "" ? NaN : Number(text);
  if (!(value >= least && value <= most)) {
    throw new Error(`${name} is ${quoted(text)}, and has to be from ${least} to ${most}`);
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
