"""Checks of the columns of a class in a packed set, before anything is made of them."""

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stagedb.lowering.columns import TASK_KINDS
from stagedb.traces.encoded_class import EncodedClass, RankBytes
from stagedb.traces.protobuf_columns import Ints
from stagedb.traces.trace_set import ClassTraces

WIDEST = 9
"""Bytes of a varint that holds any value of 63 bits."""

_TASK = re.compile(rf"(?:{'|'.join(TASK_KINDS)}) (?:0|[1-9][0-9]{{0,17}}): ([0-9]{{1,18}})-([0-9]{{1,18}})")


def wrong_class(encoded: EncodedClass, ranks: RankBytes, every: Ints, size: int) -> str | None:
    """Why a class would reach outside of its own bytes, or None. `every` are all ranks of the class.

    size: bytes that a plain trace of the class's ranks has.
    """
    if encoded.width.shape != (1,) or not 1 <= encoded.width[0] <= WIDEST:
        return "its ids have no width"
    width = int(encoded.width[0])
    for name in ("data", "slot", "patch"):
        ends = getattr(encoded, f"{name}_starts")
        held = encoded.data if name == "data" else encoded.slots if name == "slot" else encoded.patches
        if len(ends) != len(encoded.data_starts) or len(ends) < 2 or ends[0] != 0 or ends[-1] != len(held):
            return f"its templates do not divide their {name}"
        if (np.diff(ends) < 0).any():
            return f"its templates' {name} goes backwards"
    sizes = np.diff(encoded.data_starts)
    lengths = {len(encoded.slots), len(encoded.slot_refs), len(encoded.slot_offsets)}
    if len(lengths) != 1 or len(encoded.patches) != len(encoded.patch_sources):
        return "columns that belong together have different lengths"
    if encoded.references.ndim != 2 or ranks.values.ndim != 2:
        return "a matrix is none"
    if len(encoded.references) != len(encoded.tasks) or len(ranks.values) != len(ranks.ranks):
        return "rows that belong together are different in number"
    room = np.repeat(sizes, np.diff(encoded.slot_starts)) - width
    if _outside(encoded.slots, room + 1) or _outside(encoded.slot_refs, encoded.references.shape[1]):
        return "an id is outside of its template"
    room = np.repeat(sizes, np.diff(encoded.patch_starts))
    if _outside(encoded.patches, room) or _outside(encoded.patch_sources, ranks.values.shape[1]):
        return "a byte of a rank is outside of its template"
    if _outside(encoded.tasks, len(sizes)):
        return "a task has no template"
    if not len(encoded.tasks) or not len(ranks.ranks):
        return "it has no task, or no rank"
    if not np.isin(ranks.ranks, every).all() or len(np.unique(ranks.ranks)) != len(ranks.ranks):
        return "a rank is not of the class, or there twice"
    if encoded.size != size:
        return f"its files have {encoded.size:,} bytes, not {size:,}"
    return None


def _outside(values: npt.NDArray[np.integer], end: Ints | int) -> bool:
    return bool(((values < 0) | (values >= end)).any())


def wrong_facts(traces: ClassTraces) -> str | None:
    """Where the row of a class differs from its columns, or None. The columns have been checked."""
    encoded, facts = traces.encoded, traces.facts
    if encoded.digest != facts["encoding"]:
        return "the digest of its encoding is not the one in the index"
    counts = [_messages(encoded.data[first:end].tobytes()) for first, end in _pairs(encoded.data_starts)]
    if None in counts:
        return "a template is not made of whole messages"
    # The first template is the file's beginning: one message, which is no node.
    if counts[0] != 1 or encoded.tasks[0] != 0 or (encoded.tasks[1:] == 0).any():
        return "its files do not begin with their metadata"
    nodes: Ints = np.array(counts, np.int64)[encoded.tasks[1:]]
    if nodes.sum() != facts["nodes"]:
        return f"its files have {nodes.sum():,} nodes, not {facts['nodes']:,}"
    ends = np.cumsum(nodes)
    ranges = [match and (int(match[1]), int(match[2])) for match in map(_TASK.fullmatch, facts["tasks"])]
    if ranges != list(zip((ends - nodes + 1).tolist(), ends.tolist(), strict=True)):
        return "its tasks are not those in the index"
    return None


def _pairs(starts: Ints) -> Iterator[tuple[int, int]]:
    return zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)


def _messages(data: bytes) -> int | None:
    """The number of messages in these bytes, each with its length before it; None if the last one is cut off."""
    at = count = 0
    while at < len(data):
        size = shift = 0
        while True:
            if at == len(data) or shift > 28:
                return None
            byte = data[at]
            size |= (byte & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if byte < 0x80:
                break
        at, count = at + size, count + 1
    return count if at == len(data) else None
