"""A run from the traces of its ranks: what was recorded, on one clock, and what waited for whom."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun, TraceFileError, file_digest, measured_run, read_kineto, run_rows
from stagedb.runs.kernel_names import (
    UNKNOWN_COLLECTIVE,
    collective_kind,
    communication_kind,
    compute_kind,
    short_name,
)
from stagedb.runs.lane_rows import message_bytes
from stagedb.runs.measured_run import exposed_of, time_of, union, without
from stagedb.runs.rank_spans import NestedSpans
from stagedb.runs.rank_trace import NONE, Integers, RankTrace
from tests.runs.recordings import BASE, Recording, step

ALL_GATHER: dict[str, Any] = {
    "Collective name": "_allgather_base",
    "dtype": "Float",
    "In msg nelems": 5,
    "Process Group Name": "7",
}
CUT_GROUP: dict[str, Any] = {
    "Process Group Ranks": "[3, 5, 7, ...]",
    "Global rank start": 3,
    "Global rank stride": 2,
}


def read(recording: Recording, directory: Path, compress: bool = False) -> RankTrace:
    path = recording.write(directory, compress)
    return read_kineto(path, file_digest(path))


def run_of(directory: Path, *recordings: Recording) -> MeasuredRun:
    return measured_run([read(each, directory) for each in recordings])


@pytest.mark.parametrize("compress", (False, True))
def test_a_trace_has_its_ops_exact_to_the_nanosecond(compress: bool, tmp_path: Path) -> None:
    trace = read(step(1, world=4, shift=123), tmp_path, compress)
    assert (trace.rank, trace.world, trace.devices, trace.streams) == (1, 4, ("GPU",), ("stream 7", "stream 20"))
    assert trace.ops.start.tolist() == [BASE + 123 + ns for ns in (1_000, 11_000, 46_000)]
    assert (trace.ops.end - trace.ops.start).tolist() == [10_000, 35_000, 20_000]
    assert trace.ops.launched.tolist() == [BASE + 123 + ns for ns in (990, 10_990, 30_000)]
    assert [trace.names[name] for name in trace.ops.launcher.tolist()] == ["aten::mm"] * 3
    assert trace.ops.step.tolist() == [3, 3, 3]
    assert dict(trace.events) == {"cpu_op": 3, "cuda_runtime": 3, "kernel": 3, "user_annotation": 1}
    (collective,) = (trace.collectives[place] for place in trace.ops.collective.tolist() if place != NONE)
    assert (collective.kind, collective.ranks, collective.description) == ("all_reduce", (0, 1, 2, 3), "mesh_tp")
    assert message_bytes(collective) == 2_048


def test_what_a_kernel_lacks_comes_from_the_operator_that_launched_it(tmp_path: Path) -> None:
    found = Recording()
    found.span(
        "cpu_op",
        "record_param_comms",
        900,
        200,
        **ALL_GATHER,
    )
    found.span("cuda_runtime", "hipExtLaunchKernel", 1_000, 5, correlation=9)
    found.span("kernel", "ncclDevKernel_Generic(x)", 2_000, 100, (2, 4), device=2, stream=4, correlation=9)
    # A kernel that computes is none, wherever it is launched.
    found.span("cuda_runtime", "hipExtLaunchKernel", 1_010, 5, correlation=10)
    found.span("kernel", "elementwise_kernel<1>", 2_500, 100, (2, 0), device=2, stream=0, correlation=10)
    trace = read(found, tmp_path)
    first, second = trace.ops.collective.tolist()
    assert second == NONE
    each = trace.collectives[first]
    assert (each.kind, each.group, message_bytes(each)) == ("all_gather", "7", 20)


def test_categories_of_old_files_have_capitals(tmp_path: Path) -> None:
    old = {"cpu_op": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel", "gpu_memcpy": "Memcpy"}
    new = step(0)
    new.span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 70_000, 100, (0, 7), device=0, stream=7, bytes=4_096)
    written = read(new, tmp_path)
    new.events = [{**each, "cat": old.get(each["cat"], each["cat"])} for each in new.events]
    found = read(new, tmp_path)
    assert dict(found.events) == {old.get(category, category): count for category, count in written.events.items()}
    for name in ("start", "category", "launched", "launcher", "bytes", "step", "phase"):
        assert getattr(found.ops, name).tolist() == getattr(written.ops, name).tolist()


@pytest.mark.parametrize("damaged", (False, True))
def test_what_an_mtia_moves_is_a_copy(damaged: bool, tmp_path: Path) -> None:
    found = Recording()
    for name, start, size in (("fc-dtype_Float", 0, None), ("dma_request", 50, 4_096)):
        found.span("mtia_ccp_events", name, start, 100, (9, 801), **({} if size is None else {"size": size}))
    # A stream that waits for another one does nothing, nor does one that marks a place for others.
    for name, start in (("event_wait", 200), ("event_record", 500)):
        found.span("mtia_ccp_events", name, start, 250, (9, 802))
    if damaged:
        # Then events are read one by one.
        found.span("mtia_ccp_events", "dma_request", 900, -1, (9, 801))
    run = run_of(tmp_path, found)
    assert run.ops[0].types == ("compute", "copy")
    assert (run.ops[0].spent.busy, run.ops[0].spent.copying) == (150, 50)
    assert run.ranks[0].ops.bytes.tolist() == [-1, 4_096]
    assert run.ranks[0].events["mtia_ccp_events"] == 4 + damaged


def test_groups_that_are_cut_follow_from_start_stride_and_size(tmp_path: Path) -> None:
    found = Recording()
    found.collective(
        "allreduce",
        100,
        10,
        tuple(range(3, 67, 2)),
        **CUT_GROUP,
    )
    assert read(found, tmp_path).collectives[0].ranks == tuple(range(3, 67, 2))


def test_phases_and_annotations_are_those_of_the_launch(tmp_path: Path) -> None:
    found = Recording()
    found.span("user_annotation", "layer 3", 0, 1_000)
    found.kernel("ampere_sgemm", 500, 10, launched=100)
    backward = "autograd::engine::evaluate_function: MmBackward0"
    found.span("cpu_op", backward, 2_000, 100, (1, 2))
    found.kernel("ampere_sgemm", 2_500, 10, launched=2_050, thread=2)
    found.span("cpu_op", "autograd::engine::evaluate_function: CheckpointFunctionBackward", 3_000, 900, (1, 2))
    found.kernel("ampere_sgemm", 3_500, 10, launched=3_050, thread=2)
    found.span("cpu_op", backward, 3_200, 100, (1, 2))
    found.kernel("ampere_sgemm", 3_700, 10, launched=3_250, thread=2)
    found.span("user_annotation", "Optimizer.step#Adam.step", 5_000, 100)
    found.kernel("multi_tensor_apply_kernel<x, AdamFunctor<float>>", 5_500, 10, launched=5_050)
    run = run_of(tmp_path, found)
    ops = [values for _, values in run_rows(run, {}).nodes["RunOp"]]
    assert [each["phase"] for each in ops] == ["forward", "backward", "recompute", "backward", "optimizer"]
    assert [each.get("layer") for each in ops] == [3, None, None, None, None]
    assert [each["kind"] for each in ops] == ["matmul"] * 4 + ["optimizer"]
    tasks = [(each["kind"], each["start"]) for _, each in run_rows(run, {}).nodes["RunTask"]]
    assert tasks == [("forward", 0), ("backward", 2_000), ("recompute", 3_000), ("optimizer", 5_000)]


def test_clocks_are_found_and_the_late_rank_is_on_the_path(tmp_path: Path) -> None:
    shifts = (0, 987_654_321, -123_456_789)
    ranks = [step(rank, 3, shift, late=14_000 if rank == 2 else 0) for rank, shift in enumerate(shifts)]
    run = run_of(tmp_path, *ranks)
    assert [run.clocks[rank].offset for rank in range(3)] == list(shifts)
    assert [run.clocks[rank].spread for rank in range(3)] == [0, 0, 0]
    assert run.window == 65_000 and run.begin == BASE + 1_000
    # The path begins at the late rank, goes through its collective, and ends anywhere.
    assert [(piece.rank, piece.reason) for piece in run.path][:2] == [(2, "start"), (2, "dependency")]
    assert run.path[0].start == 14_000
    rows = run_rows(run, {})
    (call,) = (values for _, values in rows.nodes["RunCollective"])
    assert (call["last"], call["waited"], call["members"]) == (2, 28_000, [0, 1, 2])
    waits = {values["rank"]: values["waits"] for _, _, values in rows.edges["HAS_MEMBER", "RunCollective", "RunOp"]}
    assert waits == {0: 14_000, 1: 14_000, 2: 0}


def test_ranks_that_do_the_same_are_one_lane(tmp_path: Path) -> None:
    other = step(3, 4)
    other.kernel("ampere_sgemm", 70_000, 10)
    run = run_of(tmp_path, *(step(rank, 4, late=rank * 100) for rank in range(3)), other)
    assert [lane.ranks for lane in run.lanes] == [(0, 1, 2), (3,)]
    rows = run_rows(run, {})
    first = list(rows.nodes["RunOp"])[1][1]
    assert (first["starts"], first["durations"]) == ([10_000, 10_100, 10_200], [35_000, 34_900, 34_800])
    assert first["duration"] == 34_900 and first["ranks"] == 3
    assert len(rows.nodes["RunOp"]) == 3 + 4


def test_each_op_of_a_stream_but_the_last_has_a_next_one(tmp_path: Path) -> None:
    rows = run_rows(run_of(tmp_path, *(step(rank) for rank in range(2))), {})
    ops = {values["id"]: values for _, values in rows.nodes["RunOp"]}
    following = {source: target for source, target, _ in rows.edges["NEXT", "RunOp", "RunOp"]}
    streams = Counter((each["lane"], each["stream"]) for each in ops.values())
    assert len(following) == sum(count - 1 for count in streams.values())
    for source, target in following.items():
        assert ops[source]["stream"] == ops[target]["stream"] and ops[source]["start"] <= ops[target]["start"]


def test_without_groups_members_are_matched_by_order_if_they_end_together(tmp_path: Path) -> None:
    bare: dict[str, Any] = dict.fromkeys(("Collective name", "Process Group Name", "Process Group Ranks", "Group size"))

    def ranks(difference: int) -> list[Recording]:
        """Two ranks whose collectives end at times that differ, by more each time."""
        found = [Recording(rank, 2) for rank in range(2)]
        for rank, each in enumerate(found):
            for number in range(5):
                each.collective("x", 90_000_000 * number + rank * number * difference, 900, (), **bare)
        return found

    run = run_of(tmp_path, *ranks(1_000))
    assert [(len(call.members), call.by_order) for call in run.calls] == [(2, True)] * 5
    assert {len(call.members) for call in run_of(tmp_path, *ranks(2_000_000)).calls} == {1}


def test_messages_are_matched_by_their_ends(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        each = Recording(rank, 2)
        for number in range(3):
            words = ("send", "recv") if (rank + number) % 2 == 0 else ("recv", "send")
            peer = {f"{'Dst' if words[0] == 'send' else 'Src'} Rank": 1 - rank}
            each.collective(words[0], 1_000 * number + 1, 500, (0, 1), **peer)
        ranks.append(each)
    run = run_of(tmp_path, *ranks)
    assert sorted(len(call.members) for call in run.calls) == [2, 2, 2]
    assert run.ops[0].types == ("send", "recv", "send")


def test_files_of_different_jobs_are_refused(tmp_path: Path) -> None:
    trace = read(step(0), tmp_path)
    with pytest.raises(UsageError, match="two of the traces are of rank 0"):
        measured_run([trace, trace])
    empty = Recording()
    empty.span("cpu_op", "aten::mm", 0, 0)
    with pytest.raises(TraceFileError, match="no kernel, copy or operator that took time"):
        read(empty, tmp_path)


def test_a_trace_without_a_device_has_its_operators_and_collectives(tmp_path: Path) -> None:
    found = Recording()
    found.span("cpu_op", "aten::linear", 0, 100)
    found.span("cpu_op", "aten::addmm", 10, 80)
    found.span("cpu_op", "c10d::allreduce_", 100, 50)
    found.span("cpu_op", "record_param_comms", 110, 30, **ALL_GATHER)
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    found.span("cpu_op", backward, 200, 100, (1, 2))
    found.span("cpu_op", "aten::mm", 220, 60, (1, 2))
    run = run_of(tmp_path, found)
    trace = run.ranks[0]
    names = [trace.names[name] for name in trace.ops.name.tolist()]
    assert names == ["aten::addmm", "record_param_comms", "aten::mm"]
    assert run.ops[0].types == ("compute", "collective", "compute")
    assert trace.ops.phase.tolist() == [0, 0, 1]
    assert trace.streams == ("thread 0", "thread 1")


@pytest.mark.parametrize("seed", range(20))
def test_the_times_of_a_rank_are_those_of_each_nanosecond(seed: int) -> None:
    random_ = random.Random(seed)
    types = tuple(random_.choice(("compute", "copy", "collective", "send")) for _ in range(random_.randrange(1, 12)))
    start = np.array([random_.randrange(60) for _ in types], np.int64)
    end = start + np.array([random_.randrange(20) for _ in types], np.int64)
    window = 100
    at = [{each for each, a, b in zip(types, start, end, strict=True) if a <= ns < b} for ns in range(window)]
    expected = (
        sum(bool(each & {"compute", "copy"}) for each in at),
        sum("copy" in each and "compute" not in each for each in at),
        sum("collective" in each and not each & {"compute", "copy"} for each in at),
        sum(each == {"send"} for each in at),
        sum(not each for each in at),
        sum(bool(each & {"collective", "send"}) for each in at),
    )
    found = time_of(start, end, types, window)
    assert (found.busy, found.copying, found.exposed, found.bubble, found.idle, found.communication) == expected
    communicates = np.array([each in ("collective", "send") for each in types])
    exposed = exposed_of(start, end, communicates).tolist()
    for op, (a, b) in enumerate(zip(start, end, strict=True)):
        alone = sum(not at[ns] & {"compute", "copy"} for ns in range(a, b))
        assert exposed[op] == (alone if communicates[op] else 0)


@pytest.mark.parametrize("seed", range(20))
def test_the_path_is_as_long_as_the_run(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    ranks = []
    for rank in range(random_.randrange(1, 4)):
        each = Recording(rank, 4)
        at = random_.randrange(1_000)
        for _ in range(random_.randrange(1, 15)):
            at += random_.randrange(3_000)
            if random_.random() < 0.3:
                each.collective("allreduce", at, random_.randrange(1, 9_000), (0, 1, 2, 3))
            else:
                launched = at - random_.randrange(2_000)
                each.kernel("gemm", at, random_.randrange(1, 4_000), random_.choice((7, 8)), launched)
        ranks.append(each)
    run = run_of(tmp_path, *ranks)
    at = 0
    for piece in run.path:
        assert piece.start - piece.idle == at and piece.end >= piece.start and 0 <= piece.launching <= piece.idle
        at = piece.end
    assert at == run.window
    for rank, ops in run.ops.items():
        spent = ops.spent
        assert spent.busy + spent.exposed + spent.bubble + spent.idle == run.window
        assert (ops.slack >= 0).all(), rank
    assert min(int(ops.slack.min()) for ops in run.ops.values()) == 0


def test_traces_of_different_jobs_are_refused(tmp_path: Path) -> None:
    """Without a collective in common, and minutes apart."""
    ranks = [Recording(rank, 2, shift=rank * 600_000_000_000) for rank in range(2)]
    for each in ranks:
        each.kernel("gemm", 1_000, 500)
    with pytest.raises(UsageError, match=r"the trace of rank 0 has no collective in common .* not of one job"):
        run_of(tmp_path, *ranks)
    ranks[1].shift = 0
    assert run_of(tmp_path, *(Recording(rank, 2, events=ranks[0].events) for rank in range(2))).ranks.keys() == {0, 1}


@pytest.mark.parametrize("seed", range(20))
def test_the_innermost_span_is_that_of_each_moment(seed: int) -> None:
    random_ = random.Random(seed)
    spans: list[tuple[int, int]] = []

    def nest(begin: int, end: int) -> None:
        at = begin
        while end - at > 2 and random_.random() < 0.8:
            a = random_.randrange(at, end - 1)
            b = random_.randrange(a + 1, end)
            spans.append((a, b))
            nest(a + 1, b)
            at = b + 1

    nest(0, 60)
    start, end = (np.array([each[at] for each in spans], np.int64) for at in (0, 1))
    threads = np.zeros(len(spans), np.int64)
    moments = np.arange(0, 60, dtype=np.int64)
    found = NestedSpans(start, end, threads).around(moments, np.zeros(60, np.int64))
    for moment, place in zip(moments.tolist(), found.tolist(), strict=True):
        around = [each for each in spans if each[0] <= moment <= each[1]]
        shortest = min(around, key=lambda each: each[1] - each[0], default=None)
        assert (None if place == NONE else spans[place]) == shortest


@pytest.mark.parametrize(
    ("name", "kind"),
    (
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("nccldevkernel_broadcast_ring_ll", "broadcast"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)", "all_reduce"),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "dispatch"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(x)", "combine"),
        ("void deep_ep::internode_ll::combine<true, 7168, 9>(void*)", "combine"),
        ("void deep_ep::internode::notify_dispatch<false, 8>(int const*)", "dispatch"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", None),
        ("ampere_sgemm_128x64_nn", None),
        ("void cub::DeviceReduceByKeyKernel<x>(y)", None),
        ("void at::native::reduce_kernel<512, 1, x>(y)", None),
    ),
)
def test_kernels_that_communicate_are_known_by_name(name: str, kind: str | None) -> None:
    assert communication_kind(name) == kind


def test_what_prepares_an_exchange_is_of_its_kind(tmp_path: Path) -> None:
    """DeepEP's kernel has one name before a dispatch and before a combine; other streams run others between them."""
    found = Recording()
    prepare = "void dpsk::ep::internode::cached_notify<false>(int, int, int, int, int*)"
    for at, (name, stream) in enumerate(
        (
            (prepare, 27),
            ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*)", 7),
            ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*)", 27),
            (prepare, 27),
            ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*, long*)", 27),
            (prepare, 27),
            ("ampere_sgemm_128x64_nn", 27),
        )
    ):
        found.kernel(name, 1_000 * at, 900, stream)
    kinds = run_of(tmp_path, found).ops[0].kinds
    assert list(kinds) == ["combine", "dispatch", "combine", "dispatch", "dispatch", "dispatch", "matmul"]


def test_a_name_of_any_length_is_read_by_its_beginning() -> None:
    """Patterns that search a whole name take its length to the square: they are for the beginning of it."""
    long = "x" * 1_000_000
    assert communication_kind(f"ncclDevKernel_AllReduce_Sum_bf16_RING_LL{long}") == "all_reduce"
    assert compute_kind(f"sm90_xmma_gemm_bf16{long}") == "matmul" and short_name(f"void gemm<{long}>(int)") == "gemm"
    assert communication_kind("ncclkernel_" * 100_000) == UNKNOWN_COLLECTIVE and compute_kind(long) == "other"


@pytest.mark.parametrize(
    ("name", "launcher", "kind"),
    (
        ("ampere_sgemm_128x64_nn", "", "matmul"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "", "matmul"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x64", "", "matmul"),
        (
            "void marlin_moe_wna16::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8, false>(int4 const*)",
            "",
            "matmul",
        ),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu", "", "matmul"),
        ("_finalize_matmul_scatter_bf16", "", "reduce"),
        ("void pytorch_flash::flash_fwd_kernel<x>(y)", "", "attention"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::lambda>",
            "",
            "pointwise",
        ),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "", "optimizer"),
        ("void cudnn::bn_fw_tr_1C11_singleread<float, 512>(x)", "", "norm"),
        ("cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "aten::cudnn_convolution", "convolution"),
        ("aten::addmm", "", "matmul"),
        ("BmmBackward0", "", "matmul"),
        ("void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::FixedDivisor, int)", "", "embedding"),
        ("void fbgemm_gpu::permute_2D_data_kernel<int>(int)", "fbgemm::permute_2D_sparse_data", "copy"),
        ("hmm_kernel", "aten::mul", "other"),
        ("my_kernel", "", "other"),
    ),
)
def test_kernels_that_compute_have_a_kind(name: str, launcher: str, kind: str) -> None:
    assert compute_kind(name, launcher) == kind


@pytest.mark.parametrize("namespace", ["(anonymous namespace)", "<unnamed>", "{anonymous}"])
def test_a_namespace_without_a_name_is_not_in_names(namespace: str) -> None:
    """Nsight Systems writes the second one."""
    inner = f"void at::native::{namespace}::CatArrayBatchedCopy<at::native::{namespace}::Opaque<2>, 4>(float*)"
    assert short_name(inner) == "CatArrayBatchedCopy"
    functor = f"void at::native::vectorized_elementwise_kernel<4, at::native::{namespace}::pow_impl<float>(float)>(int)"
    assert short_name(functor) == "vectorized_elementwise_kernel[pow_impl]"


def test_names_are_short() -> None:
    assert (
        short_name("void deep_ep::intranode::combine<__nv_bfloat16, 8>(int4*, float*)") == "deep_ep::intranode::combine"
    )
    wrapped = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, x>(int, y)"
    assert short_name(wrapped) == "vectorized_elementwise_kernel[FillFunctor]"
    assert short_name("ampere_sgemm_128x64_nn") == "ampere_sgemm_128x64_nn"
    assert len(short_name("x" * 5_000)) == 120


@pytest.mark.parametrize(
    ("name", "kind"),
    (("nccl:_all_gather_base", "all_gather"), ("gloo:all_reduce", "all_reduce"), ("send", "send"), ("attn(F)", None)),
)
def test_annotations_of_collectives_are_known(name: str, kind: str | None) -> None:
    assert collective_kind(name) == kind


def test_parts_of_spans_without_others_are_a_difference_of_sets() -> None:
    numbers = np.random.default_rng(7)

    def some() -> tuple[Integers, Integers]:
        start = numbers.integers(0, 60, numbers.integers(0, 7))
        return union(start, start + numbers.integers(1, 9, len(start)))

    def moments(spans: tuple[Integers, Integers]) -> set[int]:
        return {at for start, end in zip(*spans, strict=True) for at in range(start, end)}

    for _ in range(500):
        spans, others = some(), some()
        found = without(spans, others)
        assert moments(found) == moments(spans) - moments(others)
        assert (found[1] > found[0]).all() and (found[0][1:] >= found[1][:-1]).all()
