"""Each rule is reported when, and only when, it is broken."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.set_validation import Report, validate_traces
from stagedb.traces.trace_rules import CONVENTIONS, RULES
from tests.sampling import examples
from tests.traces.crafted import CraftedNode, Set, all_reduce, compute, measured, recv, send, sound, write


def check(nodes: Set, groups: dict[int, list[int]] | None = None) -> Report:
    with TemporaryDirectory() as scratch:
        return validate_traces(write(Path(scratch), nodes, groups))


def test_a_sound_set_passes_and_runs_to_its_end() -> None:
    report = check(sound())
    assert report.faults == ()
    assert (report.files, report.nodes, report.world, report.replayed) == (4, 20, 4, True)
    assert report.summary == "4 ranks, 20 nodes, every rule and a replay"


Change = Callable[[list[CraftedNode]], list[CraftedNode]]


def at(place: int, change: Callable[[CraftedNode], CraftedNode]) -> Change:
    return lambda nodes: [change(node) if i == place else node for i, node in enumerate(nodes)]


def other(**fields: object) -> Callable[[CraftedNode], CraftedNode]:
    return lambda node: dataclasses.replace(node, **fields)  # type: ignore[arg-type]


# Rank 0's nodes: 0 compute, 1 all-reduce, 2 send, 3 receive, 4 compute.
BREAKS: dict[str, tuple[str, Change]] = {
    "a memory node": ("type", at(0, other(type=pb.MEM_LOAD_NODE))),
    "an unknown type": ("type", at(0, other(type=77))),
    "id zero": ("order", lambda nodes: at(1, other(data_deps=(0,)))(at(0, other(id=0))(nodes))),
    "ids out of order": ("order", lambda nodes: [nodes[0], nodes[3], *nodes[1:3], nodes[4]]),
    "the same id twice": ("id", lambda nodes: [*nodes, compute(5)]),
    "a comma in a name": ("name", at(0, other(name="a, b COMP_NODE"))),
    "an equals sign in a name": ("name", at(0, other(name="a=b COMP_NODE"))),
    "a name without its type": ("name", at(0, other(name="matmul"))),
    "an unknown dependency": ("deps", at(4, other(data_deps=(99,)))),
    "a dependency on itself": ("deps", at(4, other(data_deps=(5,)))),
    "a dependency twice": ("deps", at(4, other(data_deps=(4, 4)))),
    "a dependency twice, data and control": ("deps", at(4, other(data_deps=(4,), ctrl_deps=(4,)))),
    "a cycle": ("cycle", lambda nodes: at(1, other(data_deps=(1, 5)))(at(4, other(data_deps=(2,)))(nodes))),
    "no root": ("root", lambda nodes: [dataclasses.replace(n, data_deps=(5 if n.id < 5 else 1,)) for n in nodes]),
    "a size of another type": ("attribute", at(1, other(fields={"comm_size": "int32_val"}))),
    "a processor's operator": ("label", at(0, lambda node: node.but(is_cpu_op=True))),
    "no word on the processor": ("label", at(0, lambda node: node.but(is_cpu_op=None))),
    "communication of a processor": ("attribute", at(1, lambda node: node.but(is_cpu_op=True))),
    "communication without a device": ("attribute", at(1, lambda node: node.but(is_cpu_op=None))),
    "no operations": ("compute", at(0, lambda node: node.but(num_ops=0))),
    "no bytes": ("compute", at(0, lambda node: node.but(tensor_size=None))),
    "a collective that is not simulated": ("collective", at(1, lambda node: node.but(comm_type=pb.BROADCAST))),
    "an empty collective": ("collective", at(1, lambda node: node.but(comm_size=0))),
    "a tiny all-gather": ("collective", at(1, lambda node: node.but(comm_type=pb.ALL_GATHER, comm_size=8))),
    "an unknown group": ("group", at(1, lambda node: node.but(pg_name="12"))),
    "a group without the rank": ("group", at(1, lambda node: node.but(pg_name="11"))),
    "a group that is no number": ("group", at(1, lambda node: node.but(pg_name="tp"))),
    "a send to itself": ("message", at(2, lambda node: node.but(comm_dst=0))),
    "a send out of the world": ("message", at(2, lambda node: node.but(comm_dst=9))),
    "an empty message": ("message", at(2, lambda node: node.but(comm_size=0))),
    "a message of another size": ("message", at(2, lambda node: node.but(comm_size=513))),
    "a message with another tag": ("message", at(2, lambda node: node.but(comm_tag=7))),
    "a negative tag": ("message", at(2, lambda node: node.but(comm_tag=-1))),
    "a receive without a send": ("message", lambda nodes: [*nodes, recv(6, 2, 5)]),
    "a collective of another size": ("matching", at(1, lambda node: node.but(comm_size=2048))),
    "a collective of another type": ("matching", at(1, lambda node: node.but(comm_type=pb.REDUCE_SCATTER))),
    "a collective too many": ("matching", lambda nodes: [*nodes, all_reduce(6, 10, ctrl=(3,))]),
    "a send that does not wait": ("chain", at(2, other(data_deps=(1,)))),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_a_broken_rule_is_named(broken: str) -> None:
    rule, change = BREAKS[broken]
    nodes = sound()
    report = check({**nodes, 0: change(nodes[0])})
    found = report.faults if rule in RULES else report.conventions
    assert rule in {fault.rule for fault in found}, report
    assert report.replayed is (rule in CONVENTIONS)
    assert {fault.rule for fault in report.faults} <= set(RULES)
    assert {fault.rule for fault in report.conventions} <= set(CONVENTIONS)


@pytest.mark.parametrize("broken", [name for name, (rule, _) in BREAKS.items() if rule in CONVENTIONS])
def test_in_a_set_with_a_manifest_of_stagedb_a_broken_convention_is_a_fault(broken: str, tmp_path: Path) -> None:
    rule, change = BREAKS[broken]
    nodes = sound()
    directory = write(tmp_path / "set", {**nodes, 0: change(nodes[0])})
    (directory / "manifest.json").write_text('{"world": 4, "only": null}')
    report = validate_traces(directory)
    assert [fault.rule for fault in report.faults] == [rule] * len(report.faults) and report.faults
    assert report.conventions == ()


def test_a_measured_set_of_another_tool_is_sound_and_its_style_is_apart() -> None:
    report = check(measured())
    assert report.faults == () and report.replayed
    assert {kind.rule: kind.count for kind in report.convention_kinds if kind.rule == "counts"} == {"counts": 8}
    assert {kind.rule for kind in report.convention_kinds} == {"name", "counts"}


def test_without_durations_what_is_not_counted_is_a_fault() -> None:
    bare = {rank: [dataclasses.replace(node, micros=0) for node in row] for rank, row in measured().items()}
    assert {kind.rule for kind in check(bare).kinds} == {"compute"}


def test_what_hangs_comes_before_everything_else_of_a_set_of_another_tool() -> None:
    nodes = measured()
    nodes[1][1] = dataclasses.replace(nodes[1][1], data_deps=(1, 5))
    nodes[1][4] = dataclasses.replace(nodes[1][4], data_deps=(2,))
    nodes[3][0] = nodes[3][0].but(comm_tag=9)
    nodes[2][3] = dataclasses.replace(nodes[2][3], data_deps=(99,)).but(comm_type=pb.BARRIER)
    report = check(nodes)
    assert [fault.rule for fault in report.faults][:2] == ["cycle", "deps"]
    assert [kind.rule for kind in report.kinds][:3] == ["cycle", "deps", "message"]
    assert report.kinds[0].places == "rank 1 node 2"
    assert "waits for itself: 2 -> 5 -> 2" in report.kinds[0].message or "5 -> 2 -> 5" in report.kinds[0].message


def test_faults_of_one_kind_are_one_row_with_its_count_and_first_places() -> None:
    nodes = {rank: [node.but(num_ops=None) for node in row] for rank, row in sound().items()}
    report = check(nodes)
    (kind,) = report.kinds
    assert (kind.rule, kind.count, kind.ranks, report.counted) == ("compute", 8, 4, 8)
    assert kind.places == "rank 0 node 1, rank 0 node 5, rank 1 node 1"


def test_the_smallest_ready_id_goes_first_in_any_order_of_the_file() -> None:
    """Two collectives of two groups are ready at once: their ids decide, as in a simulator, and not their places."""
    both = {10: [0, 1], 11: [0, 1]}
    nodes = {
        0: [all_reduce(1, 10), all_reduce(2, 11)],
        1: [all_reduce(2, 11), all_reduce(1, 10)],
    }
    assert check(nodes, both).faults == ()
    assert {kind.rule for kind in check(nodes, both).convention_kinds} == {"order", "chain"}


def test_collectives_are_compared_in_issue_order_and_not_in_that_of_the_file() -> None:
    """The simulator pairs the first that each rank issues: sizes that fit line by line of the files may not fit."""
    first, second = all_reduce(1, 10, size=1024), all_reduce(2, 10, 1, size=2048)
    assert check({0: [first, second], 1: [second, first]}, {10: [0, 1]}).faults == ()
    # By the ids, and by the dependencies, rank 1 issues the second line of its file first.
    for crossed in (
        [all_reduce(2, 10, size=1024), all_reduce(1, 10, size=2048)],
        [all_reduce(1, 10, 2, size=1024), all_reduce(2, 10, size=2048)],
    ):
        report = check({0: [first, second], 1: crossed}, {10: [0, 1]})
        assert [kind.rule for kind in report.kinds] == ["matching"]


def test_messages_are_compared_in_issue_order() -> None:
    small, large = send(1, 1, 0).but(comm_size=99), send(2, 1, 0, 1)
    received = [recv(1, 0, 0).but(comm_size=99), recv(2, 0, 0)]
    assert check({0: [large, small], 1: received}, {}).faults == ()


def test_nanoseconds_alone_are_no_durations_for_a_simulator() -> None:
    bare = {rank: [timed(node, 5000, 0) for node in row] for rank, row in measured().items()}
    assert {kind.rule for kind in check(bare).kinds} == {"compute"}


def test_every_missing_file_counts() -> None:
    (kind,) = check({0: [compute(1)], 5: [compute(1)]}, {}).kinds
    assert (kind.rule, kind.count, kind.places) == ("files", 4, "rank 1, rank 2, rank 3")
    far = check({0: [compute(1)], 200_000: [compute(1)]}, {})
    assert [kind.count for kind in far.kinds] == [100_000, 1]
    assert "99,999 further files are missing" in far.kinds[1].message


def test_the_file_of_a_rank_has_the_name_that_a_simulator_opens(tmp_path: Path) -> None:
    directory = write(tmp_path / "set", sound())
    (directory / "crafted.1.et").rename(directory / "crafted.01.et")
    assert [(kind.rule, kind.places) for kind in validate_traces(directory).kinds] == [("files", "rank 1")]


def test_places_that_are_not_listed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagedb.traces.trace_rules.MOST_KEPT", 3)
    report = check(measured())
    assert (len(report.conventions), report.left_out) == (3, sum(kind.count for kind in report.convention_kinds) - 3)


def test_a_rank_that_no_set_has_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="rank 999999999999, and a set has at most 16,777,216 ranks"):
        check({0: [compute(1)], 999_999_999_999: [compute(1)]}, {})


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from(sorted(BREAKS)), st.sampled_from([0, 1]))
def test_the_first_fault_is_on_the_rank_that_breaks_the_rule(broken: str, rank: int) -> None:
    rule, change = BREAKS[broken]
    nodes = sound()
    if rank == 1:  # the same place in the other tensor-parallel rank
        nodes = {**nodes, 1: [node.but(comm_dst=3) if node.type == pb.COMM_SEND_NODE else node for node in nodes[1]]}
    report = check({**nodes, rank: change(nodes[rank])})
    faults = [fault for fault in (*report.faults, *report.conventions) if fault.rule == rule]
    assert faults
    # What two ranks disagree on is reported at either of them.
    ends = {"matching": {0, 1}, "message": {rank, rank + 2}}.get(rule, {rank})
    assert {fault.rank for fault in faults} & ends


def timed(node: CraftedNode, ns: int | None = 1500, micros: int = 2) -> CraftedNode:
    return dataclasses.replace(node.but(duration_ns=ns), micros=micros)


def test_durations_of_every_node_pass() -> None:
    nodes = {rank: [timed(node) for node in row] for rank, row in sound().items()}
    assert check(nodes).conventions == ()
    nodes[0] = [
        timed(node, ns, micros)
        for node, ns, micros in zip(nodes[0], (0, 1, 499, 1499, 10**12), (0, 1, 1, 1, 10**9), strict=True)
    ]
    assert check(nodes).conventions == ()
    # Those of a run are in microseconds, of whichever nodes it measured.
    assert check({**sound(), 0: [timed(node, None, node.id % 2) for node in sound()[0]]}).faults == ()


@pytest.mark.parametrize(
    ("ns", "micros", "text"),
    [
        (None, 0, "duration_ns is missing"),
        (None, 2, "duration_ns is missing"),
        (-1, 0, "duration_ns is -1"),
        (1500, 1, "duration_micros is 1, and duration_ns 1500"),
        (1499, 2, "duration_micros is 2, and duration_ns 1499"),
        (1, 0, "duration_micros is 0, and duration_ns 1"),
        (0, 1, "duration_micros is 1, and duration_ns 0"),
    ],
)
def test_a_duration_that_is_wrong_is_named(ns: int | None, micros: int, text: str) -> None:
    nodes = {rank: [timed(node) for node in row] for rank, row in sound().items()}
    report = check({**nodes, 1: at(3, lambda node: timed(node, ns, micros))(nodes[1])})
    assert [(fault.rank, fault.node, fault.rule) for fault in report.conventions] == [(1, 4, "duration")]
    assert text in report.conventions[0].message


def test_a_rank_without_durations_among_others_is_named() -> None:
    report = check({rank: row if rank == 2 else [timed(node) for node in row] for rank, row in sound().items()})
    assert [(fault.rank, fault.rule) for fault in report.conventions] == [(2, "duration")]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({10: [0], 11: [2, 3]}, "has 1 member"),
        ({10: [0, 0, 1], 11: [2, 3]}, "twice"),
        ({10: [0, 1, 9], 11: [2, 3]}, "rank 9"),
        ({0: [0, 1], 10: [0, 1], 11: [2, 3]}, "below 1"),
    ],
)
def test_a_faulty_group_is_named(groups: dict[int, list[int]], message: str) -> None:
    report = check(sound(), groups)
    assert any(fault.rule == "group" and message in fault.message for fault in report.faults)


def test_what_hangs_is_found_by_the_replay() -> None:
    """Each file is sound alone, and every collective and message has its counterpart; the order across ranks hangs."""
    nodes = {
        0: [all_reduce(1, 10), recv(2, 1, 0), compute(3, 2, ctrl=(1,))],
        1: [recv(1, 0, 1), compute(2, 1), all_reduce(3, 10, 2), send(4, 0, 0, 3)],
    }
    nodes[0].append(send(4, 1, 1, 3, ctrl=(1,)))
    report = check(nodes, {10: [0, 1]})
    assert {(fault.rank, fault.rule) for fault in report.faults} == {(0, "replay"), (1, "replay")}
    assert "waits for rank 1" in report.faults[0].message
    assert "from rank 0 with tag 1 never comes" in report.faults[1].message


def test_a_waiting_collective_holds_back_later_ones() -> None:
    """Two groups in opposite orders: neither rank's first collective finds its partner."""
    both = {10: [0, 1], 11: [0, 1]}
    nodes = {
        0: [all_reduce(1, 10), all_reduce(2, 11, ctrl=(1,))],
        1: [all_reduce(1, 11), all_reduce(2, 10, ctrl=(1,))],
    }
    report = check(nodes, both)
    assert [fault.rule for fault in report.faults] == ["replay", "replay"]


def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path) -> None:
    directory = write(tmp_path / "set", sound())
    (directory / "crafted.1.et").unlink()
    assert [fault.rule for fault in validate_traces(directory).faults] == ["files"]
    shutil.copy(directory / "crafted.0.et", directory / "crafted.1.et")
    whole = (directory / "crafted.2.et").read_bytes()
    (directory / "crafted.2.et").write_bytes(whole[:-5])
    report = validate_traces(directory)
    assert ("framing", 2) in {(fault.rule, fault.rank) for fault in report.faults}


def test_a_slice_is_checked_as_far_as_it_goes(tmp_path: Path) -> None:
    nodes = sound()
    directory = write(tmp_path / "set", {0: nodes[0], 1: nodes[1]})
    (directory / "manifest.json").write_text('{"world": 4, "only": "0-1"}')
    report = validate_traces(directory)
    assert report.faults == ()
    assert (report.files, report.world, report.replayed) == (2, 4, False)


def test_what_is_no_trace_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no traces .*; it is empty"):
        validate_traces(tmp_path)
    with pytest.raises(UsageError, match=r"not a directory: .*of any tool"):
        validate_traces(tmp_path / "absent")
    (tmp_path / "trace.et").write_text("a trace")
    with pytest.raises(UsageError, match=r"NAME\.<rank>\.et.*it has 'trace\.et': rename"):
        validate_traces(tmp_path)
    with pytest.raises(UsageError, match=f"is a file, not a directory: .*such as {tmp_path}"):
        validate_traces(tmp_path / "trace.et")


def test_a_file_that_is_no_trace_is_named_so(tmp_path: Path) -> None:
    directory = write(tmp_path / "set", sound())
    (directory / "crafted.0.et").write_text("hello")
    (fault,) = (each for each in validate_traces(directory).faults if each.rank == 0)
    assert (fault.rule, "is no Chakra trace" in fault.message) == ("framing", True)


def test_a_set_without_its_groups_has_one_fault_that_names_the_file(tmp_path: Path) -> None:
    directory = write(tmp_path / "set", sound())
    (directory / "crafted.json").unlink()
    (fault,) = validate_traces(directory).faults
    assert (fault.rule, fault.place) == ("group", "the set")
    assert fault.message.startswith("crafted.json is missing") and '{"1": [0, 1], ...}' in fault.message


def test_a_whole_set_that_lacks_a_file_is_not_taken_for_a_slice(tmp_path: Path) -> None:
    nodes = sound()
    directory = write(tmp_path / "set", {0: nodes[0], 1: nodes[1]})
    (directory / "manifest.json").write_text('{"world": 4, "only": null}')
    assert [fault.rule for fault in validate_traces(directory).faults][:1] == ["files"]
