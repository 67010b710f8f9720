"""The graph store: one driver, one Cypher, two engines.

`connect` opens a store: a Neo4j server, or the embedded engine of this machine, which it starts if needed.
`Store.read`, `Store.write` and `Store.write_rows` run the statements under `cypher/` by name. `Store.query` answers
free Cypher that only reads. `write_graph` and `read_graph` store symbolic graphs. `building` makes a graph, an instance
or a profile visible only when it is complete; `delete` and `sweep` remove them. `read_whole` reads one with several
statements while others write. Nothing else in stagedb imports the driver.
"""

from typing import TYPE_CHECKING

from stagedb.lazy_names import lazily, listed
from stagedb.store import _driver as _driver  # first: it decides what the driver imports
from stagedb.store.answer_parts import Table
from stagedb.store.connection import Store
from stagedb.store.events import Input, current_user, user_of
from stagedb.store.leases import (
    Kind,
    Lease,
    NeededError,
    RemovedError,
    Unfinished,
    ask_again,
    building,
    delete,
    read_whole,
    sweep,
    unfinished,
)
from stagedb.store.opening import connect, open_store
from stagedb.store.rank_nodes import layout_of, write_rank_nodes
from stagedb.store.row_checks import DamageWarning, reading, warn_of
from stagedb.store.statements import Field, Statement, load, names

if TYPE_CHECKING:
    from stagedb.store.contents.graphs import read_graph, write_graph
    from stagedb.store.dump_contents import DumpError, write_records
    from stagedb.store.dumping import Notice, load_dump, records_of
    from stagedb.store.schema import LABELS, RELATIONSHIPS
    from stagedb.store.schema_forms import Label, Property, Relationship

__all__ = [
    "LABELS",
    "RELATIONSHIPS",
    "DamageWarning",
    "DumpError",
    "Field",
    "Input",
    "Kind",
    "Label",
    "Lease",
    "NeededError",
    "Notice",
    "Property",
    "Relationship",
    "RemovedError",
    "Statement",
    "Store",
    "Table",
    "Unfinished",
    "ask_again",
    "building",
    "connect",
    "current_user",
    "delete",
    "layout_of",
    "load",
    "load_dump",
    "names",
    "open_store",
    "read_graph",
    "read_whole",
    "reading",
    "records_of",
    "sweep",
    "unfinished",
    "user_of",
    "warn_of",
    "write_graph",
    "write_rank_nodes",
    "write_records",
]

_MODULES = {
    "contents.graphs": (
        "read_graph",
        "write_graph",
    ),
    "dump_contents": (
        "DumpError",
        "write_records",
    ),
    "dumping": (
        "Notice",
        "load_dump",
        "records_of",
    ),
    "schema": (
        "LABELS",
        "RELATIONSHIPS",
    ),
    "schema_forms": (
        "Label",
        "Property",
        "Relationship",
    ),
}

# The schema has the parts of all models: a listing or a query starts in half of the time without it.
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
