"""Tokens between the steps of a window over stages: from the stage that makes them to the one that reads them next."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import Word
from stagedb.plans import FORMAT_BYTES, Plan
from stagedb.workflows.training import FORWARD
from stagedb.workload.added_messages import messages_of, origins_with_messages, with_messages
from stagedb.workload.instance_columns import (
    COMPUTE,
    DATA,
    RECV,
    SEND,
    TEMPLATES,
    ClassColumns,
    Edges,
    Ints,
)

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
