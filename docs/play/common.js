// What the pages have in common: the fields of k, eps and width, the theme, and buttons that copy.
// Each page has `state`, with k, by, eps and width, and `changed()`, which shows it.
"use strict";

const $ = (id) => document.getElementById(id);

// A number as a person would write it.
function short(value, digits = 3) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "undefined";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const plain = size >= 1e-3 && size < Math.max(1e5, 10 ** digits);
  const text = plain ? String(Number(value.toPrecision(digits))) : value.toExponential(digits - 1);
  return text.replace("e+", "e").replaceAll("-", "−");
}

async function copy(text, what) {
  let said = `${what} copied.`;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    said = "This browser does not allow to copy here: select the text and copy it by hand.";
  }
  $("copied").textContent = said;
}

// Show k, eps and width of the state; k is at most `most`, the width at most n.
function showFields(most, n) {
  for (const [name, limit] of [["k", most], ["width", n]]) {
    for (const id of [name, `${name}-number`]) {
      $(id).max = limit;
      if (document.activeElement !== $(id) || $(id).type === "range") $(id).value = state[name];
    }
  }
  $("eps").value = Math.log10(state.eps);
  $("eps").setAttribute("aria-valuetext", short(state.eps));
  if (document.activeElement !== $("eps-number")) $("eps-number").value = epsText();
  document.querySelector(`input[name="by"][value="${state.by}"]`).checked = true;
}

// eps as it fits into its field: that of a width has more digits than there is room for.
function epsText() {
  const value = Number(state.eps.toPrecision(state.by === "width" ? 4 : 15));
  return String(value).length > 8 ? value.toExponential() : String(value);
}

const change = (id, how) =>
  $(id).addEventListener("input", (event) => {
    how(event.target);
    changed();
  });

// Mark a field as wrong and say what is wrong with it, or with "" that all is well.
function complain(field, problem) {
  field.setAttribute("aria-invalid", String(problem !== ""));
  $(field.getAttribute("aria-describedby")).textContent = problem;
}

// What is wrong with the number in a field, or "".
function problemOfNumber(field, name) {
  const { value, min, max, step } = field;
  const whole = step === "1";
  const inside = value !== "" && Number(value) >= Number(min) && Number(value) <= Number(max);
  if (inside && (!whole || Number.isInteger(Number(value)))) return "";
  return `${name} has to be a ${whole ? "whole " : ""}number from ${min} to ${max}.`;
}

// The number field of k, eps or the width: a wrong number changes nothing, and is gone when the
// field is left.
function changeNumber(name, how) {
  const field = $(`${name}-number`);
  change(field.id, () => {
    const problem = problemOfNumber(field, name);
    complain(field, problem);
    if (problem === "") how(Number(field.value));
  });
  field.addEventListener("blur", () => {
    complain(field, "");
    changed();
  });
}

const setBy = (by, value) => {
  state.by = by;
  state[by] = value;
};
change("k", (field) => (state.k = Number(field.value)));
changeNumber("k", (value) => (state.k = value));
change("eps", (field) => setBy("eps", Number((10 ** Number(field.value)).toPrecision(3))));
changeNumber("eps", (value) => setBy("eps", value));
change("width", (field) => setBy("width", Number(field.value)));
changeNumber("width", (value) => setBy("width", value));
document.querySelectorAll('input[name="by"]').forEach((radio) =>
  radio.addEventListener("input", () => {
    // The width may have made an eps that the field, and so a link, does not take.
    const { min, max } = $("eps-number");
    const eps = Math.min(Math.max(Number(state.eps.toPrecision(4)), min), max);
    setBy(radio.value, radio.value === "eps" ? eps : state.width);
    changed();
  }),
);

// Theme: that of the system, until the button says another; in a frame of the site, that of the site.
// Calls `after` at once and at each change.
function followTheme(after = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const use = (name) => {
    document.documentElement.dataset.theme = name;
    $("theme").textContent = name === "dark" ? "Light" : "Dark";
    $("theme").setAttribute("aria-label", name === "dark" ? "Light colours" : "Dark colours");
    after();
  };
  const followSystem = () => use(dark.matches ? "dark" : "light");
  dark.addEventListener("change", followSystem);
  $("theme").addEventListener("click", () =>
    use(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  );
  followSystem();
  if (window.parent === window) return;
  window.addEventListener("message", ({ source, data }) => {
    if (source !== window.parent || !["dark", "light"].includes(data?.theme)) return;
    dark.removeEventListener("change", followSystem);
    use(data.theme);
  });
  window.parent.postMessage("theme?", "*"); // docs/assets/theme.js answers
}

// The picture stays in sight on a narrow screen, if the settings have room beside it.
const keepInSight = () => $("stage").classList.toggle("low", $("stage").clientHeight < 0.55 * innerHeight);

// Until the solver is there, nothing can be touched: it would have no answer.
function whenReady(start) {
  softtopk.load().then(
    () => {
      document.querySelector("main").inert = false;
      start();
    },
    (error) => ($("notice").textContent = `The solver could not be loaded: ${error.message}.`),
  );
}

// What the picture shows is then older than the settings: a fault of the solver, or too little memory.
window.addEventListener("error", ({ error }) => {
  if (error) $("notice").textContent = `This could not be computed: ${error.message}.`;
});

// In a frame of another page.
if (window.parent !== window) document.body.classList.add("embedded");
