"""Real files and a store for scripts/fuzz: what stagedb writes and reads of a small model."""

import gzip
import io
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts._fuzz_runs import forked_program
from tests.runs.execution_traces import linear_step
from tests.runs.nsight_exports import two_processes, write_export
from tests.runs.recordings import step

ROOT = Path(__file__).resolve().parents[1]

CARD: Mapping[str, Any] = {
    "name": "fuzz",
    "family": "llama",
    "layers": 4,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "ffn": 96,
    "vocab": 256,
    "vocab_multiple": 1,
    "norm": "rmsnorm",
    "mlp": "gated",
    "activation": "silu",
    "positions": "rotary",
    "max_positions": 32,
    "tied": False,
    "linear_bias": False,
    "qkv_bias": False,
    "parameters": 0,
    "source": "a model for tests",
}
EXPERTS: Mapping[str, Any] = {**CARD, "name": "fuzz-moe", "experts": 4, "top_k": 2, "expert_ffn": 96, "family": "moe"}

BLOCK: Mapping[str, Any] = {
    "axes": {"inner": "ffn", "rank": 8},
    "parameters": {
        "down": {"axes": "rank, hidden"},
        "up": {"axes": "inner, rank", "tp": "inner"},
        "back": {"axes": "hidden, inner", "tp": "inner"},
    },
    "steps": [
        {"low": {"einsum": "batch seq hidden, rank hidden -> batch seq rank", "of": ["input", "down"]}},
        {"normal": {"norm": "low"}},
        {"high": {"einsum": "batch seq rank, inner rank -> batch seq inner", "of": ["normal", "up"]}},
        {"active": {"gelu": "high"}},
        {"output": {"einsum": "batch seq inner, hidden inner -> batch seq hidden", "of": ["active", "back"]}},
    ],
}
OWN: Mapping[str, Any] = {
    **CARD,
    "name": "fuzz-own",
    "blocks": {"mine": {"file": "block.yaml", "sizes": {"rank": 16}}},
    "layer_kinds": {"layer": {"channel_mixer": "mine"}},
}

LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32},
}
MIXTRAL: Mapping[str, Any] = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}

PLAN: Mapping[str, Any] = {
    "tp": 2,
    "pp": 2,
    "dp": 2,
    "global_batch_size": 8,
    "sp": True,
    "zero": 1,
    "schedule": "1f1b",
    "dtype": "bf16",
    "rank_order": ["tp", "cp", "dp", "pp"],
    "layers_per_stage": [1, 3],
    "recompute": "none",
    "dropout": 0.1,
}
STRATEGY: Mapping[str, Any] = {
    "regions": {"ffn": {"batch": ["dp"], "seq": ["cp"], "ffn": ["tp"]}},
    "weights": {"ffn": {"ffn": ["tp"]}},
}
SCHEDULE: Mapping[str, Any] = {"stages": ["F0 F1 B0 B1", "F0 B0 F1 B1"]}
TABLE = "name,kind,flops,bytes,message,duration_us\nffn.up,matmul,,,,12.5\n,matmul,1000,,,3\n,all_reduce,,,4096,7\n"
CONFIG = '[stores.mine]\nuri = "bolt://127.0.0.1:9"\nusername = "neo4j"\npassword = "x"\ndatabase = "neo4j"\n'
QUERIES = (
    "MATCH (i:Instance) RETURN i.id AS id, i.name AS name",
    "MATCH (i:Instance {id: $instance})<-[:OF]-(c) RETURN count(c) AS n",
    "MATCH (o:Op) WITH o.kind AS kind, count(*) AS n WHERE n > 1 RETURN kind, n ORDER BY n DESC LIMIT 5",
    "UNWIND range(1, 10) AS x RETURN collect(x) AS xs, $p AS p",
    "hotspots",
    "bytes_by_axis",
    "memory_at_peak",
)


@dataclass(frozen=True)
class Seeds:
    """files: what the program wrote, by path relative to one directory. instance, profile: ids in the store."""

    files: Mapping[str, bytes]
    instance: str
    profile: str

    def under(self, folder: str) -> dict[str, bytes]:
        """The files of a folder, with its name."""
        return {name: data for name, data in self.files.items() if name.startswith(f"{folder}/")}


def seeds(directory: Path, environment: Mapping[str, str]) -> Seeds:
    """Make them in an empty directory, with the command line, and the store of the environment."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {"card.yaml": CARD, "moe.yaml": EXPERTS, "config.json": LLAMA, "mixtral.json": MIXTRAL, "plan.yaml": PLAN}
    texts |= {"strategy.yaml": STRATEGY, "schedule.yaml": SCHEDULE, "block.yaml": BLOCK, "own.yaml": OWN}
    for name, content in texts.items():
        (directory / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    (directory / "routing.json").write_text("[[3, 1], [0, 2]]", encoding="utf-8")
    (directory / "load.yaml").write_text("[3, 1, 2, 2]", encoding="utf-8")
    (directory / "durations.csv").write_text(TABLE, encoding="utf-8")
    (directory / "durations.parquet").write_bytes(_parquet())
    (directory / "config.toml").write_text(CONFIG, encoding="utf-8")
    preset = ROOT / "stagedb" / "systems" / "presets" / "h100.yaml"
    (directory / "system.yaml").write_bytes(preset.read_bytes())
    for rank in range(2):
        step(rank).write(directory)
    linear_step(0).write(directory / "rank0.et.json")
    write_export(directory / "job.sqlite", two_processes())
    records = json.loads((ROOT / "tests" / "validation" / "records.json").read_text(encoding="utf-8"))
    (directory / "records.json").write_text(json.dumps(records[:1]), encoding="utf-8")

    def stagedb(*arguments: str) -> str:
        return _stagedb(directory, environment, arguments)

    plan = ("--model", "card.yaml", "--tp", "2", "--pp", "2", "--global-batch-size", "4")
    stagedb("export", *plan, "-o", "set")
    (made,) = json.loads(stagedb("ls", "instances", "-f", "json"))[:1]
    instance = str(made["id"])
    stagedb("profile", instance, "-f", "csv")
    (timed,) = json.loads(stagedb("ls", "profiles", "-f", "json"))[:1]
    stagedb("memory", instance, "-f", "csv")
    for options in (("--packed", "-o", "set.packed"), ("--format", "json", "-o", "json"), ("--compress", "-o", "gz")):
        stagedb("export", instance, *options)
    stagedb("export", instance, "--format", "parquet", "-o", "tables")
    stagedb("export", "--profile", str(timed["id"]), "-o", "timed")
    stagedb("export", "--profile", str(timed["id"]), "--packed", "-o", "timed.packed")
    stagedb("timeline", instance, "-o", "view.pftrace")
    stagedb("report", instance, "-o", "page.html")
    (directory / "bomb.et").write_bytes(_bomb())
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    files = {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}
    return Seeds(files, instance, str(timed["id"]))


def _stagedb(directory: Path, environment: Mapping[str, str], arguments: tuple[str, ...]) -> str:
    outputs = (directory.with_name("stdout"), directory.with_name("stderr"))
    _, status = os.waitpid(forked_program(arguments, directory, environment, outputs), 0)
    if status:
        sys.exit(f"scripts/fuzz: stagedb {' '.join(arguments)} failed: {outputs[1].read_text(encoding='utf-8')}")
    return outputs[0].read_text(encoding="utf-8")


def _parquet() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    columns = {"name": ["ffn.up", None], "kind": ["matmul", "matmul"], "flops": [None, 1000], "duration_ns": [5, 7]}
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def _bomb() -> bytes:
    """A trace of 450 MB zeros in half a megabyte."""
    return gzip.compress(bytes(450 << 20), 1)
