"""How two steps differ, term by term: where the time of a rank goes, and what of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stagedb.files.texts import EVEN
from stagedb.lowering.columns import COMPUTE, RECV
from stagedb.reports.step_view import StepView
from stagedb.reports.terminal_chart import span

TERMS: Mapping[str, str] = {
    "busy": "computing",
    "exposed": "exposed communication",
    "bubble": "the pipeline bubble",
    "idle": "other waiting",
}
"""Terms of a step, which together are the step, and their names for a reader."""

CLEAR = 0.2
"""A second term is named if it changes by this part of the first one's change."""

FOLLOWS = 0.9
"""Waiting that grows by less than another term over this share may follow from it."""

ABOVE_ALL = 0.1
"""An operator is named if it makes this part of its term's change."""

LONGEST_NAME = 60
"""Characters of a name from the store in a sentence."""


@dataclass(frozen=True)
class StepSums:
    """Where the time of a step goes [ns], the average of all ranks.

    tokens: of the step. world: number of ranks. terms: time of each of `TERMS`. parts: for `busy` the time of each kind
    of operator, for `exposed` the exposed time of each kind of communication, by axis, kind and phase.
    """

    name: str
    step: int
    tokens: int
    world: int
    terms: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]

    @property
    def rate(self) -> float:
        """Tokens a ns."""
        return self.tokens / self.step if self.step else float("inf")


@dataclass(frozen=True)
class TermChange:
    """A term in two steps [ns a rank]. The second one counts for as many tokens as the first one has.

    part: the kind of operator whose change is the largest in the direction of the term's, if it is a clear part of it,
    and the ns by which that kind changes.
    """

    term: str
    first: float
    second: float
    part: tuple[str, float] | None

    @property
    def change(self) -> float:
        """ns by which the term takes longer in the second step."""
        return self.second - self.first


def sums_of(job: StepView, name: str) -> StepSums:
    """Where the time of a step goes, summed up for comparisons. name: what a sentence calls the step."""
    ranks = len(job.workload.ranks)
    pairs = list(zip(job.lanes, job.times.lanes, strict=True))
    terms = {term: sum(int(getattr(times, term)) * lane.ranks for lane, times in pairs) / ranks for term in TERMS}
    parts: dict[str, dict[str, float]] = {"busy": {}, "exposed": {}}
    for (lane, times), columns in zip(pairs, job.times.network.columns, strict=True):
        ops = columns.ops
        for op in np.flatnonzero((ops.type != RECV) & (times.ops.runs > 0)).tolist():
            term, spent = ("busy", times.ops.time) if ops.type[op] == COMPUTE else ("exposed", times.ops.exposed)
            what = part_name(ops.axis[op], ops.kind[op], ops.phase[op])
            parts[term][what] = parts[term].get(what, 0.0) + int(spent[op]) * lane.ranks / ranks
    return StepSums(name, job.times.step, job.merit.tokens, ranks, terms, parts)


def part_name(axis: str | None, kind: str, phase: str) -> str:
    """The name of a kind of work, such as `matmul backward` or `tp all_reduce forward`.

    axis: of the mesh, for communication. kind: of an operator or collective. phase: such as `forward`; empty: none.
    """
    return " ".join(part for part in dict.fromkeys((axis, kind, phase)) if part)


def term_changes(first: StepSums, second: StepSums) -> tuple[TermChange, ...]:
    """The terms of two steps, those that change the most first."""
    scale = first.tokens / second.tokens if second.tokens else 1.0
    found = [
        TermChange(term, first.terms[term], second.terms[term] * scale, _part(first, second, term, scale))
        for term in TERMS
    ]
    return tuple(sorted(found, key=lambda each: -abs(each.change)))


def axis_changes(first: StepSums, second: StepSums) -> tuple[TermChange, ...]:
    """The terms of two steps with exposed communication by axis, those that grow the most first.

    Where a rank waits for several axes at once, each has its part of the time. The term of an axis is its name.
    """
    scale = first.tokens / second.tokens if second.tokens else 1.0
    ours, theirs = exposed_by_axis(first), exposed_by_axis(second)
    found = [each for each in term_changes(first, second) if each.term != "exposed"]
    found += [
        TermChange(axis, ours.get(axis, 0.0), theirs.get(axis, 0.0) * scale, None) for axis in sorted({*ours, *theirs})
    ]
    return tuple(sorted(found, key=lambda each: -each.change))


def exposed_by_axis(sums: StepSums) -> dict[str, float]:
    """The exposed communication of a step by axis [ns a rank].

    Where a rank waits for several axes at once, each has its part of the time.
    """
    found: dict[str, float] = {}
    for what, ns in sums.parts.get("exposed", {}).items():
        axis = what.split(" ")[0]
        found[axis] = found.get(axis, 0.0) + ns
    whole = sum(found.values())
    return {axis: ns * sums.terms["exposed"] / whole for axis, ns in found.items()} if whole else {}


def longer(first: StepSums, second: StepSums) -> float | None:
    """The share by which the second step is longer, for as many tokens as the first has; None without a first step."""
    if not first.step or not second.tokens:
        return None
    return second.step * first.tokens / second.tokens / first.step - 1


def grown(first: StepSums, second: StepSums) -> str:
    """The terms that grew the most, in words, the first with its operator; empty if none did.

    A second term is named if it is a clear part of the first one. What takes longer on one stage makes others wait for
    about as long, so that the term that is no waiting comes first.
    """
    most, *others = sorted(axis_changes(first, second), key=_from_cause)
    if most.change <= 0:
        return ""
    above_all = "" if most.part is None else f" (above all {most.part[0]})"
    text = f"{term_name(most.term)} takes {span(round(most.change))} more on a rank{above_all}"
    clear = [each for each in others[:1] if each.change > CLEAR * most.change]
    return text + "".join(f" and {term_name(each.term)} {span(round(each.change))} more" for each in clear)


def _from_cause(each: TermChange) -> float:
    return -each.change * (FOLLOWS if each.term in ("bubble", "idle") else 1.0)


def term_name(term: str) -> str:
    """What a sentence calls a term of `TERMS`, or an axis of exposed communication."""
    return TERMS.get(term, f"exposed communication over {term}")


def part_changes(first: StepSums, second: StepSums, term: str) -> dict[str, tuple[float, float]]:
    """ns of each kind of work of a term in both steps, those that change the most first; for as many tokens."""
    scale = first.tokens / second.tokens if second.tokens else 1.0
    ours, theirs = first.parts.get(term, {}), second.parts.get(term, {})
    found = {what: (ours.get(what, 0.0), theirs.get(what, 0.0) * scale) for what in {**ours, **theirs}}
    return dict(sorted(found.items(), key=lambda each: -abs(each[1][1] - each[1][0])))


def _part(first: StepSums, second: StepSums, term: str, scale: float) -> tuple[str, float] | None:
    change = second.terms[term] * scale - first.terms[term]
    along = {
        what: theirs - ours
        for what, (ours, theirs) in part_changes(first, second, term).items()
        if (theirs - ours) * change > 0
    }
    if not along:
        return None
    what = max(along, key=lambda each: abs(along[each]))
    return (what, along[what]) if abs(along[what]) >= ABOVE_ALL * abs(change) else None


def verdict(first: StepSums, second: StepSums) -> str:
    """One sentence: which step is faster, by how much, and the term and operator that make most of the difference.

    Steps with different numbers of tokens are compared by tokens a second, and their terms for as many tokens.
    """
    one, other = names_of(first.name, second.name)
    if not first.step or not second.step:
        return f"a step of {one} takes {span(first.step)}, and one of {other} {span(second.step)}"
    ratio = second.rate / first.rate
    if abs(ratio - 1) < EVEN:
        return f"{one} and {other} are equally fast: {_steps(first, second, 'and')} a step"
    slow, fast = (first, second) if ratio > 1 else (second, first)
    names = (other, one) if ratio > 1 else (one, other)
    return (
        f"{names[0]} is {faster(max(ratio, 1 / ratio))} {names[1]}: {_steps(fast, slow, 'instead of')} a step"
        f"{_why(slow, fast)}{_each_accelerator(fast, slow, *names)}"
    )


def _each_accelerator(fast: StepSums, slow: StepSums, *names: str) -> str:
    """What an accelerator of the faster step computes, where the steps have other numbers of ranks."""
    if fast.world == slow.world:
        return ""
    ratio = fast.rate / fast.world / (slow.rate / slow.world)
    return f"; an accelerator of {names[0]} computes {ratio:.3g} times as many tokens as one of {names[1]}"


def _steps(one: StepSums, other: StepSums, word: str) -> str:
    """The lengths of two steps, and their tokens and ranks where these differ."""
    text = f"{span(one.step, 4, zeros=True)} {word} {span(other.step, 4, zeros=True)}"
    if one.tokens != other.tokens:
        text += f" for {one.tokens:,} {word} {other.tokens:,} tokens"
    if one.world != other.world:
        text += f" on {one.world:,} {word} {other.world:,} ranks"
    return text


def faster(ratio: float) -> str:
    """A comparison of rates in words: `3.2% faster than`, `2.1 times as fast as`. ratio: from 1 up."""
    return f"{ratio:.3g} times as fast as" if ratio >= 1.1 else f"{ratio - 1:.2%} faster than"


def names_of(first: str, second: str) -> tuple[str, str]:
    """What a sentence calls two things: their names, or `the first` and `the second` where the names are the same."""
    if first == second:
        return "the first", "the second"
    return in_short(first), in_short(second)


def in_short(name: str) -> str:
    """A name from the store for a sentence or a heading, cut if it is long."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _why(slow: StepSums, fast: StepSums) -> str:
    """What takes less time in the faster step, and what takes more."""
    changes = term_changes(slow, fast)
    less = [each for each in changes if each.change < 0]
    if not less:
        return ""
    clear = CLEAR * abs(less[0].change)
    tokens = "for as many tokens " if slow.tokens != fast.tokens else ""
    text = f", because {tokens}{TERMS[less[0].term]} takes {span(-less[0].change)} less on a rank"
    if less[0].part is not None:
        text += f" (above all {less[0].part[0]}, {span(-less[0].part[1])})"
    text += "".join(f" and {TERMS[each.term]} {span(-each.change)} less" for each in less[1:2] if -each.change > clear)
    more = next((each for each in changes if each.change > clear), None)
    return text if more is None else f"{text}, although {TERMS[more.term]} takes {span(more.change)} more"


def sums_from(
    name: str, head: Mapping[str, int], terms: Mapping[str, int], parts: Iterable[Mapping[str, str | int | None]]
) -> StepSums:
    """Where the time of a step goes, from rows of a store with sums over all ranks.

    name: what a sentence calls the step. head: step [ns], tokens, world. terms: ns of each of `TERMS`. parts: rows with
    type, kind, axis, phase, and time and exposed [ns].
    """
    ranks = head["world"] or 1
    found: dict[str, dict[str, float]] = {"busy": {}, "exposed": {}}
    for row in parts:
        term, value = ("busy", row["time"]) if row["type"] == "compute" else ("exposed", row["exposed"])
        axis, kind, phase = (None if row[word] is None else str(row[word]) for word in ("axis", "kind", "phase"))
        found[term][part_name(axis, kind or "", phase or "")] = int(value or 0) / ranks
    means = {term: terms[term] / ranks for term in TERMS}
    return StepSums(name, head["step"], head["tokens"], head["world"], means, found)
