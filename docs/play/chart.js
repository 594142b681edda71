// The picture: three panels above each other, with a place for each element in all of them: the
// scores, A beside the hard top-k, and the transport plan.
"use strict";

const LEAST_GUTTER = 40; // pixels on the left, for the numbers; more where they are long
const TITLE = 22; // above each panel
const ARROW = 44; // the longest arrow
const FEW = 8; // thresholds that can be told apart

function makeChart(canvas) {
  const context = canvas.getContext("2d");
  let colours = {};
  let layout = {};

  // To be called when the theme changes.
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = "paper panel ink muted line soft pale hard threshold band arrow iterated";
    colours = Object.fromEntries(
      names.split(" ").map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
  }

  // Where things are, for n elements, a plan of so many columns and these ticks, in CSS pixels.
  function arrange(n, columns, ticks) {
    const width = canvas.parentElement.clientWidth;
    const small = width < 520;
    const scores = { top: TITLE, height: small ? 190 : 240 };
    const shares = { top: scores.top + scores.height + TITLE + 8, height: small ? 80 : 110 };
    const row = Math.max(5, Math.min(20, 140 / columns));
    const plan = { top: shares.top + shares.height + TITLE + 8, height: row * columns, row };
    const height = plan.top + plan.height + 4;
    setFont(12);
    const longest = Math.max(...ticks.map(([, text]) => context.measureText(text).width));
    const gutter = Math.max(LEAST_GUTTER, Math.ceil(longest) + 8);
    const slot = (width - gutter) / n;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    layout = { width, height, gutter, slot, scores, shares, plan };
  }

  // The scores at the bottom and the top of the panel. Zero is in it where it is not far away.
  function rangeOf(scores) {
    let low = Math.min(...scores);
    let high = Math.max(...scores);
    const span = high - low || Math.abs(high) || 1;
    if (low > 0 && low < 1.5 * span) low = 0;
    if (high < 0 && -high < 1.5 * span) high = 0;
    return { low: low - 0.22 * span, high: high + 0.22 * span, span };
  }

  // Round numbers in the range, and their texts, which all have the digits of the step.
  function ticksOf({ low, high }) {
    const least = (high - low) / 7;
    const unit = 10 ** Math.floor(Math.log10(least));
    const step = unit * [1, 2, 5, 10].find((times) => times * unit >= least);
    const [places, size] = [step, Math.max(-low, high)].map((x) => Math.floor(Math.log10(x)));
    const plain = size < 6 && places > -4;
    const textOf = (x) => (plain ? x.toFixed(Math.max(0, -places)) : x.toExponential(Math.max(0, size - places)));
    const ticks = [];
    for (let i = Math.ceil(low / step); i <= Math.floor(high / step); i++) {
      ticks.push([i * step, i === 0 ? "0" : textOf(i * step).replace("e+", "e").replaceAll("-", "−")]);
    }
    return ticks;
  }

  // Of a score, so that it can be told from others of the range.
  const digitsOf = ({ low, high, span }) =>
    3 + Math.max(0, Math.floor(Math.log10(Math.max(-low, high) / span)));

  const yOf = (score, range) => {
    const share = (score - range.low) / (range.high - range.low);
    return layout.scores.top + layout.scores.height * (1 - Math.min(Math.max(share, 0), 1));
  };
  const scoreAt = (y, range) => {
    const share = 1 - (y - layout.scores.top) / layout.scores.height;
    return range.low + Math.min(Math.max(share, 0.01), 0.99) * (range.high - range.low);
  };
  const xOf = (place) => layout.gutter + place * layout.slot;
  const placeAt = (x, n) => Math.min(Math.max(Math.floor((x - layout.gutter) / layout.slot), 0), n - 1);

  const setFont = (size) => (context.font = `${size}px system-ui, sans-serif`);

  function write(text, x, y, { colour = colours.muted, align = "left", size = 12 } = {}) {
    setFont(size);
    context.fillStyle = colour;
    context.textAlign = align;
    context.fillText(text, x, y);
  }

  function box(x, y, width, height, colour, alpha = 1) {
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.fillRect(x, y, width, height);
    context.globalAlpha = 1;
  }

  // A panel with its title and the numbers on its axis.
  function frame({ top, height }, title, ticks) {
    box(layout.gutter, top, layout.width - layout.gutter, height, colours.panel);
    write(title, layout.gutter, top - 7, { colour: colours.ink, size: 13 });
    ticks.forEach(([y, text]) => write(text, layout.gutter - 6, y + 4, { align: "right" }));
  }

  function line(y, colour, width, dash = []) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(layout.gutter, y);
    context.lineTo(layout.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  // From (x, y) up by so many pixels, or down.
  function arrow(x, y, up, width) {
    if (Math.abs(up) < 2) return;
    const head = Math.min(Math.abs(up), 5) * Math.sign(up);
    const half = Math.min(4.5, Math.max(1.5, width / 3));
    const shaft = Math.min(1.25, Math.max(0.5, width / 8));
    const neck = y - up + head;
    context.beginPath();
    context.moveTo(x - shaft, y);
    context.lineTo(x - shaft, neck);
    context.lineTo(x - half, neck);
    context.lineTo(x, y - up);
    context.lineTo(x + half, neck);
    context.lineTo(x + shaft, neck);
    context.lineTo(x + shaft, y);
    context.closePath();
    // The rim sets it off from a bar of any blue.
    if (width > 9) {
      context.strokeStyle = colours.paper;
      context.lineWidth = 2;
      context.stroke();
    }
    context.fillStyle = colours.arrow;
    context.fill();
  }

  function diamond(x, y, size) {
    context.fillStyle = colours.arrow;
    context.strokeStyle = colours.paper;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, y - size);
    context.lineTo(x + size, y);
    context.lineTo(x, y + size);
    context.lineTo(x - size, y);
    context.closePath();
    context.fill();
    context.stroke();
  }

  // view: { problem, result, hard, iterated (or null), targets, order, range, focus (or -1) }
  function draw(view) {
    const { problem, result, order, range } = view;
    const ticks = ticksOf(range);
    arrange(order.length, result.columns, ticks);
    context.clearRect(0, 0, layout.width, layout.height);
    drawScores(view, ticks);
    drawShares(view);
    drawPlan(view);
    if (view.focus >= 0) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      const width = Math.max(layout.slot, 2);
      context.strokeRect(xOf(view.focus), TITLE, width, layout.scores.height);
      const i = order[view.focus];
      const score = short(problem.scores[i], digitsOf(range));
      const value = `element ${i}: score ${score}, A = ${short(result.a[i])}`;
      write(value, layout.width, 15, { align: "right", colour: colours.ink, size: 13 });
    }
  }

  function drawScores({ problem, result, hard, targets, order, range, focus }, ticks) {
    const panel = layout.scores;
    const named = ticks.map(([score, text]) => [yOf(score, range), text]);
    // On a narrow screen the chosen score takes the place of the title.
    frame(panel, focus >= 0 && layout.width < 520 ? "" : "scores, the bluer the more selected", named);
    named.forEach(([y]) => line(y, colours.line, 0.5));
    context.save();
    context.beginPath();
    context.rect(layout.gutter, panel.top, layout.width - layout.gutter, panel.height);
    context.clip();
    const thresholds = result.thresholds.filter(Number.isFinite);
    if (!problem.sorted) {
      // Within log(19) tau of the threshold: 0.05 < A < 0.95.
      const reach = (Math.log(19) * problem.eps) / 2;
      thresholds.forEach((t) => {
        const top = yOf(t + reach, range);
        box(layout.gutter, top, layout.width, yOf(t - reach, range) - top, colours.band);
      });
    }
    const base = yOf(range.low < 0 && range.high > 0 ? 0 : range.low > 0 ? range.low : range.high, range);
    const inset = layout.slot > 6 ? Math.min(0.15 * layout.slot, 6) : 0;
    const width = Math.max(layout.slot - 2 * inset, 0.7);
    order.forEach((i, place) => {
      const y = yOf(problem.scores[i], range);
      const [top, height] = [Math.min(y, base), Math.max(Math.abs(y - base), 2)];
      const x = xOf(place) + inset;
      box(x, top, width, height, colours.pale, problem.mask[i] ? 1 : 0.35);
      box(x, top, width, height, colours.soft, result.a[i]);
      if (hard[i] && layout.slot > 5) {
        context.strokeStyle = colours.hard;
        context.lineWidth = 1.5;
        context.strokeRect(x, top, width, height);
      }
    });
    drawThresholds(thresholds, range);
    order.forEach((i, place) => {
      const y = yOf(problem.scores[i], range);
      const x = xOf(place) + layout.slot / 2;
      // The length has a meaning that does not depend on the picture: how much of A a step of the
      // range of the scores would bring. Else a vanishing gradient would look like any other.
      const pull = Math.tanh((result.gradient[i] * range.span) / 2);
      if (targets.size) arrow(x, y, ARROW * pull, layout.slot);
      if (targets.has(i)) diamond(x, y, Math.min(6, Math.max(3, layout.slot / 3)));
      if (!problem.mask[i] && layout.slot > 9) {
        write("out", x, panel.top + panel.height - 6, { align: "center", size: 11 });
      }
    });
    context.restore();
  }

  // A line for each; of those that are outside, where.
  function drawThresholds(thresholds, range) {
    const panel = layout.scores;
    const inside = thresholds.filter((t) => t >= range.low && t <= range.high);
    const few = inside.length <= FEW;
    context.globalAlpha = few ? 1 : 0.3;
    inside.forEach((t) => line(yOf(t, range), colours.threshold, few ? 1.5 : 0.5, few ? [6, 4] : []));
    context.globalAlpha = 1;
    const tell = (outside, sign, y) => {
      if (outside.length === 0) return;
      const more = outside.length > 1 ? ", …" : "";
      write(`threshold ${short(outside[0])}${more} ${sign}`, layout.width - 8, y, { align: "right", colour: colours.threshold });
    };
    tell(thresholds.filter((t) => t > range.high), "↑", panel.top + 16);
    tell(thresholds.filter((t) => t < range.low), "↓", panel.top + panel.height - 22);
  }

  function drawShares({ problem, result, hard, iterated, order }) {
    const panel = layout.shares;
    const y = (share) => panel.top + panel.height * (1 - share);
    frame(panel, "A, beside the hard top-k", [[y(1), "1"], [y(0.5), "0.5"], [y(0), "0"]]);
    const wide = layout.slot > 8;
    const inset = layout.slot > 6 ? Math.min(0.12 * layout.slot, 5) : 0;
    const width = Math.max(layout.slot - 2 * inset, 0.7);
    order.forEach((i, place) => {
      const x = xOf(place) + inset;
      const half = wide ? width / 2 : width;
      box(x + width - half, y(result.a[i]), half, panel.height * result.a[i], colours.soft);
      if (hard[i] && wide) {
        context.strokeStyle = colours.hard;
        context.lineWidth = 1.5;
        context.strokeRect(x + 1, panel.top + 1, half - 2, panel.height - 2);
      } else if (hard[i]) {
        box(x, panel.top, width, 2, colours.hard);
      }
    });
    if (!iterated) return;
    order.forEach((i, place) => {
      // Where there is little room, only what differs to the eye.
      if (!wide && Math.abs(iterated[i] - result.a[i]) < 0.02) return;
      if (!problem.mask[i]) return;
      const half = wide ? width / 2 : Math.max(width, 1.5);
      const x = xOf(place) + (wide ? inset + half - 1 : 0);
      box(x, y(Math.min(iterated[i], 1.02)) - 1.5, half + (wide ? 2 : 0), 3, colours.iterated);
    });
  }

  function drawPlan({ problem, result, order }) {
    const panel = layout.plan;
    const { columns, plan } = result;
    const last = columns - 1;
    const names = Array.from({ length: columns }, (_, j) =>
      j === last ? "rest" : problem.sorted ? String(j + 1) : "top",
    );
    const every = Math.ceil(12 / panel.row);
    const ticks = names.flatMap((name, j) =>
      j === last || (j % every === 0 && j + every <= last) ? [[panel.top + (j + 0.5) * panel.row, name]] : [],
    );
    const title = problem.sorted ? "transport plan, a row for each rank" : "transport plan";
    frame(panel, title, ticks);
    order.forEach((i, place) => {
      for (let j = 0; j < columns; j++) {
        const share = plan[i * columns + j];
        if (share < 0.004) continue;
        const y = panel.top + j * panel.row;
        box(xOf(place), y, Math.max(layout.slot - (layout.slot > 4 ? 1 : 0), 0.7), panel.row - 1, colours.soft, Math.min(share, 1));
      }
    });
  }

  readColours();
  return { draw, readColours, rangeOf, digitsOf, scoreAt, placeAt, layout: () => layout };
}
