"""Modules of kernels: around their launch in a forward, and by sequence numbers in a backward."""

from pathlib import Path

from stagedb.api.client import Stagedb
from stagedb.runs import RankTrace, file_digest, read_kineto
from stagedb.store import Store
from tests.runs.recordings import Recording


def step() -> Recording:
    """A model of two layers, forward on one thread and backward on another one, and an optimizer."""
    found = Recording()
    python = "python_function"
    found.span(python, "train.py(3): main", 0, 9_000)
    found.span(python, "nn.Module: Net_0", 100, 1_800)
    for layer in range(2):
        at = 200 + 800 * layer
        found.span(python, f"nn.Module: Linear_{layer}", at, 500)
        # An operator that autograd does not differentiate has seen the number of the next one.
        found.span("cpu_op", "aten::detach", at - 60, 20, (1, 1), **{"Sequence number": 7 + layer})
        found.span("cpu_op", "aten::linear", at + 100, 300, (1, 1), **{"Sequence number": 7 + layer})
        found.kernel("gemm_kernel", at + 3_000, 400, launched=at + 200)
    for layer in (1, 0):
        at = 2_200 + 800 * (1 - layer)
        node = "autograd::engine::evaluate_function: MmBackward0"
        found.span("cpu_op", node, at, 600, (1, 2), **{"Sequence number": 7 + layer})
        found.kernel("gemm_kernel", at + 4_000, 400, launched=at + 200, thread=2)
    found.kernel("adam_kernel", 9_000, 100, launched=4_500)
    return found


def read(recording: Recording, directory: Path) -> RankTrace:
    path = recording.write(directory)
    return read_kineto(path, file_digest(path))


def modules(trace: RankTrace) -> list[str | None]:
    ops = trace.ops
    order = sorted(range(len(ops)), key=lambda at: (int(ops.launched[at]), at))
    return [None if ops.module[at] < 0 else trace.modules[int(ops.module[at])] for at in order]


def test_forward_and_backward_are_of_the_modules_that_were_called(tmp_path: Path) -> None:
    assert modules(read(step(), tmp_path)) == [
        "Net_0/Linear_0",
        "Net_0/Linear_1",
        "Net_0/Linear_1",
        "Net_0/Linear_0",
        None,
    ]


def test_kernels_of_the_step_before_are_those_of_its_end(tmp_path: Path) -> None:
    """Their launches were before the recording, and the same kernels end the recorded step."""
    found = step()
    for at, name in ((10, "gemm_kernel"), (60, "gemm_kernel"), (90, "adam_kernel")):
        found.span("kernel", name, at, 20, (0, 7), device=0, stream=7)
    trace = read(found, tmp_path)
    assert modules(trace)[:3] == ["Net_0/Linear_1", "Net_0/Linear_0", None]
    launchers = [trace.names[place] for place in trace.ops.launcher[:3].tolist()]
    assert launchers == ["aten::mm"] * 3
    found.span("kernel", "other_kernel", 95, 2, (0, 7), device=0, stream=7)
    assert modules(read(found, tmp_path))[:4] == [None] * 4


def test_a_trace_without_pythons_calls_has_no_modules(tmp_path: Path) -> None:
    found = step()
    found.events = [event for event in found.events if event["cat"] != "python_function"]
    assert modules(read(found, tmp_path)) == [None] * 5


def test_the_store_answers_by_module(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    run = db.import_run(step().write(tmp_path))
    found = db.query("module_time", run=run.id)
    assert found.hints == ()
    rows = {(row["module"], row["phase"]): (row["ops"], row["time"]) for row in found}
    assert rows["Net_0/Linear_1", "backward"] == (1, 400)
    assert rows["Net_0/Linear_0", "forward"] == (1, 400)
    assert sum(ops for ops, _ in rows.values()) == run.ops
