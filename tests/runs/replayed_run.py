"""A trace set of a run with a clock: each node begins as soon as all that it waits for has ended, on any number of
streams. It shares nothing with `stagedb.runs`: it reads what a simulator reads, and the exact durations."""

import heapq
import json
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import read_trace


def replay_step(directory: Path, without: Collection[str] = ()) -> int:
    """Ns until the last node of the last rank has ended. without: kinds of nodes that take no time."""
    manifest = json.loads((directory / "manifest.json").read_text())
    name, world = manifest["name"], manifest["world"]
    groups = json.loads((directory / f"{name}.json").read_text())
    traces = [read_trace(directory / f"{name}.{rank}.et") for rank in range(world)]
    waiting: list[dict[int, int]] = []
    children: list[dict[int, list[int]]] = []
    rows = [{node: row for row, node in enumerate(trace.ids)} for trace in traces]
    for trace in traces:
        waiting.append({})
        children.append(defaultdict(list))
        for node, data, ctrl in zip(trace.ids, trace.data_deps, trace.ctrl_deps, strict=True):
            waiting[-1][node] = len({*data, *ctrl})
            for each in {*data, *ctrl}:
                children[-1][each].append(node)
    events: list[tuple[int, int, int]] = []
    calls: dict[tuple[int, int], int] = defaultdict(int)
    here: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    arrived: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    posted: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)

    def value(rank: int, node: int, attribute: str) -> int:
        return int(traces[rank].attributes[attribute][rows[rank][node]])

    def took(rank: int, node: int) -> int:
        kind = traces[rank].attributes["kind"][rows[rank][node]]
        return 0 if kind in without else value(rank, node, "duration_ns")

    def meet(message: tuple[int, int, int], now: int) -> None:
        while arrived[message] and posted[message]:
            at = max(arrived[message].pop(0), now)
            _, node = posted[message].pop(0)
            heapq.heappush(events, (at, message[1], node))

    def begin(rank: int, node: int, now: int) -> None:
        type_ = traces[rank].types[rows[rank][node]]
        if type_ == pb.COMM_COLL_NODE:
            group = value(rank, node, "pg_name")
            call = group, calls[rank, group]
            calls[rank, group] += 1
            here[call].append((now, rank, node))
            if len(here[call]) == len(groups[str(group)]):
                for _, member, its in here[call]:
                    heapq.heappush(events, (now + took(member, its), member, its))
        elif type_ == pb.COMM_RECV_NODE:
            message = value(rank, node, "comm_src"), rank, value(rank, node, "comm_tag")
            posted[message].append((now, node))
            meet(message, now)
        else:
            heapq.heappush(events, (now + took(rank, node), rank, node))

    for rank, counts in enumerate(waiting):
        for node in [node for node, count in counts.items() if not count]:
            begin(rank, node, 0)
    ended, last = 0, 0
    while events:
        now, rank, node = heapq.heappop(events)
        ended, last = ended + 1, max(last, now)
        if traces[rank].types[rows[rank][node]] == pb.COMM_SEND_NODE:
            message = rank, value(rank, node, "comm_dst"), value(rank, node, "comm_tag")
            arrived[message].append(now)
            meet(message, now)
        for child in children[rank][node]:
            waiting[rank][child] -= 1
            if not waiting[rank][child]:
                begin(rank, child, now)
    assert ended == sum(map(len, traces)), "a node never ran"
    return last
