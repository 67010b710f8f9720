"""The part of a run's report with what was expected: step, ops and memory of its plan next to what was seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from stagedb.outputs import printable
from stagedb.outputs.number_texts import spans_of
from stagedb.reports.page_parts import Bar, BarPart, Cell, TableColumn, bars, legend, table
from stagedb.reports.seen_memory import bytes_text, signed_bytes
from stagedb.reports.step_comparison import ComparedTerm, time_text
from stagedb.reports.term_colors import term_style
from stagedb.reports.terminal_chart import span

MOST = 40
"""Rows of a table."""


@dataclass(frozen=True)
class SeenFinding:
    """What a run has otherwise than its plan. critical: ns on the critical path; None where nothing follows from it."""

    finding: str
    module: str
    ranks: Sequence[int]
    planned: str
    seen: str
    reason: str
    critical: int | None


@dataclass(frozen=True)
class SeenMemory:
    """Bytes of a rank class at a moment, expected by the account and seen. runs_then: what ran, in words."""

    ranks: Sequence[int]
    place: str
    moment: str
    expected: int
    seen: int
    runs_then: str


@dataclass(frozen=True)
class SeenPlan:
    """A run next to the instance that it was matched with.

    instance: its name or id. verdict, memory_verdict: a sentence each. steps: length of the expected and of the seen
    step [ns]; empty without a profile. terms: where their time goes, expected first.
    """

    instance: str
    verdict: str
    steps: tuple[float, ...]
    terms: Sequence[ComparedTerm]
    findings: Sequence[SeenFinding]
    memory: Sequence[SeenMemory]
    memory_verdict: str


def seen_lead(found: SeenPlan) -> str:
    """The sentence on a run and its plan, as HTML."""
    return f"Next to its plan {_text(found.instance)}: {_text(found.verdict)}."


def seen_section(found: SeenPlan) -> str:
    """The section of a report, as HTML."""
    held = found.memory_verdict[:1].upper() + found.memory_verdict[1:]
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
        [each.text, *((time_text(ns), ns) for ns in each.values), _more(each.values[1] - each.values[0])]
        for each in found.terms
    ]
    items = [(term_style(each.name), each.text) for each in found.terms]
    whole = max(sum(each.values[at] for each in found.terms) for at in range(2)) or 1
    return f"{legend(items)}{bars(rows, whole)}{table(columns, cells)}"


def _more(ns: float) -> Cell:
    return ("0" if not round(ns) else f"{'+' if ns > 0 else '−'}{span(abs(ns))}", ns)


def _findings(findings: Sequence[SeenFinding]) -> str:
    """What differs from the plan, the costliest first."""
    if not findings:
        return "<p>Every op of the plan is in the run.</p>"
    columns = [
        TableColumn("finding"), TableColumn("module", wraps=True), TableColumn("ranks"),
        TableColumn("on the critical path", True), TableColumn("planned", wraps=True), TableColumn("seen", wraps=True),
        TableColumn("reason", wraps=True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [each.finding, each.module, spans_of(each.ranks),
         ("", -1) if each.critical is None else (span(each.critical) if each.critical else "0", each.critical),
         each.planned, each.seen, each.reason]
        for each in findings[:MOST]
    ]  # fmt: skip
    left = len(findings) - MOST
    more = f'<p class="small">{left:,} more findings.</p>' if left > 0 else ""
    return f"{table(columns, cells)}{more}"


def _memory(memory: Sequence[SeenMemory]) -> str:
    """Bytes at the moments of a step."""
    if not memory:
        return ""
    columns = [
        TableColumn("ranks"), TableColumn("place"), TableColumn("moment"), TableColumn("expected", True),
        TableColumn("seen", True), TableColumn("more", True), TableColumn("what ran", wraps=True),
    ]  # fmt: skip
    cells: list[list[Cell]] = [
        [spans_of(each.ranks), each.place, each.moment.replace("_", " "), (bytes_text(each.expected), each.expected),
         (bytes_text(each.seen), each.seen), (signed_bytes(each.seen - each.expected), each.seen - each.expected),
         each.runs_then]
        for each in memory[:MOST]
    ]  # fmt: skip
    return table(columns, cells)
