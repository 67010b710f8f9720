"""The report of a search: one HTML file with a picture of all candidates, the best plans, and why the others lose."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from stagedb.files import GB, readable_cell
from stagedb.reports.candidates_chart import candidates_chart
from stagedb.reports.page_frame import page
from stagedb.reports.page_parts import Bar, BarPart, Cell, TableColumn, bars, facts, legend, table, term_style
from stagedb.reports.report_page import SHOWN, Made, provenance_section, tile
from stagedb.reports.search_view import FrontPlan, RanksBest, SearchView
from stagedb.reports.terminal_chart import span
from stagedb.search import Candidate, Objective

# Tables of a search: the best plans, both fronts, why the others lose, and what was asked.

MOST = 100
"""Rows of a table. Files of all candidates have the others."""

MS = 1e6
"""Nanoseconds."""


@dataclass(frozen=True)
class SearchTable:
    """A table: its columns, and its rows. places: of the candidates that the rows are, where each is one."""

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    places: Sequence[int] = ()


def best_table(view: SearchView) -> SearchTable:
    """The best plans, each with why it loses."""
    by = view.request.by
    tokens = {Objective.TOKENS_PER_DOLLAR: "tokens a dollar", Objective.TOKENS_PER_JOULE: "tokens a joule"}
    worse = {Objective.STEP: "longer %", Objective.MEMORY: "larger %", Objective.BYTES: "more sent %"}
    columns = [
        TableColumn("plan", wraps=True),
        *_world_columns(view),
        TableColumn("step ms", True),
        *([TableColumn(tokens[by], True)] if by in tokens else []),
        *([TableColumn("sent GB", True)] if by is Objective.BYTES else []),
        TableColumn(worse.get(by, "fewer %"), True),
        TableColumn("peak GB", True),
        TableColumn("why it loses", wraps=True),
    ]
    some = view.winners[:MOST]
    rows = [
        [
            view.plans[place],
            *_world(view, each),
            _ms(each.step),
            *_worse(view, each),
            _gb(each.peak),
            "the best" if each.code == "best" else each.why or each.code,
        ]
        for place, each in some
    ]
    return SearchTable(columns, rows, [place for place, _ in some])


def _worse(view: SearchView, each: Candidate) -> Iterator[Cell]:
    """How much worse a plan is than the best on as many ranks, by what the search makes best."""
    first = view.result.best_on(each.ranks) or each
    ours, best = view.tokens_per(each), view.tokens_per(first)
    if view.request.by is Objective.MEMORY:
        yield _number(100 * (each.peak / first.peak - 1), 1)
    elif view.request.by is Objective.BYTES:
        sent, least = each.sent or 0, first.sent or 0
        yield _number(sent / GB, 3)
        yield _number(100 * (sent / least - 1), 1) if least else _number(0 if sent == least else float("inf"), 1)
    elif ours is None or best is None:
        yield _number(100 * (each.step / first.step - 1), 1)
    else:
        yield f"{ours:,.4g}" if ours < 1000 else f"{ours:,.0f}", ours
        yield _number(100 * (1 - ours / best), 1)


def memory_table(view: SearchView) -> SearchTable:
    """The fronts of step against memory, those of each system and number of ranks after each other."""
    columns = [
        *_world_columns(view),
        TableColumn("step ms", True),
        TableColumn("peak GB", True),
        TableColumn("plan", wraps=True),
        TableColumn("best for its memory", wraps=True),
    ]
    front = [each for place in view.places for each in view.memory_front(*place)][:MOST]
    rows = [
        [
            *_world(view, each.candidate),
            _ms(each.candidate.step),
            _gb(each.candidate.peak),
            view.plans[each.place],
            _proof(each),
        ]
        for each in front
    ]
    return SearchTable(columns, rows)


def ranks_table(view: SearchView) -> SearchTable:
    """The best plan of each number of ranks; empty for a search over one number."""
    systems = len(view.request.systems) > 1
    columns = [
        *([TableColumn("system")] if systems else []),
        TableColumn("ranks", True),
        TableColumn("step ms", True),
        TableColumn("accelerator-s a step", True),
        TableColumn("peak GB", True),
        TableColumn("plan", wraps=True),
        TableColumn("best for its ranks", wraps=True),
    ]
    rows = [
        [*([each.system] if systems else []), _number(each.ranks), *_on_ranks(view, each)]
        for each in view.ranks_front()
    ]
    return SearchTable(columns, rows[:MOST] if len(view.request.ranks) > 1 else [])


def _on_ranks(view: SearchView, each: RanksBest) -> Iterator[Cell]:
    if each.best is None:
        yield "" if each.bound is None else (f"≥ {each.bound / MS:,.1f}", each.bound / MS)
        yield from ("", "")
        yield "none fits" if each.bound is None else "none was timed"
        yield ""
        return
    found = each.best.candidate
    yield from (_ms(found.step), _number(found.step * each.ranks / 1e9, 1), _gb(found.peak))
    yield from (view.plans[each.best.place], _proof(each.best))


def losses_table(view: SearchView) -> SearchTable:
    """Why the others lose, the reason of the most plans first."""
    columns = [
        TableColumn("loses by"),
        TableColumn("plans", True),
        TableColumn("share", True),
        TableColumn("sets and plans", True),
        TableColumn("timed", True),
        TableColumn("shortest ms", True),
        TableColumn("of it", wraps=True),
    ]
    rows: list[list[Cell]] = []
    for each in view.losses()[:MOST]:
        share = each.plans / max(view.result.size, 1)
        counts = (_number(each.candidates), _number(each.timed))
        step = "" if each.step is None else _ms(each.step)
        rows.append([each.code, _number(each.plans), (f"{share:.1%}", share), *counts, step, each.why])
    return SearchTable(columns, rows)


def asked_facts(view: SearchView) -> dict[str, str]:
    """What a search asked, in texts by name."""
    asked = view.request
    rooms = {
        name: "no limit" if room is None else f"{room / GB:,.1f} GB for tensors" for name, room in view.rooms.items()
    }
    found: dict[str, Any] = {
        "model": view.model,
        "systems": ", ".join(asked.systems),
        "ranks": ", ".join(f"{each:,}" for each in asked.ranks),
        "framework": asked.framework,
        **asked.words,
        "options that vary": ", ".join(("degrees", "micro-batch", *asked.allow)),
        "best by": asked.by.value.replace("_", " "),
        "memory": ", ".join(f"{name} {room}" if len(rooms) > 1 else room for name, room in rooms.items()),
        "condition": asked.where,
        "best plans": asked.top,
        "prices": ", ".join(f"{name} {price:g} an hour" for name, price in asked.prices.items()),
        "power": ", ".join(f"{name} {watts:g} W" for name, watts in asked.watts.items()),
    }
    return {name: readable_cell(value) for name, value in found.items() if value not in (None, "", [], ())}


def _proof(each: FrontPlan) -> str:
    if each.exact:
        return "yes"
    return f"unknown: others take {(each.bound or 0) / MS:,.1f} ms or more"


def _world_columns(view: SearchView) -> list[TableColumn]:
    """Columns of the systems and the ranks of plans, where these differ."""
    return [
        *([TableColumn("system")] if len(view.request.systems) > 1 else []),
        *([TableColumn("ranks", True)] if len(view.request.ranks) > 1 else []),
    ]


def _world(view: SearchView, each: Candidate) -> list[Cell]:
    values: dict[str, Cell] = {"system": each.system, "ranks": _number(each.ranks)}
    return [values[column.name] for column in _world_columns(view)]


def _number(value: float, digits: int = 0) -> Cell:
    return f"{value:,.{digits}f}", value


def _ms(ns: float) -> Cell:
    return _number(ns / MS, 1)


def _gb(size: float) -> Cell:
    return _number(size / GB, 1)


BARS = 20
"""Plans whose steps are bars."""

FIRST = ("compute", "bubble", "idle", "other")
"""Terms in the order of a bar; exposed communication is after them."""


def render_search(view: SearchView, made: Made | None = None) -> str:
    """The report of a search. made: facts of its provenance by name."""
    sections = [
        f"<section><h2>All candidates</h2>{candidates_chart(view)}</section>",
        _best(view),
        terms_section(view),
        _fronts(view),
        _losses(view),
        f'<section><h2>What was asked</h2><div class="thirds">{_asked(view)}</div></section>',
        provenance_section([("", made or {})], "best plans"),
    ]
    footer = (
        "Times are those of a model of the system, and bounds are below them. "
        f"Search {view.request.id}. Written by stagedb."
    )
    return page(f"{view.title}: the best plan", _head(view), "".join(sections), footer, (), picture=True)


def _head(view: SearchView) -> str:
    best, found = view.result.best, view.result
    tiles = ""
    if best is not None:
        number, unit = span(best.step, SHOWN, zeros=True).split(" ")
        room = view.rooms.get(best.system)
        tiles += tile("Step of the best plan", number, unit, view.plans[0])
        note = "of the fullest rank" if room is None else f"of {room / GB:,.4g} GB for tensors"
        tiles += tile("Its memory at the peak", f"{best.peak / GB:,.1f}", "GB", note)
    timed = len(found.timed)
    tiles += tile("Plans", f"{found.size:,}", "", f"{timed:,} timed, all others ruled out" if found.covered else "")
    return (
        f'<header><h1>{escape(view.title)}</h1><p>Which plan is best?</p><dl class="tiles">{tiles}</dl>'
        f'<p class="lead">{escape(view.verdict)}</p></header>'
    )


def _best(view: SearchView) -> str:
    found = best_table(view)
    if not found.rows:
        text = "No plan fits." if view.result.covered else "No plan that fits was found yet."
        return f"<section><h2>The best plans</h2><p>{text}</p></section>"
    first, *others = [(view.plans[place], view.commands.get(place)) for place in found.places]
    commands = "".join(_command(plan, command) for plan, command in others)
    left = len(view.winners) - MOST
    return (
        '<section class="long"><h2>The best plans</h2><p>No two differ only in what recomputes.</p>'
        f"{table(found.columns, found.rows, ids=[f'plan-{place}' for place in found.places])}"
        f"{f'<p class=small>{left:,} more are in the store.</p>' if left > 0 else ''}"
        f"{_command(f'This profiles the first, {first[0]}:', first[1])}"
        f"{f'<details><summary>Commands of the others</summary>{commands}</details>' if commands else ''}</section>"
    )


def _command(text: str, command: str | None) -> str:
    return (
        f'<p class="small">{escape(text)}</p><pre class="command">'
        f"{escape(command or 'no command has these words')}</pre>"
    )


def terms_section(view: SearchView) -> str:
    """Where the steps of the best plans go, a bar each; empty where no plan was timed."""
    some = view.winners[:BARS]
    if not some:
        return ""
    names = [name for name in FIRST if any(each.terms.get(name, 0) > 0 for _, each in some)]
    names += sorted({name for _, each in some for name, ns in each.terms.items() if ns > 0} - set(FIRST))
    styles = {name: term_style(name) for name in names}
    longest = max(each.step for _, each in some)
    rows = [
        Bar(
            view.plans[place],
            [
                BarPart(styles[name], each.terms.get(name, 0), f"{name}: {span(each.terms.get(name, 0))}")
                for name in names
            ],
            f"{each.step / MS:,.1f} ms",
        )
        for place, each in some
    ]
    items = [(styles[name], name) for name in names]
    more = f" The first {BARS} of {len(view.winners):,}." if len(view.winners) > BARS else ""
    return (
        "<section><h2>Where their time goes</h2><p>The mean of all ranks; a plan loses by the term that differs most "
        f'from that of the best one.{more}</p><div class="plans">{legend(items)}{bars(rows, longest)}</div></section>'
    )


def _fronts(view: SearchView) -> str:
    memory, ranks = memory_table(view), ranks_table(view)
    text = ""
    if memory.rows:
        same = " on as many ranks of the same system" if view.several else ""
        text += _section(
            "Step against memory",
            f"Plans that were timed, without those that are both longer and larger than another one{same}.",
            memory,
        )
    if ranks.rows:
        text += _section(
            "Step against ranks",
            "The shortest step of each number of ranks. Where no plan was timed, no plan is shorter than the bound.",
            ranks,
        )
    return text


def _losses(view: SearchView) -> str:
    found = losses_table(view)
    if not found.rows:
        return ""
    text = (
        "A plan loses by the term in which it differs most from the best one. A set of plans that was ruled out loses "
        "by its bound."
    )
    return _section("Why the others lose", text, found)


def _asked(view: SearchView) -> str:
    """What was asked, in columns."""
    rows = list(asked_facts(view).items())
    third = -(-len(rows) // 3)
    return "".join(facts(dict(rows[at : at + third])) for at in range(0, len(rows), third))


def _section(title: str, text: str, found: SearchTable) -> str:
    return f'<section class="long"><h2>{title}</h2><p>{text}</p>{table(found.columns, found.rows)}</section>'
