// Draws the open nodes and their neighbours. A click opens a node: its address has the new state.
import cytoscape from "./cytoscape.min.js";

const drawing = JSON.parse(document.getElementById("drawing").textContent);
const colours = getComputedStyle(document.documentElement);
const colour = (name) => colours.getPropertyValue(name).trim();
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
const opened = drawing.nodes.filter((node) => node.open).length;
window.graph = cytoscape({
  container: document.getElementById("graph"),
  elements: {
    nodes: drawing.nodes.map((node) => ({ data: node })),
    edges: drawing.edges.map((edge, number) => ({ data: { id: `edge ${number}`, ...edge } })),
  },
  style: [
    {
      selector: "node",
      style: {
        "background-color": "data(colour)", label: "data(text)", "font-size": 9, color: colour("--ink"),
        width: 22, height: 22, "text-valign": "bottom", "text-margin-y": 2, "text-max-width": 90,
        "text-wrap": "ellipsis", "min-zoomed-font-size": 6,
      },
    },
    { selector: "node[?open]", style: { width: 32, height: 32, "border-width": 2, "border-color": colour("--ink") } },
    { selector: "node[?at]", style: { "border-width": 4, "border-color": colour("--accent"), "font-weight": "bold" } },
    {
      selector: "edge",
      style: {
        width: 1, "line-color": colour("--soft"), "target-arrow-color": colour("--soft"), opacity: 0.7,
        "target-arrow-shape": "triangle", "arrow-scale": 0.7, "curve-style": "bezier", label: "data(type)",
        "font-size": 7, color: colour("--soft"), "text-rotation": "autorotate", "min-zoomed-font-size": 7,
      },
    },
  ],
  // One open node has its neighbours around it; several need distances. Both begin the same way each time.
  layout: opened === 1
    ? { name: "concentric", concentric: (node) => (node.data("open") ? 2 : 1), levelWidth: () => 1, animate: false,
        minNodeSpacing: 14, padding: 24 }
    : { name: "cose", animate: false, randomize: false, padding: 24, nodeRepulsion: () => 9000, idealEdgeLength: () => 60,
        numIter: still ? 300 : 600 },
  minZoom: 0.2, maxZoom: 3, boxSelectionEnabled: false, autoungrabify: false,
});
window.graph.on("tap", "node", (event) => {
  const node = event.target.data();
  if (!node.at) location.assign(node.to);
});
window.graph.on("mouseover", "node", () => { document.getElementById("graph").style.cursor = "pointer"; });
window.graph.on("mouseout", "node", () => { document.getElementById("graph").style.cursor = ""; });
document.documentElement.dataset.drawn = String(window.graph.nodes().length);
