"""The plans near a plan: one choice changed, on the same ranks and with the same global batch."""

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from stagedb.frameworks import FRAMEWORKS
from stagedb.plans import Dtypes, Plan
from stagedb.plans.aspects import FORMAT_WORDS, PLAN_WORDS
from stagedb.plans.schedule_checks import follows_from_chunks
from stagedb.schedules import SCHEDULES, bubble

Words = Mapping[str, Any]
"""Words of a plan that change. None: the word is left out, and has its default."""

NODE = 8
"""Accelerators of a node, in which ranks of tp are next to each other."""

PARTS = 8
"""Parts of a loss that is in one: the default of torchtitan and of torchtune."""


def neighbours(plan: Plan, sizes: Mapping[str, int]) -> tuple[Words, ...]:
    """The changes that lead to the plans near a plan. The checks of plans may refuse some of them.

    sizes: the model's symbols, such as H for the heads.
    """
    found: list[Words] = []
    for change in (*_structure(plan), *_batches(plan), *_stages(plan), *_degrees(plan, sizes)):
        if change not in found:
            found.append(change)
    return tuple(found)


def changed_words(plan: Plan, change: Words) -> dict[str, Any]:
    """All words of the plan with a change, with the global batch of the plan.

    Formats that are those of the plan's framework are left out, so that another framework has its own.
    """
    words = {**plan.to_dict(), "global_batch_size": plan.batch}
    if plan.dtypes == Dtypes.of(plan.options.recipe, plan.dtypes.act):
        words = {word: value for word, value in words.items() if word not in FORMAT_WORDS or word == "dtype"}
    return {word: value for word, value in {**words, **change}.items() if value is not None}


def _structure(plan: Plan) -> Iterator[Words]:
    """Changes of the graph: sequence parallelism, the framework, what dp shards, a loss in parts, what is computed
    again."""
    options = plan.options
    if plan.tp > 1:
        yield {"sp": not options.sp}
    for recipe in FRAMEWORKS:
        if recipe != options.recipe:
            yield {"recipe": recipe}
    for stage in PLAN_WORDS["zero"].choices:
        if stage != options.zero:
            freed = {word: None for word in ("reshard", "reshard_to") if getattr(options, word) is not None}
            units = (("expert_unit", options.expert_unit), ("fsdp_version", options.fsdp_version == 1))
            whole = {word: None for word, is_set in units if is_set and stage in (0, 1)}
            yield {"zero": stage, **freed, **whole}
    if options.framework.chunks_loss and plan.workflow.differentiates:
        yield {"loss_chunks": None if options.loss_chunks > 1 else PARTS}
    for kind in PLAN_WORDS["recompute"].choices:
        # The operators and modules to compute again are a choice of the user's.
        if kind not in (options.recompute, "operators", "modules"):
            which: dict[str, Any] = {}
            if kind == "none" and not plan.recomputes_all:
                which = {"recompute_every" if plan.recompute_first is None else "recompute_first": None}
            early = {"early_stop": None} if kind == "none" and options.early_stop is not None else {}
            yield {**recomputing(plan, kind), **which, **early}


def recomputing(plan: Plan, kind: str | int) -> dict[str, Any]:
    """The words that change a plan to another kind of recomputation. kind: a value of `recompute`."""
    named = ("recompute_operators", "recompute_modules")
    return {"recompute": kind, **{word: None for word in named if getattr(plan.options, word)}}


def _batches(plan: Plan) -> Iterator[Words]:
    yield {"micro_batch_size": 2 * plan.micro_batch_size}
    if plan.micro_batch_size % 2 == 0:
        yield {"micro_batch_size": plan.micro_batch_size // 2}


def _stages(plan: Plan) -> Iterator[Words]:
    """Changes of what the stages run: chunks of layers, and a schedule with less of a bubble."""
    if plan.pp == 1:
        return
    chunks = [2 * plan.virtual_stages]
    chunks += [plan.virtual_stages // 2] if plan.virtual_stages % 2 == 0 else []
    for number in chunks:
        follows = follows_from_chunks(plan.schedule) or (number > 1 and plan.virtual_stages == 1)
        yield {"virtual_stages": number, **({"schedule": None} if follows else {})}
    idle = bubble(plan.orders(), plan.placement)
    for each in SCHEDULES.values():
        suits = each.several_chunks == (plan.virtual_stages > 1) and each.chunks in (None, plan.virtual_stages)
        if not suits or each.misfit(plan.pp, plan.microbatches):
            continue
        if idle > bubble(each.orders(plan.pp, plan.microbatches, plan.virtual_stages), each.placement):
            without = {word: None for word in ("task_order", "chunk_placement") if getattr(plan, word)}
            yield {"schedule": each.name, **without}


def _degrees(plan: Plan, sizes: Mapping[str, int]) -> Iterator[Words]:
    """Two degrees, one doubled and the other halved; the degree of experts, and what hides their exchanges."""
    for more, less in permutations(("tp", "pp", "dp"), 2):
        if getattr(plan, less) % 2 == 0:
            change: dict[str, Any] = {more: 2 * getattr(plan, more), less: getattr(plan, less) // 2}
            if change.get("tp") == 1 and plan.options.sp:
                change["sp"] = False
            yield change
    if "E" in sizes:
        yield {"ep": 2 * plan.ep}
        if plan.ep % 2 == 0:
            yield {"ep": plan.ep // 2}
        yield from _dispatches(plan)
        if plan.overlap_experts:
            yield {"overlap_experts": None}
        elif plan.ep > 1 and plan.schedule in SCHEDULES and SCHEDULES[plan.schedule].has_pairs(plan.pp):
            yield {"overlap_experts": True}


def _dispatches(plan: Plan) -> Iterator[Words]:
    """Other ways to send tokens to experts: once for each choice, rank, or node of eight accelerators."""
    if plan.ep == 1 or plan.capacity_factor is not None:
        return
    near = NODE // (1 if plan.options.experts_over_tp else plan.tp)
    ways: dict[str, dict[str, Any]] = {"copies": {"dispatch_dtype": None}, "ranks": {}}
    if 1 < near < plan.ep and plan.ep % near == 0:
        ways["nodes"] = {}
    for dispatch, more in ways.items():
        if dispatch != plan.options.dispatch:
            nodes: dict[str, Any] = {"node_ranks": near} if dispatch == "nodes" else {}
            nodes |= {"node_ranks": None} if plan.node_ranks > 1 and dispatch != "nodes" else {}
            narrow = more if plan.options.dispatch_dtype != "same" else {}
            yield {"dispatch": None if dispatch == "copies" else dispatch, **nodes, **narrow}
