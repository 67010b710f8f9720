"""Durations of the nodes of traces by parts of rank classes.

The ops of a class take equally long on the ranks of a lane, and usually on several lanes. A class is divided into parts
of lanes with equal durations, and each part is encoded once.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stagedb.systems import Costs, Transfer
from stagedb.systems.system import System
from stagedb.traces.protobuf_columns import Ints
from stagedb.workload.engine_pairs import EnginePair
from stagedb.workload.instance_columns import SEND, ClassColumns, Workload


@dataclass(frozen=True)
class RankPart:
    """Ranks of a class whose ops take equally long.

    lanes: of the profile. ranks: those of the lanes. ns: the duration of each op of the class. Without a profile the
    part is the whole class, with no lanes and no ns.
    """

    lanes: tuple[int, ...]
    ranks: Ints
    ns: Ints | None = None


@dataclass(frozen=True)
class NodeTiming:
    """The durations of an instance's traces from a profile. parts: those of each class, by its number. step: ns."""

    profile: str
    system: System
    step: int
    parts: Mapping[int, tuple[RankPart, ...]]

    @property
    def facts(self) -> dict[str, Any]:
        """The manifest's facts of the profile."""
        return {"id": self.profile, "system": self.system.name, "step": self.step}


def window_timing(timings: Sequence[NodeTiming], steps: Sequence[Workload], window: Workload) -> NodeTiming:
    """The durations of a window, whose ops are those of its steps one after another.

    timings: those of each step, on one system. window: of `stagedb.workload.windows`. A part has ranks that are in one
    part of every step, and its own number in place of lanes.
    """
    if len(timings) == 1:
        return timings[0]
    parts: dict[int, tuple[RankPart, ...]] = {}
    numbered = 0
    for columns in window.classes:
        ranks = np.flatnonzero(window.ranks.number == columns.number)
        own = [timing.parts[int(step.ranks.number[ranks[0]])] for timing, step in zip(timings, steps, strict=True)]
        places = np.stack([_places(each, ranks) for each in own], axis=1)
        distinct, part_of = np.unique(places, axis=0, return_inverse=True)
        made = []
        for at, place in enumerate(distinct.tolist()):
            ns = [parts_of[part].ns for parts_of, part in zip(own, place, strict=True)]
            durations = np.concatenate([each for each in ns if each is not None])
            made.append(RankPart((numbered,), ranks[part_of.reshape(-1) == at], durations))
            numbered += 1
        parts[columns.number] = tuple(sorted(made, key=lambda part: int(part.ranks[0])))
    digest = hashlib.sha256("+".join(each.profile for each in timings).encode()).hexdigest()
    step = sum(each.step for each in timings)
    return NodeTiming(digest[: len(timings[0].profile)], timings[0].system, step, parts)


def pair_timing(timings: Sequence[NodeTiming], pair: EnginePair) -> NodeTiming:
    """The durations of two engines and of the caches between them, each over the link between its two ranks.

    timings: those of both sides, on one system. The step is that of both sides one after another, without the caches.
    Raises UsageError if the network has no place for all ranks.
    """
    system, made = timings[0].system, pair.workload
    costs = Costs(system, len(made.ranks))
    parts: dict[int, tuple[RankPart, ...]] = {}
    numbered = 0
    for columns, (side, number) in zip(made.classes, pair.classes, strict=True):
        ranks = np.flatnonzero(made.ranks.number == columns.number)
        own = timings[side].parts[number]
        by_time: dict[tuple[int, ...], list[int]] = {}
        for rank, place in zip(ranks.tolist(), _places(own, ranks - pair.first_rank(side)).tolist(), strict=True):
            by_time.setdefault((place, *_sent(made, columns, rank, costs)), []).append(rank)
        rank_parts = []
        for (place, *sent), members in by_time.items():
            before = own[place].ns
            every = np.concatenate([*([] if before is None else [before]), np.array(sent, np.int64)])
            rank_parts.append(RankPart((numbered,), np.array(members, np.int64), every))
            numbered += 1
        parts[columns.number] = tuple(rank_parts)
    digest = hashlib.sha256("+".join(timing.profile for timing in timings).encode()).hexdigest()
    step = sum(timing.step for timing in timings)
    return NodeTiming(digest[: len(timings[0].profile)], system, step, parts)


def _sent(pair: Workload, columns: ClassColumns, rank: int, costs: Costs) -> Iterator[int]:
    """The ns of each message with caches of a rank. Those that arrive take no time of their own."""
    ops = columns.ops
    for row in np.flatnonzero(ops.handed).tolist():
        target = int(pair.ranks.others[rank, ops.peer[row]])
        yield costs.transfer(Transfer(int(ops.size[row]), rank, target)).ns if ops.type[row] == SEND else 0


def _places(parts: Sequence[RankPart], ranks: Ints) -> Ints:
    """For each of some ranks of a class, the place of its part among those of the class."""
    places = np.zeros(len(ranks), np.int64)
    for place, part in enumerate(parts):
        places[np.isin(ranks, part.ranks)] = place
    return places
