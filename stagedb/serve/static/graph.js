// The drawing of the page Explore. Its state is the address: what is chosen or opened is a link of the page, which the
// script follows in place, so that nodes keep their places. The page works without it.
import cytoscape from "./cytoscape.min.js";

const place = document.getElementById("graph");
const status = document.getElementById("changed");
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const FONT = 11, EDGE_FONT = 8;
const EDGE_LEAST = 9;  // pixels on the screen from which types of relationships are written

function read() {
  return JSON.parse(document.getElementById("drawing").textContent);
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function style() {
  const paper = { "text-background-color": colour("--surface"), "text-background-opacity": 0.8, "text-background-padding": 1 };
  return [
    {
      selector: "node",
      style: {
        "background-color": "data(colour)", label: "data(text)", "font-size": FONT, color: colour("--ink"), width: 22, height: 22,
        "text-valign": "bottom", "text-margin-y": 3, ...paper,
      },
    },
    { selector: "node[?open]", style: { width: 32, height: 32, "border-width": 2, "border-color": colour("--ink") } },
    { selector: "node[?path]", style: { "border-width": 3, "border-color": colour("--path") } },
    { selector: "node[?at]", style: { "border-width": 4, "border-color": colour("--accent"), "font-weight": "bold" } },
    {
      selector: "edge",
      style: {
        width: 1.5, "line-color": colour("--soft"), "target-arrow-color": colour("--soft"), opacity: 0.7, "target-arrow-shape": "triangle",
        "arrow-scale": 0.8, "curve-style": "bezier", label: "data(type)", "font-size": EDGE_FONT, color: colour("--soft"),
        "text-rotation": "autorotate", "min-zoomed-font-size": EDGE_LEAST, ...paper,
      },
    },
    { selector: "edge[?path]", style: { width: 4, "line-color": colour("--path"), "target-arrow-color": colour("--path"), opacity: 1 } },
    // Where two labels would be on top of each other, the less important one waits for more room.
    { selector: ".quiet", style: { "text-opacity": 0, "text-background-opacity": 0 } },
    { selector: "node.named", style: { label: "data(full)", "text-opacity": 1, "text-background-opacity": 1, "z-index": 9 } },
    { selector: ".faded", style: { opacity: 0.2 } },
  ];
}

const elements = (drawing) => [
  ...drawing.nodes.map((data) => ({ group: "nodes", data })),
  ...drawing.edges.map((data) => ({ group: "edges", data: { id: `${data.type} ${data.source} ${data.target}`, ...data } })),
];

// ---- Where nodes are

// Both layouts begin the same way each time, so that an address has one picture.
function placed(drawing, kept, done) {
  const fixed = [...kept].map(([id, position]) => ({ nodeId: id, position }));
  const common = { animate: false, padding: 30, fit: fixed.length === 0, nodeDimensionsIncludeLabels: true };
  graph.nodes().forEach((node, at) => {
    const [near] = node.neighborhood("node").filter((other) => kept.has(other.id())).map((other) => other.position());
    const turn = at * 2.4, far = 30 + 16 * Math.sqrt(at);  // a spiral: no two begin in one place
    const from = near ?? { x: 0, y: 0 };
    if (!kept.has(node.id())) node.position({ x: from.x + far * Math.cos(turn), y: from.y + far * Math.sin(turn) });
  });
  const layout = drawing.layout === "layers"
    ? { name: "dagre", rankDir: "TB", nodeSep: 44, rankSep: 46, ...common, nodeDimensionsIncludeLabels: false, fit: true }
    : {
        name: "fcose", randomize: false, quality: "proof", idealEdgeLength: 70, nodeSeparation: 70, nodeRepulsion: 9000,
        numIter: still ? 1200 : 2500, fixedNodeConstraint: fixed.length ? fixed : undefined, ...common,
      };
  const run = graph.layout(layout);
  run.one("layoutstop", done);
  run.run();
}

// ---- Labels that do not overlap

const important = (node) => 1e6 * node.data("at") + 1e5 * (node.data("path") || node.data("found")) + 1e4 * node.data("open") + node.degree();

// Labels have the same size on the screen at every zoom, so that a closer look has room for more of them.
function name_nodes() {
  const size = Math.max(4, Math.min(FONT / graph.zoom(), 40));
  graph.batch(() => {
    graph.nodes().style("font-size", size);
    graph.elements().removeClass("quiet");
  });
  const taken = graph.nodes().map((node) => node.boundingBox({ includeLabels: false, includeOverlays: false, includeEdges: false }));
  const bodies = graph.nodes().map((node) => node.id());
  const labels = [];
  const quiet = [];
  const meet = (one, other) => one.x1 < other.x2 && other.x1 < one.x2 && one.y1 < other.y2 && other.y1 < one.y2;
  for (const node of graph.nodes().toArray().sort((one, other) => important(other) - important(one))) {
    const box = node.boundingBox({ includeNodes: false, includeEdges: false, includeOverlays: false, includeLabels: true });
    const hit = labels.some((label) => meet(box, label)) || taken.some((body, at) => bodies[at] !== node.id() && meet(box, body));
    if (hit) quiet.push(node);
    else labels.push(box);
  }
  const near = graph.extent();
  for (const edge of graph.edges().toArray()) {
    if (EDGE_FONT * graph.zoom() < EDGE_LEAST) break;
    const box = edge.boundingBox({ includeNodes: false, includeEdges: false, includeOverlays: false, includeLabels: true });
    const hit = !meet(box, near) || labels.some((label) => meet(box, label)) || taken.some((body) => meet(box, body));
    if (hit) quiet.push(edge);
    else labels.push(box);
  }
  graph.batch(() => { for (const node of quiet) node.addClass("quiet"); });
}

let naming = 0;
function name_later() {
  clearTimeout(naming);
  naming = setTimeout(name_nodes, 120);
}

// ---- Search among the nodes that are there

const find = document.querySelector("#tools [name=find]");

function mark() {
  const word = find.value.trim().toLowerCase();
  graph.batch(() => {
    graph.elements().removeClass("faded");
    if (word === "") return;
    const found = graph.nodes().filter((node) => `${node.data("full")} ${node.id()}`.toLowerCase().includes(word));
    graph.elements().not(found).addClass("faded");
    status.textContent = `${found.length} of ${graph.nodes().length} nodes are found.`;
  });
}

// ---- Another state, in place

let turn = 0;

async function go(address, push = true) {
  const mine = ++turn;
  place.setAttribute("aria-busy", "true");
  let text = null;
  try {
    const answer = await fetch(address);
    if (answer.ok) text = await answer.text();
  } catch {
    text = null;
  }
  if (mine !== turn) return;
  const page = text === null ? null : new DOMParser().parseFromString(text, "text/html");
  if (page === null || page.getElementById("drawing") === null) {
    location.assign(address);  // the page has what went wrong
    return;
  }
  if (push) history.pushState(null, "", address);
  const open = [...document.querySelectorAll("#below details")].map((each) => each.open);
  for (const id of ["panel", "legend", "below"]) document.getElementById(id).replaceWith(page.getElementById(id));
  document.querySelectorAll("#below details").forEach((each, at) => { each.open = open[at] ?? each.open; });
  const tools = document.getElementById("tools"), fresh = page.getElementById("tools");
  for (const field of tools.querySelectorAll("input[type=hidden]")) field.remove();
  tools.prepend(...fresh.querySelectorAll("input[type=hidden]"));
  const label = page.getElementById("graph").getAttribute("aria-label");
  place.setAttribute("aria-label", label);
  draw(read(), label);
}

function draw(drawing, label) {
  const wanted = new Map(elements(drawing).map((each) => [each.data.id, each]));
  const sameLayout = drawing.layout === drawn.layout;
  const kept = new Map(sameLayout ? graph.nodes().filter((node) => wanted.has(node.id())).map((node) => [node.id(), { ...node.position() }]) : []);
  const before = graph.nodes().length;
  graph.batch(() => {
    graph.elements().filter((each) => !wanted.has(each.id())).remove();
    for (const [id, each] of wanted) {
      const there = graph.getElementById(id);
      if (there.empty()) graph.add(each);
      else there.data(each.data);
    }
  });
  drawn = drawing;
  const settle = () => {
    name_nodes();
    mark();
    document.documentElement.dataset.drawn = String(graph.nodes().length);
    place.removeAttribute("aria-busy");
    status.textContent = label;
    document.getElementById("chosen")?.focus({ preventScroll: true });
  };
  const moved = kept.size < graph.nodes().length || (drawing.layout === "layers" && before !== graph.nodes().length);
  if (moved) placed(drawing, drawing.layout === "layers" ? new Map() : kept, settle);
  else settle();
}

// ---- Start

let drawn = read();
const graph = cytoscape({
  container: place, elements: elements(drawn), style: style(), layout: { name: "null" }, minZoom: 0.05, maxZoom: 4,
  boxSelectionEnabled: false, textureOnViewport: true,
});
window.graph = graph;

graph.on("onetap", "node", ({ target }) => go(target.data("to")));
graph.on("dbltap", "node", ({ target }) => { if (target.data("turn")) go(target.data("turn")); });
graph.on("mouseover", "node", ({ target }) => { target.addClass("named"); place.style.cursor = "pointer"; });
graph.on("mouseout", "node", ({ target }) => { target.removeClass("named"); place.style.cursor = ""; });
graph.on("viewport", name_later);
graph.on("dragfree", "node", name_later);

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/explore?']");
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", () => go(location.pathname + location.search, false));
find.addEventListener("input", mark);
document.getElementById("tools").addEventListener("submit", (event) => {
  event.preventDefault();
  const words = new URLSearchParams([...new FormData(event.target)].filter(([, value]) => value !== ""));
  go(`/explore?${words}`);
});
const zoom = (by) => graph.zoom({ level: graph.zoom() * by, renderedPosition: { x: graph.width() / 2, y: graph.height() / 2 } });
document.getElementById("closer").addEventListener("click", () => zoom(1.4));
document.getElementById("farther").addEventListener("click", () => zoom(1 / 1.4));
document.getElementById("fit").addEventListener("click", () => graph.fit(undefined, 30));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => graph.style(style()));

document.querySelector(".zoom").hidden = false;
document.getElementById("hint").hidden = false;
placed(drawn, new Map(), () => {
  name_nodes();
  mark();
  document.documentElement.dataset.drawn = String(graph.nodes().length);
});
