"""Checks of the words of a plan that choose the layers which recompute."""

from collections.abc import Sequence

from stagedb.errors import UsageError
from stagedb.files.texts import nth
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Misfit, Way
from stagedb.plans.plan_fields import PlanFields


def check_recomputed_layers(plan: PlanFields) -> None:
    """Raise UsageError if layers are chosen that have nothing to recompute, or if two words choose them."""
    chosen = [word for word, given in _layers(plan).items() if given]
    if chosen and plan.options.recompute == "none":
        word = chosen[0]
        raise UsageError(
            f"{Word(word, getattr(plan, word))} has nothing to recompute: choose it with {Word('recompute')}, or leave "
            f"{Word(word)} out"
        )
    if len(chosen) > 1:
        every, first = (Word(word, getattr(plan, word)) for word in chosen)
        raise Misfit(
            f"{every} and {first} choose the layers that recompute twice",
            ways=[
                Way({"recompute_every": 1}, f"leave {Word('recompute_every')} out"),
                Way({"recompute_first": None}, f"leave {Word('recompute_first')} out"),
            ],
        )


def check_recomputed_of(plan: PlanFields, chunks: Sequence[int], stages: Sequence[int]) -> None:
    """Raise UsageError if no layer of the model is among those that are chosen, or a number exceeds all chunks.

    chunks, stages: the number of layers of each.
    """
    most = max(stages)
    if plan.recompute_every > most:
        raise UsageError(
            f"no stage has more than {most} layers, so that no layer is the {nth(plan.recompute_every)}: "
            f"{Word('recompute_every')} takes at most {most}"
        )
    deepest = max(chunks)
    if plan.recompute_first is not None and plan.recompute_first > deepest:
        where = "stage" if plan.virtual_stages == 1 else "chunk of a stage"
        raise UsageError(
            f"no {where} has more than {deepest} layers, so that none has a first {plan.recompute_first}: "
            f"{Word('recompute_first')} takes at most {deepest}"
        )


def _layers(plan: PlanFields) -> dict[str, bool]:
    """Whether each word that chooses layers is given."""
    return {"recompute_every": plan.recompute_every > 1, "recompute_first": plan.recompute_first is not None}
