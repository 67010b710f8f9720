"""Traces as PyTorch's profiler writes them, made up: small, with an answer that is known."""

import gzip
import json
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stagedb.runs import MeasuredRun, file_digest, measured_run, read_kineto
from stagedb.runs.run_files import RunFiles

BASE = 1_760_000_000_000_000_000
"""Ns since 1970 that traces count from."""


@dataclass
class Recording:
    """The trace of a rank. shift: ns by which its clock is ahead. number: of the last correlation."""

    rank: int = 0
    world: int = 1
    shift: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0

    def span(
        self, category: str, name: str, start: int, length: int, place: tuple[int, int] = (1, 1), **args: Any
    ) -> None:
        """An event of a category, in ns."""
        ts, dur = (str(Decimal(ns) / 1000) for ns in (start + self.shift, length))
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": place[0],
                "tid": place[1],
                "ts": ts,
                "dur": dur,
                "args": args,
            }
        )

    def kernel(
        self,
        name: str,
        start: int,
        length: int,
        stream: int = 7,
        launched: int | None = None,
        operator: str = "aten::mm",
        thread: int = 1,
        **args: Any,
    ) -> None:
        """A kernel, the call that launched it, and the operator around the call."""
        self.number += 1
        at = start - 10 if launched is None else launched
        self.span("cpu_op", operator, at - 2, 6, (1, thread))
        self.span("cuda_runtime", "cudaLaunchKernel", at, 2, (1, thread), correlation=self.number)
        more = {"device": 0, "stream": stream, "correlation": self.number, **args}
        self.span("kernel", name, start, length, (0, stream), **more)

    def allocated(
        self, at: int, size: int, total: int | None = None, device: int | None = 0, thread: int = 1, **more: Any
    ) -> None:
        """An allocation, or a release of negative size, in bytes. total: of its allocator. device: None: the host."""
        totals = (
            {} if total is None else {"Total Allocated": total, "Total Reserved": 0 if device is None else 2 * total}
        )
        place = {"Device Type": 0, "Device Id": -1} if device is None else {"Device Type": 1, "Device Id": device}
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 1,
                "tid": thread,
                "ts": str(Decimal(at + self.shift) / 1000),
                "args": {"Addr": 94278230442944, "Bytes": size, **totals, **place, **more},
            }
        )

    def collective(
        self, kind: str, start: int, length: int, group: tuple[int, ...], elements: int = 1024, **args: Any
    ) -> None:
        """A kernel of NCCL with what the profiler records of a collective."""
        more = {
            "Collective name": kind,
            "dtype": "BFloat16",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": len(group),
            "Process Group Name": "1",
            "Process Group Description": "mesh_tp",
            "Process Group Ranks": str(list(group)),
            **args,
        }
        self.kernel(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", start, length, 20, **more
        )

    def text(self) -> str:
        """The trace as JSON, with times as numbers of three decimals."""
        lines = [json.dumps(event) for event in self.events]
        for name in ("ts", "dur"):
            lines = [_as_number(line, name) for line in lines]
        job = json.dumps({"backend": "nccl", "rank": self.rank, "world_size": self.world})
        top = f'"schemaVersion": 1, "distributedInfo": {job}, "deviceProperties": [{{"id": 0, "name": "GPU"}}]'
        events = ",\n".join(lines)
        return f'{{{top}, "baseTimeNanoseconds": {BASE}, "traceEvents": [\n{events}\n], "traceName": "x.json"}}'

    def write(self, directory: Path, compress: bool = False) -> Path:
        """The file of the trace in a directory."""
        path = directory / f"rank{self.rank}.json{'.gz' if compress else ''}"
        data = self.text().encode()
        path.write_bytes(gzip.compress(data) if compress else data)
        return path


def training_step(rank: int, late: int = 0) -> Recording:
    """A step of one of four ranks of tensor parallelism: two layers forward and backward, then the optimizer.

    late: ns by which a kernel of this rank in layer 1 takes longer.
    """
    found = Recording(rank, 4, shift=rank * 37_000_000)
    # The host is 15 us ahead at first, and then more and more: a launch takes it 10 us.
    at, host, thread = 20_000, 5_000, 1

    def kernel(name: str, length: int) -> None:
        nonlocal at, host
        found.kernel(name, at, length, launched=host, thread=thread)
        at, host = at + length + 1_500, host + 10_000

    def reduce(until: int) -> None:
        # All ranks leave it together: the one that comes last sends at once.
        nonlocal at, host
        words = {"In msg nelems": 8_388_608, "Out msg nelems": 8_388_608}
        found.collective("allreduce", at, until - at, (0, 1, 2, 3), launched=host, thread=thread, **words)
        at, host = until + 1_500, host + 10_000

    found.span("user_annotation", "ProfilerStep#7", 0, 9_000_000)
    moment = 20_000
    for layer in range(2):
        found.span("user_annotation", f"layer {layer}", host - 4_000, 30_000)
        slow = late if layer == 1 else 0
        kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 310_000 + slow)
        kernel("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)", 140_000)
        moment += 900_000
        reduce(moment - 1_500)
    thread = 2
    for _ in range(2):
        engine = "autograd::engine::evaluate_function: MmBackward0"
        found.span("cpu_op", engine, host - 4_000, 30_000, (1, thread))
        kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x128x64", 620_000)
        kernel("pytorch_flash::flash_bwd_dq_dk_dv_loop_kernel<x>(Flash_bwd_params)", 330_000)
        moment += 1_400_000
        reduce(moment - 1_500)
    thread = 1
    found.span("user_annotation", "Optimizer.step#AdamW.step", host - 4_000, 20_000)
    kernel("multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctorMaster<float>>(long)", 260_000)
    return found


def measured(files: RunFiles) -> MeasuredRun:
    """The run of files that have times."""
    run = files.read()
    assert isinstance(run, MeasuredRun)
    return run


def small_run() -> MeasuredRun:
    """A run of two ranks, of which one is late."""
    with TemporaryDirectory() as directory:
        traces = []
        for rank in range(2):
            found = step(rank, late=4_000 * rank)
            found.allocated(989 + 4_000 * rank, 4_096, 4_096)
            found.allocated(66_500, -4_096, 0)
            path = found.write(Path(directory))
            traces.append(read_kineto(path, file_digest(path)))
        return measured_run(traces)


def served_run() -> MeasuredRun:
    """A run of an engine on one rank: a prefill and a decode."""
    found = Recording()
    prefill = "execute_512_context_1(sq512sk512sqsq262144sqsk262144)_generation_0(sq0sk0sqsq0sqsk0)"
    decode = "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk2048sqsq4sqsk2048)"
    for name, start in ((prefill, 0), (decode, 100_000)):
        found.span("user_annotation", name, start, 50_000)
        found.kernel("ampere_sgemm_128x64_nn", start + 10_000, 20_000)
        found.kernel("pytorch_flash::flash_fwd_kernel<x>(Flash_fwd_params)", start + 32_000, 30_000)
    with TemporaryDirectory() as directory:
        path = found.write(Path(directory))
        return measured_run([read_kineto(path, file_digest(path))])


def _as_number(line: str, name: str) -> str:
    before, there, rest = line.partition(f'"{name}": "')
    if not there:
        return line
    value, _, after = rest.partition('"')
    return f'{before}"{name}": {value}{after}'


def step(rank: int, world: int = 2, shift: int = 0, late: int = 0) -> Recording:
    """A step of one rank of several: a matmul, an all-reduce for which all wait, and another matmul.

    late: ns by which this rank begins later with its first matmul.
    """
    found = Recording(rank, world, shift)
    found.span("user_annotation", "ProfilerStep#3", 0, 100_000)
    group = tuple(range(world))
    found.kernel("ampere_sgemm_128x64_nn", 1_000 + late, 10_000)
    # All members leave a collective together, 5 us after the last one came.
    found.collective("allreduce", 11_000 + late, 35_000 - late, group)
    found.kernel("ampere_sgemm_128x64_tn", 46_000, 20_000, launched=30_000)
    return found
