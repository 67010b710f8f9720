"""Runs in the store: ranks, lanes, ops, collectives and the critical path of what was recorded, as nodes.

The id of a run is a digest of its files, so that the same recording is there once. A run is written under a lease, and
readers see it when it is complete.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from stagedb.files import check_unicode, shown
from stagedb.mentions import Word
from stagedb.runs import MeasuredRun, RunDigest, RunRows, run_digest, run_rows
from stagedb.runs.measured_run import FORMAT, UntimedRun
from stagedb.runs.untimed_rows import untimed_rows
from stagedb.store import Input, Lease, Store, ask_again, building
from stagedb.store.contents.proofs import one_each, without_none
from stagedb.store.dump_contents import End, ThingContent

AT_ONCE = 2_000
"""Nodes or relationships that one transaction writes."""

Progress = Callable[[int, int], None]

_PARENTS_FIRST = (
    *("RunLane", "RunRank", "RunIteration", "RunOp", "RunTask", "RunCollective", "RunLeg"),
    *("RunMemory", "RunMemoryLevel"),
)


def has_run(store: Store, run: str) -> bool:
    """Whether the store has a complete run with this id. It becomes the newest of the user, as if it was made."""
    rows = store.read("lifecycle/state_run", id=run)
    if not rows or rows[0]["state"] != "ready":
        return False
    ask_again(store, "Run", run)
    return True


def known_ranks(store: Store, digests: Sequence[str]) -> str | None:
    """The id of the run that was made from exactly these files; None if the store has none of this version."""
    rows = store.read("run/of_files", sources=sorted(digests), format=FORMAT)
    return str(rows[0]["id"]) if rows else None


def record_run(
    store: Store,
    run: MeasuredRun | UntimedRun,
    name: str | None = None,
    files: Mapping[int, str | None] | None = None,
    progress: Progress = lambda done, of: None,
) -> bool:
    """Write a run. Whether this call wrote it: the store may have it.

    name: what it is called where nobody names it. files: names of files by rank, where they are to be kept. progress:
    gets the number of rows written and of all rows.
    """
    check_unicode(name or "", str(Word("name")))
    inputs = [Input("trace", trace.digest[:20], f"rank {rank}") for rank, trace in run.ranks.items()]
    rows = run_rows(run, files or {}) if isinstance(run, MeasuredRun) else untimed_rows(run, files or {})
    with building(store, "Run", run.id, {**without_none(rows.own), "name": name}, inputs) as lease:
        if lease is not None:
            content = _write(store, lease, rows, progress)
            lease.set_properties({"content": content})
    if lease is None:
        ask_again(store, "Run", run.id)
    return lease is not None


def _write(store: Store, lease: Lease, rows: RunRows, progress: Progress) -> str:
    """Write the nodes and relationships of a run. Returns the digest of its content."""
    of = sum(map(len, rows.nodes.values())) + sum(map(len, rows.edges.values()))
    done, digest = 0, RunDigest()
    for name, batch in _batches(rows, digest):
        lease.renew()
        store.write_rows(f"dump/{name}", batch)
        done += len(batch)
        progress(done, of)
    return digest.of(rows.own)


def _batches(rows: RunRows, digest: RunDigest) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Rows of each statement: first nodes, each after the one that it belongs to, then relationships."""
    for label in _PARENTS_FIRST:
        made = iter(rows.nodes.get(label, ()))
        while nodes := list(islice(made, AT_ONCE)):
            digest.add_nodes(label, (values for _, values in nodes))
            batch = [{"id": values["id"], "parent": parent, "values": values} for parent, values in nodes]
            yield f"make_{label.lower()}", batch
    for kind, ends in rows.edges.items():
        joined = iter(ends)
        while edges := list(islice(joined, AT_ONCE)):
            digest.add_edges(kind, edges)
            batch = [{"source": source, "target": target, "values": values} for source, target, values in edges]
            yield f"join_{'_'.join(kind).lower()}", batch


def run_problems(section: ThingContent) -> Iterator[str]:
    """What is wrong with a run: by its digest, and by what each node must have."""
    own = section.own
    yield from one_each("IN_LANE", _edges(section, "IN_LANE", "RunRank", "RunLane"), section.nodes.get("RunRank", {}))
    yield from one_each("IN_TASK", _edges(section, "IN_TASK", "RunLeg", "RunTask"), section.nodes.get("RunLeg", {}))
    for lane in section.values("RunLane") if own.get("step") is not None else ():
        if sum(lane[name] for name in ("busy", "exposed", "bubble", "idle")) != own["step"]:
            yield f"the times of RunLane {shown(lane['id'])} do not add up to the run"
    legs = sorted(section.values("RunLeg"), key=lambda leg: int(leg["number"]))
    at = 0
    for leg in legs:
        if leg["start"] != at or leg["finish"] - leg["start"] != leg["ns"]:
            yield f"RunLeg {shown(leg['id'])} does not begin where the one before it ends"
        at = leg["finish"]
    for memory in section.values("RunMemory"):
        if memory["peak"] != max(memory["allocated"], default=None) or len(memory["times"]) != len(memory["allocated"]):
            yield f"the peak of RunMemory {shown(memory['id'])} is not the most of its bytes, or times are missing"
    if legs and at != own["step"]:
        yield "its critical path is not as long as the run"
    nodes = {label: list(section.values(label)) for label in _PARENTS_FIRST if section.nodes.get(label)}
    edges = {kind: ends for kind, ends in section.edges.items() if ends}
    counts = Counter(values["run"] for of in nodes.values() for values in of)
    if set(counts) - {section.id}:
        yield "some of its nodes have the id of another run"
    if run_digest(own, nodes, edges) != own["content"]:
        yield "its content does not match its digest"


def _edges(section: ThingContent, type: str, source: str, target: str) -> list[End]:
    return section.edges.get((type, source, target), [])
