"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.querySelector(".canvas");
  const tip = document.getElementById("tip");
  const said = (ns) => {
    for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["us", 1e3]]) {
      if (ns >= size) return `${Number((ns / size).toPrecision(3))} ${unit}`;
    }
    return `${ns} ns`;
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
  const show = (event) => {
    const box = canvas.querySelector("svg").getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top) / box.height * data.lanes.length);
    const time = (event.clientX - box.left) / box.width * data.step;
    const lane = data.lanes[row];
    if (!lane || time < 0 || time > data.step) { tip.style.display = "none"; return; }
    const span = find(lane.spans, time);
    const what = span ? data.words[span[2]] : "waiting";
    const batch = span && span[3] >= 0 ? `, micro-batch ${span[3]}` : "";
    const chunk = span && span[5] ? `, chunk ${span[5]}` : "";
    const length = span ? `\n${said(span[1])}, from ${said(span[0])}${span[4] ? `; ${span[4]}% of it computes` : ""}` : `\nat ${said(time)}`;
    tip.textContent = `${lane.name}: ${what}${batch}${chunk}${length}`;
    tip.style.display = "block";
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${event.clientY + 18}px`;
  };
  if (canvas && data.lanes.length) {
    canvas.addEventListener("pointermove", show);
    canvas.addEventListener("pointerdown", show);
    canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  }
  const zoom = document.getElementById("zoom");
  if (zoom && canvas) {
    zoom.addEventListener("input", () => {
      const scroll = canvas.parentElement;
      const centre = (scroll.scrollLeft + scroll.clientWidth / 2) / canvas.offsetWidth;
      canvas.style.setProperty("--zoom", String(2 ** Number(zoom.value)));
      scroll.scrollLeft = centre * canvas.offsetWidth - scroll.clientWidth / 2;
    });
  }

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
