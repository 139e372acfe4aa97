// Small plots of lines and bars.

import { attribute, h, keyed, svg, text } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 120;

/** A plot of one or two lines over time. show: how a value reads; least: the smallest scale. */
export function linePlot(title, names, show, least = 0) {
  const paths = names.map((_, index) => svg("path", { class: index ? "second" : "first" }));
  const grid = [0, 0.5, 1].map((part) => svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part }));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, ...grid, ...paths);
  const now = names.map((_, index) => h("span", { class: index ? "now second" : "now" }));
  const began = h("span");
  const top = h("span");
  const node = h("section", { class: "panel plot" },
    h("header", {}, h("b", { text: title }), h("span", { class: "grow" }), ...now), picture, h("footer", {}, began, top));
  return {
    node,
    /** points: [[time in s, value or null, …], …], the oldest first */
    update(points) {
      const from = points.length ? points[0][0] : 0;
      const span = points.length > 1 ? points[points.length - 1][0] - from : 1;
      const most = points.reduce((high, point) => Math.max(high, ...point.slice(1).map((value) => value ?? 0)), 0);
      const scale = niceAbove(Math.max(most, least));
      names.forEach((name, index) => {
        const line = lineOf(points, index + 1, from, span, scale);
        attribute(paths[index], "d", line);
        const last = points.length ? points[points.length - 1][index + 1] : null;
        text(now[index], `${name} ${show(last)}`);
      });
      text(began, points.length > 1 ? `the last ${span < 90 ? `${Math.round(span)} s` : `${Math.round(span / 60)} min`}` : "collecting…");
      text(top, `0 to ${show(scale)}`);
    },
  };
}

function lineOf(points, column, from, span, scale) {
  let line = "";
  let pen = "M";
  for (const point of points) {
    const value = point[column];
    if (value === null || value === undefined) {
      pen = "M";
      continue;
    }
    const x = ((point[0] - from) / span) * WIDTH;
    line += `${pen}${x.toFixed(1)} ${(HEIGHT - (value / scale) * HEIGHT).toFixed(1)}`;
    pen = "L";
  }
  return line;
}

function niceAbove(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** A plot of bars. */
export function barPlot(title, show) {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  const first = h("span");
  const last = h("span");
  const most = h("span", { class: "soft" });
  const node = h("section", { class: "panel plot" },
    h("header", {}, h("b", { text: title }), h("span", { class: "grow" }), most), picture, h("footer", {}, first, last));
  return {
    node,
    /** bars: [{name, value}, …] */
    update(bars) {
      const scale = niceAbove(Math.max(0, ...bars.map((bar) => bar.value)));
      const width = WIDTH / Math.max(1, bars.length);
      const placed = bars.map((bar, index) => ({ ...bar, index }));
      keyed(picture, placed, (bar) => bar.name, () => svg("rect", {}, svg("title")), (rect, bar) => {
        const height = (bar.value / scale) * HEIGHT;
        const box = { x: bar.index * width + width * 0.12, y: HEIGHT - height, width: width * 0.76, height };
        for (const [name, value] of Object.entries(box)) attribute(rect, name, value.toFixed(2));
        text(rect.firstChild, `${bar.name}: ${show(bar.value)}`);
      });
      text(first, bars.length ? bars[0].name : "");
      text(last, bars.length ? bars[bars.length - 1].name : "");
      text(most, `0 to ${show(scale)}`);
    },
    /** Return the plot as the text of an SVG file, with its title, its days and its scale. */
    file() {
      const label = (x, y, anchor, words) => svg("text", { x, y, "text-anchor": anchor, "font-family": "sans-serif", "font-size": 11 }, words);
      const copy = picture.cloneNode(true);
      for (const [name, value] of Object.entries({ viewBox: `-10 -30 ${WIDTH + 20} ${HEIGHT + 60}`, fill: "#0b6e7f" })) copy.setAttribute(name, value);
      copy.append(label(0, -12, "start", title), label(WIDTH, -12, "end", most.textContent), label(0, HEIGHT + 18, "start", first.textContent), label(WIDTH, HEIGHT + 18, "end", last.textContent));
      return new XMLSerializer().serializeToString(copy);
    },
  };
}
