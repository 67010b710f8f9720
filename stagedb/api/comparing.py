"""Two instances, or two profiles, compared: words of their plans, figures, work and time that differ."""

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stagedb.api import lookup, matching, querying
from stagedb.api.answer_hints import other_system
from stagedb.api.matching import MatchedRun
from stagedb.api.provenance import Provenance, of_runs, of_stored
from stagedb.api.results import Difference, InstanceInfo, ProfileInfo, Rows, RunInfo, kind_of
from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.mentions import Word, call
from stagedb.plans import GROUP_AXES
from stagedb.reports import seen_step
from stagedb.reports.seen_step import expected_sums, seen_sums, seen_verdict
from stagedb.reports.step_difference import (
    TERMS,
    ComparedTerm,
    StepSums,
    compared_terms,
    grown,
    in_short,
    longer,
    names_of,
    part_name,
    sums_from,
    verdict,
)
from stagedb.runs.memory_match import MemoryAt, compared_memory
from stagedb.runs.run_difference import difference
from stagedb.runs.run_match import RunMatch
from stagedb.store import Store, read_whole
from stagedb.store.contents.run_reading import read_run

Read = TypeVar("Read")

COLUMNS = ("what", "unit", "first", "second", "ratio")

OF_OPERATORS = ("what", "first", "second", "change", "calls_first", "calls_second")
"""Columns of the difference of two runs: times, of a rank and step, and calls."""

WORK = (("calls", "calls"), ("flops", "FLOPs"), ("bytes", "bytes"))
TIME = (("time", "ns a rank"), ("exposed", "ns exposed a rank"), ("critical", "ns on the critical path"))
"""Columns of the named queries that are compared, with their units."""
SUMS = 1e-12
"""Sums of a large step, beyond 64-bit integers, are floats: equal work may differ by less than this share."""


@dataclass(frozen=True)
class PlanSide:
    """What is compared: an instance, and the profile that has its times, if there is one.

    found: whether a word meant the instance, and the profile was found for it.
    """

    instance: InstanceInfo
    profile: ProfileInfo | None
    found: bool = False

    @property
    def info(self) -> InstanceInfo | ProfileInfo:
        """The profile of this side; its instance, if it has no profile."""
        return self.profile or self.instance

    @property
    def name(self) -> str:
        """The name of this side in a sentence."""
        named = None if self.profile is None or self.found else self.profile.name
        return named or self.instance.name

    def whole(self, store: Store, read: Callable[[], Read]) -> Read:
        """The result of `read`, during which nobody changes this side."""
        if self.profile is not None:
            return read_whole(store, "Profile", self.profile.id, read)
        return read_whole(store, "Instance", self.instance.id, read)


def compare(store: Store, first: str, second: str, fail_above: str | float | None = None) -> Difference:
    """The differences between two instances, or two profiles and their instances, by id or name.

    fail_above: the share by which the second step may be longer, such as `3%`. first, second: id or name of each.
    Raises UsageError for an unknown word, if one is an instance and the other a profile, and for a share that is none
    or that goes with instances.
    """
    limit = None if fail_above is None else share_of(fail_above)
    runs = [run for word in (first, second) if (run := lookup.find_run(store, word)) is not None]
    if len(runs) == 2:
        return dataclasses.replace(_of_runs(store, *runs), limit=limit)
    if runs:
        if limit is not None:
            raise UsageError(f"{Word('fail_above')} compares steps of two runs or two profiles: leave it out")
        (word,) = (each for each in (first, second) if lookup.find_run(store, each) is None)
        return _expected_and_seen(store, runs[0], side_of(store, word))
    one, other = timed(store, [side_of(store, word) for word in (first, second)])
    if (one.profile is None) != (other.profile is None):
        words = (first, second) if one.profile is None else (second, first)
        raise UsageError(
            f"{shown(words[0])} is an instance and {shown(words[1])} a profile: compare two instances, or two "
            f"profiles ({call('profile', words[0])} makes one)"
        )
    if limit is not None and one.profile is None:
        raise UsageError(
            f"{Word('fail_above')} compares steps, and {shown(first)} and {shown(second)} are instances: name two "
            f"profiles ({call('profile', first)} makes one)"
        )
    found = one.whole(store, lambda: other.whole(store, lambda: _differences(store, one, other)))
    if limit is not None and found.longer is None:
        raise UsageError(
            f"the step of {shown(first)} takes no time, so that {Word('fail_above')} has nothing to compare"
        )
    return dataclasses.replace(found, limit=limit)


def _of_runs(store: Store, one: RunInfo, other: RunInfo) -> Difference:
    """The difference of two runs that were recorded."""
    found = difference(read_run(store, one.id), read_run(store, other.id))
    times_in = dict.fromkeys(("first", "second", "change"), "ns")
    return Difference(
        one,
        other,
        Rows((), ()),
        Rows(OF_OPERATORS, tuple(found.operators), keep=OF_OPERATORS[:4], units=times_in),
        Rows(OF_OPERATORS[:4], tuple(found.terms), units=times_in),
        found.verdict(*names_of(one.name or one.id[:12], other.name or other.id[:12])),
        of_runs(store, [one, other], [shlex.join(["stagedb", "diff", one.id, other.id])]),
        longer=found.longer,
        grew=found.why if found.longer > 0 else "",
        remark=unlike(one, other),
    )


def unlike(one: RunInfo, other: RunInfo) -> str:
    """A sentence on two runs of jobs of other sizes, or on other devices; empty if these are alike."""
    jobs = [(each.job_ranks, each.devices) for each in (one, other)]
    if jobs[0] == jobs[1]:
        return ""
    texts = [
        f"of a job of {ranks:,} rank{'' if ranks == 1 else 's'}"
        + (f" on {', '.join(map(in_short, devices))}" if devices else "")
        for ranks, devices in jobs
    ]
    return f"the first run is {texts[0]}, and the second {texts[1]}: what differs may follow from that"


def _expected_and_seen(store: Store, run: RunInfo, plan: PlanSide) -> Difference:
    """An instance, and a profile of it if there is one, against a run that is matched with it.

    Work is findings, and time what the step, its terms and calls take: expected first.
    """
    matching.match(store, run.id, plan.instance.id)
    found = seen_against_plan(store, run, plan)
    findings = found.match.findings
    at = [findings.columns.index(name) for name in ("finding", "module", "phase", "ranks", "planned", "seen")]
    return Difference(
        found.profile or found.instance,
        run,
        Rows((), ()),
        Rows(("finding", "module", "phase", "ranks", "expected", "seen"),
             tuple(tuple(row[each] for each in at) for row in findings.rows)),
        found.time,
        found.verdict,
        of_runs(store, [run], [shlex.join(["stagedb", "diff", plan.instance.id, run.id])]),
        memory=found.memory,
        memory_verdict=found.memory_verdict,
        remark=found.remark,
    )  # fmt: skip


@dataclass(frozen=True)
class SeenAgainstPlan:
    """A run next to the instance that it is of: expected and seen.

    profile: the times that are expected; None without one. match: what differs between the ops of both; found: the same
    with the run and the plan that were read for it. sums: where the time of the expected and of the seen step goes;
    empty without a profile. calls: what a call takes, by what it is, expected and seen; empty unless the store has this
    match. held: bytes at the moments of a step, by rank class, expected and seen; empty if the run has none.
    """

    run: RunInfo
    instance: InstanceInfo
    profile: ProfileInfo | None
    match: MatchedRun
    sums: tuple[StepSums, ...]
    calls: Rows
    found: RunMatch
    held: tuple[MemoryAt, ...]

    @property
    def verdict(self) -> str:
        """What the match found, and how long the step takes instead of what was expected."""
        return f"{self.match}; {seen_verdict(*self.sums)}" if self.sums else f"{self.match}"

    @property
    def remark(self) -> str:
        """A sentence on why expected and seen times do not compare; empty if nothing shows that."""
        return "" if self.profile is None else other_system(self.run, self.instance.id, self.profile.system)

    @property
    def memory(self) -> Rows:
        """Bytes at the moments of a step, a row each."""
        rows = seen_step.memory_rows(self.held)
        return Rows(seen_step.COLUMNS, rows, keep=seen_step.KEEP, units=seen_step.UNITS)

    @property
    def memory_verdict(self) -> str:
        """One sentence on the memory, or how to record it."""
        return seen_step.memory_verdict(self.held)

    @property
    def time(self) -> Rows:
        """How long the step, each of its terms and a call of each kind take [ns]: expected, seen, and their ratio."""
        rows: list[tuple[Any, ...]] = [("step", "ns", *(each.step for each in self.sums))] if self.sums else []
        rows += [(each.text, "ns a rank", *map(round, each.values)) for each in self.terms]
        pairs = ((*row, row[3] / row[2] if row[2] else None) for row in rows)
        return Rows(COLUMNS, (*pairs, *self.calls.rows))

    @property
    def terms(self) -> tuple[ComparedTerm, ...]:
        """Where the time of both steps goes."""
        return compared_terms(self.sums) if self.sums else ()


def seen_against_plan(store: Store, run: RunInfo, plan: PlanSide) -> SeenAgainstPlan:
    """A run next to an instance, with the times of its newest profile. Writes nothing: both are matched in memory."""
    (plan,) = timed(store, [plan])
    info, match = matching.match_of(store, run, plan.instance)
    found = match, compared_memory(match.run, match.planned.program)
    if plan.profile is None:
        return SeenAgainstPlan(run, plan.instance, None, info, (), Rows(COLUMNS, ()), *found)
    planned = stored_sums(store, plan.profile, plan.name)
    sums = expected_sums(planned), seen_sums(match, run.name or run.id[:12], planned.tokens)
    recorded = matching.instance_of_run(store, run.id) == plan.instance.id
    calls = store.read(querying.find("seen_and_planned").name, run=run.id) if recorded else []
    rows = tuple(
        (part_name(None, row["kind"], row["phase"]), "ns a call", row["predicted"], row["seen"], row["ratio"])
        for row in calls
        if row["system"] == plan.profile.system
    )
    return SeenAgainstPlan(run, plan.instance, plan.profile, info, sums, Rows(COLUMNS, rows), *found)


MOST = 1000
"""Percent by which a step may be longer."""

_SHARE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)\s*(%?)", re.ASCII)


def share_of(value: str | float) -> float:
    """The share of a text such as `3%` or `0.03`, or of a number such as 0.03.

    value: the text or the number. UsageError for other values.
    """
    text = value.strip() if isinstance(value, str) else f"{value:.9f}" if type(value) in (int, float) else ""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{Word('fail_above')} {shown(value)} is no share of a step: it takes a percentage from 0% to {MOST}%, "
            "such as 3%"
        )
    number = float(match[1])
    if not match[2] and number >= 1:
        raise UsageError(
            f"{Word('fail_above')} {shown(value)} may mean {number:g} % or {100 * number:g} %: write {number:g}% or "
            f"{100 * number:g}%"
        )
    share = number / 100 if match[2] else number
    if 100 * share > MOST:
        raise UsageError(
            f"{Word('fail_above')} {shown(value)} is more than {MOST}%: it takes a percentage up to that, such as 3%"
        )
    return share


def _differences(store: Store, one: PlanSide, other: PlanSide) -> Difference:
    plan = tuple(_plan(one.instance, other.instance))
    work = () if one.instance.id == other.instance.id else tuple(work_of(store, one.instance, other.instance))
    time: tuple[tuple[Any, ...], ...] = ()
    grew: dict[str, Any] = {}
    if one.profile is not None and other.profile is not None:
        sums = stored_sums(store, one.profile, one.name), stored_sums(store, other.profile, other.name)
        time = (
            *_figures(one.profile, other.profile),
            *_terms(*sums),
            *_time(store, one.profile, other.profile),
        )
        sentence = verdict(*sums) + of_several_models([one.instance, other.instance])
        grew = {"longer": longer(*sums), "grew": grown(*sums)}
    else:
        sentence = work_verdict(
            store, work, one.instance, other.instance, *names_of(one.instance.name, other.instance.name)
        )
    return Difference(
        one.profile or one.instance,
        other.profile or other.instance,
        Rows(("word", "first", "second"), plan),
        Rows(COLUMNS, work),
        Rows(COLUMNS, time),
        sentence,
        _provenance(store, one, other),
        **grew,
    )


def _provenance(store: Store, one: PlanSide, other: PlanSide) -> Provenance:
    """What both are made from, and the commands that make and compare them."""
    profiles = [each.profile for each in (one, other) if each.profile is not None]
    compared = shlex.join(["stagedb", "diff", *((each.profile or each.instance).id for each in (one, other))])
    return of_stored(store, [one.instance, other.instance], profiles, [compared])


def timed(store: Store, sides: Sequence[PlanSide]) -> Sequence[PlanSide]:
    """The sides, each with its newest profile without scaled durations, if all of them have one on the same system."""
    if any(each.profile is not None for each in sides):
        return sides
    found: list[dict[tuple[str, tuple[str, ...]], ProfileInfo]] = []
    for each in sides:
        mine: dict[tuple[str, tuple[str, ...]], ProfileInfo] = {}
        for profile in lookup.profiles_of(store, each.instance.id):
            if not profile.scalings:
                mine.setdefault((profile.system, profile.blocking), profile)
        found.append(mine)
    common = next((key for key in found[0] if all(key in mine for mine in found)), None)
    if common is None:
        return sides
    return [PlanSide(each.instance, mine[common], found=True) for each, mine in zip(sides, found, strict=True)]


def side_of(store: Store, word: str) -> PlanSide:
    """The instance or profile that a word means. Raises UsageError for anything else."""
    found = lookup.find(store, word)
    if isinstance(found, InstanceInfo):
        return PlanSide(found, None)
    if isinstance(found, ProfileInfo):
        return PlanSide(lookup.the_instance(store, found.instance), found)
    kind = kind_of(found)
    raise UsageError(f"{shown(word)} is a {kind}: compare two instances or two profiles ({call('ls')} lists them)")


def of_several_models(instances: Sequence[InstanceInfo]) -> str:
    """The end of a sentence on steps of several models; empty if all are of one."""
    models = [*dict.fromkeys(in_short(each.model) for each in instances)]
    return f"; these are steps of {len(models)} models: {', '.join(models)}" if len(models) > 1 else ""


def _plan(one: InstanceInfo, other: InstanceInfo) -> Iterator[tuple[Any, ...]]:
    if one.model != other.model:
        yield "model", one.model, other.model
    first, second = one.plan, other.plan
    for word in sorted({*first, *second}):
        ours, theirs = first.get(word), second.get(word)
        if ours != theirs:
            yield word, ours, theirs
    if one.ranks != other.ranks:
        yield "ranks", one.ranks, other.ranks


def work_of(store: Store, one: InstanceInfo, other: InstanceInfo) -> Iterator[tuple[Any, ...]]:
    """What two instances do differently: the kind of work, the unit, both values and their ratio."""
    rows = store.read(querying.find("diff_work").name, instance=one.id, other=other.id)
    for row in rows:
        yield from _rows(row, WORK)


def _figures(one: ProfileInfo, other: ProfileInfo) -> Iterator[tuple[Any, ...]]:
    for what, unit in (("step", "ns"), ("tokens_per_second", "tokens/s"), ("mfu", "ratio"), ("hfu", "ratio")):
        ours, theirs = getattr(one, what), getattr(other, what)
        if ours != theirs:
            yield what, unit, ours, theirs, theirs / ours if ours and theirs is not None else None


def stored_sums(store: Store, profile: ProfileInfo, name: str) -> StepSums:
    """Where the time of a stored profile's step goes, for comparisons. name: what a sentence calls the step."""
    rows = store.read("profile/step_terms", profile=profile.id)
    if not rows:
        raise StagedbError(
            f"profile {shown(profile.id)} has no times of its lanes: remove it with {call('rm', profile.id[:12])} and "
            "profile again"
        )
    (row,) = rows
    parts = store.read("profile/step_parts", profile=profile.id)
    return sums_from(name, row, row, parts)


def _terms(one: StepSums, other: StepSums) -> Iterator[tuple[Any, ...]]:
    for term, what in TERMS.items():
        ours, theirs = round(one.terms[term]), round(other.terms[term])
        if ours != theirs:
            yield what, "ns a rank", ours, theirs, theirs / ours if ours else None


def work_verdict(
    store: Store, rows: Iterable[tuple[Any, ...]], one: InstanceInfo, other: InstanceInfo, first: str, second: str
) -> str:
    """One sentence: which instance has more work and sends more, and the kind of work that makes most of this.

    rows: of `work_of`. first, second: what it calls them.
    """
    ours, theirs = (store.read("catalog/work_totals", instance=each.id)[0] for each in (one, other))
    parts = [
        _more(ours[word], theirs[word], does, unit, rows)
        for word, does, unit in (("flops", "does", "FLOPs"), ("sent", "sends", "bytes"))
    ]
    tokens = [_tokens(each.plan) for each in (one, other)]
    much = "" if tokens[0] == tokens[1] else f", for {tokens[1]:,} tokens a step instead of {tokens[0]:,}"
    return f"compared with {first}, {second} {' and '.join(parts)}{much}"


def _tokens(plan: Mapping[str, Any]) -> int:
    """Number of tokens of a step; without a global batch size there is one micro-batch a data-parallel rank."""
    return int((plan["global_batch_size"] or plan["micro_batch_size"] * plan["dp"]) * plan["seq_len"])


def _more(ours: float, theirs: float, does: str, unit: str, rows: Iterable[tuple[Any, ...]]) -> str:
    """A difference of two sums in words, such as `does 1.3 times the FLOPs (most of this matmul recompute)`."""
    if ours == theirs:
        return f"{does} as many {unit}"
    if not ours or not theirs:
        return f"{does} {'no' if ours else f'{theirs:,.3g}'} {unit} instead of {f'{ours:,.3g}' if ours else 'none'}"
    ratio = theirs / ours
    text = (
        f"{does} {ratio:.3g} times the {unit}"
        if not 0.9 < ratio < 1.1
        else (f"{does} {abs(ratio - 1):.2%} {'more' if ratio > 1 else 'fewer'} {unit}")
    )
    # Only communication has an axis, and only its bytes are sent: bytes of compute are memory traffic.
    along = {
        row[0]: (row[3] - row[2]) * (1 if ratio > 1 else -1)
        for row in rows
        if row[1] == unit and (unit == "FLOPs" or row[0].split(" ")[0] in GROUP_AXES)
    }
    what = max(along, key=lambda each: along[each], default=None)
    return text if what is None or along[what] <= 0 else f"{text} (most of this {what})"


def _time(store: Store, one: ProfileInfo, other: ProfileInfo) -> Iterator[tuple[Any, ...]]:
    for row in store.read(querying.find("diff_time").name, profile=one.id, other=other.id):
        yield from _rows(row, TIME)


def _rows(row: dict[str, Any], compared: tuple[tuple[str, str], ...]) -> Iterator[tuple[Any, ...]]:
    what = part_name(row["axis"], row["kind"], row["phase"])
    for name, unit in compared:
        ours, theirs = int(row[name]), int(row[f"other_{name}"])
        if not math.isclose(ours, theirs, rel_tol=SUMS):
            yield what, unit, ours, theirs, theirs / ours if ours else None
