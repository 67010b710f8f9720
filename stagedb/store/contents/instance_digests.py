"""Digests of what the store holds of an instance: written when it is finished, compared when it is read.

The id of an instance is a digest of its graph and plan. It does not change if somebody changes an op in the store.
These digests do. They cover the columns that the statements `workload/ops`, `edges`, `tasks`, `ranks` and `groups`
return: traces and timelines are made of these. They find accidents and edits by hand; whoever can write to the store
can write its digests too.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import numpy as np

from stagedb.files.stored_values import DamagedError
from stagedb.plans import RankLayout
from stagedb.store import Store

OP_NUMBERS = ("position", "layer", "chunk", "order", "flops", "bytes", "temporary", "size", "result", "peer")
OP_TEXTS = ("id", "sym", "name", "block", "template", "type", "when", "kind", "phase", "axis", "dtype")
TASK_NUMBERS = ("microbatch", "chunk", "first", "last")
TASK_TEXTS = ("id", "kind")
RANK_NUMBERS = ("class", "tp", "cp", "dp", "pp")
"""The columns of the digests, in their order. A stored digest has exactly these: another column takes a new digest."""

READERS = 4
"""How many classes are read at the same time."""

Columns = Mapping[str, Sequence[Any]]
"""The row of a statement of `cypher/workload`: parallel lists."""


def ops_digest(ops: Columns) -> str:
    """sha256 of a class's ops, for any order in which the store returns them."""
    return _digest(ops, ("index",), OP_NUMBERS, OP_TEXTS)


def tasks_digest(tasks: Columns) -> str:
    """sha256 of a class's tasks, for any order in which the store returns them."""
    return _digest(tasks, ("index",), TASK_NUMBERS, TASK_TEXTS)


def edges_digest(edges: Columns) -> str:
    """sha256 of a class's edges, for any order in which the store returns them."""
    kinds = sorted(set(edges["kind"]))
    number = {kind: code for code, kind in enumerate(kinds)}
    columns = {**edges, "kind": [number[kind] for kind in edges["kind"]]}
    return _digest(columns, ("target", "source", "kind"), (), (), kinds)


def ranks_digest(ranks: Columns) -> str:
    """sha256 of an instance's ranks, for any order in which the store returns them."""
    return _digest(ranks, ("number",), RANK_NUMBERS, ())


def groups_digest(groups: Columns) -> str:
    """sha256 of an instance's groups with their members, for any order in which the store returns them."""
    return _digest(groups, ("gid",), (), ("axis", "members"))


def layout_digest(layout: RankLayout) -> str:
    """sha256 of the numbers from which ranks and groups follow. With a million ranks it takes no time."""
    content = json.dumps([layout.properties(), layout.plan.to_json()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def check_layout(row: Mapping[str, Any], layout: RankLayout) -> None:
    """Raise DamagedError unless ranks and groups are what they were. row: of `workload/instance`.

    Their own digests decide where the layout has none, or another one: they name what was changed.
    """
    if row["layout_digest"] == layout_digest(layout):
        return
    check_unchanged("ranks", row["ranks_digest"], ranks_digest(layout.rank_columns()))
    check_unchanged("groups", row["groups_digest"], groups_digest(layout.group_columns()))


def check_unchanged(what: str, stored: str | None, found: str) -> None:
    """Raise DamagedError unless a digest is the stored one; None is stored where there is none to compare.

    what: the name of the content, for the error. found: its digest now.
    """
    if stored not in (None, found):
        raise DamagedError(f"its {what} were changed after the instance was made")


def check_digests(row: Mapping[str, Any], ops: Columns, edges: Columns | None, tasks: Columns) -> None:
    """Raise DamagedError, which names what was changed, unless a class is what it was when its instance was finished.

    row: the class's row of `workload/classes`. edges: None if they are not read. Classes that were stored before schema
    5 have no digests and pass.
    """
    found = {"ops": ops_digest(ops), "tasks": tasks_digest(tasks)}
    found |= {} if edges is None else {"edges": edges_digest(edges)}
    changed = [what for what, digest in found.items() if row[f"{what}_digest"] not in (None, digest)]
    if changed:
        raise DamagedError(
            f"the {' and the '.join(changed)} of rank class {row['number']} were changed after the instance was made"
        )


def write_class_digests(store: Store, instance: str) -> None:
    """Give each class of an instance digests of its present content in the store."""

    def digests(row: Mapping[str, Any]) -> Mapping[str, str]:
        ops, edges, tasks = (store.read(f"workload/{what}", **{"class": row["id"]})[0] for what in _READ)
        return {
            "id": row["id"],
            "ops_digest": ops_digest(ops),
            "edges_digest": edges_digest(edges),
            "tasks_digest": tasks_digest(tasks),
        }

    with ThreadPoolExecutor(READERS) as pool:
        rows = list(pool.map(digests, store.read("workload/classes", instance=instance)))
    store.write_rows("instantiate/digests", rows)


_READ = ("ops", "edges", "tasks")


def _digest(
    columns: Columns, keys: Sequence[str], numbers: Sequence[str], others: Sequence[str], more: Sequence[str] = ()
) -> str:
    """sha256 of columns, with their rows sorted by the keys. "" if columns differ in length: rows lack values.

    Keys and numbers are hashed as 64-bit integers, texts and lists as JSON, each column with its name and size.
    """
    arrays = [np.array(columns[name], "<i8") for name in (*keys, *numbers)]
    if len({len(columns[name]) for name in (*keys, *numbers, *others)}) > 1:
        return ""
    order = np.lexsort(arrays[: len(keys)][::-1])
    data = [(name, values[order].tobytes()) for name, values in zip((*keys, *numbers), arrays, strict=True)]
    data += [(name, json.dumps(_sorted(columns[name], order.tolist())).encode()) for name in others]
    found = hashlib.sha256(json.dumps(more).encode())
    for name, content in data:
        found.update(f"{name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def _sorted(values: Sequence[Any], order: Sequence[int]) -> Sequence[Any]:
    # One call for the whole column. With a single index it would return no tuple.
    return itemgetter(*order)(values) if len(order) > 1 else list(values)
