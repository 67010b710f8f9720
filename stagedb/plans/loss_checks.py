"""Checks of a loss that is made in parts of the tokens."""

from math import prod

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans.graph_options import MOST_PARTS
from stagedb.plans.nearest_plans import Misfit, nearest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.strategies import rules


def check_loss(plan: PlanFields) -> None:
    """Raise UsageError for parts that do not divide the tokens of a rank, and for tokens that the head and the loss
    cut in two ways."""
    count = plan.options.loss_chunks
    if count == 1:
        return
    table = rules(plan.options)
    ways = {(table[region].get("batch", ()), table[region].get("seq", ())) for region in ("head", "loss")}
    if len(ways) > 1:
        raise UsageError(
            "the strategy cuts the tokens of the head and those of the loss in two ways, so that their parts are not "
            f"the same tokens: give both regions the same axes of batch and seq, or leave {Word('loss_chunks')} out"
        )
    degrees = {"dp": plan.dp, "cp": plan.cp, "tp": plan.tp}
    degrees |= {"cpr": plan.cp // plan.ulysses, "cpa": plan.ulysses}
    ((batch, sequence),) = ways
    tokens = plan.micro_batch_size * plan.dp * plan.seq_len // prod(degrees[axis] for axis in (*batch, *sequence))
    if tokens % count:
        raise Misfit(
            f"the {tokens} tokens of a micro-batch on a rank are not divisible by {Word('loss_chunks', count)}",
            nearest("loss_chunks", count, min(tokens, MOST_PARTS), lambda parts: tokens % parts == 0),
        )
