"""Working together: the fastest profiled plans of a model, and the log of the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import Response

from stagedb.api import Rows, Stagedb, catalog
from stagedb.api.query_forms import value_of
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.reports.terminal_chart import span
from stagedb.serve import page_frames
from stagedb.serve.list_pages import number_of
from stagedb.serve.page_frames import FORMATS, SHORT_ID, Cell, address, cell, file_of, format_of, gigabytes, named
from stagedb.store import Field, Store
from stagedb.store.naming import spaces

FIELDS = ("ranks", "tp", "pp", "cp", "ep", "dp", "zero", "global_batch_size", "seq_len")
"""Words of the plan with a field of their own. The field `plan` takes every other word."""
MOST = 200
"""Rows of a page."""
LONGEST = 2_000
"""Characters of the field `plan`."""
DAYS = 30

_HEADS = (
    "instance",
    "profile",
    "system",
    "ranks",
    "tokens/s an accelerator",
    "step",
    "MFU",
    "memory",
    "for tensors",
    "fits",
    "plan",
    "by",
    "created (UTC)",
)
_KINDS = ("graph", "instance", "profile", "search", "run")
"""Kinds of things in the log that have pages."""


@dataclass(frozen=True)
class _Choices:
    """What the form suggests, and what profiles are called, by id."""

    models: Sequence[str]
    systems: Sequence[str]
    names: Mapping[str, str]

    @classmethod
    def read(cls, store: Store) -> Self:
        rows = store.read_sound("catalog/profile_names")
        models = {row["name"] for row in store.read_sound("catalog/graphs")}
        names, own = catalog.names_by_id(store), spaces(store)
        called = {row["id"]: catalog.called(names.get(row["id"], ()), row["name"] or "", own) for row in rows}
        return cls(
            sorted(models), sorted({row["system"] for row in rows}), {id: name for id, name in called.items() if name}
        )


def find(request: Request) -> Response:
    """Profiled instances of a model under a plan, the most tokens a second an accelerator first."""
    words = request.query_params
    asked = {name: named(words, name) for name in ("model", "system", "fits", "plan", *FIELDS)}
    format_ = format_of(request)
    limit = MOST if format_ is None else request.app.state.limits.rows
    wanted = plan_words(asked)

    def read(db: Stagedb) -> tuple[Rows, _Choices]:
        found = db.find(
            model=asked["model"], system=asked["system"], fits=asked["fits"] is not None, limit=limit + 1, **wanted
        )
        return found, _Choices.read(db.store)

    found, choices = request.app.state.shared.read(read)
    some, more = Rows(found.columns, found.rows[:limit]), len(found) > limit
    if format_ is not None:
        return file_of(some, format_, "find", cut=more)
    return page_frames.page(
        request,
        "find.html",
        asked=asked,
        fields=[PLAN_WORDS[name] for name in FIELDS],
        models=choices.models,
        systems=choices.systems,
        columns=_HEADS,
        rows=[_found(row, choices.names.get(row["profile"])) for row in some],
        hints=found.hints,
        more=more,
        files={each: address("find", **asked, format=each) for each in FORMATS},
    )


def log(request: Request) -> Response:
    """The page of the store's log: changes, the newest first."""
    words = request.query_params
    word, user = named(words, "word"), named(words, "user")
    days = number_of(words, "days", DAYS)
    found: Rows = request.app.state.shared.read(
        lambda db: db.log(word, user=user, days=min(days, 36_500), limit=MOST + 1)
    )
    return page_frames.page(
        request,
        "log.html",
        asked={"word": word, "user": user, "days": days},
        columns=found.columns,
        rows=[_event(found.columns, row) for row in found.rows[:MOST]],
        more=len(found) > MOST,
        most=MOST,
    )


def plan_words(asked: Mapping[str, str | None]) -> dict[str, Any]:
    """The words of a plan from the fields of a form, with their types. `plan` has others, such as `recompute=full`.

    asked: the fields by name; None: empty. Raises UsageError for an unknown word, a word that is given twice, and a
    value of another type.
    """
    given = [(name, text) for name in FIELDS if (text := asked.get(name)) is not None]
    plan = asked.get("plan") or ""
    if len(plan) > LONGEST:
        raise UsageError(f"the words of the plan have {len(plan):,} characters: a page takes {LONGEST:,}")
    for part in plan.split():
        name, equals, text = part.partition("=")
        if not equals or not text:
            raise UsageError(f"{shown(part)} is no word of a plan with its value: write it as recompute=full")
        given.append((name.replace("-", "_"), text))
    found: dict[str, Any] = {}
    for name, text in given:
        word = PLAN_WORDS.get(name)
        if word is None:
            raise UsageError(f"unknown word {shown(name)} in the plan; the words are {', '.join(PLAN_WORDS)}")
        if name in found:
            raise UsageError(f"the plan has the word {name} twice")
        found[name] = value_of(Field(name, word.property_type.rstrip("?"), None, word.about.help), text)
    return found


def _found(row: Mapping[str, Any], name: str | None) -> list[Cell]:
    """A row of the answer. name: of the profile."""
    memory, room = (
        None if row[name] is None else Cell(gigabytes(row[name]), number=True) for name in ("memory", "room")
    )
    return [
        cell(row["name"] or row["instance"][:SHORT_ID], address("instances", row["instance"])),
        cell(name or row["profile"][:SHORT_ID], address("profiles", row["profile"])),
        cell(row["system"]),
        cell(row["ranks"]),
        Cell("" if row["tokens_per_accelerator"] is None else f"{row['tokens_per_accelerator']:,.1f}", number=True),
        Cell(span(row["step"], 4), number=True),
        Cell("" if row["mfu"] is None else f"{row['mfu']:.1%}", number=True),
        memory or cell(None),
        room or cell(None),
        cell({True: "yes", False: "no", None: "unknown"}[row["fits"]]),
        cell(row["plan"]),
        cell(row["made_by"]),
        cell(page_frames.minute(row["created"])),
    ]


def _event(columns: Sequence[str], values: Sequence[Any]) -> list[Cell]:
    row = dict(zip(columns, values, strict=True))
    id = row["id"]
    # A thing that was removed since has no page of its kind: /show answers that it is not there.
    linked = row["kind"] in _KINDS
    shown_id = cell(id[:SHORT_ID], address("show", id)) if linked else cell(id)
    texts = {"time": cell(page_frames.minute(row["time"])), "id": shown_id}
    return [texts.get(name, cell(row[name])) for name in columns]
