"""The memory that a plan accounts for, next to what the allocators of a run gave out, at the same moments of a step."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stagedb.lowering import Program
from stagedb.memory import ClassMemory, memory_of
from stagedb.runs.stored_run import StoredMemory, StoredRun

MOMENTS = (
    *("start", "forward_peak", "forward_end", "backward_peak", "backward_end", "optimizer_peak", "step_end"),
    "peak",
)
"""Moments of a step in their order, and its peak."""


@dataclass(frozen=True)
class MemoryAt:
    """Bytes of a rank class at a moment of a step.

    number: of the class. ranks: its recorded ranks, ascending. fullest: those whose memory is compared, as its peak is
    the highest: more than one if their allocators did the same. place: `device 0`, or `host`. above_start: whether
    bytes are those above the start of the step. moment: of `MOMENTS`. expected, seen: bytes. expected_in, seen_in: the
    phase and what runs at a peak, in words; empty at the end of a phase.
    """

    number: int
    ranks: tuple[int, ...]
    fullest: tuple[int, ...]
    place: str
    above_start: bool
    moment: str
    expected: int
    seen: int
    expected_in: str = ""
    seen_in: str = ""

    @property
    def difference(self) -> int:
        """Seen bytes minus expected bytes."""
        return self.seen - self.expected

    @property
    def share(self) -> float | None:
        """The difference as a share of what is expected; None if nothing is."""
        return self.difference / self.expected if self.expected else None


def compared_memory(run: StoredRun, program: Program) -> tuple[MemoryAt, ...]:
    """Expected and seen bytes by rank class and moment; empty if the run has no memory.

    A device's memory is compared as it is. Where only the host was recorded, whose bytes count from the begin of the
    recording, both sides are compared above the start of the step.
    """
    if not run.memory:
        return ()
    workload = program.workload
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank in run.timed:
        if rank < len(workload.ranks):
            ranks[workload.class_of(rank).number].append(rank)
    found: list[MemoryAt] = []
    for expected in memory_of(program):
        members = ranks.get(expected.rank_class.number, [])
        fullest = _fullest(run.memory, members)
        if fullest:
            found += _of_class(expected, tuple(members), fullest)
    return tuple(found)


def _fullest(memory: Sequence[StoredMemory], ranks: Sequence[int]) -> list[StoredMemory]:
    """The memory with the highest peak among those of some ranks: of a device, or of the host if no device has any.

    Several of them if their peaks are equal.
    """
    mine = [each for each in memory if not set(ranks).isdisjoint(each.members)]
    keys = [(each.place != "host", _bytes(each, "peak")) for each in mine]
    return [each for each, key in zip(mine, keys, strict=True) if key == max(keys)]


def _bytes(seen: StoredMemory, moment: str) -> int:
    held = seen.levels[moment].bytes
    return held if seen.absolute else held - seen.levels["start"].bytes


def _of_class(expected: ClassMemory, ranks: tuple[int, ...], fullest: Sequence[StoredMemory]) -> Iterator[MemoryAt]:
    seen, members = fullest[0], {member for each in fullest for member in each.members}
    sizes = {moment: sum(held.values()) for moment, held in (*expected.ends(), *expected.peaks())}
    before = 0 if seen.absolute else sizes["start"]
    runs_then = dict(_runs_at_peaks(expected))
    for moment in MOMENTS:
        if moment not in sizes or moment not in seen.levels or (moment == "start" and not seen.absolute):
            continue
        yield MemoryAt(
            number=expected.rank_class.number,
            ranks=ranks,
            fullest=tuple(each for each in ranks if each in members),
            place=seen.place,
            above_start=not seen.absolute,
            moment=moment,
            expected=sizes[moment] - before,
            seen=_bytes(seen, moment),
            expected_in=runs_then.get(moment, ""),
            seen_in=_seen_in(seen, moment),
        )


def _runs_at_peaks(expected: ClassMemory) -> Iterator[tuple[str, str]]:
    """The operators that run at the peak of each phase, and at that of the step."""
    points = [("peak", expected.peak)]
    for phase in dict.fromkeys(kind.phase for kind in expected.kinds):
        kinds = [kind for kind in expected.kinds if kind.phase == phase]
        points.append((f"{phase}_peak", expected.usage.peak(kinds)))
    for moment, point in points:
        task, _, name = expected.at(point)
        yield moment, f"{task.kind.phase}, {name}"


def _seen_in(seen: StoredMemory, moment: str) -> str:
    if not moment.endswith("peak"):
        return ""
    phase = seen.phase if moment == "peak" else moment.removesuffix("_peak")
    module = seen.module if moment == "peak" else None
    return ", ".join(each for each in (phase, seen.levels[moment].operator, module) if each)
