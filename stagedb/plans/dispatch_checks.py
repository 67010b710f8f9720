"""Tokens that are sent once for each rank or node: checks of a plan's `dispatch`, `node_ranks` and `routing`."""

from collections import Counter
from collections.abc import Mapping
from math import gcd

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Change, Misfit, Way, nearest
from stagedb.plans.plan_fields import PlanFields

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
