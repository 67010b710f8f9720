// What a reader does with the picture of a search: tooltips, colours, choosing a plan. Tables have the same without it.
"use strict";
for (const figure of document.querySelectorAll(".candidates")) {
  const source = figure.querySelector("script");
  if (!source) continue;
  const data = JSON.parse(source.textContent);
  const picked = figure.querySelector(".picked"), legend = figure.querySelector(".legend");
  const tip = document.createElement("div");
  tip.className = "tip";
  figure.append(tip);
  figure.classList.add("live");
  const NEAR = 18;

  // Each view has some of the marks: `numbers` are those of data. Places are shares of the field.
  const areas = [...figure.querySelectorAll(".area")].map((area) => {
    const marks = [...area.querySelectorAll(".marks circle")];
    marks.forEach((mark) => mark.querySelector("title")?.remove());
    const [x, y] = ["cx", "cy"].map((name) => marks.map((mark) => parseFloat(mark.getAttribute(name)) / 100));
    const by = (places) => places.map((_, at) => at).sort((one, other) => places[one] - places[other] || one - other);
    return {
      area, marks, x, y, orders: { x: by(x), y: by(y) }, numbers: data.views[area.dataset.show], at: -1, chosen: -1,
      field: area.querySelector(".field"), ring: area.querySelector(".ring"),
    };
  });
  const nearest = (view, event) => {
    const box = view.field.getBoundingClientRect();
    const right = event.clientX - box.left, down = event.clientY - box.top;
    let found = -1, least = NEAR * NEAR;
    for (let at = 0; at < view.marks.length; at += 1) {
      const far = (view.x[at] * box.width - right) ** 2 + (view.y[at] * box.height - down) ** 2;
      if (far <= least) { least = far; found = at; }
    }
    return found;
  };
  const mark = (view, at) => {
    view.ring.classList.toggle("on", at >= 0);
    if (at >= 0) for (const name of ["cx", "cy"]) view.ring.setAttribute(name, view.marks[at].getAttribute(name));
  };
  const hide = (view) => { tip.style.display = "none"; mark(view, view.chosen); };
  const show = (view, at) => {
    view.at = at;
    mark(view, at);
    const box = view.field.getBoundingClientRect();
    tip.textContent = data.texts[view.numbers[at]];
    tip.style.display = "block";
    const right = box.left + view.x[at] * box.width + 14, down = box.top + view.y[at] * box.height + 14;
    tip.style.left = `${Math.max(Math.min(right, innerWidth - tip.offsetWidth - 8), 4)}px`;
    tip.style.top = `${Math.max(Math.min(down, innerHeight - tip.offsetHeight - 4), 4)}px`;
  };
  // Choosing a plan writes it below, with its command and its links, and marks its row.
  const choose = (view, at) => {
    view.chosen = at;
    mark(view, at);
    const number = view.numbers[at], place = data.places[number], more = data.chosen[place];
    picked.replaceChildren(data.texts[number]);
    document.querySelectorAll("tr.picked").forEach((row) => row.classList.remove("picked"));
    const row = document.getElementById(`plan-${place}`);
    row?.classList.add("picked");
    const made = (tag, words) => Object.assign(document.createElement(tag), words);
    if (more?.command) picked.append(made("code", { textContent: more.command }));
    const links = [...(row ? [["its row", `#plan-${place}`]] : []), ...(more?.links ?? [])];
    if (links.length) picked.append("\n", ...links.map(([textContent, href]) => made("a", { textContent, href })));
  };
  // The first key goes to the best plan, further ones to the next mark by memory or by step.
  const keys = { ArrowRight: ["x", 1], ArrowLeft: ["x", -1], ArrowDown: ["y", 1], ArrowUp: ["y", -1] };
  const beyond = (view, axis, way) => {
    const order = view.orders[axis];
    if (view.at < 0) return view.marks.length - 1;
    return order[Math.min(Math.max(order.indexOf(view.at) + way, 0), order.length - 1)];
  };
  for (const view of areas) {
    view.field.addEventListener("pointermove", (event) => {
      const at = nearest(view, event);
      if (at < 0) hide(view); else show(view, at);
    });
    for (const name of ["pointerleave", "blur"]) view.field.addEventListener(name, () => hide(view));
    view.field.addEventListener("click", (event) => {
      const at = nearest(view, event);
      if (at >= 0) { show(view, at); choose(view, at); }
    });
    view.field.addEventListener("keydown", (event) => {
      if (event.key in keys) {
        show(view, beyond(view, ...keys[event.key]));
        picked.textContent = tip.textContent;
      } else if (event.key === "Enter" && view.at >= 0) choose(view, view.at);
      else if (event.key === "Escape") hide(view);
      else return;
      event.preventDefault();
    });
  }

  const controls = figure.querySelector(".controls");
  controls.addEventListener("change", () => {
    const coloring = data.colorings.find((each) => each.word === controls.querySelector("[name=color]").value);
    const shown = controls.querySelector("[name=show]")?.value ?? areas[0].area.dataset.show;
    legend.replaceChildren(...coloring.names.map((name, at) => {
      const item = document.createElement("span"), key = document.createElement("i");
      key.className = `k${coloring.colors[at]}`;
      item.append(key, name);
      return item;
    }));
    for (const view of areas) {
      view.area.hidden = view.area.dataset.show !== shown;
      view.marks.forEach((each, at) => {
        const color = coloring.colors[coloring.of[view.numbers[at]]];
        each.setAttribute("class", each.getAttribute("class").replace(/^k\d+/, `k${color}`));
      });
      hide(view);
    }
    // The address of a page has all of its state; a report has none.
    if (controls.tagName === "FORM") history.replaceState(null, "", `?${new URLSearchParams(new FormData(controls))}`);
  });
  const button = controls.querySelector("button");
  if (button) button.hidden = true;
}
