// Draws the charts of a page from their numbers, with a read-out and a zoom, and sorts its tables.
// It asks nobody for anything and stores nothing.
"use strict";
(() => {
  const COLOURS = 8, DASHES = 3, WIDE = 330, SMALL = 215, STACK = 44;
  const LETTER = 6.4, EDGE = { left: 50, right: 12, top: 22, bottom: 40 };

  const make = (parent, name, attributes = {}, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  };
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}B`;
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
    return size && size < 1e-3 ? value.toExponential(1).replace(".0e", "e") : String(+value.toPrecision(4));
  };
  const exact = (value) => (Math.abs(value) >= 1e-3 || !value ? (+value.toPrecision(4)).toLocaleString("en") : value.toExponential(2));
  const ticks = (low, high, most, whole) => {
    const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough && (!whole || each >= 1 && each % 1 === 0)) ?? 1;
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at += 1) found.push(+(at * step).toPrecision(12));
    return found;
  };
  const look = (series) => (series.role ? `c-${series.role}` : `c-${series.place % COLOURS} d-${series.place % DASHES}`);
  const known = (values) => values.filter((value) => value !== null && value !== undefined);

  class Drawn {
    constructor(figure) {
      this.chart = JSON.parse(figure.dataset.chart);
      this.holder = figure.querySelector(".plot");
      this.told = figure.querySelector("output");
      this.all = this.xEnds();
      this.window = this.all;
      new ResizeObserver(() => this.draw()).observe(this.holder);
      this.holder.addEventListener("pointermove", (event) => this.moved(event));
      this.holder.addEventListener("pointerdown", (event) => { this.from = this.valueAt(event); });
      this.holder.addEventListener("pointerup", (event) => this.zoomed(event));
      this.holder.addEventListener("pointerleave", () => this.tell(null));
      this.holder.addEventListener("dblclick", () => this.show(this.all));
      this.holder.addEventListener("keydown", (event) => this.pressed(event));
    }

    xEnds() {
      const { x_names: names, x_range: range, series } = this.chart;
      if (names.length) return [-0.5, names.length - 0.5];
      if (range) return range;
      const values = series.flatMap((each) => each.x), low = Math.min(...values), high = Math.max(...values);
      return low < high ? [low, high] : [low - 1, high + 1];
    }

    yEnds() {
      const [left, right] = this.window, { series, levels, marks, band, y_range: range } = this.chart;
      const isWhole = this.window === this.all;
      if (range && range[1] !== null) return range;
      let values = series.flatMap((each) => each.y.filter((_, place) => each.x[place] >= left && each.x[place] <= right));
      if (isWhole) values = [...values, ...series.flatMap((each) => each.intervals.flat()), ...levels.map((each) => each.value), ...marks.map((each) => each.y), ...(band ?? [])];
      values = known(values);
      if (!values.length) return [0, 1];
      const low = range ? range[0] : Math.min(...values), high = Math.max(...values);
      if (this.chart.is_log) return [0, high * 2];
      const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
      return [range ? low : low - pad, high + pad];
    }

    draw() {
      const width = Math.round(this.holder.clientWidth), { chart } = this;
      if (!width) return;
      const height = chart.is_main ? WIDE : SMALL, left = EDGE.left + (chart.stack.length ? STACK : 0);
      const [x0, x1] = this.window, [y0, y1] = this.yEnds();
      const scale = chart.is_log ? Math.log1p : (value) => value;
      this.left = left;
      this.inner = width - left - EDGE.right;
      this.x = (value) => left + ((value - x0) / (x1 - x0)) * this.inner;
      this.y = (value) => height - EDGE.bottom - ((scale(value) - scale(y0)) / (scale(y1) - scale(y0))) * (height - EDGE.top - EDGE.bottom);
      const svg = make(document.createDocumentFragment(), "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.about });
      const clip = `clip-${chart.key}`, box = make(make(svg, "clipPath", { id: clip }), "rect");
      for (const [key, value] of Object.entries({ x: left - 3, y: 0, width: this.inner + 6, height: height - EDGE.bottom + 3 })) box.setAttribute(key, value);
      this.axes(svg, width, height, y0, y1);
      const plot = make(svg, "g", { "clip-path": `url(#${clip})` });
      if (chart.band) make(plot, "rect", { class: "band", x: left, width: this.inner, y: this.y(chart.band[1]), height: this.y(chart.band[0]) - this.y(chart.band[1]) });
      for (const series of chart.series) this.line(plot, series);
      this.named(svg, plot, height);
      let below = 0;
      for (const part of chart.stack) {
        make(svg, "rect", { class: `c-${part.place} part`, x: EDGE.left, width: STACK - 14, y: this.y(below + part.size), height: this.y(below) - this.y(below + part.size) });
        below += part.size;
      }
      if (chart.stack.length) make(svg, "text", { x: EDGE.left + (STACK - 14) / 2, y: height - EDGE.bottom + 16, "text-anchor": "middle" }, "plan");
      this.cursor = make(svg, "line", { class: "cursor", y1: EDGE.top, y2: height - EDGE.bottom });
      this.holder.replaceChildren(svg);
    }

    axes(svg, width, height, y0, y1) {
      const { chart } = this, heights = chart.is_log ? [0, 1, 10, 100, 1e3, 1e4, 1e5, 1e6].filter((each) => each <= y1) : ticks(y0, y1, chart.is_main ? 6 : 4);
      for (const value of heights) {
        make(svg, "line", { class: "grid", x1: this.left, x2: width - EDGE.right, y1: this.y(value), y2: this.y(value) });
        make(svg, "text", { x: EDGE.left - 7, y: this.y(value) + 4, "text-anchor": "end" }, short(value));
      }
      const names = chart.x_names, most = Math.max(2, Math.floor(this.inner / 80));
      const places = names.length ? names.map((_, place) => place) : ticks(...this.window, most, chart.x.endsWith("step"));
      for (const value of places) {
        const at = this.x(value), text = names.length ? names[value] : (+value.toPrecision(6)).toLocaleString("en"), half = (text.length * LETTER) / 2;
        make(svg, "text", { x: clamp(at, half, width - half), y: height - EDGE.bottom + 16, "text-anchor": "middle" }, text);
      }
      make(svg, "text", { x: this.left + this.inner / 2, y: height - 6, "text-anchor": "middle" }, chart.x);
      if (chart.y) make(svg, "text", { x: 2, y: 12 }, chart.y);
    }

    line(plot, series) {
      const group = make(plot, "g", { class: `${look(series)} ${series.look}` });
      const steps = series.look === "steps", last = series.y.length - 1;
      let path = steps ? `M${this.x(series.x[0])},${this.y(0)}` : "", isOpen = false;
      series.y.forEach((value, place) => {
        if (value === null) { isOpen = false; return; }
        const x = this.x(series.x[place]).toFixed(1), y = this.y(value).toFixed(1);
        if (steps) path += `V${y}H${this.x(series.x[place + 1]).toFixed(1)}${place === last ? `V${this.y(0)}` : ""}`;
        else path += `${isOpen ? "L" : "M"}${x},${y}`;
        isOpen = true;
        if (series.look === "dotted" || series.look === "points") make(group, "circle", { cx: x, cy: y, r: 2.6 });
        const ends = series.intervals[place];
        if (ends) make(group, "line", { class: "interval", x1: x, x2: x, y1: this.y(ends[0]), y2: this.y(ends[1]) });
      });
      if (series.look !== "points") make(group, "path", { d: path });
    }

    named(svg, plot, height) {
      const { levels, uprights, marks, series } = this.chart, right = this.left + this.inner;
      const write = (text, x, y, role, anchor = "middle") => {
        const half = (text.length * LETTER) / 2, low = { start: 0, middle: half, end: 2 * half }[anchor];
        make(svg, "text", { class: `c-${role} name`, x: clamp(x, this.left + low, right - (2 * half - low)), y: Math.max(12, y), "text-anchor": anchor }, text);
      };
      for (const level of levels) {
        const y = this.y(level.value);
        make(plot, "line", { class: `c-${level.role} level`, x1: this.left, x2: right, y1: y, y2: y });
        if (level.name && y > 0 && y <= height - EDGE.bottom) write(level.name, this.clearest(series, level.value), y - 4, level.role);
      }
      for (const upright of uprights) {
        const x = this.x(upright.value), isLeft = x < this.left + this.inner * 0.6;
        make(plot, "line", { class: `c-${upright.role} upright`, x1: x, x2: x, y1: EDGE.top, y2: height - EDGE.bottom });
        write(upright.name, x + (isLeft ? 5 : -5), height - EDGE.bottom - 6, upright.role, isLeft ? "start" : "end");
      }
      for (const mark of marks) {
        const [x, y] = [this.x(mark.x), this.y(mark.y)];
        if (mark.x < this.window[0] || mark.x > this.window[1]) continue;
        make(svg, "circle", { class: "c-kept ring", cx: x, cy: y, r: 5.5 });
        if (mark.name) write(mark.name, x, y - 11, "kept");
      }
    }

    // Where along a level its name is furthest from every line.
    clearest(series, value) {
      const away = (share) => {
        const at = this.window[0] + share * (this.window[1] - this.window[0]);
        return Math.min(...series.filter((each) => each.look === "line").map((each) => Math.abs(this.y(this.near(each, at)?.[1] ?? value) - this.y(value))), 1e6);
      };
      const share = [0.2, 0.35, 0.5, 0.65].reduce((best, each) => (away(each) > away(best) ? each : best));
      return this.left + share * this.inner;
    }

    near(series, at) {
      let best = null;
      series.y.forEach((value, place) => {
        if (value !== null && (best === null || Math.abs(series.x[place] - at) < Math.abs(best[0] - at))) best = [series.x[place], value];
      });
      return best;
    }

    valueAt(event) {
      const [low, high] = this.window, { left } = this.holder.getBoundingClientRect();
      return clamp(low + ((event.clientX - left - this.left) / this.inner) * (high - low), low, high);
    }

    moved(event) { this.tell(this.valueAt(event)); }

    tell(at) {
      this.at = at;
      const found = at === null ? [] : this.chart.series.filter((each) => each.look !== "faint" && each.role !== "chance").map((each) => [each.name, this.near(each, at)]).filter(([, point]) => point);
      this.cursor?.setAttribute("class", found.length ? "cursor on" : "cursor");
      if (!found.length) { this.told.textContent = ""; return; }
      const x = found.reduce((best, [, point]) => (Math.abs(point[0] - at) < Math.abs(best - at) ? point[0] : best), found[0][1][0]);
      for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(x));
      const where = this.chart.x_names[x] ?? `${this.chart.x} ${exact(x)}`;
      this.told.textContent = `${where}: ${found.map(([name, point]) => `${name} ${exact(point[1])}`.trim()).join("; ")}`;
    }

    zoomed(event) {
      const ends = [this.from, this.valueAt(event)].sort((one, other) => one - other);
      if (this.from !== undefined && ends[1] - ends[0] > 0.02 * (this.window[1] - this.window[0])) this.show(ends);
      this.from = undefined;
    }

    show(ends) {
      this.window = ends;
      this.draw();
    }

    pressed(event) {
      const [low, high] = this.window, span = high - low, at = this.at ?? low + span / 2;
      const moves = { ArrowLeft: -0.01, ArrowRight: 0.01 };
      if (event.key in moves) this.tell(clamp(at + moves[event.key] * span, low, high));
      else if (event.key === "+") this.show([Math.max(low, at - span / 4), Math.min(high, at + span / 4)]);
      else if (event.key === "-" || event.key === "Escape") this.show(this.all);
      else return;
      event.preventDefault();
    }
  }

  const sortable = (table) => {
    const body = table.tBodies[0];
    if (!table.tHead || body.rows.length < 3 || body.querySelector(".group")) return;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      if (!heading.textContent.trim()) return;
      const button = document.createElement("button");
      button.append(...heading.childNodes);
      heading.append(button);
      button.addEventListener("click", () => {
        const down = heading.ariaSort !== "descending", value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        for (const each of table.tHead.rows[0].cells) each.ariaSort = null;
        heading.ariaSort = down ? "descending" : "ascending";
        const compare = (one, other) => value(one).localeCompare(value(other), "en", { numeric: true });
        const number = (row) => (row.cells[column].dataset.value === undefined ? NaN : +row.cells[column].dataset.value);
        const order = (one, other) => (isNaN(number(one)) || isNaN(number(other)) ? compare(one, other) : number(one) - number(other));
        body.append(...[...body.rows].sort((one, other) => (down ? order(other, one) : order(one, other))));
      });
    });
  };

  // What is shown later, as the studio does, is drawn then.
  const begin = () => {
    for (const each of document.querySelectorAll("figure[data-chart]:not(.drawn), table:not(.drawn)")) {
      each.classList.add("drawn");
      if (each.matches("table")) sortable(each);
      else new Drawn(each);
    }
  };
  begin();
  new MutationObserver(begin).observe(document.body, { childList: true, subtree: true });
})();
