"""What was recorded next to what its plan expects: step, ops and memory, as rows, sentences and a section."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from stagedb.files import printable
from stagedb.files.texts import EVEN, bytes_text, spans_of
from stagedb.reports.page_parts import Bar, BarPart, Cell, TableColumn, bars, legend, table, term_style
from stagedb.reports.step_difference import (
    ComparedTerm,
    StepSums,
    exposed_by_axis,
    grown,
    in_short,
    longer,
    signed_time,
    time_text,
)
from stagedb.reports.terminal_chart import span
from stagedb.runs.measured_run import exposed_of
from stagedb.runs.memory_match import MemoryAt
from stagedb.runs.overlaps import communicates
from stagedb.runs.run_difference import RunSums
from stagedb.runs.run_match import Finding, RunMatch

UNKNOWN = "unknown ranks"
"""The axis of what is communicated in a group that the recording does not name."""


def seen_sums(found: RunMatch, name: str, tokens: int) -> StepSums:
    """Where the time of a recorded step goes [ns], the mean of its ranks and steps.

    The bubble is the time in which a rank only sends and receives messages. Exposed communication is by the axes of the
    plan. name: what a sentence calls the run. tokens: of a step.
    """
    run, whole = found.run, RunSums(found.run)
    axes = axes_of(found)
    exposed: dict[str, float] = defaultdict(float)
    for rank, timed in run.timed.items():
        facts = run.lane_of[rank].ops
        alone = exposed_of(timed.start, timed.end, communicates(facts))
        for place in np.flatnonzero(alone).tolist():
            if facts[place].type == "collective":
                # The name of an axis ends where the kind begins.
                axis = axes.get((rank, place), facts[place].axis or UNKNOWN).replace(" ", "_")
                exposed[f"{axis} {facts[place].kind}"] += int(alone[place]) / len(run.timed) / whole.steps
    parts = {"busy": {}, "exposed": dict(exposed)}
    return StepSums(name, round(whole.step), tokens, run.job_ranks, whole.terms, parts)


def axes_of(found: RunMatch) -> Mapping[tuple[int, int], str]:
    """The axis of the plan by rank and op of the run.

    An op that the plan does not have is on the axis of most others whose group has the same name in the run.
    """
    known: dict[tuple[int, int], str] = {}
    named: dict[str | None, Counter[str]] = defaultdict(Counter)
    for (rank, _), match in found.ranks.items():
        facts = found.run.lane_of[rank].ops
        for pair in (*match.matched, *match.changed):
            axis, place = match.planned[pair.planned].axis, match.seen[pair.seen].place
            if axis:
                known[rank, place] = axis
                named[facts[place].axis][axis] += 1
    usual = {group: counted.most_common(1)[0][0] for group, counted in named.items()}
    for rank in found.run.timed:
        for place, op in enumerate(found.run.lane_of[rank].ops):
            if op.type == "collective" and op.axis in usual:
                known.setdefault((rank, place), usual[op.axis])
    return known


def expected_sums(planned: StepSums) -> StepSums:
    """The sums of a profile in the terms of a run: messages between stages are part of the bubble.

    A run does not separate the time of a message from the wait for it.
    """
    sent = exposed_by_axis(planned).get("pp", 0.0)
    terms = {**planned.terms, "exposed": planned.terms["exposed"] - sent, "bubble": planned.terms["bubble"] + sent}
    exposed = {what: ns for what, ns in planned.parts["exposed"].items() if not what.startswith("pp ")}
    return dataclasses.replace(planned, terms=terms, parts={"busy": {}, "exposed": exposed})


def seen_verdict(expected: StepSums, seen: StepSums) -> str:
    """One sentence: how long a recorded step takes, how long it should take, and the terms that make the difference."""
    name, more = in_short(seen.name), longer(expected, seen)
    text = f"a step of {name} takes {span(seen.step, 4, zeros=True)}"
    if more is None:
        return f"{text}, and {span(expected.step)} was expected"
    if abs(more) < EVEN:
        return f"{text}, as was expected"
    times = f"{more + 1:,.0f}" if more >= 99 else f"{more + 1:.3g}"
    share = f"{times} times" if more >= 1 else f"{abs(more):.2%} {'more' if more > 0 else 'less'} than"
    text += f", {share} the expected {span(expected.step, 4, zeros=True)}"
    why = grown(expected, seen) if more > 0 else ""
    return f"{text}: {why}" if why else text


# Memory that was recorded next to what the plan accounts for, as rows and as one sentence.

NOT_RECORDED = "memory was not recorded: torch.profiler.profile(profile_memory=True) records it"

COLUMNS = (
    *("class", "ranks", "fullest", "place", "above_start", "moment", "expected", "seen", "difference", "share"),
    *("expected_in", "seen_in"),
)
KEEP = ("moment", "expected", "seen", "difference", "seen_in", "fullest", "class")
UNITS = {**dict.fromkeys(("expected", "seen", "difference"), "B"), "share": "ratio"}

NAMED = 0.01
"""The end of a phase is named if it differs by this share of the expected peak or more."""


def memory_rows(found: Sequence[MemoryAt]) -> tuple[tuple[Any, ...], ...]:
    """A row for each rank class and moment: bytes expected and seen, and the difference in bytes and as a share."""
    return tuple(
        (each.number, list(each.ranks), list(each.fullest), each.place, each.above_start, each.moment, each.expected,
         each.seen, each.difference, each.share, each.expected_in or None, each.seen_in or None)
        for each in found
    )  # fmt: skip


def memory_verdict(found: Sequence[MemoryAt]) -> str:
    """One sentence on the rank class whose peak differs the most: how high it is, when, and what was expected."""
    peaks = [each for each in found if each.moment == "peak"]
    if not peaks:
        return NOT_RECORDED
    most = max(peaks, key=lambda each: abs(each.share or 0.0))
    text = f"memory of {_ranks(most.fullest)}"
    if most.fullest != most.ranks:
        text += f", the fullest of {_ranks(most.ranks)},"
    text += f" peaks at {bytes_text(most.seen, 4)}"
    text += " above the start of the step, on the host" if most.above_start else f" on {most.place}"
    text += f" ({most.seen_in}), {_next_to(most)} {bytes_text(most.expected, 4)} ({most.expected_in})"
    if len(peaks) > 1:
        text += f"; the other {len(peaks) - 1} rank classes differ by less"
    ends = [each for each in found if each.number == most.number and each.moment.endswith(("start", "_end"))]
    end = max(ends, key=lambda each: abs(each.difference), default=None)
    if end is None or abs(end.difference) < NAMED * most.expected:
        return text
    return f"{text}; of the ends of phases {end.moment} differs the most, by {signed_bytes(end.difference)}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {spans_of(ranks)}"


def _next_to(peak: MemoryAt) -> str:
    """How a peak compares with the expected one, such as `5.10% more than the expected`."""
    if peak.share is None or abs(peak.share) >= 1:
        return "instead of the expected"
    if abs(peak.share) < EVEN:
        return "as was expected:"
    return f"{abs(peak.share):.2%} {'more' if peak.share > 0 else 'less'} than the expected"


def signed_bytes(size: int) -> str:
    """A difference of bytes in a readable unit, with its sign; `0` for none.

    size: the difference in bytes.
    """
    return f"{'+' if size > 0 else '-'}{bytes_text(abs(size), 4)}" if size else "0"


# The part of a run's report with what was expected: step, ops and memory of its plan next to what was seen.

MOST = 40
"""Rows of a table."""


@dataclass(frozen=True)
class SeenPlan:
    """A run next to the instance that it was matched with.

    instance: its name or id. verdict: a sentence. steps: length of the expected and of the seen step [ns]; empty
    without a profile. terms: where their time goes, expected first. memory: at moments of the step; empty if it was
    not recorded.
    """

    instance: str
    verdict: str
    steps: tuple[float, ...]
    terms: Sequence[ComparedTerm]
    findings: Sequence[Finding]
    memory: Sequence[MemoryAt]


def seen_lead(found: SeenPlan) -> str:
    """The sentence on a run and its plan, as HTML."""
    return f"Next to its plan {_text(found.instance)}: {_text(found.verdict)}."


def seen_section(found: SeenPlan) -> str:
    """The section of a report, as HTML."""
    held = memory_verdict(found.memory)
    held = held[:1].upper() + held[1:]
    parts = (_terms(found), _findings(found.findings), f"<p>{_text(held)}.</p>", _memory(found.memory))
    return (
        '<section class="long"><h2>Expected and seen</h2><p>The ops of the run next to those of its plan, by module. '
        f"What is missing has no time on the critical path.</p>{''.join(parts)}</section>"
    )


def _text(words: str) -> str:
    return escape(printable(words, kept=""))


def _terms(found: SeenPlan) -> str:
    """The time of both steps by term, as bars and as a table."""
    if not found.steps:
        return "<p>The instance has no profile, so that no times are expected.</p>"
    rows = [
        Bar(
            name,
            [
                BarPart(term_style(each.name), each.values[at], f"{each.text}: {time_text(each.values[at])}")
                for each in found.terms
            ],
            span(step, 4, zeros=True),
        )
        for at, (name, step) in enumerate(zip(("expected", "seen"), found.steps, strict=True))
    ]
    columns = [TableColumn("time of a rank"), *(TableColumn(name, True) for name in ("expected", "seen", "more"))]
    cells: list[list[Cell]] = [
        [
            each.text,
            *((time_text(ns), ns) for ns in each.values),
            (signed_time(more := each.values[1] - each.values[0]), more),
        ]
        for each in found.terms
    ]
    items = [(term_style(each.name), each.text) for each in found.terms]
    whole = max(sum(each.values[at] for each in found.terms) for at in range(2)) or 1
    return f"{legend(items)}{bars(rows, whole)}{table(columns, cells)}"


def _findings(findings: Sequence[Finding]) -> str:
    """What differs from the plan, the costliest first."""
    if not findings:
        return "<p>Every op of the plan is in the run.</p>"
    columns = [
        TableColumn("finding"), TableColumn("module", wraps=True), TableColumn("ranks"),
        TableColumn("on the critical path", True), TableColumn("planned", wraps=True), TableColumn("seen", wraps=True),
        TableColumn("reason", wraps=True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [each.kind, each.module, spans_of(each.ranks),
         ("", -1) if each.critical is None else (time_text(each.critical), each.critical),
         each.planned, each.seen, each.reason]
        for each in findings[:MOST]
    ]  # fmt: skip
    left = len(findings) - MOST
    more = f'<p class="small">{left:,} more findings.</p>' if left > 0 else ""
    return f"{table(columns, cells)}{more}"


def _memory(memory: Sequence[MemoryAt]) -> str:
    """Bytes at the moments of a step."""
    if not memory:
        return ""
    columns = [
        TableColumn("ranks"), TableColumn("place"), TableColumn("moment"), TableColumn("expected", True),
        TableColumn("seen", True), TableColumn("more", True), TableColumn("what ran", wraps=True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [spans_of(each.fullest), each.place, each.moment.replace("_", " "),
         (bytes_text(each.expected, 4), each.expected), (bytes_text(each.seen, 4), each.seen),
         (signed_bytes(each.difference), each.difference), each.seen_in]
        for each in memory[:MOST]
    ]  # fmt: skip
    return table(columns, cells)
