"""What recorded steps of torch showed, each on the smallest plan that has it. No store: graphs are copied in memory.

`ROWS` has the tests of each cause that the records of products showed.
"""

import dataclasses
from collections import Counter

import pytest

from stagedb.errors import UsageError
from stagedb.lowering import program_of
from stagedb.lowering.columns import COLLECTIVE, RECV, SEND, ClassColumns, Program
from stagedb.lowering.issue_order import sequence
from stagedb.memory import Category, memory_of
from stagedb.memory.class_memory import ClassMemory, class_memory
from stagedb.memory.class_program import PlacedWeight, SharePlace
from stagedb.models.card import Card
from stagedb.plans import Plan
from stagedb.schedules import PostedReceive, Task, posted, stage_orders
from stagedb.workflows.training import FORWARD_TASK

LLAMA = Card(
    name="small",
    family="test",
    hidden=32,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=64,
    vocab=512,
    norm="rmsnorm",
    mlp="gated",
    activation="silu",
    positions="rotary",
    max_positions=64,
    tied=False,
    linear_bias=False,
    qkv_bias=False,
    source="a test",
)
GPT = dataclasses.replace(
    LLAMA, norm="layernorm", mlp="plain", activation="gelu", positions="learned", kv_heads=4, linear_bias=True
)
TABLE = LLAMA.vocab * LLAMA.hidden * 2


def copied(card: Card, **words: object) -> Program:
    plan = Plan.from_mapping({"seq_len": 16, **words})
    return program_of(card, plan)


def messages(columns: ClassColumns) -> list[tuple[str, str, str, int]]:
    """Kind, axis, dtype and micro-batch of each message of a rank, in order."""
    found = sequence(columns)
    return [
        (found.ops.kind[row], found.ops.axis[row], found.ops.dtype[row], int(columns.tasks.microbatch[number]))
        for number, layout in enumerate(found.layout.tolist())
        for row in found.layouts[layout].ops.tolist()
        if found.ops.type[row] in (COLLECTIVE, SEND, RECV)
    ]


def gathers(columns: ClassColumns) -> Counter[tuple[str, int, bool]]:
    """The gathers of parameters, by phase, micro-batch, and whether they are those of a layer."""
    found = sequence(columns)
    return Counter(
        (found.ops.phase[row], int(columns.tasks.microbatch[number]), ".gather.first" not in found.ops.name[row])
        for number, layout in enumerate(found.layout.tolist())
        for row in found.layouts[layout].ops.tolist()
        if found.ops.name[row].startswith("bucket.parameters")
    )


def alive(memory: ClassMemory, name: str) -> int:
    """Bytes of the lives with a name."""
    return sum(life.bytes for life in memory.usage.held.lives if life.name == name)


def test_a_pipeline_gathers_units_that_a_backward_left_closed() -> None:
    """Stage 0 runs F0 F1 B0 F2 B1 F3 B2 B3, stage 1 F0 B0 F1 B1 F2 B2 F3 B3, with two layers each."""
    first, last = copied(LLAMA, pp=2, dp=2, zero=3, global_batch_size=8).workload.classes
    assert gathers(first) == {
        ("forward", 0, False): 1,
        **{("forward", each, True): 2 for each in (0, 1)},
        **{("backward", each, True): 2 for each in (0, 1, 2)},
    }
    assert gathers(last) == {
        ("forward", 0, False): 1,
        ("forward", 0, True): 2,
        **{("backward", each, True): 2 for each in range(4)},
    }


def test_a_pipeline_reduces_after_its_last_backward_the_model_first() -> None:
    first, last = copied(LLAMA, pp=2, dp=2, zero=3, tp=2, sp=True, global_batch_size=8).workload.classes
    for columns, root in ((first, 0), (last, 1)):
        layer = [("all_reduce", "tp", "bf16", 3)] * 2 + [("reduce_scatter", "dp", "bf16", 3)]
        assert messages(columns)[-len(layer) * 2 - 1 - root :] == [
            *[("all_reduce", "tp", "bf16", 3)] * root,
            ("reduce_scatter", "dp", "bf16", 3),
            *layer * 2,
        ]
    assert messages(last)[-9] == ("send", "pp", "bf16", 3)


def test_a_stage_receives_before_its_units_are_gathered() -> None:
    _, last = copied(LLAMA, pp=2, dp=2, zero=2).workload.classes
    assert [each[0] for each in messages(last)[:4]] == ["recv", "all_gather", "all_gather", "all_gather"]
    backward = [each[0] for each in messages(copied(LLAMA, pp=2, dp=2, zero=3).workload.classes[0])]
    assert backward[backward.index("send") + 1 :][:3] == ["recv", "all_gather", "all_gather"]


def test_gradients_cross_tp_in_their_own_format() -> None:
    words = {"param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}
    (columns,) = copied(LLAMA, dp=2, tp=2, sp=True, zero=3, **words).workload.classes
    found = Counter(each[1:3] for each in messages(columns) if each[0] == "all_reduce" and each[1] == "tp")
    assert found["tp", "bf16"] == 2 * LLAMA.layers + 1
    assert ("reduce_scatter", "dp", "fp32", 0) in messages(columns)


def test_a_reduced_gradient_is_copied_to_the_format_of_parameters() -> None:
    """Two shards: the sum in fp32 is as large as the gradients were. Its copy and the last gradient come on top."""
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3, reduce_dtype="fp32"))
    (root,) = [life for life in memory.usage.held.lives if life.name.endswith("copied") and life.layer is None]
    assert root.bytes == (2 * TABLE + LLAMA.hidden * 2) // 2 + TABLE
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3))
    assert not any(life.name.endswith("copied") for life in memory.usage.held.lives)


def test_sums_over_micro_batches_have_the_format_of_the_reduction() -> None:
    words = {"param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3, grad_sync=False, global_batch_size=4, **words))
    assert alive(memory, "head.out.weight_gradient.sum") == 2 * TABLE
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3, grad_sync=False, global_batch_size=4))
    assert alive(memory, "head.out.weight_gradient.sum") == 0


def test_a_cut_gradient_is_summed_whole() -> None:
    (memory, _) = memory_of(copied(LLAMA, pp=2, dp=2, tp=2, zero=3, global_batch_size=8))
    kept = [life for life in memory.usage.held.lives if life.name == "embedding.word.weight_gradient"]
    assert {(str(life.category), life.bytes) for life in kept} == {("gradients", TABLE), ("temporaries", TABLE)}


@pytest.mark.parametrize(("reduce", "width"), [("bf16", 2), ("fp32", 4)])
def test_the_part_of_a_cut_sum_is_copied_before_the_buffer_is_made(reduce: str, width: int) -> None:
    """FSDP2 frees the whole sum when it has copied this rank's part. The part has the format of the sum."""
    words = {"pp": 2, "dp": 2, "tp": 2, "zero": 3, "schedule": "gpipe", "global_batch_size": 8}
    (memory, _) = memory_of(copied(LLAMA, reduce_dtype=reduce, **words))
    lives = memory.usage.held.lives
    (part,) = [each for each in lives if each.name == "embedding.word.weight_gradient.slice.tp"]
    (whole,) = [each for each in lives if each.category is Category.GRADIENTS and each.bytes == TABLE // 2 * width]
    (buffer,) = [each for each in lives if each.name == "bucket.gradients.scatter.last.buffer" and each.layer is None]
    assert (part.bytes, buffer.bytes) == (TABLE // 4 * width, TABLE // 4 * width)
    assert whole.ends == (part.begin,)
    assert (part.begin.index, part.begin.prepared) == (buffer.begin.index, True)


WIDE = {"param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}


def test_the_first_micro_batch_holds_a_gradient_and_its_wider_sum() -> None:
    """The sums of a unit are made one by one: the last gradient is there with all sums."""
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3, grad_sync=False, global_batch_size=6, **WIDE))
    (root,) = [each for each in memory.usage.held.lives if each.name.endswith(".narrow") and each.layer is None]
    # The root has the embedding, a norm, and the head, which is the last.
    assert (root.bytes, root.begin.which) == (TABLE, "first")
    assert root.ends == (root.begin,)


def test_a_unit_is_freed_before_its_gradients_are_added_to_wider_sums() -> None:
    """Only the last micro-batch, which reduces them, holds the unit until its parts are copied out."""
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3, grad_sync=False, global_batch_size=6, **WIDE))
    lives = [each for each in memory.usage.held.lives if each.name.startswith("bucket.parameters") and each.layer == 0]
    (gathered,) = [each for each in lives if len(each.ends) == 2]
    assert [(each.which, each.prepared) for each in gathered.ends] == [("earlier", False), ("last", True)]


def test_a_unit_right_before_its_backward_is_in_its_buffer_too() -> None:
    """With one layer nothing runs between a gather and the unit's backward: it is copied out of the buffer there."""
    (memory, _) = memory_of(copied(dataclasses.replace(LLAMA, layers=2), pp=2, dp=2, zero=3, global_batch_size=8))
    (buffer,) = [each for each in memory.usage.held.lives if each.name == "bucket.parameters.regather.closed.buffer"]
    (whole,) = [each for each in memory.usage.held.lives if each.name == "bucket.parameters.regather.closed"]
    assert buffer.begin.place(begins=True) == whole.begin.place(begins=True) < buffer.ends[0].place(begins=False)


@pytest.mark.parametrize("name", ["layer.attn_norm.all_gather.tp", "layer.attn.wo.reduce_scatter.tp"])
def test_rows_that_tp_moves_are_copied(name: str) -> None:
    """A functional collective moves parts of the first dimension: rows of a sequence are put there by a copy."""
    whole = 16 * LLAMA.hidden * 2
    for recipe, copies in (("torch", [whole] * LLAMA.layers), ("megatron", [])):
        (memory,) = memory_of(copied(LLAMA, tp=2, sp=True, recipe=recipe))
        lives = [each for each in memory.usage.held.lives if each.name == f"{name}.temporary"]
        assert [each.bytes for each in lives] == copies


def test_what_a_stage_hands_over_to_itself_is_a_result_of_the_step_before() -> None:
    words = {"pp": 2, "virtual_stages": 2, "schedule": "breadth-first", "chunk_placement": "v", "global_batch_size": 4}
    (_, last) = memory_of(copied(LLAMA, **words))
    passed = 4 * 16 * LLAMA.hidden * 2
    # Its first chunk hands its results over, and its second chunk their gradients; both receive and send one way.
    assert last.usage.before()[Category.ACTIVATIONS] == 2 * passed
    assert last.usage.before()[Category.COMMUNICATION] == 2 * passed


def test_only_matmuls_have_inputs_of_their_own() -> None:
    words = {"tp": 2, "sp": True}
    counts = [
        Counter(each[0] for each in messages(columns) if each[1] == "tp")
        for shared in (True, False)
        for columns in copied(dataclasses.replace(GPT, layers=1), shared_input=shared, **words).workload.classes
    ]
    assert counts[0] == counts[1]


def test_a_query_is_a_view_of_what_is_packed() -> None:
    memory = memory_of(copied(GPT, cp=2, cp_kind="allgather-kv"))[0]
    saved = memory.saved()[1]
    assert "layer.attn.q" not in saved
    assert saved["layer.attn.wqkv"] == 3 * 8 * GPT.hidden * 2


def test_a_tied_table_has_two_gradients_and_their_sum() -> None:
    (memory,) = memory_of(copied(dataclasses.replace(LLAMA, tied=True)))
    held = [each for each in memory.alive() if "weight_gradient" in each.name and each.layer is None]
    assert sum(each.bytes for each in held if each.bytes >= TABLE) == 3 * TABLE


def test_a_sum_of_a_tied_table_that_is_cut_lives_where_it_is_made() -> None:
    """Later micro-batches make it at the embedding's end, and add it to that of the first."""
    words = {"tp": 2, "dp": 2, "zero": 3, "grad_sync": False, "global_batch_size": 6}
    (memory,) = memory_of(copied(dataclasses.replace(LLAMA, tied=True), **words))
    sums = [each for each in memory.usage.held.lives if each.name == "head.out.weight_gradient.sum"]
    (later,) = [each for each in sums if each.category is Category.TEMPORARIES]
    assert later.ends == (dataclasses.replace(later.begin, index=later.begin.index + 1),)


def test_units_are_gathered_before_the_backward_of_a_tied_head() -> None:
    for tied in (False, True):
        (columns,) = copied(dataclasses.replace(LLAMA, tied=tied), dp=2, zero=3).workload.classes
        found = sequence(columns)
        names = [found.ops.name[row] for layout in found.layout for row in found.layouts[layout].ops.tolist()]
        at = names.index("bucket.parameters.regather.0")
        # The loss comes after the model, so that its backward runs before anything of the model is gathered.
        assert (names[at - 1], names[at + 1]) == ("head.logits.input_gradient", "head.out.weight_gradient")


def test_the_last_rank_has_the_rows_that_remain() -> None:
    """The table's 512 rows over three ranks: 171, 171 and 170. Storage is padded, states are not."""
    made = copied(LLAMA, dp=3, zero=3)
    (columns,) = made.workload.classes
    carried = {op: tuple(PlacedWeight(*each) for each in rows) for op, rows in made.carried[columns.number].items()}
    found = [class_memory(made.graph, made.plan, columns, carried, SharePlace(shard)).program for shard in range(3)]
    assert [each.own["embedding.word.weight.exp_avg"] for each in found] == [171 * 64, 171 * 64, 170 * 64]
    assert {each.parts["embedding.word.weight"] for each in found} == {171 * 64}


def test_a_ring_keeps_the_result_of_its_call_alone() -> None:
    """Selective checkpointing keeps what a call returns. The results of its turns, which it merges, are its own."""
    (memory, *_) = memory_of(copied(LLAMA, cp=4, cp_kind="ring-alltoall", recompute="pointwise"))
    output = 16 // 4 * LLAMA.heads * LLAMA.head_dim * 2
    lives = [each for each in memory.usage.held.lives if each.category is Category.ACTIVATIONS and each.layer == 0]
    kept = [(each.name, each.bytes) for each in lives if each.name.startswith("layer.attn.core")]
    assert kept == [("layer.attn.core.random_state", 24), ("layer.attn.core", output)]


@pytest.mark.parametrize(("tp", "copies"), [(1, 1), (2, 0)])
def test_a_ring_of_one_head_has_its_rows_in_order(tp: int, copies: int) -> None:
    """The rows of one local head are in the order that the next matmul reads: torch copies nothing."""
    two = dataclasses.replace(LLAMA, heads=2, kv_heads=2)
    memory = memory_of(copied(two, tp=tp, cp=2, cp_kind="ring-alltoall"))[0]
    assert "layer.attn.core" in memory.saved()[1]
    assert sum(name == "layer.attn.contiguous" for name in memory.saved()[1]) == copies


def test_a_gather_s_buffer_lives_until_the_next_one_is_copied_out() -> None:
    """Under hsdp over dp and cp the root's buffer is held while the first layer is gathered into its own."""
    memory = memory_of(copied(LLAMA, dp=4, hsdp=2, cp=2, zero=3, cp_kind="ring-alltoall"))[0]
    found = [each for each in memory.usage.held.lives if each.name == "bucket.parameters.gather.buffer"]
    root, first = found[:2]
    assert (root.layer, first.layer) == (None, 0)
    assert root.ends[0].index == first.begin.index + 1
    held = max(
        int(memory.usage.levels(0)[list(Category).index(Category.COMMUNICATION)][index])
        for index in range(first.begin.index + 1)
    )
    fixed = memory.usage.before()[Category.COMMUNICATION]
    assert held - fixed == root.bytes + first.bytes


def test_receives_are_posted_when_they_are_sent() -> None:
    """Two stages with two chunks: stage 0 posts the receive for its second chunk right after its first forward."""
    orders = stage_orders("interleaved", 2, 4, 2)
    first, second = posted(orders, 2)
    assert first[2:5] == (Task(FORWARD_TASK, 0, 0), PostedReceive(Task(FORWARD_TASK, 0, 1)), Task(FORWARD_TASK, 1, 0))
    for stage, found in enumerate((first, second)):
        assert tuple(each for each in found if isinstance(each, Task)) == orders[stage]
        for place, each in enumerate(found):
            if isinstance(each, PostedReceive):
                assert each.task in found[place:]


def norms(card: Card, **words: object) -> list[tuple[str, int]]:
    """Axis and numbers of each message of the norms of gradients on the first stage."""
    columns = copied(card, clip_norm=True, **words).workload.classes[0]
    found = sequence(columns)
    sent = [row for row in found.layouts[int(found.layout[-1])].ops.tolist() if found.ops.type[row] == COLLECTIVE]
    return [
        (found.ops.axis[row], int(found.ops.operand[row]) // 2)
        for row in sent
        if found.ops.name[row].startswith("bucket.norms")
    ]


MOE = dataclasses.replace(LLAMA, experts=4, top_k=2, expert_ffn=64)
DENSE, EXPERTS, LAYERS = 7 * 4 + 3, 3 * 4, 9 * 4
"""Weights of `MOE` that are no experts, and experts; those in the layers of `LLAMA`."""


@pytest.mark.parametrize(
    ("card", "words", "sent"),
    [
        (LLAMA, {"dp": 2, "tp": 2, "sp": True, "zero": 3}, [("dp", LAYERS + 3), ("tp", LAYERS + 3)]),
        (dataclasses.replace(LLAMA, tied=True), {"dp": 2, "zero": 3}, [("dp", LAYERS + 2)]),
        (LLAMA, {"dp": 2}, []),
        (LLAMA, {"pp": 2}, [("pp", 1)]),
        (LLAMA, {"dp": 2, "pp": 2, "zero": 3}, [("dp", LAYERS // 2 + 1), ("pp", 1)]),
        (MOE, {"dp": 2, "zero": 3}, [("dp", DENSE + EXPERTS)]),
        (MOE, {"dp": 4, "ep": 2, "zero": 3}, [("edp", EXPERTS), ("ep", EXPERTS), ("dp", DENSE)]),
        (MOE, {"dp": 2, "ep": 2, "tp": 2, "zero": 3}, [("ep", EXPERTS), ("tp", EXPERTS), ("dp", DENSE), ("tp", DENSE)]),
    ],
)
def test_clipping_sends_a_number_a_gradient_on_each_axis(
    card: Card, words: dict[str, object], sent: list[tuple[str, int]]
) -> None:
    """torch's `get_total_norm` of each mesh, the experts' first, then one number between stages (torchtitan)."""
    assert norms(card, **words) == sent


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"recipe": "megatron"}, "--recipe torch"),
        ({"pp": 2, "virtual_stages": 2, "global_batch_size": 4}, "--virtual-stages 1"),
        ({"tp": 2}, "--zero 3|--tp 1"),
        ({"dp": 2, "ep": 2}, "--zero 3|--ep 1"),
    ],
)
def test_clipping_that_no_call_does_is_refused(words: dict[str, object], way: str) -> None:
    with pytest.raises(UsageError, match=way):
        Plan.from_mapping({"clip_norm": True, **words})


ROWS = {
    "a pipeline keeps units gathered, and reduces once a step": (
        test_a_pipeline_gathers_units_that_a_backward_left_closed,
        test_a_pipeline_reduces_after_its_last_backward_the_model_first,
    ),
    "norm gradients cross tp in their own format": (test_gradients_cross_tp_in_their_own_format,),
    "a reduced gradient is copied to the parameters' format": (
        test_a_reduced_gradient_is_copied_to_the_format_of_parameters,
    ),
    "unsharded gradients are summed in the reduction's format": (
        test_sums_over_micro_batches_have_the_format_of_the_reduction,
        test_a_cut_gradient_is_summed_whole,
    ),
    "inputs of matmuls alone are gathered on their own": (test_only_matmuls_have_inputs_of_their_own,),
    "a query is a view of the packed projection": (test_a_query_is_a_view_of_what_is_packed,),
    "both gradients of a tied table live before their sum": (test_a_tied_table_has_two_gradients_and_their_sum,),
    "the last layer is gathered before the backward of a tied head": (
        test_units_are_gathered_before_the_backward_of_a_tied_head,
    ),
    "receives are posted before gathers, and ahead of compute": (
        test_a_stage_receives_before_its_units_are_gathered,
        test_receives_are_posted_when_they_are_sent,
    ),
    "the last rank's shard is smaller": (test_the_last_rank_has_the_rows_that_remain,),
    "a ring keeps the result of its call": (test_a_ring_keeps_the_result_of_its_call_alone,),
    "a ring of one local head makes no copy": (test_a_ring_of_one_head_has_its_rows_in_order,),
    "buffers of gathers of root and layer live together": (
        test_a_gather_s_buffer_lives_until_the_next_one_is_copied_out,
    ),
}
"""By cause, its tests here. Records with split backwards are compared in `tests/validation/test_records.py`."""


def test_every_cause_has_a_test() -> None:
    assert all(ROWS.values())
