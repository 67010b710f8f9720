"""A loss in parts of the tokens: what its peak is less by, by closed forms, and the plans that refuse it."""

from collections import Counter
from itertools import count

import pytest

from stagedb.errors import UsageError
from stagedb.lowering import Program, program_of
from stagedb.memory import ClassMemory, memory_of
from stagedb.memory.usage import Point
from stagedb.models import Card, load_card
from stagedb.plans import Plan
from stagedb.systems import load_system
from stagedb.timing import profile_job
from tests import lowered
from tests.instances.drawn_plans import Drawn, drawn_plan
from tests.sampling import ALL

SCALARS = 8
"""Bytes of numbers: the loss of the first part, and the tokens of the second, that the whole loss does not have."""


def takes_parts(drawn: Drawn) -> bool:
    """Whether a loss in parts suits the framework and the workflow of a plan."""
    return drawn.words["recipe"] == "torch" and "workflow" not in drawn.words


def last(model: str | Card, /, **words: object) -> ClassMemory:
    """The memory of the ranks that have the loss."""
    return memory_of(lowered.program(model, **words))[-1]


def peak(held: ClassMemory) -> int:
    return sum(held.usage.at(held.peak).values())


def sizes(model: str) -> tuple[int, int]:
    """Padded vocabulary and hidden size."""
    card = load_card(model)
    return card.padded_vocab, card.hidden


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama3-8b", {"seq_len": 8192}),
        ("llama3-8b", {"seq_len": 8192, "dp": 8, "zero": 3}),
        ("llama3-8b", {"seq_len": 8192, "tp": 8}),
        ("llama3-8b", {"seq_len": 8192, "tp": 8, "sp": True}),
        ("llama3-8b", {"seq_len": 8192, "tp": 4, "sp": True, "dp": 2, "zero": 3, "micro_batch_size": 2}),
        ("llama3-8b", {"seq_len": 8192, "pp": 4, "global_batch_size": 8}),
        ("gpt2", {"seq_len": 1024, "micro_batch_size": 8}),
        ("gpt2", {"seq_len": 1024, "micro_batch_size": 8, "dp": 4}),
    ],
)
@pytest.mark.parametrize("parts", [2, 4])
def test_a_peak_falls_by_the_logits_of_the_other_parts(model: str, words: dict[str, object], parts: int) -> None:
    """At the gradient of a part's logits there are, in fp32, their log-probabilities, their gradient and that of the
    log-probabilities, with tp also their exponentials, and the gradient of each token's loss. What the first part has
    made is new: the gradients of the head's weight and of its input. A stage also keeps logits, as the loss's input."""
    vocabulary, hidden = sizes(model)
    tp = int(words.get("tp", 1))  # type: ignore[call-overload]
    tokens = int(words["seq_len"]) * int(words.get("micro_batch_size", 1))  # type: ignore[call-overload]
    before, after = last(model, **words), last(model, **words, loss_chunks=parts)
    assert before.at(before.peak)[2] == "head.loss.label.input_gradient"
    assert after.at(after.peak)[2] == "head.chunk_2.loss.label.input_gradient"
    logits = tokens * vocabulary // tp
    fewer = (4 * (3 + (tp > 1)) * logits + 4 * tokens) * (parts - 1) // parts
    kept = 2 * vocabulary // tp * hidden + 2 * tokens * hidden
    stage = 2 * logits if "pp" in words else 0
    assert peak(before) - peak(after) == fewer + stage - kept - SCALARS


@pytest.mark.parametrize("parts", [2, 8, 64])
def test_a_forward_keeps_gradients_in_place_of_probabilities(parts: int) -> None:
    """The gradient of the head's input has the place of the input."""
    vocabulary, hidden = sizes("llama3-8b")
    before, after = (dict(last("llama3-8b", seq_len=8192, loss_chunks=each).ends()) for each in (1, parts))
    fewer = sum(before["forward_end"].values()) - sum(after["forward_end"].values())
    assert fewer == 4 * 8192 * vocabulary - 2 * vocabulary * hidden + 4  # and the number of tokens
    assert before["backward_end"] == after["backward_end"]


def test_each_micro_batch_in_flight_keeps_a_gradient_of_the_head() -> None:
    """With GPipe the last stage runs all forwards before its first backward. The first micro-batch's becomes the
    gradient of the step. A stage keeps the input of its loss: without parts these are logits, next to log-probabilities
    and the number of tokens, and with parts the input of the head, next to its gradient."""
    vocabulary, hidden = sizes("llama3-8b")
    tokens, more = 1024, 3
    of_each = []
    for parts in (1, 4):
        words = {"seq_len": tokens, "pp": 2, "schedule": "gpipe", "loss_chunks": parts}
        held = [dict(last("llama3-8b", **words, global_batch_size=size).ends()) for size in (2, 2 + more)]
        few, many = (each["forward_end"] for each in held)
        assert few.get("gradients", 0) == many.get("gradients", 0) == (2 * vocabulary * hidden if parts > 1 else 0)
        of_each.append((many["activations"] - few["activations"]) // more)
    assert of_each[1] - of_each[0] == 2 * vocabulary * hidden + 2 * tokens * hidden - 6 * tokens * vocabulary - 4


@pytest.mark.parametrize(("schedule", "pp"), [("1f1b", 1), ("zb-h1", 2)])
def test_what_the_backward_takes_from_the_forward_is_there_once(schedule: str, pp: int) -> None:
    """No kernel copies gradients that the forward has kept: while one is handed over, no more is held than before."""
    held = last("llama3-8b", seq_len=512, pp=pp, schedule=schedule, global_batch_size=4, loss_chunks=4)
    seen = 0
    for number, task in enumerate(held.usage.tasks):
        for index, (_, item) in enumerate(held.items(task)):
            if item.op.kind == "hand_over":
                ended = Point(number - 1, len(held.items(held.usage.tasks[number - 1])))
                before = Point(number, index - 1) if index else ended
                now, then = (sum(held.usage.at(point).values()) for point in (Point(number, index), before))
                assert now <= then + 4, item.op.name  # the number that starts the backward
                seen += 1
    assert seen == 2 * 4


@pytest.mark.parametrize("seed", range(60 if ALL else 8))
def test_a_drawn_plan_holds_as_much_before_and_after_its_backwards(seed: int) -> None:
    drawn = next(filter(takes_parts, map(drawn_plan, count(100 * seed))))
    plan = Plan.from_mapping({**drawn.words, "loss_chunks": 4 if seed % 2 else 2})
    plan.check(drawn.program.graph.sizes)
    for whole, parts in zip(memory_of(drawn.program), memory_of(program_of(drawn.model, plan)), strict=True):
        before, after = dict(whole.ends()), dict(parts.ends())
        assert all(before[moment] == after[moment] for moment in ("start", "backward_end", "step_end"))


def flops(program: Program) -> Counter[str]:
    found: Counter[str] = Counter()
    for columns in program.workload.classes:
        for each, kind in zip(columns.ops.flops, columns.ops.kind, strict=True):
            found[kind] += int(each)
    return found


@pytest.mark.parametrize("words", [{}, {"tp": 4, "sp": True}, {"pp": 2, "global_batch_size": 4}, {"lora": ["q_proj"]}])
def test_parts_compute_as_much_as_all_tokens(words: dict[str, object]) -> None:
    whole, parts = (lowered.program("llama3-8b", seq_len=512, loss_chunks=parts, **words) for parts in (1, 8))
    assert flops(whole) == flops(parts)


def test_each_part_takes_kernels_of_its_own() -> None:
    system = load_system("h100")
    steps = [
        profile_job(lowered.workload("llama3-8b", seq_len=4096, tp=2, loss_chunks=parts), system).step
        for parts in (1, 2, 16)
    ]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"loss_chunks": 3, "micro_batch_size": 2}, "the 1024 tokens .* --loss-chunks 3: .* --loss-chunks 2 or .* 4$"),
        ({"loss_chunks": 512, "cp": 2}, "the 256 tokens .* --loss-chunks 512: the nearest is --loss-chunks 256"),
        ({"loss_chunks": 513}, "513 parts of a loss are too many: --loss-chunks takes at most 512"),
        ({"loss_chunks": 0}, "loss_chunks is 0: --loss-chunks takes 1 or more"),
        ({"loss_chunks": 2, "strategy": '{"regions": {"loss": {"batch": ["dp"], "seq": ["cp", "tp"]}}}'}, "two ways"),
    ],
)
def test_tokens_that_have_no_such_parts_are_refused(words: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        lowered.program("llama3-8b", seq_len=512, tp=2, **words)
