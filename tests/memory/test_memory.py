"""The memory of instances: closed forms of schedules and states, and what the store holds of it."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stagedb.api import Memory, Stagedb
from stagedb.errors import StagedbError
from stagedb.memory import Category, ClassMemory, Point, Usage, memory_of
from stagedb.memory.class_program import Item
from stagedb.models import Card
from stagedb.plans import FORMAT_BYTES
from stagedb.store import Store
from stagedb.store.contents.instance_digests import write_class_digests
from stagedb.store.contents.memory import analyse, record
from stagedb.workflows.training import STEP_TASK
from tests import lowered
from tests.ir.tiny import card

LABELS = ("Memory", "MemoryLevel", "MemoryTensor")


def tiny(**words: Any) -> Card:
    return dataclasses.replace(card("llama", layers=8, kv_heads=4), **words)


def held(each: ClassMemory, moment: str) -> dict[str, int]:
    """Bytes by category at a moment."""
    return {**dict(each.ends()), **dict(each.peaks())}[moment]


def memory(model: Card, /, **words: Any) -> tuple[ClassMemory, ...]:
    return memory_of(lowered.program(model, seq_len=8, **words))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_stage_holds_the_micro_batches_that_its_schedule_has_in_flight(schedule: str) -> None:
    """1F1B: min(p - i, m) on stage i (Narayanan et al. 2021); GPipe: m (Huang et al. 2019)."""
    stages, microbatches = 4, 3
    sizes = {"micro_batch_size": 64, "global_batch_size": 64 * microbatches}
    found = memory(tiny(), pp=stages, schedule=schedule, **sizes)
    for stage in range(stages):
        (own,) = (each for each in found if stage in each.rank_class.stages)
        saved = [each for each in own.alive() if each.name == "layer.attn_norm"]
        inflight = microbatches if schedule == "gpipe" else min(stages - stage, microbatches)
        assert {each.count for each in saved} == {inflight}
        assert {each.layer for each in saved} == {0, 1}
        assert {each.bytes for each in saved} == {inflight * 64 * 8 * tiny().hidden * 2}


@pytest.mark.parametrize(
    ("words", "bytes_each"),
    [
        ({"recipe": "torch"}, {"parameters": 2, "gradients": 2, "optimizer_state": 4}),
        ({"recipe": "torch", "dtype": "fp32"}, {"parameters": 4, "gradients": 4, "optimizer_state": 8}),
        ({"recipe": "torch", "dp": 4, "zero": 3}, {"parameters": 0.5, "gradients": 0.5, "optimizer_state": 1}),
        ({"recipe": "torch", "dp": 4, "zero": 1}, {"parameters": 2, "gradients": 2, "optimizer_state": 1}),
        ({"recipe": "torch", "dp": 4, "zero": 3, "hsdp": 2}, {"parameters": 1, "gradients": 1, "optimizer_state": 2}),
    ],
)
def test_states_are_so_many_bytes_a_parameter(words: dict[str, Any], bytes_each: dict[str, float]) -> None:
    """ZeRO shares optimizer state (1), gradients (2) and parameters (3) out (Rajbhandari et al. 2020, section 5)."""
    model = tiny()
    (found,) = memory(model, **words)
    parameters = model.count_parameters()
    steps = 4 * (1 + 9 * model.layers + 2)  # a step count for each parameter tensor
    after = held(found, "backward_end")
    for category, each in bytes_each.items():
        extra = steps if category == "optimizer_state" else 0
        assert after[category] == parameters * each + extra, category


@pytest.mark.parametrize(("recipe", "zero"), [("torch", 1), ("torch", 3), ("megatron", 1), ("megatron", 3)])
def test_weights_that_a_strategy_keeps_in_parts_have_states_of_their_own(recipe: str, zero: int) -> None:
    """Parts over dp are as many as those that ZeRO makes, in its buffer or outside it."""
    model = tiny()
    words: dict[str, Any] = {"recipe": recipe, "zero": zero, "dp": 4}
    strategy = '{"weights": {"ffn": {"ffn": ["dp"]}}}'
    plain = held(memory(model, **words)[0], "start")
    parted = held(memory(model, strategy=strategy, **words)[0], "start")
    kept = 0 if zero == 3 else 3 * model.ffn * model.hidden * model.layers * 3 // 4
    assert plain["parameters"] - parted["parameters"] == kept * FORMAT_BYTES["bf16"]
    for category in {"optimizer_state", "master_weights"} & plain.keys():
        # A buffer is padded to whole blocks for each of its ranks.
        assert parted[category] == pytest.approx(plain[category], abs=0 if recipe == "torch" else 4096), category


def test_a_recomputed_layer_keeps_its_input_alone() -> None:
    """A llama layer saves 12h + 4·kv·d + 6f + 4A + 8 bytes a token in bf16, of which full recompute keeps 2h."""
    (plain,), (full,) = (memory(tiny(), recompute=kind) for kind in ("none", "full"))
    model, tokens = tiny(), 8
    layer = 12 * model.hidden + 4 * model.kv_heads * model.head_dim + 6 * model.ffn + 4 * model.heads + 8
    given_up = model.layers * tokens * (layer - 2 * model.hidden)
    ends = [held(found, "forward_end")["activations"] for found in (plain, full)]
    assert ends[0] - ends[1] == given_up
    levels = full.usage.levels(1)[list(Category).index(Category.RECOMPUTED)]
    assert levels.max() > 0
    assert levels[-1] == 0


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
@pytest.mark.parametrize("degrees", [{}, {"tp": 2, "sp": True}, {"dp": 2, "zero": 3}], ids=str)
def test_the_first_layers_alone_give_up_what_each_of_them_saves(recipe: str, degrees: dict[str, Any]) -> None:
    """`--recompute-method block`: N layers keep their input, the others all that they save."""
    words = {"recipe": recipe, **degrees}
    plain, full = (memory(tiny(), recompute=kind, **words)[0] for kind in ("none", "full"))
    ends = [held(found, "forward_end")["activations"] for found in (plain, full)]
    each, rest = divmod(ends[0] - ends[1], tiny().layers)
    assert each > 0 and not rest
    for first in range(1, tiny().layers + 1):
        (some,) = memory(tiny(), recompute="full", recompute_first=first, **words)
        assert held(some, "forward_end")["activations"] == ends[0] - first * each


@pytest.mark.parametrize("which", [{"recompute_every": 2}, {"recompute_first": 4}], ids=str)
def test_a_layer_that_predicts_further_tokens_saves_all_where_some_layers_recompute(which: dict[str, Any]) -> None:
    """Only the layers of the model give up what they save: Megatron skips the others with the method block."""
    model, tokens = tiny(multi_token_prediction=1), 8
    saved = 12 * model.hidden + 4 * model.kv_heads * model.head_dim + 6 * model.ffn + 4 * model.heads + 8
    plain, some = (memory(model, **words)[0] for words in ({}, {"recompute": "full", **which}))
    ends = [held(found, "forward_end")["activations"] for found in (plain, some)]
    assert ends[0] - ends[1] == 4 * tokens * (saved - 2 * model.hidden)


def test_each_chunk_of_a_stage_keeps_less_for_its_first_layers() -> None:
    """A stage keeps a layer's activations for each micro-batch in flight, and the input where it recomputes.

    A llama layer saves 12h + 4·kv·d + 6f + 4A + 8 bytes a token in bf16, of which full recompute keeps 2h.
    """
    model, tokens = tiny(), 8
    saved = 12 * model.hidden + 4 * model.kv_heads * model.head_dim + 6 * model.ffn + 4 * model.heads + 8
    words: dict[str, Any] = {"pp": 2, "virtual_stages": 2, "global_batch_size": 4}
    whole = {each.rank_class.stages: each for each in memory(model, **words)}
    some = {each.rank_class.stages: each for each in memory(model, recompute="full", recompute_first=1, **words)}
    for stages, each in some.items():
        usage, plain = each.usage, whole[stages].usage
        for index, task in enumerate(usage.tasks):
            point = Point(index, usage.lengths[task.kind, task.chunk])
            before = Point(index, plain.lengths[task.kind, task.chunk])
            chunks = sum(one.count for one in plain.alive(before) if one.name == "layer.attn_norm") // 2
            kept = [
                sum(one.bytes for one in of.alive(at) if one.category is Category.ACTIVATIONS)
                for of, at in ((plain, before), (usage, point))
            ]
            # A chunk has two layers, and the first one recomputes.
            assert kept[0] - kept[1] == chunks * tokens * (saved - 2 * model.hidden), (stages, index)


def in_flight(usage: Usage, name: str) -> int:
    """The most micro-batches, those of each chunk counted, of which tensors of this name live when a task is over.

    A chunk has two layers in these tests. The first one counts.
    """
    ends = [Point(index, usage.lengths[task.kind, task.chunk]) for index, task in enumerate(usage.tasks)]
    return max(
        sum(each.count for each in usage.alive(end) if each.name == name and (each.layer or 0) % 2 == 0) for end in ends
    )


def usages(**words: Any) -> list[Usage]:
    """The usage of each stage of a tiny model of eight layers."""
    found = memory(tiny(), **words)
    stages = sorted(stage for each in found for stage in each.rank_class.stages)
    return [next(each.usage for each in found if stage in each.rank_class.stages) for stage in stages]


FOR_INPUT, FOR_WEIGHT = "layer.ffn.w1", "layer.ffn.gate"
"""What a forward makes that an input gradient reads last, and a weight gradient."""


def test_an_input_gradient_frees_what_no_weight_gradient_reads() -> None:
    """ZB-H1 (Qi et al. 2023): min(p - i, m) wait for input gradients, no more than min(p, m) for weight gradients.

    PyTorch keeps the graph of a split backward: there, what waits for input gradients waits for weight gradients.
    """
    stages, microbatches = 4, 6
    words = {"pp": stages, "schedule": "zb-h1", "global_batch_size": microbatches}
    published = usages(**words, recipe="megatron")
    assert [in_flight(each, "layer.ffn.w13") for each in published] == [stages - stage for stage in range(stages)]
    found = usages(**words)
    assert [in_flight(each, FOR_INPUT) for each in found] == [stages] * stages
    # In addition to those that the next input gradient frees, as many as the stage lags behind.
    for each in (*published, *found):
        assert in_flight(each, FOR_WEIGHT) == stages
    for stage, each in enumerate(found):
        over = each.after(len(each.tasks) - 1)
        # The next step clears the gradients of received inputs: torch keeps them as `grad` of the receive buffers.
        inputs = microbatches * 8 * 16 * 2 if stage else 0
        assert over.get(Category.ACTIVATIONS, 0) - inputs in (0, 4)  # the mean of the losses
        assert Category.GRADIENTS not in over


def test_chunks_hold_megatron_s_count_of_micro_batches() -> None:
    stages, microbatches, chunks = 2, 4, 2
    found = usages(pp=stages, virtual_stages=chunks, global_batch_size=microbatches)
    held = [2 * (stages - stage - 1) + (chunks - 1) * stages + 1 for stage in range(stages)]
    assert [in_flight(each, FOR_INPUT) for each in found] == held
    plain = usages(pp=stages, global_batch_size=microbatches)
    for chunked, whole in zip(found, plain, strict=True):
        for category in (Category.PARAMETERS, Category.OPTIMIZER):
            assert chunked.before()[category] == whole.before()[category]
        assert Category.GRADIENTS not in chunked.after(len(chunked.tasks) - 1)


def test_breadth_first_holds_all_micro_batches_of_all_chunks() -> None:
    words = {"pp": 2, "virtual_stages": 2, "schedule": "breadth-first", "global_batch_size": 4}
    for each in usages(**words):
        assert in_flight(each, FOR_INPUT) == 2 * 4
        assert Category.GRADIENTS not in each.after(len(each.tasks) - 1)


@pytest.mark.parametrize(
    "words",
    [
        {"virtual_stages": 2},
        {"schedule": "zb-h1"},
        {"virtual_stages": 2, "schedule": "breadth-first"},
        {"virtual_stages": 2, "schedule": "zb-v"},
    ],
)
def test_gathered_parameters_are_given_back(words: dict[str, Any]) -> None:
    for zero in (2, 3):
        for each in usages(pp=2, dp=2, zero=zero, global_batch_size=8, **words):
            last = max(index for index, task in enumerate(each.tasks) if task.kind is not STEP_TASK)
            if zero == 2:  # whole from the first forward to the last backward
                assert Category.GATHERED in each.after(0)
            assert Category.GATHERED not in each.after(last)


def stored(found: Memory, rank_class: int, moment: str) -> dict[str, int]:
    return {
        row["category"]: row["bytes"] for row in found.levels if (row["class"], row["moment"]) == (rank_class, moment)
    }


def test_a_plan_s_memory_is_in_the_store(store: Store) -> None:
    """The same rows whichever way they are asked for, until the instance is removed."""
    db = Stagedb(store)
    instance = db.instantiate(tiny(), tp=2, pp=2, virtual_stages=2, dp=2, zero=3, global_batch_size=8, seq_len=8)
    assert len(db.query("memory_at_peak", instance=instance.id)) == 0
    found = db.memory(instance.id)
    assert db.memory(instance.id) == found
    words = {word: value for word, value in instance.plan.items() if word != "seq_len"}
    for each in memory(tiny(), **words):
        number, moments = each.rank_class.number, {**dict(each.ends()), **dict(each.peaks())}
        assert {moment: stored(found, number, moment) for moment in moments} == moments
        alive = [(one.name, one.layer, str(one.category), one.count, one.bytes) for one in each.alive()]
        rows = [row for row in found.tensors if row["class"] == number]
        columns = ("name", "layer", "category", "count", "bytes")
        assert [tuple(row[column] for column in columns) for row in rows] == alive
    for row in found.peaks:
        number = row["class"]
        assert sum(stored(found, number, "peak").values()) == row["peak"]
        assert sum(each["bytes"] for each in found.tensors if each["class"] == number) == row["peak"]
        for phase in ("forward", "backward", "optimizer"):
            assert sum(stored(found, number, f"{phase}_peak").values()) <= row["peak"]
        (op,) = db.query(
            "MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(:RankClass {class: $class})-[:HAS_MEMORY]->(m:Memory) "
            "MATCH (m)-[:PEAKS_AT]->(o:Op) RETURN o.name AS name",
            {"class": number},
            instance=instance.id,
        )
        assert op["name"] == row["name"]
    at_peak = list(db.query("memory_at_peak", instance=instance.id))
    assert sum(row["bytes"] for row in at_peak) == sum(row["peak"] for row in found.peaks)
    shares = list(db.query("memory_by_category", instance=instance.id))
    for number in {row["class"] for row in shares}:
        own = [row for row in shares if (row["class"], row["moment"]) == (number, "peak")]
        assert sum(row["share"] for row in own) == pytest.approx(1)
    db.rm(instance.id)
    for label in LABELS:
        assert list(db.query(f"MATCH (n:{label}) RETURN count(n) AS n")) == [{"n": 0}]


def test_numbers_do_not_depend_on_who_computes_them(store: Store, tmp_path: Path) -> None:
    """Written twice, as by two at once, they are there once."""
    db = Stagedb(store)
    instance = db.instantiate(tiny(), tp=2, seq_len=8)
    found = analyse(store, instance.id)
    record(store, instance.id, found)
    once = db.memory(instance.id)
    record(store, instance.id, found)
    assert db.memory(instance.id) == once


def test_memory_is_that_of_the_stored_instance(store: Store) -> None:
    """It follows what the store holds: a temporary that was enlarged there, digests included, has its new size."""
    db = Stagedb(store)
    instance = db.instantiate(tiny(), tp=2, seq_len=8)
    (whole,) = analyse(store, instance.id)
    name = next(item.op.name for item in _running(whole) if item.temporary and item.op.block == "layer")
    with store._session("WRITE") as session:
        session.run(
            "MATCH (o:Op)-[:COPY_OF]->(:SymOp {name: $name}) SET o.temporary = o.temporary + 4096", name=name
        ).consume()
    with pytest.raises(StagedbError, match="the ops of rank class 0 were changed"):
        analyse(store, instance.id)
    write_class_digests(store, instance.id)
    (changed,) = analyse(store, instance.id)
    before, after = ({item.row: item.temporary for item in _running(each)} for each in (whole, changed))
    assert {after[row] - before[row] for row in before if after[row] != before[row]} == {4096}


def test_two_that_record_at_once_write_one(store: Store) -> None:
    db = Stagedb(store)
    instance = db.instantiate(tiny(), tp=2, pp=2, seq_len=8)
    found = analyse(store, instance.id)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda turn: record(store, instance.id, found), range(4)))
    memory = db.memory(instance.id)
    assert len(memory.peaks.rows) == 2
    edges = "MATCH (:RankClass)-[:HAS_MEMORY]->(m:Memory)-[:HOLDS]->(t:MemoryTensor) RETURN count(t) AS n"
    assert store.query(edges).rows == ((len(memory.tensors.rows),),)


def test_what_was_recorded_of_some_classes_is_completed(store: Store) -> None:
    """As after a kill between two classes: the next one who asks records the others."""
    db = Stagedb(store)
    instance = db.instantiate(tiny(), tp=2, pp=2, seq_len=8)
    found = analyse(store, instance.id)
    assert len(found) == 2
    record(store, instance.id, found[:1])
    memory = db.memory(instance.id)
    assert {row["class"] for row in memory.peaks} == {0, 1}
    assert {row["class"] for row in memory.tensors} == {0, 1}


def _running(each: ClassMemory) -> Iterator[Item]:
    """All that the first chunk runs."""
    for items in each.program.items.values():
        yield from items


@pytest.mark.parametrize(("recipe", "copied"), [("torch", 1), ("megatron", 0)])
def test_what_ranks_of_tp_gather_or_scatter_is_copied_to_rows_of_their_parts(recipe: str, copied: int) -> None:
    """What they sum has no parts."""
    model = tiny()
    (found,) = memory(model, tp=2, sp=True, recipe=recipe)
    copies = {(item.op.kind, item.temporary) for item in _running(found) if item.op.axis == "tp"}
    whole = copied * 8 * model.hidden * FORMAT_BYTES["bf16"]
    assert copies == {("all_gather", whole), ("reduce_scatter", whole), ("all_reduce", 0)}


def test_a_tied_weight_is_held_once() -> None:
    (found,) = memory(tiny(tied=True))
    assert held(found, "start")["parameters"] == tiny(tied=True).count_parameters() * FORMAT_BYTES["bf16"]
    assert held(found, "backward_end")["gradients"] == tiny(tied=True).count_parameters() * FORMAT_BYTES["bf16"]
    first, last = memory(tiny(tied=True), pp=2)
    weights = sum(held(each, "start")["parameters"] for each in (first, last))
    assert weights == tiny(tied=False).count_parameters() * FORMAT_BYTES["bf16"]


def test_a_query_without_rows_names_the_command_that_makes_them(store: Store) -> None:
    db = Stagedb(store)
    instance = db.instantiate(tiny(), seq_len=8)
    assert len(db.query("memory_by_category", instance=instance.id)) == 0
    assert any("`stagedb memory`" in info.description for info in db.queries() if info.name == "memory_by_category")


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Plans of every way to share and to schedule, with sizes that a tiny model takes."""
    recipe = draw(st.sampled_from(["torch", "megatron"]))
    zero = draw(st.sampled_from([0, 1, 2, 3] if recipe == "torch" else [0, 1, 3]))
    dp = draw(st.sampled_from([2, 4])) if zero else draw(st.sampled_from([1, 2]))
    words: dict[str, Any] = {
        "recipe": recipe,
        "zero": zero,
        "dp": dp,
        "tp": draw(st.sampled_from([1, 2])),
        "pp": draw(st.sampled_from([1, 2, 4])),
        "schedule": draw(st.sampled_from(["1f1b", "gpipe"])),
        "recompute": draw(st.sampled_from(["none", "full", "pointwise"])),
        "global_batch_size": dp * draw(st.sampled_from([1, 2, 5])),
    }
    if zero == 3:
        words["reshard"] = draw(st.booleans())
    if zero != 1:
        words["grad_sync"] = draw(st.sampled_from([None, True, False]))
    if zero >= 2 and dp == 4:
        words["hsdp"] = draw(st.sampled_from([1, 2]))
    if recipe == "torch" and zero >= 2:
        words["reduce_dtype"] = draw(st.sampled_from(["bf16", "fp32"]))
    if words["recompute"] != "none":
        words |= draw(st.sampled_from([{}, {"recompute_every": 2}, {"recompute_first": 1}]))
    return words


@settings(max_examples=60, deadline=None)
@example(words={"zero": 2, "dp": 2, "schedule": "gpipe", "global_batch_size": 4}, tied=False)
@example(words={"recipe": "megatron", "zero": 3, "dp": 2, "global_batch_size": 2, "grad_sync": False}, tied=True)
@given(words=plans(), tied=st.booleans())
def test_what_is_taken_is_given_back(words: dict[str, Any], tied: bool) -> None:
    """No category is ever below nothing; a step ends with what it began with, the losses apart; parts are one copy."""
    words = {word: value for word, value in words.items() if value is not None}
    for each in memory(tiny(tied=tied), **words):
        usage = each.usage
        for index in range(len(usage.tasks)):
            assert usage.levels(index).min() >= 0
        start, end = usage.before(), usage.after(len(usage.tasks) - 1)
        assert sum(end.values()) - sum(start.values()) in (0, 4)
        for life in usage.held.lives:
            for moment in (life.begin, *life.ends):
                assert moment.index <= usage.lengths[moment.kind, moment.chunk]
        gathered = list(Category).index(Category.GATHERED)
        whole = 2 * sum(each.program.sizes.get(name, 0) for name, _ in _weights(each))
        assert max(int(usage.levels(i)[gathered].max()) for i in range(len(usage.tasks))) <= whole


def _weights(each: ClassMemory) -> list[tuple[str, int]]:
    tensors = each.program.tensors.values()
    return [
        (t.name, at) for at, block in each.program.places for t in tensors if (t.block, t.role) == (block, "weight")
    ]
