"""What a plan says about context parallelism: its habit, and checks with the nearest plan that would do."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagedb.errors import UsageError
from stagedb.parallel.nearest import either, nearest
from stagedb.parallel.options import GraphOptions
from stagedb.parallel.recipes import RECIPES
from stagedb.parallel.words import RANK_ORDER

if TYPE_CHECKING:
    from stagedb.parallel.plan import Plan


def with_habit(options: GraphOptions, cp: int, ulysses: int) -> GraphOptions:
    """The options with the recipe's kind of context parallelism, where there is some and none is said."""
    if cp == 1 or options.cp_kind != "none":
        return options
    return dataclasses.replace(options, cp_kind="ulysses-ring" if ulysses > 1 else RECIPES[options.recipe].cp_kind)


def check_context(plan: "Plan") -> None:
    """Raise UsageError where cp, or what goes with it, fits no model."""
    kind = plan.options.cp_kind
    if plan.cp == 1:
        if kind != "none":
            raise UsageError(
                f"{kind} with cp 1 has nobody to share a sequence with: take --cp 2 or more, or leave --cp-kind out"
            )
        if plan.options.cp_chunks != "none":
            raise UsageError("with cp 1 there is one part of a sequence: take --cp 2 or more, or leave --cp-chunks out")
    _check_ulysses(plan)
    if plan.cp == 1:
        return
    if not plan.options.cp_grad_sync and plan.ep == 1:
        return
    places = sorted(plan.rank_order.index(axis) for axis in ("cp", "dp") if axis in plan.rank_order)
    apart = len(places) == 2 and places[1] - places[0] > 1
    outer = plan.hsdp > 1 and len(places) == 2 and plan.rank_order.index("cp") > plan.rank_order.index("dp")
    if plan.dp > 1 and (apart or outer):
        raise UsageError(
            f"rank order {','.join(plan.rank_order)} {'parts cp from dp' if apart else 'puts cp outside of dp'}, "
            f"over which gradients are reduced together: take --rank-order {','.join(RANK_ORDER)}"
        )


def _check_ulysses(plan: "Plan") -> None:
    ring, near = plan.options.cp_kind == "ulysses-ring", plan.ulysses
    if not ring and near > 1:
        raise UsageError(
            f"--ulysses {near} says how many ranks exchange heads inside a ring: it needs --cp-kind ulysses-ring "
            f"and --cp {2 * near} or another multiple"
        )
    if ring and (near == 1 or near == plan.cp):
        raise UsageError(
            f"ulysses-ring with --ulysses {near} of cp {plan.cp} is "
            + (
                "a ring alone: take --ulysses 2 or more, or --cp-kind ring-p2p"
                if near == 1
                else "no ring: take fewer, or --cp-kind ulysses"
            )
        )
    if ring and plan.cp % near:
        valid = [n for n in nearest(near, plan.cp // 2, lambda n: plan.cp % n == 0) if n > 1]
        raise UsageError(
            f"--ulysses {near} does not divide cp {plan.cp}: "
            + (f"the nearest is {either('ulysses', valid)}" if valid else "take --cp-kind ring-p2p")
        )


def check_heads(plan: "Plan", sizes: Mapping[str, int]) -> None:
    """Raise UsageError where a model's heads cannot be dealt to the ranks that exchange them."""
    kind = plan.options.cp_kind
    if kind not in ("ulysses", "ulysses-ring"):
        return
    heads, kv_heads = sizes["A"] // plan.tp, sizes["KV"] // plan.tp
    inner = kind == "ulysses-ring"
    word, degree = ("ulysses", plan.ulysses) if inner else ("cp", plan.cp)

    def fits(over: int) -> bool:
        divides = not inner or (plan.cp % over == 0 and over < plan.cp)
        return heads % over == 0 and kv_heads % over == 0 and kv_heads > 0 and divides

    if not fits(degree):
        valid = [near for near in nearest(degree, heads, fits) if near > 1]
        near = f"the nearest is {either(word, valid)}, or" if valid else "take"
        raise UsageError(
            f"{kind} deals the {sizes['A']} attention heads and {sizes['KV']} key/value heads over tp {plan.tp} x "
            f"{word} {degree} = {plan.tp * degree}, which does not divide both: {near} "
            f"--cp-kind {'ring-p2p' if inner else 'allgather-kv'}"
        )


def check_sequence(plan: "Plan") -> None:
    """Raise UsageError where the sequence cannot be dealt to ranks of cp, and of tp under sp."""
    split = plan.options.sp and plan.tp > 1
    # Causal work is balanced by giving each rank two chunks.
    chunks = 2 if plan.options.cp_chunks == "balanced" else 1
    unit = chunks * plan.cp * (plan.tp if split else 1)
    if plan.seq_len % unit == 0:
        return
    below = plan.seq_len - plan.seq_len % unit
    valid = [length for length in (below, below + unit) if length]
    over = [f"cp {plan.cp}{' x 2 chunks' if chunks > 1 else ''}"] * (plan.cp > 1) + [
        f"tp {plan.tp}, over which sp splits it"
    ] * split
    raise UsageError(
        f"a sequence of {plan.seq_len} tokens is not divisible by {' x '.join(over)}: "
        f"take {either('seq_len', valid)}{', or --no-sp' if split else ''}"
    )
