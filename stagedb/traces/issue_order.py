"""The order in which a rank issues its nodes: the ready one with the smallest id goes first."""

import heapq
from collections.abc import Sequence
from itertools import pairwise

from stagedb.traces.trace_reading import TraceColumns


def issue_order(trace: TraceColumns) -> Sequence[int]:
    """The places of a trace's nodes in issue order. Those of a cycle, which never are ready, come last."""
    ids, count = trace.ids, len(trace.ids)
    deps = [{*data, *control} for data, control in zip(trace.data_deps, trace.ctrl_deps, strict=True)]
    if all(a < b for a, b in pairwise(ids)) and all(max(own) < ids[at] for at, own in enumerate(deps) if own):
        return range(count)
    place = {node: at for at, node in enumerate(ids)}
    children: dict[int, list[int]] = {}
    waiting = [0] * count
    for at, own in enumerate(deps):
        for dep in own & place.keys():
            children.setdefault(place[dep], []).append(at)
            waiting[at] += 1
    ready = [(ids[at], at) for at in range(count) if waiting[at] == 0]
    heapq.heapify(ready)
    issued = []
    while ready:
        _, at = heapq.heappop(ready)
        issued.append(at)
        for child in children.get(at, ()):
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, (ids[child], child))
    return [*issued, *(at for at in range(count) if waiting[at] > 0)]
