"""The report of a search: one HTML file with a picture of all candidates, the best plans, and why the others lose."""

from html import escape

from stagedb.files import GB
from stagedb.reports.candidates_chart import candidates_chart
from stagedb.reports.page_frame import page
from stagedb.reports.page_parts import Bar, BarPart, bars, facts, legend, table
from stagedb.reports.provenance_section import Made, provenance_section
from stagedb.reports.report_head import SHOWN, tile
from stagedb.reports.search_tables import (
    MOST,
    MS,
    SearchTable,
    asked_facts,
    best_table,
    losses_table,
    memory_table,
    ranks_table,
)
from stagedb.reports.search_view import SearchView
from stagedb.reports.term_colors import term_style
from stagedb.reports.terminal_chart import span

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
