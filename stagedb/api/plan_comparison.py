"""Two to eight instances or profiles compared: plans, terms of the step, memory by category, and work that differs."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stagedb.api import comparing, lookup, memory_rows, result_parts
from stagedb.api.comparing import PlanSide
from stagedb.api.provenance import Provenance, of_stored
from stagedb.api.results import InstanceInfo, ProfileInfo, Rows
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.reports.memory_sections import CATEGORIES
from stagedb.reports.step_difference import (
    ComparedTerm,
    StepSums,
    compared_parts,
    compared_terms,
    labels,
    names_of,
    scaled_to_first,
    sentences_of,
    verdict_of,
)
from stagedb.store import Store

MOST = 8
"""Things that are compared at once."""

MOMENT = "peak"
"""The moment of the rows that are shown."""


@dataclass(frozen=True)
class PlanComparison:
    """Instances or profiles compared; rows have a column for each, with the name that `names` has.

    instances, profiles: what is compared; without profiles the plans alone, with their work and memory. verdict: one
    sentence, which for two is that of `Stagedb.diff`. sentences: for more than two, the fastest against each of the
    others. plan: words of the plans, and of the systems, that differ. memory: bytes of the fullest rank at its peak, by
    category. work: calls, FLOPs and bytes of a step that differ, all ranks together, by kind, axis and phase. sums:
    where the time of each step goes; empty without profiles.
    """

    instances: tuple[InstanceInfo, ...]
    profiles: tuple[ProfileInfo, ...]
    names: tuple[str, ...]
    verdict: str
    sentences: tuple[str, ...]
    plan: Rows
    memory: Rows
    work: Rows
    sums: tuple[StepSums, ...]
    provenance: Provenance

    @property
    def terms(self) -> Rows:
        """The step, and where the time of a rank goes: its terms, which together are the step.

        In ns, for as many tokens as the first step has.
        """
        scales = scaled_to_first(self.sums) if self.sums else ()
        step = ("step", *(round(each.step * scale) for each, scale in zip(self.sums, scales, strict=True)))
        terms = [(each.text, *map(round, each.values)) for each in self.compared_terms]
        return Rows(("term", *self.names), (step, *terms) if self.sums else (), units=dict.fromkeys(self.names, "ns"))

    @property
    def compared_terms(self) -> tuple[ComparedTerm, ...]:
        """Where the time of each step goes, term by term, in the order in which charts draw the terms."""
        return compared_terms(self.sums) if self.sums else ()

    @property
    def compared_parts(self) -> tuple[ComparedTerm, ...]:
        """The kinds of operators and of exposed communication that differ, those with the most spread first."""
        return compared_parts(self.sums) if self.sums else ()

    @property
    def same(self) -> bool:
        """Whether nothing differs between the compared instances or profiles."""
        return not (self.plan.rows or self.work.rows or self.compared_parts)

    def _repr_html_(self) -> str:
        tables = (("plan", self.plan), ("terms", self.terms), ("memory", self.memory), ("work", self.work))
        return "".join(result_parts.table(rows.columns, rows.rows, title) for title, rows in tables if rows.rows)


Held = Callable[[InstanceInfo], Mapping[str, int]]


def compare(store: Store, words: Sequence[str], held: Held | None = None) -> PlanComparison:
    """See `Stagedb.compare`. Writes nothing. held: gives `fullest` of an instance, where a caller keeps it."""
    sides = _sides(store, words)
    memory = held or (lambda each: fullest(store, each))
    read: Callable[[], PlanComparison] = lambda: _comparison(store, sides, memory)  # noqa: E731
    for each in {each.info.id: each for each in sides}.values():
        read = _whole(store, each, read)
    return read()


def _whole(store: Store, side: PlanSide, read: Callable[[], PlanComparison]) -> Callable[[], PlanComparison]:
    return lambda: side.whole(store, read)


def _sides(store: Store, words: Sequence[str]) -> Sequence[PlanSide]:
    """The instances or profiles that are compared.

    words: an id or name each. Raises UsageError for too few, too many, and kinds that do not go together.
    """
    if not 2 <= len(words) <= MOST:
        raise UsageError(f"a comparison takes 2 to {MOST} instances or profiles, and {len(words)} are given")
    runs = [word for word in words if lookup.find_run(store, word) is not None]
    if runs:
        raise UsageError(
            f"{shown(runs[0])} is a run, and {len(words)} things are given: a run is compared with one other run, or "
            "with one instance or profile"
        )
    sides = comparing.timed(store, [comparing.side_of(store, word) for word in words])
    untimed = [word for word, each in zip(words, sides, strict=True) if each.profile is None]
    if untimed and len(untimed) < len(words):
        timed = next(word for word in words if word not in untimed)
        raise UsageError(
            f"{shown(untimed[0])} is an instance and {shown(timed)} a profile: compare instances, or profiles "
            f"({call('profile', untimed[0])} makes one)"
        )
    return sides


def _comparison(store: Store, sides: Sequence[PlanSide], held: Held) -> PlanComparison:
    names = labels([each.name for each in sides])
    instances = tuple(each.instance for each in sides)
    profiles = tuple(each.profile for each in sides if each.profile is not None)
    # The sentence on two things of one name calls them the first and the second.
    called = [each.name for each in sides] if len(sides) == 2 else names
    sums = tuple(comparing.stored_sums(store, each, name) for each, name in zip(profiles, called, strict=False))
    first = instances[0]
    work = [() if each.id == first.id else tuple(comparing.work_of(store, first, each)) for each in instances]
    if sums:
        verdict = verdict_of(sums) + comparing.of_several_models(instances)
        sentences = list(sentences_of(sums))
    else:
        pairs = ((rows, first, each, *names_of(called[0], name))
                 for rows, each, name in list(zip(work, instances, called, strict=True))[1:])  # fmt: skip
        verdict, *sentences = (comparing.work_verdict(store, *pair) for pair in pairs)
    command = shlex.join(["stagedb", "diff", *(each.info.id for each in sides)])
    return PlanComparison(
        instances,
        profiles,
        names,
        verdict,
        tuple(sentences),
        Rows(("word", *names), tuple(_plan(sides))),
        _memory(instances, names, held),
        Rows(("what", "unit", *names), _work(work)),
        sums,
        of_stored(store, instances, profiles, [command]),
    )


def _plan(sides: Sequence[PlanSide]) -> Iterator[tuple[Any, ...]]:
    """Words of the plans that differ, then what they run on."""
    plans = [_words(each) for each in sides]
    for word in dict.fromkeys(word for each in plans for word in each):
        values = [each.get(word) for each in plans]
        if any(value != values[0] for value in values):
            yield word, *values


def _words(side: PlanSide) -> dict[str, Any]:
    words: dict[str, Any] = {"model": side.instance.model}
    words |= dict(sorted(side.instance.plan.items()))
    words["ranks"] = side.instance.ranks
    if side.profile is not None:
        words["system"] = side.profile.system
        words["as if"] = ", ".join(side.profile.scalings)
        words["waits for communication on"] = ", ".join(side.profile.blocking)
    return words


def _memory(instances: Sequence[InstanceInfo], names: Sequence[str], held: Held) -> Rows:
    """Bytes of the fullest rank of each instance at its peak, from the parameters to the temporaries."""
    sizes = {id: held(each) for id, each in {each.id: each for each in instances}.items()}
    known = {category for each in sizes.values() for category in each}
    order = [*(each for each in CATEGORIES if each in known), *sorted(known - {*CATEGORIES})]
    rows = tuple((category, *(sizes[each.id].get(category, 0) for each in instances)) for category in order)
    return Rows(("category", *names), rows, units=dict.fromkeys(names, "B"))


def fullest(store: Store, instance: InstanceInfo) -> Mapping[str, int]:
    """Bytes by category of the rank that holds the most, at its peak. Computed where the store does not have it."""
    peaks, levels, _ = memory_rows.rows_of(store, instance, keep=False)
    most = max(peaks, key=lambda row: int(row["peak"]), default=None)
    if most is None:
        return {}
    return {
        row["category"]: row["bytes"]
        for row in levels
        if row["moment"] == MOMENT and row["class"] == most["class"] and row["bytes"]
    }


def _work(work: Sequence[Sequence[tuple[Any, ...]]]) -> tuple[tuple[Any, ...], ...]:
    """Rows of work that differs, with the value of each instance: where it does what the first one does, that one's.

    work: rows of `comparing.work_of` for each, compared with the first.
    """
    found: dict[tuple[str, str], dict[int, Any]] = {}
    for at, rows in enumerate(work):
        for what, unit, ours, theirs, _ in rows:
            found.setdefault((what, unit), {0: ours})[at] = theirs
    return tuple((*key, *(values.get(at, values[0]) for at in range(len(work)))) for key, values in found.items())
