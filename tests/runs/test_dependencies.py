"""What ops of a run waited for: timed again it takes as long, and without some of it less."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun
from stagedb.runs.joined_ops import synchronised, waiting_calls
from stagedb.runs.measured_path import TimedOps
from stagedb.runs.rank_trace import NONE
from stagedb.runs.stored_run import (
    HELD,
    KINDS_OF_DEPENDENCY,
    Dependencies,
    RetimedRun,
    dependencies_of,
    retimed,
    scaling_of,
    what_if,
)
from tests.runs.recordings import Recording, step, training_step
from tests.runs.stored_rows import stored
from tests.runs.test_measured_run import run_of


def timed(run: MeasuredRun) -> dict[int, TimedOps]:
    return {rank: each.timed for rank, each in run.ops.items()}


def found(run: MeasuredRun) -> dict[int, Dependencies]:
    return dependencies_of(timed(run), run.calls)


def again(run: MeasuredRun, changed: Mapping[int, Dependencies] | None = None, **more: Any) -> RetimedRun:
    return retimed(timed(run), run.calls, found(run) if changed is None else changed, **more)


@pytest.mark.parametrize("late", (0, 120_000))
def test_a_run_timed_again_takes_as_long(tmp_path: Path, late: int) -> None:
    run = run_of(tmp_path, *(training_step(rank, late * (rank == 2)) for rank in range(4)))
    result = again(run)
    for rank, ops in timed(run).items():
        assert result.start[rank].tolist() == ops.start.tolist()
        assert result.end[rank].tolist() == ops.end.tolist()
    assert result.step == run.window


def test_waiting_for_other_ranks_is_no_work_of_an_op(tmp_path: Path) -> None:
    run = run_of(tmp_path, *(training_step(rank, 120_000 * (rank == 2)) for rank in range(4)))
    one, late = (next(each.members for each in run.calls if each.members[2] == place) for place in (2, 5))
    for members, wait in ((one, 0), (late, 120_000)):
        for rank, place in members.items():
            ops = timed(run)[rank]
            waited = wait if rank != 2 else 0
            assert found(run)[rank].work[place] == ops.end[place] - ops.start[place] - waited


def test_each_kind_of_dependency_counts(tmp_path: Path) -> None:
    """All is launched at the begin: then streams hold up the ops of a rank, and the late rank holds up the others."""
    run = run_of(tmp_path, *(training_step(rank, 120_000 * (rank == 2)) for rank in range(4)))
    ranks = {rank: replace(ops, launched=np.zeros(len(ops.start), np.int64)) for rank, ops in timed(run).items()}
    each = dependencies_of(ranks, run.calls)
    step_without = {kind: retimed(ranks, run.calls, each, without=[kind]).step for kind in KINDS_OF_DEPENDENCY}
    assert retimed(ranks, run.calls, each).step == run.window
    assert step_without["stream"] < run.window > step_without["other"]
    # Without the group the others do not wait, but the late rank is as late as before.
    ends = retimed(ranks, run.calls, each, without=["member"]).end
    assert float(ends[2].max()) == run.window and float(ends[0].max()) == run.window - 120_000
    with pytest.raises(UsageError, match="unknown kind of dependency 'events': known are stream, other, host, member"):
        again(run, without=["events"])


def test_what_is_faster_ends_sooner(tmp_path: Path) -> None:
    run = run_of(tmp_path, step(0), step(1, late=4_000))
    ones = {rank: np.ones(len(ops.start)) for rank, ops in timed(run).items()}
    free = {rank: np.where(np.array(run.ops[rank].kinds) == "matmul", 0.0, ones[rank]) for rank in ones}
    result = again(run, work=free)
    # By hand: the launch of rank 1's first matmul is 4 us late, and its gap of 10 ns after it stays. The all-reduce
    # takes 31 us after the last member, which comes at once. The last matmul follows after its launch.
    assert round(result.start[1][0]) == 4_000
    assert result.end[1][1] - result.start[1][1] == 31_000
    assert result.step == result.end[1][1]


def test_a_launch_follows_what_the_host_waited_for() -> None:
    """Two kernels, of which the host waits for the first one; then it takes 5 us until it launches the third."""
    ops = TimedOps(
        start=np.array([10, 20_000, 47_000]),
        end=np.array([20_000, 40_000, 50_000]),
        stream=np.array([0, 0, 0]),
        launched=np.array([0, 100, 46_990]),
        synchronised=np.array([NONE, NONE, 1]),
        by_host=np.zeros(3, bool),
    )
    each = dependencies_of({0: ops}, [])[0]
    assert each.anchor.tolist() == [NONE, NONE, 1]
    # A launch takes 10 ns, as the fastest of them did.
    assert each.host.tolist() == [10, 110, 7_000]
    assert each.gap.tolist() == [0, 0, 0]
    slow = {0: np.array([2.0, 1.0, 1.0])}
    result = retimed({0: ops}, [], {0: each}, work=slow)
    assert result.start[0].tolist() == [10, 39_990, 66_990]
    assert retimed({0: ops}, [], {0: each}, without=["host"]).start[0].tolist() == [0, 19_990, 39_990]


def test_launches_keep_their_order() -> None:
    """A launch is after those before it, though the op that the host waited for ends sooner now."""
    ops = TimedOps(
        start=np.array([0, 1_000, 30_000, 31_000]),
        end=np.array([1_000, 21_000, 31_000, 32_000]),
        stream=np.array([0, 1, 0, 2]),
        launched=np.array([0, 900, 30_000, 25_000]),
        synchronised=np.array([NONE, NONE, 1, NONE]),
        by_host=np.zeros(4, bool),
    )
    each = dependencies_of({0: ops}, [])[0]
    free = {0: np.zeros(4)}
    assert retimed({0: ops}, [], {0: each}, work=free).start[0].tolist() == [0, 900, 25_000, 25_000]


def test_the_program_of_a_host_runs_between_its_operators() -> None:
    """Two threads of a trace without devices: the second one wakes the first one, whose program then goes on."""
    ops = TimedOps(
        start=np.array([0, 1_500, 4_000, 7_000]),
        end=np.array([1_000, 2_000, 6_000, 8_000]),
        stream=np.array([0, 0, 1, 0]),
        launched=np.array([0, 1_500, 4_000, 7_000]),
        synchronised=np.full(4, NONE),
        by_host=np.ones(4, bool),
    )
    each = dependencies_of({0: ops}, [])[0]
    assert each.host.tolist() == [NONE, 500, NONE, NONE]
    assert each.gap.tolist() == [0, 0, 2_000, 1_000]
    assert each.other.tolist() == [NONE, NONE, 1, 2]
    assert retimed({0: ops}, [], {0: each}).start[0].tolist() == ops.start.tolist()
    host = {0: np.zeros(4)}
    assert retimed({0: ops}, [], {0: each}, host=host).start[0].tolist() == [0, 1_000, 3_500, 6_500]


def test_calls_that_wait_are_known_by_their_names() -> None:
    names = ["cudaDeviceSynchronize", "hipStreamSynchronize", "cudaMemcpy", "cudaMemcpyAsync", "cudaLaunchKernel"]
    assert waiting_calls(names) == [True, True, True, False, False]


def test_the_host_waited_for_what_ended_during_a_call() -> None:
    end, launched = np.array([100, 200, 300, 900]), np.array([10, 20, 30, 850])
    waits = np.array([150, 400]), np.array([310, 410])
    # The second call began after all that was launched had ended: there was nothing to wait for.
    assert synchronised(end, launched, waits).tolist() == [NONE, NONE, NONE, 2]
    assert synchronised(end, launched, (waits[0][:0], waits[1][:0])).tolist() == [NONE] * 4


def test_a_recording_has_the_calls_in_which_its_host_waited(tmp_path: Path) -> None:
    recording = Recording()
    recording.kernel("a", 1_000, 10_000)
    recording.span("cuda_runtime", "cudaStreamSynchronize", 1_100, 9_950, correlation=90)
    recording.kernel("b", 15_000, 1_000)
    run = run_of(tmp_path, recording)
    assert run.ranks[0].ops.synchronised.tolist() == [NONE, 0]
    each = found(run)[0]
    assert again(run).step == run.window
    assert again(run, {0: replace(each, gap=each.gap * 0)}).step <= run.window


def test_launches_that_limit_what_changes_save_are_named(tmp_path: Path) -> None:
    """Two collectives, of which the second one is launched late: 500 ns after its launch it may begin, as the first."""
    recording = Recording()
    recording.collective("allreduce", 1_000, 40_000, (0,), launched=500)
    recording.kernel("gemm", 41_000, 10_000, 20, launched=600)
    recording.collective("allreduce", 51_000, 40_000, (0,), launched=50_000)
    recording.kernel("gemm", 91_000, 10_000, 20, launched=700)
    run = stored(run_of(tmp_path, recording))
    found = what_if(run, [scaling_of("collective=0", run)])
    free = what_if(run, [scaling_of("collective=0", run)], ["host"])
    assert (found.base, found.step, free.step) == (100_000, 59_500, 20_000)
    assert (found.launching, found.held, free.launching) == (39_500, False, 0)
    assert what_if(run, []).launching == 0


def test_launches_that_hold_all_ops_are_named(tmp_path: Path) -> None:
    """A collective between two matmuls, each launched long after the one before: half of it gains nothing."""
    recording = Recording()
    for number, at in enumerate((1_000, 100_000, 200_000)):
        if number == 1:
            recording.collective("allreduce", at, 20_000, (0,), launched=at - 500)
        else:
            recording.kernel("gemm", at, 10_000, launched=at - 500)
    run = stored(run_of(tmp_path, recording))
    half = scaling_of("collective=0.5", run)
    assert what_if(run, [half]).held and what_if(run, [half]).step == what_if(run, []).base
    assert not what_if(run, [half], ["host"]).held
    assert not what_if(run, [scaling_of("compute=0.5", run)]).held
    recording.collective("allreduce", 210_500, 100, (0,), launched=199_500)
    run = stored(run_of(tmp_path, recording))
    found = what_if(run, [half])
    assert found.held and 0 < found.base - found.step < HELD * found.base  # the last one is shorter by some ns
