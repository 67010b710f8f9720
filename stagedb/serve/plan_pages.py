"""Instances and profiles as lists: the columns, the order and the filters that somebody chose, all in the address."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Stagedb, listing, plan_lists
from stagedb.api.listing import KINDS
from stagedb.api.plan_lists import DEGREES, SORTS, WORDS, Kind, ListedPlan, PlanFilter
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.reports.candidates_chart import FIGURES, PlanMark, plans_chart
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames
from stagedb.serve.list_pages import number_of
from stagedb.serve.page_frames import SHORT_ID, Cell, address, cell, gigabytes, named
from stagedb.serve.team_pages import plan_words

SIZE = 50
"""Rows of a page."""
DRAWN = 1_000
"""Marks of a chart, at most: those of the first rows."""
COLORS = (*WORDS, "ranks", "system", "model", "made_by")
"""What the colours of a chart may mean."""

HEADS: Mapping[str, str] = {
    "name": "name",
    "tokens": "tokens/s an accelerator",
    "step": "step",
    "mfu": "MFU",
    "memory": "memory",
    "fits": "fits",
    "ranks": "ranks",
    **{word: word for word in WORDS},
    "micro_batch_size": "micro-batch",
    "global_batch_size": "global batch",
    "seq_len": "sequence",
    "model": "model",
    "system": "system",
    "other": "other words of the plan",
    "timing": "timing",
    "tags": "tags",
    "made_by": "by",
    "created": "created (UTC)",
    "id": "id",
}
"""Columns in their order, and their headers. The name is always there."""

USUAL = (
    *("tokens", "step", "mfu", "memory", "fits", "ranks", "tp", "pp", "cp", "ep", "dp", "micro_batch_size"),
    *("schedule", "model", "system", "other", "timing", "tags", "made_by", "created"),
)
"""Columns that a list has if nobody chose some."""

_FIGURES: Mapping[str, Callable[[Any], str]] = {
    "tokens": "{:,.1f}".format,
    "step": lambda step: span(step, 4),
    "mfu": "{:.1%}".format,
    "memory": gigabytes,
}
"""Figures, and how they are written."""

_FITS: Mapping[bool | None, str] = {True: "yes", False: "no", None: ""}


@dataclass(frozen=True)
class AskedList:
    """What an address asks for. plan: words such as `tp=8 schedule=1f1b`. show: columns; empty: the usual ones.

    order: `asc` or `desc`; None: what is usual for the column. chart: the figure of `FIGURES` that is drawn against the
    memory. color: what its colours mean, of `COLORS`.
    """

    kind: Kind
    text: str | None = None
    model: str | None = None
    system: str | None = None
    tag: str | None = None
    by: str | None = None
    plan: str | None = None
    fits: str | None = None
    sort: str = "created"
    order: str | None = None
    show: tuple[str, ...] = ()
    chart: str = next(iter(FIGURES))
    color: str = COLORS[0]
    page: int = 1

    @classmethod
    def of(cls, kind: Kind, words: QueryParams) -> Self:
        """What a request asks for.

        words: the parameters of the address. Raises UsageError for a column, an order or a page that cannot be.
        """
        texts: dict[str, Any] = {name: named(words, name) for name in (*FILTERS, "order")}
        show = tuple(dict.fromkeys(each for each in words.getlist("show") if each and each != "name"))
        unknown = next((each for each in show if each not in HEADS), None)
        if unknown is not None:
            raise UsageError(f"there is no column {shown(unknown)}: the columns are {', '.join(HEADS)}")
        if texts["order"] not in (None, "asc", "desc"):
            raise UsageError("order in the address is asc or desc")
        chosen = {name: named(words, name) or getattr(cls, name) for name in _ONE_OF}
        for name, text in chosen.items():
            if text not in _ONE_OF[name]:
                raise UsageError(f"{name}={shown(text)} is not possible: it is one of {', '.join(_ONE_OF[name])}")
        return cls(kind, show=show, page=number_of(words, "page", 1), **texts, **chosen)

    @property
    def falls(self) -> bool:
        """Whether the list is sorted with the largest value first."""
        return SORTS[self.sort] if self.order is None else self.order == "desc"

    def to(self, **changes: Any) -> str:
        """The address of this list with changes, without what is usual."""
        asked = dataclasses.replace(self, **{"page": 1, **changes})
        usual = type(self)(self.kind)
        words = {name: getattr(asked, name) for name in (*FILTERS, *_ONE_OF, "order", "show", "page")}
        if asked.order == ("desc" if SORTS[asked.sort] else "asc"):
            words["order"] = None
        if set(asked.show) == set(USUAL):
            words["show"] = ()
        return address(
            "list", self.kind, **{name: value for name, value in words.items() if value != getattr(usual, name)}
        )

    def chips(self) -> list[tuple[str, str]]:
        """Each filter as a text, with the address of the list without it."""
        return [
            ("fits the memory" if name == "fits" else f"{FILTERS[name]}: {value}", self.to(**{name: None}))
            for name in FILTERS
            if (value := getattr(self, name)) is not None
        ]

    def heads(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """The headers of columns: a link sorts by the column, and the second one the other way round."""
        found = []
        for name in columns:
            mine = name == self.sort
            order = ("asc" if self.falls else "desc") if mine else None
            found.append(
                {
                    "text": HEADS[name],
                    "to": self.to(sort=name, order=order) if name in SORTS else None,
                    "order": ("descending" if self.falls else "ascending") if mine else None,
                    "number": name in (*_FIGURES, "ranks", *WORDS) and name not in ("schedule", "recompute"),
                }
            )
        return found


_ONE_OF: Mapping[str, Collection[str]] = {"sort": SORTS, "chart": FIGURES, "color": COLORS}
"""Words of the address with one value of several."""

FILTERS: Mapping[str, str] = {
    "text": "text",
    "model": "model",
    "system": "system",
    "tag": "tag",
    "by": "by",
    "plan": "plan",
    "fits": "fits",
}
"""Words of the address that leave rows out, and what they are called."""


@dataclass(frozen=True)
class FoundList:
    """A list of plans for a page. rows: filtered, in order. every: rows before the filters. pages: their number."""

    every: Sequence[ListedPlan]
    rows: Sequence[ListedPlan]
    pages: int


def plans(request: Request) -> Response:
    """Instances with the figures of their newest profiles, or profiles: filtered, sorted, and in pages."""
    kind = cast("Kind", request.url.path.rpartition("/")[2])
    asked = AskedList.of(kind, request.query_params)
    found: FoundList = request.app.state.shared.read(lambda db: find_plans(db, asked))
    rows = found.rows[(asked.page - 1) * SIZE : asked.page * SIZE]
    columns = columns_of(asked, found.rows)
    return page_frames.page(
        request,
        "plans.html",
        asked=asked,
        columns=columns,
        heads=asked.heads(columns),
        rows=[(each.id, each.star, row_of(asked, each, columns)) for each in rows],
        count=len(found.rows),
        pages=found.pages,
        turns={
            word: asked.to(page=at)
            for word, at in (("before", asked.page - 1), ("after", asked.page + 1))
            if 1 <= at <= found.pages
        },
        kinds=[each for each in KINDS if each != "unfinished"],
        choices=_choices(asked, found.every),
        chart=chart_of(asked, found.rows),
        figures=FIGURES,
        colors=[(name, HEADS[name]) for name in COLORS],
        every_column=[(name, HEADS[name], name in (asked.show or USUAL)) for name in HEADS if name != "name"],
        sorts=[(name, HEADS[name]) for name in HEADS if name in SORTS],
    )


def find_plans(db: Stagedb, asked: AskedList) -> FoundList:
    """The rows that an address asks for. Raises UsageError for a page that does not exist, and for unknown names."""
    words = plan_words({"plan": asked.plan})
    every = plan_lists.plans(db.store, asked.kind, words, asked.system)
    wanted = PlanFilter(asked.text, asked.model, asked.system, asked.tag, asked.by, asked.fits is not None)
    rows = plan_lists.ordered(plan_lists.chosen(every, wanted), asked.sort, asked.falls)
    if not rows and (asked.model or asked.system):
        # A name that the store does not have is an error that has similar ones.
        listing.check_names(db.store, asked.model, asked.system)
    pages = max(1, -(-len(rows) // SIZE))
    if asked.page > pages:
        raise UsageError(f"there is no page {asked.page}: the pages are 1 to {pages}")
    return FoundList(every, rows, pages)


def chart_of(asked: AskedList, rows: Sequence[ListedPlan]) -> str:
    """The chart of a list: a mark leads to its row, on this page or on another one."""
    there = [
        (at, each)
        for at, each in enumerate(rows)
        if (each.memory or 0) > 0 and (each.step or 0) > 0 and (each.tokens or 0) > 0
    ]
    marks, rooms = list[PlanMark](), dict[int, set[str]]()
    for at, each in there[:DRAWN]:
        page = at // SIZE + 1
        here = page == asked.page
        if each.room is not None:
            rooms.setdefault(each.room, set()).add(each.system or "")
        marks.append(
            PlanMark(
                name=each.name or each.id[:SHORT_ID],
                plan=" ".join(f"{word} {each.words[word]}" for word in DEGREES if each.words[word] != 1),
                memory=each.memory or 0,
                step=each.step or 0,
                tokens=each.tokens or 0.0,
                fits=bool(each.fits),
                value=each.value(asked.color),
                to=f"{'' if here else asked.to(page=page)}#row-{each.id}",
                here=here,
            )
        )
    named_rooms = {", ".join(sorted(systems)): room for room, systems in rooms.items()}
    return plans_chart(marks, asked.chart, HEADS[asked.color], named_rooms, len(there) - len(marks))


def columns_of(asked: AskedList, rows: Sequence[ListedPlan]) -> list[str]:
    """The columns in their order: those that somebody chose, or the usual ones that have a value in some row."""
    if asked.show:
        return ["name", *(name for name in HEADS if name in asked.show)]
    there = {name for name in USUAL if name in ("other", "fits") or any(_value(each, name) for each in rows)}
    if all(each.fits is None for each in rows):
        there.discard("fits")
    return ["name", *(name for name in HEADS if name in there)]


def row_of(asked: AskedList, each: ListedPlan, columns: Sequence[str]) -> list[Cell]:
    """A row as cells."""
    without = {"ranks", *(name for name in columns if name in WORDS)}
    return [_cell(asked, each, name, without) for name in columns]


def _cell(asked: AskedList, each: ListedPlan, name: str, without: set[str]) -> Cell:
    to = address(asked.kind, each.id)
    if name == "name":
        return cell(f"{'★ ' if each.star else ''}{each.name or each.id[:SHORT_ID]}", to)
    if name == "id":
        return cell(each.id[:SHORT_ID], to)
    if name == "other":
        return cell(each.described(without))
    if name == "tags":
        return cell(", ".join(each.tags))
    if name == "fits":
        return cell(_FITS[each.fits])
    value = _value(each, name)
    if name in _FIGURES:
        return Cell("" if value is None else _FIGURES[name](value), number=True)
    if name == "created":
        return Cell(page_frames.minute(value))
    return cell(value)


def _value(each: ListedPlan, name: str) -> Any:
    return each.fits if name == "fits" else each.value(name)


def _choices(asked: AskedList, rows: Sequence[ListedPlan]) -> dict[str, list[str]]:
    """What the fields of the form offer: values that the rows have, and the one that is chosen."""
    offered: dict[str, list[str | None]] = {
        "model": [asked.model, *(each.model for each in rows)],
        "system": [asked.system, *(each.system for each in rows)],
        "tag": [asked.tag, *(tag for each in rows for tag in each.tags)],
        "by": [asked.by, *(each.made_by for each in rows)],
    }
    return {name: sorted({each for each in some if each is not None}) for name, some in offered.items()}
