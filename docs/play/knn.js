// The page of the soft neighbours: a query among points of three classes. Events change the state,
// and each frame shows it.
"use strict";

// The hundredths of x are odd, and those of the query even: the query is never on a point, where
// Python's distance, made from a matrix product, has fewer digits than elsewhere.
const POINTS = [
  [-1.65, 1.25], [-2.15, 1.16], [-0.77, 1.21], [-0.13, 0.24], [-1.63, 0.37], [-2.47, 0.76],
  [-0.83, -0.3], [-2.21, 1.88], [-1.91, -0.56], [-1.37, 0.68], [-2.87, 0.21], [-0.59, 0.37],
  [3.25, 0.02], [0.77, 0.96], [0.95, 0.54], [2.27, 1.54], [1.93, 0.79], [3.15, 1.3],
  [1.57, 1.91], [2.47, 0.99], [1.23, 1.26], [0.79, 1.98], [1.95, -0.03], [1.89, 1.67],
  [0.59, -0.55], [1.61, -0.99], [2.09, -2.44], [0.93, -1.23], [1.79, -1.57], [-1.23, -2.25],
  [-0.07, -0.83], [-0.39, -1.16], [-1.77, 0], [0.05, -1.21], [0.31, -2], [-0.15, -1.68],
];
const EACH = 12; // points of a class, which follow each other
const GRID = 50; // places of the query in a unit
const HALF = [4, 2.8]; // the plane, from its middle

// Colours of style.css. The shapes, as paths around 0, have about the same area.
const CLASSES = [
  { name: "circles", colour: "var(--soft)", path: "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0 -12 0z" },
  { name: "diamonds", colour: "var(--threshold)", path: "M0 -8L8 0L0 8L-8 0z" },
  { name: "triangles", colour: "var(--arrow)", path: "M0 -8L8 6L-8 6z" },
];
const classOf = (i) => Math.floor(i / EACH);

const state = { query: [0.3, 0.3], k: 5, by: "width", eps: 1, width: 10 };
let view = null;
let scheduled = 0;

// Show the state in the next frame.
function changed() {
  if (!scheduled) scheduled = requestAnimationFrame(show);
}

function show() {
  scheduled = 0;
  const distances = POINTS.map(([x, y]) => Math.hypot(x - state.query[0], y - state.query[1]));
  const { k, eps } = state;
  const problem = { scores: distances, mask: POINTS.map(() => true), k, eps, largest: false, sorted: false };
  if (state.by === "width") problem.eps = state.eps = softtopk.epsFor(problem, state.width);
  const result = softtopk.solve(problem);
  const hard = softtopk.hardTopk(problem);
  view = { a: result.a, hard, shares: sharesOf(result.a, k), undecided: softtopk.undecided(problem, result) };
  showFields(POINTS.length, POINTS.length);
  drawPlane();
  keepInSight();
  showNumbers();
  $("code").textContent = toPython();
}

// The votes of each class, of k in all.
function sharesOf(votes, k) {
  const shares = CLASSES.map(() => 0);
  votes.forEach((vote, i) => (shares[classOf(i)] += vote / k));
  return shares;
}

const shape = ({ colour, path }, more) =>
  `<path d="${path}" fill="${colour}" stroke="var(--paper)" stroke-width="1" ${more}/>`;

function drawPlane() {
  const width = $("stage").clientWidth;
  const scale = width / (2 * HALF[0]);
  const height = 2 * HALF[1] * scale;
  const at = ([x, y]) => [(x + HALF[0]) * scale, (HALF[1] - y) * scale].map((place) => place.toFixed(1));
  const [x, y] = at(state.query);
  const places = POINTS.map(at);
  const size = width < 520 ? 0.75 : 1;
  const lines = places.map(([px, py], i) => {
    const { colour } = CLASSES[classOf(i)];
    const vote = view.a[i];
    if (vote < 0.002) return "";
    return `<line x1="${x}" y1="${y}" x2="${px}" y2="${py}" stroke="${colour}"
      stroke-width="${(0.5 + 5.5 * vote * size).toFixed(2)}" stroke-opacity="${(0.25 + 0.6 * vote).toFixed(3)}"/>`;
  });
  const marks = places.map(([px, py], i) => shape(CLASSES[classOf(i)], `transform="translate(${px} ${py}) scale(${size})"`));
  const rings = places.map(([px, py], i) =>
    view.hard[i] ? `<circle cx="${px}" cy="${py}" r="${12 * size}" fill="none" stroke="var(--hard)" stroke-width="2"/>` : "",
  );
  const svg = $("plane");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.innerHTML = [...lines, ...marks, ...rings].join("");
  $("query").style.left = `${x}px`;
  $("query").style.top = `${y}px`;
}

function showNumbers() {
  const votes = sharesOf(view.hard, 1);
  $("shares").innerHTML = CLASSES.map((each, c) => {
    const share = view.shares[c];
    return `<div><dt><svg viewBox="-9 -9 18 18" aria-hidden="true">${shape(each, "")}</svg>${each.name}</dt>
      <dd class="bar"><i style="width: ${100 * share}%; background: ${each.colour}"></i></dd>
      <dd>${share.toFixed(3)} <small>hard ${votes[c]} of ${state.k}</small></dd></div>`;
  }).join("");
  $("undecided").textContent = `${view.undecided} of ${POINTS.length}`;
  const kept = view.a.reduce((sum, vote, i) => sum + vote * view.hard[i], 0);
  $("misplaced").textContent = `${short(Math.max(state.k - kept, 0), 2)} of ${state.k}`;
  const [x, y] = state.query;
  const said = CLASSES.map((each, c) => `${each.name} ${view.shares[c].toFixed(2)}`).join(", ");
  $("query").setAttribute("aria-valuenow", x);
  $("query").setAttribute("aria-valuetext", `x ${x}, y ${y}: ${said}`);
}

// The call that gives what is on the screen.
function toPython() {
  const rows = [];
  for (let i = 0; i < POINTS.length; i += 6) {
    rows.push("    " + POINTS.slice(i, i + 6).map(([x, y]) => `[${x}, ${y}],`).join(" "));
  }
  const labels = CLASSES.map((_, c) => `[${c}] * ${EACH}`).join(" + ");
  // The digits, not the search: of two distances that differ by rounding alone it could make another.
  const source = state.by === "width" ? `  # eps_for(-distances, ${state.k}, width=${state.width})` : "";
  return [
    "import torch",
    "from softtopk import soft_topk",
    "from softtopk.knn import pairwise_distances, soft_vote",
    "",
    "points = torch.tensor([",
    ...rows,
    "], dtype=torch.float64)",
    `labels = torch.tensor(${labels})  # ${CLASSES.map(({ name }) => name).join(", ")}`,
    `query = torch.tensor([[${state.query.join(", ")}]], dtype=torch.float64)`,
    `eps = ${state.eps}${source}`,
    `shares = soft_vote(query, points, labels, ${state.k}, eps=eps)`,
    "",
    "# The vote of each point, which is the width of its line:",
    "distances = pairwise_distances(query, points)",
    `A = soft_topk(-distances, ${state.k}, eps=eps)`,
    "",
  ].join("\n");
}

// Query: pointer and keyboard.

function moveTo(place) {
  state.query = place.map((value, axis) => {
    const inside = Math.min(Math.max(value, -HALF[axis]), HALF[axis]);
    return Math.round(inside * GRID) / GRID;
  });
  changed();
}

function moveToPointer(event) {
  const { left, top, width, height } = $("plane").getBoundingClientRect();
  const across = (event.clientX - left) / width;
  const down = (event.clientY - top) / height;
  moveTo([(2 * across - 1) * HALF[0], (1 - 2 * down) * HALF[1]]);
}

$("plane").addEventListener("click", moveToPointer);
$("query").addEventListener("pointerdown", (event) => {
  if (event.button === 0 && event.isPrimary) $("query").setPointerCapture(event.pointerId);
});
$("query").addEventListener("pointermove", (event) => {
  if ($("query").hasPointerCapture(event.pointerId)) moveToPointer(event);
});

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
$("query").addEventListener("keydown", (event) => {
  const step = STEPS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const far = event.shiftKey ? 0.5 : 0.1;
  moveTo(state.query.map((value, axis) => value + far * step[axis]));
});

$("copy-code").addEventListener("click", () => copy(toPython(), "The code is"));
new ResizeObserver(() => view && changed()).observe($("stage"));
followTheme();
whenReady(changed);
