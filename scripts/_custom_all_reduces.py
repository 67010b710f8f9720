"""Fit `custom_all_reduce` of the presets to all-reduces of engines that the wheel aiconfigurator-core has measured.

    python -m scripts._custom_all_reduces WHEEL [--seed 7]

WHEEL is as for `scripts/tables`. One half of an accelerator's rows, drawn by the seed, gives the three numbers:
the smallest squares of the logarithms of predicted by measured, over a grid. The errors that are printed are those of
the other half, and how much longer the library takes for it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scripts._tables import unpacked_wheel
from stagedb.systems import CollectiveWork, Costs, load_system
from stagedb.systems.system import CustomAllReduce
from stagedb.systems.tables.grids import Floats

LIMIT = 8 << 20
"""Bytes of the largest message of vLLM and SGLang, which smaller ones are sent like."""

_NEW, _OLD = ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20"), ("vllm/0.14.0", "sglang/0.5.10", "trtllm/1.0.0")
_NODE = (2, 4, 6, 8)
GPUS = {
    "a100_sxm": ("a100-80gb", _NODE, _OLD),
    "h100_sxm": ("h100", _NODE, _NEW),
    "h200_sxm": ("h200", _NODE, _NEW),
    "b200_sxm": ("b200", _NODE, _NEW),
    "b300_sxm": ("b300", _NODE, _NEW),
    # The kernels are for ranks of one node, which has four of the accelerators of a domain.
    "gb200": ("gb200-nvl72", (2, 4), _NEW),
    "gb300": ("gb300-nvl72", (2, 4), _NEW),
}
"""By accelerator: its preset, the groups that have kernels, and folders of the wheel."""

STARTS, SHARES = np.arange(2000.0, 30001.0, 100.0), np.arange(30, 101) / 100
"""ns and shares that are tried."""


class Row(NamedTuple):
    """A measured all-reduce: the engine, ranks, bytes of the message, and ns."""

    engine: str
    ranks: int
    size: int
    ns: float


def rows_of(data: Path, gpu: str) -> list[Row]:
    """The rows of all engines whose kernels start from a CUDA graph. A size is written in numbers of two bytes."""
    import pyarrow.parquet as pq

    _, ranks, folders = GPUS[gpu]
    found = []
    for folder in folders:
        table = pq.read_table(data / gpu / "comm" / folder / "custom_allreduce_perf.parquet").to_pylist()
        for each in table:
            graph = each["kernel_source"].endswith("_graph") or each["kernel_source"] == "TRTLLM"
            if graph and each["num_gpus"] in ranks and 2 * each["message_size"] < LIMIT:
                engine = folder.partition("/")[0]
                found.append(Row(engine, each["num_gpus"], 2 * each["message_size"], each["latency"] * 1e6))
    return sorted(found)


def fitted(rows: Sequence[Row], bandwidth: float, ranks: tuple[int, ...]) -> CustomAllReduce:
    """The numbers with the smallest squares of logarithms."""
    n, size, ns = (np.array([each[at] for each in rows], np.float64) for at in (1, 2, 3))
    best = (np.inf, 0.0, 0.0, 0.0)
    for share in SHARES:
        once, twice = ((n - 1) * size / (bandwidth * share), 2 * (n - 1) / n * size / (bandwidth * share))
        for start in STARTS[STARTS <= 10000]:
            taken = np.minimum(start + once, STARTS[:, None] + twice)
            squares = (np.log(taken / ns) ** 2).sum(axis=1)
            at = int(squares.argmin())
            best = min(best, (float(squares[at]), float(start), float(STARTS[at]), float(share)))
    _, one, two, share = best
    return CustomAllReduce(Fraction(round(one)), Fraction(round(two)), Fraction(str(round(share, 2))), LIMIT, ranks)


def errors(rows: Sequence[Row], costs: Costs) -> Floats:
    """How much longer than measured each row is, as a share."""
    works = [CollectiveWork("all_reduce", each.size, tuple(range(each.ranks))) for each in rows]
    return np.array([costs.collective(work).ns / each.ns - 1 for work, each in zip(works, rows, strict=True)])


def main() -> None:
    """Print the numbers of each accelerator, and the errors of the half that was held out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print("| accelerator | rows | one_shot | two_shot | share | NCCL | mean | vLLM | SGLang | TensorRT-LLM |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    with unpacked_wheel(options.wheel) as data:
        for gpu, (preset, ranks, _) in GPUS.items():
            rows, system = rows_of(data, gpu), load_system(preset)
            order = np.random.default_rng(options.seed).permutation(len(rows))
            kept, held = ([rows[at] for at in half] for half in np.array_split(order, 2))
            inner, *outer = system.dimensions
            kernels = fitted(kept, float(inner.bandwidth), ranks)
            used = replace(system, dimensions=(replace(inner, custom_all_reduce=kernels), *outer))
            off, library = errors(held, Costs(used, 8, engine=True)), errors(held, Costs(system, 8))
            cells: list[object] = [gpu, len(rows), kernels.one_shot, kernels.two_shot, float(kernels.share)]
            cells += [f"{library.mean():+.0%}", f"{np.abs(off).mean():.1%}"]
            for engine in ("vllm", "sglang", "trtllm"):
                own = off[[each.engine == engine for each in held]]
                cells.append(f"{np.abs(own).mean():.1%} ({own.mean():+.1%})")
            print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
