"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const data = JSON.parse(document.getElementById("data")?.textContent ?? '{"charts": []}');
  const canvases = [...document.querySelectorAll(".canvas")];
  const tip = document.getElementById("tip");
  const units = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]];
  const duration = (ns) => {
    const [unit, size] = units.find(([, size]) => ns >= size) ?? units[3];
    return `${Number((ns / size).toPrecision(3))} ${unit}`;
  };

  // What a lane does at a time: spans are [start, length, what, micro-batch, % that computes, chunk], in ascending order.
  const find = (spans, time) => {
    let low = 0, high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle][0] <= time) low = middle + 1; else high = middle;
    }
    const found = spans[low - 1];
    return found && time < found[0] + found[1] ? found : null;
  };
  const show = (event, canvas, chart) => {
    const box = canvas.querySelector("svg").getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * chart.lanes.length);
    const time = (event.clientX - box.left) / box.width * chart.whole;
    const lane = chart.lanes[row];
    if (!lane || time < 0 || time > chart.step) { tip.style.display = "none"; return; }
    const span = find(lane.spans, time);
    const what = span ? data.words[span[2]] : "waiting";
    const batch = span && span[3] >= 0 ? `, micro-batch ${span[3]}` : "";
    const chunk = span && span[5] ? `, chunk ${span[5]}` : "";
    const computes = span && span[4] ? `; ${span[4]}% of it computes` : "";
    const length = span ? `\n${duration(span[1])}, from ${duration(span[0])}${computes}` : `\nat ${duration(time)}`;
    tip.textContent = `${lane.name}: ${what}${batch}${chunk}${length}`;
    tip.style.display = "block";
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${Math.min(event.clientY + 18, innerHeight - tip.offsetHeight - 4)}px`;
  };

  // Marks of a time axis, as close as their texts allow at any zoom.
  const TICK = 90;
  const ticks = (canvas, whole) => {
    const axis = canvas.querySelector(".x"), end = axis.querySelector(".end");
    const drawn = (name, words) => {
      const found = document.createElementNS(axis.namespaceURI, name);
      for (const [word, value] of Object.entries(words)) found.setAttribute(word, value);
      return found;
    };
    const least = whole / Math.max(Math.floor(canvas.offsetWidth / TICK), 1);
    const power = 10 ** Math.floor(Math.log10(least));
    const every = Math.max(power * [1, 2, 5, 10].find((step) => step * power >= least * 0.999), 1);
    const [unit, size] = units.find(([, size]) => whole >= size) ?? units[3];
    const digits = Math.max(Math.ceil(-Math.log10(every / size) - 1e-9), 0);
    const marks = [];
    for (let at = 0; whole - at * every > every * 0.7; at += 1) {
      const x = `${100 * at * every / whole}%`, text = drawn("text", { x, y: 17 });
      text.textContent = at ? `${(at * every / size).toFixed(digits)} ${unit}` : "0";
      marks.push(drawn("line", { x1: x, x2: x, y2: 4 }), text);
    }
    axis.replaceChildren(...marks, end.previousElementSibling, end);
  };

  // What is wider than its box scrolls: its last part fades, and on a phone a line above it mentions that.
  const scrollers = [...document.querySelectorAll(".parts .scroll, .parts .wide")];
  const hint = (box) => {
    const wider = box.scrollWidth > box.clientWidth + 1;
    box.toggleAttribute("tabindex", wider); // Without a mouse it scrolls by keys.
    if (wider) box.tabIndex = 0;
    box.classList.toggle("more", wider && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    const line = (box.closest(".gantt") ?? box).previousElementSibling;
    if (line?.classList.contains("hint")) line.hidden = !wider;
  };
  const fit = () => {
    canvases.forEach((canvas, at) => ticks(canvas, data.charts[at].whole));
    scrollers.forEach(hint);
  };

  const zoom = document.getElementById("zoom");
  canvases.forEach((canvas, at) => {
    const chart = data.charts[at];
    const move = (event) => show(event, canvas, chart);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerdown", move);
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    zoom?.addEventListener("input", () => {
      const scroll = canvas.parentElement;
      const centre = (scroll.scrollLeft + scroll.clientWidth / 2) / canvas.offsetWidth;
      canvas.style.setProperty("--zoom", String(2 ** Number(zoom.value)));
      scroll.scrollLeft = centre * canvas.offsetWidth - scroll.clientWidth / 2;
    });
  });
  zoom?.addEventListener("input", fit);
  addEventListener("resize", fit);
  scrollers.forEach((box) => box.addEventListener("scroll", () => hint(box), { passive: true }));
  // Charts on one scale scroll together.
  const together = canvases.map((canvas) => canvas.parentElement);
  together.forEach((box) => box.addEventListener("scroll", () => {
    together.forEach((other) => { if (other.scrollLeft !== box.scrollLeft) other.scrollLeft = box.scrollLeft; });
  }, { passive: true }));
  fit();

  // Tables are sorted by the column whose head is pressed.
  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("th button").forEach((button) => {
      button.addEventListener("click", () => {
        const head = button.parentElement;
        const falls = head.getAttribute("aria-sort") !== "descending";
        const at = [...head.parentElement.children].indexOf(head);
        const key = (row) => row.children[at].dataset.value ?? row.children[at].textContent;
        const body = table.tBodies[0];
        const rows = [...body.rows].sort((one, other) => {
          const [a, b] = [key(one), key(other)];
          const order = a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a < b ? -1 : a > b ? 1 : 0;
          return falls ? -order : order;
        });
        head.parentElement.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falls ? "descending" : "ascending");
        body.append(...rows);
      });
    });
  }
  root.dataset.ready = "yes";
})();
