"""Two engines as one workload: one that computes prompts sends their caches to one that goes on with the answers.

Ranks of the second are numbered behind those of the first. Each rank of the first sends after its last task, and a rank
of the second begins when it has all its messages, one from each rank that has a part of its caches. Both wait on their
own ranks alone: a message is for two ranks, and no two are for the same two, so that all have the tag 0.
"""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stagedb.errors import StagedbError, UsageError
from stagedb.ir.expressions import evaluate
from stagedb.ir.facts import KEYS
from stagedb.ir.symbolic_graph import SymGraph, SymTensor
from stagedb.lowering.columns import (
    CACHES,
    DATA,
    RECV,
    SEND,
    TASK_KINDS,
    TEMPLATES,
    TYPES,
    ClassColumns,
    Edges,
    Ints,
    Ops,
    Origins,
    RankTable,
    Tasks,
    Workload,
    messages_of,
    origins_with_messages,
    with_messages,
)
from stagedb.lowering.windows import joined_groups
from stagedb.mentions import Word
from stagedb.plans import Mesh, Plan
from stagedb.workflows import TRANSFER_TASK

# Which rank of an engine of prefill sends which part of the caches to which rank of an engine of decode.
#
# A rank keeps, of the requests of its place on dp and of the layers of its stage, the units (heads of keys, groups of a
# scan) of its place on tp. Where tp has more ranks than units, or a layer's cache is not cut, as latents are not, ranks
# of tp hold copies. Each receiver gets every part that it keeps once. If n receivers keep the same unit of a request,
# and m senders have it, receiver i gets it from sender i * m // n, both in the order of tp. With as many of both each
# gets it from the same place; a single receiver gets it from the first sender.
#
# Ranks of cp have every cp-th position of a cache, so that a position goes from the one that has it to the one that
# keeps it. What has no positions, the states of scans, is whole on each of them, and goes as copies on tp go.

_CUT = re.compile(r"([a-z_]+):partitioned\((\w+)\)", re.ASCII)

Part = tuple[str, int, int]
"""The axis of a layer's cache that tp cuts, and how many units it has ("" and 1 for one that is not cut); then how many
of a request's last positions it keeps, 0 for a state."""


@dataclass(frozen=True)
class ServedStep:
    """A step of one of the two engines. name: shown in messages. plan: under which the step runs."""

    name: str
    plan: Plan


@dataclass(frozen=True)
class CacheSide(ServedStep):
    """A step of one of the two engines as an instance.

    graph: the symbolic graph of the instance. workload: the columns of its rank classes.
    """

    graph: SymGraph
    workload: Workload

    @cached_property
    def layers(self) -> Mapping[int, Mapping[int, str]]:
        """By stage, the block of each of its layers, by their number in the model."""
        found: dict[int, dict[int, str]] = defaultdict(dict)
        for columns in self.workload.classes:
            places = np.stack([columns.ops.chunk, columns.origins.layer], axis=1)
            _, rows = np.unique(places, axis=0, return_index=True)
            for stage in columns.stages:
                for row in rows.tolist():
                    layer = columns.layer_in_model(row, stage)
                    if layer is not None:
                        found[stage][layer] = columns.origins.block[row]
        return found

    @cached_property
    def _caches(self) -> Mapping[str, list[SymTensor]]:
        found: dict[str, list[SymTensor]] = defaultdict(list)
        for tensor in self.graph.tensors:
            if tensor.role == "cache":
                found[tensor.block].append(tensor)
        return found

    def kept(self, block: str, tokens: int) -> Mapping[Part, int]:
        """The bytes that a layer keeps of one request with `tokens` tokens, by what tp and cp cut.

        The bytes are those on all ranks of tp and cp, without copies. block: of the layer.
        """
        env = {**self.plan.env(self.graph.sizes), "B": 1, "S": 1, "SK": tokens, "dp": 1, "cp": 1, "tp": 1}
        found = Counter[Part]()
        for tensor in self._caches.get(block, ()):
            size, last = (
                evaluate(tensor.bytes, {**env, "SK": keys}, what=f"the bytes of {tensor.name}") for keys in (tokens, 1)
            )
            positions = size // last if KEYS in tensor.axes else 0
            found[*_part(tensor, env), positions] += size
        return found


def _part(tensor: SymTensor, env: Mapping[str, int]) -> tuple[str, int]:
    """The axes of a cache that tp cuts, in a form that can be sent. StagedbError for a layout that cannot."""
    cuts: dict[str, str] = {}
    for text in tensor.layout:
        match = _CUT.fullmatch(text)
        if match is None or match[1] not in ("dp", "tp", "cp"):
            raise StagedbError(f"the cache {tensor.name} has the layout {text}, whose parts this version cannot send")
        cuts[match[1]] = match[2]
    if "tp" not in cuts:
        return "", 1
    axis = cuts["tp"]
    return axis, evaluate(tensor.shape[tensor.axes.index(axis)], env, what=f"the size of {axis}")


def messages(sender: CacheSide, receiver: CacheSide) -> dict[tuple[int, int], int]:
    """The bytes that each rank of the sender sends to each rank of the receiver, by the two, in their order.

    Ranks count from 0 on both sides. Raises UsageError for sides that no cache goes between: of other models, steps or
    formats, or where the receiver has no requests of the sender's lengths.
    """
    _check_sides(sender, receiver)
    found = Counter[tuple[int, int]]()
    dealt = deal(sender, receiver)
    lengths = sorted({tokens for _, _, tokens in dealt})
    ranks, others = Mesh.of(sender.plan), Mesh.of(receiver.plan)
    for stage, layers in sender.layers.items():
        for other, theirs in receiver.layers.items():
            by_places = _by_places(sender, receiver, sorted(layers.keys() & theirs.keys()), stage, other, lengths)
            for (dp, other_dp, tokens), requests in dealt.items():
                for (here, there), size in by_places[tokens].items():
                    source = ranks.rank(tp=here.tp, cp=here.cp, dp=dp, pp=stage)
                    target = others.rank(tp=there.tp, cp=there.cp, dp=other_dp, pp=other)
                    found[source, target] += requests * size
    return dict(sorted(found.items()))


class _Place(NamedTuple):
    """The place of a rank among those that have parts of the same requests and layers."""

    tp: int
    cp: int


def _by_places(
    sender: CacheSide, receiver: CacheSide, layers: Sequence[int], stage: int, other: int, lengths: Sequence[int]
) -> dict[int, Counter[tuple[_Place, _Place]]]:
    """By the length of a request, the bytes of it in some layers by the places on tp and cp of both ends."""
    found: dict[int, Counter[tuple[_Place, _Place]]] = {}
    for tokens in lengths:
        sums, known = Counter[Part](), dict[str, Mapping[Part, int]]()
        for layer in layers:
            block, theirs = sender.layers[stage][layer], receiver.layers[other][layer]
            if block not in known:
                known[block] = _same(sender, receiver, layer, (block, theirs), tokens)
            sums.update(known[block])
        by_place = Counter[tuple[_Place, _Place]]()
        for (_, units, last), size in sums.items():
            along = shares_of_cp(tokens, last, sender.plan.cp, receiver.plan.cp)
            for (tp, other_tp), number in shares(units, sender.plan.tp, receiver.plan.tp).items():
                for (cp, other_cp), positions in along.items():
                    ends = _Place(tp, cp), _Place(other_tp, other_cp)
                    by_place[ends] += number * positions * (size // units // max(last, 1))
        found[tokens] = by_place
    return found


def _same(
    sender: CacheSide, receiver: CacheSide, layer: int, blocks: tuple[str, str], tokens: int
) -> Mapping[Part, int]:
    """The bytes of a layer, which both sides keep alike."""
    kept, theirs = sender.kept(blocks[0], tokens), receiver.kept(blocks[1], tokens)
    if kept != theirs:
        sizes = [f"{sum(each.values()):,} bytes" for each in (kept, theirs)]
        raise UsageError(
            f"layer {layer} keeps {sizes[0]} of a request with {tokens:,} tokens in {sender.name} and {sizes[1]} in "
            f"{receiver.name}: caches are sent as they are, so that both need the same {Word('cache_dtype')} and "
            f"{Word('dtype')}"
        )
    return kept


def check_steps(sender: ServedStep, receiver: ServedStep) -> None:
    """Raise UsageError for steps between which no caches go: of other kinds, or with requests of other lengths."""
    first, second = sender.plan.workflow, receiver.plan.workflow
    if not first.caches or first.decodes or first.mixes:
        raise UsageError(
            f"{sender.name} is a step of {first.name}, and a prefill is what sends caches: name an instance with "
            f"{Word('workflow', 'prefill')}"
        )
    if not second.decodes:
        raise UsageError(
            f"{receiver.name} is a step of {second.name}, which goes on with no cache of others: "
            f"{Word('send_to')} takes an instance with {Word('workflow', 'decode')} or "
            f"{Word('workflow', 'speculative')}"
        )
    deal(sender, receiver)


def _check_sides(sender: CacheSide, receiver: CacheSide) -> None:
    check_steps(sender, receiver)
    if sender.workload.model != receiver.workload.model:
        raise UsageError(
            f"{sender.name} is of {sender.workload.model} and {receiver.name} of {receiver.workload.model}: a cache "
            "suits the model that filled it"
        )


def deal(sender: ServedStep, receiver: ServedStep) -> Counter[tuple[int, int, int]]:
    """How many requests go from a place on dp of the sender to one of the receiver, by both and their tokens.

    The requests of a length are in the order of the sender's dp. They are dealt to the receiver's places in equal runs:
    request k of n goes to place k * dp // n. Requests of the receiver that no sender fills have come before.
    """
    filled, room = (requests_of(each) for each in (sender, receiver))
    found = Counter[tuple[int, int, int]]()
    for tokens, each in filled.items():
        sent, places = each * sender.plan.dp, room[tokens] * receiver.plan.dp
        if sent > places:
            lengths = ", ".join(f"{number * receiver.plan.dp:,} with {length:,}" for length, number in room.items())
            raise UsageError(
                f"{sender.name} fills the caches of {sent:,} requests with {tokens:,} tokens, and {receiver.name} has "
                f"{lengths} in the cache: give it at least as many of that length ({Word('cache_len', tokens)}, "
                f"{Word('micro_batch_size')})"
            )
        for request in range(sent):
            found[request // each, request * receiver.plan.dp // sent, tokens] += 1
    return found


def requests_of(side: ServedStep) -> Counter[int]:
    """How many requests a place on dp has in all micro-batches of a step, by the tokens of their caches: those that a
    prefill leaves, or that another step finds."""
    plan = side.plan
    finds = plan.workflow.decodes
    batch = plan.request_batch
    if batch is None:
        tokens = plan.cache_len if finds else plan.cache_len + plan.seq_len
        return Counter({tokens: plan.microbatches * plan.micro_batch_size})
    if not batch.groups:
        raise UsageError(
            f"{side.name} has sums over its requests, of which each has a cache to be sent: give {Word('requests')} "
            "a list, such as 2x512+0"
        )
    if any(each.shared for each in batch.groups):
        raise UsageError(
            f"{side.name} has requests that share a prefix, and each request's cache is sent whole: give "
            f"{Word('requests')} without shared tokens (/ and -)"
        )
    found = Counter[int]()
    for group in batch.groups:
        found[group.cached if finds else group.keys] += plan.microbatches * group.count
    return found


def shares(units: int, senders: int, receivers: int) -> Counter[tuple[int, int]]:
    """How many units a sender's place on tp sends to a receiver's, by both. Units that are 0 are left out.

    senders, receivers: how many ranks of tp each end has. Returns units by (place of the sender, place of the
    receiver).
    """
    owners, takers = (_holders(units, each) for each in (senders, receivers))
    found = Counter[tuple[int, int]]()
    for owning, taking in zip(owners, takers, strict=True):
        for at, taker in enumerate(taking):
            found[owning[at * len(owning) // len(taking)], taker] += 1
    return found


def shares_of_cp(tokens: int, last: int, senders: int, receivers: int) -> Counter[tuple[int, int]]:
    """How many positions of a request a sender's place on cp sends to a receiver's, by both; of a state 1 to each.

    tokens: those of the request, of which a layer keeps the `last` ones; 0: a state. senders, receivers: how many ranks
    of cp each end has.
    """
    if not last:
        return Counter({(at * senders // receivers, at): 1 for at in range(receivers)})
    found, period = Counter[tuple[int, int]](), math.lcm(senders, receivers)
    for place in range(period):
        first = tokens - last + (place - tokens + last) % period
        if first < tokens:
            found[place % senders, place % receivers] += len(range(first, tokens, period))
    return found


def _holders(units: int, ranks: int) -> list[list[int]]:
    """The places on tp that have each unit: neighbours have the same one where there are more ranks than units."""
    found: list[list[int]] = [[] for _ in range(units)]
    for rank in range(ranks):
        first = rank * units // ranks
        for unit in range(first, max((rank + 1) * units // ranks, first + 1)):
            found[unit].append(rank)
    return found


def by_rank(sent: Mapping[tuple[int, int], int], ranks: int, end: int) -> tuple[list[list[int]], Ints]:
    """The messages of each rank at one end. sent: of `messages`. end: 0 of senders, 1 of receivers.

    Returns the bytes of each, in the order of the other ends, and these ends as a table, with -1 behind the last.
    ranks: of that end.
    """
    sizes: list[list[int]] = [[] for _ in range(ranks)]
    ends: list[list[int]] = [[] for _ in range(ranks)]
    for each, size in sorted(sent.items()):
        sizes[each[end]].append(size)
        ends[each[end]].append(each[1 - end])
    table = np.full((ranks, max(map(len, ends), default=0)), -1, np.int64)
    for rank, others in enumerate(ends):
        table[rank, : len(others)] = others
    return sizes, table


NOBODY = -1
"""The place of a rank behind the last one that it sends to, or gets something from."""


@dataclass(frozen=True)
class EnginePair:
    """The workload of two engines, and where its classes come from.

    sides: the workloads of both, windows of several steps among them. classes: by class of the pair, the side and the
    number of the class there that has the same tasks, but for the messages.
    """

    workload: Workload
    sides: tuple[Workload, Workload]
    classes: tuple[tuple[int, int], ...]

    def first_rank(self, side: int) -> int:
        """The number of the first rank of a side."""
        return len(self.sides[0].ranks) * side


def engine_pair(sender: CacheSide, receiver: CacheSide, windows: tuple[Workload, Workload]) -> EnginePair:
    """Two instances and the caches between them.

    sender, receiver: the step that leaves the caches, and the one that finds them. windows: all steps of each side, one
    after another, which end and begin with these (`stagedb.lowering.windows.window`). Raises UsageError for instances
    that no cache goes between.
    """
    sent = messages(sender, receiver)
    worlds = [len(each.ranks) for each in windows]
    classes: list[ClassColumns] = []
    numbers, tables, origins = [], [], []
    for side, (window, world) in enumerate(zip(windows, worlds, strict=True)):
        sizes, table = by_rank(sent, world, side)
        number = np.empty(world, np.int64)
        known: dict[tuple[int, tuple[int, ...]], int] = {}
        for rank in range(world):
            key = int(window.ranks.number[rank]), tuple(sizes[rank])
            if key not in known:
                known[key] = len(classes)
                columns, chunks = window.class_of(rank), _chunks(receiver.workload, rank) if side else 0
                classes.append(_with_messages(columns, len(classes), key[1], chunks))
                origins.append((side, key[0]))
            number[rank] = known[key]
        numbers.append(number)
        tables.append(np.where(table == NOBODY, NOBODY, table + worlds[0] * (1 - side)))
    first, second = windows
    digest = hashlib.sha256("+".join((first.instance, second.instance, "sends")).encode()).hexdigest()
    made = Workload(
        instance=digest[: len(first.instance)],
        name=f"{first.name} to {second.name}",
        graph=first.graph,
        model=first.model,
        plan=first.plan,
        degrees=pair_degrees(first.degrees, second.degrees),
        classes=tuple(classes),
        ranks=_ranks(windows, numbers, tables),
        groups=joined_groups([first.groups, replace(second.groups, ranks=second.groups.ranks + worlds[0])]),
        engines=tuple(each.steps or ((each.instance, each.plan),) for each in windows),
    )
    return EnginePair(made, windows, tuple(origins))


def pair_degrees(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...]:
    """The degrees of one mesh that has the ranks of two engines, innermost first.

    first, second: the degrees of each engine. Equal engines: these degrees, and an axis of 2. Others: groups of the
    greatest number of ranks that divides both engines, and the number of such groups.
    """
    if tuple(first) == tuple(second):
        return *first, 2
    ranks, others = math.prod(first), math.prod(second)
    common = math.gcd(ranks, others)
    return common, (ranks + others) // common


def _chunks(step: Workload, rank: int) -> int:
    """The chunks of a rank in a step, the first one of a window."""
    return 1 + int(step.class_of(rank).ops.chunk.max(initial=0))


def _with_messages(columns: ClassColumns, number: int, sizes: tuple[int, ...], chunks: int) -> ClassColumns:
    """A class with these messages: sent after its last task, or, where chunks is above 0, awaited before its first.

    chunks: those of the step that reads the caches.
    """
    text = f"{columns.digest}+{'recv' if chunks else 'send'}+{sizes}"
    digest = hashlib.sha256(text.encode()).hexdigest()[: len(columns.digest)]
    if not sizes:
        return replace(columns, number=number, digest=digest)
    begins = _begins(columns, chunks)
    made = _ops(columns.ops, sizes, RECV if chunks else SEND)
    rows = np.arange(len(columns.ops), len(made))
    edges = columns.edges
    source, target = (each.reshape(-1) for each in np.meshgrid(rows, begins))
    task = _task(columns)
    tasks = (task, columns.tasks) if chunks else (columns.tasks, task)
    shift = len(task) if chunks else 0
    return replace(
        columns,
        number=number,
        digest=digest,
        ops=made,
        edges=Edges(
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.kind, np.full(len(source), DATA)]),
        ),
        tasks=Tasks(*(np.concatenate([getattr(each, part.name) for each in tasks]) for part in fields(Tasks))),
        origins=_origins(columns, len(sizes), first=bool(chunks)),
        pairs=tuple((begin + shift, end + shift) for begin, end in columns.pairs),
    )


def _begins(columns: ClassColumns, chunks: int) -> Ints:
    """The ops of the first chunks that wait for nothing on their rank: with them a task begins to compute."""
    ops, edges = columns.ops, columns.edges
    inside = (ops.chunk[edges.source] == ops.chunk[edges.target]) & (ops.type[edges.source] != RECV)
    waits = np.zeros(len(ops), bool)
    waits[edges.target[inside]] = True
    found: Ints = np.flatnonzero(~waits & (ops.chunk < chunks) & (ops.type != RECV) & (ops.type != SEND))
    return found


def _ops(ops: Ops, sizes: tuple[int, ...], type_: int) -> Ops:
    """The ops, and behind them the messages of these bytes."""
    count = len(sizes)
    made = messages_of(
        type_,
        np.array(sizes, np.int64),
        name=[f"{CACHES}.{TYPES[type_]}.{at}" for at in range(count)],
        template=TEMPLATES.index(TRANSFER_TASK.templates[0].name),
        phase=TRANSFER_TASK.phase,
        axis=CACHES,
        order=np.arange(count),
        peer=np.arange(count),
    )
    return with_messages(ops, made, count)


def _task(columns: ClassColumns) -> Tasks:
    one, yes = np.zeros(1, np.int64), np.ones(1, bool)
    return Tasks(one + TASK_KINDS.index(TRANSFER_TASK.name), one, one, yes, yes)


def _origins(columns: ClassColumns, count: int, *, first: bool) -> Origins:
    """The origins of a class whose last ops are messages. first: its first task has them, and not its last one."""
    own = origins_with_messages(columns.origins, count, CACHES)
    if not own.id:
        return own
    return replace(own, tasks=("", *own.tasks) if first else (*own.tasks, ""))


def _ranks(windows: tuple[Workload, Workload], numbers: Sequence[Ints], tables: Sequence[Ints]) -> RankTable:
    """The ranks of both engines, one behind the other."""
    before = len(windows[0].ranks)
    width = max(each.shape[1] for each in tables)
    wide = [np.pad(each, ((0, 0), (0, width - each.shape[1])), constant_values=NOBODY) for each in tables]
    neighbours = {
        name: np.concatenate([getattr(windows[0].ranks, name), getattr(windows[1].ranks, name) + before])
        for name in ("next", "previous", "ring_next", "ring_previous")
    }
    return RankTable(np.concatenate(numbers), **neighbours, others=np.concatenate(wide))


def check_chunks(steps: Sequence[tuple[str, Plan]]) -> None:
    """Raise UsageError unless each step of prefill computes the next part of the same prompts.

    steps: the name and the plan of each step of the engine that sends. The last one leaves the caches that are sent.
    """
    for (before, first), (name, second) in pairwise(steps):
        alike = all(getattr(first, word) == getattr(second, word) for word in ("micro_batch_size", "microbatches"))
        lists = first.requests or second.requests
        if lists or not alike or second.cache_len != first.cache_len + first.seq_len:
            raise UsageError(
                f"{name} does not go on with the prompts of {before}: steps of prefill whose caches are sent compute "
                "one part after another of the same requests of one length, each with the parts before it in the cache "
                f"({Word('cache_len')})"
            )
