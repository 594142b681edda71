// The page: events change the state, and each frame shows it.
"use strict";

const chart = makeChart($("canvas"));

let state = presetState("right");
let view = null;
let focus = 0; // the chosen bar, as a place in the picture
let drag = null; // { i, y, range, moved }
let typedFrom = null; // what the scores were typed into, while they are
let undoable = false; // whether the back button is to lead to the state before
let scheduled = 0;
let later = 0;

// What takes long, and is text: done when nothing has changed for a moment.
const PAUSE = 120;
// Iterations on more entries of the plan than this wait for the pause too, and are done bit by bit,
// each for so many milliseconds.
const QUICK = 300;
const BIT = 8;

function problemOf() {
  const { scores, mask, k, largest, sorted } = state;
  const problem = { scores, mask, k, largest, sorted, eps: state.eps };
  if (state.by === "width") problem.eps = softtopk.epsFor(problem, state.width);
  return problem;
}

// Show the state in the next frame.
function changed() {
  settle(state);
  if (!scheduled) scheduled = requestAnimationFrame(show);
}

function show() {
  scheduled = 0;
  const problem = problemOf();
  if (state.by === "width") state.eps = problem.eps;
  const result = softtopk.solve(problem, [...state.targets].filter((i) => state.mask[i]));
  const order = Array.from(state.scores.keys());
  if (state.ordered) order.sort((i, j) => state.scores[j] - state.scores[i] || i - j);
  const quick = problem.scores.length * result.columns <= QUICK;
  focus = Math.min(focus, order.length - 1);
  view = {
    problem,
    result,
    order,
    hard: softtopk.hardTopk(problem),
    iterated: quick ? softtopk.sinkhorn(problem) : null,
    targets: state.targets,
    range: drag ? drag.range : chart.rangeOf(state.scores),
    focus: document.activeElement === $("bars") || drag ? focus : -1,
  };
  chart.draw(view);
  showControls();
  showNumbers();
  clearTimeout(later);
  later = setTimeout(finish, PAUSE, quick ? null : softtopk.sinkhornSteps(problem));
}

// What waits for the pause: the texts, and then the iterations, if there are `steps` to do.
function finish(steps) {
  showTexts();
  if (steps) iterate(steps);
}

function iterate(steps) {
  const end = performance.now() + BIT;
  let step;
  do step = steps.next();
  while (!step.done && performance.now() < end);
  if (!step.done) {
    later = setTimeout(iterate, 0, steps);
    return;
  }
  view.iterated = step.value;
  chart.draw(view);
  showNumbers();
  if ($("table").open) showTable();
}

function showControls() {
  showFields(mostPlaces(state), state.scores.length);
  $("sorted").checked = state.sorted;
  $("ordered").checked = state.ordered;
  document.querySelector(`input[name="largest"][value="${state.largest ? 1 : 0}"]`).checked = true;
  const { gutter, scores } = chart.layout();
  $("bars").style.left = `${gutter}px`;
  $("bars").style.height = `${scores.top + scores.height}px`;
  keepInSight();
  document.querySelector(".when-unsorted").hidden = state.sorted;
  const told = presetOf(state);
  document.querySelectorAll("[data-preset]").forEach((button) => {
    button.setAttribute("aria-pressed", String(button.dataset.preset === told));
  });
  const story = told ? PRESETS[told].story : diagnosis();
  if ($("story").textContent !== story) $("story").textContent = story;

  const i = view.order[focus];
  const bars = $("bars");
  bars.setAttribute("aria-label", `Score of element ${i}`);
  bars.setAttribute("aria-valuemin", view.range.low);
  bars.setAttribute("aria-valuemax", view.range.high);
  bars.setAttribute("aria-valuenow", state.scores[i]);
  const marks = (state.targets.has(i) ? ", marked" : "") + (state.mask[i] ? "" : ", taken out");
  bars.setAttribute("aria-valuetext", `${state.scores[i]}, A ${short(view.result.a[i])}${marks}`);
}

// The preset that the state is, if it is one.
function presetOf(shown) {
  const link = toLink(shown);
  return Object.keys(PRESETS).find((name) => toLink(presetState(name)) === link);
}

// What the temperature does to scores that are not those of a preset.
function diagnosis() {
  if (!view.result.converged) return "The solver did not converge here, and the numbers are not exact. Please report these scores.";
  const { undecided, misplaced, places, taking } = sharpness();
  if (taking === 0) return "No element takes part: put one back in.";
  if (places === 0) return "No element is selected: raise k.";
  if (places === taking) return "All elements that take part are selected: there is nothing to decide.";
  if (undecided === 0) return "Nothing is undecided, so there is next to no gradient: raise the width or eps.";
  if (misplaced > places / 2) return "Most places are misplaced: lower the width or eps, unless all is still to be learned.";
  return "The undecided elements get the gradient.";
}

function sharpness() {
  const { problem, result, hard } = view;
  const taking = state.mask.filter(Boolean).length;
  const places = Math.min(state.k, taking);
  let kept = 0;
  hard.forEach((taken, i) => (kept += taken * result.a[i]));
  const misplaced = Math.max(places - kept, 0);
  return { undecided: softtopk.undecided(problem, result), misplaced, places, taking };
}

function showNumbers() {
  const { result, iterated, range } = view;
  const { undecided, misplaced, places, taking } = sharpness();
  $("undecided").textContent = `${short(undecided)} of ${taking}`;
  $("misplaced").textContent = `${short(misplaced, 2)} of ${places}`;
  // Where all or none are selected there is none, or it is infinite.
  const thresholds = result.thresholds.filter(Number.isFinite);
  const first = thresholds.slice(0, 3).map((t) => short(t, chart.digitsOf(range) + 1));
  $("threshold").textContent = (first.join(", ") || "none") + (thresholds.length > 3 ? ", …" : "");
  const steepest = result.gradient.reduce((most, g) => Math.max(most, Math.abs(g)), 0);
  $("steepest").textContent = state.targets.size ? short(steepest) : "no element is marked";
  if (iterated) {
    const error = iterated.reduce((most, a, i) => Math.max(most, Math.abs(a - result.a[i])), 0);
    $("paper").textContent = error < 1e-9 ? "less than 1e-9" : short(error, 2);
  } else {
    $("paper").textContent = "…";
  }
}

function showTexts() {
  $("code").textContent = toPython(state);
  if (!typedFrom) $("scores").value = state.scores.join(", ");
  if ($("table").open) showTable();
  if (toLink(state) !== location.hash) saveLink(undoable ? "pushState" : "replaceState");
  undoable = false;
}

// From the file system, or often in a short time, some browsers refuse to change the address.
function saveLink(how) {
  try {
    history[how](null, "", toLink(state));
  } catch {
    // The button still copies the link.
  }
}

// To be called before the scores are replaced: the back button brings them back.
function remember() {
  saveLink("replaceState");
  undoable = true;
}

function columnsOfTable() {
  const { problem, result, hard, iterated } = view;
  return {
    element: Array.from(hard.keys()),
    score: problem.scores,
    hard,
    A: result.a,
    "200 iterations": iterated,
    gradient: result.gradient,
  };
}

function showTable() {
  const columns = Object.entries(columnsOfTable());
  const text = (name, values, i) => {
    if (!values) return "…";
    return name === "score" ? String(values[i]).replaceAll("-", "−") : short(values[i], 4);
  };
  const row = (tag, cells) => `<tr>${cells.map((cell) => `<${tag}>${cell}</${tag}>`).join("")}</tr>`;
  $("table").querySelector("thead").innerHTML = row("th", columns.map(([name]) => name));
  $("table").querySelector("tbody").innerHTML = state.scores
    .map((_, i) => row("td", columns.map(([name, values]) => text(name, values, i))))
    .join("");
}

// Bars: pointer.

const pointOf = (event) => {
  const { left, top } = $("canvas").getBoundingClientRect();
  return { x: event.clientX - left, y: event.clientY - top };
};

// Three digits of the range are as fine as a hand can be.
function rounded(score, range) {
  const step = 10 ** Math.floor(Math.log10(range.span / 100));
  return Number((Math.round(score / step) * step).toPrecision(15));
}

// By hand: that ends typing, and the bar may move to another place.
function setScore(i, score, range) {
  endTyping();
  state.scores[i] = Math.min(Math.max(rounded(score, range), -LARGEST_SCORE), LARGEST_SCORE);
  if (state.ordered) focus = orderedPlace(i);
}

$("bars").addEventListener("pointerdown", (event) => {
  // Not for a second finger.
  if (event.button !== 0 || !event.isPrimary) return;
  const { x, y } = pointOf(event);
  focus = chart.placeAt(x, state.scores.length);
  drag = { i: view.order[focus], y, range: view.range, moved: false };
  $("bars").setPointerCapture(event.pointerId);
  changed();
});

$("bars").addEventListener("pointermove", (event) => {
  if (!drag || !event.isPrimary) return;
  const { y } = pointOf(event);
  // A click is not quite still.
  if (!drag.moved && Math.abs(y - drag.y) < 4) return;
  drag.moved = true;
  setScore(drag.i, chart.scoreAt(y, drag.range), drag.range);
  changed();
});

const orderedPlace = (i) => {
  const ahead = state.scores.filter((x, j) => x > state.scores[i] || (x === state.scores[i] && j < i));
  return ahead.length;
};

function drop(event) {
  if (!drag || !event.isPrimary) return;
  if (event.type === "pointerup" && !drag.moved) toggle(drag.i, document.querySelector('input[name="click"]:checked').value);
  drag = null;
  changed();
}
$("bars").addEventListener("pointerup", drop);
$("bars").addEventListener("pointercancel", drop);

function toggle(i, what) {
  if (what === "mask") state.mask[i] = !state.mask[i];
  else if (!state.targets.delete(i)) state.targets.add(i);
}

// Bars: keyboard.

$("bars").addEventListener("keydown", (event) => {
  const n = state.scores.length;
  const i = view.order[focus];
  const range = view.range;
  const step = 10 ** Math.floor(Math.log10(range.span / 10));
  const raise = (by) => setScore(i, state.scores[i] + by, range);
  const keys = {
    ArrowLeft: () => (focus = (focus + n - 1) % n),
    ArrowRight: () => (focus = (focus + 1) % n),
    Home: () => (focus = 0),
    End: () => (focus = n - 1),
    ArrowUp: () => raise(event.shiftKey ? 10 * step : step),
    ArrowDown: () => raise(event.shiftKey ? -10 * step : -step),
    PageUp: () => raise(10 * step),
    PageDown: () => raise(-10 * step),
    t: () => toggle(i, "target"),
    m: () => toggle(i, "mask"),
  };
  const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  action();
  changed();
});
$("bars").addEventListener("focus", changed);
$("bars").addEventListener("blur", changed);

// Controls.

change("sorted", (field) => (state.sorted = field.checked));
change("ordered", (field) => (state.ordered = field.checked));
document.querySelectorAll('input[name="largest"]').forEach((radio) =>
  radio.addEventListener("input", () => {
    state.largest = radio.value === "1";
    changed();
  }),
);
$("scores").addEventListener("input", () => {
  if (!typedFrom) {
    remember();
    typedFrom = { ...state };
  }
  try {
    const scores = parseScores($("scores").value);
    // While they are typed anew there are few for a moment: what had to be less for those comes back.
    const { k, width, mask, targets } = typedFrom;
    Object.assign(state, { scores, k, width, mask, targets });
    complain($("scores"), "");
    changed();
  } catch (error) {
    complain($("scores"), `${error.message}.`);
  }
});
// What is wrong stays to be mended, and what was changed in the meantime stays changed.
$("scores").addEventListener("focus", () => {
  if (typedFrom) typedFrom = { ...state };
});
$("scores").addEventListener("blur", () => {
  if ($("scores").getAttribute("aria-invalid") === "false") endTyping();
});

// A bar that is being dragged may not be there any more.
function openState(next) {
  state = next;
  drag = null;
  endTyping();
  changed();
}

// The field shows the scores of the state again.
function endTyping() {
  typedFrom = null;
  complain($("scores"), "");
}

$("random").addEventListener("click", () => {
  const problem = problemOfNumber($("count"), "The number of scores");
  complain($("count"), problem);
  if (problem) return;
  remember();
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const scores = Array.from({ length: Number($("count").value) }, () => Number(normal().toFixed(3)));
  openState({ ...state, scores, mask: scores.map(() => true) });
});

document.querySelectorAll("[data-preset]").forEach((button) =>
  button.addEventListener("click", () => {
    remember();
    $("notice").textContent = "";
    openState(presetState(button.dataset.preset));
  }),
);

$("copy-code").addEventListener("click", () => copy(toPython(state), "The code is"));
$("copy-link").addEventListener("click", () =>
  copy(location.href.split("#")[0] + toLink(state), "The link is"),
);
$("copy-table").addEventListener("click", () => {
  view.iterated ??= softtopk.sinkhorn(view.problem);
  const columns = Object.entries(columnsOfTable());
  const lines = state.scores.map((_, i) => columns.map(([, values]) => values[i]).join(","));
  copy([columns.map(([name]) => name).join(","), ...lines].join("\n") + "\n", "The table is");
});
$("table").addEventListener("toggle", () => $("table").open && showTable());

function openLink() {
  const { state: linked, problem } = fromLink(location.hash);
  $("notice").textContent = problem;
  openState(linked);
}
window.addEventListener("hashchange", openLink);
new ResizeObserver(() => view && changed()).observe($("stage"));
followTheme(() => {
  chart.readColours();
  if (view) changed();
});
whenReady(openLink);
