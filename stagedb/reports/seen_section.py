"""The part of a run's report with what was expected: step, ops and memory of its plan next to what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stagedb.files import printable
from stagedb.files.texts import bytes_text, spans_of
from stagedb.reports.page_parts import Bar, BarPart, Cell, TableColumn, bars, legend, table
from stagedb.reports.seen_memory import memory_verdict, signed_bytes
from stagedb.reports.step_comparison import ComparedTerm, signed_time, time_text
from stagedb.reports.term_colors import term_style
from stagedb.reports.terminal_chart import span
from stagedb.runs.memory_match import MemoryAt
from stagedb.runs.run_match import Finding

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
