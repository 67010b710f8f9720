"""Matches of runs in the store: which planned op each recorded one is, and what differs."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.runs.run_match import RunMatch
from stagedb.store import Store

AT_ONCE = 2_000
"""Relationships that one transaction writes."""

Progress = Callable[[int, int], None]


def record_match(store: Store, instance: str, found: RunMatch, progress: Progress = lambda done, of: None) -> None:
    """Write a match, instead of one of the same run and instance. It is there once all of it is.

    instance: id of the instance in the store. progress: gets the number of relationships written and of all. Raises
    UsageError if the run or the instance was removed meanwhile. A writer that dies leaves relationships without a
    match, which the next one of this run and instance takes away.
    """
    run = found.run.id
    match = f"{run}/m/{instance}"
    while store.write("match/forget", run=run, match=match, limit=AT_ONCE)["deleted"]:
        pass
    pairs = {(seen, planned): changed for seen, planned, changed in _pairs(found)}
    rows = ({"seen": seen, "planned": planned, "changed": changed} for (seen, planned), changed in pairs.items())
    done = 0
    while batch := list(islice(rows, AT_ONCE)):
        store.write_rows("match/join_ops", batch, match=match)
        done += len(batch)
        progress(done, len(pairs))
    findings = [
        {
            "id": f"{match}/{number}",
            "run": run,
            "number": number,
            "kind": each.kind,
            "ranks": list(each.ranks),
            "module": each.module,
            "phase": each.phase,
            "planned": each.planned,
            "seen": each.seen,
            "reason": each.reason,
            "count": each.count,
            "ns": each.ns or None,
            "critical": each.critical,
        }
        for number, each in enumerate(found.findings)
    ]
    values = {"run": run, "instance": instance, **counts(found), "findings": len(findings)}
    if not store.write("match/record", run=run, instance=instance, match=match, values=values, findings=findings):
        raise UsageError(
            f"run {shown(run)} or instance {shown(instance)} was removed while they were matched: import or "
            "instantiate it again"
        )


def counts(found: RunMatch) -> dict[str, int]:
    """How many ops are matched, changed, missing and extra.

    Barriers, sums of one number and matmuls in which a recomputation stops do not count as extra.
    """
    every = found.ranks.values()
    return {
        "planned": sum(len(each.planned) for each in every),
        "matched": sum(len(each.matched) for each in every),
        "changed": sum(len(each.changed) for each in every),
        "missing": sum(len(each.missing) for each in every),
        "extra": sum(len(each.beyond_plan(found.planned.stops_early)) for each in every),
    }


def _pairs(found: RunMatch) -> Iterator[tuple[str, str, bool]]:
    """Ids of a recorded and a planned op, and whether it is changed."""
    for (rank, _), match in found.ranks.items():
        lane = found.run.lane_of[rank].number
        ids: Any = found.planned.program.workload.class_of(rank).origins.id
        for changed, pairs in ((False, match.matched), (True, match.changed)):
            for each in pairs:
                seen, planned = match.seen[each.seen], match.planned[each.planned]
                yield f"{found.run.id}/{lane}/{seen.place}", ids[planned.op], changed
