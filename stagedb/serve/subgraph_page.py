"""The graph to click through: some open nodes with their neighbours. The address has all open nodes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from stagedb.api import Stagedb
from stagedb.api.neighbourhood import MANY, MOST_OPEN, GraphNode, NeighbourKind, SubGraph
from stagedb.outputs import printable
from stagedb.reports.page_frame import as_json
from stagedb.serve import page_frames
from stagedb.serve.page_frames import address, cell

CAPTION = 24
"""Characters of a node's text in the drawing."""
EARLIER = 8
"""Open nodes that remain open when another one is opened."""
HIDDEN = ("owner", "claim", "lease", "builder")
"""Properties of the store's own work."""
_PAGES = {"Instance": "instances", "Profile": "profiles", "Graph": "graphs"}


def explore(request: Request) -> Response:
    """A part of the graph; without a node in the address, around the newest instance."""
    words = request.query_params
    opened = [word for word in words.getlist("node") if word]
    more = [(key, kind) for word in words.getlist("more") for key, _, kind in [word.rpartition("~")]]
    shared = request.app.state.shared
    if not opened:
        first = shared.read(_newest)
        if first is None:
            return page_frames.page(request, "explore.html", found=None)
        return RedirectResponse(address("explore", node=first), 303)
    found: SubGraph = shared.read(lambda db: db.sub_graph(*opened, more=more))
    opened = list(found.kinds)
    at = opened[-1]
    node = found.nodes[at]
    kinds = [_kind(found, each, opened, more, at) for each in found.kinds[at]]
    others = [(found.nodes[key], _opening(opened, more, key)) for key in opened[:-1]]
    return page_frames.page(
        request,
        "explore.html",
        found=found,
        at=at,
        title=_text(node),
        label=" ".join((node.label, *node.also)),
        own=address(_PAGES[node.label], at.partition("/")[2]) if node.label in _PAGES else None,
        facts=[(name, cell(value).text) for name, value in sorted(node.properties.items()) if _is_shown(name, value)],
        kinds=kinds,
        others=[(_text(each), each.label, to) for each, to in others],
        alone=address("explore", node=at),
        data=as_json(_drawing(found, opened, more, at)),
        most=MOST_OPEN,
    )


def _newest(db: Stagedb) -> str | None:
    instances = db.instances()
    if instances:
        return f"Instance/{instances[0].id}"
    graphs = db.graphs()
    return f"Graph/{graphs[0].id}" if graphs else None


def _opening(opened: list[str], more: list[tuple[str, str]], key: str) -> str:
    """The address with another node open. The oldest ones close, so that a drawing stays small."""
    earlier = [each for each in opened if each != key][-EARLIER:]
    kept = [f"{of}~{kind}" for of, kind in more if of in (*earlier, key)]
    return address("explore", node=[*earlier, key], more=kept)


def _kind(
    found: SubGraph, kind: NeighbourKind, opened: list[str], more: list[tuple[str, str]], at: str
) -> dict[str, Any]:
    """A kind of neighbours for the panel."""
    wanted = f"{at}~{kind.name}"
    words = [f"{of}~{name}" for of, name in more]
    can = kind.count > len(kind.shown) and wanted not in words
    return {
        "type": kind.type,
        "arrow": "→" if kind.out else "←",
        "labels": " ".join(kind.labels),
        "count": kind.count,
        "shown": [(_text(found.nodes[key]), _opening(opened, more, key)) for key in kind.shown],
        "left": kind.count - len(kind.shown),
        "more": address("explore", node=opened, more=[*words, wanted]) if can else None,
        "some": min(MANY, kind.count),
    }


def _drawing(found: SubGraph, opened: list[str], more: list[tuple[str, str]], at: str) -> dict[str, Any]:
    """What the script draws. All of it is text and numbers."""
    return {
        "nodes": [
            {
                "id": key,
                "text": _short(_text(node)),
                "label": node.label,
                "colour": node.colour,
                "open": key in opened,
                "at": key == at,
                "to": _opening(opened, more, key),
            }
            for key, node in found.nodes.items()
        ],
        "edges": [{"source": each.source, "target": each.target, "type": each.type} for each in found.edges],
    }


def _text(node: GraphNode) -> str:
    caption = f"{node.label} {node.caption}" if node.caption.isdigit() else node.caption
    return printable(caption, kept="")


def _short(text: str) -> str:
    return text if len(text) <= CAPTION else f"{text[: CAPTION - 1]}…"


def _is_shown(name: str, value: Any) -> bool:
    return name not in HIDDEN and value not in (None, "", [], ())
