"""Searches: the best plans, fronts of step against memory and ranks, and why the others lose."""

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows, SearchInfo, Stagedb, search_views
from stagedb.outputs import GB
from stagedb.reports.candidates_chart import Link, candidates_chart
from stagedb.reports.search_view import FrontPlan, RanksBest, SearchView
from stagedb.search import Candidate
from stagedb.serve import page_frames
from stagedb.serve.downloads import FORMATS, file_of, format_of
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, named

MOST = 100
"""Rows of a table of plans. Downloads have all candidates."""
MS = 1e6
"""Nanoseconds."""

Table = tuple[list[str], list[list[Cell]]]
"""Columns and rows."""


def search(request: Request) -> Response:
    """A search: what it asked, what it found, and whether something better may be left."""
    shared, kept = request.app.state.shared, request.app.state.kept

    def read(db: Stagedb) -> tuple[SearchInfo, Rows]:
        found = db.show(request.path_params["word"])
        if not isinstance(found, SearchInfo):
            raise HTTPException(404)
        return found, db.origin(found.id)

    info, origin = shared.read(read)
    # A search that goes on has another number of timed plans, or another time.
    key = ("search", info.id, info.covered, info.timed, info.seconds)
    searched = kept.get(key, lambda: shared.read(lambda db: db.searched(info.id)))
    format_ = format_of(request)
    if format_ is not None:
        rows, most = searched.candidates, request.app.state.limits.rows
        some = Rows(rows.columns, rows.rows[:most])
        return file_of(some, format_, f"search-{info.id[:SHORT_ID]}", cut=len(rows) > most)
    view = shared.read(lambda db: search_views.view_of(db.store, searched))
    best = view.winners[0] if view.winners else None
    asked = {name: named(request.query_params, name) for name in ("color", "show")}
    return page_frames.page(
        request,
        "search.html",
        info=info,
        short=info.id[:SHORT_ID],
        title=view.title,
        verdict=view.verdict,
        origin=page_frames.origin(origin),
        picture=candidates_chart(view, **asked, links=links_of(view), form=True),
        best=None if best is None else view.plans[best[0]],
        command=None if best is None else view.commands.get(best[0]),
        commands=[(view.plans[place], view.commands.get(place)) for place, _ in view.winners[1:MOST]],
        plans=plans_table(view),
        ids=[f"plan-{place}" for place, _ in view.winners[:MOST]],
        more=max(0, len(view.winners) - MOST),
        memory=memory_table(view),
        ranks=ranks_table(view) if len(view.request.ranks) > 1 else None,
        losses=losses_table(view),
        facts=asked_facts(info, view),
        files={each: address("searches", info.id, format=each) for each in FORMATS},
    )


def links_of(view: SearchView) -> dict[int, list[Link]]:
    """Where plans lead that became instances: to these and to their newest profiles."""
    found: dict[int, list[Link]] = {}
    for place, several in view.made.items():
        for each in several:
            mine = found.setdefault(place, [])
            mine.append(Link(f"instance {each.name}", address("instances", each.instance)))
            mine += [Link(f"profile {id[:SHORT_ID]}", address("profiles", id)) for id in each.profiles[:1]]
    return found


def plans_table(view: SearchView) -> Table:
    """The best plans, each with why it loses and what it became."""
    first = view.winners[0][1].step if view.winners else 0
    made = any(view.made.get(place) for place, _ in view.winners[:MOST])
    columns = ["plan", *_world_heads(view), "step ms", "longer %", "peak GB", "why it loses"]
    rows = [
        [
            cell(view.plans[place]),
            *_world(view, each),
            _ms(each.step),
            Cell(f"{100 * (each.step / first - 1):,.1f}", number=True),
            _gb(each.peak),
            cell("the best" if each.code == "best" else each.why or each.code),
            *(_made(view, place) if made else ()),
        ]
        for place, each in view.winners[:MOST]
    ]
    return [*columns, *(["instance", "profile"] if made else [])], rows


def memory_table(view: SearchView) -> Table:
    """The plans of the fronts of step against memory, those of each system and number of ranks after each other."""
    columns = [*_world_heads(view), "step ms", "peak GB", "plan", "best for its memory"]
    rows = [
        [
            *_world(view, each.candidate),
            _ms(each.candidate.step),
            _gb(each.candidate.peak),
            cell(view.plans[each.place]),
            cell(_proof(each)),
        ]
        for place in view.places
        for each in view.memory_front(*place)
    ]
    return columns, rows[:MOST]


def ranks_table(view: SearchView) -> Table:
    """The best plan of each number of ranks."""
    systems = len(view.request.systems) > 1
    columns = [*(["system"] if systems else []), "ranks", "step ms", "accelerator-s a step", "peak GB", "plan"]
    rows = []
    for each in view.ranks_front():
        world = [*([cell(each.system)] if systems else []), cell(each.ranks)]
        rows.append([*world, *_on_ranks(view, each)])
    return [*columns, "best for its ranks"], rows[:MOST]


def _on_ranks(view: SearchView, each: RanksBest) -> list[Cell]:
    if each.best is None:
        bound = Cell("" if each.bound is None else f"≥ {each.bound / MS:,.1f}", number=True)
        text = "none fits" if each.bound is None else "none was timed: all have a bound above the best plans"
        return [bound, cell(None), cell(None), cell(text), cell(None)]
    found = each.best.candidate
    cost = Cell(f"{found.step * each.ranks / 1e9:,.1f}", number=True)
    return [_ms(found.step), cost, _gb(found.peak), cell(view.plans[each.best.place]), cell(_proof(each.best))]


def losses_table(view: SearchView) -> Table:
    """Why the others lose, the reason of the most plans first."""
    columns = ["loses by", "plans", "share", "sets and plans", "timed", "shortest ms", "of it"]
    rows = [
        [
            cell(each.code),
            cell(each.plans),
            Cell(f"{each.plans / max(view.result.size, 1):.1%}", number=True),
            cell(each.candidates),
            cell(each.timed),
            Cell("" if each.step is None else f"{each.step / MS:,.1f}", number=True),
            cell(each.why),
        ]
        for each in view.losses()
    ]
    return columns, rows


def asked_facts(info: SearchInfo, view: SearchView) -> list[tuple[str, str]]:
    """What a search asked, in texts by name."""
    asked = view.request
    rooms = {
        name: "no limit" if room is None else f"{room / GB:,.1f} GB for tensors" for name, room in view.rooms.items()
    }
    found: dict[str, Any] = {
        "model": info.model,
        "systems": ", ".join(asked.systems),
        "ranks": ", ".join(f"{each:,}" for each in asked.ranks),
        **asked.words,
        "words that vary": "degrees, micro-batch, " + ", ".join(asked.allow) if asked.allow else "degrees, micro-batch",
        "best by": asked.by.value.replace("_", " "),
        "memory": ", ".join(f"{name} {room}" if len(rooms) > 1 else room for name, room in rooms.items()),
        "condition": asked.where,
        "best plans": asked.top,
        "prices": ", ".join(f"{name} {price:g} an hour" for name, price in asked.prices.items()),
        "power": ", ".join(f"{name} {watts:g} W" for name, watts in asked.watts.items()),
    }
    return [(name, cell(value).text) for name, value in found.items() if value not in (None, "", [], ())]


def _proof(each: FrontPlan) -> str:
    if each.exact:
        return "yes"
    return f"unknown: a plan that was not timed takes {(each.bound or 0) / MS:,.1f} ms or more"


def _world_heads(view: SearchView) -> list[str]:
    """Columns of the systems and ranks of plans, where these differ."""
    return [
        *(["system"] if len(view.request.systems) > 1 else []),
        *(["ranks"] if len(view.request.ranks) > 1 else []),
    ]


def _world(view: SearchView, each: Candidate) -> list[Cell]:
    values = {"system": each.system, "ranks": each.ranks}
    return [cell(values[name]) for name in _world_heads(view)]


def _made(view: SearchView, place: int) -> Sequence[Cell]:
    """Links to the instance of a plan and to its newest profile."""
    for each in view.made.get(place, ()):
        profile = next(iter(each.profiles), None)
        linked = cell(None) if profile is None else cell(profile[:SHORT_ID], address("profiles", profile))
        return cell(each.name, address("instances", each.instance)), linked
    return cell(None), cell(None)


def _ms(ns: float) -> Cell:
    return Cell(f"{ns / MS:,.1f}", number=True)


def _gb(size: float) -> Cell:
    return Cell(f"{size / GB:,.1f}", number=True)
