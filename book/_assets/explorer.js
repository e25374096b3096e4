// Figures with sliders: draws the curves that explorer_pages.py has put into a figure, in place of the picture.
// No library, no request: the page holds all the numbers. On paper, and where this script does not run, the picture stays.
{
  const GRID = "#e3e3e3", INK = "#24292f", GROW = 1.25; // GROW: from the points of a style to pixels

  const make = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const shape = (parent, name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  // Numbers as text: a true minus sign, powers of ten where a number is very large or very small.
  const minus = text => text.replace("-", "\u2212");
  const raised = power => minus(String(power)).replace(/./g, c => "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"["0123456789\u2212".indexOf(c)]);
  const scientific = (value, digits) => {
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    return `${minus(mantissa)} × 10${raised(Number(power))}`;
  };
  const written = (value, digits) => {
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e6) return minus(String(value));
    if (size >= 1e5 || size < 1e-3) return scientific(value, digits);
    return minus(String(Number(value.toPrecision(digits))));
  };

  // Ticks, as pairs of a position and a label, about `wanted` of them; and those between the decades, without labels.
  const linear = ({ low, high }, wanted) => {
    const least = (high - low) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= least * 0.999);
    const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9)), large = Math.max(-low, high) >= 1e6 || step < 1e-5;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) {
      const value = k * step;
      ticks.push([value, k === 0 ? "0" : large ? scientific(value, 3) : minus(value.toFixed(decimals))]);
    }
    return { ticks, small: [] };
  };
  const logarithmic = ({ low, high }, wanted) => {
    const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), small = [];
    const between = mantissas => {
      const found = [];
      for (let power = first - 1; power <= last; power++)
        for (const m of mantissas) if (m * 10 ** power >= low && m * 10 ** power <= high) found.push(m * 10 ** power);
      return found;
    };
    if (last - first < 2) {
      const ticks = between([1, 2, 5]);
      if (ticks.length < 2) return linear({ low, high }, wanted);
      return { ticks: ticks.map(value => [value, written(Number(value.toPrecision(1)), 1)]), small: between([3, 4, 6, 7, 8, 9]) };
    }
    const stride = [1, 2, 3, 5, 10, 20, 50, 100].find(k => (last - first) / k <= wanted) ?? 100, ticks = [];
    const plain = first >= -3 && last <= 4;
    for (let power = Math.ceil(first / stride) * stride; power <= last; power += stride)
      ticks.push([10 ** power, plain ? String(Number((10 ** power).toPrecision(1))) : `10${raised(power)}`]);
    return { ticks, small: stride === 1 && last - first < 7 ? between([2, 3, 4, 5, 6, 7, 8, 9]) : [] };
  };
  const scale = ({ log, low, high }, from, to) => {
    const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    return value => from + ((log ? Math.log10(value) : value) - a) / (b - a) * (to - from);
  };

  const dashes = ({ dash, width }) => dash?.length ? { "stroke-dasharray": dash.map(k => k * width * GROW).join(" ") } : {};
  const draw = (parent, curve, points, faint) => {
    let path = "", lone = [];
    points.forEach((point, k) => {
      if (!point) return;
      const start = !points[k - 1];
      path += `${start ? "M" : "L"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
      if (start && !points[k + 1]) lone.push(point); // a line of one point would not be seen
    });
    const group = shape(parent, "g", faint ? { class: "explorer-faint", opacity: 0.22 } : { class: "explorer-curve" });
    const width = (faint ? 1.2 : curve.width) * GROW;
    if (curve.dash) shape(group, "path", { d: path, fill: "none", stroke: curve.color, "stroke-width": width, "stroke-linejoin": "round", ...dashes(curve) });
    if (curve.marker && !faint)
      points.forEach((point, k) => {
        if (point && k % curve.every === 0)
          shape(group, "path", { d: curve.marker, fill: curve.color, stroke: curve.color, transform: `translate(${point[0].toFixed(1)} ${point[1].toFixed(1)}) scale(${GROW})` });
      });
    else for (const [cx, cy] of lone) shape(group, "circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: width, fill: curve.color });
  };

  const sample = (curve, faint) => {
    const box = make("span", { class: "explorer-sample", "aria-hidden": "true" });
    const svg = shape(box, "svg", { width: 34, height: 12, viewBox: "0 0 34 12" });
    draw(svg, { ...curve, every: 1, marker: "" }, [[1, 6], [33, 6]], faint);
    if (!faint && curve.marker) draw(svg, { ...curve, dash: null, every: 1 }, [[17, 6]], false);
    return box;
  };

  const explore = (box, number) => {
    const data = JSON.parse(box.querySelector("script").textContent), figure = box.closest("figure");
    const panel = make("div", { class: "explorer-controls" });
    const sliders = data.controls.map((control, k) => {
      const id = `explorer-${number + 1}-${k + 1}`;
      const slider = make("input", { type: "range", id, min: 0, max: control.values.length - 1, step: 1, value: control.start, autocomplete: "off" });
      const value = make("span", { class: "explorer-value", "aria-hidden": "true" });
      panel.append(make("div", { class: "explorer-control" }, make("label", { for: id }, control.label), value, slider));
      return { ...control, slider, value };
    });
    const legend = make("ul", { class: "explorer-legend" });
    for (const curve of data.curves) legend.append(make("li", {}, sample(curve, false), curve.name));
    if (data.faint.length) {
      const grey = { color: "#000000", width: 1.2, dash: [], marker: "" };
      legend.append(make("li", {}, sample(grey, true), `other values of ${data.controls[0].label}`));
    }
    const plot = make("div", { class: "explorer-plot" }, legend, make("div", { class: "explorer-axis" }, data.y.label));
    const svg = shape(plot, "svg", { role: "img", class: "explorer-svg" });
    plot.append(make("div", { class: "explorer-axis explorer-across" }, data.x.label));
    const read = make("output", { "aria-live": "polite", for: sliders.map(({ slider }) => slider.id).join(" ") });
    box.append(panel, plot, read);
    const pen = document.createElement("canvas").getContext("2d");
    let drawn = 0;
    const space = () => {
      const { paddingLeft, paddingRight } = getComputedStyle(plot);
      return Math.floor(plot.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight));
    };

    const paint = () => {
      const style = getComputedStyle(plot), width = space();
      if (width <= 0) return; // folded away; the observer below calls again
      drawn = width;
      const height = Math.round(Math.min(380, Math.max(250, width * 0.48)));
      const at = sliders.map(({ slider }) => Number(slider.value));
      const line = (curve, k) => at.length === 1 ? curve.values[k] : curve.values[k][at[1]];

      const rows = (data.y.log ? logarithmic : linear)(data.y, (height - 40) / (data.y.log ? 36 : 48));
      pen.font = `13px ${style.fontFamily}`;
      const left = Math.ceil(10 + Math.max(...rows.ticks.map(([, label]) => pen.measureText(label).width)));
      const right = width - 12, top = 8, bottom = height - 26;
      const columns = (data.x.log ? logarithmic : linear)(data.x, (right - left) / 75);
      const across = scale(data.x, left, right), up = scale(data.y, bottom, top);

      svg.replaceChildren();
      for (const [key, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(key, value);
      const grid = shape(svg, "g", { stroke: GRID, "shape-rendering": "crispEdges" });
      const axes = shape(svg, "g", { stroke: INK, "shape-rendering": "crispEdges" });
      const words = shape(svg, "g", { fill: INK, "font-size": 13 });
      for (const [value, label] of columns.ticks) {
        const x = across(value);
        shape(grid, "line", { x1: x, x2: x, y1: top, y2: bottom });
        shape(axes, "line", { x1: x, x2: x, y1: bottom, y2: bottom + 5 });
        shape(words, "text", { x, y: bottom + 19, "text-anchor": "middle" }, label);
      }
      for (const [value, label] of rows.ticks) {
        const y = up(value);
        shape(grid, "line", { x1: left, x2: right, y1: y, y2: y });
        shape(axes, "line", { x1: left - 5, x2: left, y1: y, y2: y });
        shape(words, "text", { x: left - 8, y: y + 4.5, "text-anchor": "end" }, label);
      }
      for (const value of columns.small) shape(axes, "line", { x1: across(value), x2: across(value), y1: bottom, y2: bottom + 3 });
      for (const value of rows.small) shape(axes, "line", { x1: left - 3, x2: left, y1: up(value), y2: up(value) });
      shape(axes, "path", { d: `M${left} ${top}V${bottom}H${right}`, fill: "none" });

      const points = values => values.map((value, k) => value === null ? null : [across(data.x.values[k]), up(value)]);
      for (const curve of data.curves)
        for (const k of data.faint) if (k !== at[0]) draw(svg, curve, points(line(curve, k)), true);
      for (const curve of data.curves) draw(svg, curve, points(line(curve, at[0])), false);

      const has = k => data.curves.some(curve => line(curve, at[0])[k] !== null);
      const last = Math.max(0, data.x.values.findLastIndex((_, k) => has(k)));  // the end of the longest curve
      const setting = sliders.map(({ label, values }, k) => `${label}: ${written(values[at[k]], 4)}`);
      const ends = data.curves.map(curve => [curve.name, line(curve, at[0])[last]])
        .map(([name, value]) => [name, value === null ? "no value" : written(value, 3)]);
      const place = `At ${data.x.label} = ${written(data.x.values[last], 4)}`;
      sliders.forEach(({ slider, value, values }, k) => {
        value.textContent = written(values[at[k]], 4);
        slider.setAttribute("aria-valuetext", setting[k]);
      });
      const parts = ends.flatMap(([name, value], k) => [k ? "; " : " ", `${name} `, make("b", {}, value)]);
      read.replaceChildren(`${place}:`, ...parts, ".");
      svg.setAttribute("aria-label", `${data.y.label} against ${data.x.label}, for ${setting.join(" and ")}. ${read.textContent}`);
    };

    for (const { slider } of sliders) slider.addEventListener("input", paint);
    box.hidden = false;
    figure.classList.add("drawn"); // the picture gives way
    paint();
    new ResizeObserver(() => { if (space() !== drawn) requestAnimationFrame(paint); }).observe(plot);
  };
  document.querySelectorAll("figure .explorer").forEach(explore);
}
