"""Two to eight steps compared: which is the fastest, and where the time of each goes, term by term."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stagedb.files.texts import EVEN, parts_in
from stagedb.plans import GROUP_AXES
from stagedb.reports.step_difference import (
    StepSums,
    exposed_by_axis,
    faster,
    in_short,
    term_name,
    verdict,
)
from stagedb.reports.terminal_chart import span

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
