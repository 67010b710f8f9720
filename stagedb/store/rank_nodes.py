"""Nodes of ranks and groups: written when somebody asks for them, once an instance.

An instance keeps the numbers from which its ranks and groups follow (`stagedb.plans.RankLayout`), and how many of the
nodes are written. Each transaction writes the next ones and moves these counts, under the lock of the instance. So
several processes may write at once, and one that was killed is followed by the next. Instances that an older stagedb
made have all nodes and no such numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.store.failures import OutOfMemory, ReadOnlyError
from stagedb.store.makers import new_claim
from stagedb.store.rank_reach import instances_reached, names_ranks
from stagedb.store.row_checks import reading, warn_of

if TYPE_CHECKING:
    from stagedb.plans import RankLayout
    from stagedb.store.connection import Store

AT_ONCE = 8192
"""Ranks that one transaction creates or lists in groups."""

MOST = 2**20
"""Ranks that a query which names them may cause to be written."""

MOST_UNNAMED = 2**16
"""Ranks that a query over all nodes may cause to be written. Beyond that it is about the nodes that there are."""


NodesWritten = Callable[[int, int], None]
"""Called with how many of the ranks and groups have their nodes, and how many there are."""


def unwatched(done: int, of: int) -> None:
    """Ignore progress: for callers that show none. done: the nodes that are written. of: how many there will be."""


def layout_of(row: Mapping[str, Any]) -> "RankLayout | None":
    """The numbers from which ranks and groups of an instance follow; None if an older stagedb made the instance.

    row: of `workload/instance`. Raises DamagedError, ValueError, KeyError or TypeError for a damaged row: `reading`
    turns these into an error that names the row.
    """
    from stagedb.plans import Plan, RankLayout

    if row["class_table"] is None:
        return None
    layout = RankLayout.stored(Plan.from_mapping(json_mapping(row["plan"], "plan")), row)
    if layout.plan.world != row["world"]:
        raise DamagedError(f"its plan has {layout.plan.world} ranks, and not {row['world']}")
    return layout


def write_reached(store: "Store", text: str, params: Mapping[str, Any], progress: NodesWritten = unwatched) -> int:
    """Write the nodes of ranks and groups that a text can reach and nobody wrote yet.

    A text over all nodes, which does not name ranks or groups, gets those that there are, if there are too many to
    write, or if the store allows no writes.

    progress: counts all instances that the text reaches; those that come later with their ranks alone. Returns the
    number of ranks that the text can reach and that have no nodes. For a text that names ranks or groups, raises
    ReadOnlyError if the store allows no writes, and UsageError if they are too many. params: values of the text's
    parameters, by name.
    """
    reached = instances_reached(text, params)
    if reached is not None:
        for instance in reached:
            write_rank_nodes(store, instance, progress)
        return 0
    rows = store.read_sound("ranks/unwritten")
    ranks: int = sum(row["world"] for row in rows)
    if not names_ranks(text):
        if ranks > MOST_UNNAMED:
            return ranks
        try:
            _write_all(store, rows, progress)
        except ReadOnlyError:
            return ranks
        return 0
    if ranks > MOST:
        raise UsageError(
            f"the query may reach the ranks of {len(rows)} instances, {ranks:,} nodes that nobody wrote yet, more than "
            f"{MOST:,}: ask about one instance, as in (r:Rank {{instance: $instance}}) or "
            "(:Instance {id: $instance})-[:HAS_GROUP]->(g:Group), and give each node a label"
        )
    _write_all(store, rows, progress)
    return 0


def _write_all(store: "Store", rows: Sequence[Mapping[str, Any]], progress: NodesWritten) -> None:
    """Write the nodes of these instances."""
    before, later = 0, sum(row["world"] for row in rows)
    for row in rows:
        later -= row["world"]
        try:
            before += write_rank_nodes(store, row["id"], partial(_part, progress, before, later))
        except DamagedError as damage:
            warn_of(f"ranks left out: {damage}")


def _part(whole: NodesWritten, before: int, later: int, done: int, of: int) -> None:
    """The progress of one instance as a part of all. before: nodes of the instances before it. later: of the rest."""
    whole(before + done, before + of + later)


def write_rank_nodes(store: "Store", instance: str, progress: NodesWritten = unwatched) -> int:
    """Write the nodes of the ranks and groups of an instance, if there are some that nobody wrote.

    Returns how many there are; 0 if an older stagedb made the instance, or if there is none.
    """
    owner, most = new_claim(), AT_ONCE
    while True:
        rows = store.read("ranks/state", instance=instance)
        if not rows:
            return 0  # the instance does not exist or is being deleted, so that the query finds nothing of it either
        with reading(f"instance {instance[:12]} ({shown(rows[0]['name'])})"):
            layout = layout_of(rows[0])
        ranks, groups = rows[0]["ranks_written"], rows[0]["groups_written"]
        if layout is None:
            return 0
        nodes: int = layout.plan.world + layout.group_count
        progress(ranks + groups, nodes)
        if ranks >= layout.plan.world and groups >= layout.group_count:
            return nodes
        try:
            with suppress(_SmallerError):
                _write(store, instance, owner, layout, (ranks, groups), most)
                continue
        except ReadOnlyError as error:
            raise ReadOnlyError(
                f"the query asks for ranks or groups of instance {instance[:12]} ({shown(rows[0]['name'])}), whose "
                "nodes nobody wrote yet, and this connection only reads: run the query once with an account that may "
                f"write, on a server that allows it ({error})"
            ) from None
        most //= 2


class _SmallerError(Exception):
    """A transaction needed too much memory: fewer nodes at once may fit."""


def _write(
    store: "Store", instance: str, owner: str, layout: "RankLayout", written: tuple[int, int], most: int
) -> None:
    """Write the next nodes: ranks, then groups."""
    ranks, groups = written
    common = {"instance": instance, "owner": owner}
    try:
        if ranks < layout.plan.world:
            store.write(
                "ranks/write_ranks",
                **common,
                first=ranks,
                last=min(ranks + most, layout.plan.world) - 1,
                axes=layout.axes(),
                groups=layout.group_axes(),
                classes={
                    "numbers": list(layout.classes),
                    "cp": layout.along_cp,
                    "ep": layout.along_ep,
                    "dp": layout.along_dp,
                },
            )
        else:
            rows = layout.group_rows(groups, most)
            count = sum(row["last_index"] + 1 - row["first_index"] for row in rows)
            store.write("ranks/write_groups", **common, first=groups, count=count, rows=rows)
    except OutOfMemory as error:
        if most == 1:
            raise
        raise _SmallerError from error
