"""A step of serving with fewer and more requests: how long each waits for a token, and how many fit."""

from dataclasses import dataclass

from stagedb.advice.trials import Trials
from stagedb.errors import UsageError
from stagedb.plans import Plan
from stagedb.timing.figures_of_merit import SECOND

MOST = 4096
"""Requests on a rank of dp in a micro-batch, at most."""


@dataclass(frozen=True)
class BatchPoint:
    """A step with a number of requests.

    requests: those on all ranks. step: ns. wait: ns for a token of a request, or for the first one where a step
    computes prompts. tokens: a second and accelerator; None without an acceptance of drafts. peak: bytes of the fullest
    rank. fits: whether an accelerator holds them. own: it is the plan itself.
    """

    requests: int
    step: int
    wait: int
    tokens: float | None
    peak: int
    fits: bool
    own: bool


def batch_points(trials: Trials, plan: Plan) -> tuple[BatchPoint, ...]:
    """Steps with 1, 2, 4 and so on requests on a rank of dp in a micro-batch, and with those of the plan, ascending.

    They end with the first one that does not fit. None for workflows without a cache, and for requests of several
    lengths. trials: of the model on its system. Numbers that the model cannot have are left out.
    """
    if not plan.workflow.caches or plan.requests:
        return ()
    found: list[BatchPoint] = []
    for count in sorted({1 << power for power in range(MOST.bit_length())} | {plan.micro_batch_size}):
        words = {"micro_batch_size": count, "global_batch_size": plan.microbatches * count * plan.dp}
        try:
            changed = plan.changed(words)
            changed.check(trials.sizes)
            outcome = trials.outcome(changed)
        except UsageError:
            continue
        room, tokens = trials.system.accelerator.room, changed.tokens
        rate = None if tokens is None or not outcome.step else float(tokens * SECOND / outcome.step / changed.world)
        wait = outcome.step if changed.accepted is None else round(outcome.step / changed.accepted)
        fits = room is None or outcome.peak <= room
        own = count == plan.micro_batch_size
        found.append(BatchPoint(changed.batch, outcome.step, wait, rate, outcome.peak, fits, own))
        if not fits and count >= plan.micro_batch_size:
            break
    return tuple(found)
