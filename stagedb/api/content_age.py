"""Whether another version of stagedb wrote a thing of a store. Then it may differ from what this one makes."""

from collections.abc import Mapping
from typing import Any

from stagedb.errors import StagedbError
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.store import Kind, Store
from stagedb.store.migrations import VERSION


def other_version(store: Store, kind: Kind, id: str, graph: str | None) -> str | None:
    """Which other version wrote a thing, by what the thing itself shows; None if nothing shows that.

    graph: the id of the graph that it is made from, if it is made from one.
    """
    try:
        own = _values(store, kind, id)
        source = own if kind == "Graph" else _values(store, "Graph", graph) if graph is not None else {}
        for what, found, known in (("schema", own.get("schema"), VERSION), ("graphs", source.get("format"), FORMAT)):
            if isinstance(found, int) and found != known:
                age = "an older" if found < known else "a newer"
                return f"{age} stagedb wrote it: its version of {what} is {found}, and that of this one is {known}"
    except (StagedbError, ValueError, KeyError, TypeError):
        return None  # a thing that cannot be read does not show its version
    return None


def _values(store: Store, kind: Kind, id: str) -> Mapping[str, Any]:
    rows = store.read(f"dump/nodes_{kind.lower()}", id=id)
    values: Mapping[str, Any] = rows[0]["values"] if rows else {}
    return values
