"""The graph to look around in: open nodes and their neighbours, answers, paths. The address has all of it."""

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Stagedb
from stagedb.api.neighbourhood import (
    FAR,
    FARTHEST,
    MANY,
    MOST_FOUND,
    MOST_OPEN,
    GraphEdge,
    GraphNode,
    NeighbourKind,
    ShortestPath,
    SubGraph,
    can_open,
    parts_of,
    types_between,
)
from stagedb.api.querying import CHOSEN
from stagedb.errors import UsageError
from stagedb.files import GB, printable, shown
from stagedb.reports.page_frame import as_json
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames
from stagedb.serve.page_frames import SHORT_ID, address, cell, named
from stagedb.serve.query_pages import free_question, query_text
from stagedb.store import LABELS, Property, load

# What the page Explore shows, as its address has it: open nodes, an answer, a path, and what is left out.

KEPT = 60
"""Nodes without their neighbours that an address has: those that were closed, the last ones."""

LAYOUTS = ("forces", "layers")
"""How a drawing places its nodes: by forces between them, or in layers along the arrows."""


@dataclass(frozen=True)
class Scene:
    """The state of the page.

    node: keys of open nodes. more: `KEY~KIND`, kinds of neighbours of which more are shown. show: keys of nodes without
    their neighbours. at: key of the chosen node. start: name of a query of `STARTS`. asked: the words of a
    query (`query`, `$name`, `instance` …), for `start` without its text. source, target, over: a path. hide: labels,
    and types with `-` before them. find: a text that marks nodes. layout: one of `LAYOUTS`; None: what suits.
    """

    node: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    at: str | None = None
    start: str | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None
    target: str | None = None
    over: str | None = None
    hide: tuple[str, ...] = ()
    find: str | None = None
    layout: str | None = None

    @property
    def words(self) -> dict[str, Any]:
        """The query of the scene's address, by name."""
        lists = {"node": self.node, "more": self.more, "show": self.show, "hide": self.hide}
        path = {"from": self.source, "to": self.target, "over": self.over}
        one = {"at": self.at, "start": self.start, **self.asked, **path, "find": self.find, "layout": self.layout}
        return {**{name: list(values) for name, values in lists.items() if values}, **one}

    @property
    def address(self) -> str:
        """The address of the scene."""
        return address("explore", **self.words)

    @property
    def is_empty(self) -> bool:
        """Whether the scene shows nothing."""
        return not (self.node or self.more or self.show or self.start or self.asked.get("query") or self.source)

    def choosing(self, key: str) -> "Scene":
        """The scene with another chosen node. key: of that node."""
        return replace(self, at=key)

    def opening(self, key: str) -> "Scene":
        """The scene with one more open node. The oldest one closes if there would be too many. key: of the node."""
        opened = [each for each in self.node if each != key]
        closed = opened[: max(0, len(opened) + 1 - MOST_OPEN)]
        scene = replace(self, node=(*opened[len(closed) :], key), at=key)
        return replace(scene, show=_kept(scene.show, closed), more=_without(scene.more, closed))

    def closing(self, key: str) -> "Scene":
        """The scene in which a node remains without its neighbours. key: of the node."""
        opened = tuple(each for each in self.node if each != key)
        return replace(self, node=opened, more=_without(self.more, [key]), show=_kept(self.show, [key]), at=key)

    def widening(self, key: str, kind: str) -> "Scene":
        """The scene with more neighbours of a node. key: of the node. kind: name of the kind of neighbours."""
        return replace(self, more=(*self.more, f"{key}~{kind}"), at=key)

    def alone(self, key: str) -> "Scene":
        """A scene of one open node and nothing else. key: of the node."""
        return Scene(node=(key,), layout=self.layout)

    def toggling(self, name: str) -> "Scene":
        """The scene with a label or a type hidden, or shown again. name: the label, or `-` and the type."""
        hidden = tuple(each for each in self.hide if each != name)
        return replace(self, hide=hidden if name in self.hide else (*self.hide, name))

    def to(self, key: str | None, over: str | None = None) -> "Scene":
        """The scene with the path from its source to a node.

        key: of the node; None: without a path. over: the type of all relationships of the path; None: any.
        """
        return replace(self, source=self.source if key else None, target=key, over=over, at=key or self.at)


def scene_of(words: QueryParams) -> Scene:
    """The scene of an address. words: the parameters of the address. Raises UsageError for a layout that is none."""
    layout = named(words, "layout")
    if layout is not None and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {shown(layout)}: it is one of {', '.join(LAYOUTS)}")
    lists = {name: tuple(word for word in words.getlist(name) if word) for name in ("node", "more", "show", "hide")}
    asked = {name: value for name, value in words.items() if name.startswith("$") or name in (*CHOSEN, "query")}
    return Scene(
        **lists,
        at=named(words, "at"),
        start=named(words, "start"),
        asked={name: value for name, value in asked.items() if value.strip()},
        source=named(words, "from"),
        target=named(words, "to"),
        over=named(words, "over"),
        find=named(words, "find"),
        layout=layout,
    )


def _kept(show: tuple[str, ...], closed: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*show, *closed)))[-KEPT:]


def _without(more: tuple[str, ...], closed: Iterable[str]) -> tuple[str, ...]:
    keys = set(closed)
    return tuple(each for each in more if each.rpartition("~")[0] not in keys)


# Where to begin on the page Explore: the newest things of the store, critical paths, and layers.

NEWEST = 5
"""Things of each kind that are offered."""

STARTS: Mapping[str, tuple[str, str]] = {
    "critical_path": ("explore/critical_path", "the critical path of a profile"),
    "slow_ops": ("explore/slow_ops", "the slowest operators of a profile, and what they are copies of"),
    "layer": ("explore/layer", "the operators of a layer"),
}
"""Queries whose answers are drawn, by the word of an address: their statement, and what it shows."""


@dataclass(frozen=True)
class StartLink:
    """Something to begin with: its name, what it is, and its address."""

    name: str
    about: str
    to: str


def start_text(name: str) -> str:
    """The Cypher of a start. name: one of `STARTS`. Raises UsageError for an unknown one."""
    if name not in STARTS:
        raise UsageError(f"there is no start {shown(name)}: it is one of {', '.join(STARTS)}")
    return load(STARTS[name][0]).text


def starts(db: Stagedb) -> dict[str, list[StartLink]]:
    """What there is to begin with, by kind."""
    instances, profiles = db.instances()[:NEWEST], db.profiles()[:NEWEST]
    found = {
        "Critical paths": [
            _link(each.instance_name, f"on {each.system}", Scene(start="critical_path", asked={"profile": each.id}))
            for each in profiles
        ],
        "Slowest operators": [
            _link(each.instance_name, f"on {each.system}", Scene(start="slow_ops", asked={"profile": each.id}))
            for each in profiles
        ],
        "Layers": [
            _link(each.name or each.model, "layer 0 of its first rank class", _layer(each.id)) for each in instances
        ],
        "Instances": [
            _link(each.name or each.model, f"{each.ranks:,} ranks", _open("Instance", each.id)) for each in instances
        ],
        "Graphs": [_link(each.name, each.recipe, _open("Graph", each.id)) for each in db.graphs()[:NEWEST]],
        "Searches": [_link(each.model, "a search", _open("Search", each.id)) for each in db.searches()[:NEWEST]],
        "Runs": [_link(each.name or each.id[:12], each.extent, _open("Run", each.id)) for each in db.runs()[:NEWEST]],
    }
    return {kind: links for kind, links in found.items() if links}


def _open(label: str, id_: str) -> Scene:
    return Scene(node=(f"{label}/{id_}",))


def _layer(instance: str) -> Scene:
    return Scene(start="layer", asked={"instance": instance, "$class": "0", "$layer": "0"})


def _link(name: Any, about: str, scene: Scene) -> StartLink:
    return StartLink(printable(str(name), kept=""), printable(about, kept=""), scene.address)


# A node's properties as people read them: with units, times as dates, and what each of them means.

HIDDEN = ("owner", "claim", "lease", "builder")
"""Properties of the store's own work."""

MS_SINCE_1970 = "ms since 1970"

_PROPERTIES: Mapping[str, Mapping[str, Property]] = {
    label.name: {each.name: each for each in label.properties} for label in LABELS
}


@dataclass(frozen=True)
class NodeFact:
    """A property: its name, its value as text, and its meaning."""

    name: str
    value: str
    about: str


def node_facts(node: GraphNode) -> list[NodeFact]:
    """The properties of a node by name, without those of the store's own work and those without a value."""
    known = _PROPERTIES[node.label]
    return [
        NodeFact(cell(name).text, with_unit(value, each.unit if each else None), each.description if each else "")
        for name, value in sorted(node.properties.items())
        for each in [known.get(name)]
        if name not in HIDDEN and value not in (None, "", [], ())
    ]


def with_unit(value: Any, unit: str | None) -> str:
    """A value with its unit; a time as a date (UTC), and long times and many bytes also in larger units."""
    text = cell(value).text
    if unit is None or isinstance(value, str) or not isinstance(value, int | float):
        return text if unit is None or unit == MS_SINCE_1970 else f"{text} {unit}"
    if unit == MS_SINCE_1970:
        return _date(value) or f"{text} ms since 1970"
    more = ""
    if unit == "ns" and abs(value) >= 1000:
        more = f" = {span(value)}"
    elif unit == "B" and abs(value) >= GB / 100:
        more = f" = {value / GB:,.2f} GB"
    return f"{text} {unit}{more}"


def _date(value: float) -> str | None:
    try:
        time = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


CAPTION = 24
"""Characters of a node's text in the drawing."""
PATIENCE = 20.0
"""Seconds for each query about a path, at most."""
ROWS = 2_000
"""Rows of an answer whose nodes are drawn."""
_PAGES = {"Instance": "instances", "Profile": "profiles", "Graph": "graphs", "Search": "searches", "Run": "runs"}


@dataclass(frozen=True)
class SeenQuery:
    """Cypher whose answer is drawn: what it gives, its text, and the address of the page that runs it."""

    about: str
    text: str
    to: str


@dataclass(frozen=True)
class Seen:
    """All nodes and relationships that are drawn for a scene.

    found: its sub-graph. path: the shortest path that was asked for. queries: the Cypher of what is drawn. cut: an
    answer has more than is drawn.
    """

    found: SubGraph
    path: ShortestPath | None
    queries: tuple[SeenQuery, ...]
    cut: bool


def explore(request: Request) -> Response:
    """A part of the graph; without words in the address, where to begin."""
    scene = scene_of(request.query_params)
    shared = request.app.state.shared
    if scene.is_empty:
        return page_frames.page(request, "explore.html", found=None, starts=shared.read(starts))
    if scene.at is None and scene.node:
        scene = replace(scene, at=scene.node[-1])
    timeout = request.app.state.limits.timeout
    seen: Seen = shared.read(lambda db: _seen(db, scene, request, timeout))
    found = seen.found
    on_path = parts_of(seen.path.graph) if seen.path is not None else ({}, [], 0)
    nodes = {key: node for key, node in found.nodes.items() if node.label not in scene.hide}
    edges = [
        each for each in found.edges if f"-{each.type}" not in scene.hide and {each.source, each.target} <= nodes.keys()
    ]
    path = {(each.type, each.source, each.target) for each in on_path[1]}
    return page_frames.page(
        request,
        "explore.html",
        found=found,
        scene=scene,
        hidden=[(name, value) for name, value in _flat(scene) if name not in ("find", "layout")],
        begun=_begun(scene),
        slowest=_slowest(scene, nodes),
        chosen=_chosen(scene, found),
        labels=_legend(scene, Counter(node.label for node in found.nodes.values()), found),
        types=_types(scene, Counter(edge.type for edge in found.edges)),
        rows=_node_rows(scene, nodes),
        joins=_edge_rows(scene, nodes, edges),
        route=_path_words(scene, seen.path, found),
        queries=seen.queries,
        cut=seen.cut,
        most=MOST_FOUND,
        data=as_json(_drawing(scene, nodes, edges, on_path[0].keys(), path)),
    )


def _seen(db: Stagedb, scene: Scene, request: Request, timeout: float) -> Seen:
    """Ask the store for what a scene has."""
    answers, queries, cut, path = [], [], False, None
    text = start_text(scene.start) if scene.start else query_text(request.query_params)
    if text:
        question = free_question(request.query_params, timeout, ("cypher",), text)
        rows = question.ask(db, ROWS)
        answers += [rows.graph] if rows.graph is not None else []
        cut = rows.cut
        about = STARTS[scene.start][1] if scene.start else "the answer to a query"
        queries.append(SeenQuery(about, text, question.at()))
    if scene.source and scene.target:
        path = db.shortest_path(scene.source, scene.target, over=scene.over, timeout=min(timeout, PATIENCE))
        answers.append(path.graph)
        words = {f"${name}": json.dumps(value) for name, value in path.params.items()}
        queries.append(SeenQuery("the path", path.text, address("cypher", query=path.text, **words)))
    more = [(key, kind) for word in scene.more for key, _, kind in [word.rpartition("~")]]
    asked = scene.at if scene.at and can_open(scene.at) else None
    known = [*scene.show, *([scene.source] if scene.source and not scene.target and can_open(scene.source) else [])]
    found = db.sub_graph(*scene.node, more=more, known=known, answers=answers, asked=asked)
    return Seen(found, path, (*queries, *_around(scene.node)), cut)


def _around(opened: Sequence[str]) -> Iterator[SeenQuery]:
    """The Cypher of open nodes with their neighbours, a text for each label."""
    for label in dict.fromkeys(key.partition("/")[0] for key in opened):
        ids = [key.partition("/")[2] for key in opened if key.startswith(f"{label}/")]
        text = f"MATCH (n:{label})-[r]-(m)\nWHERE n.id IN $nodes\nRETURN n, r, m LIMIT 200"
        about = f"neighbours of the open {label} nodes"
        yield SeenQuery(about, text, address("cypher", query=text, **{"$nodes": json.dumps(ids)}))


def _begun(scene: Scene) -> dict[str, str] | None:
    """What a start shows, and the page of what it is about."""
    about = next((kind for kind in ("profile", "instance") if kind in scene.asked), None)
    if scene.start is None or about is None:
        return None
    id_ = scene.asked[about]
    text = STARTS[scene.start][1]
    return {"text": text[0].upper() + text[1:], "name": f"{about} {id_[:SHORT_ID]}", "to": address(f"{about}s", id_)}


def _slowest(scene: Scene, nodes: Mapping[str, GraphNode]) -> list[dict[str, str]]:
    """The operators of the start `slow_ops`, the slowest first, with the time of all their runs."""
    timed = [(key, node) for key, node in nodes.items() if node.label == "OpTime"] if scene.start == "slow_ops" else []
    order = sorted(timed, key=lambda each: (-each[1].properties["total"], each[0]))
    return [
        {"name": node_text(node), "time": span(node.properties["total"]), "to": scene.choosing(key).address}
        for key, node in order
    ]


def _flat(scene: Scene) -> Iterator[tuple[str, str]]:
    """The words of a scene as fields of a form."""
    for name, value in scene.words.items():
        for each in value if isinstance(value, list) else [value]:
            if each is not None:
                yield name, each


def _chosen(scene: Scene, found: SubGraph) -> dict[str, Any] | None:
    """The chosen node for the panel; None if none is chosen, or if it is not there any more."""
    node = found.nodes.get(scene.at or "")
    if node is None or scene.at is None:
        return None
    at = scene.at
    is_open = at in scene.node
    return {
        "title": node_text(node),
        "label": " ".join((node.label, *node.also)),
        "own": address(_PAGES[node.label], at.partition("/")[2]) if node.label in _PAGES else None,
        "open": None if is_open or not can_open(at) else scene.opening(at).address,
        "close": scene.closing(at).address if is_open else None,
        "alone": scene.alone(at).address if can_open(at) else None,
        "facts": node_facts(node),
        "kinds": [_kind(scene, found, kind, at) for kind in found.kinds.get(at, ())],
        "begin": replace(scene, source=at, target=None, over=None).address,
        "paths": _paths_to(scene, found, at),
        "can": can_open(at),
    }


def _paths_to(scene: Scene, found: SubGraph, at: str) -> list[tuple[str, str]]:
    """Paths from the begun end to the chosen node: their kinds and addresses."""
    source = found.nodes.get(scene.source or "")
    if source is None or scene.source in (None, at):
        return []
    kinds = types_between(source.label, found.nodes[at].label)
    return [(f"over {kind} alone", scene.to(at, kind).address) for kind in kinds] + [
        ("over all types", scene.to(at).address)
    ]


def _path_words(scene: Scene, path: ShortestPath | None, found: SubGraph) -> dict[str, Any] | None:
    """A sentence on the path, or on the end that is chosen; None without one."""
    if scene.source is None:
        return None
    begin = found.nodes.get(scene.source)
    first = scene.source if begin is None else node_text(begin)
    clear = replace(scene, source=None, target=None, over=None).address
    if path is None or scene.target is None:
        return {"text": f"A path begins at {first}: choose its other end.", "clear": clear}
    end = found.nodes.get(scene.target)
    ends = f"from {first} to {scene.target if end is None else node_text(end)}"
    over = "over all types" if path.over is None else f"over {path.over} alone"
    steps = len(path.graph.edges)
    if not path.graph.nodes:
        most = FAR if path.over is None else FARTHEST
        return {"text": f"No path leads {ends} {over} within {most} relationships.", "clear": clear}
    return {"text": f"The shortest path {ends} {over} has {steps} relationships.", "clear": clear}


def _kind(scene: Scene, found: SubGraph, kind: NeighbourKind, at: str) -> dict[str, Any]:
    """A kind of neighbours for the panel."""
    shown = [key for key in kind.shown if key in found.nodes]
    can = kind.count > len(shown) and f"{at}~{kind.name}" not in scene.more
    return {
        "type": kind.type,
        "arrow": "→" if kind.out else "←",
        "way": "to" if kind.out else "from",
        "labels": " ".join(kind.labels),
        "count": kind.count,
        "shown": [(node_text(found.nodes[key]), scene.choosing(key).address) for key in shown],
        "left": kind.count - len(shown),
        "more": scene.widening(at, kind.name).address if can else None,
        "some": min(MANY, kind.count),
    }


def _legend(scene: Scene, counts: Counter[str], found: SubGraph) -> list[dict[str, Any]]:
    colours = {node.label: node.colour for node in found.nodes.values()}
    return [
        {
            "name": name,
            "colour": colours[name],
            "count": count,
            "hidden": name in scene.hide,
            "to": scene.toggling(name).address,
        }
        for name, count in sorted(counts.items())
    ]


def _types(scene: Scene, counts: Counter[str]) -> list[dict[str, Any]]:
    return [
        {"name": name, "count": count, "hidden": f"-{name}" in scene.hide, "to": scene.toggling(f"-{name}").address}
        for name, count in sorted(counts.items())
    ]


def _node_rows(scene: Scene, nodes: dict[str, GraphNode]) -> list[list[page_frames.Cell]]:
    rows = []
    for key, node in nodes.items():
        state = ["open"] if key in scene.node else []
        state += ["found"] if _is_found(scene, key, node) else []
        choose = cell(node_text(node), scene.choosing(key).address)
        rows.append([choose, cell(" ".join((node.label, *node.also))), cell(", ".join(state)), cell(_id(key))])
    return rows


def _edge_rows(scene: Scene, nodes: dict[str, GraphNode], edges: Sequence[GraphEdge]) -> list[list[page_frames.Cell]]:
    return [
        [
            cell(node_text(nodes[each.source]), scene.choosing(each.source).address),
            cell(each.type),
            cell(node_text(nodes[each.target]), scene.choosing(each.target).address),
            cell(", ".join(f"{name} {value}" for name, value in sorted(each.properties.items()))),
        ]
        for each in edges
    ]


def _drawing(
    scene: Scene,
    nodes: dict[str, GraphNode],
    edges: Sequence[GraphEdge],
    path_nodes: Any,
    path: set[tuple[str, str, str]],
) -> dict[str, Any]:
    """What the script draws. All of it is text and numbers."""
    layered = scene.start is not None or (scene.target is not None and not scene.node)
    return {
        "layout": scene.layout or ("layers" if layered else "forces"),
        "nodes": [
            {
                "id": key,
                "text": _short(node_text(node)),
                "full": f"{node.label}: {node_text(node)}",
                "colour": node.colour,
                "open": key in scene.node,
                "at": key == scene.at,
                "path": key in path_nodes or key == scene.source,
                "found": _is_found(scene, key, node),
                "to": scene.choosing(key).address,
                "turn": (scene.closing(key) if key in scene.node else scene.opening(key)).address
                if can_open(key)
                else None,
            }
            for key, node in nodes.items()
        ],
        "edges": [
            {
                "source": each.source,
                "target": each.target,
                "type": each.type,
                "path": (each.type, each.source, each.target) in path,
            }
            for each in edges
        ],
    }


def _is_found(scene: Scene, key: str, node: GraphNode) -> bool:
    return scene.find is not None and scene.find.lower() in f"{node.label} {node_text(node)} {key}".lower()


def node_text(node: GraphNode) -> str:
    """A short text for a node. A bare number has its label before it."""
    caption = f"{node.label} {node.caption}" if node.caption.isdigit() else node.caption
    return printable(caption, kept="")


def _short(text: str) -> str:
    return text if len(text) <= CAPTION else f"{text[: CAPTION - 1]}…"


def _id(key: str) -> str:
    return printable(key.partition("/")[2], kept="")
