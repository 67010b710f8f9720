"""The summary of a plan: the figures of a profile, what a run of it takes, and what it was compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.api import lookup, plan_lists, views
from stagedb.api.results import InstanceInfo, ProfileInfo
from stagedb.errors import UsageError
from stagedb.files import file_name, shown, write_whole
from stagedb.mentions import Word, call
from stagedb.plans import Plan
from stagedb.plans.request_batches import in_flight
from stagedb.reports.plan_summary import SHOWN, PlanPrices, PlanSummary, RivalPlan, SourceSearch
from stagedb.store import Store
from stagedb.store.contents.profiles import read_profile
from stagedb.timing.expected_errors import ExpectedError, expected_error, not_compared

DEGREES: Mapping[str, str] = {
    "tp": "{} ranks share each layer (tensor parallel)",
    "pp": "{} pipeline stages",
    "cp": "{} ranks share each sequence (context parallel)",
    "ep": "{} ranks share the experts (expert parallel)",
    "dp": "{} copies of the model (data parallel)",
}
"""The degrees of a plan in words."""

SHARDED: Mapping[int, str] = {
    1: "the optimizer's state is sharded over the copies (ZeRO 1)",
    2: "gradients and the optimizer's state are sharded over the copies (ZeRO 2)",
    3: "parameters, gradients and the optimizer's state are sharded over the copies (ZeRO 3)",
}
"""What each stage of ZeRO shards."""


@dataclass(frozen=True)
class SavedSummary:
    """A PDF with the summary of a plan. bytes: its size."""

    path: Path
    bytes: int
    summary: PlanSummary


def plan_summary(store: Store, word: str | None, prices: PlanPrices) -> PlanSummary:
    """The summary of a profile, or of an instance by its newest profile without scaled durations.

    word: id, start of an id, or name; None: the newest instance. Writes nothing. Raises UsageError for what is neither,
    and for an instance without a profile.
    """
    instance, profile = the_step(store, word)
    if profile is None:
        raise UsageError(
            f"instance {shown(instance.name)} has no profile: {call('profile', instance.id[:12])} makes one, with its "
            "step and its memory"
        )
    plan = Plan.from_mapping(instance.plan)
    error, no_error = _error(store, instance, profile)
    rivals = _rivals(store, instance, profile)
    own = (profile.tokens_per_second or 0.0) / profile.ranks
    return PlanSummary(
        name=profile.name or instance.name,
        model=instance.model,
        plan=in_words(instance.plan),
        system=profile.system,
        ranks=profile.ranks,
        instance=instance.id,
        profile=profile.id,
        step=profile.step,
        step_tokens=Fraction(plan.batch * plan.seq_len) if plan.tokens is None else plan.tokens,
        mfu=profile.mfu,
        memory=profile.memory,
        room=profile.room,
        prices=prices,
        error=error,
        no_error=no_error,
        rivals=rivals,
        faster=sum(each.fits is not False and each.tokens > own for each in rivals),
        searches=_searches(store, instance.id),
        made=" ".join(filter(None, (profile.created.replace("T", " ")[:16] + " UTC", _by(profile)))),
    )


def the_step(store: Store, word: str | None) -> tuple[InstanceInfo, ProfileInfo | None]:
    """An instance, and the profile that a word names, or the newest one of the instance; None if it has none."""
    named = None if word is None else lookup.find_profile(store, word)
    if named is not None and (word is None or lookup.find_instance(store, word) is None):
        return lookup.the_instance(store, named.instance), named
    instance = lookup.the_instance(store, word)
    own = [each for each in lookup.profiles_of(store, instance.id) if not each.scalings]
    # Times are in seconds, and profiles come newest first: `max` takes the first, and so the newest, of equal ones.
    return instance, max(own, key=lambda each: each.created, default=None)


def save_summary(
    store: Store, word: str | None, prices: PlanPrices, out: Path | str | None, force: bool
) -> SavedSummary:
    """Write a summary as a PDF. out: the file, `./NAME.pdf` if not given. force: replace a PDF of this name.

    word: the id or name of what it is about; None: the newest.
    """
    # Few commands write a PDF.
    from stagedb.reports.summary_pdf import pdf

    found = plan_summary(store, word, prices)
    path = views.place_of(f"{file_name(found.name)}-{found.ranks}", out, ".pdf", force)
    made = pdf(found)
    write_whole(path, made, str(Word("out")))
    return SavedSummary(path, len(made), found)


def in_words(plan: Mapping[str, Any]) -> str:
    """A plan for people who do not know its words: degrees, what is sharded, the batch, and the sequence."""
    parts = [
        text.format(f"{plan[word]:,}")
        for word, text in DEGREES.items()
        if isinstance(plan.get(word), int) and plan[word] > 1
    ]
    typed = Plan.from_mapping(plan)
    if plan.get("pp", 1) > 1:
        parts = [f"{each} ({typed.schedule})" if "pipeline" in each else each for each in parts]
    parts = parts or ["one rank has all of the model"]
    if sharded := SHARDED.get(typed.options.zero):
        parts.append(sharded)
    if typed.options.recompute != "none":
        parts.append(f"activations are computed again in the backward ({typed.options.recompute})")
    batch = f"{typed.batch:,} sequences of {typed.seq_len:,} {'token' if typed.seq_len == 1 else 'tokens'}"
    if typed.workflow.caches:
        requests = typed.request_batch
        if requests is not None:
            return "; ".join([*parts, f"{typed.workflow.name} on each rank of dp: {in_flight(requests)}"])
        batch = f"{typed.workflow.name}: {batch} behind {typed.cache_len:,} in the cache"
    return "; ".join([*parts, f"{batch} in a step, in micro-batches of {typed.micro_batch_size:,}"])


def _by(profile: ProfileInfo) -> str:
    return "" if profile.made_by is None else f"by {profile.made_by}"


def _error(store: Store, instance: InstanceInfo, profile: ProfileInfo) -> tuple[ExpectedError | None, str]:
    """The error to expect, or why none is known."""
    if profile.scalings:
        return None, f"a what-if, with durations scaled by {', '.join(profile.scalings)}: no published step is like it"
    if profile.measured_time:
        return None, f"{profile.measured_time:.0%} of the time was measured: the error is that of the measurement"
    if reason := not_compared(instance.plan["workflow"]):
        return None, reason
    graph = lookup.find_graph(store, instance.graph)
    inputs = read_profile(store, profile.id).inputs
    return expected_error(inputs.system, graph is not None and "E" in graph.sizes), ""


def _rivals(store: Store, instance: InstanceInfo, profile: ProfileInfo) -> tuple[RivalPlan, ...]:
    """The other profiles of the model and workflow on the system, without scaled durations; the most tokens a second
    first."""
    others = [
        (each.tokens, each)
        for each in plan_lists.plans(store, "profiles", {"workflow": instance.plan["workflow"]})
        if (each.model, each.system) == (instance.model, profile.system)
        and each.id != profile.id
        and not each.scaled
        and each.tokens is not None
    ]
    others.sort(key=lambda pair: (-pair[0], pair[1].id))
    return tuple(
        RivalPlan(
            id=each.id,
            name=each.name or each.id[:12],
            # The words of a plan take most of the time, and few are listed.
            plan=each.described(("ranks", "seq_len")) if place < SHOWN else "",
            ranks=each.ranks,
            step=each.step or 0,
            tokens=tokens,
            memory=each.memory,
            fits=each.fits,
        )
        for place, (tokens, each) in enumerate(others)
    )


def _searches(store: Store, instance: str) -> tuple[SourceSearch, ...]:
    return tuple(
        SourceSearch(row["id"], row["place"] + 1, row["size"], row["timed"], row["covered"], row["by"])
        for row in store.read_sound("lookup/searches_of", instance=instance)
    )
