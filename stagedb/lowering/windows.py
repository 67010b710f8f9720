"""Windows: steps of serving one after another on the same ranks, as one workload.

A step is a chunk of its own behind those of the steps before, with micro-batches of its own: its tasks follow theirs in
the order of each rank, and messages have tags of their own.

Over stages, the last stage makes the tokens that the first one reads in the next step. It sends them as soon as it has
those of a micro-batch, which begins its next step when they are there, while others are still in the step before.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.lowering.columns import (
    COMPUTE,
    DATA,
    RECV,
    SEND,
    TEMPLATES,
    ClassColumns,
    Edges,
    Groups,
    Ints,
    Ops,
    Origins,
    Tasks,
    Workload,
    messages_of,
    origins_with_messages,
    with_messages,
)
from stagedb.mentions import Word
from stagedb.plans import FORMAT_BYTES, Plan
from stagedb.workflows import find_workflow
from stagedb.workflows.training import FORWARD

# Tokens between the steps of a window over stages: from the stage that makes them to the one that reads them next.

TOKENS = "tokens"
"""The block of these messages."""

_TOKEN = FORMAT_BYTES["int64"]


@dataclass(frozen=True)
class HandedTokens:
    """The tokens that the steps of a window hand over.

    maker, reader: the stage that makes the tokens of a step and the one that reads those of the next, each with its
    chunk. towards: the direction from the first to the second, around the ends (1 or -1); 0 if they are one stage,
    which needs no message. sizes: by step but the last, the bytes of a micro-batch that go to the next one; 0 for a
    step that reads none.
    """

    maker: tuple[int, int]
    reader: tuple[int, int]
    towards: int
    sizes: tuple[int, ...]

    @property
    def away(self) -> int:
        """How many stages the reader is behind the maker."""
        return self.reader[0] - self.maker[0]


def goes_on(plan: Plan) -> bool:
    """Whether a step reads tokens that an earlier one made: of answers, and not of prompts."""
    return plan.workflow.decodes or plan.workflow.mixes


def handed_tokens(plans: Sequence[Plan]) -> HandedTokens:
    """The tokens that steps with these plans hand over. UsageError for stages that are no neighbours.

    A request that the step before has too reads one token of it, or with drafts all that it checks.
    """
    plan = plans[0]
    chunks = plan.pp * plan.virtual_stages
    reader, maker = (plan.placement.located(number, plan.pp) for number in (0, chunks - 1))
    ways = [way for way in (1, -1) if (maker[0] + way) % plan.pp == reader[0]]
    if maker[0] != reader[0] and not ways:
        raise UsageError(
            f"stage {maker[0]} makes the tokens that stage {reader[0]} reads in the next step, and messages go to "
            f"neighbours: a window of steps needs another {Word('chunk_placement')}"
        )
    sizes = tuple(_size(before, after) for before, after in pairwise(plans))
    return HandedTokens(maker, reader, 0 if maker[0] == reader[0] else ways[0], sizes)


def _size(before: Plan, after: Plan) -> int:
    """Bytes of the tokens of a micro-batch that a step makes and the next one reads."""
    if not goes_on(after):
        return 0
    there, batch = _requests(before), after.request_batch
    going = batch.decode.n if batch is not None and after.workflow.mixes else _requests(after)
    return _TOKEN * min(there, going) * (1 + after.drafted)


def _requests(plan: Plan) -> int:
    batch = plan.request_batch
    return plan.micro_batch_size if batch is None else batch.sums.n


def with_tokens(columns: ClassColumns, parts: Sequence[ClassColumns], tokens: HandedTokens) -> ClassColumns:
    """A class of a window with the messages of its stages behind its ops.

    parts: the class of each step. tokens: of the steps.
    """
    at = [stage for stage in (tokens.maker[0], tokens.reader[0]) if stage in columns.stages]
    if not tokens.towards or not at:
        return columns
    if len(columns.stages) > 1:
        raise StagedbError(f"class {columns.number} has the stages {columns.stages}, one of which sends tokens")
    steps = [number for number, size in enumerate(tokens.sizes) if size]
    for type_, (stage, chunk), later in ((SEND, tokens.maker, 0), (RECV, tokens.reader, 1)):
        if stage == at[0] and steps:
            firsts = _firsts(parts)
            own = [firsts[step + later][0] + chunk for step in steps]
            columns = _with(columns, type_, np.array(own), tokens, _steps(firsts, steps, tokens))
    return columns


def _firsts(parts: Sequence[ClassColumns]) -> list[tuple[int, int]]:
    """The first chunk and the first micro-batch of each step, and those behind the last one."""
    found = [(0, 0)]
    for each in parts:
        chunks = 1 + max(int(each.tasks.chunk.max(initial=0)), int(each.ops.chunk.max(initial=0)))
        found.append((found[-1][0] + chunks, found[-1][1] + 1 + int(each.tasks.microbatch.max(initial=0))))
    return found


def _steps(firsts: Sequence[tuple[int, int]], steps: Sequence[int], tokens: HandedTokens) -> Ints:
    """For each message how far its chunk is from the reader's, in the order by micro-batch and chunk that tags have."""
    chunks = firsts[-1][0]
    return np.array(
        [
            (firsts[step + 1][1] - firsts[step][1]) * chunks
            + (firsts[step + 1][0] + tokens.reader[1])
            - (firsts[step][0] + tokens.maker[1])
            for step in steps
        ],
        np.int64,
    )


def _with(columns: ClassColumns, type_: int, chunks: Ints, tokens: HandedTokens, steps: Ints) -> ClassColumns:
    """A class with a message of this type in each of these chunks: behind what makes tokens, or before what reads
    them."""
    ops, sends, count = columns.ops, type_ == SEND, len(chunks)
    way = 1 if sends else -1
    template = TEMPLATES.index(FORWARD.name)
    orders = [ops.order[(ops.chunk == chunk) & (ops.template == template)] for chunk in chunks.tolist()]
    made = messages_of(
        type_,
        np.array([size for size in tokens.sizes if size], np.int64),
        name=[f"{TOKENS}.{'send' if sends else 'recv'}.{at}" for at in range(count)],
        template=template,
        phase=FORWARD.phase,
        axis="pp",
        chunk=chunks,
        order=np.array([int(each.max()) + 1 if sends else int(each.min()) - 1 for each in orders], np.int64),
        peer=np.full(count, way * tokens.away),
        towards=np.full(count, way * tokens.towards),
        step=steps if sends else np.zeros(count, np.int64),
    )
    edges = [(columns.edges.source, columns.edges.target, columns.edges.kind)]
    for row, chunk in enumerate(chunks.tolist(), len(ops)):
        others = _ends(columns, chunk) if sends else _begins(columns, chunk)
        both = (others, np.full(len(others), row))
        edges.append((*(both if sends else both[::-1]), np.full(len(others), DATA)))
    return replace(
        columns,
        ops=with_messages(ops, made, count),
        edges=Edges(*(np.concatenate(each) for each in zip(*edges, strict=True))),
        origins=origins_with_messages(columns.origins, count, TOKENS),
    )


def _ends(columns: ClassColumns, chunk: int) -> Ints:
    """The ops of a chunk that compute and for which nothing else computes: the last of them makes the tokens."""
    return _open(columns, chunk, columns.edges.source, columns.edges.target)


def _begins(columns: ClassColumns, chunk: int) -> Ints:
    """The ops of a chunk that compute and wait for nothing that does: the embedding of tokens among them."""
    return _open(columns, chunk, columns.edges.target, columns.edges.source)


def _open(columns: ClassColumns, chunk: int, mine: Ints, others: Ints) -> Ints:
    ops = columns.ops
    inside = (ops.chunk[mine] == chunk) & (ops.chunk[others] == chunk) & ~np.isin(ops.type[others], (SEND, RECV))
    linked = np.zeros(len(ops), bool)
    linked[mine[inside]] = True
    found: Ints = np.flatnonzero(~linked & (ops.chunk == chunk) & (ops.type == COMPUTE))
    return found


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
