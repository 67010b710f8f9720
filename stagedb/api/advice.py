"""Advice on a plan: the model's graphs for the plans near it, and the answer as rows."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from stagedb.api import catalog, provenance
from stagedb.api.results import Advised, Rows
from stagedb.api.wanted_instances import Wanted, graph_of
from stagedb.files import GB
from stagedb.frameworks.profiles import find_profile
from stagedb.mentions import OPTIONS, Word
from stagedb.plans import Plan
from stagedb.plans.written_words import OPTION_WORDS
from stagedb.search.advising import LEAN, Advice, Change, advise
from stagedb.search.bounds import Bounds
from stagedb.search.commands import needed_words, profile_command, words_with
from stagedb.search.trials import Trials
from stagedb.store import Store
from stagedb.systems.system_files import DEFAULT
from stagedb.timing import ProfileInputs
from stagedb.timing.expected_errors import error_words

CHANGES = ("change", "step", "saving", "share", "peak", "fits", "command")
WHAT_IFS = ("what_if", "step", "saving", "share", "command")


Tried = Callable[[int, int, str], None]
"""Called with how many plans are tried, of how many, and what came out of the last one, in words."""


def advise_on(
    store: Store,
    wanted: Wanted,
    asked: provenance.Asked,
    words: Mapping[str, Any],
    inputs: ProfileInputs,
    progress: Tried | None = None,
) -> Advised:
    """Advice on an instance, which need not be in the store. Writes nothing. progress: called with each plan tried.

    asked, words: what the request names, and its words of the plan, for the command that makes the advice again.
    """
    began = time.perf_counter()
    report = progress or _unwatched
    source = wanted.source
    bounds = Bounds(lambda options: graph_of(source, options, store), source.sizes, inputs.system)
    trials = Trials(bounds.graph, source.sizes, inputs.system, inputs.blocking)
    found = advise(
        trials, wanted.plan, lambda done, of, change: report(done, of, _outcome(change)), partial(_least, bounds)
    )
    changes, what_ifs = _rows(found, _Commands(wanted, asked, inputs))
    return Advised(
        instance=wanted.there,
        model=wanted.model,
        system=inputs.system.name,
        plan=wanted.plan.to_dict(),
        ranks=wanted.plan.world,
        step=found.job.step,
        peak=found.peak,
        room=found.room,
        bound=found.bound.kind,
        bound_share=found.bound.share,
        verdict=_verdict(wanted, found),
        expected_error=error_words(inputs.system, found.job.workload),
        changes=changes,
        what_ifs=what_ifs,
        refused=found.refused,
        seconds=time.perf_counter() - began,
        provenance=provenance.of_source(
            wanted.source, wanted.plan, [inputs.system], provenance.commands_of("advise", asked, words)
        ),
        reserve=inputs.system.accelerator.reserved,
        remarks=found.job.remarks,
    )


def _rows(found: Advice, commands: "_Commands") -> tuple[Rows, Rows]:
    """The changes and the what-ifs as rows."""
    step = found.job.step
    changes = tuple(
        (
            each.name,
            each.outcome.step,
            each.saving,
            each.saving / step if step else 0.0,
            each.outcome.peak,
            each.fits,
            commands.of_change(each),
        )
        for each in found.changes
    )
    what_ifs = tuple(
        (each.name, each.step, step - each.step, (step - each.step) / step if step else 0.0, commands.of(each.options))
        for each in found.what_ifs
    )
    return Rows(CHANGES, changes), Rows(WHAT_IFS, what_ifs)


def _least(bounds: Bounds, plan: Plan) -> tuple[int, int]:
    """Lower bounds of a plan's step and peak."""
    plan.check(bounds.sizes)
    found = bounds.bound(plan, bounds.chunks(plan))
    return bounds.rehearsed(plan, found).step, found.peak


def _unwatched(done: int, of: int, outcome: str) -> None:
    """Progress that nobody watches."""


def _outcome(change: Change | None) -> str:
    """The step and the peak of a changed plan, as a text; empty for a change that is refused."""
    if change is None:
        return ""
    memory = f"{change.outcome.peak / GB:,.1f} GB"
    return f"{change.name}: {change.outcome.step / 1e6:,.3f} ms, {memory}{'' if change.fits else ', does not fit'}"


def _verdict(wanted: Wanted, found: Advice) -> str:
    """What bounds the step, and the best change, in a sentence."""
    bound, best = found.bound, found.best
    share = f"{bound.share:.0%} of the step"
    if bound.kind == "memory" and found.room is not None:
        share = f"the fullest rank holds {found.peak / GB:,.1f} GB of {found.room / GB:,.1f} GB for tensors"
    text = f"{wanted.model} on {wanted.plan.world:,} ranks is bound by {bound.words} ({share})"
    if best is None:
        return f"{text}; no change near it {'is faster' if found.fits else f'fits{_leanest(found)}'}"
    share_saved = abs(best.saving) / max(found.job.step, 1)
    longer = "shorter" if best.saving > 0 else "longer"
    return f"{text}; the best change is {best.name}: {share_saved:.1%} {longer}, and it fits"


def _leanest(found: Advice) -> str:
    """The change that needs the least memory, where none fits."""
    least = min(found.changes, key=lambda each: each.outcome.peak, default=None)
    text = f", alone or with one of the {LEAN} that hold least"
    if least is None or least.outcome.peak >= found.peak:
        return text
    return f"{text}; {least.name} holds least, {least.outcome.peak / GB:,.1f} GB"


class _Commands:
    """The commands that profile what was tried."""

    def __init__(self, wanted: Wanted, asked: provenance.Asked, inputs: ProfileInputs) -> None:
        self.wanted = wanted
        system = inputs.system.name
        self.options = [*(() if system == DEFAULT else (OPTIONS.word(Word("system")), system))]
        # A framework implies the axes that it waits for.
        self.options += [OPTIONS.word(Word("blocking")), ",".join(inputs.blocking)] if asked.blocking else []
        self.options += [OPTIONS.word(Word("framework")), asked.framework] if asked.framework else []
        self.profile = find_profile(asked.framework) if asked.framework else None
        self.model = asked.model if isinstance(asked.model, str) else wanted.model

    def _needed(self, words: Mapping[str, Any]) -> dict[str, Any]:
        """The words that a command gives of a plan of the model."""
        return needed_words(words) if self.profile is None else words_with(self.profile, words)

    def of_change(self, each: Change) -> str | None:
        """The command of a change: of the instance, if its graph remains, else of the model under all words."""
        there, plan = self.wanted.there, self.wanted.plan
        if there is not None and not each.change.keys() & OPTION_WORDS.keys():
            batch: Mapping[str, Any] = {} if plan.global_batch_size else {"global_batch_size": plan.batch}
            changed = {word: value for word, value in each.change.items() if value is not None}
            return profile_command([there.id[: catalog.SHORT_ID]], {**batch, **changed}, self.options)
        return profile_command([OPTIONS.word(Word("model")), self.model], self._needed(each.words), self.options)

    def of(self, options: tuple[str, ...]) -> str | None:
        """The command of a what-if; None for one that takes another system's file."""
        if not options:
            return None
        there = self.wanted.there
        if there is not None:
            return profile_command([there.id[: catalog.SHORT_ID]], {}, [*self.options, *options])
        words = {word: value for word, value in self.wanted.plan.to_dict().items() if value is not None}
        return profile_command(
            [OPTIONS.word(Word("model")), self.model], self._needed(words), [*self.options, *options]
        )
