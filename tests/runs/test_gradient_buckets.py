"""Modules of gradients that DDP reduces: of the weights whose sizes add up to a bucket."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api.client import Stagedb
from stagedb.runs import RankTrace, file_digest, read_kineto
from stagedb.runs.gradient_buckets import Bucket, Weight, buckets_of, elements_of
from stagedb.store import Store
from tests.runs.recordings import Recording

ENGINE = "autograd::engine::evaluate_function: "
NODE = "torch::autograd::AccumulateGrad"
NET = "DistributedDataParallel_0/Net_0"

A: Weight = ("a", 6)
B: Weight = ("b", 4)
C: Weight = ("c", 4)
D: Weight = ("d", 9)


@pytest.mark.parametrize(
    ("events", "buckets"),
    [
        ([A, B, 10, C, D, 13], [(A, B), (C, D)]),
        # DDP may have assigned a weight that is ready early to a later bucket: the one choice that adds up.
        ([D, B, A, 10, C, 13], [(B, A), (D, C)]),
        # The weight that became ready last completes the bucket, so that another one of its size is not in it.
        ([B, A, C, 10, 4], [(A, C), (B,)]),
        # Either of two weights of a size may be in it: the sizes do not show which one is.
        ([B, C, A, 10, D, 13], [None, None]),
        # Two weights of a size and one module are the same.
        ([B, B, A, 10, D, 13], [(B, A), (B, D)]),
        # Buckets that are not known have all weights before them, and the next one starts anew.
        ([B, C, A, 10, 4, D, 9], [None, None, (D,)]),
        # What is reduced after all gradients is a map of weights that were used, and no gradient.
        ([A, B, 10, 2, C, 4], [(A, B), (), (C,)]),
        # Too many elements, too few, and none.
        ([A, B, 11], [None]),
        ([A, B, 3], [None]),
        ([A, 0], [None]),
        # A bucket of weights that were all ready earlier follows at once.
        ([A, B, 4, 6], [(B,), (A,)]),
    ],
)
def test_weights_of_a_bucket_add_up_to_it(events: list[Weight | int], buckets: list[Bucket | None]) -> None:
    assert buckets_of(events) == buckets


def test_too_many_sums_are_no_choice() -> None:
    """2**20 sums of 20 weights would have to be tried."""
    weights: list[Weight | int] = [(f"w{power}", 1 << power) for power in range(20)]
    assert buckets_of([*weights, 1 << 19]) == [None]


def test_elements_are_those_of_the_first_tensor() -> None:
    texts = ("[[64,3,7,7]]", "[[[8816192]],[],[]]", "[[]]", "[]", "", "[1")
    assert [elements_of(text) for text in texts] == [9408, 8816192, 1, None, None, None]


def ddp(buckets: tuple[int, ...] = (12, 40), *, shapes: bool = True, copies: bool = True, steps: int = 1) -> Recording:
    """Two linear layers under DDP: of 4 x 8 and 2 x 4 weights, with biases of 8 and 4. The first bucket has the second
    layer (8 + 4), the next one the first layer (32 + 8).

    buckets: elements of the buckets, or of the one that has all. shapes: whether they were recorded. copies: whether
    gradients are copied back.
    """
    found = Recording(world=2)
    for step in range(steps):
        _step(found, step * 10_000, buckets, shapes, copies)
    return found


def _step(found: Recording, begin: int, buckets: tuple[int, ...], shapes: bool, copies: bool) -> None:
    python = "python_function"
    found.span(python, "nn.Module: DistributedDataParallel_0", begin + 100, 1_800)
    found.span(python, "nn.Module: Net_0", begin + 150, 1_700)
    for layer in range(2):
        at = begin + 200 + 800 * layer
        found.span(python, f"nn.Module: Linear_{layer}", at, 500)
        found.span("cpu_op", "aten::linear", at + 100, 300, (1, 1), **{"Sequence number": 7 + layer})
        found.kernel("gemm_kernel", at + 3_000, 400, launched=at + 200)
    found.kernel("loss_kernel", begin + 4_300, 20, launched=begin + 2_000, operator="aten::mse_loss")
    at = begin + 2_200
    for layer, bias, weight in ((1, [4], [4, 2]), (0, [8], [8, 4])):
        found.span("cpu_op", f"{ENGINE}AddmmBackward0", at, 190, (1, 2), **{"Sequence number": 7 + layer})
        found.kernel("gemm_kernel", at + 2_200, 190, launched=at + 100, thread=2)
        for dims in (bias, weight):
            at += 200
            _accumulated(found, at, dims, shapes)
        if layer == 0 or len(buckets) == 2:
            _reduced(found, at + 100, buckets[layer - 1])
        at += 200
    for place, dims in enumerate(([4], [4, 2], [8], [8, 4]) if copies else ()):
        name, here = "torch.distributed.ddp.reducer::copy_bucket_to_grad", at + 40 * place
        found.span("cpu_op", name, here, 30, (1, 2), **({"Input Dims": [dims]} if shapes else {}))
        found.kernel("copy_kernel", at + 2_600 + 40 * place, 10, launched=here + 10, thread=2, operator="aten::copy_")
    found.span("user_annotation", "Optimizer.step#SGD.step", begin + 4_000, 100)
    found.kernel("sgd_kernel", begin + 6_700, 30, launched=begin + 4_050)


def _accumulated(found: Recording, at: int, dims: list[int], shapes: bool) -> None:
    """The node of a weight, in which DDP copies the gradient into its bucket."""
    found.span("cpu_op", f"{ENGINE}{NODE}", at, 180, (1, 2))
    found.span("cpu_op", NODE, at + 5, 20, (1, 2), **({"Input Dims": [dims]} if shapes else {}))
    found.kernel("mul_kernel", at + 2_200, 10, launched=at + 50, thread=2, operator="aten::mul")


def _reduced(found: Recording, at: int, elements: int) -> None:
    """The all-reduce of a bucket, on a stream of its own."""
    more: dict[str, Any] = {"Collective name": "allreduce", "dtype": "Float", "Group size": 2}
    more |= {"In msg nelems": elements, "Out msg nelems": elements}
    more |= {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    found.span("cpu_op", "c10d::allreduce_", at, 70, (1, 2), **{"Input Dims": [[[elements]], [], []]})
    found.span("cpu_op", "record_param_comms", at + 10, 50, (1, 2), **more)
    found.kernel("ncclDevKernel_Generic(x)", at + 2_300, 300, 20, at + 30, "nccl:all_reduce", 2, **more)


def read(recording: Recording, directory: Path) -> RankTrace:
    path = recording.write(directory)
    return read_kineto(path, file_digest(path))


def gradients(trace: RankTrace) -> list[Bucket]:
    there = [place for place in trace.ops.collective.tolist() if place >= 0]
    return [trace.collectives[place].gradients for place in there]


def modules(trace: RankTrace, kernel: str) -> list[str | None]:
    ops = trace.ops
    places = [ops.module[at] for at in range(len(ops)) if trace.names[ops.name[at]].startswith(kernel)]
    return [None if place < 0 else trace.modules[int(place)] for place in places]


FIRST = ((f"{NET}/Linear_1", 4), (f"{NET}/Linear_1", 8))
SECOND = ((f"{NET}/Linear_0", 8), (f"{NET}/Linear_0", 32))


@pytest.mark.parametrize("copies", [True, False])
def test_a_bucket_has_the_modules_of_its_gradients(tmp_path: Path, copies: bool) -> None:
    trace = read(ddp(copies=copies), tmp_path)
    assert gradients(trace) == [FIRST, SECOND]
    assert trace.left_out == ()
    assert modules(trace, "nccl") == [f"{NET}/Linear_1", f"{NET}/Linear_0"]
    each = [f"{NET}/Linear_{layer}" for layer in (1, 1, 0, 0)]
    assert modules(trace, "mul") == each
    assert modules(trace, "copy") == (each if copies else [])
    assert modules(trace, "sgd") == modules(trace, "loss") == [None]


def test_a_bucket_of_several_modules_is_of_what_contains_them(tmp_path: Path) -> None:
    trace = read(ddp((52,)), tmp_path)
    assert gradients(trace) == [(*FIRST, *SECOND)]
    assert modules(trace, "nccl") == [NET]


def test_sizes_that_do_not_add_up_have_no_modules(tmp_path: Path) -> None:
    trace = read(ddp((13, 39)), tmp_path)
    assert gradients(trace) == [(), ()]
    assert modules(trace, "nccl") == [None, None]
    assert [each.partition(" have")[0] for each in trace.left_out] == ["2 all-reduces of gradients"]
    # Each weight's own kernels are of its module all the same; what was copied back is not known.
    assert modules(trace, "mul") == [f"{NET}/Linear_{layer}" for layer in (1, 1, 0, 0)]
    assert modules(trace, "copy") == [None] * 4


def test_without_shapes_buckets_have_no_modules(tmp_path: Path) -> None:
    trace = read(ddp(shapes=False), tmp_path)
    assert gradients(trace) == [(), ()]
    assert len(trace.left_out) == 1


def test_without_modules_nothing_is_missing(tmp_path: Path) -> None:
    found = ddp()
    found.events = [each for each in found.events if each["cat"] != "python_function"]
    trace = read(found, tmp_path)
    assert gradients(trace) == [(), ()]
    assert trace.left_out == ()


def test_a_backward_does_not_have_gradients_of_the_one_before(tmp_path: Path) -> None:
    """The first one accumulates gradients, and reduces none (`no_sync`)."""
    found = ddp(steps=2)
    reduces = ("c10d::allreduce_", "record_param_comms", "ncclDevKernel_Generic(x)", "nccl:all_reduce")
    found.events = [each for each in found.events if each["name"] not in reduces or float(each["ts"]) > 10]
    assert gradients(read(found, tmp_path)) == [FIRST, SECOND]


def test_a_checkpoint_that_runs_its_own_backward_has_modules(tmp_path: Path) -> None:
    """Its thread numbers operators anew, and the gradient of its input is accumulated, but not reduced."""
    found = Recording(world=2)
    for name, at, length in (("Net_0", 100, 800), ("Linear_9", 200, 300), ("Linear_9", 5_200, 300)):
        found.span("python_function", f"nn.Module: {name}", at, length)
    for name, at, number in (("aten::linear", 300, 7), ("CheckpointFunction", 600, 8), ("aten::linear", 5_300, 7)):
        found.span("cpu_op", name, at, 100, (1, 1), **{"Sequence number": number})
    for name in (f"{ENGINE}CheckpointFunctionBackward", "CheckpointFunctionBackward"):
        found.span("cpu_op", name, 2_000, 3_000, (1, 2), **{"Sequence number": 8})
    found.kernel("stack_kernel", 5_000, 10, launched=2_050, thread=2)
    found.span("python_function", "nn.Module: Linear_0", 2_100, 300, (1, 2))
    found.span("cpu_op", "aten::linear", 2_150, 100, (1, 2), **{"Sequence number": 7})
    found.span("python_function", "nn.Module: Linear_1", 2_410, 50, (1, 2))
    found.span("cpu_op", "aten::relu", 2_420, 20, (1, 2), **{"Sequence number": 9})
    found.span("cpu_op", f"{ENGINE}ReluBackward0", 2_470, 10, (1, 2), **{"Sequence number": 9})
    found.span("cpu_op", f"{ENGINE}{NODE}", 2_480, 10, (1, 2))
    found.span("cpu_op", NODE, 2_482, 5, (1, 2), **{"Input Dims": [[2, 2]]})
    for name in (f"{ENGINE}AddmmBackward0", "AddmmBackward0"):
        found.span("cpu_op", name, 2_500, 100, (1, 2), **{"Sequence number": 7})
    found.kernel("gemm_kernel", 6_000, 10, launched=2_550, thread=2)
    _accumulated(found, 3_000, [4], True)
    _accumulated(found, 3_200, [8, 4], True)
    _reduced(found, 3_300, 36)
    trace = read(found, tmp_path)
    assert gradients(trace) == [(("Linear_0", 4), ("Linear_0", 32))]
    assert modules(trace, "gemm") == ["Linear_0"]
    assert modules(trace, "stack") == ["Net_0"]


def test_buckets_before_the_recording_repeat_those_of_its_last_step(tmp_path: Path) -> None:
    found = ddp(steps=2)
    begin = found.events[0]["ts"]
    before = [each for each in found.events if float(each["ts"]) < 10 and each["cat"] == "kernel"]
    found.events = [each for each in found.events if float(each["ts"]) >= 10]
    for each in before:
        # Calls that were not recorded leave nothing of a collective but its name.
        each["args"] = {"device": 0, "stream": each["args"]["stream"]}
    found.events += before
    assert begin == "0.1"
    trace = read(found, tmp_path)
    assert gradients(trace) == [FIRST, SECOND, FIRST, SECOND]
    assert modules(trace, "gemm")[:4] == modules(trace, "gemm")[4:]
    other = dict(before[0], name="ncclDevKernel_Broadcast", args={"device": 0, "stream": 20})
    found.events.append(other)
    assert gradients(read(found, tmp_path)) == [(), (), (), FIRST, SECOND]


def test_the_store_answers_which_modules_a_bucket_has(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    run = db.import_run(ddp().write(tmp_path))
    rows = db.query(
        "MATCH (:Run {id: $run})-[:HAS_LANE]->()-[:HAS_OP_TIME]->(o:RunOp) WHERE o.modules IS NOT NULL "
        "RETURN o.message AS bytes, o.modules AS modules, o.module_elements AS elements ORDER BY o.index",
        run=run.id,
    )
    assert [(row["bytes"], row["modules"], row["elements"]) for row in rows] == [
        (48, [f"{NET}/Linear_1"], [12]),
        (160, [f"{NET}/Linear_0"], [40]),
    ]
    shares = {row["part"]: row for row in db.query("module_share", run=run.id)}
    times = {part: (row["ops"], row["time"]) for part, row in shares.items()}
    assert times == {
        "module": (12, 2 * 400 + 2 * 190 + 4 * 10 + 4 * 10),
        "gradients": (2, 600),
        "optimizer": (1, 30),
        "loss": (1, 20),
    }
    assert shares["module"]["computing"] == pytest.approx(1260 / 1310)
    assert shares["gradients"]["share"] == pytest.approx(600 / 1910)
    assert shares["gradients"]["computing"] is shares["gradients"]["waited"] is None
    timed = {(row["module"], row["part"]): row["time"] for row in db.query("module_time", run=run.id)}
    assert timed[f"{NET}/Linear_1", "gradients"] == 300
    assert timed[None, "optimizer"] == 30


def test_waiting_for_others_is_named_apart(store: Store, tmp_path: Path) -> None:
    """The second rank is 200 ns late: the first one waits in both buckets."""
    late = ddp()
    late.rank = 1
    for each in late.events:
        if each["name"].startswith("nccl") and each["cat"] == "kernel":
            each["ts"], each["dur"] = str((float(each["ts"]) * 1000 + 200) / 1000), "0.1"
    files = [each.write(tmp_path) for each in (ddp(), late)]
    run = Stagedb(store).import_run(tmp_path)
    assert len(files) == run.world
    row = {each["part"]: each for each in Stagedb(store).query("module_share", run=run.id)}["gradients"]
    assert (row["time"], row["waited"]) == (400, 200)
    assert row["working"] == pytest.approx(200 / (200 + 1310))
