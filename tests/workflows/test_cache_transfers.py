"""Caches between two engines: each message next to a count over requests, layers, heads and tokens, and as traces."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.api import Stagedb, unpack
from stagedb.errors import StagedbError, UsageError
from stagedb.lowering.engine_pairs import CacheSide, EnginePair, engine_pair, messages, pair_degrees
from stagedb.memory import Category, memory_of
from stagedb.models import Card, load_card
from stagedb.plans import FORMAT_BYTES
from stagedb.store import Store
from stagedb.systems import Transfer, load_system
from stagedb.systems.cost_model import time_transfer
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import validate_traces
from stagedb.traces.exporting import trace_set
from stagedb.traces.node_durations import pair_timing
from tests import lowered
from tests.ir.tiny import card
from tests.runs.replayed_run import replay_step
from tests.semantics.variants import LATENT
from tests.traces.plain import parse
from tests.traces.written import export_workload, files_of, timing

TOKENS = 24
LAYERS = 4
GROUPED = dataclasses.replace(card("llama", layers=LAYERS), heads=8, kv_heads=4, max_positions=64)
KINDS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "grouped": ({},),
    "window": ({"mixer": "sliding_window", "window": 3}, {}),
    "latent": (LATENT,),
    "indexer": ({**LATENT, "q_rank": 7, "index_heads": 3, "index_dim": 4, "index_top": 3},),
}
"""The kinds of layers that take turns in a model."""


def model_of(kind: str) -> Card:
    names = [f"kind{at}" for at in range(len(KINDS[kind]))]
    kinds: Any = dict(zip(names, KINDS[kind], strict=True))
    return dataclasses.replace(GROUPED, layer_kinds=kinds, pattern=tuple(names))


LAYOUTS: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"tp": 2, "micro_batch_size": 2}, {"tp": 4, "micro_batch_size": 2}),
    ({"tp": 4, "micro_batch_size": 1}, {"tp": 2, "micro_batch_size": 3}),
    ({"tp": 8, "micro_batch_size": 1}, {"tp": 8, "micro_batch_size": 1}),
    ({"tp": 8, "micro_batch_size": 2}, {"tp": 1, "dp": 2, "micro_batch_size": 1}),
    ({"tp": 2, "dp": 2, "micro_batch_size": 2}, {"tp": 8, "dp": 3, "micro_batch_size": 4}),
    ({"tp": 2, "sp": True, "pp": 2, "global_batch_size": 4, "micro_batch_size": 2}, {"dp": 4, "micro_batch_size": 1}),
    (
        {"tp": 2, "pp": 4, "dp": 3, "global_batch_size": 6, "micro_batch_size": 1},
        {"tp": 4, "pp": 2, "dp": 2, "global_batch_size": 8, "micro_batch_size": 2},
    ),
    (
        {"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "global_batch_size": 2, "micro_batch_size": 1},
        {"tp": 4, "micro_batch_size": 2},
    ),
    ({"micro_batch_size": 2}, {"cp": 3, "micro_batch_size": 2}),
    ({"tp": 2, "cp": 2, "micro_batch_size": 2}, {"tp": 2, "cp": 2, "micro_batch_size": 2}),
    ({"tp": 8, "cp": 3, "micro_batch_size": 2}, {"tp": 4, "cp": 2, "dp": 2, "micro_batch_size": 1}),
    ({"cp": 2, "dp": 2, "micro_batch_size": 2}, {"tp": 8, "micro_batch_size": 4, "pp": 2, "global_batch_size": 4}),
    (
        {"cp": 2, "tp": 2, "micro_batch_size": 2, "rank_order": ("cp", "tp", "dp", "pp")},
        {"cp": 4, "micro_batch_size": 2},
    ),
    (
        {"tp": 2, "dp": 2, "micro_batch_size": 1, "rank_order": ("dp", "cp", "tp", "pp")},
        {"tp": 2, "micro_batch_size": 2},
    ),
)


def side(model: Card, /, **words: Any) -> CacheSide:
    program = lowered.program(model, **words)
    return CacheSide(str(words["workflow"]), program.plan, program.graph, program.workload)


def sides(model: Card, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[CacheSide, CacheSide]:
    return (
        side(model, workflow="prefill", seq_len=TOKENS, **first),
        side(model, workflow="decode", cache_len=TOKENS, **second),
    )


Unit = tuple[int, int, str, int, int]
"""A request, a layer, what is kept, a head of it (0 of what has none), a token."""


def units(kind: str, layer: int) -> Iterator[tuple[str, int, int, int]]:
    """What a layer keeps of a request, written down from the model alone: name, heads, tokens, values of a head."""
    values = KINDS[kind][layer % len(KINDS[kind])]
    tokens = min(TOKENS, values.get("window", TOKENS))
    if "kv_rank" in values:
        yield "latent", 0, tokens, values["kv_rank"] + values["rope_dim"]
        if "index_dim" in values:
            yield "index", 0, tokens, values["index_dim"]
    else:
        yield "keys", 4, tokens, 4
        yield "values", 4, tokens, 4


def places(plan: Any) -> Iterator[tuple[int, dict[str, int]]]:
    """Each rank with its place on each axis, counted like the digits of a number."""
    for rank in range(plan.tp * plan.dp * plan.pp * plan.cp):
        rest, at = rank, {}
        for axis in plan.rank_order:
            rest, at[axis] = divmod(rest, getattr(plan, axis))
        yield rank, at


def owned(kind: str, plan: Any, requests: Mapping[int, int]) -> dict[int, set[Unit]]:
    """All that each rank keeps. requests: the place on dp of each."""
    chunks = plan.pp * plan.virtual_stages
    found: dict[int, set[Unit]] = {}
    for rank, at in places(plan):
        layers = [each for each in range(LAYERS) if each * chunks // LAYERS % plan.pp == at["pp"]]
        found[rank] = set()
        for layer in layers:
            for name, heads, tokens, _ in units(kind, layer):
                own = range(1) if not heads else [h for h in range(heads) if at["tp"] in _having(h, heads, plan.tp)]
                mine = (request for request, dp in requests.items() if dp == at["dp"])
                positions = [t for t in range(TOKENS - tokens, TOKENS) if t % plan.cp == at["cp"]]
                found[rank] |= {(r, layer, name, h, t) for r in mine for h in own for t in positions}
    return found


def _having(head: int, heads: int, tp: int) -> range:
    """The places on tp that have a head."""
    return (
        range(head * tp // heads, (head + 1) * tp // heads)
        if tp >= heads
        else range(head * tp // heads, head * tp // heads + 1)
    )


def counted(kind: str, sender: Any, receiver: Any) -> dict[tuple[int, int], int]:
    """The bytes of each message: unit by unit, each for each rank that wants it, from the owner that the rule names."""
    prompts = sender.dp * sender.microbatches * sender.micro_batch_size
    before = {request: request * sender.dp // prompts for request in range(prompts)}
    after = {request: request * receiver.dp // prompts for request in range(prompts)}
    has, wants = owned(kind, sender, before), owned(kind, receiver, after)
    orders = [sorted(each, key=dict_of(plan)) for each, plan in ((has, sender), (wants, receiver))]
    sizes = {(layer, name): size * 2 for layer in range(LAYERS) for name, _, _, size in units(kind, layer)}
    found = Counter[tuple[int, int]]()
    for unit in sorted(set().union(*wants.values())):
        owners = [rank for rank in orders[0] if unit in has[rank]]
        takers = [rank for rank in orders[1] if unit in wants[rank]]
        for at, taker in enumerate(takers):
            found[owners[at * len(owners) // len(takers)], taker] += sizes[unit[1], unit[2]]
    return dict(found)


def dict_of(plan: Any) -> Any:
    """The key that orders ranks by their place on tp."""
    at = dict(places(plan))
    return lambda rank: at[rank]["tp"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_message_is_a_count_of_what_its_ends_have(kind: str, layout: Any) -> None:
    if "indexer" in kind and any(each.get("cp", 1) > 1 for each in layout):
        with pytest.raises(UsageError, match="has an indexer, which chooses among the keys of a whole request"):
            sides(model_of(kind), *layout)
        return
    sender, receiver = sides(model_of(kind), *layout)
    assert messages(sender, receiver) == counted(kind, sender.plan, receiver.plan)


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "lfm2-1.2b", "gpt-oss-20b"])
def test_a_rank_receives_the_caches_that_it_has_room_for(name: str, cp: int) -> None:
    model = load_card(name)
    words = {"tp": 2, "pp": 2, "micro_batch_size": 2, "global_batch_size": 4, "dp": 2, "cp": cp}
    sender, receiver = sides(model, {"tp": 2, "micro_batch_size": 4}, words)
    found = Counter[int]()
    for (_, target), size in messages(sender, receiver).items():
        found[target] += size
    # What memory counts for a prefill of the same tokens, in the layout of the receiver.
    held = memory_of(lowered.program(model, workflow="prefill", seq_len=TOKENS, **words))
    room = {each.rank_class.number: each.usage.before()[Category.CACHE] for each in held}
    numbers = lowered.workload(model, workflow="prefill", seq_len=TOKENS, **words).ranks.number
    assert found == {rank: room[int(number)] for rank, number in enumerate(numbers)}


@pytest.mark.parametrize(
    ("name", "a_token"), [("llama3-8b", 131_072), ("llama3-70b", 327_680), ("deepseek-v3", 70_272)]
)
def test_all_messages_have_the_bytes_of_a_token_for_each_token(name: str, a_token: int) -> None:
    """a_token: 2 * 32 * 8 * 128, 2 * 80 * 8 * 128 and 61 * (512 + 64) values of 2 bytes."""
    model = load_card(name)
    sender, receiver = sides(model, {"tp": 8, "micro_batch_size": 2}, {"dp": 2, "micro_batch_size": 3})
    assert sum(messages(sender, receiver).values()) == 2 * TOKENS * a_token
    latents = 4 if name == "deepseek-v3" else 1  # each rank of tp has them whole
    sender, receiver = sides(model, {"pp": 1, "micro_batch_size": 2}, {"tp": 4, "micro_batch_size": 3})
    assert sum(messages(sender, receiver).values()) == latents * 2 * TOKENS * a_token


def test_requests_of_other_lengths_go_where_theirs_are() -> None:
    sender = side(GROUPED, workflow="prefill", requests=["1x8+4", "2x20+0"], dp=2)
    receiver = side(GROUPED, workflow="decode", requests=["2x1+12", "5x1+20", "1x1+9"], dp=2, tp=2)
    a_token = (
        4 * 2 * 4 * 4 * FORMAT_BYTES["bf16"] // 2
    )  # layers, keys and values, heads and their size; on each of tp 2
    found = messages(sender, receiver)
    assert found == {(dp, 2 * dp + tp): (12 + 2 * 20) * a_token for dp in range(2) for tp in range(2)}


def test_caches_in_fp8_are_half_as_large() -> None:
    words = ({"tp": 2, "micro_batch_size": 2}, {"tp": 4, "micro_batch_size": 2})
    wide, narrow = (
        messages(*sides(GROUPED, *({**each, "cache_dtype": dtype} for each in words))) for dtype in ("same", "fp8_e4m3")
    )
    assert {ends: size // 2 for ends, size in wide.items()} == narrow


def pair_of(first: Mapping[str, Any], second: Mapping[str, Any]) -> EnginePair:
    sender, receiver = sides(GROUPED, first, second)
    return engine_pair(sender, receiver, (sender.workload, receiver.workload))


@pytest.mark.parametrize("granularity", ["op", "block"])
@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[4], LAYOUTS[6], LAYOUTS[7]], ids=str)
def test_traces_have_both_ends_of_each_message(layout: Any, granularity: str, tmp_path: Path) -> None:
    pair = pair_of(*layout)
    export_workload(pair.workload, tmp_path / "out", granularity=granularity, replay=True)
    assert validate_traces(tmp_path / "out").faults == ()
    before = pair.first_rank(1)
    expected = {(at, before + to): size for (at, to), size in messages(*sides(GROUPED, *layout)).items()}
    sent, received = ends_of(tmp_path / "out", len(pair.workload.ranks))
    assert sent == received == {(*ends, 0): size for ends, size in expected.items()}


SPARSE = dataclasses.replace(card("deepseek", layers=LAYERS), kv_heads=4, max_positions=64)
DRAFTING = dataclasses.replace(SPARSE, multi_token_prediction=1)
OVERLAPPED: dict[str, Any] = {"dp": 2, "ep": 2, "micro_batch_size": 2, "global_batch_size": 8, "overlap_experts": True}
CHECKED: dict[str, Any] = {"workflow": "speculative", "draft": "other", "seq_len": 3}


@pytest.mark.parametrize(
    ("model", "first", "second"),
    [
        (SPARSE, {"tp": 4, "ep": 4, "expert_tp": False, "micro_batch_size": 2}, OVERLAPPED),
        (SPARSE, OVERLAPPED, {"micro_batch_size": 8}),
        (
            SPARSE,
            {"tp": 2, "dp": 2, "ep": 2, "micro_batch_size": 2},
            {**CHECKED, "dp": 4, "ep": 4, "micro_batch_size": 2, "redundant_experts": 4},
        ),
        (
            SPARSE,
            {"tp": 2, "dp": 2, "ep": 2, "micro_batch_size": 2, "expert_load": (4, 2, 1, 1)},
            {"tp": 2, "pp": 2, "micro_batch_size": 2, "global_batch_size": 4},
        ),
        # Layers that draft have caches of their own, which no prefill fills.
        (DRAFTING, {"micro_batch_size": 2}, {**CHECKED, "draft": "own", "seq_len": 2, "micro_batch_size": 2}),
    ],
    ids=["experts of tp", "overlapped", "drafts and copies", "uneven loads", "own drafts"],
)
def test_steps_of_every_kind_send_and_get_caches(
    model: Card, first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    sender = side(model, workflow="prefill", seq_len=TOKENS, **first)
    receiver = side(model, **{"workflow": "decode", "cache_len": TOKENS, **second})
    pair = engine_pair(sender, receiver, (sender.workload, receiver.workload))
    export_workload(pair.workload, tmp_path / "out", replay=True)
    assert validate_traces(tmp_path / "out").faults == ()
    requests = sender.plan.dp * sender.plan.microbatches * sender.plan.micro_batch_size
    sent, received = ends_of(tmp_path / "out", len(pair.workload.ranks))
    assert sent == received
    assert sum(sent.values()) == requests * TOKENS * LAYERS * 2 * 4 * 4 * 2  # keys and values, heads, their size, bytes


def ends_of(directory: Path, world: int) -> tuple[dict[tuple[int, int, int], int], ...]:
    """The messages of caches in the traces, as their senders and as their receivers have them: ends, tag and bytes."""
    found: tuple[dict[tuple[int, int, int], int], ...] = ({}, {})
    for rank in range(world):
        for node in nodes_of(directory, rank):
            values = {each.name: each for each in node.attr}
            if node.type not in (pb.COMM_SEND_NODE, pb.COMM_RECV_NODE) or values["axis"].string_val != "cache":
                continue
            sends = node.type == pb.COMM_SEND_NODE
            other = values["comm_dst" if sends else "comm_src"].int32_val
            ends = (rank, other) if sends else (other, rank)
            assert (*ends, 0) not in found[not sends]
            found[not sends][*ends, values["comm_tag"].int32_val] = values["comm_size"].int64_val
    return found


def nodes_of(directory: Path, rank: int) -> list[pb.Node]:
    (path,) = directory.glob(f"*.{rank}.et")
    return parse(path.read_bytes())[1]


def test_a_decode_begins_when_all_its_caches_are_there(tmp_path: Path) -> None:
    pair = pair_of({"tp": 4, "micro_batch_size": 1}, {"pp": 2, "global_batch_size": 4, "micro_batch_size": 1})
    export_workload(pair.workload, tmp_path / "out")
    for rank in range(4):
        nodes = nodes_of(tmp_path / "out", rank)
        computed = max(node.id for node in nodes if node.type == pb.COMP_NODE)
        (first, second) = [node for node in nodes if node.name.startswith("cache.send")]
        assert computed in first.ctrl_deps
        assert first.id in second.ctrl_deps
    for rank in (4, 5):
        nodes = nodes_of(tmp_path / "out", rank)
        caches = {node.id for node in nodes if node.name.startswith("cache.recv")}
        assert len(caches) == 4
        waiting = dict[int, set[int]]()
        for node in nodes:
            after = {*node.data_deps, *node.ctrl_deps}
            waiting[node.id] = after.union(*(waiting[each] for each in after))
            if node.type == pb.COMP_NODE:
                assert caches <= waiting[node.id], node.name


def test_messages_take_the_time_of_the_link_between_their_ranks() -> None:
    system = load_system("h100")
    pair = pair_of({"tp": 4, "micro_batch_size": 2}, {"tp": 2, "dp": 4, "micro_batch_size": 2})
    made = pair.workload
    times = pair_timing([timing(each, system) for each in pair.sides], pair)
    network, seen = system.network(12), set()
    for columns in made.classes:
        rows = np.flatnonzero(columns.ops.handed)
        for part in times.parts[columns.number]:
            assert part.ns is not None
            for rank in part.ranks.tolist():
                for row in rows.tolist():
                    other = int(made.ranks.others[rank, columns.ops.peer[row]])
                    sends = rank < 4
                    taken = time_transfer(network, Transfer(int(columns.ops.size[row]), rank, other)).ns if sends else 0
                    assert part.ns[row] == taken
                    seen.add((sends, other // 8))
    assert seen == {(True, 0), (True, 1), (False, 0)}, "within a node, and between two"
    assert sorted(rank for parts in times.parts.values() for part in parts for rank in part.ranks.tolist()) == list(
        range(12)
    )


WORDS: dict[str, Any] = {"micro_batch_size": 2}


def test_a_prefill_that_sends_to_a_decode_in_every_form(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    prompt = db.instantiate(GROUPED, workflow="prefill", seq_len=TOKENS, tp=2, **WORDS)
    db.instantiate(GROUPED, workflow="decode", cache_len=TOKENS, tp=2, name="answer", **WORDS)
    made = db.export(prompt.id, send_to="answer", steps=3, durations_in_traces=True, replay=True, out=tmp_path / "out")
    assert (made.world, made.replayed) == (4, True)
    assert made.following == ()
    assert [each.plan["cache_len"] for each in made.receiving] == [TOKENS, TOKENS + 1, TOKENS + 2]
    assert validate_traces(tmp_path / "out").faults == ()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [[step["instance"] for step in steps] for steps in manifest["engines"]] == [
        [prompt.id],
        [each.id for each in made.receiving],
    ]
    assert manifest["what"].startswith("Chakra execution traces of 1 step of prefill and 3 steps on other ranks, ")
    tasks = [each["tasks"] for each in manifest["classes"]]
    assert [each.split(":")[0] for each in tasks[0]] == ["forward 0", "transfer 0"]
    assert [each.split(":")[0] for each in tasks[1]] == ["transfer 0", "forward 0", "forward 1", "forward 2"]
    # Both ranks of a side do the same at the same time, so that the whole is the sum of the steps and a message.
    alone = [tmp_path / str(number) for number in range(4)]
    for each, path in zip((prompt, *made.receiving), alone, strict=True):
        db.export(each.id, durations_in_traces=True, out=path)
    size = 2 * TOKENS * 4 * 2 * 2 * 4 * 2  # requests, tokens, layers, keys and values, heads, their size, bytes
    message = time_transfer(load_system("h100").network(4), Transfer(size, 0, 2)).ns
    assert replay_step(tmp_path / "out") == sum(map(replay_step, alone)) + message
    steps = [db.profile(each.id).merit.step for each in (prompt, *made.receiving)]
    assert manifest["profile"]["step"] == sum(steps)
    words: dict[str, Any] = {"send_to": "answer", "steps": 3, "durations_in_traces": True}
    db.export(prompt.id, **words, packed=True, out=tmp_path / "p.packed")
    unpack(tmp_path / "p.packed", out=tmp_path / "unpacked")
    assert files_of(tmp_path / "unpacked") == files_of(tmp_path / "out")
    db.export(prompt.id, **words, format="parquet", out=tmp_path / "parquet")
    assert validate_traces(tmp_path / "parquet").faults == ()
    db.export(prompt.id, **words, format="json", out=tmp_path / "json")
    for rank, name in ((0, "cache.send.0"), (2, "cache.recv.0")):
        assert name in (tmp_path / "json" / f"{GROUPED.name}.{rank}.json").read_text()
    with pytest.raises(UsageError, match="a window of 4 steps, and `simulate` puts one step"):
        db.simulate(tmp_path / "out")


def test_parts_of_prompts_are_computed_before_their_caches_are_sent(embedded_store: Store, tmp_path: Path) -> None:
    db = Stagedb(embedded_store)
    first = db.instantiate(GROUPED, workflow="prefill", seq_len=8, tp=2, **WORDS)
    second = db.instantiate(GROUPED, workflow="prefill", seq_len=16, cache_len=8, tp=2, **WORDS)
    answer = db.instantiate(GROUPED, workflow="decode", cache_len=TOKENS, **WORDS)
    db.export(first.id, then=[second.id], send_to=answer.id, out=tmp_path / "out")
    assert validate_traces(tmp_path / "out").faults == ()
    sent, _ = ends_of(tmp_path / "out", 3)
    assert sent == {(rank, 2, 0): 2 * TOKENS * 4 * 2 * 2 * 4 * 2 for rank in range(2)}
    with pytest.raises(UsageError, match="does not go on with the prompts of"):
        db.export(first.id, then=[first.id], send_to=answer.id, out=tmp_path / "again")
    assert not (tmp_path / "again").exists()
    made = len(db.instances())
    with pytest.raises(UsageError, match="has 2 with 24 in the cache: give it at least as many of that length"):
        db.export(first.id, send_to=answer.id, steps=9, out=tmp_path / "again")
    assert len(db.instances()) == made, "nothing is made for what is refused"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            {"workflow": "decode", "cache_len": 8, "seq_len": None},
            {},
            "is a step of decode, and a prefill is what sends caches",
        ),
        ({"workflow": "training", "seq_len": 8}, {}, "is a step of training, and a prefill is what sends"),
        ({}, {"workflow": "prefill", "seq_len": 8}, "is a step of prefill, which goes on with no cache of others"),
        ({}, {"cache_len": 23}, "has 2 with 23 in the cache: give it at least as many of that length"),
        ({"micro_batch_size": 3}, {}, "fills the caches of 3 requests with 24 tokens, and decode has 2 with 24"),
        ({}, {"cache_dtype": "fp8_e4m3"}, "keeps 1,536 bytes of a request with 24 tokens in prefill and 768 bytes"),
        (
            {"workflow": "prefill", "seq_len": None, "requests": ["prefill n=1 q=8 k=8 qq=64 qk=64"]},
            {},
            "has sums over its requests",
        ),
    ],
)
def test_what_sends_no_caches_is_refused(first: dict[str, Any], second: dict[str, Any], reason: str) -> None:
    prefill = {"workflow": "prefill", "seq_len": TOKENS, "micro_batch_size": 2, **first}
    if "requests" in first:
        prefill.pop("micro_batch_size")
    decode = {"workflow": "decode", "cache_len": TOKENS, "micro_batch_size": 2, **second}
    if decode["workflow"] == "prefill":
        decode.pop("cache_len")
    model = dataclasses.replace(GROUPED, layers=1)
    made = [
        side(model, **{word: value for word, value in each.items() if value is not None}) for each in (prefill, decode)
    ]
    with pytest.raises(UsageError, match=re.escape(reason)):
        messages(*made)


def test_two_models_share_no_cache() -> None:
    prefill, decode = sides(GROUPED, WORDS, WORDS)
    other = side(dataclasses.replace(GROUPED, name="other"), workflow="decode", cache_len=TOKENS, **WORDS)
    assert messages(prefill, decode)
    with pytest.raises(UsageError, match="a cache suits the model that filled it"):
        messages(prefill, other)


def test_a_message_that_nobody_awaits_is_found() -> None:
    pair = pair_of({"tp": 2, "micro_batch_size": 2}, {"tp": 4, "micro_batch_size": 2})
    first, *others = pair.workload.classes
    size = np.where(first.ops.handed, first.ops.size - 1, first.ops.size)
    broken = dataclasses.replace(first, ops=dataclasses.replace(first.ops, size=size))
    with pytest.raises(StagedbError, match="ranks send other caches than ranks of the other instance wait for"):
        trace_set(dataclasses.replace(pair.workload, classes=(broken, *others)))


def test_the_mesh_of_two_engines_has_all_their_ranks() -> None:
    assert pair_degrees((2, 1, 4, 1), (2, 1, 4, 1)) == (2, 1, 4, 1, 2)
    assert pair_degrees((8,), (2, 2)) == (4, 3)
    assert pair_degrees((3, 1), (4, 1)) == (1, 7)
