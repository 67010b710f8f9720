"""Two instances, or two profiles, compared: words of their plans, figures, work and time that differ."""

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stagedb.api import lookup, matching, querying
from stagedb.api.provenance import Provenance, of_runs, of_stored
from stagedb.api.results import Difference, InstanceInfo, ProfileInfo, Rows, RunInfo, kind_of
from stagedb.errors import UsageError
from stagedb.inputs import shown
from stagedb.mentions import Word, call
from stagedb.plans import GROUP_AXES
from stagedb.reports.step_difference import TERMS, StepSums, grown, longer, names_of, part_name, sums_from, verdict
from stagedb.runs.run_difference import difference
from stagedb.store import Store, read_whole
from stagedb.store.contents.run_reading import read_run

COLUMNS = ("what", "unit", "first", "second", "ratio")

OF_OPERATORS = ("what", "first", "second", "change", "calls_first", "calls_second")
"""Columns of the difference of two runs: times, of a rank and step, and calls."""

WORK = (("calls", "calls"), ("flops", "FLOPs"), ("bytes", "bytes"))
TIME = (("time", "ns a rank"), ("exposed", "ns exposed a rank"), ("critical", "ns on the critical path"))
"""Columns of the named queries that are compared, with their units."""
SUMS = 1e-12
"""Sums of a large step, beyond 64-bit integers, are floats: equal work may differ by less than this share."""


@dataclass(frozen=True)
class _Side:
    instance: InstanceInfo
    profile: ProfileInfo | None

    def whole(self, store: Store, read: Callable[[], Difference]) -> Difference:
        """`read`, while nobody changes this side."""
        if self.profile is not None:
            return read_whole(store, "Profile", self.profile.id, read)
        return read_whole(store, "Instance", self.instance.id, read)


def compare(store: Store, first: str, second: str, fail_above: str | float | None = None) -> Difference:
    """The differences between two instances, or two profiles and their instances, by id or name.

    fail_above: the share by which the second step may be longer, such as `3%`. Raises UsageError for an unknown word,
    if one is an instance and the other a profile, and for a share that is none or that goes with instances.
    """
    limit = None if fail_above is None else share_of(fail_above)
    runs = [run for word in (first, second) if (run := lookup.find_run(store, word)) is not None]
    if len(runs) == 2:
        return dataclasses.replace(_of_runs(store, *runs), limit=limit)
    if runs:
        if limit is not None:
            raise UsageError(f"{Word('fail_above')} compares steps of two runs or two profiles: leave it out")
        (word,) = (each for each in (first, second) if lookup.find_run(store, each) is None)
        return _expected_and_seen(store, runs[0], _side(store, word))
    one, other = (_side(store, word) for word in (first, second))
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
    )


def _expected_and_seen(store: Store, run: RunInfo, plan: _Side) -> Difference:
    """An instance, and a profile of it if there is one, against a run that is matched with it.

    Work is findings, and time what calls take: expected first.
    """
    found = matching.match(store, run.id, plan.instance.id)
    at = [found.findings.columns.index(name) for name in ("finding", "module", "phase", "ranks", "planned", "seen")]
    time: tuple[tuple[Any, ...], ...] = ()
    if plan.profile is not None:
        rows = store.read(querying.find("seen_and_planned").name, run=run.id)
        seen = round(run.step / (run.steps or 1))
        calls = [row for row in rows if row["system"] == plan.profile.system]
        time = (
            ("step", "ns", plan.profile.step, seen, seen / plan.profile.step if plan.profile.step else None),
            *(
                (part_name(None, row["kind"], row["phase"]), "ns a call", row["predicted"], row["seen"], row["ratio"])
                for row in calls
            ),
        )
    return Difference(
        plan.profile or plan.instance,
        run,
        Rows((), ()),
        Rows(("finding", "module", "phase", "ranks", "expected", "seen"),
             tuple(tuple(row[each] for each in at) for row in found.findings.rows)),
        Rows(COLUMNS, time),
        f"{found}",
        of_runs(store, [run], [shlex.join(["stagedb", "diff", plan.instance.id, run.id])]),
    )  # fmt: skip


MOST = 1000
"""Percent by which a step may be longer."""

_SHARE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)\s*(%?)", re.ASCII)


def share_of(value: str | float) -> float:
    """The share of a text such as `3%` or `0.03`, or of a number such as 0.03. UsageError for other values."""
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


def _differences(store: Store, one: _Side, other: _Side) -> Difference:
    plan = tuple(_plan(one.instance, other.instance))
    work = () if one.instance.id == other.instance.id else tuple(_work(store, one.instance, other.instance))
    time: tuple[tuple[Any, ...], ...] = ()
    grew: dict[str, Any] = {}
    if one.profile is not None and other.profile is not None:
        sums = _sums(store, one.profile), _sums(store, other.profile)
        time = (
            *_figures(one.profile, other.profile),
            *_terms(*sums),
            *_time(store, one.profile, other.profile),
        )
        sentence = verdict(*sums)
        grew = {"longer": longer(*sums), "grew": grown(*sums)}
    else:
        sentence = _work_verdict(store, one.instance, other.instance, work)
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


def _provenance(store: Store, one: _Side, other: _Side) -> Provenance:
    """What both are made from, and the commands that make and compare them."""
    profiles = [each.profile for each in (one, other) if each.profile is not None]
    compared = shlex.join(["stagedb", "diff", *((each.profile or each.instance).id for each in (one, other))])
    return of_stored(store, [one.instance, other.instance], profiles, [compared])


def _side(store: Store, word: str) -> _Side:
    found = lookup.find(store, word)
    if isinstance(found, InstanceInfo):
        return _Side(found, None)
    if isinstance(found, ProfileInfo):
        return _Side(lookup.the_instance(store, found.instance), found)
    kind = kind_of(found)
    raise UsageError(f"{shown(word)} is a {kind}: compare two instances or two profiles ({call('ls')} lists them)")


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


def _work(store: Store, one: InstanceInfo, other: InstanceInfo) -> Iterator[tuple[Any, ...]]:
    rows = store.read(querying.find("diff_work").name, instance=one.id, other=other.id)
    for row in rows:
        yield from _rows(row, WORK)


def _figures(one: ProfileInfo, other: ProfileInfo) -> Iterator[tuple[Any, ...]]:
    for what, unit in (("step", "ns"), ("tokens_per_second", "tokens/s"), ("mfu", "ratio"), ("hfu", "ratio")):
        ours, theirs = getattr(one, what), getattr(other, what)
        if ours != theirs:
            yield what, unit, ours, theirs, theirs / ours if ours and theirs is not None else None


def _sums(store: Store, profile: ProfileInfo) -> StepSums:
    (row,) = store.read("profile/step_terms", profile=profile.id)
    parts = store.read("profile/step_parts", profile=profile.id)
    return sums_from(profile.name or profile.instance_name, row, row, parts)


def _terms(one: StepSums, other: StepSums) -> Iterator[tuple[Any, ...]]:
    for term, what in TERMS.items():
        ours, theirs = round(one.terms[term]), round(other.terms[term])
        if ours != theirs:
            yield what, "ns a rank", ours, theirs, theirs / ours if ours else None


def _work_verdict(store: Store, one: InstanceInfo, other: InstanceInfo, rows: tuple[tuple[Any, ...], ...]) -> str:
    """One sentence: which instance has more work and sends more, and the kind of work that makes most of this."""
    first, second = names_of(one.name, other.name)
    ours, theirs = (store.read("catalog/work_totals", instance=each.id)[0] for each in (one, other))
    parts = [
        _more(ours[word], theirs[word], does, unit, rows)
        for word, does, unit in (("flops", "does", "FLOPs"), ("sent", "sends", "bytes"))
    ]
    tokens = [_tokens(each.plan) for each in (one, other)]
    much = "" if tokens[0] == tokens[1] else f", for {tokens[1]:,} tokens a step instead of {tokens[0]:,}"
    return f"compared with {first}, {second} {' and '.join(parts)}{much}"


def _tokens(plan: Mapping[str, Any]) -> int:
    """Tokens of a step; without a global batch size there is one micro-batch a data-parallel rank."""
    return int((plan["global_batch_size"] or plan["micro_batch_size"] * plan["dp"]) * plan["seq_len"])


def _more(ours: float, theirs: float, does: str, unit: str, rows: tuple[tuple[Any, ...], ...]) -> str:
    """How a sum differs, such as `does 1.3 times the FLOPs (most of this matmul recompute)`."""
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
    # Bytes of compute are its memory traffic, which nobody sends: only messages have an axis in their name.
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
