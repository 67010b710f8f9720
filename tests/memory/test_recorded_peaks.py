"""What recorded peaks of torch showed, each on the smallest plan that has it. No store: graphs are copied in memory."""

import dataclasses

import pytest

from stagedb.frameworks import find_framework
from stagedb.memory import memory_of
from stagedb.memory.class_memory import ClassMemory
from stagedb.memory.usage import Point
from stagedb.plans import Plan
from stagedb.plans.sharding_checks import other_gathers, other_reductions
from stagedb.schedules import PostedGathers, PostedReceive, PostedReductions, Task, posted, stage_orders
from tests.memory.test_recorded_causes import GPT, LLAMA, MOE, TABLE, copied


def levels(memory: ClassMemory, name: str, microbatch: int = 0) -> list[tuple[str, str, int]]:
    """Category, name and bytes of what lives while the first operator of a name runs for a micro-batch."""
    for number, task in enumerate(memory.usage.tasks):
        for index, (_, item) in enumerate(memory.items(task)):
            if item.op.name == name and task.microbatch == microbatch:
                return alive_at(memory, Point(number, index))
    raise AssertionError(name)


def alive_at(memory: ClassMemory, point: Point) -> list[tuple[str, str, int]]:
    return [(str(each.category), each.name, each.bytes) for each in memory.usage.alive(point)]


def named(found: list[tuple[str, str, int]], part: str) -> int:
    """Bytes of what has this in its name."""
    return sum(size for _, name, size in found if part in name)


def test_a_unit_is_copied_out_while_its_buffer_lives() -> None:
    """The backward of the first layer gathers no other unit, so that the copy comes right before its first operator."""
    (memory,) = memory_of(copied(dataclasses.replace(LLAMA, layers=2), dp=2, zero=3))
    lives = [each for each in memory.usage.held.lives if each.layer == 0 and "regather" in each.name]
    buffer, gathered = sorted(lives, key=lambda each: each.category)
    assert (gathered.begin.index, gathered.begin.prepared) == (buffer.ends[0].index, True)
    before = alive_at(memory, Point(1, gathered.begin.index, prepared=True))
    assert named(before, "regather") == buffer.bytes + gathered.bytes
    assert named(alive_at(memory, Point(1, gathered.begin.index)), "regather") == gathered.bytes


def test_the_last_gradient_of_a_unit_lives_until_its_parts_are_dealt_out() -> None:
    """fp32 parameters and gradients over two shards: parts and the head's gradient are more than all gradients were."""
    words = {"param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}
    (memory,) = memory_of(copied(LLAMA, dp=2, zero=3, **words))
    (root,) = [each for each in memory.usage.held.lives if each.name.endswith("copied") and each.layer is None]
    whole = 2 * TABLE + LLAMA.hidden * 2
    assert root.bytes == whole + TABLE - whole


def test_a_sum_of_replicas_lives_until_the_backward_ends() -> None:
    """The first micro-batch's is the gradient itself, a later one is added to it and still held."""
    words = {"dp": 4, "hsdp": 2, "zero": 3, "global_batch_size": 8}
    (memory,) = memory_of(copied(LLAMA, **words))
    held = [each for each in memory.usage.held.lives if each.name.endswith("scatter.reduced")]
    assert len(held) == LLAMA.layers + 1
    assert {str(each.begin.which) for each in held} == {"later"}


def test_tied_gradients_are_summed_in_each_micro_batch() -> None:
    """Both gradients and their sum live in addition to the gradient of the micro-batches before."""
    (memory,) = memory_of(copied(dataclasses.replace(LLAMA, tied=True), global_batch_size=2))
    backwards = [number for number, task in enumerate(memory.usage.tasks) if task.kind.differentiates]
    items = memory.program.items[memory.program.backwards[0]]
    (made,) = [index for index, item in enumerate(items) if item.op.name == "embedding.word.weight_gradient"]
    held = [alive_at(memory, Point(number, made + 1, prepared=True)) for number in backwards]
    tables = [sum(size for _, name, size in each if ".weight_gradient" in name and size >= TABLE) for each in held]
    assert tables == [3 * TABLE, 4 * TABLE]


def test_a_call_returns_its_gradients_together() -> None:
    """A later gradient of a weight lives while the same call makes that of the input."""
    (memory,) = memory_of(copied(LLAMA, global_batch_size=2))
    found = levels(memory, "layer.ffn.w2.input_gradient", 1)
    assert [each[0] for each in found if each[1] == "layer.ffn.w2.weight_gradient"].count("temporaries") == 1


def test_what_selective_checkpoints_keep_is_freed_when_it_is_read_again() -> None:
    (memory,) = memory_of(copied(dataclasses.replace(LLAMA, layers=1), recompute="pointwise"))
    saved = ("activations", "layer.ffn.w2", 16 * LLAMA.hidden * 2)
    assert saved in levels(memory, "head.out.weight_gradient")
    assert saved not in levels(memory, "layer.ffn.w2.weight_gradient")


@pytest.mark.parametrize(("schedule", "chunks", "kept"), [("1f1b", 1, 1), ("gpipe", 1, 0), ("interleaved", 2, 0)])
def test_only_one_schedule_keeps_a_gradient_that_it_sent(schedule: str, chunks: int, kept: int) -> None:
    words = {"pp": 2, "virtual_stages": chunks, "global_batch_size": 4, "schedule": schedule}
    memory = memory_of(copied(LLAMA, **words))[1]
    sent = {item.reads[0][0] for _, item in memory.items(memory.usage.tasks[-2]) if item.op.name == "cut.send_backward"}
    lives = [each for each in memory.usage.held.lives if each.name in sent and each.layer == 0]
    assert [len(each.ends) for each in lives].count(2) == kept


@pytest.mark.parametrize(("dtype", "forward", "backward"), [("bf16", 8, 14), ("fp32", 4, 12)])
def test_a_norm_in_python_has_values_in_fp32(dtype: str, forward: int, backward: int) -> None:
    """Forward: the scaled input and a copy. Backward: four values of four bytes less the gradient, and a mean a row."""
    (memory,) = memory_of(copied(LLAMA, dtype=dtype))
    lives = {each.name: each.bytes for each in memory.usage.held.lives}
    assert lives["head.norm.temporary"] == 16 * LLAMA.hidden * forward
    assert lives["head.norm.input_gradient.temporary"] == 16 * LLAMA.hidden * backward + 16 * 4


def test_an_eager_norm_has_values_of_its_square() -> None:
    (memory,) = memory_of(copied(LLAMA, kernels="eager"))
    lives = {each.name: each.bytes for each in memory.usage.held.lives}
    wide = 16 * LLAMA.hidden * 4
    assert lives["head.norm.mean_square.temporary"] == wide
    assert lives["head.norm.mean_square.input_gradient.temporary"] == 3 * wide


def test_products_are_made_before_they_are_summed() -> None:
    (memory,) = memory_of(copied(MOE))
    lives = {each.name: each.bytes for each in memory.usage.held.lives}
    chosen = 16 * MOE.top_k * MOE.hidden * 2
    assert lives["layer.ffn.sum.temporary"] == lives["layer.ffn.sum.input_gradient.temporary"] == chosen


def test_chunks_are_gathered_first_and_reduced_after_their_last_backward() -> None:
    """Every entry takes a turn of the walk, so that reductions move the receives after them."""
    first, _ = posted(stage_orders("interleaved", 2, 2, 2), 2)
    assert first[:2] == (PostedGathers(0), PostedGathers(1))
    last = {task.chunk: task for task in first if isinstance(task, Task) and not task.kind.once}
    assert first[-3:-1] == (last[0], PostedReductions(0))
    later = first[first.index(last[1]) + 1 :]
    assert next(each for each in later if not isinstance(each, PostedReceive)) == PostedReductions(1)


def test_units_of_all_chunks_are_in_their_buffers_before_the_first_forward() -> None:
    """Each chunk copies its own out one by one: the copies and one buffer live there, and later chunks' buffers."""
    words = {"pp": 2, "virtual_stages": 2, "schedule": "interleaved", "dp": 2, "global_batch_size": 4}
    memory = memory_of(copied(LLAMA, zero=3, **words))[0]
    lives = {(each.layer, each.name): each.bytes for each in memory.usage.held.lives}
    root, layer = lives[None, "bucket.parameters.gather.first"], lives[0, "bucket.parameters.gather.closed"]
    first_of_second = next(number for number, task in enumerate(memory.usage.tasks) if task.chunk == 1)
    points = (Point(0, 0, prepared=True), Point(0, 1), Point(first_of_second, 1))
    held = [
        [size for _, name, size in alive_at(memory, each) if "gather" in name and name.endswith("buffer")]
        for each in points
    ]
    assert held == [[root, layer], [layer], []]
    assert named(alive_at(memory, points[0]), "gather") == 2 * root + 2 * layer


def test_logits_are_gathered_inside_the_model() -> None:
    """FSDP2 frees the last gather's buffer when the model has run, which ends with the whole logits."""
    words = {"dp": 2, "tp": 2, "zero": 2, "loss_parallel": False}
    (memory,) = memory_of(copied(dataclasses.replace(LLAMA, layers=1), **words))
    buffers = [each for each in memory.usage.held.lives if each.name == "bucket.parameters.gather.buffer"]
    items = [item.op.name for _, item in memory.items(memory.usage.tasks[0])]
    assert buffers[-1].ends[0].index == items.index("head.out.all_gather.tp") + 1


@pytest.mark.parametrize(("tp", "held"), [(1, [1, 1, 1]), (2, [3, 2, 1])])
def test_gradients_of_experts_in_parts_are_added_behind_all_experts(tp: int, held: list[int]) -> None:
    """Parts of distributed tensors become plain tensors before the first expert, so that the way back is after it."""
    (memory,) = memory_of(copied(MOE, tp=tp, sp=tp > 1, global_batch_size=2))
    later = [number for number, task in enumerate(memory.usage.tasks) if task.kind.differentiates][1]
    items = [item.op.name for _, item in memory.items(memory.usage.tasks[later])]
    last = items.index("layer.ffn.experts.w1.input_gradient")
    begins = [items.index(f"layer.ffn.experts.{word}.weight_gradient") for word in ("w2", "w3", "w1")]
    counts = []
    for begin in begins:
        found = [name for kind, name, _ in alive_at(memory, Point(later, last)) if kind == "temporaries"]
        counts.append(sum(name == items[at] for name in found for at in begins if at >= begin))
    assert counts == held


@pytest.mark.parametrize(
    ("passing", "cp", "times"), [("ring-allgather", 2, 12), ("ring-alltoall", 2, 10), ("ring-alltoall", 4, 12)]
)
def test_a_turn_back_holds_sums_of_the_turn_before(passing: str, cp: int, times: int) -> None:
    """In values of q, k or v of a rank in bf16, which are of one size: sums of keys and values are 4, in fp32.

    The most is held while they are sent: those that came before, new ones, dq, and gradients of half of the keys. Keys
    and values are packed once more, but for two ranks that pass them on.
    """
    (memory, *_) = memory_of(copied(GPT, cp=cp, cp_kind=passing))
    (backward,) = (memory.program.items[kind] for kind in memory.program.backwards)
    turns = [item for item in backward if item.op.name.endswith("input_gradient.turn")]
    one = 16 // cp * GPT.heads * GPT.head_dim * 2
    assert {item.temporary for item in turns} == {times * one}


def test_more_chunks_than_a_runtime_keeps_gathered_are_named() -> None:
    torch, megatron = find_framework("torch"), find_framework("megatron")
    assert "keeps 3 chunks of a stage gathered" in (other_gathers(3, 4, torch) or "")
    assert [other_gathers(*each) for each in ((3, 3, torch), (1, 4, torch), (3, 4, megatron))] == [None] * 3


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ({}, "does not reduce them"),
        ({"zero": 3}, "leaves out the gradients of units that were freed"),
        ({"dp": 1}, None),
        ({"dp": 1, "cp": 2, "cp_kind": "ulysses"}, "does not reduce them"),
        ({"dp": 1, "cp": 2, "cp_kind": "ulysses", "cp_grad_sync": False}, None),
        ({"ep": 2, "ep_sync": False}, None),
        ({"zero": 2}, None),
        ({"zero": 3, "reshard": False}, None),
        ({"schedule": "1f1b"}, None),
        ({"zero": 3, "schedule": "1f1b"}, None),
        ({"recipe": "megatron"}, None),
        ({"zero": 3, "schedule": "explicit", "task_order": ["F0 F1 I0 I1 W0 W1", "F0 F1 B0 B1"]}, None),
    ],
)
def test_gradients_that_a_split_backward_leaves_out_are_named(words: dict[str, object], part: str | None) -> None:
    """torch's `stage_backward_weight` sets `.grad` past the hooks of DistributedDataParallel.

    `stage_backward_input` reads the weights before FSDP2 gathers a unit. The first chunk has whole backwards.
    """
    plan = Plan.from_mapping(
        {"dp": 2, "pp": 2, "schedule": "zb-h1", "global_batch_size": 4, "recipe": "torch", **words}
    )
    found = other_reductions(plan)
    assert found is None if part is None else part in (found or "")
