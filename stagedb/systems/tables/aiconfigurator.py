"""The measured latencies of the wheel `aiconfigurator-core` (PyPI, Apache-2.0), as rows of stagedb's tables."""

import dataclasses
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stagedb.collectives import KINDS
from stagedb.errors import UsageError
from stagedb.files import path_text, shown, write_whole
from stagedb.mentions import Word
from stagedb.systems.system_files import load_system, write_system
from stagedb.systems.tables.grids import Bools, Floats
from stagedb.systems.tables.measured_table import COLLECTIVES, UNBOUNDED, Columns, table_of
from stagedb.systems.tables.table_files import packed

WHEEL = "aiconfigurator-core"
VERSION = "0.12.0"

DTYPES: Mapping[str, str] = {
    "bf16": "bfloat16",
    "fp8": "fp8",
    "int4_symmetric": "int4_wo",
    "mxfp4": "w4a16_mxfp4",
}
"""The wheel's words for formats."""


@dataclass(frozen=True)
class Chosen:
    """One table of the wheel, for an operator in a format.

    path: under `systems/data/`. where: values that its rows have, by column.
    """

    operator: str
    dtype: str
    path: str
    where: Mapping[str, str] = field(default_factory=dict)

    @property
    def cast(self) -> int:
        """Bytes that a measured matmul moved for each element of its first operand, to cast it.

        The collector of TensorRT-LLM runs a linear layer in fp8 on an input in bf16, without a scale (collect_gemm.py).
        The layer reads it for its largest value, reads it again, and writes it in fp8 (quantize_e4m3_per_tensor).
        """
        return 5 if (self.operator, self.dtype) == ("matmul", "fp8") and "/trtllm/" in self.path else 0

    @property
    def source(self) -> str:
        """Where the table comes from, as the file of a system names it."""
        rows = ", ".join(f"{name} {value}" for name, value in self.where.items())
        return f"{WHEEL} {VERSION} (Apache-2.0), systems/data/{self.path}" + (f": {rows}" if rows else "")


@dataclass(frozen=True)
class _Runs:
    """The measurements of an accelerator that are taken: folders of the wheel by operator, and words of its experts.

    packed: the kernels of experts whose weights have 4 bits, by format.
    """

    matmul: str
    attention: str
    experts: str
    collective: str
    formats: tuple[str, ...] = ("bf16", "fp8")
    load: Mapping[str, str] = field(default_factory=lambda: {"distribution": "balanced"})
    kernel: str = "moe_torch_flow_cutlass"
    packed: Mapping[str, str] = field(default_factory=dict)


_TRTLLM = "trtllm/1.3.0rc20"
_VLLM = "vllm/0.24.0"
# The kernels that vLLM chooses on Hopper for gpt-oss, and for weights of symmetric groups (those of Kimi K2).
_HOPPER = {
    "int4_symmetric": "vllm_compressedtensorswna16marlinmoe_marlin_marlinexperts",
    "mxfp4": "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",
}
_RUNS: Mapping[str, _Runs] = {
    # The experts of an A100 were measured with uneven loads only, and its kernels have no fp8.
    "a100_sxm": _Runs(
        "trtllm/1.0.0",
        "sglang/0.5.10",
        "vllm/0.14.0",
        "nccl/2.27.3",
        ("bf16",),
        {"distribution": "power_law_1.01"},
        "vllm_fused_moe",
    ),
    "h100_sxm": _Runs(_TRTLLM, "sglang/0.5.14", _TRTLLM, "nccl/2.27.3", packed=_HOPPER),
    "h200_sxm": _Runs(_TRTLLM, "sglang/0.5.14", _TRTLLM, "nccl/2.29.2", packed=_HOPPER),
    "b200_sxm": _Runs(_TRTLLM, "vllm/0.24.0", _TRTLLM, "nccl/2.29.2"),
    "gb200": _Runs(_TRTLLM, "vllm/0.24.0", _TRTLLM, "nccl/2.29.2"),
    "b300_sxm": _Runs(_TRTLLM, "vllm/0.24.0", _TRTLLM, "nccl/2.29.2"),
    "gb300": _Runs(_TRTLLM, "vllm/0.24.0", _TRTLLM, "nccl/2.29.2"),
    "l40s": _Runs(_TRTLLM, "sglang/0.5.14", _TRTLLM, "nccl/2.27.3"),
}

GPUS = tuple(_RUNS)
"""Accelerators of the wheel that stagedb reads, by the names of their folders."""


def chosen(gpu: str) -> tuple[Chosen, ...]:
    """The tables of an accelerator: one of each operator and format.

    Matmuls are those of torch's own kernels (cuBLAS), experts grouped matmuls of CUTLASS with equal loads, those with
    weights of 4 bits vLLM's. Attention is
    FlashAttention 3 on Hopper. gpu: the accelerator's name in AIConfigurator, such as `h100_sxm`.
    """
    runs = _RUNS[gpu]
    found = [
        Chosen("matmul", dtype, f"{gpu}/gemm/{runs.matmul}/gemm_perf.parquet", {"gemm_dtype": DTYPES[dtype]})
        for dtype in runs.formats
    ]
    wide = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    found.append(Chosen("attention", "bf16", f"{gpu}/attention/{runs.attention}/context_attention_perf.parquet", wide))
    moe = f"{gpu}/moe/{runs.experts}/moe_perf.parquet"
    found.append(Chosen("experts", "bf16", moe, {"moe_dtype": "bfloat16", "kernel_source": runs.kernel, **runs.load}))
    if "fp8" in runs.formats and gpu not in _NO_BLOCKS:
        found.append(Chosen("experts", "fp8", moe, {"moe_dtype": "fp8", "kernel_source": runs.kernel, **runs.load}))
    for dtype, kernel in runs.packed.items():
        where = {"moe_dtype": DTYPES[dtype], "kernel_source": kernel, **runs.load}
        found.append(Chosen("experts", dtype, f"{gpu}/moe/{_VLLM}/moe_perf.parquet", where))
    found.append(Chosen("collective", "bf16", f"{gpu}/comm/{runs.collective}/nccl_perf.parquet"))
    return tuple(found)


_NO_BLOCKS = frozenset({"l40s"})
"""Accelerators without measurements of experts in blocks of fp8."""


def rows_of(table_: Chosen, data: Path) -> tuple[Columns, Floats]:
    """The rows of a table as columns, and their ns. data: the wheel's folder `systems/data`."""
    import pyarrow.parquet as pq

    table = pq.read_table(data / table_.path)
    read: dict[str, Any] = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    keep: Bools = np.ones(table.num_rows, bool)
    for name, value in table_.where.items():
        keep &= read[name].astype(str) == value
    read = {name: values[keep] for name, values in read.items()}
    made = _MAKERS[table_.operator](read)
    ns = read["latency"].astype(np.float64) * 1e6
    good = ns > 0
    columns = {name: values.astype(np.float64)[good] for name, values in made.items()}
    # The order of the rows does not come from the file, so that a draw by a seed does not either.
    order = np.lexsort(tuple(columns.values()))
    return {name: values[order] for name, values in columns.items()}, ns[good][order]


def _matmul(read: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: read[name] for name in ("m", "n", "k")}


def _attention(read: Mapping[str, Any]) -> Mapping[str, Any]:
    window = read.get("window_size", np.zeros(len(read["isl"])))
    return {
        "batch": read["batch_size"],
        "seq": read["isl"],
        "heads": read["num_heads"],
        "kv_heads": read["num_key_value_heads"],
        "head": read["head_dim"],
        "window": np.where(window > 0, window, UNBOUNDED),
    }


def _experts(read: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "tokens": read["num_tokens"],
        "hidden": read["hidden_size"],
        "ffn": read["inter_size"],
        "experts": read["num_experts"],
        "top_k": read["topk"],
        "tp": read["moe_tp_size"],
        "ep": read["moe_ep_size"],
    }


def _collective(read: Mapping[str, Any]) -> Mapping[str, Any]:
    names = {other: each.name for each in KINDS.values() for other in each.tables}
    numbers = [COLLECTIVES.index(names[name]) for name in read["op_name"].tolist()]
    wide = np.where(read["nccl_dtype"] == "half", 2, 1)
    return {"collective": np.array(numbers), "ranks": read["num_gpus"], "bytes": read["message_size"] * wide}


_MAKERS = {"matmul": _matmul, "attention": _attention, "experts": _experts, "collective": _collective}

# A system with all tables that the wheel `aiconfigurator-core` has of an accelerator, as files.

PRESETS: Mapping[str, str] = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "gb200": "gb200-nvl72",
    "b300_sxm": "b300",
    "gb300": "gb300-nvl72",
    "l40s": "l40s",
}
"""The preset with the peaks, memory and network of each accelerator of the wheel."""

_LARGEST = 4 << 30
"""Bytes that a wheel may have when it is unpacked."""


@contextmanager
def wheel_data(wheel: Path | None) -> Iterator[Path]:
    """The wheel's folder of measurements: of a .whl file, of a folder that it was unpacked to, or as installed.

    UsageError if there is none.
    """
    with tempfile.TemporaryDirectory(prefix="stagedb-wheel-") as scratch:
        if wheel is not None and wheel.is_file():
            _unpack(wheel, Path(scratch))
            wheel = Path(scratch)
        found = _installed() if wheel is None else wheel
        data = None if found is None else found / "aiconfigurator_core" / "systems" / "data"
        if data is None or not data.is_dir():
            where = "is not installed" if wheel is None else f"is not in {path_text(wheel)}"
            raise UsageError(
                f"{WHEEL} {where}: get it with `pip download --no-deps {WHEEL}=={VERSION}`, and name its file "
                f"({Word('wheel')})"
            )
        yield data


def _installed() -> Path | None:
    found = find_spec("aiconfigurator_core")
    return None if found is None or found.origin is None else Path(found.origin).parents[1]


def _unpack(wheel: Path, to: Path) -> None:
    """The measurements of a wheel. Only files below its own folder are written."""
    inside = "aiconfigurator_core/systems/data/"
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [each for each in archive.infolist() if each.filename.startswith(inside)]
            if sum(each.file_size for each in names) > _LARGEST:
                raise UsageError(f"{path_text(wheel)} is larger than a wheel of measurements")
            for each in names:
                archive.extract(each, to)
    except (OSError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path_text(wheel)} is no wheel: {error} ({Word('wheel')})") from None


def import_wheel(gpu: str, wheel: Path | None, to: Path) -> Iterator[tuple[Path, int]]:
    """Write the system of an accelerator and its tables, from all rows of the wheel. Yields each file and its rows.

    gpu: a folder of the wheel. to: an existing directory. UsageError for an unknown accelerator or wheel.
    """
    if gpu not in PRESETS:
        raise UsageError(
            f"{WHEEL} has no tables of {shown(gpu)} that stagedb reads: {Word('gpu')} takes {', '.join(GPUS)}"
        )
    preset = load_system(PRESETS[gpu])
    tables = []
    with wheel_data(wheel) as data:
        for each in chosen(gpu):
            rows, ns = rows_of(each, data)
            path = to / f"{gpu}-{each.operator}-{each.dtype}.npz"
            write_whole(path, packed(table_of(each.operator, each.dtype, rows, ns)), str(Word("out")))
            words = {"operator": each.operator, "dtype": each.dtype, "file": path.name, "source": each.source}
            tables.append({**words, **({"cast": each.cast} if each.cast else {})})
            yield path, len(ns)
    name = gpu.replace("_", "-")
    content = {**dataclasses.replace(preset, name=name, tables=()).to_dict(), "tables": tables}
    path = to / f"{name}.yaml"
    write_system(path, content)
    yield path, 0
