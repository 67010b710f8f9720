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
  // What a lane does at a time, in words; null where a lane has nothing of it.
  const described = (chart, row, time) => {
    const lane = chart.lanes[row];
    if (!lane || time < 0 || time > chart.step) return null;
    const span = find(lane.spans, time);
    const what = span ? data.words[span[2]] : "waiting";
    const batch = span && span[3] >= 0 ? `, micro-batch ${span[3]}` : "";
    const chunk = span && span[5] ? `, chunk ${span[5]}` : "";
    const computes = span && span[4] ? `; ${span[4]}% of it computes` : "";
    const length = span ? `\n${duration(span[1])}, from ${duration(span[0])}${computes}` : `\nat ${duration(time)}`;
    const critical = span ? onPath(lane, span) : 0;
    return `${lane.name}: ${what}${batch}${chunk}${length}${critical ? `\n${duration(critical)} on the critical path` : ""}`;
  };
  // How long the critical path is in a span: its parts in a lane are [start, length], in ascending order.
  const onPath = (lane, [start, length]) => (lane.path ?? []).reduce((sum, [begin, took]) =>
    sum + Math.max(0, Math.min(begin + took, start + length) - Math.max(begin, start)), 0);
  const place = (event, canvas, chart) => {
    const box = canvas.querySelector("svg").getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * chart.lanes.length);
    return [row, (event.clientX - box.left) / box.width * chart.whole];
  };
  const show = (event, canvas, chart) => {
    const text = described(chart, ...place(event, canvas, chart));
    tip.style.display = text ? "block" : "none";
    if (!text) return;
    tip.textContent = text;
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
    // Without a mouse it scrolls by keys; a timeline has keys of its own.
    if (!box.closest(".gantt")) box.toggleAttribute("tabindex", wider);
    if (wider) box.tabIndex = 0;
    box.classList.toggle("more", wider && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
    const line = (box.closest(".gantt") ?? box).previousElementSibling;
    if (line?.classList.contains("hint")) line.hidden = !wider;
  };
  const fit = () => {
    canvases.forEach((canvas, at) => ticks(canvas, data.charts[at].whole));
    scrollers.forEach(hint);
  };

  // All charts of a page have one zoom: what is at `share` of the axis stays at `x` pixels of the part that is seen.
  const zoom = document.getElementById("zoom");
  const least = Number(zoom?.min ?? 0), most = Number(zoom?.max ?? 0);
  let level = Number(zoom?.value ?? 0);
  const zoomTo = (wanted, share, x) => {
    level = Math.min(Math.max(wanted, least), most);
    zoom.value = level;
    for (const canvas of canvases) {
      canvas.style.setProperty("--zoom", String(2 ** level));
      canvas.parentElement.scrollLeft = share * canvas.offsetWidth - x;
    }
    fit();
  };
  const middle = (scroll, canvas) => {
    const x = scroll.clientWidth / 2;
    return [(scroll.scrollLeft + x) / canvas.offsetWidth, x];
  };
  zoom?.addEventListener("input", () =>
    zoomTo(Number(zoom.value), ...(canvases[0] ? middle(canvases[0].parentElement, canvases[0]) : [0, 0])));

  canvases.forEach((canvas, at) => {
    const chart = data.charts[at], scroll = canvas.parentElement;
    const detail = scroll.closest(".gantt").nextElementSibling;
    let pointer = null, chosen = null;
    const drawing = canvas.querySelector("svg");
    const mark = document.createElementNS(drawing.namespaceURI, "rect");
    mark.setAttribute("class", "chosen");
    drawing.append(mark);

    const choose = (row, number) => {
      const span = chart.lanes[row]?.spans[number];
      if (!span) return;
      chosen = [row, number];
      const [across, down] = [drawing.viewBox.baseVal.width, drawing.viewBox.baseVal.height / chart.lanes.length];
      for (const [name, value] of Object.entries({
        x: span[0] / chart.whole * across, y: row * down, width: Math.max(span[1] / chart.whole * across, 1), height: down,
      })) mark.setAttribute(name, value);
      detail.textContent = described(chart, row, span[0]).replaceAll("\n", "; ");
      // The span is seen, or as much of it as there is place for.
      const from = span[0] / chart.whole * canvas.offsetWidth, to = from + span[1] / chart.whole * canvas.offsetWidth;
      if (to < scroll.scrollLeft || from > scroll.scrollLeft + scroll.clientWidth || to - from < scroll.clientWidth) {
        if (from < scroll.scrollLeft) scroll.scrollLeft = from - 20;
        else if (to > scroll.scrollLeft + scroll.clientWidth) scroll.scrollLeft = to - scroll.clientWidth + 20;
      }
    };
    // The span of a lane that is nearest to a time.
    const nearest = (row, time) => {
      const spans = chart.lanes[row].spans;
      const gap = ([start, length]) => Math.max(start - time, time - start - length, 0);
      return spans.reduce((best, span, number) => gap(span) < gap(spans[best]) ? number : best, 0);
    };
    const start = () => chosen ? chart.lanes[chosen[0]].spans[chosen[1]][0] : 0;
    const along = (ahead) => {
      const legs = chart.lanes.flatMap((lane, row) => (lane.path ?? []).map(([begin]) => [begin, row]))
        .sort(([one], [other]) => one - other);
      const now = chosen === null ? -1 : start();
      const spans = legs.map(([begin, row]) => [row, nearest(row, begin)]);
      const begins = ([row, number]) => chart.lanes[row].spans[number]?.[0] ?? -1;
      const next = ahead ? spans.find((each) => begins(each) > now) : spans.findLast((each) => begins(each) < now);
      if (next) choose(...next);
    };
    const move = (event) => { pointer = event; show(event, canvas, chart); };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerdown", move);
    canvas.addEventListener("pointerleave", () => { pointer = null; tip.style.display = "none"; });
    canvas.addEventListener("click", (event) => {
      const [row, time] = place(event, canvas, chart);
      const found = chart.lanes[row] && find(chart.lanes[row].spans, time);
      if (found) choose(row, chart.lanes[row].spans.indexOf(found));
    });
    const around = () => {
      if (pointer) {
        const x = pointer.clientX - scroll.getBoundingClientRect().left;
        return [(scroll.scrollLeft + x) / canvas.offsetWidth, x];
      }
      if (chosen) {
        const span = chart.lanes[chosen[0]].spans[chosen[1]];
        const share = (span[0] + span[1] / 2) / chart.whole, x = share * canvas.offsetWidth - scroll.scrollLeft;
        if (x >= 0 && x <= scroll.clientWidth) return [share, x];
      }
      return middle(scroll, canvas);
    };
    scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      pointer = event;
      zoomTo(level - event.deltaY / (event.deltaMode ? 10 : 200), ...around());
    }, { passive: false });
    const pan = (part) => { scroll.scrollLeft += part * scroll.clientWidth; };
    const neighbour = (by) => chosen ? choose(chosen[0], chosen[1] + by) : choose(0, nearest(0, 0));
    const lane = (by) => {
      const row = chosen ? chosen[0] + by : 0;
      if (chart.lanes[row]?.spans.length) choose(row, nearest(row, start()));
    };
    const keys = {
      w: () => zoomTo(level + 0.5, ...around()), s: () => zoomTo(level - 0.5, ...around()),
      a: () => pan(-0.15), d: () => pan(0.15), 0: () => zoomTo(least, 0, 0),
      c: () => along(true), C: () => along(false),
      ArrowLeft: () => neighbour(-1), ArrowRight: () => neighbour(1), ArrowUp: () => lane(-1), ArrowDown: () => lane(1),
      Home: () => choose(chosen?.[0] ?? 0, 0), End: () => choose(chosen?.[0] ?? 0, chart.lanes[chosen?.[0] ?? 0].spans.length - 1),
      f: () => {
        if (!chosen) return;
        const span = chart.lanes[chosen[0]].spans[chosen[1]];
        const wide = canvas.offsetWidth / 2 ** level * span[1] / chart.whole;
        zoomTo(Math.log2(0.6 * scroll.clientWidth / Math.max(wide, 1e-3)),
          (span[0] + span[1] / 2) / chart.whole, scroll.clientWidth / 2);
      },
    };
    Object.assign(keys, { "+": keys.w, "=": keys.w, "-": keys.s, W: keys.w, S: keys.s, A: keys.a, D: keys.d, F: keys.f });
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "application");
    scroll.setAttribute("aria-label", "Timeline: arrows go from span to span, W and S zoom, A and D move");
    scroll.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
  });
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
