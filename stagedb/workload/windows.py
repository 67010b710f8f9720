"""Windows: steps of serving one after another on the same ranks, as one workload.

A step is a chunk of its own behind those of the steps before, with micro-batches of its own: its tasks follow theirs in
the order of each rank, and messages have tags of their own.

Over stages, the last stage makes the tokens that the first one reads in the next step. It sends them as soon as it has
those of a micro-batch, which begins its next step when they are there, while others are still in the step before.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.plans import Plan
from stagedb.workflows import find_workflow
from stagedb.workload.handed_tokens import goes_on, handed_tokens, with_tokens
from stagedb.workload.instance_columns import ClassColumns, Edges, Groups, Ints, Ops, Origins, Tasks, Workload

LONGEST = 4096
"""Steps of a window, at most."""

LAYOUT = ("tp", "dp", "pp", "cp", "ep", "rank_order")
"""Words of a plan that all steps of a window share: which ranks there are, and what each has of the model."""

STAGES = ("schedule", "virtual_stages", "chunk_placement", "layers_per_stage", "layers_per_chunk", "counted_ends")
"""The same words of steps over stages."""


def window(steps: Sequence[Workload]) -> Workload:
    """The steps as one workload. A single step is itself.

    Raises UsageError for steps that the same ranks cannot run one after another: of other workflows than those of
    serving, with other degrees, or over stages with other micro-batches.
    """
    if len(steps) == 1:
        return steps[0]
    check_window([(each.name, each.plan) for each in steps])
    first = steps[0]
    numbers = np.stack([each.ranks.number for each in steps], axis=1)
    kinds, number = np.unique(numbers, axis=0, return_inverse=True)
    by_number = [{each.number: each for each in step.classes} for step in steps]
    parts = [[known[int(own)] for known, own in zip(by_number, kind, strict=True)] for kind in kinds.tolist()]
    joined = [_joined(at, each) for at, each in enumerate(parts)]
    if int(first.plan["pp"]) > 1:
        tokens = handed_tokens([Plan.from_mapping(each.plan) for each in steps])
        joined = [with_tokens(each, own, tokens) for each, own in zip(joined, parts, strict=True)]
    classes = tuple(joined)
    digest = hashlib.sha256("+".join(each.instance for each in steps).encode()).hexdigest()
    return replace(
        first,
        instance=digest[: len(first.instance)],
        name=f"{first.name} and {len(steps) - 1} more",
        classes=classes,
        ranks=replace(first.ranks, number=number.reshape(-1).astype(np.int64)),
        groups=joined_groups([each.groups for each in steps]),
        steps=tuple((each.instance, each.plan) for each in steps),
    )


def check_window(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise UsageError for steps that no window has, as `window` does. steps: the name of each, and its plan."""
    if len(steps) > LONGEST:
        raise UsageError(f"a window has at most {LONGEST:,} steps, and this one {len(steps):,}")
    first, shared = steps[0]
    for name, plan in steps:
        workflow = find_workflow(str(plan["workflow"]))
        if not workflow.caches:
            raise UsageError(
                f"{name} is a step of {workflow.name}, and a window has steps of serving: leave it out, or export it "
                "alone"
            )
        for word in LAYOUT:
            if plan[word] != shared[word]:
                raise UsageError(
                    f"{name} has {word} {plan[word]} and {first} {shared[word]}: the steps of a window run on the same "
                    f"ranks, so that both need the same {Word(word)}"
                )
    if shared["pp"] > 1:
        _check_stages(steps)


def _check_stages(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise UsageError for steps over stages that do not go on with each other's micro-batches."""
    first, shared = steps[0]
    for name, plan in steps:
        for word in STAGES:
            if plan.get(word) != shared.get(word):
                raise UsageError(
                    f"{name} has {word} {shown(plan.get(word))} and {first} {shown(shared.get(word))}: over stages all "
                    f"steps of a window need the same {Word(word)}"
                )
    plans = [(name, Plan.from_mapping(plan)) for name, plan in steps]
    for (before, earlier), (name, later) in pairwise(plans):
        if goes_on(later) and earlier.microbatches != later.microbatches:
            raise UsageError(
                f"{name} has {later.microbatches} micro-batches and {before} {earlier.microbatches}: over stages each "
                f"micro-batch goes on with the tokens of one, so that both need as many ({Word('global_batch_size')})"
            )
    handed_tokens([plan for _, plan in plans])


def _joined(number: int, parts: Sequence[ClassColumns]) -> ClassColumns:
    """One class that runs the steps of `parts` one after another."""
    ops, edges, tasks = [], [], []
    pairs: list[tuple[int, int]] = []
    rows = chunks = microbatches = done = 0
    for each in parts:
        ops.append(replace(each.ops, chunk=each.ops.chunk + chunks))
        edges.append(replace(each.edges, source=each.edges.source + rows, target=each.edges.target + rows))
        own = each.tasks
        tasks.append(replace(own, chunk=own.chunk + chunks, microbatch=own.microbatch + microbatches))
        pairs += [(begin + done, end + done) for begin, end in each.pairs]
        rows, done = rows + len(each.ops), done + len(own)
        chunks += 1 + max(int(own.chunk.max(initial=0)), int(each.ops.chunk.max(initial=0)))
        microbatches += 1 + int(own.microbatch.max(initial=0))
    digest = hashlib.sha256("+".join(each.digest for each in parts).encode()).hexdigest()
    stages = tuple(each for each in parts[0].stages if all(each in part.stages for part in parts))
    return ClassColumns(
        number,
        digest[: len(parts[0].digest)],
        stages,
        _concatenated(Ops, ops),
        _concatenated(Edges, edges),
        _concatenated(Tasks, tasks),
        _origins(parts, stages),
        tuple(pairs),
    )


def _concatenated(columns: type[Any], parts: Sequence[Any]) -> Any:
    """Columns one behind another: arrays, and tuples."""
    joined = {}
    for each in fields(columns):
        values = [getattr(part, each.name) for part in parts]
        is_array = isinstance(values[0], np.ndarray)
        joined[each.name] = np.concatenate(values) if is_array else tuple(one for value in values for one in value)
    return columns(**joined)


def _origins(parts: Sequence[ClassColumns], stages: Sequence[int]) -> Origins:
    """The origins of all parts. First layers are by stage, and by the chunks of all parts."""
    own = [each.origins for each in parts]
    lists = ("id", "sym", "block", "tasks")
    joined: dict[str, Any] = {name: tuple(one for part in own for one in getattr(part, name)) for name in lists}
    joined |= {name: np.concatenate([getattr(part, name) for part in own]) for name in ("position", "layer")}
    first_layers: list[int] = []
    for stage in stages:
        for part in parts:
            chunks = len(part.origins.first_layers) // len(part.stages)
            at = part.stages.index(stage) * chunks
            first_layers += part.origins.first_layers[at : at + chunks]
    return Origins(**joined, first_layers=tuple(first_layers), member=own[0].member)


def joined_groups(parts: Sequence[Groups]) -> Groups:
    """The groups of all parts of a workload, each once. Those of the first keep their ids where no other has more."""
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for each in parts:
        ends = np.cumsum(each.sizes)
        for axis, begin, end in zip(each.axis, (ends - each.sizes).tolist(), ends.tolist(), strict=True):
            found[axis, tuple(each.ranks[begin:end].tolist())] = None
    if len(found) == len(parts[0].axis):
        return parts[0]
    digits = 1
    while 9 * 10 ** (digits - 1) < len(found):
        digits += 1  # ids have the same number of digits
    return Groups(
        _numbers(range(10 ** (digits - 1), 10 ** (digits - 1) + len(found))),
        tuple(axis for axis, _ in found),
        _numbers(len(ranks) for _, ranks in found),
        _numbers(rank for _, ranks in found for rank in ranks),
    )


def _numbers(values: Any) -> Ints:
    return np.array(list(values), np.int64)
