"""How two to eight steps differ, term by term: where the time of a rank goes, and what of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stagedb.files.texts import EVEN, parts_in
from stagedb.lowering.columns import COMPUTE, RECV
from stagedb.plans import GROUP_AXES
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


# Two to eight steps compared: which is the fastest, and where the time of each goes, term by term.

PLACES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
"""What things of one name are called, by their place."""

SHORT_NAME = 40
"""Characters of a name that is not the only one."""


@dataclass(frozen=True)
class ComparedTerm:
    """A part of the time of several steps [ns a rank], for as many tokens as the first step has.

    name: a key of `TERMS`, or the axis of exposed communication. values: one a step. kind: the kind of work of a part
    of a term, such as `matmul backward`; empty for the whole term.
    """

    name: str
    values: tuple[float, ...]
    kind: str = ""

    @property
    def text(self) -> str:
        """The name of the term for readers."""
        return self.kind or term_name(self.name)

    @property
    def spread(self) -> float:
        """Ns between the least and the largest value of the steps."""
        return max(self.values) - min(self.values)


def labels(names: Sequence[str]) -> tuple[str, ...]:
    """What a page calls things: their names in short, with their place where a name is not the only one."""
    return tuple(
        in_short(name) if names.count(name) == 1 else f"{name[:SHORT_NAME]} ({PLACES[at]})"
        for at, name in enumerate(names)
    )


def scaled_to_first(sums: Sequence[StepSums]) -> tuple[float, ...]:
    """For each step, the factor of its times that makes them count for as many tokens as the first step has.

    sums: of the times of each step.
    """
    return tuple(sums[0].tokens / each.tokens if each.tokens else 1.0 for each in sums)


def terms_of(sums: StepSums) -> dict[str, float]:
    """Where the time of a step goes [ns a rank]: computing, communication that is exposed by axis, bubble, other.

    Together they are the step.
    """
    waits = {term: sums.terms[term] for term in ("bubble", "idle")}
    return {"busy": sums.terms["busy"], **exposed_by_axis(sums), **waits}


def compared_terms(sums: Sequence[StepSums]) -> tuple[ComparedTerm, ...]:
    """The terms of several steps, in the order in which bars have them; those that no step has are left out.

    sums: of the times of each step.
    """
    found = [{(name, ""): ns for name, ns in terms_of(each).items()} for each in sums]
    known = {name for each in found for name, _ in each}
    axes = known - {"busy", "bubble", "idle"}
    order = [axis for axis in GROUP_AXES if axis in axes] + sorted(axes - {*GROUP_AXES})
    return _compared([(name, "") for name in ("busy", *order, "bubble", "idle")], found, scaled_to_first(sums))


def compared_parts(sums: Sequence[StepSums]) -> tuple[ComparedTerm, ...]:
    """The kinds of operators, and of communication that is exposed, that differ: those with the most spread first.

    sums: of the times of each step.
    """
    found = [{(term, what): ns for term in each.parts for what, ns in each.parts[term].items()} for each in sums]
    keys = list(dict.fromkeys(key for each in found for key in each))
    parts = [each for each in _compared(keys, found, scaled_to_first(sums)) if round(each.spread)]
    return tuple(sorted(parts, key=lambda each: -each.spread))


def _compared(
    keys: Sequence[tuple[str, str]], found: Sequence[Mapping[tuple[str, str], float]], scales: Sequence[float]
) -> tuple[ComparedTerm, ...]:
    """The compared terms and kinds of work, without those that take no time in any step.

    keys: terms with kinds of work. found: ns of each in each step. scales: a factor for each step.
    """
    sides = list(zip(found, scales, strict=True))
    every = (
        ComparedTerm(name, tuple(side.get((name, kind), 0.0) * scale for side, scale in sides), kind)
        for name, kind in keys
    )
    return tuple(each for each in every if any(map(round, each.values)))


def shares_of(terms: Sequence[ComparedTerm], at: int) -> tuple[float, ...]:
    """The share of each term in a step, rounded to a tenth of a percent so that they add up to 1. at: which step."""
    values = [round(each.values[at]) for each in terms]
    whole = sum(values)
    return tuple(each / 1000 for each in parts_in(whole or 1, [1000 * value for value in values]))


def differs_most(terms: Sequence[ComparedTerm]) -> ComparedTerm | None:
    """The term with the most between the least and the most; None if none differs."""
    most = max(terms, key=lambda each: each.spread, default=None)
    return most if most is not None and round(most.spread) else None


def verdict_of(sums: Sequence[StepSums]) -> str:
    """One sentence on two steps or more: which is the fastest, by how much, and the term that differs the most.

    The sentence on two is that of `verdict`. Names of more than two are as `labels` makes them. sums: of the times of
    each step.
    """
    if len(sums) == 2:
        return verdict(*sums)
    order = sorted(sums, key=lambda each: -each.rate)
    best, slowest = order[0], order[-1]
    if not all(each.step for each in sums):
        return f"steps of no time cannot be compared: {_listed([f'{each.name} {span(each.step)}' for each in sums])}"
    if _even(best, slowest):
        return f"{_listed([each.name for each in sums])} are equally fast: {_step_of(best, sums)}"
    behind = [each for each in order if not _even(best, each)]
    ahead = _listed([each.name for each in order if _even(best, each)])
    text = f"{ahead} {'is' if behind == order[1:] else 'are'} the fastest of {len(sums)}: {_step_of(best, sums)}, "
    text += f"{faster(best.rate / behind[0].rate)} {behind[0].name}"
    if len(behind) > 1:
        text += f" and {faster(best.rate / slowest.rate)} {slowest.name}"
    return text + _most_of(sums)


def sentences_of(sums: Sequence[StepSums]) -> tuple[str, ...]:
    """For more than two steps, sentences of `verdict` on the fastest and each of the others, the next one first.

    sums: of the times of each step.
    """
    order = sorted(sums, key=lambda each: -each.rate)
    return tuple(verdict(each, order[0]) for each in order[1:]) if len(sums) > 2 else ()


def _most_of(sums: Sequence[StepSums]) -> str:
    """The term that differs the most, with its least and its most."""
    most = differs_most(compared_terms(sums))
    if most is None:
        return ""
    low, high = most.values.index(min(most.values)), most.values.index(max(most.values))
    tokens = "for as many tokens " if len({each.tokens for each in sums}) > 1 else ""
    return (
        f"; {tokens}{most.text} differs the most, from {time_text(most.values[low])} a rank in {sums[low].name} to "
        f"{time_text(most.values[high])} in {sums[high].name}"
    )


def _even(one: StepSums, other: StepSums) -> bool:
    return abs(one.rate / other.rate - 1) < EVEN


def _step_of(best: StepSums, sums: Sequence[StepSums]) -> str:
    """The length of a step, and its tokens and ranks where those of the steps differ."""
    text = f"{span(best.step, 4, zeros=True)} a step"
    if len({each.tokens for each in sums}) > 1:
        text += f" of {best.tokens:,} tokens"
    if len({each.world for each in sums}) > 1:
        text += f" on {best.world:,} ranks"
    return text


def time_text(ns: float) -> str:
    """A time, `0` for less than half a ns."""
    return span(ns) if round(ns) else "0"


def signed_time(ns: float) -> str:
    """A difference of times with its sign, `0` for less than half a ns."""
    return f"{'+' if ns > 0 else '−'}{span(abs(ns))}" if round(ns) else "0"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
