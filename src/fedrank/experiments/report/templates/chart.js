// Charts that a reader can change: variants on and off, axis, scales, bands, values under the pointer.
"use strict";
const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDEST = 1000, NARROWEST = 280, HEIGHT = 330, LEFT = 58, RIGHT = 26, TOP = 10, BOTTOM = 42;

  function made(name, attributes = {}, ...inside) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node[key] = value;
    node.append(...inside);
    return node;
  }

  function drawn(name, attributes = {}, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // Round numbers between two values, about as many as asked for.
  function ticks(low, high, count) {
    const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(at);
    return [found, Math.max(0, -Math.floor(Math.log10(step)))];
  }

  function powers(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++)
      for (const one of [1, 2, 5]) if (one * 10 ** power >= low && one * 10 ** power <= high) found.push(one * 10 ** power);
    return found;
  }

  // How many digits tell the marks of a logarithmic axis apart.
  const digitsOf = (values) => Math.min(6, Math.max(0, ...values.map((one) => -Math.floor(Math.log10(one) + 1e-9))));

  // One chart, as wide as its container, so its text has the size of the text around it; `view` is what the controls of its section say.
  function chart(place, data, view) {
    const svg = drawn("svg", {
      role: "img", tabindex: "0", "aria-label": `${data.title}, interactive chart`, height: HEIGHT,
    });
    let width = 0;
    const room = () => Math.min(WIDEST, Math.max(NARROWEST, Math.floor(place.clientWidth) || WIDEST));
    const tip = made("div", { className: "tip", hidden: true });
    tip.setAttribute("aria-live", "polite");
    place.append(svg, tip);
    let scale = null, at = -1;

    const along = (line) => (view.axis === "interactions" && line.interactions ? line.interactions : line.rounds);
    const visible = () => data.lines.filter((line) => !view.hidden.has(line.group ?? line.name));

    function draw() {
      svg.replaceChildren();
      tip.hidden = true;
      width = room();
      svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      svg.style.maxWidth = `${width}px`;
      const lines = visible(), xs = lines.flatMap(along), ys = [];
      for (const line of lines)
        line.mean.forEach((mean, i) => {
          const half = view.bands && line.half ? line.half[i] : 0;
          ys.push(mean - half, mean + half);
        });
      for (const level of data.levels) ys.push(level.value);
      if (!xs.length) {
        svg.append(drawn("text", { x: LEFT, y: HEIGHT / 2, "font-size": 13 }, "No variant is switched on."));
        return;
      }
      const most = (all) => all.reduce((one, two) => Math.max(one, two)), least = (all) => all.reduce((one, two) => Math.min(one, two));
      const log = view.log && least(xs) > 0, tall = view.tall && least(ys) > 0;
      const put = log ? Math.log10 : (one) => one, raised = tall ? Math.log10 : (one) => one;
      const left = put(least(xs)), right = put(most(xs));
      const edge = tall ? 0.03 * (raised(most(ys)) - raised(least(ys))) || 0.001 : Math.max(0.03 * (most(ys) - least(ys)), 0.0005);
      const low = raised(least(ys)) - edge, high = raised(most(ys)) + edge;
      const x = (value) => LEFT + ((width - LEFT - RIGHT) * (put(value) - left)) / (right - left || 1);
      const y = (value) => TOP + ((HEIGHT - TOP - BOTTOM) * (high - raised(value))) / (high - low);
      scale = { x, y, stops: [...new Set(xs)].sort((one, two) => one - two) };
      const text = (attributes, words) => svg.append(drawn("text", { "font-size": 12, fill: "#1f2933", ...attributes }, words));
      const rule = (attributes) => svg.append(drawn("line", { stroke: "#e9edf1", ...attributes }));
      let [heights, digits] = tall ? [powers(10 ** low, 10 ** high), 0] : ticks(low, high, 6);
      if (tall && heights.length < 3) heights = ticks(10 ** low, 10 ** high, 6)[0].filter((value) => value > 0); // less than a decade
      if (tall) digits = Math.max(digitsOf(heights), heights.length > 1 ? digitsOf([heights[1] - heights[0]]) : 0);
      for (const value of heights) {
        rule({ x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) });
        text({ x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(digits));
      }
      for (const value of log ? powers(least(xs), most(xs)) : ticks(least(xs), most(xs), Math.max(3, Math.floor(width / 110)))[0]) {
        rule({ x1: x(value), x2: x(value), y1: TOP, y2: HEIGHT - BOTTOM });
        text({ x: x(value), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, value.toLocaleString("en"));
      }
      text({ x: (width + LEFT) / 2, y: HEIGHT - 7, "text-anchor": "middle" }, view.axis === "interactions" ? "interactions" : data.axis);
      if (view.tall && !tall)
        text({ x: width - RIGHT, y: TOP + 12, "text-anchor": "end", fill: "#a84600" }, "Not logarithmic: there is a value that is not above 0.");
      for (const level of data.levels) {
        const line = drawn("line", {
          x1: LEFT, x2: width - RIGHT, y1: y(level.value), y2: y(level.value), stroke: "#1f2933", "stroke-dasharray": "2 3", class: "level",
        });
        line.append(drawn("title", {}, `${level.name}, ${level.value.toFixed(4)}`));
        svg.append(line);
        text({ x: width - RIGHT, y: y(level.value) - 5, "text-anchor": "end", fill: "#5f6c7b" }, level.name);
      }
      for (const line of lines) {
        const places = along(line);
        if (view.bands && line.half) {
          const above = places.map((value, i) => `${x(value)},${y(line.mean[i] + line.half[i])}`);
          const below = places.map((value, i) => `${x(value)},${y(line.mean[i] - line.half[i])}`).reverse();
          svg.append(drawn("polygon", { points: [...above, ...below].join(" "), fill: line.colour, "fill-opacity": 0.13, class: "band" }));
        }
        const points = places.map((value, i) => `${x(value)},${y(line.mean[i])}`).join(" ");
        svg.append(drawn("polyline", {
          points, fill: "none", stroke: line.colour, "stroke-width": 1.9, "stroke-dasharray": line.dash, class: "curve",
        }));
        if (places.length === 1) svg.append(drawn("circle", { cx: x(places[0]), cy: y(line.mean[0]), r: 4, fill: line.colour }));
      }
      svg.append(drawn("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, stroke: "#7b8794", visibility: "hidden" }));
      svg.append(drawn("g", { class: "dots" }));
    }

    function nearest(values, wanted) {
      let best = 0;
      values.forEach((value, i) => {
        if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = i;
      });
      return best;
    }

    function point(stop) {
      at = stop;
      const here = scale.stops[stop], cursor = svg.querySelector(".cursor"), dots = svg.querySelector(".dots");
      cursor.setAttribute("x1", scale.x(here));
      cursor.setAttribute("x2", scale.x(here));
      cursor.setAttribute("visibility", "visible");
      dots.replaceChildren();
      const rows = visible().filter((line) => along(line).length).map((line) => ({ line, i: nearest(along(line), here) }));
      rows.sort((one, two) => two.line.mean[two.i] - one.line.mean[one.i]);
      const unit = view.axis === "interactions" ? "interactions" : data.axis;
      tip.replaceChildren(made("p", {}, made("strong", { textContent: `${unit} ${Math.round(here).toLocaleString("en")}` })));
      for (const { line, i } of rows) {
        const half = line.half ? ` ± ${line.half[i].toFixed(4)}` : "";
        const words = made("p", { textContent: `${line.mean[i].toFixed(4)}${half}  ${line.name}` });
        words.style.color = line.colour;
        tip.append(words);
        dots.append(drawn("circle", { cx: scale.x(along(line)[i]), cy: scale.y(line.mean[i]), r: 3.5, fill: line.colour }));
      }
      tip.hidden = false;
      const wide = svg.getBoundingClientRect().width, share = scale.x(here) / width;
      tip.style.top = "1rem";
      tip.style.left = share < 0.5 ? `${share * wide + 12}px` : "auto";
      tip.style.right = share < 0.5 ? "auto" : `${(1 - share) * wide + 12}px`;
    }

    function leave() {
      tip.hidden = true;
      at = -1;
      svg.querySelector(".cursor")?.setAttribute("visibility", "hidden");
      svg.querySelector(".dots")?.replaceChildren();
    }

    svg.addEventListener("pointermove", (event) => {
      if (!visible().length) return;
      const box = svg.getBoundingClientRect(), here = ((event.clientX - box.left) / box.width) * width;
      point(nearest(scale.stops.map(scale.x), here));
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !visible().length) return;
      event.preventDefault();
      point(Math.min(Math.max(at + step, 0), scale.stops.length - 1));
    });
    draw();
    addEventListener("resize", () => { if (room() !== width) draw(); });
    addEventListener("beforeprint", draw);
    return (fresh) => {
      data = fresh ?? data;
      draw();
    };
  }

  function choice(words, options, chosen, change) {
    const select = made("select", {}, ...options.map(([value, label]) => made("option", { value, textContent: label })));
    select.value = chosen;
    select.setAttribute("aria-label", words); // without the words of its options
    select.addEventListener("change", () => change(select.value));
    return made("label", {}, words, select);
  }

  function tick(words, checked, change, before = []) {
    const box = made("input", { type: "checkbox", checked });
    box.addEventListener("change", () => change(box.checked));
    return made("label", {}, box, ...before, words);
  }

  // Charts that share their controls; `update` draws them again with other numbers, and keeps what is switched off.
  function curves(places, all) {
    const view = { hidden: new Set(), axis: "rounds", log: false, tall: false, bands: true };
    const redraw = [], again = () => redraw.forEach((draw) => draw());
    const switches = made("fieldset", {});
    let shown = "";

    function list() {
      const groups = new Map(all.flatMap((data) => data.lines).map((line) => [line.group ?? line.name, line]));
      if (shown === [...groups.keys()].join("\n")) return; // a box that the user is about to tick stays where it is
      shown = [...groups.keys()].join("\n");
      switches.replaceChildren(made("legend", { textContent: "Shown" }));
      for (const [name, line] of groups) {
        const swatch = made("span", { className: "swatch" });
        swatch.style.borderColor = line.colour;
        if (line.dash) swatch.style.borderTopStyle = "dashed";
        switches.append(tick(name, !view.hidden.has(name), (on) => {
          view.hidden[on ? "delete" : "add"](name);
          again();
        }, [swatch]));
      }
    }

    list();
    const controls = made("div", { className: "controls" }, switches), lines = all.flatMap((data) => data.lines);
    if (lines.every((line) => line.interactions)) {
      const options = [["rounds", all[0].axis], ["interactions", "interactions"]];
      controls.append(choice("Axis", options, "rounds", (value) => { view.axis = value; again(); }));
    }
    controls.append(tick("Logarithmic axis", false, (on) => { view.log = on; again(); }));
    controls.append(tick("Logarithmic values", false, (on) => { view.tall = on; again(); }));
    if (lines.some((line) => line.half)) controls.append(tick("Bands", true, (on) => { view.bands = on; again(); }));
    places[0].before(controls);
    places.forEach((place, i) => {
      place.append(made("p", { className: "chart-title" }, made("strong", { textContent: all[i].title })));
      redraw.push(chart(place, all[i], view));
    });
    return {
      update(fresh) {
        all = fresh;
        list();
        redraw.forEach((draw, i) => draw(fresh[i]));
      },
    };
  }

  return { made, choice, curves };
})();
