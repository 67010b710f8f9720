// The page Cypher: an editor in place of the text area, fields for parameters, and what this browser keeps. The page works
// without it. Neo4j's language support runs in a worker, which starts when the page is there.
import {
  autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, completionKeymap, cypher, Decoration, defaultKeymap,
  drawSelection, EditorState, EditorView, HighlightStyle, history, historyKeymap, keymap, lineNumbers, lintKeymap,
  setDiagnostics, StateEffect, StateField, StreamLanguage, syntaxHighlighting, tags,
} from "./codemirror.min.js";

const form = document.getElementById("question");
const area = document.getElementById("query");
const words = JSON.parse(document.getElementById("schema").textContent);
const CHOSEN = ["instance", "profile", "run"];

// ---- Neo4j's language support

const waiting = new Map();
let asked = 0;
let worker = null;

function ask(request) {
  if (worker === null) return Promise.resolve(null);
  const number = ++asked;
  return new Promise((resolve) => {
    waiting.set(number, resolve);
    worker.postMessage({ number, ...request });
  });
}

function startWorker() {
  if (typeof Worker !== "function") return null;
  worker = new Worker(new URL("cypher_worker.js", import.meta.url), { type: "module" });
  worker.addEventListener("message", ({ data }) => {
    waiting.get(data.number)?.(data.result);
    waiting.delete(data.number);
  });
  worker.addEventListener("error", () => {
    worker = null;  // a browser that is too old for it has the editor alone
    for (const resolve of waiting.values()) resolve(null);
    waiting.clear();
  });
  return ask({ ask: "prepare", words });
}

// ---- The editor

// Its styles are in a shadow root: pages allow no inline styles, and a shadow root takes sheets that a script makes.
const host = document.getElementById("editor");
const root = host.attachShadow({ mode: "open" });

const theme = EditorView.theme({
  "&": {
    border: "1px solid var(--control)", borderRadius: "8px", background: "var(--surface)", color: "var(--ink)",
    fontSize: "14px", resize: "vertical", overflow: "hidden", minHeight: "172px", height: "var(--editor-height, 220px)",
  },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", lineHeight: "1.5", overflow: "auto" },
  ".cm-content": { caretColor: "var(--ink)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { background: "var(--idle)", color: "var(--soft)", border: "0" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "var(--chosen)" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { background: "var(--chosen)" },
  ".cm-tooltip": { background: "var(--surface)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "6px" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": { background: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { color: "inherit", fontStyle: "normal" },
  ".cm-completionInfo": { maxWidth: "min(420px, 70vw)", whiteSpace: "pre-line", padding: "6px 10px" },
  ".cm-diagnostic": { borderLeft: "4px solid var(--bad)" },
  ".c-keyword": { color: "var(--code-keyword)", fontWeight: "600" },
  ".c-label": { color: "var(--code-label)" },
  ".c-property": { color: "var(--code-property)" },
  ".c-function, .c-procedure": { color: "var(--code-function)" },
  ".c-paramValue, .c-paramDollar": { color: "var(--code-parameter)" },
  ".c-stringLiteral, .c-numberLiteral, .c-booleanLiteral": { color: "var(--code-literal)" },
  ".c-comment": { color: "var(--soft)", fontStyle: "italic" },
});

// Until the worker is there, and in browsers without it.
const simple = syntaxHighlighting(HighlightStyle.define([
  { tag: tags.keyword, color: "var(--code-keyword)", fontWeight: "600" },
  { tag: [tags.string, tags.number], color: "var(--code-literal)" },
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
]));

const recolour = StateEffect.define();
const colours = StateField.define({
  create: () => Decoration.none,
  update(found, transaction) {
    for (const effect of transaction.effects) if (effect.is(recolour)) return effect.value;
    return found.map(transaction.changes);
  },
  provide: (field) => EditorView.decorations.from(field),
});

const COLOURED = new Set([
  "keyword", "label", "property", "function", "procedure", "paramValue", "paramDollar", "stringLiteral", "numberLiteral",
  "booleanLiteral", "comment",
]);

async function colour() {
  const state = view.state;
  const found = await ask({ ask: "colours", text: state.doc.toString() });
  if (found === null || view.state.doc !== state.doc) return;
  const marks = found.filter(([, length, type]) => length > 0 && COLOURED.has(type))
    .map(([at, length, type]) => Decoration.mark({ class: `c-${type}` }).range(at, at + length));
  view.dispatch({ effects: recolour.of(Decoration.set(marks, true)) });
}

const SEVERITIES = { 1: "error", 2: "warning", 3: "info", 4: "info" };

async function check() {
  const state = view.state;
  const text = state.doc.toString();
  const isName = /^\s*[A-Za-z][\w/-]*\s*$/.test(text);
  const found = isName ? [] : await ask({ ask: "check", text });
  if (found === null || view.state.doc !== state.doc) return;
  const within = (place) => Math.max(0, Math.min(place, state.doc.length));
  view.dispatch(setDiagnostics(view.state, found.map((each) => ({
    from: within(each.from), to: within(each.to), severity: SEVERITIES[each.severity] ?? "info",
    message: each.message.replace("is not present in the database. Make sure you didn't misspell it or that it is available when you run this statement in your application", "is not in the schema of stores"),
  }))));
}

const KINDS = { 3: "function", 6: "variable", 10: "property", 14: "keyword", 15: "text", 25: "class" };

function meaning(label, kind) {
  if (kind === 25) return words.labels[label] ?? words.types[label];
  if (kind === 10) return words.properties[label];
  return label.startsWith("$") ? words.parameters[label.slice(1)] : undefined;
}

// The places of a completion's text that a person fills in are left empty.
const filled = (text) => text.replace(/\$\{\d+:?([^}]*)\}/g, "$1");

async function complete(context) {
  const text = context.state.doc.toString();
  const word = context.matchBefore(/[\w$]*/);
  const before = text.slice(0, word.from);
  if (!context.explicit && word.text === "" && !/[:.$({-]$/.test(before)) return null;
  const found = await ask({ ask: "complete", text, place: context.pos, manual: context.explicit });
  if (found === null || context.aborted) return null;
  const from = word.text.startsWith("$") && !found.some((each) => (each.insertText ?? each.label).startsWith("$")) ? word.from + 1 : word.from;
  const options = found.map(({ label, kind, insertText, detail }) => ({
    label, type: KINDS[kind] ?? "text", apply: insertText === undefined ? label : filled(insertText), info: meaning(label, kind),
    detail: kind === 25 || kind === 10 ? undefined : detail, boost: kind === 25 || kind === 10 ? 2 : kind === 6 ? 1 : kind === 14 ? -1 : 0,
  }));
  if (before.trim() === "")
    options.push(...Object.entries(words.queries).map(([label, info]) => ({ label, info, type: "text", detail: "named query", boost: -2 })));
  return { from, options, validFor: /^\w*$/ };
}

let view = null;
let later = 0;

function changed() {
  area.value = view.state.doc.toString();
  clearTimeout(later);
  later = setTimeout(() => { drawParameters(); colour(); check(); }, 200);
}

function run() {
  form.requestSubmit();
  return true;
}

function startEditor() {
  view = new EditorView({
    root, parent: root, doc: area.value,
    extensions: [
      keymap.of([{ key: "Mod-Enter", run }]),
      lineNumbers(), history(), drawSelection(), bracketMatching(), closeBrackets(), EditorView.lineWrapping,
      autocompletion({ override: [complete] }),
      StreamLanguage.define(cypher), simple, colours, theme,
      keymap.of([...closeBracketsKeymap, ...completionKeymap, ...lintKeymap, ...historyKeymap, ...defaultKeymap]),
      EditorState.tabSize.of(2),
      EditorView.contentAttributes.of({ "aria-label": "Query that only reads", spellcheck: "false", autocapitalize: "off" }),
      EditorView.updateListener.of((update) => { if (update.docChanged) changed(); }),
    ],
  });
  area.hidden = true;
  area.required = false;
  document.querySelector("label[for=query]").addEventListener("click", () => view.focus());
}

// ---- Fields for the parameters of the text

const PIECE = /\/\/[^\r\n]*|\/\*[\s\S]*?\*\/|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`|\$\s*(\w+|`(?:[^`]|``)*`)/g;

function parametersOf(text) {
  const found = [...text.matchAll(PIECE)].filter((each) => each[1] !== undefined).map((each) => each[1].replace(/^`|`$/g, ""));
  return [...new Set(found)];
}

function drawParameters() {
  const box = document.getElementById("parameters");
  const fieldOf = (name) => (CHOSEN.includes(name) ? name : `$${name}`);
  const wanted = parametersOf(area.value);
  const there = new Map([...box.querySelectorAll("input")].map((input) => [input.name, input.parentElement]));
  const kept = wanted.map((name) => there.get(fieldOf(name)) ?? newField(name, fieldOf(name)));
  for (const [name, label] of there)
    if (!kept.includes(label) && CHOSEN.includes(name) && label.querySelector("input").value) kept.push(label);
  if (kept.length !== box.children.length || kept.some((label, at) => label !== box.children[at])) box.replaceChildren(...kept);
}

function newField(name, field) {
  const label = document.createElement("label");
  label.append(`$${name}${CHOSEN.includes(name) ? " (the newest)" : ""} `);
  const input = document.createElement("input");
  input.name = field;
  if (CHOSEN.includes(name)) input.setAttribute("list", "names");
  label.append(input);
  const about = words.parameters[name];
  if (about !== undefined && !CHOSEN.includes(name)) {
    const small = document.createElement("small");
    small.textContent = about;
    label.append(small);
  }
  return label;
}

// ---- What this browser keeps: the last queries, and those with a name

const MOST = 50;

function kept(name) {
  try {
    const found = JSON.parse(localStorage.getItem(`stagedb.${name}`) ?? "[]");
    return Array.isArray(found) ? found.filter((each) => typeof each?.query === "string") : [];
  } catch {
    return [];
  }
}

function keep(name, rows) {
  try {
    localStorage.setItem(`stagedb.${name}`, JSON.stringify(rows.slice(0, MOST)));
  } catch {
    document.getElementById("kept").textContent = "This browser keeps nothing for pages.";
  }
}

// The query with the values of its fields, as an address has it.
function question() {
  const found = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value) found.append(name, value);
  return found.toString();
}

function drawShelf(id, rows, onRemove) {
  const shelf = document.getElementById(id);
  shelf.hidden = rows.length === 0;
  shelf.querySelector("ul").replaceChildren(...rows.map((row) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `/cypher?${row.query}`;
    const text = new URLSearchParams(row.query).get("query") ?? "";
    link.textContent = row.name ?? text.replace(/\s+/g, " ");
    link.title = text;
    item.append(link);
    if (onRemove) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "plain";
      button.textContent = "Remove";
      button.setAttribute("aria-label", `Remove ${row.name}`);
      button.addEventListener("click", () => onRemove(row));
      item.append(button);
    }
    return item;
  }));
}

function drawShelves() {
  drawShelf("history", kept("history"));
  drawShelf("saved", kept("saved"), (row) => {
    keep("saved", kept("saved").filter((each) => each.name !== row.name));
    drawShelves();
  });
}

function startShelves() {
  const status = document.getElementById("kept");
  document.getElementById("keep").hidden = false;
  if (document.getElementById("answer") !== null) {
    const query = question();
    keep("history", [{ query }, ...kept("history").filter((each) => each.query !== query)]);
  }
  document.getElementById("save").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = event.target.elements.name.value.trim();
    if (name === "") return;
    keep("saved", [{ name, query: question() }, ...kept("saved").filter((each) => each.name !== name)]);
    status.textContent = `Saved as ${name}.`;
    event.target.reset();
    drawShelves();
  });
  document.getElementById("copy").addEventListener("click", async () => {
    const address = `${location.origin}/cypher?${question()}`;
    try {
      await navigator.clipboard.writeText(address);
      status.textContent = "The link is copied: whoever may open this server sees the same.";
    } catch {
      status.textContent = address;  // without HTTPS a browser does not let pages copy
    }
  });
  document.getElementById("forget").addEventListener("click", () => { keep("history", []); drawShelves(); });
  drawShelves();
}

startEditor();
startShelves();
drawParameters();
window.editor = view;
document.documentElement.dataset.editor = "yes";
const start = async () => {
  await startWorker();
  await colour();
  await check();
  document.documentElement.dataset.language = worker === null ? "none" : "yes";
};
if (document.readyState === "complete") setTimeout(start, 0);
else addEventListener("load", () => setTimeout(start, 0));
