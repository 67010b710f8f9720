"""Context parallelism in a plan: the framework's default, and checks that suggest the nearest valid plan."""

import dataclasses
from collections.abc import Mapping
from typing import cast

from stagedb.errors import TooLargeError
from stagedb.frameworks import FRAMEWORKS
from stagedb.mentions import Word
from stagedb.models.sizes import numbers_of_heads
from stagedb.plans.graph_options import DEALT_KEYS, RINGS, CpKind, GraphOptions
from stagedb.plans.nearest_plans import Misfit, Numbers, Way, multiples, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.written_words import RANK_ORDER
from stagedb.workflows import find_workflow

RING = Way({"cp_kind": "ring-p2p", "ulysses": 1}, f"{Word('cp_kind', 'ring-p2p')} without {Word('ulysses')}")
ALONE = Way({"cp": 1, "cp_kind": "none", "cp_chunks": "none", "ulysses": 1}, str(Word("cp", 1)))
MOST_TURNS = 400_000
"""Turns of all ranks of a ring in all layers, beyond which a plan is refused: each takes some 20 KB, and
each rank of a ring has turns of its own, as its part of the sequence has another mask."""

COPYING = tuple(Way({"recipe": name}) for name, each in FRAMEWORKS.items() if each.copies_heads)


SCANNED: Mapping[str, str] = {
    "SG": "groups of heads of the scan",
    "SI": "channels of the scan",
    "LG": "heads of keys of the delta rule",
    "KH": "heads of Kimi delta attention",
    "NH": "heads of lightning attention",
    "SC": "channels of the short convolution",
    "UB": "blocks of the gated recurrence",
}
"""What scans are divided into, by the symbol of its number: ranks of tp, and of Ulysses, have whole numbers of it."""

COMPRESSED: Mapping[str, str] = {
    "HR": "heavily compressed blocks of keys",
    "SR": "chosen blocks of compressed keys",
}
"""Keys that are made of a whole sequence, by the symbol of the tokens of a block."""


def with_default_kind(options: GraphOptions, cp: int, ulysses: int) -> GraphOptions:
    """The options with the framework's kind of context parallelism, if cp needs one and the options name none.

    cp: ranks that share a sequence. ulysses: how many neighbours of these exchange heads.
    """
    if cp == 1 or options.cp_kind != "none":
        return options
    usual = DEALT_KEYS if find_workflow(options.workflow).caches else cast(CpKind, options.framework.cp_kinds[0])
    return dataclasses.replace(options, cp_kind="ulysses-ring" if ulysses > 1 else usual)


def check_kind_given(words: Mapping[str, object], options: GraphOptions) -> None:
    """Raise UsageError for ranks that share a sequence with `none` as the way in which they compute attention.

    A plan that leaves the kind out gets the framework's. words: the typed words of the plan.
    """
    cp = words.get("cp", 1)
    if words.get("cp_kind") == "none" and isinstance(cp, int) and cp > 1:
        usual = with_default_kind(options, cp, cast(int, words.get("ulysses", 1))).cp_kind
        raise Misfit(
            f"cp {cp} has ranks that share a sequence, and {Word('cp_kind', 'none')} gives them no way to compute its "
            "attention",
            ways=[Way({"cp_kind": usual}), Way({"cp": 1}, f"leave {Word('cp')} out")],
        )


def check_context(plan: PlanFields) -> None:
    """Raise UsageError for a cp, or a word about cp, that would be wrong for every model."""
    kind = plan.options.cp_kind
    if plan.cp == 1:
        if kind != "none":
            alone = {"cp_kind": "none"}
            chunks = {**alone, "cp_chunks": "none"}
            raise Misfit(
                f"{kind} with cp 1 has no ranks that share a sequence",
                [Numbers("cp", range(2, 65))],
                [
                    (
                        Way(alone, f"leave {Word('cp_kind')} out"),
                        Way(chunks, f"leave {Word('cp_kind')} and {Word('cp_chunks')} out"),
                        Way(
                            {**chunks, "ulysses": 1},
                            f"leave {Word('cp_kind')}, {Word('cp_chunks')} and {Word('ulysses')} out",
                        ),
                    )
                ],
                lead="take",
            )
        if plan.options.cp_chunks != "none":
            raise Misfit(
                "with cp 1 a sequence has one part",
                [Numbers("cp", range(2, 65))],
                [Way({"cp_chunks": "none"}, f"leave {Word('cp_chunks')} out")],
                lead="take",
            )
    _check_ulysses(plan)
    if plan.cp == 1:
        return
    if plan.ep == 1 and (not plan.options.cp_grad_sync or kind == DEALT_KEYS):
        return
    places = sorted(plan.rank_order.index(axis) for axis in ("cp", "dp") if axis in plan.rank_order)
    apart = len(places) == 2 and places[1] - places[0] > 1
    outer = plan.hsdp > 1 and len(places) == 2 and plan.rank_order.index("cp") > plan.rank_order.index("dp")
    if plan.dp > 1 and (apart or outer):
        raise Misfit(
            f"rank order {','.join(plan.rank_order)} {'separates cp from dp' if apart else 'puts cp outside of dp'}, "
            "but gradients are reduced over both together",
            ways=[Way({"rank_order": RANK_ORDER})],
        )


def _check_ulysses(plan: PlanFields) -> None:
    ring, near = plan.options.cp_kind == "ulysses-ring", plan.ulysses
    if not ring and near > 1:
        raise Misfit(
            f"{Word('ulysses', near)} is the number of ranks that exchange heads inside a ring: it needs "
            f"{Word('cp_kind', 'ulysses-ring')} and a multiple of that number of ranks",
            ([Way({"cp_kind": "ulysses-ring", "cp": cp})] for cp in (2 * near,)),
            [Way({"ulysses": 1}, f"leave {Word('ulysses')} out")],
            lead="take",
        )
    if ring and (near == 1 or near == plan.cp):
        raise Misfit(
            f"ulysses-ring with {Word('ulysses', near)} of cp {plan.cp} is {'only a ring' if near == 1 else 'no ring'}",
            nearest("ulysses", near, plan.cp // 2, lambda n: plan.cp % n == 0, least=2),
            [
                RING
                if near == 1
                else Way(
                    {"cp_kind": "ulysses", "ulysses": 1}, f"{Word('cp_kind', 'ulysses')} without {Word('ulysses')}"
                )
            ],
            lead="take",
        )
    if ring and plan.cp % near:
        raise Misfit(
            f"{Word('ulysses', near)} does not divide cp {plan.cp}",
            nearest("ulysses", near, plan.cp // 2, lambda n: plan.cp % n == 0, least=2),
            [RING],
        )


def check_heads(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError if the ranks that exchange a model's heads cannot share them equally.

    Key/value heads may be fewer than the ranks of Ulysses, in frameworks that send copies: equally many of each head.
    sizes: the model's symbols, such as H for the heads.
    """
    kind = plan.options.cp_kind
    if kind not in ("ulysses", "ulysses-ring"):
        return
    numbers = [*numbers_of_heads(sizes)]
    inner = kind == "ulysses-ring"
    copies = plan.options.framework.copies_heads and not inner
    word, degree = ("ulysses", plan.ulysses) if inner else ("cp", plan.cp)

    def shares(heads: int, over: int) -> bool:
        return heads // plan.tp % over == 0 and heads >= plan.tp

    def shares_keys(kv_heads: int, own: bool, over: int) -> bool:
        # Key/value heads may be fewer than the ranks: each is then copied to several. Layers with a number of heads of
        # their own have no copies.
        return shares(kv_heads, over) or (copies and not own and over % max(kv_heads // plan.tp, 1) == 0)

    def suits(heads: int, kv_heads: int, own: bool, over: int) -> bool:
        return shares(heads, over) and shares_keys(kv_heads, own, over)

    def fits(over: int) -> bool:
        divides = not inner or (plan.cp % over == 0 and over < plan.cp)
        return divides and all(suits(*each, over) for each in numbers)

    if not fits(degree):
        heads, kv_heads, own = next((each for each in numbers if not suits(*each, degree)), numbers[0])
        other = ALONE if _of_whole_sequences(sizes) else Way({"cp_kind": "allgather-kv"})
        uneven = copies and not own and shares(heads, degree)
        reason = (
            f"which neither divides nor is a multiple of the {kv_heads}" if uneven else "which does not divide both"
        )
        raise Misfit(
            f"{kind} spreads the {heads} attention heads and {kv_heads} key/value heads over tp {plan.tp} x "
            f"{word} {degree} = {plan.tp * degree}, {reason}",
            nearest(word, degree, heads // plan.tp, fits, least=2),
            [RING if inner else other, *([] if copies or inner else [COPYING])],
        )


def _of_whole_sequences(sizes: Mapping[str, int]) -> list[str]:
    """What of a model reads whole sequences, so that ranks of cp have to exchange parts of these for heads."""
    return [about for symbol, about in {**SCANNED, **COMPRESSED}.items() if symbol in sizes]


def check_whole_groups(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError if ranks of cp do not exchange heads where a scan or compressed keys need it, or cannot share
    a scan's equally.

    sizes: the model's symbols, such as SG for the groups of heads of a scan.
    """
    numbers = {symbol: sizes[symbol] for symbol in SCANNED if symbol in sizes}

    def fits(cp: int) -> bool:
        return all(number % (plan.tp * cp) == 0 for number in numbers.values())

    kind = plan.options.cp_kind
    exchange = Way({"cp_kind": "ulysses", "cp_chunks": "none", "ulysses": 1}, str(Word("cp_kind", "ulysses")))
    whole = _of_whole_sequences(sizes)
    if whole and kind not in ("none", "ulysses", DEALT_KEYS):
        why = "pass values from token to token" if numbers else "are made of the whole sequence"
        raise Misfit(
            f"{kind} with {whole[0]}, which {why}, so that ranks of cp exchange parts of the sequence for some "
            f"{'of them' if numbers else 'heads'}",
            ways=[exchange, ALONE],
        )
    if kind == "ulysses" and not fits(plan.cp):
        symbol, number = next(each for each in numbers.items() if each[1] % (plan.tp * plan.cp))
        raise Misfit(
            f"ulysses spreads the {number} {SCANNED[symbol]} over tp {plan.tp} x cp {plan.cp} = {plan.tp * plan.cp}, "
            "which does not divide them",
            nearest("cp", plan.cp, number // plan.tp, fits, least=2),
            [ALONE],
        )


class _LongRing(Misfit, TooLargeError):
    """A ring whose programs do not fit into memory, and ways out."""


def check_turns(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise TooLargeError for a ring of so many ranks that their programs would not fit into a machine's memory.

    sizes: the model's symbols, such as L for its layers.
    """
    turns, layers = plan.cp // plan.ulysses, sizes["L"]

    def fits(cp: int) -> bool:
        return plan.cp % cp == 0 and cp % plan.ulysses == 0 and (cp // plan.ulysses) ** 2 * layers <= MOST_TURNS

    if plan.options.cp_kind in RINGS and not fits(plan.cp):
        raise _LongRing(
            f"a ring of {turns} ranks has {turns} turns on each of them in {layers} layers, {turns**2 * layers:,} in "
            f"all, and stagedb keeps at most {MOST_TURNS:,}",
            [Numbers("cp", range(plan.cp - 1, 1, -1), fits)],
            [Way({"cp_kind": "allgather-kv", "ulysses": 1}, f"{Word('cp_kind', 'allgather-kv')}")],
        )


def check_sequence(plan: PlanFields) -> None:
    """Raise UsageError if the ranks of cp, and of tp under sp, cannot share the sequence equally."""
    split = plan.options.sp and plan.tp > 1
    # Each rank has two chunks, so that causal work is balanced.
    chunks = 2 if plan.options.cp_chunks == "balanced" else 1
    # Ranks that share a cache have the same new positions.
    ranks = 1 if plan.options.cp_kind == DEALT_KEYS else plan.cp
    unit = chunks * ranks * (plan.tp if split else 1)
    if plan.seq_len % unit == 0:
        return
    over = [f"cp {plan.cp}{' x 2 chunks' if chunks > 1 else ''}"] * (ranks > 1) + [
        f"tp {plan.tp}, over which sp splits it"
    ] * split
    raise Misfit(
        f"a sequence of {plan.seq_len} tokens is not divisible by {' x '.join(over)}",
        multiples("seq_len", plan.seq_len, unit),
        [Way({"sp": False})] if split else [],
        lead="take",
    )
