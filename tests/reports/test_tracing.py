"""A trace as Perfetto's own message classes read it: tracks, nesting, messages, and the profile's times."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackDescriptor, TrackEvent

from stagedb.errors import UsageError
from stagedb.lowering.columns import RECV, SEND
from stagedb.reports import StepView, trace
from stagedb.store import Store
from stagedb.timing.node_graph import NO_STREAM
from tests.reports.jobs import PLANS, job


@dataclass
class Slice:
    """A slice as a viewer shows it. depth 0 is the outermost."""

    track: int
    name: str
    start: int
    depth: int
    args: Mapping[str, Any]
    flows: tuple[int, ...]
    finish: int = -1


@dataclass
class Read:
    """A trace as a viewer has it: slices and instants by track, tracks by number."""

    tracks: dict[int, Any] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    instants: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, content: bytes) -> "Read":
        found = cls()
        names: dict[int, str] = {}
        keys: dict[int, str] = {}
        values: dict[int, str] = {}
        stacks: dict[int, list[Slice]] = {}
        latest: dict[int, int] = {}
        message = Trace.FromString(content)
        assert message.packet[0].HasField("track_descriptor")
        for packet in message.packet:
            if packet.HasField("track_descriptor"):
                descriptor = packet.track_descriptor
                assert descriptor.parent_uuid == 0 or descriptor.parent_uuid in found.tracks
                found.tracks[descriptor.uuid] = descriptor
            for target, entries in (
                (names, packet.interned_data.event_names),
                (keys, packet.interned_data.debug_annotation_names),
            ):
                target.update({each.iid: each.name for each in entries})
            strings = packet.interned_data.debug_annotation_string_values
            values.update({each.iid: each.str.decode() for each in strings})
            if not packet.HasField("track_event"):
                continue
            event, now = packet.track_event, packet.timestamp
            track = event.track_uuid
            assert now >= latest.get(track, 0)
            latest[track] = now
            stack = stacks.setdefault(track, [])
            if event.type == TrackEvent.TYPE_SLICE_END:
                stack.pop().finish = now
                continue
            if event.type == TrackEvent.TYPE_COUNTER:
                found.counters.setdefault(track, []).append((now, event.counter_value))
                continue
            args = {
                keys[each.name_iid]: values[each.string_value_iid]
                if each.HasField("string_value_iid")
                else each.bool_value or each.uint_value
                for each in event.debug_annotations
            }
            flows = (*event.flow_ids, *event.terminating_flow_ids)
            made = Slice(track, names[event.name_iid], now, len(stack), args, flows)
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                stack.append(made)
                found.slices.append(made)
            else:
                assert event.type == TrackEvent.TYPE_INSTANT
                found.instants.append(made)
        assert not any(stacks.values()), "a slice has no end"
        return found

    def children(self, parent: int) -> dict[str, int]:
        """Tracks of a track, by name, in their order."""
        rows = sorted(
            (track for track in self.tracks.values() if track.parent_uuid == parent),
            key=lambda track: track.sibling_order_rank,
        )
        return {track.name: track.uuid for track in rows}

    def on(self, track: int, depth: int) -> list[Slice]:
        return [each for each in self.slices if (each.track, each.depth) == (track, depth)]


def groups(found: Read) -> Iterator[tuple[str, dict[str, int]]]:
    """The lanes' tracks."""
    root = next(track for track in found.tracks.values() if not track.parent_uuid)
    assert root.child_ordering == TrackDescriptor.EXPLICIT
    for name, number in list(found.children(root.uuid).items())[1:]:
        yield name, found.children(number)


@pytest.mark.parametrize("name", PLANS)
def test_a_trace_has_every_node_when_the_profile_has_it(embedded_store: Store, name: str) -> None:
    made = job(embedded_store, name)
    traced = trace(made, "op")
    found = Read.of(traced.content)
    assert len(found.slices) == traced.slices
    net, times = made.times.network, made.times
    lanes = list(groups(found))
    assert len(lanes) == len(made.lanes)
    for lane, (_, tracks) in zip(made.of_stages(None), lanes, strict=True):
        ops, nodes = net.columns[lane.number].ops, times.nodes(lane.number)
        stream = net.stream[net.firsts[lane.number] : net.firsts[lane.number + 1]]
        wanted = [
            (ops.name[op], int(begin), int(end), ops.axis[op] or None, int(ops.flops[op]) or None, int(left))
            for op, begin, end, on, left in zip(nodes.op, nodes.start, nodes.finish, stream, nodes.slack, strict=True)
            if on != NO_STREAM
        ]
        shown = [each for track in tracks.values() for each in found.on(track, 1)]
        got = [
            (each.name, each.start, each.finish, each.args.get("axis"), each.args.get("flops"), each.args["slack_ns"])
            for each in shown
        ]
        assert sorted(got, key=str) == sorted(wanted, key=str)
        assert sum(bool(each.args.get("critical")) for each in shown) == int(
            np.isin(np.flatnonzero((net.lane == lane.number) & (net.stream != NO_STREAM)), times.path.node).sum()
        )
        compute = [each for each in shown if each.track == tracks["compute"]]
        assert sum(each.finish - each.start for each in compute) == times.lanes[lane.number].busy
        rules = {each.args["rule"] for each in shown}
        modelled = {"ring", "tree", "direct", "hierarchical", "p2p", "roofline:compute", "roofline:memory"}
        assert rules <= modelled | {"table:matmul", "table:attention", "table:experts", "table:collective"}


@pytest.mark.parametrize("name", PLANS)
def test_operators_are_inside_their_task(embedded_store: Store, name: str) -> None:
    made = job(embedded_store, name)
    found = Read.of(trace(made, "op").content)
    for _, tracks in groups(found):
        for track in tracks.values():
            inner = found.on(track, 1)
            for outer in found.on(track, 0):
                inside = [each for each in inner if outer.start <= each.start and each.finish <= outer.finish]
                assert inside
                assert (inside[0].start, inside[-1].finish) == (outer.start, outer.finish)
            assert not [each for each in found.slices if each.track == track and each.depth > 1]
    names = {each.name for each in found.slices if each.depth == 0}
    assert "optimizer step" in names or any("step" in each for each in names)
    chunk = ", chunk 0" if "virtual_stages" in PLANS[name] else ""
    assert f"forward of micro-batch 0{chunk}" in names


@pytest.mark.parametrize("granularity", ["op", "task"])
def test_messages_lead_from_what_sends_to_what_receives(embedded_store: Store, granularity: str) -> None:
    made = job(embedded_store, "interleaved")
    traced = trace(made, granularity)
    found = Read.of(traced.content)
    net, times = made.times.network, made.times.timeline
    sent = {flow: each for each in found.slices for flow in each.flows}
    received = {flow: each for each in found.instants for flow in each.flows}
    assert sent.keys() == received.keys()
    assert len(sent) == traced.flows == int((net.type == SEND).sum()) == int((net.type == RECV).sum())
    assert all(sent[flow].finish <= received[flow].start for flow in sent)
    assert all(sent[flow].args["bytes"] == received[flow].args["bytes"] for flow in sent)
    ends = sorted(times.finish[net.event[net.type == RECV]].tolist())
    assert sorted(each.start for each in found.instants) == ends
    assert {found.tracks[each.track].name for each in found.instants} == {"received"}


def test_the_critical_path_is_on_top_and_as_long_as_the_step(embedded_store: Store) -> None:
    made = job(embedded_store)
    found = Read.of(trace(made).content)
    root = next(track.uuid for track in found.tracks.values() if not track.parent_uuid)
    name, number = next(iter(found.children(root).items()))
    assert name == "critical path"
    legs = found.on(number, 0)
    assert legs[0].start == 0
    assert legs[-1].finish == made.times.step
    assert all(one.finish == other.start for one, other in pairwise(legs))
    assert legs[0].name == "stage 0: forward of micro-batch 0"


def test_tasks_alone_are_the_same_tasks(embedded_store: Store) -> None:
    made = job(embedded_store)
    fine, coarse = (Read.of(trace(made, each).content) for each in ("op", "task"))

    def tasks(found: Read) -> list[tuple[int, str, int, int]]:
        return [(each.track, each.name, each.start, each.finish) for each in found.slices if each.depth == 0]

    assert tasks(coarse) == tasks(fine)
    assert {each.args["kind"] for each in coarse.slices if each.depth == 1} == {"send"}


def test_what_ranks_hold_is_a_counter(embedded_store: Store) -> None:
    made = job(embedded_store)
    found = Read.of(trace(made, "task").content)
    assert len(found.counters) == len(made.lanes)
    for lane, (_, tracks) in zip(made.of_stages(None), groups(found), strict=True):
        track = tracks["memory (the most within each task)"]
        memory = next(each for each in made.memory if each.rank_class.number == lane.rank_class)
        values = found.counters[track]
        assert max(value for _, value in values) == sum(memory.usage.at(memory.peak).values())
        assert values[-1][0] == made.times.step


def test_some_stages_are_shown_and_the_others_are_counted(embedded_store: Store) -> None:
    made = job(embedded_store, "zb-h1")
    traced = trace(made, "task", [1, 2])
    found = Read.of(traced.content)
    assert [name.split(" (")[0] for name, _ in groups(found)] == ["stage 1", "stage 2"]
    assert traced.left_out == ("2 of 4 lanes (--only)",)
    both = {flow for each in found.slices for flow in each.flows} & {
        flow for each in found.instants for flow in each.flows
    }
    assert len(both) == traced.flows > 0
    with pytest.raises(UsageError, match="there is no stage 4: --only takes stages from 0 to 3"):
        trace(made, "task", [4])


def test_a_large_step_is_drawn_by_its_tasks(embedded_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made: StepView = job(embedded_store)
    assert trace(made).left_out == ()
    monkeypatch.setattr("stagedb.reports.perfetto_trace.MOST", len(made.times.network) - 1)
    traced = trace(made)
    assert traced.content == trace(made, "task").content
    assert len(traced.left_out) == 1
    assert "--granularity op" in traced.left_out[0]
    with pytest.raises(UsageError, match="unknown granularity 'kernel': --granularity is op or task"):
        trace(made, "kernel")
