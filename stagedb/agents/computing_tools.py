"""Tools that compute in memory what a store does not have: they write nothing, and end when their time is over."""

import dataclasses
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from stagedb import api
from stagedb.agents.agent_tools import (
    AgentTool,
    Name,
    PageArguments,
    check_value,
    known_model,
    known_system,
    plan_words,
)
from stagedb.agents.bounded_answers import AnswerLimits, ToolAnswer
from stagedb.agents.store_tools import PLAN
from stagedb.api import Rows, Stagedb
from stagedb.errors import StagedbError, UsageError

SEARCHED = 20.0
"""Seconds of a search that names none."""

Instance = Annotated[Name | None, Meta(description="Id or name of an instance; without it and model the newest.")]
Model = Annotated[Name | None, Meta(description="A model of the library in place of an instance, under plan.")]
System = Annotated[Name | None, Meta(description="A preset that the tool `systems` lists; h100 without it.")]
Plan = Annotated[dict[str, Any], Meta(description=PLAN)]
Blocking = Annotated[list[Name], Meta(max_length=10, description="Mesh axes that a rank waits for, such as tp.")]
Fates = Annotated[
    Literal["timed", "memory", "slower", "filtered", "untried", "refused"] | None,
    Meta(description="Only plans of this fate: timed are those that fit, the best first."),
]
Framework = Annotated[Name | None, Meta(description="The framework that runs it, such as megatron-core.")]


class OutOfTimeError(StagedbError):
    """A tool has tried plans for the time that its limit allows."""


def _until(seconds: float) -> Callable[[int, int, str], None]:
    """Progress that ends the work after its time."""
    end = time.monotonic() + seconds

    def watch(done: int, of: int, outcome: str) -> None:
        del outcome
        if done < of and time.monotonic() > end:
            raise OutOfTimeError(
                f"the time of {seconds:g} s was over when {done:,} of {of:,} were tried: ask for less, or ask whoever "
                "runs this server for more time"
            )

    return watch


class _TimedArguments(PageArguments, kw_only=True):
    instance: Instance = None
    model: Model = None
    plan: Plan = field(default_factory=dict)
    system: System = None
    blocking: Blocking = field(default_factory=list)
    framework: Framework = None


def _subject(asked: _TimedArguments) -> dict[str, Any]:
    """The keywords of a verb that its arguments name: model, system, blocking axes, framework and words of the plan."""
    return {
        "model": None if asked.model is None else known_model(asked.model),
        "system": known_system(asked.system),
        "blocking": asked.blocking,
        "framework": asked.framework,
        **plan_words(asked.plan),
    }


class _ProfileArguments(_TimedArguments, kw_only=True):
    scale: Annotated[
        list[Name], Meta(max_length=20, description="Factors on durations, such as collective:tp=0.5.")
    ] = field(default_factory=list)
    table: Annotated[
        Literal["path", "lanes", "memory"],
        Meta(
            description="path: the critical path by kind, axis, phase and stage; lanes: how ranks spend the step; "
            "memory: peaks of the rank classes."
        ),
    ] = "path"


def _profile(db: Stagedb, asked: _ProfileArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.profile(asked.instance, scale=asked.scale, keep=False, **_subject(asked))
    memory = Rows(("class", "peak"), tuple(dataclasses.astuple(each)[:2] for each in found.memory))
    tables = {"path": found.path, "lanes": found.lanes, "memory": memory}
    facts = {
        "instance": found.instance.id if found.instance.kept else None,
        "model": found.instance.model,
        "system": found.info.system,
        "merit": dataclasses.asdict(found.merit),
        "gain_of_scalings_ns": found.gain if asked.scale else None,
        "fullest_rank_bytes": found.memory[0].bytes,
        "room_bytes": found.room,
        "fits": found.fits,
        "table": asked.table,
    }
    return ToolAnswer(facts, asked.page(tables[asked.table], limits))


class _MemoryArguments(PageArguments, kw_only=True):
    instance: Instance = None
    model: Model = None
    plan: Plan = field(default_factory=dict)
    system: System = None
    table: Annotated[Literal["peaks", "levels", "tensors"], Meta(description="What the rows are about.")] = "peaks"


def _memory(db: Stagedb, asked: _MemoryArguments, limits: AnswerLimits) -> ToolAnswer:
    model = None if asked.model is None else known_model(asked.model)
    system = known_system(asked.system)
    found = db.memory(asked.instance, model=model, system=system, keep=False, **plan_words(asked.plan))
    tables = {"peaks": found.peaks, "levels": found.levels, "tensors": found.tensors}
    facts: dict[str, Any] = {"instance": found.instance.id if found.instance.kept else None}
    facts |= {"model": found.instance.model, "room_bytes": found.room, "fits": found.fits, "table": asked.table}
    return ToolAnswer(facts, asked.page(tables[asked.table], limits))


class _AdviseArguments(_TimedArguments, kw_only=True):
    table: Annotated[
        Literal["changes", "what_ifs", "refused"],
        Meta(description="changes: plans near this one; what_ifs: the step with less of each loss; refused: no plans."),
    ] = "changes"


def _advise(db: Stagedb, asked: _AdviseArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.advise(asked.instance, progress=_until(limits.seconds), **_subject(asked))
    refused = Rows(("change", "why"), tuple(found.refused.items()))
    tables = {"changes": found.changes, "what_ifs": found.what_ifs, "refused": refused}
    names = ("model", "system", "ranks", "step", "peak", "room", "bound", "bound_share", "verdict", "expected_error")
    facts = {name: getattr(found, name) for name in names} | {"plan": dict(found.plan), "remarks": found.remarks}
    chosen = tables[asked.table]
    rows = Rows(chosen.columns, chosen.rows, units={"step": "ns", "saving": "ns", "peak": "B"})
    facts |= {"table": asked.table}
    return ToolAnswer(facts, asked.page(rows, limits))


class _SweepArguments(_TimedArguments, kw_only=True):
    vary: Annotated[
        dict[str, list[Any]],
        Meta(
            min_length=1,
            max_length=8,
            description='Values by name: words of a plan ({"tp": [1, 2]}), systems ({"system": ["h100", "gb200"]}), or '
            'numbers of the system by the keys of its file ({"system.network.nvlink.bandwidth": [450, 900]}).',
        ),
    ]


def _sweep(db: Stagedb, asked: _SweepArguments, limits: AnswerLimits) -> ToolAnswer:
    for name, values in asked.vary.items():
        for value in values:
            _check_varied(name, value)
    found = db.sweep(asked.instance, vary=asked.vary, progress=_until(limits.seconds), **_subject(asked))
    rows = Rows(found.rows.columns, found.rows.rows, units={"step": "ns", "peak": "B"})
    facts = {"model": found.model, "verdict": found.verdict}
    return ToolAnswer(facts, asked.page(rows, limits))


def _check_varied(name: str, value: Any) -> None:
    """Raise UsageError for a value that a sweep would read as the path of a file."""
    if name == "system":
        known_system(str(value))
    elif not name.startswith("system."):
        check_value(next(iter(plan_words({name: value})), name), value)


class _SearchArguments(PageArguments, kw_only=True):
    model: Annotated[Name, Meta(description="A model that the tool `models` lists.")]
    ranks: Annotated[list[int], Meta(min_length=1, max_length=8, description="Numbers of accelerators.")]
    words: Annotated[dict[str, Any], Meta(description="Words that all plans have; global_batch_size is needed.")]
    systems: Annotated[list[Name], Meta(max_length=8, description="Presets; h100 without any.")] = field(
        default_factory=list
    )
    allow: Annotated[list[Name] | None, Meta(description="Groups of words that vary too, all or none.")] = None
    by: Annotated[Literal["step", "memory", "bytes"], Meta(description="What is best.")] = "step"
    where: Annotated[str, Meta(max_length=500, description="A condition, such as tp <= 8 and peak < 76e9.")] = ""
    framework: Framework = None
    seconds: Annotated[float, Meta(gt=0, description="End with what is found by then.")] = SEARCHED
    fate: Fates = None


def _search(db: Stagedb, asked: _SearchArguments, limits: AnswerLimits) -> ToolAnswer:
    del db  # a search that is not kept needs no store
    if len(set(asked.ranks)) < len(asked.ranks) or min(asked.ranks) < 1:
        raise UsageError("ranks are different numbers of accelerators, each at least 1")
    found = api.search(
        known_model(asked.model),
        asked.ranks,
        [str(known_system(name)) for name in asked.systems] or None,
        allow=asked.allow,
        by=asked.by,
        where=asked.where,
        framework=asked.framework,
        seconds=min(asked.seconds, limits.seconds),
        words=plan_words(asked.words),
    )
    facts = {"model": found.model, "size": found.size, "covered": found.covered, "left_ns": found.left, "by": found.by}
    facts |= {"expected_errors": dict(found.expected_errors)}
    notes = [] if found.covered else ["the time was over before all plans were tried: a better one may be left"]
    rows = _with_fate(found.candidates, asked.fate)
    return ToolAnswer(facts, asked.page(rows, limits), notes)


def _with_fate(found: Rows, fate: str | None) -> Rows:
    """The candidates of a search with a fate, or all."""
    rows = tuple(row for row in found.rows if fate in (None, row[found.columns.index("fate")]))
    return Rows(found.columns, rows, units={"step": "ns", "peak": "B", "sent": "B"})


class _CandidatesArguments(PageArguments, kw_only=True):
    fate: Fates = None
    search: Annotated[Name | None, Meta(description="Id of a search of the store; without it the newest.")] = None


def _candidates(db: Stagedb, asked: _CandidatesArguments, limits: AnswerLimits) -> ToolAnswer:
    found = db.searched(asked.search)
    rows = _with_fate(found.candidates, asked.fate)
    facts = {"properties": api.properties(db.show(found.id))}
    return ToolAnswer(facts, asked.page(rows, limits))


class _ModelsArguments(PageArguments, kw_only=True):
    like: Annotated[Name | None, Meta(description="The models nearest in size to this one.")] = None


def _models(db: Stagedb, asked: _ModelsArguments, limits: AnswerLimits) -> ToolAnswer:
    del db
    return _listed(api.models(None if asked.like is None else known_model(asked.like)), asked, limits)


class _SystemsArguments(PageArguments, kw_only=True):
    name: Annotated[Name | None, Meta(description="One system, with the keys of its file.")] = None


def _systems(db: Stagedb, asked: _SystemsArguments, limits: AnswerLimits) -> ToolAnswer:
    del db
    if asked.name is None:
        return _listed(api.systems(), asked, limits)
    found = api.system(str(known_system(asked.name)))
    return ToolAnswer({}, asked.page(Rows(("key", "value"), tuple(found.items())), limits))


def _listed(records: list[dict[str, Any]], asked: PageArguments, limits: AnswerLimits) -> ToolAnswer:
    """Records with the same keys as rows."""
    rows = Rows(tuple(records[0]), tuple(tuple(each.values()) for each in records))
    return ToolAnswer({}, asked.page(rows, limits))


COMPUTING_TOOLS: tuple[AgentTool[Any], ...] = (
    AgentTool(
        "profile",
        "Time a step of an instance, or of a model under a plan, on a system, in memory: step, MFU, the critical path "
        "over all ranks. It shows what another system or network would give.",
        _ProfileArguments,
        _profile,
        computes=True,
    ),
    AgentTool(
        "memory",
        "The memory of a rank of each class over a step, in bytes, in memory.",
        _MemoryArguments,
        _memory,
        computes=True,
    ),
    AgentTool(
        "advise",
        "What bounds a step, and which plans near it are faster or fit: each is tried in memory.",
        _AdviseArguments,
        _advise,
        computes=True,
    ),
    AgentTool(
        "sweep",
        "Time a plan with words of it, or numbers of its system (bandwidths, latencies, sizes), varied: how does the "
        "step react to the topology?",
        _SweepArguments,
        _sweep,
        computes=True,
    ),
    AgentTool(
        "search",
        "The best plans of a model of the library on so many accelerators, and why others lose; nothing is kept.",
        _SearchArguments,
        _search,
        computes=True,
    ),
    AgentTool(
        "candidates", "The plans that a search of the store tried, the best first.", _CandidatesArguments, _candidates
    ),
    AgentTool("models", "The library of models, with their sizes.", _ModelsArguments, _models),
    AgentTool(
        "systems", "The library of systems, or one of them with all of its numbers.", _SystemsArguments, _systems
    ),
)
