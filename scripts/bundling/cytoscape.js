// Drawings of graphs, with a layout that keeps nodes apart.
import cytoscape from "cytoscape";
import fcose from "cytoscape-fcose";
cytoscape.use(fcose);
export default cytoscape;
