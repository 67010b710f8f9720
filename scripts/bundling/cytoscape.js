// Drawings of graphs, with layouts that keep nodes apart: by forces, and in layers along the arrows.
import cytoscape from "cytoscape";
import dagre from "cytoscape-dagre";
import fcose from "cytoscape-fcose";
cytoscape.use(dagre);
cytoscape.use(fcose);
export default cytoscape;
