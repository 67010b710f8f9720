"""Runs of a store, read for what is made of them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError
from stagedb.plans.plan import MOST_RANKS
from stagedb.runs.clocks import JointCollective
from stagedb.runs.measured_path import TimedOps
from stagedb.runs.measured_run import without_times
from stagedb.runs.rank_trace import HOST, NONE, Integers, RecordedCollective
from stagedb.runs.stored_run import LaneFacts, RunOpFacts, StoredCollective, StoredLevel, StoredMemory, StoredRun
from stagedb.store import Store, read_whole
from stagedb.traces.rank_sets import parse_ranks

_FACTS = ("name", "type", "kind", "phase", "axis", "block", "launcher", "shapes", "dtype", "message", "bytes", "stream",
          "gradients")  # fmt: skip


def read_run(store: Store, run: str) -> StoredRun:
    """The complete run of this id.

    Raises StagedbError for one that is not there, or is damaged, and UsageError for one without times.
    """
    found = read_any_run(store, run)
    if not found.has_times:
        raise without_times(found.name)
    return found


def read_any_run(store: Store, run: str) -> StoredRun:
    """The complete run of this id, which may have no times. Raises StagedbError as `read_run` does."""
    return read_whole(store, "Run", run, lambda: _read(store, run))


def _read(store: Store, run: str) -> StoredRun:
    facts = store.read("run/facts", run=run)[0]
    lanes, timed, has_times = [], dict[int, TimedOps](), facts["step"] is not None
    for row in store.read("run/lanes", run=run):
        ops = store.read("run/ops", run=run, lane=row["lane"])
        members = tuple(row["members"])
        timed |= _timed(ops, members) if has_times else _in_order(ops, members)
        described = (
            RunOpFacts(
                **{name: op[name] for name in _FACTS}, step_number=op["step_number"], critical=op["critical"] or 0
            )
            for op in ops
        )
        lanes.append(LaneFacts(row["lane"], row["stage"], members, tuple(described)))
    return StoredRun(
        id=facts["id"],
        name=facts["name"] or facts["id"][:12],
        tool=facts["tool"],
        step=facts["step"] or 0,
        job_ranks=facts["job_ranks"],
        devices=tuple(facts["devices"]),
        lanes=tuple(lanes),
        timed=dict(sorted(timed.items())),
        collectives=tuple(_collective(row, timed) for row in store.read("run/collectives", run=run)),
        memory=tuple(map(_memory, store.read("run/memory", run=run))),
        has_times=has_times,
    )


def _memory(row: Mapping[str, Any]) -> StoredMemory:
    levels = zip(row["moments"], row["bytes"], row["starts"], row["operators"], strict=True)
    found = {moment: StoredLevel(held, start, operator or None) for moment, held, start, operator in levels}
    if not {"start", "peak"} <= found.keys():
        raise DamagedError("a RunMemory has not the levels start and peak")
    own = row["place"], row["absolute"], tuple(row["members"]), row["step_number"], row["phase"], row["module"]
    return StoredMemory(*own, found)


def _timed(ops: Sequence[Mapping[str, Any]], members: Sequence[int]) -> dict[int, TimedOps]:
    """The times of the ops of a lane on each of its ranks."""
    count = len(members)
    start, duration = _column(ops, "starts", count), _column(ops, "durations", count)
    launched, synchronised = _column(ops, "launches", count), _column(ops, "synchronised", count)
    if int(synchronised.max(initial=NONE)) >= len(ops):
        raise DamagedError("synchronised of a RunOp is no op of its lane")
    streams: dict[str, int] = {}
    stream = np.array([streams.setdefault(op["stream"], len(streams)) for op in ops], np.int64)
    by_host = np.array([op["processor"] == HOST for op in ops], bool)
    return {
        rank: TimedOps(
            start[:, at], start[:, at] + duration[:, at], stream, launched[:, at], synchronised[:, at], by_host
        )
        for at, rank in enumerate(members)
    }


def _in_order(ops: Sequence[Mapping[str, Any]], members: Sequence[int]) -> dict[int, TimedOps]:
    """The places of the ops of a lane without times, in their order, on each of its ranks."""
    place = np.arange(len(ops))
    none = np.full(len(ops), NONE, np.int64)
    by_host = np.array([op["processor"] == HOST for op in ops], bool)
    streams: dict[str, int] = {}
    stream = np.array([streams.setdefault(op["stream"], len(streams)) for op in ops], np.int64)
    return {rank: TimedOps(place, place + 1, stream, none, none, by_host) for rank in members}


def _column(ops: Sequence[Mapping[str, Any]], name: str, count: int) -> Integers:
    """A column of lists, a row an op: one number a rank. -1 where it is absent."""
    rows = [op[name] if op[name] is not None else [NONE] * count for op in ops]
    if any(len(row) != count for row in rows):
        raise DamagedError(f"{name} of a RunOp has not one value for each of the {count} ranks of its lane")
    return np.array(rows, np.int64).reshape(len(rows), count)


def _collective(row: Mapping[str, Any], timed: Mapping[int, TimedOps]) -> StoredCollective:
    members = dict(zip(row["ranks"], row["ops"], strict=True))
    for rank, op in members.items():
        if rank not in timed or not 0 <= op < len(timed[rank].start):
            raise DamagedError(f"a RunCollective has a member that is no op of rank {shown(rank)}")
    recorded = RecordedCollective(
        row["kind"], group=row["axis"] or "", size=row["group_size"], sequence=row["sequence"]
    )
    joint = JointCollective(recorded, members, row["by_order"])
    return StoredCollective(
        joint, row["axis"], row["ready"] or 0, row["last"] or 0, row["waited"] or 0, _ranks(row["group"])
    )


@lru_cache(maxsize=1 << 10)
def _ranks(text: str | None) -> tuple[int, ...]:
    """Ranks of the text of a group. Raises DamagedError."""
    if text is None:
        return ()
    try:
        return tuple(parse_ranks(text, MOST_RANKS).tolist())
    except UsageError as error:
        raise DamagedError(f"group of a RunCollective: {error}") from None
