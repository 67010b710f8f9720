"""Sweeps: words of a plan and numbers of a system varied, and the derivative of a step by each of these numbers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from stagedb.api import lookup, model_names, profiling, provenance
from stagedb.api.results import Gains, Rows, Swept
from stagedb.api.wanted_instances import find_wanted, graph_of
from stagedb.errors import UsageError
from stagedb.files import GB
from stagedb.ir.symbolic_graph import SymGraph
from stagedb.mentions import OPTIONS, Word, call
from stagedb.models import Card
from stagedb.plans import GraphOptions, Plan
from stagedb.search.sweeping import (
    NUMBERS,
    SYSTEM,
    NumberGain,
    PointOutcome,
    Refusal,
    Sensitivity,
    SweepPoint,
    Variation,
    changed_system,
    point_name,
    points,
    read_variation,
    sensitivity,
    shown_text,
    shown_value,
    sweep,
    variation,
)
from stagedb.search.trials import Trials
from stagedb.store import Store
from stagedb.systems import System
from stagedb.systems.system_numbers import find_number
from stagedb.timing import ProfileInputs

T = TypeVar("T")

FIGURES = (
    "ranks",
    "step",
    "mfu",
    "peak",
    "fits",
    "tokens_per_second_per_accelerator",
    "bound",
    "bound_share",
    "refused",
)
"""Columns of a sweep after those of what varies."""

GAINS = ("number", "value", "unit", "elasticity", "step_1", "share_1", "step_10", "share_10")

Vary = Mapping[str, Any] | Sequence[str]
"""What varies: values by name, or texts such as `tp=1,2,4`."""

Watch = Callable[[int, int, str], None]
"""Called with how many points are tried, of how many, and what came out of the last one, in words."""


@dataclass(frozen=True)
class SweepRequest:
    """What a request asks about. words: of the plan, without those that vary."""

    asked: provenance.Asked
    words: Mapping[str, Any]

    @classmethod
    def of(cls, store: Store, asked: provenance.Asked, words: Mapping[str, Any]) -> "SweepRequest":
        """A request that names what it is about, checked:

        words: of the plan. UsageError for an unknown model or instance.
        """
        target, model, all_words = provenance.resolved(store, asked.target, asked.model, words)
        if target is not None and model is not None:
            find_wanted(store, target, model, all_words)  # raises UsageError for a target together with a model
        if isinstance(model, str) and model_names.find_card(model) is None and not _stored(store, model):
            raise model_names.unknown_model(model, store)
        if target is not None and lookup.find_with_graph(store, target) is None:
            find_wanted(store, target, None, {})  # raises UsageError for an unknown target
        return cls(replace(asked, target=target, model=model), all_words)

    def inputs(self, system: str | None = None) -> ProfileInputs:
        """The system and the blocking axes. system: another one than the request names."""
        asked = self.asked
        return profiling.inputs(system or asked.system, None, (), asked.blocking, asked.framework)

    def planned(self, store: Store, changes: Mapping[str, Any]) -> tuple[model_names.Source, Plan]:
        """The model and the plan with some words changed.

        changes: words of the plan with their new values. UsageError for words that are no plan of it.
        """
        asked = self.asked
        words = profiling.framework_words(asked.framework, asked.model, {**self.words, **changes})
        card = model_names.find_card(asked.model) if isinstance(asked.model, str) else asked.model
        if card is None:
            wanted = find_wanted(store, asked.target, asked.model, words)
            return wanted.source, wanted.plan
        source = model_names.card_source(card, words)
        return source, source.new_plan(words)


def _stored(store: Store, model: str) -> bool:
    """Whether the store has a graph with this id or name."""
    return lookup.find_graph(store, model) is not None or bool(lookup.graphs_of_model(store, model))


def sweep_on(
    store: Store, request: SweepRequest, vary: Vary, *, together: bool = False, progress: Watch | None = None
) -> Swept:
    """A sweep. Nothing is written. Raises UsageError for what cannot be varied, and for an unknown number of a system.

    together: all first values, then all second ones, and so on, in place of every combination. progress: called with
    each point that is tried.
    """
    began = time.perf_counter()
    variations = variations_of(vary)
    values = points(variations, together=together)
    systems = _systems(request, variations)
    report = progress or (lambda done, of, outcome: None)
    outcomes = _outcomes(store, request, values, systems, report)
    names = [each.name for each in variations]
    rows = tuple(
        (*(shown_value(value) for value in point.values()), *_figures(outcome))
        for point, outcome in zip(values, outcomes.of, strict=True)
    )
    asked = [part for each in variations for part in (OPTIONS.word(Word("vary")), _as_text(each))]
    asked += [OPTIONS.word(Word("together", True))] if together else []
    commands = provenance.commands_of("sweep", request.asked, request.words, asked)
    return Swept(
        model=outcomes.model,
        varied=tuple(names),
        rows=Rows((*names, *FIGURES), rows),
        verdict=_verdict(values, outcomes.of),
        seconds=time.perf_counter() - began,
        provenance=provenance.of_source(outcomes.source, None, list(systems.values()), commands),
    )


def variations_of(vary: Vary) -> list[Variation]:
    """What varies. Raises UsageError for what cannot be varied, and if nothing is."""
    if isinstance(vary, str):
        vary = [vary]
    found = (
        [variation(*each) for each in vary.items()] if isinstance(vary, Mapping) else list(map(read_variation, vary))
    )
    if not found:
        raise UsageError(f"nothing varies: name what does with {Word('vary', 'tp=1,2,4')}")
    return found


def gains_on(store: Store, request: SweepRequest, progress: Watch | None = None) -> Gains:
    """What a step gains by each number of its system. Nothing is written. progress: called with each number."""
    began = time.perf_counter()
    inputs = request.inputs()
    source, plan = request.planned(store, {})
    report = progress or (lambda done, of, outcome: None)
    trials = trials_of(store, source, inputs)
    found = sensitivity(trials, plan, lambda done, of: report(done, of, ""))
    commands = provenance.commands_of("sweep", request.asked, request.words, [OPTIONS.word(Word("sensitivity", True))])
    return Gains(
        model=source.origin.name,
        system=inputs.system.name,
        ranks=plan.world,
        step=found.step,
        peak=found.peak,
        room=found.room,
        rows=Rows(GAINS, tuple(_gain_row(each, found.step) for each in found.gains)),
        verdict=_purchase(found),
        seconds=time.perf_counter() - began,
        provenance=provenance.of_source(source, plan, [inputs.system], commands),
    )


@dataclass(frozen=True)
class _Outcomes:
    """The outcomes of the points of a sweep.

    of: in the order of the points. source: the graph of the first point that is a plan; None if none is. model: its
    name.
    """

    of: Sequence[PointOutcome | Refusal]
    source: model_names.Source | None
    model: str


def _outcomes(
    store: Store,
    request: SweepRequest,
    values: Sequence[Mapping[str, Any]],
    systems: Mapping[str | None, System],
    report: Watch,
) -> _Outcomes:
    prepared = _prepared(store, request, values, systems)
    found = {at: each for at, each in enumerate(prepared) if isinstance(each, Refusal)}
    # Points with the same plan follow each other, so that it is lowered once.
    plans: dict[str, int] = {}
    kept = {at: each for at, each in enumerate(prepared) if not isinstance(each, Refusal)}
    order = sorted(kept, key=lambda at: plans.setdefault(kept[at][1].plan.to_json(), len(plans)))
    source = kept[order[0]][0] if order else None
    outcomes: dict[int, PointOutcome | Refusal] = dict(found)
    report(len(outcomes), len(values), "")
    if source is not None:
        trials = trials_of(store, source, request.inputs())
        asked = [kept[at][1] for at in order]
        for place, outcome in sweep(trials, asked):
            outcomes[order[place]] = outcome
            report(len(outcomes), len(values), _in_words(asked[place].name, outcome))
    model = request.asked.model
    named = source.origin.name if source is not None else model.name if isinstance(model, Card) else str(model)
    return _Outcomes([outcomes[at] for at in range(len(values))], source, named)


def _prepared(
    store: Store,
    request: SweepRequest,
    values: Sequence[Mapping[str, Any]],
    systems: Mapping[str | None, System],
) -> list[tuple[model_names.Source, SweepPoint] | Refusal]:
    """The points, and why others are none."""
    plans: dict[str, tuple[model_names.Source, Plan] | Refusal] = {}
    changed: dict[str, System | Refusal] = {}
    found: list[tuple[model_names.Source, SweepPoint] | Refusal] = []
    for point in values:
        words = {name: value for name, value in point.items() if name != SYSTEM and not name.startswith(NUMBERS)}
        numbers = {name: value for name, value in point.items() if name not in words}
        base = systems[point.get(SYSTEM)]
        planned = _kept(plans, words, partial(request.planned, store, words))
        system = _kept(changed, numbers, partial(changed_system, base, numbers))
        if isinstance(planned, Refusal):
            found.append(planned)
        elif isinstance(system, Refusal):
            found.append(system)
        else:
            found.append((planned[0], SweepPoint(point_name(point), planned[1], system, base)))
    return found


def _kept(known: dict[str, T | Refusal], key: Mapping[str, Any], make: Callable[[], T]) -> T | Refusal:
    """The result of `make` for a key, computed once; a Refusal if it raises UsageError. known: the results so far."""
    text = repr(key)
    if text not in known:
        try:
            known[text] = make()
        except UsageError as error:
            known[text] = Refusal(error.message)
    return known[text]


def _systems(request: SweepRequest, variations: Sequence[Variation]) -> dict[str | None, System]:
    """The systems by the name that varies; None for that of the request. Each number is one of at least one of them."""
    named = next((each.values for each in variations if each.name == SYSTEM), (None,))
    found = {name: request.inputs(name).system for name in named}
    for each in variations:
        if each.path is not None:
            _check_number(list(found.values()), each.path)
    return found


def _check_number(systems: Sequence[System], path: str) -> None:
    errors = []
    for system in systems:
        try:
            find_number(system, path)
        except UsageError as error:
            errors.append(error)
    if len(errors) == len(systems):
        raise errors[0]


def trials_of(store: Store, source: model_names.Source, inputs: ProfileInputs) -> Trials:
    """The trials of a model's plans on a system. A graph without a card is read now: processes that try plans read no
    store.
    """
    stored = None if source.card is not None else graph_of(source, source.options, store)

    def of(options: GraphOptions) -> SymGraph:
        return stored if stored is not None and options == source.options else graph_of(source, options, None)

    return Trials(of, source.sizes, inputs.system, inputs.blocking)


def _figures(outcome: PointOutcome | Refusal) -> tuple[Any, ...]:
    if isinstance(outcome, Refusal):
        return (*(None for _ in FIGURES[:-1]), str(UsageError(outcome.message)))
    figures = (outcome.ranks, outcome.step, outcome.mfu, outcome.peak, outcome.fits, outcome.tokens)
    return (*figures, outcome.bound, outcome.share, None)


def _in_words(name: str, outcome: PointOutcome | Refusal) -> str:
    if isinstance(outcome, Refusal):
        return ""
    fits = "" if outcome.fits else ", does not fit"
    return f"{name}: {outcome.step / 1e6:,.3f} ms, {outcome.peak / GB:,.1f} GB{fits}"


def _as_text(each: Variation) -> str:
    texts = [shown_text(value) for value in each.values]
    return f"{each.name}={(';' if any(',' in text for text in texts) else ',').join(texts)}"


def _verdict(values: Sequence[Mapping[str, Any]], outcomes: Sequence[PointOutcome | Refusal]) -> str:
    """A sentence: the number of points, and the best of those that fit."""
    tried = [(at, each) for at, each in enumerate(outcomes) if isinstance(each, PointOutcome)]
    text = f"{len(outcomes):,} points"
    if len(tried) < len(outcomes):
        text += f", {len(outcomes) - len(tried):,} refused"
    fitting = [(at, each) for at, each in tried if each.fits]
    if len(fitting) < len(tried):
        text += f", {len(tried) - len(fitting):,} that do not fit"
    if not fitting:
        return f"{text}: none is a plan that fits"
    # Points may differ in ranks and tokens, so that tokens a second and accelerator decide, not the step.
    at, best = max(fitting, key=lambda pair: (pair[1].tokens or 0, -pair[0]))
    return (
        f"{text}; most tokens a second and accelerator has {point_name(values[at])}: {best.tokens or 0:,.0f}, with a "
        f"step of {best.step / 1e6:,.3f} ms"
    )


def _gain_row(each: NumberGain, step: int) -> tuple[Any, ...]:
    def share(other: int) -> float:
        return (step - other) / step if step else 0.0

    number = each.number
    value = shown_value(number.value)
    return (
        number.path,
        value,
        number.unit,
        each.elasticity,
        each.little,
        share(each.little),
        each.much,
        share(each.much),
    )


LEAST = 0.0005
"""Share of a step by which a number shortens it to be named: less is printed as 0.0 %."""


def _purchase(found: Sensitivity) -> str:
    """A sentence: the numbers of the system whose improvement shortens the step most."""
    text = ""
    if found.room is not None and found.peak > found.room:
        more = (found.peak - found.room) / GB
        text = (
            f"the plan does not fit: its fullest rank lacks {more:,.1f} GB, so look for one that does first "
            f"({call('advise')}); "
        )
    saved = [(each, (found.step - each.much) / found.step if found.step else 0.0) for each in found.gains]
    worth = [(each, share) for each, share in saved if share >= LEAST]
    if not worth:
        return f"{text}no number of the system that is 10 % better shortens the step by {LEAST:.2%}"
    first, *others = [(each.number.path, f"by {share:.1%}") for each, share in worth]
    after = "".join(f"; {path} {by}" for path, by in others[:2])
    return f"{text}what to buy first is {first[0]}: 10 % better, it shortens the step {first[1]}{after}"
