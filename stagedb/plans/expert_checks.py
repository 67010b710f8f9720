"""Experts in a plan: checks that suggest the nearest valid plan, and the values of the experts' symbols."""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import gcd

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.plans.aspects.degrees import RANK_ORDER
from stagedb.plans.nearest_plans import Change, Misfit, Way, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.token_copies import COPY_SYMBOLS, copy_symbols, histogram, of_sizes, placed_loads

# Tokens that are sent once for each rank or node: checks of a plan's `dispatch`, `node_ranks` and `routing`.

MOST_CHOICES = 2**16
"""Choices of a routing. It is stored with the plan."""

WITHOUT_TABLE = Way({"routing": ()}, f"leave {Word('routing')} out")


def check_dispatch(plan: PlanFields) -> None:
    """Raise UsageError for a dispatch of tokens to experts, or a routing, that suits no model.

    plan: with the words `dispatch`, `dispatch_dtype`, `node_ranks` and `routing`.
    """
    if plan.options.dispatch != "copies":
        _check_sent_once(plan)
    else:
        if plan.node_ranks > 1:
            _refuse_nodes(plan)
        if plan.options.dispatch_dtype != "same":
            raise Misfit(
                f"{Word('dispatch_dtype', plan.options.dispatch_dtype)} is for tokens that are sent once for each "
                f"rank or node, and {Word('dispatch')} is copies",
                ways=[
                    Way({"dispatch": "ranks"}),
                    Way({"dispatch_dtype": "same"}, f"leave {Word('dispatch_dtype')} out"),
                ],
            )
    if plan.routing:
        _check_alone(plan)
        for token in range(len(plan.routing)):
            row_of(plan, token)
        choices = sum(len(row.split()) for row in plan.routing)
        if choices > MOST_CHOICES:
            raise UsageError(
                f"the routing has {choices} choices: {Word('routing')} takes at most {MOST_CHOICES}, which the tokens "
                "of a rank repeat"
            )


def _copies(plan: PlanFields) -> Way:
    """A token for each expert, without the words that are about other tokens."""
    held = {"node_ranks": (plan.node_ranks, 1), "dispatch_dtype": (plan.options.dispatch_dtype, "same")}
    others = {word: default for word, (value, default) in held.items() if value != default}
    dropped = [str(Word(word)) for word in others]
    return _without({"dispatch": "copies", **others}, str(Word("dispatch", "copies")), dropped)


def _ranks(plan: PlanFields) -> Way:
    """A token for each rank, without ranks of nodes."""
    dropped = [str(Word("node_ranks"))] if plan.node_ranks > 1 else []
    return _without({"dispatch": "ranks", "node_ranks": 1}, str(Word("dispatch", "ranks")), dropped)


def _without(change: Change, taken: str, dropped: list[str]) -> Way:
    return Way(change, f"{taken} without {' and '.join(dropped)}" if dropped else taken)


def _refuse_nodes(plan: PlanFields) -> None:
    raise Misfit(
        f"{Word('node_ranks', plan.node_ranks)} is for tokens that are sent once for each node, and "
        f"{Word('dispatch')} is {plan.options.dispatch}",
        ways=[
            Way({"dispatch": "nodes"}, str(Word("dispatch", "nodes"))),
            Way({"node_ranks": 1}, f"leave {Word('node_ranks')} out"),
        ],
    )


def _check_sent_once(plan: PlanFields) -> None:
    word = str(Word("dispatch", plan.options.dispatch))
    if plan.ep == 1:
        near = nearest("ep", 1, plan.expert_ranks, lambda ep: plan.expert_ranks % ep == 0)
        raise Misfit(
            f"{word} sends tokens to other ranks, and with ep 1 each rank has all experts", near, [_copies(plan)]
        )
    if plan.capacity_factor is not None:
        raise Misfit(
            f"{word} sends all of a token's choices, and with a capacity factor some are dropped",
            ways=[Way({"capacity_factor": None}, f"leave {Word('capacity_factor')} out"), _copies(plan)],
        )
    if plan.options.dispatch != "nodes":
        if plan.node_ranks > 1:
            _refuse_nodes(plan)
        return
    if plan.ep % plan.node_ranks or plan.node_ranks in (1, plan.ep):
        raise Misfit(
            f"ep {plan.ep} is not several nodes of several ranks with {Word('node_ranks', plan.node_ranks)}",
            nearest(
                "node_ranks", plan.node_ranks, plan.ep, lambda near: plan.ep % near == 0 and near not in (1, plan.ep)
            ),
            [_ranks(plan)],
        )


def _check_alone(plan: PlanFields) -> None:
    if plan.expert_load:
        raise Misfit(
            f"{Word('routing')} names the experts of each token, and {Word('expert_load')} how many choices each "
            "expert gets",
            ways=[WITHOUT_TABLE, Way({"expert_load": ()}, f"leave {Word('expert_load')} out")],
        )
    if plan.capacity_factor is not None:
        raise Misfit(
            f"with a capacity factor every expert computes the same number of slots, so that {Word('routing')} "
            "changes nothing that is counted or sent",
            ways=[Way({"capacity_factor": None}, f"leave {Word('capacity_factor')} out"), WITHOUT_TABLE],
        )


def row_of(plan: PlanFields, token: int) -> tuple[int, ...]:
    """The experts of a token of the routing. UsageError for a row that is no list of different experts."""
    numbers = plan.routing[token].split()
    if not numbers or not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in numbers):
        raise UsageError(
            f"token {token} of {Word('routing')} is {shown(plan.routing[token])}: it takes the numbers of experts, "
            "such as 3 1"
        )
    row = tuple(map(int, numbers))
    if len(set(row)) < len(row):
        again = next(expert for expert in row if row.count(expert) > 1)
        raise UsageError(f"token {token} of {Word('routing')} chooses expert {again} twice: a token's experts differ")
    return row


def table(plan: PlanFields) -> tuple[int, ...]:
    """The experts of all tokens of the routing in a row; empty without one."""
    return tuple(expert for token in range(len(plan.routing)) for expert in row_of(plan, token))


def settled_routing(plan: PlanFields) -> tuple[str, ...]:
    """The routing in the one form of its meaning: neither the order of tokens nor that of a token's experts matters,
    and a table that repeats itself is as good as one of its parts. UsageError for a row that is none."""
    rows = Counter(tuple(sorted(row_of(plan, token))) for token in range(len(plan.routing)))
    common = gcd(*rows.values())
    return tuple(" ".join(map(str, row)) for row in sorted(rows) for _ in range(rows[row] // common))


def check_routing(plan: PlanFields, sizes: Mapping[str, int], tokens: int) -> None:
    """Raise UsageError if a routing is not one of a model of these sizes, or of a rank's `tokens`."""
    if not plan.routing:
        return
    for token in range(len(plan.routing)):
        row = row_of(plan, token)
        if len(row) != sizes["K"]:
            raise UsageError(
                f"token {token} of {Word('routing')} has {len(row)} experts: a token of this model chooses {sizes['K']}"
            )
        if max(row) >= sizes["E"]:
            raise UsageError(
                f"token {token} of {Word('routing')} chooses expert {max(row)}: the model has experts 0 to "
                f"{sizes['E'] - 1}"
            )
        each, most = sizes["E"] // sizes.get("EG", 1), sizes.get("EC", 1)
        groups = {expert // each for expert in row}
        if len(groups) > most:
            raise UsageError(
                f"token {token} of {Word('routing')} chooses experts of {len(groups)} groups: a token of this model "
                f"chooses from {most} of {sizes['EG']} groups"
            )
    if tokens % len(plan.routing):
        raise Misfit(
            f"{Word('routing')} has {len(plan.routing)} tokens, which do not divide the {tokens} tokens of a rank in "
            "a micro-batch, so that they cannot repeat them",
            ways=[WITHOUT_TABLE],
        )


def check_expert_parallelism(plan: PlanFields) -> None:
    """Raise UsageError if ep, or a word that belongs to it, suits no model."""
    if plan.capacity_factor is not None and not 0 < plan.capacity_factor < float("inf"):
        raise UsageError(f"capacity_factor is {plan.capacity_factor}: {Word('capacity_factor')} takes a number above 0")
    if plan.expert_load:
        _check_load(plan)
    check_dispatch(plan)
    over_tp = plan.tp > 1 and not plan.options.expert_tp
    if over_tp:
        _check_over_tp(plan)
    if not plan.options.ep_sync:
        _check_apart(plan)
    ranks = plan.expert_ranks
    if ranks % plan.ep:
        raise Misfit(
            f"ep {plan.ep} does not divide dp x cp {'x tp ' if over_tp else ''}= {ranks}, the ranks with experts",
            nearest("ep", plan.ep, ranks, lambda ep: ranks % ep == 0),
            [Way({"sp": True})] if plan.tp > 1 and not plan.options.expert_tp and not over_tp else [],
        )
    if plan.hsdp > 1 and (plan.ep > 1 or over_tp):
        _check_copies(plan, over_tp)


WITH_TP = Way({"expert_tp": True}, f"leave {Word('expert_tp', False)} out")


def _check_copies(plan: PlanFields, over_tp: bool) -> None:
    """Raise UsageError if a copy of what is sharded would not have each expert on as many ranks as the others."""
    without = Way({"hsdp": 1}, f"leave {Word('hsdp')} out")
    if plan.dp % plan.hsdp:
        return  # `check_sharding` refuses such a plan
    ranks = plan.expert_ranks // plan.hsdp
    if ranks % plan.ep:
        raise Misfit(
            f"ep {plan.ep} does not divide the {plan.expert_ranks} ranks with experts / hsdp {plan.hsdp} = {ranks}, so "
            "that no copy has each expert equally often",
            nearest("ep", plan.ep, ranks, lambda ep: ranks % ep == 0),
            [without],
        )
    inside = [axis for axis in plan.expert_axes if axis != "dp" and getattr(plan, axis) > 1]
    if any(plan.rank_order.index(axis) > plan.rank_order.index("dp") for axis in inside):
        raise Misfit(
            f"rank order {','.join(plan.rank_order)} puts dp inside of {' and '.join(inside)}, so that a copy's ranks "
            "with experts are not next to each other",
            ways=[Way({"rank_order": RANK_ORDER}), without, *([WITH_TP] if over_tp else [])],
        )


def _check_over_tp(plan: PlanFields) -> None:
    """Raise UsageError if the ranks that share experts are not next to each other."""
    places = [plan.rank_order.index(axis) for axis in ("tp", "cp", "dp") if getattr(plan, axis) > 1]
    if plan.pp > 1 and min(places) < plan.rank_order.index("pp") < max(places):
        raise Misfit(
            f"rank order {','.join(plan.rank_order)} puts pp among tp, cp and dp, but with {Word('expert_tp', False)} "
            "their ranks hold experts together",
            ways=[Way({"rank_order": RANK_ORDER}), WITH_TP],
        )


def _check_same_tokens(plan: PlanFields) -> None:
    """Raise UsageError for ranks of tp with the same tokens that cannot have whole experts of their own."""
    own = Way({"sp": True})
    if plan.workflow.differentiates:
        raise Misfit(
            f"{Word('expert_tp', False)} gives whole experts to each of tp {plan.tp} ranks, which without sp have the "
            f"same tokens, as no step of {plan.workflow.name} does",
            ways=[own, WITH_TP],
        )
    if plan.options.dispatch != "copies":
        raise Misfit(
            f"without sp each of tp {plan.tp} ranks sends a token to its own experts alone, which "
            f"{Word('dispatch', plan.options.dispatch)} does not",
            ways=[Way({"dispatch": "copies"}), own],
        )
    if plan.ep % plan.tp:
        ranks = plan.expert_ranks
        raise Misfit(
            f"without sp tp {plan.tp} ranks have the same tokens, of which each computes those of its own experts, and "
            f"ep {plan.ep} ranks with different experts are no multiple of them",
            nearest("ep", plan.ep, ranks, lambda ep: ranks % ep == 0 and ep % plan.tp == 0),
            [own, WITH_TP],
        )
    outside = [axis for axis in ("cp", "dp") if getattr(plan, axis) > 1]
    if any(plan.rank_order.index(axis) < plan.rank_order.index("tp") for axis in outside):
        raise Misfit(
            f"rank order {','.join(plan.rank_order)} puts {' and '.join(outside)} inside of tp, whose ranks have the "
            "same tokens and different experts",
            ways=[Way({"rank_order": RANK_ORDER}), WITH_TP],
        )


def _check_copied(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for copies of experts that tokens would not be spread over as stagedb counts them."""
    copies = plan.options.redundant_experts
    without = Way({"redundant_experts": 0}, f"leave {Word('redundant_experts')} out")
    if plan.ep == 1:
        near = nearest("ep", 1, plan.expert_ranks, lambda ep: ep > 1 and plan.expert_ranks % ep == 0)
        raise Misfit(
            "with ep 1 each rank has all experts, so that a copy of one takes no work off another", near, [without]
        )
    refused: dict[str, tuple[bool, Way]] = {
        str(Word("dispatch", plan.options.dispatch)): (plan.options.dispatch != "copies", Way({"dispatch": "copies"})),
        str(Word("routing")): (bool(plan.routing), Way({"routing": ()}, f"leave {Word('routing')} out")),
        str(Word("capacity_factor", plan.capacity_factor)): (
            plan.capacity_factor is not None,
            Way({"capacity_factor": None}, f"leave {Word('capacity_factor')} out"),
        ),
    }
    for word, (given, way) in refused.items():
        if given:
            raise Misfit(
                f"copies of experts share the choices of each one evenly, which is not built with {word}",
                ways=[way, without],
            )
    if (sizes["E"] + copies) % plan.ep:
        experts = sizes["E"]
        raise Misfit(
            f"ep {plan.ep} does not divide the {experts} experts and their {copies} copies",
            nearest("redundant_experts", copies, experts, lambda more: (experts + more) % plan.ep == 0),
            [without],
        )


def _check_apart(plan: PlanFields) -> None:
    """Raise UsageError if the reductions that go over ep cannot be separated from others."""
    synced = Way({"ep_sync": True}, f"leave {Word('ep_sync', False)} out")
    if plan.ep == 1:
        near = nearest("ep", 1, plan.expert_ranks, lambda ep: True)
        raise Misfit("with ep 1 nothing is reduced over ep", near, [synced], lead="take")
    if plan.cp > 1 and not plan.options.cp_grad_sync:
        raise Misfit(
            f"ranks of ep are among those of cp, so that {Word('ep_sync', False)} and {Word('cp_grad_sync', False)} "
            "leave out the same",
            ways=[synced, Way({"cp_grad_sync": True}, f"leave {Word('cp_grad_sync', False)} out")],
        )
    if plan.tp > 1 and plan.options.experts_over_tp:
        raise Misfit(
            f"with {Word('expert_tp', False)} ranks of ep are among those of tp, which have other reductions",
            ways=[synced, WITH_TP],
        )


def check_experts(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError if a model of these sizes cannot run its experts under a plan."""
    if "E" not in sizes:
        _check_no_experts(plan)
        return
    if plan.tp > 1 and not plan.options.expert_tp and not plan.options.sp:
        _check_same_tokens(plan)
    experts, ranks = held_experts(plan, sizes), plan.expert_ranks
    if plan.options.redundant_experts:
        _check_copied(plan, sizes)
    if experts % plan.ep:
        raise Misfit(
            f"ep {plan.ep} does not divide the {experts} experts",
            nearest("ep", plan.ep, experts, lambda ep: experts % ep == 0 and ranks % ep == 0),
        )
    _check_columns(plan, sizes)
    unknown = next((why for symbol, why in _EXCHANGES.items() if symbol in sizes), None)
    if unknown and plan.overlap_experts:
        raise Misfit(
            f"layers have {unknown}, and the order of two tasks in turns ({Word('overlap_experts', True)}) is known "
            "for layers with one attention and then one exchange",
            ways=[Way({"overlap_experts": False}, f"leave {Word('overlap_experts', True)} out")],
        )
    if "ZE" in sizes:
        _check_zero_experts(plan)
    if plan.expert_load:
        _check_load_of(plan, sizes, routed(plan, sizes))
    check_routing(plan, sizes, int(routed(plan, sizes)) // sizes["K"])


_EXCHANGES: Mapping[str, str] = {
    "LH": "2 attentions next to one exchange of tokens",
    "QH": "exchanges of tokens before and after their attention",
}
"""What layers have that no order is known for, by the symbol of a size that they alone have."""


def _check_zero_experts(plan: PlanFields) -> None:
    """Raise UsageError for words whose counts need how many experts each token is sent to, if some experts are zero."""
    for word, given, left in (
        ("capacity_factor", plan.capacity_factor is not None, None),
        ("routing", bool(plan.routing), ()),
    ):
        if given:
            raise Misfit(
                f"the model has zero experts, so that the number of experts that a token is sent to differs from token "
                f"to token, and {Word(word)} is for the same number of each",
                ways=[Way({word: left}, f"leave {Word(word)} out")],
            )


def expert_parts(plan: PlanFields, sizes: Mapping[str, int]) -> dict[str, int]:
    """The symbols `kept` and `cuts`: a rank has parts of `kept` experts, each of which is cut into `cuts` parts.

    Ranks that share experts have whole ones, or parts cut along the second axis if the ranks are more than the experts.
    sizes: those of the model; nothing is returned for one without experts.
    """
    if "E" not in sizes:
        return {}
    shards, own = plan.edp // plan.hsdp, held_experts(plan, sizes) // plan.ep
    divided = plan.ep * (plan.tp if plan.options.experts_over_tp else 1) > 1
    if divided and plan.options.framework.cuts_columns and shards > own:
        return {"kept": own, "cuts": shards}
    return {"kept": -(-own // shards), "cuts": 1}


def _check_columns(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError if experts whose second axis is cut do not divide among the ranks that share them."""
    own, shards = expert_parts(plan, sizes).values()
    if plan.options.zero < 2 or shards == 1:
        return
    framework = plan.options.framework
    for name, size in (("hidden size", sizes["H"]), ("experts' width", sizes["FE"])):
        if size % shards:
            raise Misfit(
                f"{shards} ranks share {own} of the experts, so that {framework.title} cuts matrices of experts along "
                f"their second axis, and the {name} {size} does not divide by {shards}",
                nearest("dp", plan.dp, sizes["E"] * plan.dp, lambda dp: dp % plan.ep == 0 and dp // plan.ep <= own),
                [Way({"zero": 1}, str(Word("zero", 1)))],
            )


def routed(plan: PlanFields, sizes: Mapping[str, int]) -> Fraction:
    """The choices of experts that a rank's tokens make in one micro-batch.

    sizes: those of the model. The number is no integer where ranks have parts of a token's choices.
    """
    split = plan.cp * (plan.tp if plan.options.sp and not plan.options.routes_whole else 1)
    return Fraction(plan.micro_batch_size * plan.seq_len * sizes["K"], split)


def _check_no_experts(plan: PlanFields) -> None:
    """Raise UsageError if a plan for a model without experts has words that are about experts."""
    held = {**vars(plan), **vars(plan.options)}
    of_experts = [word for word in PLAN_WORDS.values() if word.name == "ep" or word.aspect == "experts"]
    given = [word for word in of_experts if held[word.field] != word.default]
    if given:
        words = " and ".join(str(word.switch(held[word.field])) for word in given)
        raise Misfit(
            f"{words} {'is' if len(given) == 1 else 'are'} for a model with experts, and this one has none",
            ways=[Way({word.name: word.default for word in given}, f"leave {words} out")],
        )


def _check_load(plan: PlanFields) -> None:
    """Raise UsageError for a load that no model can have."""
    if plan.capacity_factor is not None:
        raise Misfit(
            "with a capacity factor every expert computes the same number of slots, filled or empty, so that a load "
            "changes nothing that is counted or sent",
            ways=[
                Way({"capacity_factor": None}, f"leave {Word('capacity_factor')} out"),
                Way({"expert_load": ()}, f"leave {Word('expert_load')} out"),
            ],
        )
    if min(plan.expert_load) < 0 or not any(plan.expert_load):
        raise UsageError(
            f"the load of experts is {_some(plan.expert_load)}: {Word('expert_load')} takes a number of choices for "
            "each expert, none below 0, not all 0"
        )


def _check_load_of(plan: PlanFields, sizes: Mapping[str, int], own: Fraction) -> None:
    """Raise UsageError if a load does not suit a model's experts, or the `own` routed tokens of a rank."""
    load, experts, choices, total = plan.expert_load, sizes["E"], sizes["K"], sum(plan.expert_load)
    if len(load) != experts:
        raise UsageError(
            f"{Word('expert_load')} has values for {len(load)} experts, the model has {experts}: give it {experts} "
            "whole numbers, one for each expert (0 for an expert without tokens), or leave it out"
        )
    if max(load) * choices > total:
        raise UsageError(
            f"{Word('expert_load')} sends {max(load)} of {total} choices to expert {load.index(max(load))}: a token "
            f"chooses {choices} different experts, so that one expert gets at most {total // choices}"
        )
    if own.denominator > 1 or own.numerator % total:
        raise UsageError(
            f"{Word('expert_load')} sums to {total}, which does not divide the {own} routed tokens of a rank "
            f"(micro-batch {plan.micro_batch_size} x {plan.seq_len} tokens x {choices} choices, shared by the ranks "
            f"of a sequence): choose values with the sum {own}, or a divisor of it, or shares (0.3,0.1,…), which are "
            "rounded"
        )


def loads(plan: PlanFields, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The load of each expert on all ranks of ep, copies included, in the smallest whole numbers.

    Without a given load it is even: if a rank's choices do not divide among the experts, some have one more than the
    others, spread out so that ranks of ep have as equal numbers as whole tokens allow. sizes: those of the model.
    """
    if plan.options.redundant_experts:
        own, given = int(routed(plan, sizes)), chosen_loads(plan, sizes)
        parts = tuple(each * own // sum(given) for each in given)
        return smallest(placed_loads(parts, plan.options.redundant_experts, plan.ep))
    return chosen_loads(plan, sizes)


def chosen_loads(plan: PlanFields, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The load of each expert that tokens choose: an expert with copies (`redundant_experts`) has one entry.

    sizes: those of the model. Returns choices of tokens by expert, in the smallest whole numbers, as `loads`.
    """
    experts = sizes["E"]
    if plan.routing:
        return smallest(histogram(table(plan), experts))
    if plan.expert_load or plan.capacity_factor is not None:
        return plan.expert_load or (1,) * experts
    own = int(routed(plan, sizes))
    return smallest(tuple((expert + 1) * own // experts - expert * own // experts for expert in range(experts)))


def held_experts(plan: PlanFields, sizes: Mapping[str, int]) -> int:
    """The number of experts of a layer on all ranks of ep together, copies included.

    sizes: the model's symbols, such as E for the experts.
    """
    return sizes["E"] + plan.options.redundant_experts


def uneven(plan: PlanFields, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The load of each expert, if loads differ; empty if all are equal, and for a model without experts.

    sizes: the model's symbols, such as E for the experts.
    """
    found = loads(plan, sizes) if "E" in sizes else ()
    return found if len(set(found)) > 1 else ()


def smallest(load: tuple[int, ...]) -> tuple[int, ...]:
    """A load of experts in the smallest whole numbers with the same ratios: `(4, 2)` becomes `(2, 1)`."""
    common = gcd(*load) or 1
    return tuple(each // common for each in load)


def load_symbols(plan: PlanFields, sizes: Mapping[str, int], ep_ranks: Iterable[int]) -> list[dict[str, int]]:
    """For each rank of `ep_ranks`, the values of the symbols of the experts' load.

    plan: the plan. sizes: the model's symbols, such as E. ep_ranks: places on the axis ep. Loads are in the smallest
    common unit of choices: `load_all` of all experts of a layer, `load_most` of the fullest one, `load_here` of the
    rank's own experts + 1, and `load_dealt` of all experts that the rank sends choices to + 1. The last two are one
    more than the load, because symbols are above 0. Ranks of tp that have the same tokens each send them to the experts
    of a part of the ranks.
    """
    given = loads(plan, sizes)
    each = held_experts(plan, sizes) // plan.ep
    of_ranks = [sum(given[start : start + each]) for start in range(0, each * plan.ep, each)] if each else [0]
    far = plan.exchanging
    parts = max(len(of_ranks) // far, 1)
    routing = None
    if plan.options.dispatch != "copies":
        routing = of_sizes(sizes, int(routed(plan, sizes)) // sizes["K"], given, table(plan))
    common = {**dict.fromkeys(COPY_SYMBOLS, 1), "load_all": sum(given), "load_most": max(given)}
    return [
        {
            **common,
            **({} if routing is None else copy_symbols(routing, plan.ep, plan.node_ranks, rank)),
            "load_here": of_ranks[_part(rank, far, parts) % len(of_ranks)] + 1,
            "load_dealt": sum(of_ranks[rank % parts * far : (rank % parts + 1) * far]) + 1,
        }
        for rank in ep_ranks
    ]


def _part(rank: int, far: int, parts: int) -> int:
    """The place of a rank's experts: those of a place on tp come one behind another. far: ranks of ep that exchange
    tokens. parts: ranks of tp with the same tokens."""
    return rank % parts * far + rank // parts


def _some(load: tuple[int, ...]) -> str:
    return ", ".join(map(str, load[:8])) + (", ..." if len(load) > 8 else "")


def widths(plan: PlanFields, sizes: Mapping[str, int]) -> list[int]:
    """The widths of the feed-forwards that tp partitions.

    sizes: the model's symbols, such as F.
    """
    own = [size for name, size in sizes.items() if name.startswith("F_")]
    if "E" not in sizes:
        return [*([sizes["F"]] if "F" in sizes else []), *own]
    found = [sizes["FE"]] if plan.options.expert_tp else []
    found += [sizes["FS"]] if "FS" in sizes else []
    return found + ([sizes["F"]] if "F" in sizes and ("LD" in sizes or "FD" in sizes) else []) + own


def capacity(plan: PlanFields) -> dict[str, int]:
    """The symbols `capacity` and `per`, whose quotient is the capacity factor. Both are 1 if no token is dropped."""
    factor = Fraction(1 if plan.capacity_factor is None else str(plan.capacity_factor))
    return {"capacity": factor.numerator, "per": factor.denominator}
