"""Rows of a run: made anew each time, counted before, and with a digest that sees each of them in any order."""

import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from stagedb.runs import MeasuredRun, RunDigest, rank_trace, run_digest, run_rows
from stagedb.runs.clocks import JointCollective
from stagedb.runs.rank_trace import RecordedCollective
from stagedb.runs.run_rows import _Meetings
from tests.runs.recordings import small_run


def content() -> tuple[dict[str, Any], dict[str, list[Any]], dict[tuple[str, str, str], list[Any]]]:
    rows = run_rows(small_run(), {})
    nodes = {label: [values for _, values in of] for label, of in rows.nodes.items()}
    return dict(rows.own), nodes, {kind: list(ends) for kind, ends in rows.edges.items()}


def test_rows_are_as_many_as_they_count_each_time() -> None:
    rows = run_rows(small_run(), {})
    for nodes in rows.nodes.values():
        assert len(list(nodes)) == len(nodes) == len(list(nodes))
    for edges in rows.edges.values():
        assert len(list(edges)) == len(edges) == len(list(edges))
    assert all(None not in values.values() for of in rows.nodes.values() for _, values in of)


def test_rows_do_not_depend_on_how_many_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = content()
    monkeypatch.setattr(rank_trace, "_PART", 1)
    monkeypatch.setattr(rank_trace, "_AT_ONCE", 2)
    assert content() == whole


def test_a_digest_needs_no_order_and_no_whole() -> None:
    own, nodes, edges = content()
    whole = run_digest(own, nodes, edges)
    mixed = {label: random.Random(1).sample(of, len(of)) for label, of in reversed(nodes.items())}
    assert run_digest(own, mixed, edges) == whole
    parts = RunDigest()
    for label, of in nodes.items():
        for row in of:
            parts.add_nodes(label, [dict(reversed(row.items()))])
    for kind, ends in edges.items():
        parts.add_edges(kind, ends[:1])
        parts.add_edges(kind, ends[1:])
    assert parts.of({**own, "name": "mine"}) == whole


@pytest.mark.parametrize("seed", range(20))
def test_a_digest_sees_every_change(seed: int) -> None:
    random_ = random.Random(seed)
    own, nodes, edges = content()
    whole = run_digest(own, nodes, edges)
    label = random_.choice([label for label, of in nodes.items() if of])
    row = random_.choice(nodes[label])
    name = random_.choice([*row])
    row[name] = f"{row[name]}x"
    assert run_digest(own, nodes, edges) != whole
    own, nodes, edges = content()
    kind = random_.choice([kind for kind, ends in edges.items() if ends])
    edges[kind].append(edges[kind][0])
    assert run_digest(own, nodes, edges) != whole
    own, nodes, edges = content()
    assert run_digest({**own, "step": own["step"] + 1}, nodes, edges) != whole


def test_runs_of_earlier_formats_keep_their_digest() -> None:
    own, nodes, edges = content()
    earlier: dict[str, Any] = {"format": 2, "world": 2}
    # As it was computed when the format was 2.
    assert run_digest(
        earlier, {"RunLane": [{"id": "a", "lane": 0}]}, {("NEXT", "RunOp", "RunOp"): [("a", "b", {})]}
    ) == ("95aae35e08b419a096d279c1e288c366623d75f5b6b84ccdd89e825206d5a2bb")
    assert run_digest({**own, "format": 2}, nodes, edges) != run_digest(own, nodes, edges)


@pytest.mark.parametrize("seed", range(20))
def test_collectives_are_in_the_order_of_their_members(seed: int) -> None:
    """By a plain sort of the starts, ranks and ends of all members, with many that are the same."""
    random_ = random.Random(seed)
    ranks, count = range(random_.choice([1, 3])), 12
    times = {
        rank: SimpleNamespace(
            start=np.array([random_.randrange(3) for _ in range(count)], np.int64),
            end=np.array([3 + random_.randrange(2) for _ in range(count)], np.int64),
        )
        for rank in ranks
    }
    calls = []
    for place in range(count):
        of = random_.sample(ranks, random_.randint(1, len(ranks)))
        calls.append(JointCollective(RecordedCollective("all_reduce"), dict.fromkeys(of, place), False))
    run = SimpleNamespace(calls=calls, ops={rank: SimpleNamespace(timed=each) for rank, each in times.items()})

    def members(call: JointCollective) -> list[tuple[int, int, int]]:
        found = ((times[rank].start[at], rank, times[rank].end[at]) for rank, at in call.members.items())
        return sorted((int(start), rank, int(end)) for start, rank, end in found)

    wanted = [(each, [(rank, start, end) for start, rank, end in members(each)]) for each in sorted(calls, key=members)]
    meetings = _Meetings.of(cast(MeasuredRun, run))
    assert list(meetings) == wanted and list(meetings) == wanted


def test_a_run_without_collectives_has_no_meeting() -> None:
    run = SimpleNamespace(calls=(), ops={})
    assert list(_Meetings.of(cast(MeasuredRun, run))) == []
