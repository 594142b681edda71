// What the pages have in common: the fields of k, eps and width, the theme, and buttons that copy.
// Each page has `state`, with k, by, eps and width, and `changed()`, which shows it.
"use strict";

const $ = (id) => document.getElementById(id);

// A number as a person would write it.
function short(value, digits = 3) {
  if (!Number.isFinite(value)) return value > 0 ? "∞" : value < 0 ? "−∞" : "undefined";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
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
  // That of a width has more digits than the field has room for.
  const digits = state.by === "width" ? 4 : 15;
  if (document.activeElement !== $("eps-number")) $("eps-number").value = Number(state.eps.toPrecision(digits));
  document.querySelector(`input[name="by"][value="${state.by}"]`).checked = true;
}

const change = (id, how) =>
  $(id).addEventListener("input", (event) => {
    how(event.target);
    changed();
  });

// A number field: what is no number from its least to its most is marked, and changes nothing.
function changeNumber(id, how) {
  change(id, (field) => {
    const value = Number(field.value);
    const good = field.value !== "" && value >= Number(field.min) && value <= Number(field.max);
    field.setAttribute("aria-invalid", String(!good));
    if (good) how(value);
  });
  $(id).addEventListener("blur", () => {
    $(id).setAttribute("aria-invalid", "false");
    changed();
  });
}

const setBy = (by, value) => {
  state.by = by;
  state[by] = value;
};
change("k", (field) => (state.k = Number(field.value)));
changeNumber("k-number", (value) => (state.k = Math.round(value)));
change("eps", (field) => setBy("eps", Number((10 ** Number(field.value)).toPrecision(3))));
changeNumber("eps-number", (value) => setBy("eps", value));
change("width", (field) => setBy("width", Number(field.value)));
changeNumber("width-number", (value) => setBy("width", Math.round(value)));
document.querySelectorAll('input[name="by"]').forEach((radio) =>
  radio.addEventListener("input", () => {
    setBy(radio.value, radio.value === "eps" ? Number(state.eps.toPrecision(4)) : state.width);
    changed();
  }),
);

// Theme: that of the system, until the button says another. Calls `after` at once and at each change.
function followTheme(after = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const use = (name) => {
    document.documentElement.dataset.theme = name;
    $("theme").textContent = name === "dark" ? "Light" : "Dark";
    $("theme").setAttribute("aria-label", name === "dark" ? "Light colours" : "Dark colours");
    after();
  };
  dark.addEventListener("change", () => use(dark.matches ? "dark" : "light"));
  $("theme").addEventListener("click", () =>
    use(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  );
  use(dark.matches ? "dark" : "light");
}

// In a frame of another page.
if (window.parent !== window) document.body.classList.add("embedded");
