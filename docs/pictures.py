"""Draws parts of the graph as SVG: what the data file of the forty questions asks for, laid out by Graphviz.

    .venv/bin/python -m docs.pictures            all pictures, and the style file of the Neo4j Browser
    .venv/bin/python -m docs.pictures NAME …     some pictures

Graphviz is a build in WebAssembly from npm, so Node.js is all that it takes. The layout and the colours come from the
schema's table and the answer of the picture's query alone: an SVG carries the digest of the text that it is drawn from.
"""

import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs import forty
from docs.forty import Picture
from stagedb.api.client import Stagedb
from stagedb.store import LABELS, connect, embedded

IMAGES = Path(__file__).with_name("images")
STYLE = Path(__file__).with_name("stagedb.grass")
GRAPHVIZ = "@viz-js/viz@3.31.0"
DRAW = """
import { instance } from "@viz-js/viz";
import { readFileSync } from "node:fs";
const viz = await instance();
process.stdout.write(viz.renderString(readFileSync(0, "utf-8"), { format: "svg", engine: "dot" }));
"""
DIGEST = re.compile(r"<!-- drawn from ([0-9a-f]{64}) -->")
GREY = "#6e7781"
"""The colour of arrows and their names: it can be read on white and on black."""
INK = "#1b1f24"
STYLES = {label.name: label.style for label in LABELS}
TEXT, SMALL = 12, 10
"""Sizes of letters: in nodes, and on arrows and in the legend."""
ROOM = 1.15
"""How much wider than Helvetica the letters of a reader's fonts may be: boxes are made for letters of that size."""
PLACES = ("index", "number", "class")
"""Properties that decide which of several nodes comes first."""
VARYING = frozenset(("id", "created", "claim", "builder", "owner", "lease"))
"""Properties that have no effect on the order of nodes."""


@dataclass(frozen=True)
class Node:
    """A node of the answer: its first label of the schema's table, its properties."""

    label: str
    properties: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return self.label, str(self.properties["id"])

    @property
    def order(self) -> tuple[str, int, str]:
        """The same for the same content, in any order of an engine's answer."""
        place = next((self.properties[name] for name in PLACES if name in self.properties), 0)
        known = {name: value for name, value in self.properties.items() if name not in VARYING}
        return self.label, place, json.dumps(known, sort_keys=True)


def node_of(value: Mapping[str, Any]) -> Node:
    """A node as an answer has it."""
    label = next(name for name in STYLES if name in value["labels"])
    return Node(label, value["properties"])


def dot(picture: Picture, rows: Iterable[Mapping[str, Any]]) -> str:
    """The picture as Graphviz reads it."""
    found = [(node_of(row["head"]), str(row["type"]), node_of(row["tail"])) for row in rows]
    nodes = {node.key: node for head, _, tail in found for node in (head, tail)}
    numbers = {key: at for at, key in enumerate(sorted(nodes, key=lambda key: nodes[key].order))}
    colours = Counter(STYLES[label][0] for label in {node.label for node in nodes.values()})
    alike = {label for label, (colour, _) in STYLES.items() if colours[colour] > 1}
    edges = sorted({(numbers[head.key], type_, numbers[tail.key]) for head, type_, tail in found})
    lines = [
        "digraph {",
        f'  graph [rankdir={picture.direction} bgcolor="transparent" pad="0.1" nodesep="0.2" ranksep="0.3"',
        f"    labelloc=b label={_legend({node.label for node in nodes.values()})}];",
        '  node [shape=box style="rounded,filled" penwidth=0 margin="0.06,0.05" height="0.3" fontname="Helvetica"',
        f'    fontsize={ROOM * TEXT:g} fontcolor="{INK}"];',
        f'  edge [color="{GREY}" fontcolor="{GREY}" fontname="Helvetica" fontsize={ROOM * SMALL:g} arrowsize="0.6"];',
        *(f"  n{number} {_look(picture, nodes[key], alike)};" for key, number in numbers.items()),
        *(_edge(picture, *edge) for edge in edges),
    ]
    return "\n".join([*lines, "}", ""])


def _look(picture: Picture, node: Node, alike: Set[str]) -> str:
    """How a node looks. alike: labels of the same colour, whose nodes show the label too."""
    colour, caption = STYLES[node.label]
    value = node.properties.get(caption)
    more = [name for name in picture.more.get(node.label, ()) if node.properties.get(name) is not None]
    name = f"{caption} {_text(value)}" if isinstance(value, int) else _text(value)
    lines = [f":{node.label} {name}" if node.label in alike else name]
    lines += [" · ".join(f"{name} {_text(node.properties[name])}" for name in more)] if more else []
    label = "\\n".join(line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    line = "" if picture.line is None else f' group="{node.properties.get(picture.line)}"'
    return f'[fillcolor="{colour}" label="{label}"{line}]'


def _edge(picture: Picture, head: int, type_: str, tail: int) -> str:
    name = type_.split()[0]
    if name in picture.backwards:
        return f'  n{tail} -> n{head} [label="{type_}" dir=back];'
    if name in picture.level:
        return f'  {{rank=same; n{head} -> n{tail} [xlabel="{type_} "];}}'
    return f'  n{head} -> n{tail} [label="{type_}"];'


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def _legend(labels: set[str]) -> str:
    """Each label's name on its colour, as one of Graphviz's tables."""
    font = f'FACE="Helvetica" POINT-SIZE="{ROOM * SMALL:g}" COLOR="{INK}"'
    cells = "".join(
        f'<TD BGCOLOR="{colour}"><FONT {font}>:{name}&#160;</FONT></TD>'
        for name, (colour, _) in STYLES.items()
        if name in labels
    )
    return f'<<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="6" CELLPADDING="4"><TR>{cells}</TR></TABLE>>'


def digest(text: str) -> str:
    """The digest of the text that a picture is drawn from."""
    return hashlib.sha256(text.encode()).hexdigest()


def drawn_from(svg: str) -> str | None:
    """The digest that a picture carries."""
    found = DIGEST.search(svg)
    return found and found[1]


def svg(text: str, title: str, tools: Path) -> str:
    """A text of Graphviz drawn, with a title for readers who do not see it."""
    drawn = subprocess.run(
        ["node", "--input-type=module", "-e", DRAW], input=text, capture_output=True, text=True, check=True, cwd=tools
    ).stdout
    for size in (TEXT, SMALL):
        drawn = drawn.replace(f'font-size="{ROOM * size:.2f}"', f'font-size="{size}"')
    start = drawn.index("<svg")
    body = re.sub(r"<title>.*?</title>\n?", "", drawn[start:])
    body = re.sub(r"<!-- .*? -->\n", "", body, flags=re.DOTALL)
    head, rest = body.split(">", 1)
    head = f'{head} role="img" aria-label="{html.escape(title)}"'
    return f"<!-- drawn from {digest(text)} -->\n{head}>{rest}"


def install(tools: Path) -> None:
    """Graphviz from npm."""
    command = ["npm", "install", "--no-fund", "--no-audit", "--no-save", "--prefix", str(tools), GRAPHVIZ]
    subprocess.run(command, check=True, capture_output=True, cwd=tools)


def grass() -> str:
    """The same colours and captions for the Neo4j Browser, in the language of its style files."""
    rules = [
        _rule("node", diameter="60px", border_width="1px", font_size="11px", text_color_internal=INK),
        _rule("relationship", color=GREY, shaft_width="1px", font_size="9px", padding="3px", caption='"<type>"'),
    ]
    for label in LABELS:
        colour, caption = label.style
        for name in (label.name, *label.also):
            look = {"color": colour, "border_color": colour, "text_color_internal": INK}
            rules.append(_rule(f"node.{name}", **look, caption=f'"{{{caption}}}"'))
    return "\n".join(rules)


def _rule(selector: str, **properties: str) -> str:
    lines = [f"  {name.replace('_', '-')}: {value};\n" for name, value in properties.items()]
    return f"{selector} {{\n{''.join(lines)}}}\n"


def main(names: list[str]) -> None:
    if not names:
        STYLE.write_text(grass(), encoding="utf-8")
    data = forty.read()
    with tempfile.TemporaryDirectory(prefix="stagedb-pictures-") as folder:
        tools, home = Path(folder, "tools"), Path(folder, "home")
        tools.mkdir()
        install(tools)
        try:
            with connect(environment={}, home=home) as store:
                db = Stagedb(store)
                forty.fill(db, data)
                for question in data.questions:
                    picture = question.picture
                    if picture is not None and (not names or picture.file in names):
                        text = dot(picture, forty.drawn(db, question))
                        (IMAGES / f"{picture.file}.svg").write_text(svg(text, picture.title, tools), encoding="utf-8")
        finally:
            embedded.stop(home)


if __name__ == "__main__":
    main(sys.argv[1:])
