"""Bytes of tokens that are sent once for each rank or node, against counting the pairs of a routing."""

import dataclasses
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb, validate
from stagedb.errors import UsageError
from stagedb.models import Card
from stagedb.plans import Plan
from stagedb.store import Store
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces.trace_reading import read_trace
from tests.ir.tiny import card

EXPERTS, TOP, SEQ, EP = 16, 3, 64, 8
WIDTH = 2
"""Bytes of an activation's element."""


def model() -> Card:
    return dataclasses.replace(card("moe"), experts=EXPERTS, top_k=TOP, max_positions=SEQ)


def table(seed: int, tokens: int = 16) -> list[list[int]]:
    """Random choices, of which some experts get more than others."""
    rng = random.Random(seed)
    likely = [1 + expert % 5 for expert in range(EXPERTS)]
    rows = []
    for _ in range(tokens):
        row: list[int] = []
        while len(row) < TOP:
            (expert,) = rng.choices(range(EXPERTS), likely)
            row += [] if expert in row else [expert]
        rows.append(row)
    return rows


def pairs(rows: list[list[int]], parts: int) -> list[int]:
    """How many tokens of one rank reach each of so many equal parts of the experts."""
    each = EXPERTS // parts
    found = Counter(part for row in rows for part in {expert // each for expert in row})
    return [found[part] * SEQ // len(rows) for part in range(parts)]


def sizes(store: Store, instance: str, axis: str) -> dict[int, Counter[tuple[int, int]]]:
    """By coordinate on ep, the operand and result of each exchange on an axis."""
    ranks = store.query("MATCH (r:Rank {instance: $id}) RETURN DISTINCT r.ep, r.class", {"id": instance}).rows
    ops = store.query(
        "MATCH (o:Op {instance: $id, type: 'collective', axis: $axis}) RETURN o.class, o.comm_bytes, o.comm_out_bytes",
        {"id": instance, "axis": axis},
    ).rows
    return {ep: Counter((sent, came) for of, sent, came in ops if of == number) for ep, number in ranks}


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_sent_once_to_each_rank_of_its_experts(store: Store, tmp_path: Path, seed: int) -> None:
    rows, db, tiny = table(seed), Stagedb(store), model()
    file = tmp_path / "routing.json"
    file.write_text(json.dumps(rows))
    instance = db.instantiate(tiny, dp=EP, ep=EP, seq_len=SEQ, dispatch="ranks", routing=str(file))
    token, reached = tiny.hidden * WIDTH, pairs(rows, EP)
    for rank, found in sizes(store, instance.id, "ep").items():
        sent, came = sum(reached) * token, EP * reached[rank] * token
        # Forward and backward: tokens go to their experts, and results come back.
        expected = Counter({(sent, came): 2 * tiny.layers})
        expected[came, sent] += 2 * tiny.layers
        assert found == expected, rank
    moved = store.read("analyze/communication/bytes_by_axis", instance=instance.id)
    assert [row["bytes"] for row in moved if row["axis"] == "ep"] == [2 * tiny.layers * EP * sum(reached) * token] * 2
    done = db.export(instance.id, out=tmp_path / "traces")
    report = validate(done.path)
    assert not report.faults
    assert report.replayed
    fullest = max(sum(reached), *(EP * each for each in reached)) * token
    for rank in range(EP):
        trace = read_trace(next(done.path.glob(f"*.{rank}.et")))
        kinds = zip(trace.attributes["comm_type"], trace.attributes["comm_size"], strict=True)
        # A simulator takes one size for a call: that of the fullest member.
        assert Counter(size for kind, size in kinds if kind == pb.ALL_TO_ALL) == {fullest: 4 * tiny.layers}


@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_sent_once_to_each_node_and_from_there_to_ranks(store: Store, tmp_path: Path, seed: int) -> None:
    rows, db, tiny, near = table(seed), Stagedb(store), model(), 4
    words: dict[str, Any] = {"routing": rows, "node_ranks": near, "dispatch": "nodes"}
    instance = db.instantiate(tiny, dp=EP, ep=EP, seq_len=SEQ, **words)
    token, reached, nodes = tiny.hidden * WIDTH, pairs(rows, EP), EP // near
    to_nodes = pairs(rows, nodes)
    between, inside = sizes(store, instance.id, "epn"), sizes(store, instance.id, "epr")
    for rank in range(EP):
        node = rank // near
        sent, came = sum(to_nodes) * token, nodes * to_nodes[node] * token
        expected = Counter({(sent, came): 2 * tiny.layers})
        expected[came, sent] += 2 * tiny.layers
        assert between[rank] == expected, rank
        # As a relay, a rank passes on what ranks with its place in all nodes send to its node.
        relayed = nodes * sum(reached[node * near : (node + 1) * near]) * token
        own = EP * reached[rank] * token
        expected = Counter({(relayed, own): 2 * tiny.layers})
        expected[own, relayed] += 2 * tiny.layers
        assert inside[rank] == expected, rank
    moved = store.read("analyze/communication/bytes_by_axis", instance=instance.id)
    by_axis = Counter[str]()
    for row in moved:
        by_axis[row["axis"]] += row["bytes"]
    assert by_axis["epn"] == 4 * tiny.layers * EP * sum(to_nodes) * token
    assert by_axis["epr"] == 4 * tiny.layers * EP * sum(reached) * token
    groups = store.query("MATCH (g:Group {instance: $id}) RETURN g.axis, g.ranks ORDER BY g.gid", {"id": instance.id})
    found = {axis: [list(ranks) for other, ranks in groups.rows if other == axis] for axis in ("epn", "epr")}
    assert found == {"epn": [[at, at + near] for at in range(near)], "epr": [[0, 1, 2, 3], [4, 5, 6, 7]]}
    done = db.export(instance.id, out=tmp_path / "traces")
    assert not validate(done.path).faults


@pytest.mark.parametrize("dispatch", ["ranks", "nodes"])
def test_tokens_go_in_fp8_with_scales_and_come_back_as_they_are(store: Store, dispatch: Any) -> None:
    """A value in fp8 has a byte, and each 128 of a token a scale of four; results and gradients of tokens have two."""
    rows, tiny = table(7), dataclasses.replace(model(), hidden=192, head_dim=48)
    near: dict[str, Any] = {"node_ranks": 4} if dispatch == "nodes" else {}
    instance = Stagedb(store).instantiate(
        tiny, dp=EP, ep=EP, seq_len=SEQ, dispatch=dispatch, dispatch_dtype="fp8", routing=rows, **near
    )
    moved = store.read("analyze/communication/bytes_by_axis", instance=instance.id)
    found = {(row["axis"], row["phase"], row["dtype"]): row["bytes"] for row in moved if row["axis"].startswith("ep")}
    axes = {"ep": sum(pairs(rows, EP))}
    if dispatch == "nodes":
        axes = {"epn": sum(pairs(rows, EP // 4)), "epr": sum(pairs(rows, EP))}
    expected = {}
    for axis, copies in axes.items():
        times = tiny.layers * EP * copies
        expected[axis, "forward", "fp8_e4m3"] = expected[axis, "backward", "fp8_e5m2"] = times * (192 + 2 * 4)
        expected[axis, "forward", "bf16"] = expected[axis, "backward", "bf16"] = times * 192 * WIDTH
    assert found == expected


def test_without_a_routing_copies_are_expected_and_below_those_of_each_expert(store: Store) -> None:
    db, tiny = Stagedb(store), model()
    found = {}
    for dispatch in ("copies", "ranks"):
        instance = db.instantiate(tiny, dp=EP, ep=EP, seq_len=SEQ, dispatch=dispatch)
        rows = store.read("analyze/communication/bytes_by_axis", instance=instance.id)
        found[dispatch] = {row["bytes"] for row in rows if row["axis"] == "ep"}
    # Two experts a rank; a token misses a rank with the chance of C(14, 3) / C(16, 3) = 13/20.
    copies = EP * -(-SEQ * 7 // 20)
    assert found["ranks"] == {2 * tiny.layers * EP * copies * tiny.hidden * WIDTH}
    assert found["copies"] == {2 * tiny.layers * EP * SEQ * TOP * tiny.hidden * WIDTH}


def test_a_routing_is_a_load_where_each_choice_is_sent(store: Store) -> None:
    """Experts compute the same as with the load that counts the choices of the table."""
    db, tiny, rows = Stagedb(store), model(), table(5)
    load = Counter(expert for row in rows for expert in row)
    sums = []
    every: list[dict[str, Any]] = [{"routing": rows}, {"expert_load": [load[expert] for expert in range(EXPERTS)]}]
    for words in every:
        instance = db.instantiate(tiny, dp=EP, ep=EP, seq_len=SEQ, **words)
        sums.append(
            sorted(
                store.query(
                    "MATCH (c:RankClass {instance: $id}) MATCH (o:Op {instance: $id, class: c.class}) "
                    "RETURN o.name, c.ranks, o.flops, o.comm_bytes",
                    {"id": instance.id},
                ).rows,
                key=str,
            )
        )
    assert sums[0] == sums[1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "with ep 1": ({"ep": 1, "dispatch": "ranks"}, "with ep 1 each rank has all experts"),
    "nodes of one rank": ({"dispatch": "nodes"}, "not several nodes of several ranks"),
    "one node": ({"dispatch": "nodes", "node_ranks": EP}, "not several nodes of several ranks"),
    "nodes without dispatch": ({"node_ranks": 4}, "node_ranks=4 is for tokens"),
    "capacity": ({"dispatch": "ranks", "capacity_factor": 1.0}, "some are dropped"),
    "routing and load": ({"routing": [[0, 1, 2]], "expert_load": [1] * EXPERTS}, "routing names the experts"),
    "fp8 of copies": ({"dispatch_dtype": "fp8"}, "dispatch_dtype='fp8' is for tokens"),
    "twice": ({"routing": [[0, 1, 1]]}, "token 0 of routing chooses expert 1 twice"),
    "too few": ({"routing": [[0, 1]]}, "token 0 of routing has 2 experts"),
    "unknown": ({"routing": [[0, 1, 16]]}, "chooses expert 16"),
    "no repeats": ({"routing": [[0, 1, 2], [3, 4, 5], [6, 7, 8]]}, "do not divide the 64 tokens"),
    "no numbers": ({"routing": ["a b c"]}, "it takes the numbers of experts"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_plans_that_no_model_runs_are_refused(embedded_store: Store, case: str) -> None:
    words, reason = REFUSED[case]
    every = {"dp": EP, "ep": EP, "seq_len": SEQ, **words}
    with pytest.raises(UsageError, match=reason):
        Stagedb(embedded_store).instantiate(model(), **every)


@pytest.mark.parametrize("content", ["{}", "[]", "3", "[1, 2]", '[["a"]]', "[[0, 1], 3]"])
def test_a_file_that_is_no_routing_is_refused(embedded_store: Store, tmp_path: Path, content: str) -> None:
    file = tmp_path / "routing.json"
    file.write_text(content)
    with pytest.raises(UsageError, match="routing"):
        Stagedb(embedded_store).instantiate(model(), dp=EP, ep=EP, seq_len=SEQ, routing=str(file))


def test_routings_of_one_meaning_are_one_plan() -> None:
    """Neither the order of tokens or of their experts matters, nor that a table repeats itself."""
    words = {"dp": EP, "ep": EP, "seq_len": SEQ}
    same = [[[2, 0, 1], [3, 4, 5]], [[5, 4, 3], [0, 1, 2]], [[0, 1, 2], [3, 4, 5]] * 2, ["0 01  2", "3 4 5"]]
    assert len({Plan.from_mapping({**words, "routing": rows}).digest for rows in same}) == 1
    assert Plan.from_mapping({**words, "routing": same[0]}) != Plan.from_mapping({**words, "routing": [[0, 1, 2]]})
