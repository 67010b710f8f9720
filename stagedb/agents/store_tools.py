"""Tools that look into a store: what it has, what it can be asked, and questions."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from stagedb import api
from stagedb.agents.agent_tools import MOST_TEXT, AgentTool, Name, PageArguments, plan_words
from stagedb.agents.bounded_answers import AnswerLimits, ToolAnswer
from stagedb.api import QueryInfo, Rows, Stagedb, querying
from stagedb.api.results import Thing
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import call
from stagedb.store import LABELS
from stagedb.store.schema import RELATIONSHIPS

INSTANCE = "Id or name of an instance; without it the newest is meant."
PROFILE = "Id or name of a profile; without it the newest is meant, of the instance if that is given."
RUN = "Id or name of a run that was recorded: a query about the time of a profile answers for the run instead."
PLAN = 'Words of a plan with their values, such as {"tp": 8, "pp": 4}: numbers, names and lists, never files.'

Kind = Literal["graphs", "instances", "profiles", "searches", "runs", "unfinished"]
Seconds = Annotated[float, Meta(gt=0, description="End the query after this time; the server may have a lower bound.")]


class _LsArguments(PageArguments, kw_only=True):
    kind: Annotated[Kind | None, Meta(description="List only these.")] = None
    model: Annotated[Name | None, Meta(description="Only what is of this model.")] = None
    system: Annotated[Name | None, Meta(description="Only profiles and searches on it.")] = None
    tag: Annotated[Name | None, Meta(description="Only what has this tag.")] = None
    sort: Annotated[
        Literal["created", "name", "ranks", "step", "mfu", "memory"], Meta(description="The order of the rows.")
    ] = "created"


def _ls(db: Stagedb, asked: _LsArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.ls(asked.kind, model=asked.model, system=asked.system, tag=asked.tag, sort=asked.sort)
    units = {"step": "ns", "peak": "B"}
    return ToolAnswer({}, asked.page(Rows(found.columns, found.rows, units=units), limits))


class _ShowArguments(PageArguments, kw_only=True):
    word: Annotated[Name, Meta(description="An id, the start of one, or a name.")]


def _show(db: Stagedb, asked: _ShowArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.show(asked.word)
    return ToolAnswer({"properties": api.properties(found)}, asked.page(db.origin(found.id), limits))


class _FindArguments(PageArguments, kw_only=True):
    model: Annotated[Name | None, Meta(description="The model's name.")] = None
    system: Annotated[Name | None, Meta(description="The system's name.")] = None
    fits: Annotated[bool, Meta(description="Only what fits into the memory of an accelerator.")] = False
    plan: Annotated[dict[str, Any], Meta(description=PLAN)] = field(default_factory=dict)


def _find(db: Stagedb, asked: _FindArguments, limits: AnswerLimits) -> ToolAnswer:
    words = plan_words(asked.plan)
    most = asked.skip + asked.wanted(limits) + 1  # one row more shows whether the answer is cut
    found = db.find(model=asked.model, system=asked.system, fits=asked.fits, limit=most, **words)
    rows = Rows(found.columns, found.rows[: most - 1], cut=len(found) == most, units={"step": "ns", "memory": "B"})
    return ToolAnswer({}, asked.page(rows, limits), found.hints)


class _DiffArguments(PageArguments, kw_only=True):
    first: Annotated[Name, Meta(description="Id or name of an instance or a profile.")]
    second: Annotated[Name, Meta(description="Another one of the same kind.")]
    table: Annotated[
        Literal["plan", "work", "time", "memory"] | None,
        Meta(
            description="plan: words of the plans; work: calls, FLOPs and bytes; time, of profiles: figures and times; "
            "memory, of a run and a plan: bytes at moments of a step. Without it: time of profiles, work of instances."
        ),
    ] = None


def _diff(db: Stagedb, asked: _DiffArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.diff(asked.first, asked.second)
    tables = {"plan": found.plan, "work": found.work, "time": found.time, "memory": found.memory}
    chosen = asked.table or ("time" if isinstance(found.first, api.ProfileInfo) else "work")
    facts = {
        "verdict": found.verdict,
        "memory": found.memory_verdict or None,
        "remark": found.remark or None,
        "same": found.same,
        "longer": found.longer,
        "first": _named(found.first),
        "second": _named(found.second),
        "rows_of": {name: len(rows) for name, rows in tables.items()},
        "table": chosen,
    }
    return ToolAnswer(facts, asked.page(tables[chosen], limits))


class _QueriesArguments(PageArguments, kw_only=True):
    subject: Annotated[
        Name | None, Meta(description="Only those of a subject, such as communication, critical_path, runs or saved.")
    ] = None
    name: Annotated[Name | None, Meta(description="One query, with its columns and its Cypher.")] = None


def _queries(db: Stagedb, asked: _QueriesArguments, limits: AnswerLimits) -> ToolAnswer:
    known = db.queries()
    if asked.name is not None:
        wanted = asked.name.replace("-", "_")
        one = next((each for each in known if each.name == wanted), None)
        if one is None:
            raise UsageError(f"no query is named {shown(asked.name)}: {call('queries')} without a name lists them")
        return ToolAnswer(_described(one), asked.page(_fields(one), limits))
    subjects = sorted({each.subject for each in known})
    if asked.subject is not None and asked.subject not in subjects:
        raise UsageError(f"no query has the subject {shown(asked.subject)}: it is one of {', '.join(subjects)}")
    rows = tuple(
        (each.name, each.subject, ", ".join(each.parameters), each.description)
        for each in known
        if asked.subject in (None, each.subject)
    )
    return ToolAnswer({}, asked.page(Rows(("name", "subject", "parameters", "asks"), rows), limits))


def _described(query: QueryInfo) -> dict[str, Any]:
    """A query without its fields."""
    return {"name": query.name, "subject": query.subject, "asks": query.description, "cypher": query.text}


def _fields(query: QueryInfo) -> Rows:
    """The parameters and columns of a query; for one that a user saved, their names alone."""
    rows = [
        (how, each.name, each.type, each.unit, each.description)
        for how, fields in (("takes", query.takes), ("gives", query.gives))
        for each in fields
    ]
    if not rows:
        names = [("takes", each) for each in query.parameters] + [("gives", each) for each in query.columns]
        rows = [(how, name, "", None, "") for how, name in names]
    return Rows(("how", "name", "type", "unit", "is"), tuple(rows))


class _QueryArguments(PageArguments, kw_only=True):
    name: Annotated[Name, Meta(description="The name of a query that the tool `queries` lists.")]
    params: Annotated[
        dict[str, Any], Meta(description="Values of its parameters, but for instance, profile, run and search.")
    ] = field(default_factory=dict)
    instance: Annotated[Name | None, Meta(description=INSTANCE)] = None
    profile: Annotated[Name | None, Meta(description=PROFILE)] = None
    run: Annotated[Name | None, Meta(description=RUN)] = None
    search: Annotated[Name | None, Meta(description="Id of a search; without it the newest is meant.")] = None
    seconds: Seconds | None = None


def _query(db: Stagedb, asked: _QueryArguments, limits: AnswerLimits) -> ToolAnswer:
    if not querying.WORD.match(asked.name):
        raise UsageError(
            f"{shown(asked.name)} is no name of a query: {call('queries')} lists them, and cypher takes texts"
        )
    given = dict(asked.params) if asked.search is None else {**asked.params, "search": asked.search}
    return _asked(db, asked.name, given, asked, limits)


class _CypherArguments(PageArguments, kw_only=True):
    query: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MOST_TEXT,
            description="Cypher that only reads: no CREATE, SET, LOAD CSV, no procedures but db.labels and the like. "
            "In it, $instance, $profile and $run are ids. Without ORDER BY, rows have no order to skip by.",
        ),
    ]
    params: Annotated[dict[str, Any], Meta(description="Values of its other parameters.")] = field(default_factory=dict)
    instance: Annotated[Name | None, Meta(description=INSTANCE)] = None
    profile: Annotated[Name | None, Meta(description=PROFILE)] = None
    run: Annotated[Name | None, Meta(description="Id or name of a run for $run; the newest without it.")] = None
    seconds: Seconds | None = None


def _cypher(db: Stagedb, asked: _CypherArguments, limits: AnswerLimits) -> ToolAnswer:
    return _asked(db, asked.query, asked.params, asked, limits)


def _asked(
    db: Stagedb, query: str, params: Mapping[str, Any], asked: _QueryArguments | _CypherArguments, limits: AnswerLimits
) -> ToolAnswer:
    """The answer to a query, with what was chosen as the newest."""
    found = db.query(
        query,
        params,
        instance=asked.instance,
        profile=asked.profile,
        run=asked.run,
        timeout=limits.seconds if asked.seconds is None else min(asked.seconds, limits.seconds),
        most=asked.skip + asked.wanted(limits),
    )
    notes = [*found.hints, *(f"this is of the newest {what}, {which}" for what, which in found.newest.items())]
    return ToolAnswer({}, asked.page(found, limits), notes)


class _SchemaArguments(PageArguments, kw_only=True):
    label: Annotated[Name | None, Meta(description="One label, with its properties.")] = None


def _schema(db: Stagedb, asked: _SchemaArguments, limits: AnswerLimits) -> ToolAnswer:
    del db
    if asked.label is None:
        rows = tuple((each.name, each.description, _edges(each.name)) for each in LABELS)
        return ToolAnswer({}, asked.page(Rows(("label", "is", "leads_to"), rows), limits))
    one = next((each for each in LABELS if each.name == asked.label), None)
    if one is None:
        raise UsageError(f"no label is named {shown(asked.label)}: they are {', '.join(each.name for each in LABELS)}")
    facts = {"label": one.name, "is": one.description, "also": one.also, "leads_to": _edges(one.name)}
    properties = tuple((each.name, each.type, each.unit, each.description) for each in one.properties)
    return ToolAnswer(facts, asked.page(Rows(("property", "type", "unit", "is"), properties), limits))


def _edges(label: str) -> list[str]:
    """The relationships of a label to others."""
    return [f"-[:{each.type}]->(:{each.target})" for each in RELATIONSHIPS if each.source == label]


def _named(info: Thing) -> dict[str, Any]:
    """The kind, id and name of a thing."""
    return {"kind": api.kind_of(info), "id": info.id, "name": getattr(info, "name", None)}


STORE_TOOLS: tuple[AgentTool[Any], ...] = (
    AgentTool(
        "ls",
        "List what the store has: graphs (models), instances (a model under a plan), profiles (a step timed on a "
        "system), searches, and runs that a profiler recorded. The caller's own come first, then the newest.",
        _LsArguments,
        _ls,
    ),
    AgentTool(
        "show",
        "Show one graph, instance, profile, search or run: its plan, figures, names, tags and notes, who made it and "
        "from which inputs.",
        _ShowArguments,
        _show,
    ),
    AgentTool(
        "find",
        "Find profiled plans of a model, the most tokens a second an accelerator first.",
        _FindArguments,
        _find,
    ),
    AgentTool(
        "diff",
        "Compare two instances, or two profiles: a verdict in one sentence, and a table of what differs.",
        _DiffArguments,
        _diff,
    ),
    AgentTool(
        "queries",
        "List the named queries (traffic by axis, by dimension and by link; breakdowns; the critical path over all "
        "ranks; stragglers; memory; why plans lose) with their parameters, or show one with its columns.",
        _QueriesArguments,
        _queries,
    ),
    AgentTool("query", "Run a named query.", _QueryArguments, _query),
    AgentTool(
        "cypher",
        "Ask the store in Cypher that only reads. The tool `schema` lists labels, properties and relationships.",
        _CypherArguments,
        _cypher,
    ),
    AgentTool(
        "schema",
        "The labels and relationships of the store, or the properties of one label with their types and units.",
        _SchemaArguments,
        _schema,
    ),
)
