"""What is wrong in a store, and the removal of what cannot be read any more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

from stagedb.errors import StagedbError
from stagedb.ir.symbolic_graph import FORMAT
from stagedb.store import LABELS, Kind, RemovedError, Store, delete, layout_of, names, sweep, unfinished
from stagedb.store.contents.content_proofs import ContentProof, rank_node_problems
from stagedb.store.dump_contents import ThingContent
from stagedb.store.dumping import read_section
from stagedb.store.leases import ATTEMPTS
from stagedb.store.migrations import VERSION
from stagedb.store.schema import OWNERS, parent_of

# Whether another version of stagedb wrote a thing of a store. Then it may differ from what this one makes.


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


Notice = Callable[[str], None]

_LOST = "check/lost_"
_AGAIN = "it is damaged: remove it with `stagedb rm {} --force`, and make or load it again"
_KEEP = (
    "keep it: only that stagedb can check it. It is listed and queried as before; the command that made it makes a new "
    "one of this version"
)
_REPAIR = "`stagedb store check --repair` removes it"


@dataclass(frozen=True)
class StoreProblem:
    """Something that is wrong in a store.

    label: of the node that it concerns. id: of that node. problem: what is wrong. remedy: what to do. repairable:
    whether it cannot be read any more, so that `repair` removes it. dead: an ended process left it unfinished.
    explained: another version of stagedb wrote it, so that the difference proves no damage.
    """

    label: str
    id: str
    problem: str
    remedy: str
    repairable: bool = False
    dead: bool = False
    explained: bool = False


def check(store: Store, notice: Notice) -> tuple[StoreProblem, ...]:
    """All that is wrong in a store. Nothing is written; what a process builds is left out.

    Every graph, instance, profile and search is read whole and compared with what it is made from, by the rules for
    dumps. notice: called with a line for each of them.
    """
    # A search of a dead process is no problem: the next run of it goes on with what it has.
    found = [
        StoreProblem(each.kind, each.id, f"{each.state}, and its process has ended", _REPAIR, True, True)
        for each in unfinished(store)
        if each.dead and each.kind != "Search"
    ]
    for name in names():
        if name.startswith(_LOST):
            label = _label(name.removeprefix(_LOST))
            found += [
                StoreProblem(label, row["id"], _BELONGS.get(label, "belongs to nothing"), _REPAIR, True)
                for row in store.read(name)
            ]
    lost = {(each.label, each.id) for each in found}
    return (*found, *_damaged(store, lost, notice))


_BELONGS = {
    "Name": "names nothing",
    "Note": "is about nothing",
    "Rank": "ranks of an instance that is not there",
    "Instance": "its graph is not there",
    "Profile": "its instance is not there",
}


def _label(low: str) -> str:
    return next(label.name for label in LABELS if label.name.lower() == low)


def _damaged(store: Store, lost: set[tuple[str, str]], notice: Notice) -> list[StoreProblem]:
    """Complete things whose content is not what it must be."""
    rows = [row for row in store.read("check/things") if (row["kind"], row["id"]) not in lost]
    found: list[StoreProblem] = []
    below: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for parent in dict.fromkeys(row["parents"]):
            below.setdefault(parent, []).append(row)
        wanted = 0 if parent_of(row["kind"]) is None else 1
        if len(row["parents"]) != wanted:
            problem = f"it has {len(row['parents'])} OF relationships and must have {wanted}"
            found.append(StoreProblem(row["kind"], row["id"], problem, _AGAIN.format(row["id"])))
    proof = ContentProof()

    def visit(row: dict[str, Any], above: Sequence[ThingContent]) -> None:
        kind, id = cast("Kind", row["kind"]), row["id"]
        try:
            section, problem = read_section(store, kind, id, proof, above)
        except StagedbError as error:
            # A thing that was removed, or made again, during the check is no problem of the store.
            state = store.read(f"lifecycle/state_{kind.lower()}", id=id)
            if state and state[0]["state"] == "ready" and not isinstance(error, RemovedError):
                found.append(_different(store, kind, id, str(error), above))
            return
        if kind == "Instance" and section is not None and section.layout:
            problem = next(iter(_rank_nodes(store, id)), None)
        notice(f"checked {kind.lower()} {id}")
        if problem is not None:
            found.append(_different(store, kind, id, problem, above))
        for part in below.get(id, ()):
            if section is None:
                found.extend(_unchecked(part, found[-1], below))
            else:
                visit(part, [*above, section])

    for row in rows:
        if parent_of(row["kind"]) is None:
            visit(row, [])
    return found


def _different(store: Store, kind: Kind, id: str, problem: str, above: Sequence[ThingContent]) -> StoreProblem:
    """A thing that is not what this version makes. That proves damage only if no other version wrote it."""
    version = other_version(store, kind, id, above[0].id if above else None)
    if version is None:
        return StoreProblem(kind, id, problem, _AGAIN.format(id))
    return StoreProblem(kind, id, f"{version}, so that it cannot be checked ({problem})", _KEEP, explained=True)


def _unchecked(
    part: Mapping[str, Any], source: StoreProblem, below: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[StoreProblem]:
    """The problems of things that cannot be checked, as what they are made from is damaged or of another version, and
    of all things made from these.
    """
    why = "of another version" if source.explained else "damaged"
    problem = f"cannot be checked, because {source.label.lower()} {source.id} is {why}"
    found = [StoreProblem(part["kind"], part["id"], problem, source.remedy, explained=source.explained)]
    for each in below.get(part["id"], ()):
        found += _unchecked(each, source, below)
    return found


def _rank_nodes(store: Store, instance: str) -> list[str]:
    """What is wrong with the nodes of ranks and groups that somebody asked for; a dump has none of them."""
    for _ in range(ATTEMPTS):
        before = store.read("ranks/state", instance=instance)
        if not before or (layout := layout_of(before[0])) is None:
            return []
        found = {
            label: {
                row["values"]["id"]: row["values"] for row in store.read(f"dump/nodes_{label.lower()}", id=instance)
            }
            for label in ("Rank", "Group")
        }
        if store.read("ranks/state", instance=instance) == before:
            counts = before[0]["ranks_written"], before[0]["groups_written"]
            return [*rank_node_problems(instance, layout, found, counts)]
    return []  # other clients wrote nodes during each attempt; every such write follows from the plan


def repair(store: Store, problems: Sequence[StoreProblem]) -> int:
    """Remove what cannot be read any more, unless that changed since the check. Returns the number of nodes removed.

    Problems that are not `repairable` are left alone, and so is what a living process builds.
    """
    wanted = [each for each in problems if each.repairable]
    removed = len(sweep(store)) if any(each.dead for each in wanted) else 0
    for label, each in groupby(wanted, key=lambda problem: problem.label):
        found = [problem for problem in each if not problem.dead]
        if label in OWNERS:
            removed += sum(_removed(store, cast("Kind", label), problem.id) for problem in found)
        elif found:
            rows = [{"id": problem.id} for problem in found]
            for start in range(0, len(rows), _AT_ONCE):
                removed += store.write(f"check/remove_{label.lower()}", rows=rows[start : start + _AT_ONCE])["removed"]
    return removed


_AT_ONCE = 1_000


def _removed(store: Store, kind: Kind, id: str) -> bool:
    still = {row["id"] for row in store.read(f"{_LOST}{kind.lower()}")}
    return id in still and delete(store, kind, id)
