// Neo4j's language support, which is large and slow to start, away from the page. A request has a number, what is asked
// for, the text, and for a completion the place; the answer has the number and the result.
import { CypherLanguageService } from "./cypher-language.min.js";

const service = new CypherLanguageService({ consoleCommandsEnabled: false });
let schema = {};

// Functions of the language that both engines have, with what they take.
const FUNCTIONS = {
  abs: "number", all: "x IN list WHERE condition", any: "x IN list WHERE condition", avg: "value", ceil: "number",
  coalesce: "value, …", collect: "value", count: "value", elementId: "node or relationship", endNode: "relationship",
  exists: "pattern", floor: "number", head: "list", keys: "node, relationship or map", labels: "node", last: "list",
  left: "text, length", length: "path", log: "number", max: "value", min: "value", nodes: "path", none: "x IN list WHERE condition",
  percentileCont: "value, share", properties: "node, relationship or map", range: "first, last, step",
  reduce: "sum = start, x IN list | expression", relationships: "path", replace: "text, old, new", right: "text, length",
  round: "number, digits", size: "list or text", split: "text, at", sqrt: "number", startNode: "relationship", stDev: "value",
  substring: "text, start, length", sum: "value", tail: "list", timestamp: "", toFloat: "value", toInteger: "value",
  toLower: "text", toString: "value", toUpper: "text", trim: "text", type: "relationship",
};

function prepare(words) {
  const functions = Object.fromEntries(Object.entries(FUNCTIONS).map(([name, takes]) => [name, {
    name, category: "", description: `${name}(${takes})`, isBuiltIn: true, argumentDescription: [], returnDescription: "",
    signature: `${name}(${takes})`, aggregating: false, isDeprecated: false,
  }]));
  schema = {
    labels: Object.keys(words.labels), relationshipTypes: Object.keys(words.types), propertyKeys: Object.keys(words.properties),
    parameters: Object.fromEntries(Object.keys(words.parameters).map((name) => [name, ""])),
    graphSchema: words.edges.map(([from, relType, to]) => ({ from, relType, to })),
    functions: { "CYPHER 5": functions }, procedures: {}, defaultLanguage: "CYPHER 5",
  };
}

const ANSWERS = {
  prepare: ({ words }) => prepare(words),
  colours: ({ text }) => service.highlightSyntax(text).map(({ position, length, tokenType }) => [position.startOffset, length, tokenType]),
  complete: ({ text, place, manual }) => service.autocomplete(text, schema, { caretPosition: place, manual })
    .map(({ label, kind, insertText, detail, sortText }) => ({ label, kind, insertText, detail, sortText })),
  check: ({ text }) => service.lint(text, schema).diagnostics
    // The store has more functions than this list, and values of parameters are in the fields of the page.
    .filter(({ message }) => !/^(Function|Parameter) /.test(message))
    .map(({ message, severity, offsets }) => ({ message, severity, from: offsets.start, to: offsets.end })),
};

addEventListener("message", ({ data }) => {
  let result = null;
  try {
    result = ANSWERS[data.ask](data);
  } catch {
    // A text that its parser cannot take has no colours and no completion. The store names what is wrong with it.
  }
  postMessage({ number: data.number, result });
});
