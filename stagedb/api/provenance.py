"""Where a result comes from: versions, inputs with their digests, the plan, and the commands that make it again."""

import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from stagedb.api import catalog, model_names
from stagedb.api.results import InstanceInfo, ProfileInfo, RunInfo
from stagedb.api.wanted_instances import DEFAULT_MODEL, DEFAULT_WORDS
from stagedb.mentions import OPTIONS, Word
from stagedb.models import Card, card_names, load_card
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.search.commands import needed_words, plan_command
from stagedb.store import Input, Store
from stagedb.store.contents.profiles import exact_text, inputs_of, profile_id
from stagedb.systems import System
from stagedb.systems.system_files import DEFAULT, load_system, system_names
from stagedb.timing import JobProfile

PACKAGES = ("stagedb", "numpy")
"""Packages whose versions a result depends on."""


@cache
def current_versions() -> dict[str, str]:
    """The versions of stagedb, Python and numpy that run, by name."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version_of(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return {"stagedb": found.pop("stagedb"), "python": platform.python_version(), **found}


@dataclass(frozen=True)
class Provenance:
    """What a result is made from, and by what.

    commands: each makes it, or one of its parts, again; none for what no command names, such as a card made in Python.
    versions: of stagedb, of Python and of numpy. inputs: each with its kind (card, graph, plan, system, instance,
    durations), its digest, and its name; the digests are those of `Stagedb.origin`. plan: the words of the plan; none
    for a result of several plans. seeds: of random draws; a result without any has none.
    """

    commands: tuple[str, ...]
    inputs: tuple[Mapping[str, str | None], ...]
    plan: Mapping[str, Any] = field(default_factory=dict)
    seeds: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=current_versions)

    def to_dict(self) -> dict[str, Any]:
        """The fields of the provenance, ready for JSON."""
        found = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    def facts(self) -> dict[str, str]:
        """The provenance as texts by name, without the plan, for a page that shows the plan elsewhere."""
        named = {f"{each['kind']} {each['name'] or ''}".strip(): f"digest {each['digest']}" for each in self.inputs}
        seeds = ", ".join(f"{name} {seed}" for name, seed in self.seeds.items())
        return {
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            **named,
            "random draws": seeds or "none",
            **({"made again by": "\n".join(self.commands)} if self.commands else {}),
        }


@dataclass(frozen=True)
class Asked:
    """What a request names, as its caller wrote it: a target or a model, a system, blocking axes and a framework."""

    target: str | None = None
    model: str | Card | None = None
    system: str | Path | System | None = None
    blocking: str | Sequence[str] = ()
    framework: str | None = None

    def subject(self) -> list[str] | None:
        """The words of a command that name what it is about; None if no command can name it."""
        if self.target is not None:
            return [self.target]
        if isinstance(self.model, Card):
            known = self.model.name in card_names() and load_card(self.model.name) == self.model
            return [OPTIONS.word(Word("model")), self.model.name] if known else None
        return None if self.model is None else [OPTIONS.word(Word("model")), self.model]

    def options(self) -> list[str] | None:
        """The options of a command with the system; None for a system that is no preset and no file."""
        named: list[str] = []
        if isinstance(self.system, System):
            name = self.system.name
            if name not in system_names() or load_system(name) != self.system:
                return None
            named += [OPTIONS.word(Word("system")), name]
        elif self.system is not None and str(self.system) != DEFAULT:
            named += [OPTIONS.word(Word("system")), str(self.system)]
        blocking = self.blocking if isinstance(self.blocking, str) else ",".join(self.blocking)
        named += [OPTIONS.word(Word("blocking")), blocking] if blocking else []
        return named + ([OPTIONS.word(Word("framework")), self.framework] if self.framework else [])


def resolved(
    store: Store, target: str | None, model: str | Card | None, words: Mapping[str, Any]
) -> tuple[str | None, str | Card | None, dict[str, Any]]:
    """A request's target, model and words, where one that names neither has what it means: see `find_wanted`."""
    if target is not None or model is not None:
        return target, model, dict(words)
    known = catalog.instances(store)
    if known:
        return known[0].id, None, dict(words)
    return None, DEFAULT_MODEL, {**DEFAULT_WORDS, **words}


def commands_of(verb: str, asked: Asked, words: Mapping[str, Any], more: Sequence[str] = ()) -> tuple[str, ...]:
    """The command of a verb about a request; none if the command line cannot name all of it.

    words: those of the plan that the request gives. more: further options.
    """
    subject, options = asked.subject(), asked.options()
    if subject is None or options is None:
        return ()
    made = plan_command(verb, subject, words, [*options, *more])
    return () if made is None else (made,)


def of_source(
    source: model_names.Source | None, plan: Plan | None, systems: Sequence[System], commands: Sequence[str]
) -> Provenance:
    """The provenance of what is computed of a model on systems. source: None without a plan at all. plan: None for a
    result of several plans.
    """
    inputs = [] if plan is None else [Input.of("plan", plan.to_json())]
    inputs = [
        *([] if source is None else _of_model(source)),
        *inputs,
        *(Input.of("system", each.to_dict(), each.name) for each in systems),
    ]
    return Provenance(tuple(commands), _rows(inputs), {} if plan is None else plan.to_dict())


def of_step(store: Store, instance: InstanceInfo, job: JobProfile) -> Provenance:
    """The provenance of a step of an instance of the store.

    The command names its profile where the library has no such model or system.
    """
    placed = {each.dimension for each in job.placements}
    dimensions = tuple(replace(each, use=None) if each.name in placed else each for each in job.system.dimensions)
    asked = Asked(
        model=_library_model(instance), system=replace(job.system, dimensions=dimensions), blocking=job.blocking
    )
    scaled = [part for each in job.scalings for part in (OPTIONS.word(Word("scale")), exact_text(each))]
    commands = () if job.measured is not None else commands_of("report", asked, _needed(instance), scaled)
    stored = (shlex.join(["stagedb", "report", OPTIONS.word(Word("profile")), profile_id(job)]),)
    inputs = [*_of_instance(store, instance), *inputs_of(job)]
    return Provenance(commands or stored, _rows(inputs), dict(instance.plan))


def of_stored(
    store: Store, instances: Sequence[InstanceInfo], profiles: Sequence[ProfileInfo], commands: Sequence[str]
) -> Provenance:
    """The provenance of a comparison of stored instances, or of stored profiles.

    instances: those that are compared, or those of the profiles. profiles: one for each instance; empty where instances
    are compared. commands: those that compare; the result has the commands that make each instance or profile before
    them.
    """
    inputs = [each for instance in instances for each in _of_instance(store, instance)]
    made: list[str] = []
    inputs += [Input("profile", profile.id, profile.name) for profile in profiles]
    for at, instance in enumerate(instances):
        if profiles:
            own = _origin(store, profiles[at].id)
            inputs += own
            made += _profile_commands(instance, profiles[at], own)
        else:
            made += commands_of("instantiate", Asked(target=_library_model(instance)), _needed(instance))
    return Provenance((*dict.fromkeys(made), *commands), _rows(inputs))


def of_runs(store: Store, runs: Sequence[RunInfo], commands: Sequence[str]) -> Provenance:
    """The provenance of what compares runs that were recorded: their files."""
    inputs = [Input("run", run.id, run.name) for run in runs]
    return Provenance(tuple(commands), _rows([*inputs, *(each for run in runs for each in _origin(store, run.id))]))


def _profile_commands(instance: InstanceInfo, profile: ProfileInfo, inputs: Sequence[Input]) -> tuple[str, ...]:
    """The command that makes a profile of a model of the library on a preset; none for others, and with durations."""
    system = next((each for each in inputs if each.kind == "system"), None)
    if system is None or system.name not in system_names() or any(each.kind == "durations" for each in inputs):
        return ()
    preset = load_system(str(system.name))
    if Input.of("system", preset.to_dict()).id != system.id:
        return ()
    asked = Asked(model=_library_model(instance), system=preset, blocking=profile.blocking)
    scaled = [part for each in profile.scalings for part in (OPTIONS.word(Word("scale")), each)]
    return commands_of("profile", asked, _needed(instance), scaled)


def _library_model(instance: InstanceInfo) -> str | None:
    return instance.model if instance.model in card_names() else None


def _needed(instance: InstanceInfo) -> dict[str, Any]:
    """The words of its plan that a command needs, in the order of the options."""
    given = {word: instance.plan[word] for word in PLAN_WORDS if instance.plan.get(word) is not None}
    return needed_words(given)


def _of_model(source: model_names.Source) -> list[Input]:
    if source.card is not None:
        blocks = [Input("block", each.digest[:32], each.name) for each in source.card.blocks]
        return [Input("card", source.card.digest[:32], source.card.name), *blocks]
    return [] if isinstance(source.origin, Card) else [Input("graph", source.origin.id, source.origin.name)]


def _of_instance(store: Store, instance: InstanceInfo) -> list[Input]:
    """The inputs of an instance and of its graph, and itself."""
    made = [*_origin(store, instance.graph), *_origin(store, instance.id)]
    return [*made, Input("instance", instance.id, instance.name)]


def _origin(store: Store, thing: str) -> list[Input]:
    """The inputs of a thing as the store has them; none for what an older stagedb made."""
    rows = store.read("team/origin", thing=thing)
    return [Input(row["input"], row["digest"], row["name"]) for row in rows if row["input"] is not None]


def _rows(inputs: Sequence[Input]) -> tuple[Mapping[str, str | None], ...]:
    """The inputs as rows, each digest once. A name of it is kept."""
    found: dict[tuple[str, str], Input] = {}
    for each in inputs:
        key = each.kind, each.id
        if key not in found or found[key].name is None:
            found[key] = each
    return tuple({"kind": each.kind, "digest": each.id, "name": each.name} for each in found.values())
