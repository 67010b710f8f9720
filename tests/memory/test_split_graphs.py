"""What torch holds between the two halves of a split backward: its graph, and a gradient until the next is there."""

import pytest

from stagedb.memory.chunk_tensors import SplitGraph
from stagedb.memory.class_memory import ClassMemory
from stagedb.memory.lifetimes import Life, Moment, TaskSelector
from tests.instances.test_chunk_placement import copied, memories

SPLIT = {"pp": 2, "virtual_stages": 2, "schedule": "interleaved-zb", "global_batch_size": 4}


def stage(number: int, recipe: str = "torch") -> ClassMemory:
    return next(each for each in memories(copied({**SPLIT, "recipe": recipe})) if each.rank_class.stages == (number,))


def lives(found: ClassMemory, name: str) -> list[Life]:
    """The lives of a tensor of the second chunk, in the order of its layers."""
    return sorted(
        (each for each in found.usage.held.lives if each.name == name and each.begin.chunk == 1),
        key=lambda each: (each.layer or 0, each.begin.which is TaskSelector.LATER),
    )


@pytest.mark.parametrize("name", ["layer.attn.lse", "layer.attn.rotary_q", "layer.attn.core", "layer.ffn.w1"])
def test_what_an_operator_without_weights_has_saved_is_held_to_the_end(name: str) -> None:
    found = stage(0)
    _, second = found.programs[1].backwards
    assert [each.ends for each in lives(found, name)] == [
        (Moment(second, len(found.programs[1].items[second]), chunk=1),)
    ]


def test_megatron_frees_with_the_last_reader() -> None:
    """The first half runs attention's backward. The gradient of `wo` in the second reads attention's result."""
    found = stage(0, "megatron")
    first, second = found.programs[1].backwards
    for name, kind in (("layer.attn.lse", first), ("layer.attn.core", second)):
        (life,) = lives(found, name)
        assert [end.kind for end in life.ends] == [kind]


def test_an_operator_with_weights_releases_its_own_part() -> None:
    found = stage(0)
    program = found.programs[1]
    second = program.backwards[1]
    readers = [at for at, item in enumerate(program.items[second]) if ("layer.ffn_norm", 0) in item.reads]
    (life,) = lives(found, "layer.ffn_norm")
    assert life.ends == (Moment(second, readers[-1] + 1, chunk=1),)


def test_above_the_last_operator_with_weights_nothing_is_held_longer_than_the_first_half() -> None:
    found = stage(1)
    program = found.programs[1]
    first = program.backwards[0]
    loss = [item for item in program.items[first] if item.op.name.startswith("head.loss")]
    made = {key for item in program.items[program.forward] for key in item.writes}
    (read,) = {key for item in loss for key in item.reads} & made
    (life,) = lives(found, read[0])
    assert life.ends == (Moment(first, len(program.items[first]), chunk=1),)


def test_a_gradient_that_was_added_is_held_until_the_next_is_there() -> None:
    found = stage(0)
    program = found.programs[1]
    second = program.backwards[1]
    ends = []
    for at, item in enumerate(program.items[second]):
        if item.op.name.startswith("layer.") and item.op.kind == "matmul":
            _, later = lives(found, item.writes[0][0])
            (end,) = later.ends
            ends.append((at, end.index))
    count = len(program.items[second])
    again = {at for at, _ in SplitGraph(program).again.values()}
    assert all(end >= (at + 1 if at + 1 in again else min(at + 2, count)) for at, end in ends)
    assert any(end == at + 2 for at, end in ends)


def test_the_second_half_goes_through_weights_in_the_order_of_the_forward() -> None:
    program = stage(0).programs[1]
    order = [item.op.name.rpartition(".")[0] for item in program.items[program.backwards[1]] if item.position == 0]
    layer = ("attn.wq", "attn.wk", "attn.wv", "attn.wo", "ffn.w1", "ffn.w3", "ffn.w2")
    assert order == [f"layer.{name}" for name in layer]


def test_the_second_half_runs_norms_again() -> None:
    """A norm of several kernels makes the gradients of its input and its weight in one call, from one gradient."""
    found = stage(0)
    program = found.programs[1]
    first, second = program.backwards
    name = "layer.ffn_norm.input_gradient"
    norm = next(item for item in program.items[first] if (item.op.name, item.position) == (name, 0))
    at = next(at for at, item in enumerate(program.items[second]) if item.op.name.startswith("layer.ffn.w1."))
    again, *_ = lives(found, f"{name}.again")
    assert again.begin == Moment(second, at, chunk=1, prepared=True)
    assert again.bytes == norm.temporary + program.sizes[name]
    given, *_ = lives(found, norm.reads[0][0])
    assert given.ends == (Moment(second, at, chunk=1),)


def test_a_stage_keeps_its_result_until_the_second_half_is_over() -> None:
    found = stage(0)
    program = found.programs[1]
    second = program.backwards[1]
    (sent,) = lives(found, program.port("send_forward")[0])
    assert sent.ends == (Moment(second, len(program.items[second]), chunk=1),)
