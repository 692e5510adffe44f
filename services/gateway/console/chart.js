// Curves over steps, drawn as SVG: axes, a line and a mark a point, a value under the pointer or the arrow keys.

import { el, show, svg, table, text } from "./dom.js";
import { clock, number, title, whole } from "./format.js";
import { linear, logarithmic, steps } from "./scale.js";

export const MEASURES = {
  loss: "Loss per position",
  loss_sum: "Loss, summed",
  grad_norm: "Gradient norm",
  learning_rate: "Learning rate",
};
export const MOST_RUNS = 4;

const SPACE = { left: 62, right: 14, top: 12, bottom: 40 };

export class Chart {
  /** `runs`: details of each, as the gateway answers them. */
  constructor(place, readout, tablePlace) {
    this.place = place;
    this.readout = readout;
    this.tablePlace = tablePlace;
    this.runs = [];
    this.measure = "loss";
    this.log = false;
    this.cursor = null;
    place.addEventListener("keydown", (event) => this.walk(event));
    place.addEventListener("pointermove", (event) => this.point(event));
    place.addEventListener("pointerleave", () => this.leave());
    place.addEventListener("blur", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(place);
  }

  show(runs) {
    this.runs = runs;
    this.draw();
  }

  choose(measure, log) {
    this.measure = measure;
    this.log = log;
    this.cursor = null;
    this.draw();
  }

  /** Points that can be drawn, of each run. */
  curves() {
    const drawable = (point) => {
      const value = point[this.measure];
      return value !== null && Number.isFinite(value) && (!this.log || value > 0);
    };
    return this.runs.map((run) => ({ run: run.run, stride: run.stride, points: run.points.filter(drawable) }));
  }

  draw() {
    const curves = this.curves();
    const all = curves.flatMap((curve) => curve.points);
    this.list(curves);
    if (!all.length) return this.empty();
    const size = this.size();
    const values = all.map((point) => point[this.measure]);
    const x = steps(all.map((point) => point.step), SPACE.left, size.width - SPACE.right, Math.max(3, size.width / 110));
    const bottom = size.height - SPACE.bottom;
    const y = this.log ? logarithmic(values, bottom, SPACE.top) : linear(values, bottom, SPACE.top, 5);
    this.drawn = { curves, x, y, size };
    this.place.replaceChildren(svg("svg", {
      viewBox: `0 0 ${size.width} ${size.height}`, width: size.width, height: size.height, role: "img",
      "aria-labelledby": "svg-title svg-text",
    },
    svg("title", { id: "svg-title" }, `${MEASURES[this.measure]} over steps`),
    svg("desc", { id: "svg-text" }, this.describe(curves)),
    this.axes(x, y, size),
    ...curves.map((curve, index) => this.line(curve, index, x, y)),
    svg("g", { class: "cursor", "aria-hidden": "true" })));
    this.mark();
  }

  size() {
    const width = Math.max(280, Math.floor(this.place.clientWidth));
    return { width, height: width < 520 ? 230 : 290 };
  }

  empty() {
    this.drawn = null;
    const why = this.runs.length === 0 ? "Choose a run to see its curve."
      : this.runs.some((run) => run.points.length) ? "No step has told this value."
        : "No optimizer step yet. The curve begins with the first one.";
    text(this.readout, "");
    show(this.place, el("p", { class: "empty" }, why));
  }

  axes(x, y, size) {
    const bottom = size.height - SPACE.bottom;
    const right = size.width - SPACE.right;
    const across = y.ticks.flatMap((tick) => [
      svg("line", { x1: SPACE.left, x2: right, y1: y.place(tick), y2: y.place(tick), class: "grid" }),
      svg("text", { x: SPACE.left - 8, y: y.place(tick) + 4, class: "tick", "text-anchor": "end" }, number(tick)),
    ]);
    const along = x.ticks.flatMap((tick) => [
      svg("line", { x1: x.place(tick), x2: x.place(tick), y1: bottom, y2: bottom + 5, class: "axis" }),
      svg("text", { x: x.place(tick), y: bottom + 19, class: "tick", "text-anchor": "middle" }, whole(tick)),
    ]);
    return svg("g", { class: "axes", "aria-hidden": "true" }, ...across,
      svg("line", { x1: SPACE.left, x2: right, y1: bottom, y2: bottom, class: "axis" }), ...along,
      svg("text", { x: (SPACE.left + right) / 2, y: size.height - 4, class: "tick", "text-anchor": "middle" }, "step"));
  }

  line(curve, index, x, y) {
    const places = curve.points.map((point) => [x.place(point.step), y.place(point[this.measure])]);
    const path = places.map(([across, up], n) => `${n ? "L" : "M"}${across.toFixed(2)} ${up.toFixed(2)}`).join("");
    const radius = curve.points.length <= 80 ? 3 : 1.5;
    return svg("g", { class: `curve curve-${index}`, "data-run": curve.run.run_id },
      svg("path", { d: path }),
      ...curve.points.map((point, n) => svg("circle", {
        cx: places[n][0].toFixed(2), cy: places[n][1].toFixed(2), r: radius,
        "data-step": point.step, "data-value": point[this.measure],
      })));
  }

  describe(curves) {
    return curves.filter((curve) => curve.points.length).map((curve) => {
      const [first, last] = [curve.points[0], curve.points.at(-1)];
      return `${title(curve.run)}: from ${number(first[this.measure])} at step ${first.step}`
        + ` to ${number(last[this.measure])} at step ${last.step}.`;
    }).join(" ");
  }

  walk(event) {
    if (!this.drawn) return;
    const known = [...new Set(this.drawn.curves.flatMap((curve) => curve.points.map((point) => point.step)))];
    known.sort((left, right) => left - right);
    const at = this.cursor === null ? -1 : known.indexOf(this.cursor);
    const next = { ArrowRight: at + 1, ArrowLeft: at < 0 ? known.length - 1 : at - 1, Home: 0, End: known.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.cursor = known[Math.min(known.length - 1, Math.max(0, next))];
    this.mark();
  }

  point(event) {
    if (!this.drawn) return;
    const across = event.clientX - this.place.getBoundingClientRect().left;
    const all = this.drawn.curves.flatMap((curve) => curve.points);
    const far = (point) => Math.abs(this.drawn.x.place(point.step) - across);
    this.cursor = all.reduce((best, point) => (far(point) < far(best) ? point : best)).step;
    this.mark();
  }

  leave() {
    this.cursor = null;
    this.mark();
  }

  mark() {
    if (!this.drawn) return;
    const group = this.place.querySelector(".cursor");
    const { curves, x, y, size } = this.drawn;
    const at = this.cursor;
    const found = curves.map((curve, index) => [curve, index, curve.points.find((point) => point.step === at)])
      .filter(([, , point]) => point);
    if (at === null || !found.length) {
      group.replaceChildren();
      return void text(this.readout, this.summary(curves));
    }
    group.replaceChildren(
      svg("line", { x1: x.place(at), x2: x.place(at), y1: SPACE.top, y2: size.height - SPACE.bottom }),
      ...found.map(([, index, point]) => svg("circle", {
        cx: x.place(at), cy: y.place(point[this.measure]), r: 5, class: `curve-${index}`,
      })));
    const values = found.map(([curve, , point]) => (curves.length > 1 ? `${title(curve.run)} ` : "") + number(point[this.measure]));
    text(this.readout, `Step ${whole(at)}: ${values.join(", ")}`);
  }

  summary(curves) {
    const last = curves.filter((curve) => curve.points.length).map((curve) =>
      (curves.length > 1 ? `${title(curve.run)} ` : "") + number(curve.points.at(-1)[this.measure]));
    const thinned = Math.max(...curves.map((curve) => curve.stride));
    return `Newest: ${last.join(", ")}` + (thinned > 1 ? ` · one of ${thinned} steps is drawn` : "");
  }

  list(curves) {
    const rows = curves.flatMap((curve) => curve.points.map((point) => ({ run: curve.run, point })));
    const columns = [
      ...(curves.length > 1 ? [{ title: "run", cell: (row) => title(row.run) }] : []),
      { title: "step", cell: (row) => whole(row.point.step) },
      { title: MEASURES[this.measure].toLowerCase(), cell: (row) => number(row.point[this.measure]) },
      { title: "positions", cell: (row) => whole(row.point.positions) },
      { title: "time", cell: (row) => clock(row.point.time) },
    ];
    show(this.tablePlace, rows.length ? table(`${MEASURES[this.measure]} by step`, columns, rows) : "Nothing to list.");
  }
}
