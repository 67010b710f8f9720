"""Plans whose chunks are anywhere: messages pair up, stages hand over to themselves without one, memory comes back."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.lowering import program_of
from stagedb.lowering.columns import RECV, SEND, Program
from stagedb.lowering.issue_order import sequence
from stagedb.memory import Category, Point
from stagedb.memory.class_memory import ClassMemory, class_memory
from stagedb.memory.class_program import PlacedWeight
from stagedb.plans import Plan
from stagedb.timing.node_graph import node_graph_of
from stagedb.traces.workload_checks import check_workload
from tests.ir.tiny import card
from tests.sampling import examples

MAPS = ("v", "0,0,1,1", "1,0,0,1", "1,1,0,0")


def copied(words: dict[str, Any], *, tied: bool = False, layers: int = 4) -> Program:
    plan = Plan.from_mapping({"seq_len": 8, **words})
    model = card("llama", layers=layers, kv_heads=4, tied=tied)
    return program_of(model, plan)


def memories(made: Program) -> list[ClassMemory]:
    return [
        class_memory(
            made.graph,
            made.plan,
            columns,
            {op: tuple(PlacedWeight(*each) for each in of) for op, of in made.carried[columns.number].items()},
        )
        for columns in made.workload.classes
    ]


def messages(made: Program) -> int:
    """Ends of messages between stages of one micro-batch, over all classes."""
    return sum(
        int((np.isin(each.ops.type, (SEND, RECV)) & (np.array(each.ops.axis) == "pp")).sum())
        for each in made.workload.classes
    )


SHARING: tuple[dict[str, Any], ...] = (
    {},
    {"tp": 2, "sp": True, "seq_len": 32},
    {"cp": 2, "cp_kind": "ring-p2p"},
    {"dp": 2, "zero": 1},
    {"dp": 2, "zero": 2},
    {"dp": 2, "zero": 3},
)


@settings(max_examples=examples(25), deadline=None)
@given(
    placed=st.sampled_from(
        [*(("breadth-first", each) for each in MAPS), ("zb-v", None), ("interleaved-zb", None), ("dualpipev", None)]
    ),
    sharing=st.sampled_from(SHARING),
    recipe=st.sampled_from(["torch", "megatron"]),
    recompute=st.sampled_from(["none", "full"]),
    microbatches=st.integers(1, 4),
    tied=st.booleans(),
)
def test_any_placement_pairs_its_messages_and_gives_its_memory_back(
    placed: tuple[str, str | None],
    sharing: dict[str, Any],
    recipe: str,
    recompute: str,
    microbatches: int,
    tied: bool,
) -> None:
    schedule, placement = placed
    # These schedules split backwards, and PyTorch cannot split one that recomputes: the plan is refused.
    assume(placement or recipe != "torch" or recompute == "none")
    words = {
        "pp": 2,
        "virtual_stages": 2,
        "schedule": schedule,
        "chunk_placement": placement,
        "recipe": recipe,
        "recompute": recompute,
        "global_batch_size": microbatches * sharing.get("dp", 1),
        **sharing,
    }
    if placed[0] == "dualpipev":  # which needs two micro-batches a stage
        words["global_batch_size"] = (3 + microbatches) * sharing.get("dp", 1)
    if recipe == "megatron" and sharing.get("zero") in (2, 3):
        words["zero"] = 1
    plan = Plan.from_mapping({"seq_len": 8, **words})
    ends = [plan.placement.stage(number, 2) for number in (0, 3)]
    made = copied(words, tied=tied and ends == [0, 1])
    check_workload(made.workload, {each.number: sequence(each) for each in made.workload.classes})
    assert len(node_graph_of(made.workload))
    stages = [plan.placement.stage(number, 2) for number in range(4)]
    apart = sum(one != other for one, other in pairwise(stages))
    # A forward and a backward over each boundary have two ends each.
    assert messages(made) == 4 * apart * plan.cp
    for each in memories(made):
        usage = each.usage
        assert all(size >= 0 for task in range(len(usage.tasks)) for size in usage.after(task).values())
        over, before = usage.after(len(usage.tasks) - 1), usage.before()
        for category in (Category.PARAMETERS, Category.OPTIMIZER, Category.COMMUNICATION, Category.INPUTS):
            assert over.get(category) == before.get(category)
        if recipe == "megatron":
            # What was handed over has been freed by its last reader; the mean of the losses remains.
            assert over.get(Category.ACTIVATIONS, 0) in (0, 4)


def test_the_stage_where_a_v_turns_hands_over_to_itself() -> None:
    made = copied({"pp": 2, "virtual_stages": 2, "schedule": "zb-v", "global_batch_size": 4})
    first, last = made.workload.classes
    assert (first.stages, last.stages) == ((0,), (1,))
    edges = zip(last.edges.source.tolist(), last.edges.target.tolist(), strict=True)
    across = {
        (last.ops.name[one], last.ops.name[other])
        for one, other in edges
        if last.ops.chunk[one] == 0 < last.ops.chunk[other]
    }
    assert ("layer.0.ffn.add", "layer.1.attn_norm") in across
    # The embedding and the head are both on the first stage, and its own stage sends back down.
    assert {"embedding.word", "head.loss"} <= {*first.ops.name}
    down = (first.ops.type == RECV) & (first.ops.chunk == 1)
    assert first.ops.peer[down].tolist() == [1]


def test_a_stage_that_hands_over_holds_it_until_the_last_reader() -> None:
    """In the megatron recipe. In torch's it takes the place of a receive buffer, so that both hold as many bytes."""
    words = {"pp": 2, "virtual_stages": 2, "schedule": "breadth-first", "global_batch_size": 2}
    passed = 8 * card("llama").hidden * 2
    for recipe in ("megatron", "torch"):
        local = memories(copied({**words, "chunk_placement": "0,0,1,1", "recipe": recipe}))[0]
        alive = {each.name: each.bytes for each in local.usage.alive(local.peak)}
        buffers = 2 * passed if recipe == "torch" else None
        assert alive.get("cut.recv_forward.buffers") == buffers
        # After both forwards of the first chunk.
        handed = local.programs[0].port("send_forward")[0]
        waiting = sum(
            each.count
            for each in local.usage.alive(Point(1, len(local.items(local.usage.tasks[1]))))
            if each.name == handed
        )
        assert waiting == (0 if recipe == "torch" else 2)
        saved = local.programs[1].port("recv_forward")
        assert saved[0] == "cut.recv_forward"
        assert local.saved(1)[0][f"cut.recv_forward of {saved[1]}"] == passed


def test_tied_weights_on_other_stages_are_refused() -> None:
    with pytest.raises(UsageError, match="in chunks of stages 0 and 0: tied weights need the first and the last stage"):
        copied({"pp": 2, "virtual_stages": 2, "schedule": "zb-v", "global_batch_size": 4}, tied=True)
