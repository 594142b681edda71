// The picture: three panels above each other, with a place for each element in all of them: the
// scores, A beside the hard top-k, and the transport plan.
"use strict";

const GUTTER = 48; // pixels on the left, for the numbers; style.css has the same
const TITLE = 22; // above each panel
const ARROW = 44; // the longest arrow

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

  // Where things are, for n elements and a plan of so many columns, in CSS pixels.
  function arrange(n, columns) {
    const width = canvas.parentElement.clientWidth;
    const small = width < 520;
    const scores = { top: TITLE, height: small ? 190 : 240 };
    const shares = { top: scores.top + scores.height + TITLE + 8, height: small ? 80 : 110 };
    const row = Math.max(5, Math.min(20, 140 / columns));
    const plan = { top: shares.top + shares.height + TITLE + 8, height: row * columns, row };
    const height = plan.top + plan.height + 4;
    const slot = (width - GUTTER) / n;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    layout = { width, height, slot, scores, shares, plan };
    return layout;
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

  const yOf = (score, range) => {
    const share = (score - range.low) / (range.high - range.low);
    return layout.scores.top + layout.scores.height * (1 - Math.min(Math.max(share, 0), 1));
  };
  const scoreAt = (y, range) => {
    const share = 1 - (y - layout.scores.top) / layout.scores.height;
    return range.low + Math.min(Math.max(share, 0.01), 0.99) * (range.high - range.low);
  };
  const xOf = (place) => GUTTER + place * layout.slot;
  const placeAt = (x, n) => Math.min(Math.max(Math.floor((x - GUTTER) / layout.slot), 0), n - 1);

  function write(text, x, y, { colour = colours.muted, align = "left", size = 12 } = {}) {
    context.font = `${size}px system-ui, sans-serif`;
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

  // A panel with its title and two numbers on its axis.
  function frame({ top, height }, title, ticks) {
    box(GUTTER, top, layout.width - GUTTER, height, colours.panel);
    write(title, GUTTER, top - 7, { colour: colours.ink, size: 13 });
    ticks.forEach(([y, text]) => write(text, GUTTER - 6, y + 4, { align: "right" }));
  }

  function line(y, colour, dash = []) {
    context.strokeStyle = colour;
    context.lineWidth = 1.5;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(GUTTER, y);
    context.lineTo(layout.width, y);
    context.stroke();
    context.setLineDash([]);
  }

  // From (x, y) up by so many pixels, or down.
  function arrow(x, y, up, width) {
    if (Math.abs(up) < 1.5) return;
    const head = Math.min(Math.abs(up), 5) * Math.sign(up);
    context.strokeStyle = context.fillStyle = colours.arrow;
    context.lineWidth = Math.min(2.5, Math.max(1, width / 4));
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x, y - up + head);
    context.stroke();
    const half = Math.min(4.5, Math.max(1.5, width / 3));
    context.beginPath();
    context.moveTo(x - half, y - up + head);
    context.lineTo(x + half, y - up + head);
    context.lineTo(x, y - up);
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
    const { problem, result, order } = view;
    arrange(order.length, result.columns);
    context.clearRect(0, 0, layout.width, layout.height);
    drawScores(view);
    drawShares(view);
    drawPlan(view);
    if (view.focus >= 0) {
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      const width = Math.max(layout.slot, 2);
      context.strokeRect(xOf(view.focus), TITLE, width, layout.scores.height);
      const i = order[view.focus];
      const value = `element ${i}: score ${short(problem.scores[i])}, A = ${short(result.a[i])}`;
      write(value, layout.width, 15, { align: "right", colour: colours.ink, size: 13 });
    }
  }

  function drawScores({ problem, result, hard, targets, order, range, focus }) {
    const panel = layout.scores;
    const ticks = [range.low + 0.1 * (range.high - range.low), range.high - 0.1 * (range.high - range.low)];
    const named = ticks.map((score) => [yOf(score, range), short(score, 2)]);
    frame(panel, focus >= 0 && layout.width < 520 ? "scores" : "scores, the bluer the more selected", named);
    context.save();
    context.beginPath();
    context.rect(GUTTER, panel.top, layout.width - GUTTER, panel.height);
    context.clip();
    const thresholds = result.thresholds.filter(Number.isFinite);
    if (!problem.sorted) {
      // Within log(19) tau of the threshold: 0.05 < A < 0.95.
      const reach = (Math.log(19) * problem.eps) / 2;
      thresholds.forEach((t) => {
        const top = yOf(t + reach, range);
        box(GUTTER, top, layout.width, yOf(t - reach, range) - top, colours.band);
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
    thresholds.forEach((t) => line(yOf(t, range), colours.threshold, [6, 4]));
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

  function drawShares({ result, hard, iterated, order }) {
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
      const x = xOf(place) + (wide ? layout.slot / 2 - 2 : 0);
      box(x, y(Math.min(iterated[i], 1.02)) - 1.5, wide ? layout.slot / 2 : Math.max(layout.slot, 1.5), 3, colours.iterated);
    });
  }

  function drawPlan({ problem, result, order }) {
    const panel = layout.plan;
    const { columns, plan } = result;
    const names = Array.from({ length: columns }, (_, j) =>
      j === columns - 1 ? "rest" : problem.sorted ? String(j + 1) : "top",
    );
    const every = Math.ceil(12 / panel.row);
    const ticks = names.flatMap((name, j) =>
      j % every === 0 || j === columns - 1 ? [[panel.top + (j + 0.5) * panel.row, name]] : [],
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
  return { draw, readColours, rangeOf, scoreAt, placeAt, panels: () => layout };
}
