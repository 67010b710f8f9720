"""Measure an accelerator with torch, and write tables that a system may name (docs/tables.md).

    scripts/measure --out mine                       # matmul, attention, experts, memory on the first GPU
    torchrun --nproc-per-node 8 -m scripts._measure --only collective --out mine   # NCCL within a node
    scripts/measure --device cpu --quick --out mine  # a few small sizes on the processor, to try it out

Each row is added to its file as soon as it is measured, and rows that a file has are not measured again: a run that was
interrupted goes on. `backward` has the times of an attention's backward, and `memory` those of a norm, with `bytes`
that it reads and writes: they are for a look, no table of a system. torch is not a dependency of stagedb.
"""

import argparse
import csv
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = tuple[int | str, ...]

WARM, RUNS = 3, 10
"""Runs before the measurement, and those whose median is taken."""


@dataclass(frozen=True)
class Subject:
    """What is measured. rows: sizes, all or a few small ones. prepare: what runs, by torch, device, dtype and a row."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[bool], Iterator[Row]]
    prepare: Callable[..., Callable[[], Any]]


def matmul_rows(quick: bool) -> Iterator[Row]:
    sides = (64, 256) if quick else (128, 256, 512, 1024, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384)
    tokens = (32, 128) if quick else (*sides, 32768)
    return itertools.product(tokens, sides, sides)


def matmul(torch: Any, device: str, dtype: Any, m: int, n: int, k: int) -> Callable[[], Any]:
    a, b = (torch.randn(shape, device=device, dtype=dtype) for shape in ((m, k), (n, k)))
    return lambda: torch.nn.functional.linear(a, b)


def attention_rows(quick: bool) -> Iterator[Row]:
    lengths = (64, 128) if quick else (512, 1024, 2048, 4096, 8192, 16384, 32768)
    heads = ((2, 1),) if quick else ((4, 4), (8, 1), (8, 8), (16, 2), (32, 8), (64, 8))
    for batch, seq, (many, few), head in itertools.product((1, 2), lengths, heads, (32,) if quick else (64, 128)):
        yield batch, seq, many, few, head


def _attention(
    torch: Any, device: str, dtype: Any, batch: int, seq: int, heads: int, kv_heads: int, head: int
) -> tuple[list[Any], Callable[[], Any]]:
    tensors = [
        torch.randn((batch, many, seq, head), device=device, dtype=dtype, requires_grad=True)
        for many in (heads, kv_heads, kv_heads)
    ]
    run = torch.nn.functional.scaled_dot_product_attention
    return tensors, lambda: run(*tensors, is_causal=True, enable_gqa=heads != kv_heads)


def attention(torch: Any, device: str, dtype: Any, *sizes: int) -> Callable[[], Any]:
    _, run = _attention(torch, device, dtype, *sizes)

    def forward() -> None:
        with torch.no_grad():
            run()

    return forward


def backward(torch: Any, device: str, dtype: Any, *sizes: int) -> Callable[[], Any]:
    tensors, run = _attention(torch, device, dtype, *sizes)
    out = run()
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, tensors, gradient, retain_graph=True)


def expert_rows(quick: bool) -> Iterator[Row]:
    models = ((64, 128, 4, 2),) if quick else ((4096, 14336, 8, 2), (2048, 768, 128, 8), (4096, 1536, 128, 8))
    for (hidden, ffn, experts, top_k), ep in itertools.product(models, (1,) if quick else (1, 2, 4, 8)):
        for tokens in (16, 64) if quick else (256, 1024, 4096, 16384):
            yield tokens * ep, hidden, ffn, experts, top_k, 1, ep


def experts(
    torch: Any, device: str, dtype: Any, tokens: int, hidden: int, ffn: int, count: int, top_k: int, tp: int, ep: int
) -> Callable[[], Any]:
    here, slots, inner = count // ep, tokens * top_k // count, ffn // tp
    x = torch.randn((here, max(slots, 1), hidden), device=device, dtype=dtype)
    gate, up = (torch.randn((here, hidden, inner), device=device, dtype=dtype) for _ in range(2))
    down = torch.randn((here, inner, hidden), device=device, dtype=dtype)
    return lambda: torch.bmm(torch.nn.functional.silu(torch.bmm(x, gate)) * torch.bmm(x, up), down)


def memory_rows(quick: bool) -> Iterator[Row]:
    return ((4 * 1024 * rows,) for rows in ((16, 64) if quick else (256, 1024, 4096, 16384, 65536, 262144)))


def memory(torch: Any, device: str, dtype: Any, moved: int) -> Callable[[], Any]:
    x = torch.randn((moved // 4096, 1024), device=device, dtype=dtype)
    return lambda: torch.nn.functional.rms_norm(x, (1024,))


def collective_rows(quick: bool) -> Iterator[Row]:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    kinds = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
    sizes = [1 << power for power in ((12, 14) if quick else range(10, 31))]
    return ((kind, ranks, size) for kind in kinds for size in sizes)


def collective(torch: Any, device: str, dtype: Any, kind: str, ranks: int, size: int) -> Callable[[], Any]:
    group = torch.distributed
    whole = torch.ones(size // dtype.itemsize // ranks * ranks, device=device, dtype=dtype)
    part, other = whole[: len(whole) // ranks].clone(), torch.empty_like(whole)
    runs: Mapping[str, Callable[[], Any]] = {
        "all_gather": lambda: group.all_gather_into_tensor(whole, part),
        "all_reduce": lambda: group.all_reduce(whole),
        "all_to_all": lambda: group.all_to_all_single(other, whole),
        "reduce_scatter": lambda: group.reduce_scatter_tensor(part, whole),
    }
    return runs[kind]


SUBJECTS = (
    Subject("matmul", ("m", "n", "k"), matmul_rows, matmul),
    Subject("attention", ("batch", "seq", "heads", "kv_heads", "head"), attention_rows, attention),
    Subject("backward", ("batch", "seq", "heads", "kv_heads", "head"), attention_rows, backward),
    Subject("experts", ("tokens", "hidden", "ffn", "experts", "top_k", "tp", "ep"), expert_rows, experts),
    Subject("memory", ("bytes",), memory_rows, memory),
    Subject("collective", ("collective", "ranks", "bytes"), collective_rows, collective),
)


def measured_us(torch: Any, device: str, run: Callable[[], Any]) -> float:
    """The median time of a run in microseconds. On a GPU its events are taken, without the time of the host."""
    for _ in range(WARM):
        run()
    if device == "cpu":
        times = []
        for _ in range(RUNS):
            began = time.perf_counter()
            run()
            times.append((time.perf_counter() - began) * 1e6)
        return statistics.median(times)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(RUNS)]
    for begin, end in pairs:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(begin.elapsed_time(end) * 1000 for begin, end in pairs))


def known_rows(path: Path, columns: Sequence[str]) -> set[Row]:
    """The sizes that a file has. An interrupted run may leave a last line that is incomplete: it does not count."""
    if not path.exists():
        return set()
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    rows = [row for row in csv.reader(whole.splitlines()) if len(row) == len(columns) + 1]
    if not rows or rows[0] != [*columns, "us"]:
        sys.exit(f"scripts/measure: {path} has other columns than {', '.join(columns)}, us: name another --out")
    return {tuple(row[:-1]) for row in rows[1:]}


def measure(torch: Any, subject: Subject, options: argparse.Namespace, writes: bool) -> None:
    """Add the rows of a subject that its file does not have."""
    path = options.out / f"{subject.name}-{options.dtype}.csv"
    known, dtype = known_rows(path, subject.columns), getattr(torch, _DTYPES[options.dtype])
    rows = [row for row in subject.rows(options.quick) if tuple(map(str, row)) not in known]
    if "WORLD_SIZE" in os.environ:
        torch.distributed.barrier()  # all ranks have read the file before one writes to it
    if writes and not path.exists():
        path.write_text(",".join((*subject.columns, "us")) + "\n", encoding="utf-8")
    elif writes and not path.read_text(encoding="utf-8").endswith("\n"):
        whole = path.read_text(encoding="utf-8")
        path.write_text(whole[: whole.rindex("\n") + 1], encoding="utf-8")
    for number, row in enumerate(rows, 1):
        try:
            took = measured_us(torch, options.device, subject.prepare(torch, options.device, dtype, *row))
        except torch.OutOfMemoryError:
            continue  # such sizes do not fit
        if writes:
            with path.open("a", encoding="utf-8") as file:
                file.write(",".join(map(str, (*row, round(took, 3)))) + "\n")
            print(f"\r{subject.name}: {number} of {len(rows)}", end="", file=sys.stderr, flush=True)
    if writes:
        print(f"\r{subject.name}: {len(rows)} measured, {len(known)} known, in {path}", file=sys.stderr)


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dtype", choices=tuple(_DTYPES), default="bf16")
    parser.add_argument("--only", choices=[each.name for each in SUBJECTS], action="append")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("scripts/measure needs torch: run it with a Python that has it (STAGEDB_TORCH_PYTHON)")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("scripts/measure: torch finds no GPU here; --device cpu measures the processor")
    options.out.mkdir(parents=True, exist_ok=True)
    several = "WORLD_SIZE" in os.environ
    if several:
        torch.distributed.init_process_group("nccl" if options.device == "cuda" else "gloo")
        if options.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    chosen = options.only or [each.name for each in SUBJECTS if several == (each.name == "collective")]
    if "collective" in chosen and not several:
        sys.exit("scripts/measure: collectives need several ranks: start it with torchrun")
    for subject in SUBJECTS:
        if subject.name in chosen:
            measure(torch, subject, options, not several or torch.distributed.get_rank() == 0)
    if several:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
