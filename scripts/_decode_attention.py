"""Fit `decode_attention` of the presets to attentions over a cache that the wheel aiconfigurator-core has measured.

    python -m scripts._decode_attention WHEEL [--seed 7]

WHEEL is as for `scripts/tables`. One half of an accelerator's rows, drawn by the seed, gives the three numbers: the
smallest squares of the logarithms of predicted by measured, over a grid. The errors that are printed are those of the
other half, and those of the curves of attention and memory, which systems without these numbers take.

Rows are in bf16: heads of 64 and 128 over at least 512 keys, at most 16 heads of queries to one of keys, of three
engines; and latent attention of two. A measurement repeats a kernel, so that keys and values that fit the L2 cache are
read from it, as in no step. Rows that fit are left out, but for those of less than a megabyte, which show the start.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scripts._tables import unpacked_wheel
from stagedb.systems import Costs, System, Work, load_system
from stagedb.systems.system import DecodeAttention
from stagedb.systems.tables.grids import Floats

ENGINES = ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")
"""Folders of the wheel."""

# The engines that were measured on an A100 are apart by a factor of two, so that one rule is none of them.
GPUS = {
    "h100_sxm": ("h100", 50e6),
    "h200_sxm": ("h200", 50e6),
    "b200_sxm": ("b200", 126e6),
    "b300_sxm": ("b300", 126e6),
    "gb200": ("gb200-nvl72", 126e6),
    "gb300": ("gb300-nvl72", 126e6),
    "l40s": ("l40s", 96e6),
}
"""By accelerator: its preset, and bytes of its L2 cache."""

LEAST_KEYS, MOST_QUERIES, SMALL = 512, 16, 1e6
LATENT, VALUE = 576, 512
"""Numbers of a token that latent attention keeps, and those of them that are values."""

STARTS, SHARES = np.arange(2000.0, 40001.0, 500.0), np.arange(30, 101, 2) / 100
"""ns and shares that are tried."""


class Row(NamedTuple):
    """A measured attention: the engine, whether of latents, its dims as of `Work`, and ns."""

    engine: str
    latents: bool
    dims: tuple[int, ...]
    ns: float

    @property
    def work(self) -> Work:
        """The operator, with the bytes of queries, keys, values and results in bf16."""
        batch, heads, kv_heads, queries, keys, head, *value = self.dims
        wide = value[0] if value else head
        read = head if self.latents else head + wide
        moved = 2 * batch * (kv_heads * keys * read + heads * queries * (head + wide))
        flops = 2 * batch * heads * queries * keys * (head + wide)
        return Work("attention", "bf16", flops, moved, self.dims)


def rows_of(data: Path, gpu: str) -> list[Row]:
    """The rows of all engines that are fitted, by `LEAST_KEYS` and the rules above."""
    _, cache = GPUS[gpu]
    found = []
    for folder in ENGINES:
        engine = folder.partition("/")[0]
        for each in _table(data / gpu / "attention" / folder / "generation_attention_perf.parquet"):
            heads, kv_heads, head = (
                each["num_heads"],
                each["num_key_value_heads"] or each["num_heads"],
                each["head_dim"],
            )
            if not each["window_size"] and head in (64, 128) and heads <= MOST_QUERIES * kv_heads:
                sizes = each["batch_size"], heads, kv_heads, 1, each["isl"] + each["step"], head
                found.append(Row(engine, False, sizes, each["latency"] * 1e6))
        for each in _table(data / gpu / "mla" / folder / "generation_mla_perf.parquet"):
            dims = (each["batch_size"], each["num_heads"], 1, 1, each["isl"] + each["step"], LATENT, VALUE)
            found.append(Row(engine, True, dims, each["latency"] * 1e6))
    return sorted(
        each for each in found if each.dims[4] >= LEAST_KEYS and not SMALL < each.work.bytes <= cache and each.ns > 0
    )


def _table(path: Path) -> list[dict[str, Any]]:
    """The rows of a file with caches in 16 bits. Not every engine has one."""
    import pyarrow.parquet as pq

    rows = pq.read_table(path).to_pylist() if path.is_file() else []
    return [{"window_size": 0, **each} for each in rows if each["kv_cache_dtype"] in ("bfloat16", "float16")]


def fitted(rows: Sequence[Row], system: System) -> DecodeAttention:
    """The numbers with the smallest squares of logarithms."""
    works = [each.work for each in rows]
    ns = np.log([each.ns for each in rows])
    reading = np.array([each.bytes for each in works]) / float(system.accelerator.bandwidth)
    computing = np.array([each.flops for each in works]) / (1000 * float(system.accelerator.peak["bf16"]))
    best = (np.inf, 0.0, 0.0, 0.0)
    for read in SHARES:
        for compute in SHARES:
            longer = np.maximum(reading / read, computing / compute)
            for start in STARTS:
                squares = float(((np.log(start + longer) - ns) ** 2).sum())
                best = min(best, (squares, float(start), float(read), float(compute)))
    _, start, read, compute = best
    return DecodeAttention(Fraction(round(start)), *(Fraction(str(round(each, 2))) for each in (read, compute)))


def errors(rows: Sequence[Row], system: System) -> Floats:
    """How much longer than measured each row is, as a share, in a step that starts from a CUDA graph."""
    costs = Costs(replace(system, accelerator=system.accelerator.from_graphs), 1, engine=True)
    return np.array([costs.work(each.work).ns / each.ns - 1 for each in rows])


def main() -> None:
    """Print the numbers of each accelerator, and the errors of the half that was held out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print("| accelerator | rows | numbers | curves | mean | vLLM | SGLang | TensorRT-LLM | latents |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|")
    with unpacked_wheel(options.wheel) as data:
        for gpu, (preset, _) in GPUS.items():
            rows, system = rows_of(data, gpu), load_system(preset)
            order = np.random.default_rng(options.seed).permutation(len(rows))
            kept, held = ([rows[at] for at in half] for half in np.array_split(order, 2))
            kernels = fitted(kept, system)
            own, plain = (
                errors(held, replace(system, accelerator=replace(system.accelerator, decode_attention=each)))
                for each in (kernels, None)
            )
            numbers = f"{kernels.start}, {float(kernels.read_share)}, {float(kernels.compute_share)}"
            cells = [gpu, f"{len(held):,}", numbers, f"{np.abs(plain).mean():.1%}", f"{np.abs(own).mean():.1%}"]
            kinds = [(each.engine, each.latents) for each in held]
            for engine in ("vllm", "sglang", "trtllm"):
                cells.append(_summary(own[[kind == (engine, False) for kind in kinds]]))
            cells.append(_summary(own[[kind[1] for kind in kinds]]))
            print(f"| {' | '.join(cells)} |", flush=True)


def _summary(off: Floats) -> str:
    return f"{np.abs(off).mean():.1%} ({off.mean():+.1%})" if len(off) else "-"


if __name__ == "__main__":
    main()
