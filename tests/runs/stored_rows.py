"""Runs as a store answers them, without a store: from the rows that it would keep."""

from collections import defaultdict
from typing import Any, cast

from stagedb.runs import MeasuredRun
from stagedb.runs.measured_run import UntimedRun
from stagedb.runs.run_rows import run_rows
from stagedb.runs.stored_run import StoredRun
from stagedb.runs.untimed_rows import untimed_rows
from stagedb.store import Store
from stagedb.store.contents import run_reading


class _Rows:
    """The statements of `cypher/run` on the rows of a run."""

    def __init__(self, run: MeasuredRun | UntimedRun) -> None:
        self.run = run
        self.rows = run_rows(run, {}) if isinstance(run, MeasuredRun) else untimed_rows(run, {})

    def read(self, statement: str, **given: Any) -> list[Any]:
        return list(getattr(self, statement.partition("/")[2])(**given))

    def facts(self, run: str) -> Any:
        yield defaultdict(lambda: None, {"id": run, **self.rows.own})

    def lanes(self, run: str) -> Any:
        return (values for _, values in self.rows.nodes["RunLane"])

    def ops(self, run: str, lane: int) -> Any:
        rows = (values for _, values in self.rows.nodes["RunOp"] if values["lane"] == lane)
        return (defaultdict(lambda: None, values) for values in rows)

    def collectives(self, run: str) -> Any:
        members: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for source, op, values in self.rows.edges["HAS_MEMBER", "RunCollective", "RunOp"]:
            members[source].append((values["rank"], int(op.rpartition("/")[2])))
        for _, values in self.rows.nodes["RunCollective"]:
            ranks, ops = zip(*sorted(members[values["id"]]), strict=True)
            yield defaultdict(lambda: None, {**values, "ranks": list(ranks), "ops": list(ops)})

    def memory(self, run: str) -> Any:
        levels: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for owner, values in self.rows.nodes.get("RunMemoryLevel", ()):
            levels[owner].append(values)
        for _, values in self.rows.nodes.get("RunMemory", ()):
            own = levels[values["id"]]
            yield defaultdict(
                lambda: None,
                values,
                moments=[each["moment"] for each in own],
                bytes=[each["bytes"] for each in own],
                starts=[each["start"] for each in own],
                operators=[each.get("operator", "") for each in own],
            )


def stored(run: MeasuredRun | UntimedRun) -> StoredRun:
    """The run as a store answers it."""
    return run_reading._read(cast(Store, _Rows(run)), run.id)
