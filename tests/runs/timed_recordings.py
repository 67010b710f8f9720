"""Small traces whose times other tools computed, too: `other_tools.json` has what they found.

    PYTHONPATH=. python -m tests.runs.timed_recordings --python PYTHON

runs HolisticTraceAnalysis and TraceLens, which this interpreter has, on all of these traces, and writes that file anew.
"""

import argparse
import hashlib
import json
import random
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.runs.recordings import Recording

RECORDED = Path(__file__).with_name("other_tools.json")

GEMM, FLASH = "ampere_sgemm_128x64_nn", "pytorch_flash::flash_fwd_kernel<x>(Flash_fwd_params)"
COPY, FILL = ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"), ("gpu_memset", "Memset (Device)")


def overlap() -> list[Recording]:
    """Two ranks: computing on two streams, and a collective that it hides in part."""
    ranks = [Recording(rank, 2, shift=rank * 3_000_000) for rank in range(2)]
    for rank, found in enumerate(ranks):
        found.kernel(GEMM, 1_000, 40_000)
        found.kernel(FLASH, 31_000, 20_000 + 4_000 * rank, stream=9, launched=2_000)
        found.collective("allreduce", 21_000 + 15_000 * rank, 50_000 - 15_000 * rank, (0, 1), launched=3_000)
        found.kernel(GEMM, 64_000, 30_000, launched=4_000)
        found.kernel(FLASH, 120_000 + 2_000 * rank, 10_000, launched=100_000)
    return ranks


def copies() -> list[Recording]:
    """Copies and fills alone, below kernels, and below a collective."""
    found = Recording()
    found.kernel(GEMM, 1_000, 30_000)
    _moved(found, COPY, 21_000, 30_000)
    found.collective("allreduce", 41_000, 40_000, (0, 1), launched=4_000)
    _moved(found, FILL, 61_000, 5_000)
    found.kernel(GEMM, 71_000, 30_000, launched=5_000)
    _moved(found, COPY, 111_000, 5_000)
    return [found]


def waits() -> list[Recording]:
    """A wait of a stream, which is no work of a device."""
    found = Recording()
    found.kernel(GEMM, 1_000, 10_000)
    found.span("cuda_runtime", "cudaStreamWaitEvent", 3_000, 2, correlation=90)
    found.span("cuda_sync", "Stream Wait Event", 11_000, 50_000, (0, 9), stream=9, device=0, correlation=90)
    found.kernel(FLASH, 61_000, 10_000, stream=9, launched=5_000)
    return [found]


def not_launched() -> list[Recording]:
    """Two steps, and kernels whose calls were not recorded, as those of a step before."""
    found = Recording()
    for number in range(2):
        found.span("user_annotation", f"ProfilerStep#{number}", 10_000 + 30_000 * number, 29_000)
    for number, start in enumerate((1_000, 40_000, 60_000), 800):
        found.span("kernel", GEMM, start, 10_000, (0, 7), device=0, stream=7, correlation=number)
    found.kernel(FLASH, 20_000, 10_000)
    found.kernel(FLASH, 80_000, 10_000, launched=50_000)
    return [found]


def experts() -> list[Recording]:
    """Tokens that DeepEP sends to their experts and back, in part below a matmul."""
    found = Recording()
    found.kernel("void deep_ep::internode::dispatch<false, 8>(int4*, float*)", 1_000, 30_000, stream=20)
    found.kernel(GEMM, 21_000, 30_000)
    found.kernel("void deep_ep::internode::combine<false, 8>(int4*, float*)", 61_000, 20_000, stream=20)
    return [found]


def short_kernels() -> list[Recording]:
    """Kernels, copies and collectives of less than a microsecond."""
    found = Recording()
    for number in range(50):
        at = 1_000 + 3_000 * number
        found.kernel(GEMM, at + 100, 700)
        found.collective("allreduce", at + 500, 800, (0, 1), launched=at - 500)
        _moved(found, COPY, at + 1_900, 600)
    return [found]


def symmetric() -> list[Recording]:
    """An all-reduce of PyTorch's symmetric memory, which is no kernel of NCCL."""
    found = Recording()
    found.kernel(GEMM, 1_000, 10_000)
    found.kernel(
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", 11_000, 5_000
    )
    return [found]


def compiled() -> list[Recording]:
    """A kernel that a compiler made: the operator that launches it has its name, and the number of the stream."""
    found = Recording()
    name = "triton_poi_fused_add_0"
    found.kernel(GEMM, 1_000, 10_000)
    found.span("cpu_op", name, 12_000, 6_000, stream=7)
    found.kernel(name, 20_000, 5_000, launched=14_000, operator=name)
    return [found]


def since_1970() -> list[Recording]:
    """Times that count from 1970, as in files of before 2024: floats of microseconds have steps of 250 ns there."""
    found = Recording(shift=1_700_000_000_000_000_120)
    for number in range(20):
        at = 1_000 + 2_000 * number
        found.kernel(GEMM, at, 380)
        found.kernel(FLASH, at + 600, 870)
    return [found]


def steps() -> list[Recording]:
    """Three steps of a profiler."""
    found = Recording()
    for number in range(3):
        at = 1_000_000 * number
        found.span("user_annotation", f"ProfilerStep#{number}", at, 990_000)
        found.kernel(GEMM, at + 10_000, 300_000)
        found.collective("allreduce", at + 200_000, 200_000, (0, 1), launched=at + 20_000)
    return [found]


def drawn() -> list[Recording]:
    """Many ops on four streams, at times that are drawn."""
    draw = random.Random(41)
    found = Recording()
    ends = dict.fromkeys((7, 9, 11, 20), 10_000)
    for _ in range(300):
        stream = draw.choice(list(ends))
        start = ends[stream] + draw.randrange(0, 40) * 1_000
        length = draw.randrange(1, 60) * 1_000
        ends[stream] = start + length
        launched = draw.randrange(1, 9) * 1_000
        if stream == 20:
            found.collective("allreduce", start, length, (0, 1), launched=launched)
        elif stream == 11:
            _moved(found, draw.choice((COPY, FILL)), start, length)
        else:
            found.kernel(draw.choice((GEMM, FLASH, "triton_poi_fused_add_0")), start, length, stream, launched)
    return [found]


def _moved(found: Recording, of: tuple[str, str], start: int, length: int) -> None:
    """A copy or a fill, and the call that launched it."""
    found.number += 1
    found.span("cuda_runtime", "cudaMemcpyAsync", start - 900, 2, correlation=found.number)
    found.span(*of, start, length, (0, 11), device=0, stream=11, correlation=found.number, bytes=4_096)


JOBS: Mapping[str, Callable[[], list[Recording]]] = {
    each.__name__: each
    for each in (
        overlap,
        copies,
        waits,
        not_launched,
        experts,
        symmetric,
        compiled,
        short_kernels,
        since_1970,
        steps,
        drawn,
    )
}
"""The ranks of each job."""


def digest(job: str) -> str:
    """sha256 of the files of a job."""
    return hashlib.sha256("\n".join(each.text() for each in JOBS[job]()).encode()).hexdigest()


def main() -> None:
    """Run the other tools on all jobs, and write what they find."""
    # The benchmark needs psutil, and is no part of the tests.
    from scripts._bench_runs import TOOLS, Answer, answer_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True)
    python = parser.parse_args().python
    found: dict[str, Any] = {}
    with TemporaryDirectory() as directory:
        for job, make in JOBS.items():
            folder = Path(directory, job)
            folder.mkdir()
            files = [each.write(folder) for each in make()]
            found[job] = {"digest": digest(job)}
            for tool in TOOLS:
                if tool.package is None:
                    continue
                answer = answer_of(tool, python, files)
                if not isinstance(answer, Answer):
                    raise SystemExit(f"{tool.name} fails on {job}: {answer}")
                found[job][tool.name] = {part: asdict(answer)[part] for part in ("times", "kernels")}
    code = "from importlib.metadata import version as v; print(v('traceinsight'), v('TraceLens'), v('pandas'))"
    versions = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    made = dict(zip(("HTA (traceinsight)", "TraceLens", "pandas"), versions, strict=True))
    document = {"made by": "python -m tests.runs.timed_recordings --python PYTHON", "versions": made, "jobs": found}
    RECORDED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
