"""How a plan splits a model's layers into stages, and into the chunks of each stage."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stagedb.errors import UsageError
from stagedb.mentions import Word
from stagedb.plans.nearest_plans import Change, Misfit, Way
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.schedule_checks import chunk_ways

COUNTED = {"none": (0, 0), "embedding": (1, 0), "loss": (0, 1), "both": (1, 1)}
"""Layers that the embedding and the loss count as, by the word `counted_ends`."""

UNCOUNTED = Way({"counted_ends": None}, f"leave {Word('counted_ends')} out")


def check_split(plan: PlanFields) -> None:
    """Raise UsageError if words give the split twice, or numbers of layers that no stage or chunk can have."""
    if plan.layers_per_stage is not None:
        _check_stages(plan, plan.layers_per_stage)
    if plan.layers_per_chunk is not None:
        _check_chunks(plan, plan.layers_per_chunk)
    if plan.counted_ends == "none":
        return
    for word in ("layers_per_stage", "layers_per_chunk"):
        if getattr(plan, word) is not None:
            raise Misfit(
                f"{Word('counted_ends', plan.counted_ends)} is for an even split, and {Word(word)} gives the split",
                ways=[UNCOUNTED, Way({word: None}, f"leave {Word(word)} out")],
            )


def check_shared_layers(plan: PlanFields, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for several stages or chunks, if layers read more than the residual stream, such as the embedded
    tokens.

    sizes: the model's symbols; LS is the number of such layers.
    """
    if "LS" in sizes and plan.pp * plan.virtual_stages > 1:
        raise Misfit(
            f"some of the model's {sizes['LS']} layers read more than the stream (blocks of weights that they share, "
            "the tokens again, or keys of earlier layers), so that stagedb keeps them on one stage: messages with "
            "all of that, and the sums of gradients over stages, are not built",
            ways=[Way({"pp": 1, "virtual_stages": 1}, str(Word("pp", 1)))],
        )


def stage_layers(plan: PlanFields, layers: int) -> tuple[int, ...]:
    """The number of layers of each stage, in order. layers: of the model.

    Without words that give it, the first stages have one layer more where pp does not divide the layers. UsageError if
    pp exceeds the layers, or if the numbers that the plan gives have another sum.
    """
    if plan.layers_per_chunk is not None:
        return _by_stage(plan, _given(plan.layers_per_chunk, "layers_per_chunk", layers, plan))
    before, after = COUNTED[plan.counted_ends]
    counted = layers + before + after
    if plan.pp > counted:
        raise UsageError(f"pp {plan.pp} is more than the model's {layers} layers: {Word('pp')} takes at most {layers}")
    if plan.layers_per_stage is not None:
        return _given(plan.layers_per_stage, "layers_per_stage", layers, plan)
    dealt = _even(counted, plan.pp)
    return _without_ends(dealt, *_end_stages(plan), before, after)


def chunk_layers(plan: PlanFields, layers: int, trial: Callable[[Change], object]) -> tuple[int, ...]:
    """Layers of each chunk, in the order of the pipeline.

    Only the first chunk and the last one may have none: they have the embedding and the head. trial: tries a changed
    plan. Raises UsageError if the chunks of a stage cannot share its layers equally and no word gives their numbers.
    """
    if plan.layers_per_chunk is not None:
        return _given(plan.layers_per_chunk, "layers_per_chunk", layers, plan)
    before, after = COUNTED[plan.counted_ends]
    chunks, count, placement = plan.virtual_stages, plan.pp * plan.virtual_stages, plan.placement
    dealt = stage_layers(plan, layers)
    dealt = _without_ends(dealt, *_end_stages(plan), -before, -after)
    if any(share % chunks for share in dealt):
        raise _uneven(dealt, layers, plan, trial)
    found = tuple(dealt[placement.stage(number, plan.pp)] // chunks for number in range(count))
    return _without_ends(found, 0, count - 1, before, after)


def spelled_out(plan: PlanFields, chunks: Sequence[int]) -> dict[str, Any]:
    """The words of a plan that give each chunk these numbers of layers: plans with one meaning get the same words."""
    stages = _by_stage(plan, chunks)
    even = tuple(stages[plan.placement.stage(number, plan.pp)] for number in range(len(chunks)))
    uneven = any(share != of * plan.virtual_stages for share, of in zip(even, chunks, strict=True))
    return {
        "layers_per_stage": stages,
        "layers_per_chunk": tuple(chunks) if uneven or min(stages) < 1 else None,
        "counted_ends": "none",
    }


def _even(layers: int, shares: int) -> tuple[int, ...]:
    share, rest = divmod(layers, shares)
    return tuple(share + (index < rest) for index in range(shares))


def _without_ends(shares: Sequence[int], first: int, last: int, before: int, after: int) -> tuple[int, ...]:
    """The shares without what counts as layers at both ends."""
    return tuple(share - before * (index == first) - after * (index == last) for index, share in enumerate(shares))


def _end_stages(plan: PlanFields) -> tuple[int, int]:
    """The stages of the first chunk and of the last one."""
    first, last = (plan.placement.stage(number, plan.pp) for number in (0, plan.pp * plan.virtual_stages - 1))
    return first, last


def _by_stage(plan: PlanFields, chunks: Sequence[int]) -> tuple[int, ...]:
    sums = [0] * plan.pp
    for number, layers in enumerate(chunks):
        sums[plan.placement.stage(number, plan.pp)] += layers
    return tuple(sums)


def _given(numbers: tuple[int, ...], word: str, layers: int, plan: PlanFields) -> tuple[int, ...]:
    if sum(numbers) != layers:
        parts = plan.pp if word == "layers_per_stage" else len(numbers)
        raise UsageError(
            f"{Word(word, _text(numbers))} has {sum(numbers)} layers, the model has {layers}; an even split is "
            f"{_text(_even(layers, parts))}"
        )
    return numbers


def _uneven(dealt: Sequence[int], layers: int, plan: PlanFields, trial: Callable[[Change], object]) -> Misfit:
    chunks, most = plan.virtual_stages, math.gcd(*dealt)
    last = "" if most > 1 else f"; other numbers need another {Word('pp')} or {Word('layers_per_stage')}"
    counted = [Way({"counted_ends": word}) for word in ("both", "loss", "embedding") if word != plan.counted_ends]
    apart = uneven_chunks(layers, plan.pp * chunks)
    return Misfit(
        f"{chunks} virtual stages do not divide the layers of each stage ({_text(sorted(set(dealt), reverse=True))})",
        chunk_ways(chunks, most),
        [counted, Way({"layers_per_chunk": apart, **UNCOUNTED.change}, str(Word("layers_per_chunk", _text(apart))))],
        last=last,
        trial=trial,
    )


def uneven_chunks(layers: int, count: int) -> tuple[int, ...]:
    """The layers of each of `count` chunks. If they do not divide, chunks in the middle of the pipeline have one layer
    more.

    layers: in all.
    """
    share, rest = divmod(layers, count)
    begin = (count - rest) // 2
    return tuple(share + (begin <= number < begin + rest) for number in range(count))


def _check_stages(plan: PlanFields, layers: tuple[int, ...]) -> None:
    """Raise UsageError if explicit numbers of layers are not one for each stage."""
    text = _text(layers)
    if len(layers) != plan.pp:
        raise UsageError(
            f"{Word('layers_per_stage', text)} has {len(layers)} stages, {Word('pp', plan.pp)}: they must agree"
        )
    if min(layers) < 1 and plan.layers_per_chunk is None:
        raise UsageError(
            f"{Word('layers_per_stage', text)} has a stage without a layer: each needs at least 1 "
            f"({Word('layers_per_chunk')} takes 0 for the first chunk and the last one)"
        )


def _check_chunks(plan: PlanFields, layers: tuple[int, ...]) -> None:
    """Raise UsageError if explicit numbers are not one for each chunk, or leave a chunk with nothing to compute."""
    text, count = _text(layers), plan.pp * plan.virtual_stages
    if len(layers) != count:
        raise UsageError(
            f"{Word('layers_per_chunk', text)} has {len(layers)} chunks, {Word('pp', plan.pp)} with "
            f"{Word('virtual_stages', plan.virtual_stages)} has {count}: they must agree"
        )
    least = [int(0 < number < count - 1) for number in range(count)]
    empty = next((number for number in range(count) if layers[number] < least[number]), None)
    if empty is not None:
        raise UsageError(
            f"{Word('layers_per_chunk', text)} has chunk {empty} with {layers[empty]} layers: each needs at least 1, "
            "the first one (embedding) and the last one (head) may have 0"
        )
    if plan.layers_per_stage is not None and plan.layers_per_stage != _by_stage(plan, layers):
        raise Misfit(
            f"{Word('layers_per_chunk', text)} gives the stages {_text(_by_stage(plan, layers))} layers, "
            f"{Word('layers_per_stage', _text(plan.layers_per_stage))}",
            ways=[Way({"layers_per_stage": None}, f"leave {Word('layers_per_stage')} out")],
        )


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
