"""The order of two tasks that run together: a forward, and the backward of another micro-batch or chunk, or a forward.

It is that of Megatron-Core's combined 1F1B (`TransformerLayerSchedulePlan.run` and `TransformerModelChunkSchedulePlan`,
core/models/common/model_chunk_schedule_plan.py). The i-th layer of the forward runs with the i-th last one of the
backward. Each of the two is in parts, which the exchanges of tokens divide, and the parts take turns:

    backward   combine         experts   dispatch            attention
    forward            attention       dispatch    experts, combine

So each exchange has a part of the other task to hide behind. Layers of the longer task come after those of the other.
What reads a forward's combined tokens comes with the next layer's attention, after the backward's own.

Two forwards, of the halves of a batch that is served, take turns in the same way (SGLang's two-batch overlap):

    first      attention, dispatch                       experts, combine
    second                          attention, dispatch                   experts, combine

Those of a decode are in five stages, the second one two behind the first, as SGLang has them after DeepSeek's profile
(`_compute_moe_deepseek_blog_decode` in python/sglang/srt/operations_strategy.py): what is before the attention's
kernel; that kernel up to the choice of experts; the dispatch and the shared experts; the experts; the combined tokens.
So a dispatch is behind the shared experts and the other's first stage, and a combine behind the other's attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from stagedb.ir.facts import FEED_FORWARD
from stagedb.lowering.columns import COLLECTIVE, RECV, SEND, UPWARD, ClassColumns, Ints
from stagedb.plans import Plan
from stagedb.plans.mesh import TOKEN_AXES
from stagedb.schedules import pairs
from stagedb.systems.tables.operator_times import is_attention_kernel, over_cache
from stagedb.workflows import RECOMPUTE

_PARTS = 8
"""Places of a layer in a pair's order."""
_COMBINE_BACK, _ATTENTION, _EXPERTS_BACK, _DISPATCH, _DISPATCH_BACK, _EXPERTS, _ATTENTION_BACK = range(7)
_BEGIN, _BEGIN_BACK = 0, 1
"""Places before all layers: embedding and receives, then head and loss of the backward."""
_END = 1 << 40
_SENDS, _SENDS_BACK, _LAST, _LAST_BACK = range(_END, _END + 4)
"""Places after all layers: messages, then the head of the forward and the embedding of the backward."""


def joined_tasks(columns: ClassColumns, plan: Mapping[str, Any]) -> ClassColumns:
    """A class with its tasks that run together, as the plan has them. plan: its words."""
    if not plan.get("overlap_experts"):
        return columns
    order = Plan.from_mapping(plan).tasks()[columns.stages[0]]
    return replace(columns, pairs=tuple((each[0], each[-1] + 1) for each in pairs(order)))


def interleaved(columns: ClassColumns, tasks: Sequence[Ints]) -> list[tuple[int, Ints]]:
    """The parts of tasks that run together in their order, each the number of its task and some of its ops.

    tasks: the ops of each in issue order, as rows of the class's ops.
    """
    places = [turns(columns, rows) for rows in tasks]
    if all(len(rows) and UPWARD[columns.ops.template[rows[0]]] for rows in tasks):
        decodes = all(_is_over_cache(columns, rows) for rows in tasks)
        of_two = _of_decode if decodes else _of_two
        places = [of_two(columns, rows, places[second], second) for second, rows in enumerate(tasks)]
    if len(tasks) > 2:
        places[2] = _like(columns, tasks[1], places[1], tasks[2])
    owner = np.repeat(np.arange(len(tasks)), [len(rows) for rows in tasks])
    rows = np.concatenate(tasks)
    order = np.argsort(np.concatenate(places), kind="stable")
    return [
        (number, np.array([rows[at] for at in part], np.int64))
        for number, part in groupby(order.tolist(), key=lambda at: int(owner[at]))
    ]


_OF_TWO = {_ATTENTION: 0, _DISPATCH: 0, _EXPERTS: 2}
"""The parts of the first of two forwards by those of a forward next to a backward; the second's are one further."""


def _of_two(columns: ClassColumns, rows: Ints, places: Ints, second: int) -> Ints:
    """The places of a forward next to another one. second: 1 for the second of both."""
    del columns, rows
    inside = (places >= _PARTS) & (places < _END)
    parts = np.array([_OF_TWO.get(part, part) for part in range(_PARTS)])
    return np.where(inside, places // _PARTS * _PARTS + parts[places % _PARTS] + second, places)


_STAGES, _BEHIND = 5, 2
"""Stages of a layer of a decode, and by how many the second of two is behind the first."""


def _is_over_cache(columns: ClassColumns, rows: Ints) -> bool:
    """Whether all attentions of a task have few queries for their keys, as in a decode."""
    ops = columns.ops
    kernels = [ops.dims[row] for row in rows.tolist() if is_attention_kernel(ops.kind[row], ops.dims[row])]
    return bool(kernels) and all(over_cache(dims) for dims in kernels)


def _of_decode(columns: ClassColumns, rows: Ints, places: Ints, second: int) -> Ints:
    """The places of a decode next to another one. places: as of `turns`. second: 1 for the second of both."""
    layer = columns.origins.layer[rows]
    found = places.copy()
    for step, number in enumerate(dict.fromkeys(layer[layer >= 0].tolist()), 1):
        at = np.flatnonzero(layer == number)
        stages = step * _STAGES + _stages(columns, rows[at])
        found[at] = 2 * (stages + _BEHIND * second) + second
    return found


def _stages(columns: ClassColumns, rows: Ints) -> Ints:
    """The stage of each op of a decode's layer. What follows the combined tokens is in the next layer's first one."""
    ops = columns.ops
    found = np.zeros(len(rows), np.int64)
    kernels = [is_attention_kernel(ops.kind[row], ops.dims[row]) for row in rows.tolist()]
    if any(kernels):
        found[kernels.index(True) :] = 1
    first, last = _exchanges(columns, rows)
    if not len(first) or not len(last):
        return found
    found[first[0] :] = 2
    found[first[-1] + 1 :] = 3
    found[last[-1] + 1 :] = 4
    found[last[-1] + 2 :] = _STAGES
    shared = [(ops.facts[row].module or "").endswith(_SHARED) for row in rows.tolist()]
    return np.where(shared, 2, found)


_SHARED = ".shared"
"""The end of the name of a layer's shared experts."""


def turns(columns: ClassColumns, rows: Ints) -> Ints:
    """The place of each op of a task in the alternating order of a pair, ascending. rows: its ops in issue order."""
    found = np.zeros(len(rows), np.int64)
    if not len(rows):
        return found
    upward = bool(UPWARD[columns.ops.template[rows[0]]])
    layer = columns.origins.layer[rows]
    inside = np.flatnonzero(layer >= 0)
    found[:] = _BEGIN if upward else _BEGIN_BACK
    if len(inside):
        after = np.arange(len(rows)) > inside[-1]
        moves = np.isin(columns.ops.type[rows], (SEND, RECV)) & (columns.origins.layer[rows] < 0)
        ends = (_SENDS, _LAST) if upward else (_SENDS_BACK, _LAST_BACK)
        found[after] = np.where(moves[after], *ends)
    parts = _forward_parts if upward else _backward_parts
    for step, number in enumerate(dict.fromkeys(layer[inside].tolist()), 1):
        at = np.flatnonzero(layer == number)
        found[at] = step * _PARTS + parts(columns, rows[at])
    # Buckets between layers, and all that has no part of its own, follow what is before them.
    return np.maximum.accumulate(found)


def _forward_parts(columns: ClassColumns, rows: Ints) -> Ints:
    first, second = _exchanges(columns, rows)
    found = np.full(len(rows), _ATTENTION)
    if not len(first):
        found[_feed_forward(columns, rows) :] = _EXPERTS
        return found
    found[first[0] :] = _DISPATCH
    found[first[-1] + 1 :] = _EXPERTS
    if len(second):
        found[second[-1] + 1 :] = _PARTS + _ATTENTION
    return found


def _backward_parts(columns: ClassColumns, rows: Ints) -> Ints:
    first, second = _exchanges(columns, rows)
    found = np.full(len(rows), _ATTENTION_BACK)
    if not len(first):
        found[: len(rows) - _feed_forward(columns, rows[::-1])] = _EXPERTS_BACK
        return found
    found[: first[-1] + 1] = _COMBINE_BACK
    if len(second):
        found[first[-1] + 1 : second[-1] + 1] = _EXPERTS_BACK
        found[second[0] : second[-1] + 1] = _DISPATCH_BACK
    return found


def _exchanges(columns: ClassColumns, rows: Ints) -> tuple[Ints, Ints]:
    """The exchanges of tokens before a layer's matmuls of experts, and those after them. Operators that a backward
    computes again do not count.
    """
    ops = columns.ops
    again = np.array([ops.phase[row] == RECOMPUTE for row in rows.tolist()], bool)
    on_axis = np.array([ops.axis[row] in TOKEN_AXES for row in rows.tolist()], bool)
    found = np.flatnonzero((ops.type[rows] == COLLECTIVE) & on_axis & ~again)
    matmuls = np.array([ops.kind[row] == "matmul" for row in rows.tolist()], bool) & ~again
    computed = np.cumsum(matmuls)[found]
    before = computed == computed[0] if len(found) else computed.astype(bool)
    return found[before], found[~before]


def _feed_forward(columns: ClassColumns, rows: Ints) -> int:
    """How many ops are before the first one of a layer's feed-forward; all, if it has none."""
    inside = (columns.ops.facts[row].part == FEED_FORWARD for row in rows.tolist())
    return next((at for at, found in enumerate(inside) if found), len(rows))


def _like(columns: ClassColumns, inputs: Ints, places: Ints, weights: Ints) -> Ints:
    """The places of a backward's second half: each op's are those of the op in the first half that reads the same.

    An op without such an op comes with the next one of its layer that has one, or at the end of its layer.
    """
    known = {_forward_op(columns, row): place for row, place in zip(inputs.tolist(), places.tolist(), strict=True)}
    own = turns(columns, weights)
    layer = columns.origins.layer[weights]
    found = np.array([known.get(_forward_op(columns, row), -1) for row in weights.tolist()], np.int64)
    latest: dict[int, int] = {}
    for at in range(len(weights) - 1, -1, -1):
        number = int(layer[at])
        if found[at] < 0:
            found[at] = _last_part(own[at]) if number < 0 else latest.get(number, _last_part(own[at]))
        latest[number] = int(found[at])
    return np.maximum.accumulate(found)


def _last_part(place: int) -> int:
    """The place of the part that ends the same layer of a backward; a place outside layers stays as it is."""
    return place // _PARTS * _PARTS + _ATTENTION_BACK if _PARTS <= place < _END else place


def _forward_op(columns: ClassColumns, row: int) -> tuple[int, str, int]:
    """The operator that an op differentiates, or itself: its layer, its name in the graph and its turn."""
    origin, layer = columns.ops.facts[row].origin, int(columns.origins.layer[row])
    return (layer, columns.origins.sym[row], int(columns.ops.turn[row])) if origin is None else (layer, origin, -1)
