"""Named queries: how they are called, and the rows of those about instances, held against what is in memory."""

from collections import Counter, defaultdict
from typing import Any

import pytest

from stagedb.api import Profile, Stagedb
from stagedb.api.querying import find, queries
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering.columns import TYPES, Workload
from stagedb.plans import GraphOptions
from stagedb.store import Store, names
from stagedb.store.contents.memory import analyse
from stagedb.store.contents.stored_programs import read_workload
from stagedb.timing import node_graph_of
from tests.ir.tiny import card

Rows = list[tuple[Any, ...]]

LLAMA = card("llama", layers=4)
PLAN: dict[str, Any] = {"sp": True, "dp": 2, "tp": 2, "pp": 2, "virtual_stages": 2, "seq_len": 16}
"""Stage 0 has layers 0 and 2 of the model, stage 1 has layers 1 and 3."""

LAYER = ("attn_norm", "attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn_norm", "ffn.w1", "ffn.w2", "ffn.w3")


def ask(store: Store, name: str, **params: str) -> Rows:
    return [tuple(row) for row in store.query(find(name).text, params).rows]


def test_short_names_are_unique_and_each_has_a_subject() -> None:
    found = queries()
    assert len({info.name for info in found}) == len(found)
    assert {info.subject for info in found} == {
        "communication",
        "critical_path",
        "memory",
        "model",
        "plans",
        "runs",
        "search",
        "time",
    }
    assert {f"analyze/{info.subject}/{info.name}" for info in found} == {
        name for name in names() if name.startswith("analyze/")
    }
    assert found == sorted(found, key=lambda info: (info.subject, info.name))


@pytest.mark.parametrize(
    "word",
    ["critical_path", "critical-path", "critical-path/critical_path", "analyze/critical_path/critical-path"],
)
def test_a_query_is_found_by_its_short_name_or_its_path(word: str) -> None:
    assert find(word).name == "analyze/critical_path/critical_path"


def test_a_path_from_before_there_were_subjects_still_names_its_query() -> None:
    assert find("analyze/hotspots").name == "analyze/communication/hotspots"


@pytest.mark.parametrize("word", ["hotspot", "time/hotspots", "communication", "analyze/", "hotspots/"])
def test_what_names_no_query_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="no query is named"):
        find(word)


def issued(workload: Workload) -> list[tuple[int, int, int, int]]:
    """Every run of every operator of a step: rank class, stage, operator, and number of ranks."""
    net = node_graph_of(workload)
    lanes = [net.lanes[lane] for lane in net.lane.tolist()]
    return [(lane.rank_class, lane.stage, op, lane.ranks) for lane, op in zip(lanes, net.op.tolist(), strict=True)]


def test_what_an_instance_sends_is_what_its_ranks_issue(store: Store) -> None:
    made = Stagedb(store).instantiate(LLAMA, global_batch_size=8, **PLAN)
    workload = read_workload(store, made.id)
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    largest = []
    for rank_class, _, op, ranks in issued(workload):
        ops = workload.classes[rank_class].ops
        if TYPES[ops.type[op]] in ("collective", "send"):
            row = sums[ops.axis[op], ops.kind[op], ops.phase[op], ops.dtype[op]]
            row[0] += ranks
            row[1] += ranks * int(ops.size[op])
    for each in workload.classes:
        talks = [op for op in range(len(each.ops)) if TYPES[each.ops.type[op]] in ("collective", "send")]
        largest += [int(each.ops.size[op]) for op in talks]
    found = ask(store, "bytes_by_axis", instance=made.id)
    assert sorted(found) == sorted((*key, *row) for key, row in sums.items())
    assert [row[5] for row in found] == sorted((row[5] for row in found), reverse=True)
    assert [row[5] for row in ask(store, "largest_messages", instance=made.id)] == sorted(largest, reverse=True)[:10]


def sent_in_a_ring(kind: str, sizes: list[int]) -> int:
    """What the ranks of a group send, step by step: each passes its part on, or what it has just received."""
    n = len(sizes)
    if kind == "send":
        return sizes[0]
    if kind == "all_to_all":
        return sum(sizes) - sum(size // n for size in sizes)  # all but its own part
    if kind == "all_gather":
        return sum(sizes[(rank - step) % n] for rank in range(n) for step in range(n - 1))
    passes = {"reduce_scatter": 1, "all_reduce": 2}[kind]
    return sum(size // n for size in sizes for step in range(n - 1)) * passes


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("llama", PLAN | {"global_batch_size": 8}),
        ("llama", {"zero": 3, "hsdp": 2, "dp": 4, "cp": 2, "seq_len": 16}),
        ("moe", {"ep": 2, "dp": 4, "tp": 2, "sp": True, "zero": 1, "seq_len": 16}),
        ("moe", {"ep": 2, "dp": 4, "expert_load": (3, 1, 2, 2), "seq_len": 16}),
    ],
)
def test_bytes_on_the_wire_are_those_of_rings(store: Store, name: str, plan: dict[str, Any]) -> None:
    made = Stagedb(store).instantiate(card(name, layers=4), **plan)
    workload = read_workload(store, made.id)
    members = dict(zip(workload.groups.axis, workload.groups.sizes.tolist(), strict=True))
    by_op: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for rank_class, _, op, ranks in issued(workload):
        ops = workload.classes[rank_class].ops
        type_ = TYPES[ops.type[op]]
        if type_ in ("collective", "send"):
            key = (
                ops.axis[op],
                ops.kind[op],
                ops.phase[op],
                ops.dtype[op],
                members[ops.axis[op]] if type_ == "collective" else None,
            )
            by_op[key] += [int(ops.size[op])] * ranks
    expected = []
    for key, sizes in by_op.items():
        n = key[4] or 1
        # Ranks of one group have the same size, or those of an exchange differ: their sum is what counts.
        wire = sum(sent_in_a_ring(key[1], sizes[at : at + n]) for at in range(0, len(sizes), n))
        expected.append((*key, len(sizes), sum(sizes), wire))
    found = ask(store, "wire_bytes_by_axis", instance=made.id)
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert [row[7] for row in found] == sorted((row[7] for row in found), reverse=True)
    plain = [(*row[:4], *row[5:7]) for row in found]
    assert sorted(plain) == sorted(ask(store, "bytes_by_axis", instance=made.id))


def test_bytes_on_the_wire_are_those_of_a_profile_with_rings(store: Store) -> None:
    db = Stagedb(store)
    profile = db.profile(model=LLAMA, system="h100", global_batch_size=8, **PLAN)
    sent: Counter[tuple[Any, ...]] = Counter()
    for axis, kind, phase, _, _, wire, *_ in ask(store, "exposed_communication", profile=profile.info.id):
        sent[axis, kind, phase] += wire * profile.instance.ranks
    found: Counter[tuple[Any, ...]] = Counter()
    for axis, kind, phase, *_, wire in ask(store, "wire_bytes_by_axis", instance=profile.instance.id):
        found[axis, kind, phase] += wire
    assert {key: sent[key] for key in sent} == found


def test_flops_of_each_layer_are_those_of_its_operators(store: Store) -> None:
    made = Stagedb(store).instantiate(LLAMA, global_batch_size=8, **PLAN)
    workload = read_workload(store, made.id)
    sums: dict[tuple[int, str, int | None], list[int]] = defaultdict(lambda: [0, 0])
    for rank_class, stage, op, ranks in issued(workload):
        columns = workload.classes[rank_class]
        if flops := int(columns.ops.flops[op]):
            row = sums[stage, columns.origins.block[op], columns.layer_in_model(op, stage)]
            row[columns.ops.phase[op] != "forward"] += ranks * flops
    found = ask(store, "flops_by_layer", instance=made.id)
    assert {row[:3]: list(row[3:5]) for row in found} == sums
    assert all(row[5] == row[3] + row[4] for row in found)
    assert [(row[0], row[2]) for row in found] == [(0, 0), (0, 2), (1, 1), (1, 3), (1, None)]


def test_every_gradient_is_reduced_once_in_the_layer_that_it_is_of(store: Store) -> None:
    made = Stagedb(store).instantiate(LLAMA, global_batch_size=8, **PLAN)
    # Gradients of norms are reduced over tp on their own, in addition to their bucket: see below.
    found = [row for row in ask(store, "gradient_reductions", instance=made.id) if row[5] != "tp"]
    layers = [(f"layer.{name}.weight", layer % 2, layer) for layer in range(4) for name in LAYER]
    others = [("embedding.word.weight", 0, None), ("head.norm.weight", 1, None), ("head.out.weight", 1, None)]
    assert Counter(row[:3] for row in found) == Counter([*layers, *others])
    assert {row[4:6] for row in found} == {("all_reduce", "dp")}
    # The places in a bucket have no gaps. A stage has a bucket for each of its two chunks.
    buckets: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in found:
        buckets[row[1], row[3], row[7]].append(row[6])
    assert len(buckets) == 4
    assert all(sorted(places) == list(range(len(places))) for places in buckets.values())
    assert {row[8] for row in found} == {1}


def test_a_gradient_that_is_reduced_alone_has_its_weight(store: Store) -> None:
    """Under sp the ranks of tp add to the gradients of norms, and torch reduces each of these on its own."""
    made = Stagedb(store).instantiate(LLAMA, sp=True, tp=2, seq_len=16)
    found = ask(store, "gradient_reductions", instance=made.id)
    norms = [(f"layer.{name}.weight", 0, layer) for layer in range(4) for name in ("attn_norm", "ffn_norm")]
    assert Counter(row[:3] for row in found) == Counter([*norms, ("head.norm.weight", 0, None)])
    assert {row[4:6] for row in found} == {("all_reduce", "tp")}
    assert {row[6] for row in found} == {0}


def test_gathered_parameters_are_no_reduced_gradients(store: Store) -> None:
    made = Stagedb(store).instantiate(LLAMA, zero=3, hsdp=2, dp=4, seq_len=16)
    found = ask(store, "gradient_reductions", instance=made.id)
    assert Counter(row[4:6] for row in found) == {("reduce_scatter", "dp"): 39, ("all_reduce", "dp_replicate"): 39}


def test_memory_peaks_where_the_analysis_finds_the_peak(store: Store) -> None:
    db = Stagedb(store)
    made = db.instantiate(LLAMA, global_batch_size=8, **PLAN)
    assert ask(store, "memory_peaks", instance=made.id) == []
    memory = db.memory(made.id)
    expected: Rows = []
    for each in analyse(store, made.id):
        columns = each.rank_class
        task, op, _ = each.at(each.peak)
        assert op is not None
        layer = int(columns.origins.layer[op])
        microbatch = int(columns.tasks.microbatch[each.peak.task])
        expected.append(
            (
                *(columns.number, list(columns.stages), 4, sum(each.usage.at(each.peak).values()), str(task.kind)),
                *(microbatch, int(columns.ops.chunk[op]), columns.origins.sym[op], columns.ops.kind[op]),
                *(None if layer < 0 else layer, int(columns.origins.temporary[op])),
            )
        )
    assert ask(store, "memory_peaks", instance=made.id) == sorted(expected, key=lambda row: (-row[3], row[0]))
    levels = [(row["class"], row["moment"], row["category"], row["bytes"]) for row in memory.levels]
    assert sorted(row[:4] for row in ask(store, "memory_by_category", instance=made.id)) == sorted(levels)
    tensors: Counter[tuple[Any, ...]] = Counter()
    for row in memory.tensors:
        tensors[row["class"], row["name"], row["category"]] += row["bytes"]
    found = ask(store, "memory_at_peak", instance=made.id)
    assert {(row[0], row[2], row[3]): row[6] for row in found} == tensors
    # At the end of a task no operator runs.
    with store._session("WRITE") as session:
        session.run("MATCH (:Memory)-[r:PEAKS_AT]->(:Op) DELETE r").consume()
    peaks = ask(store, "memory_peaks", instance=made.id)
    assert [row[3] for row in peaks] == sorted((row[3] for row in expected), reverse=True)
    assert {row[7:] for row in peaks} == {(None, None, None, None)}


def average(profile: Profile, name: str) -> int:
    net, times = profile.job.times.network, profile.job.times.lanes
    total = sum(lane.ranks * int(getattr(spent, name)) for lane, spent in zip(net.lanes, times, strict=True))
    return total // sum(lane.ranks for lane in net.lanes)


def test_plans_of_a_model_are_sorted_by_their_step(store: Store) -> None:
    db = Stagedb(store)
    words: dict[str, Any] = {"seq_len": 16, "global_batch_size": 4}
    wide = db.instantiate(LLAMA, tp=2, sp=True, name="wide", **words)
    deep = db.instantiate(LLAMA, pp=2, name="deep", **words)
    db.instantiate(LLAMA, dp=2, name="never timed", **words)
    made = [db.profile(wide.id, system=system) for system in ("h100", "a100-80gb")]
    made.append(db.profile(deep.id, system="h100"))
    db.profile(deep.id, system="h100", scale=["compute=0.5"])
    db.profile(db.instantiate(card("gpt"), **{**words, "seq_len": 8}).id, system="h100")
    statement = find("fastest_plans")
    found = store.query(statement.text, {"model": LLAMA.name})
    assert found.columns == tuple(field.name for field in statement.columns)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    degrees = {wide.id: (1, 2, 1, True), deep.id: (1, 1, 2, False)}
    columns = ["instance", "profile", "system", "ranks", "dp", "tp", "pp", "sp"]
    columns += ["step", "exposed", "bubble", "tokens_per_second", "tokens_per_accelerator", "mfu"]
    assert [[row[name] for name in columns] for row in rows] == [
        [
            *(each.instance.id, each.info.id, each.info.system, 2, *degrees[each.instance.id], each.info.step),
            *(average(each, "exposed"), average(each, "bubble"), each.merit.tokens_per_second),
            *((each.merit.tokens_per_second or 0) / 2, each.merit.mfu),
        ]
        for each in sorted(made, key=lambda each: (-(each.merit.tokens_per_second or 0), each.info.step, each.info.id))
    ]
    assert ask(store, "fastest_plans", model="nothing") == []


@pytest.mark.parametrize("words", [{"dp": 2}, {"pp": 2, "recompute": "full"}], ids=["one graph", "two graphs"])
def test_two_instances_share_the_operators_of_the_same_name(store: Store, words: dict[str, Any]) -> None:
    db = Stagedb(store)
    sides = [db.instantiate(LLAMA, seq_len=16, **each) for each in ({"tp": 2}, words)]
    whats: dict[str, tuple[str, str, str | None, str]] = {}
    for recompute in ("none", "full"):
        graph = build_graph(LLAMA, GraphOptions(recompute=recompute))
        whats |= {op.name: (op.block, op.kind, op.axis, op.phase) for op in graph.ops}
    ours, theirs = (
        Counter(name for each in read_workload(store, side.id).classes for name in each.origins.sym) for side in sides
    )
    expected: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0] * 5)
    for name in {*ours, *theirs}:
        row = expected[whats[name]]
        row[0 if name in ours and name in theirs else 1 if name in ours else 2] += 1
        row[3] += ours[name]
        row[4] += theirs[name]
    found = ask(store, "shared_operators", instance=sides[0].id, other=sides[1].id)
    assert sorted(map(str, found)) == sorted(str((*key, *row)) for key, row in expected.items())
    assert any(row[4] for row in found)
    assert any(row[5] for row in found)
    assert any(row[6] for row in found)
    assert (sides[0].graph == sides[1].graph) == ("recompute" not in words)
