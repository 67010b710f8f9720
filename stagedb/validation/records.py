"""Recorded steps of a real framework: what one rank computed and sent, and the plan for the same step in stagedb.

The format is that of `tests/validation/records.json`: a list of records with `name`, `config`, `flops` (by phase),
`collectives` (rows of phase, op, axis, dtype, bytes, count), and `timeline` with `matmuls_and_attention` if the
order was recorded. Sizes in `config` replace those of the model's label.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.collectives import ALL_REDUCE
from stagedb.errors import UsageError
from stagedb.files import read_document, shown
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.plans.aspects import GRAPH_WORDS
from stagedb.plans.graph_options import CP_KINDS
from stagedb.schedules import EXPLICIT
from stagedb.validation.op_order import CountedMessage, Counts, Event, recorded

DTYPES: Mapping[str, str] = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
"""A record's element types in stagedb's terms."""

RECOMPUTE: Mapping[str, str] = {"none": "none", "full": "full", "core": "core", "sac": "pointwise"}
"""A record's recomputation in stagedb's terms (`sac` keeps matmuls: selective activation checkpointing)."""

FLOP_KINDS = ("matmul", "attention")


class Unsupported(UsageError):
    """No plan can describe a record's way of training yet."""


@dataclass(frozen=True)
class RecordedMemory:
    """Bytes that a recorded rank held: by moment and category, the peak, and those saved for the backward.

    parameters: the rank's own. levels: at the ends of forward, backward and optimizer. saved: all (of one micro-batch
    in a pipeline). layer: those of one layer, None if a layer is checkpointed. recorder: those of the recording program
    itself at every moment, None if the record does not have them.
    """

    parameters: int
    levels: Mapping[str, Mapping[str, int]]
    peak: int
    saved: int
    layer: int | None
    recorder: int | None = None


@dataclass(frozen=True)
class Record:
    """One record: its label and configuration, and its rank's counts, order and memory."""

    name: str
    config: Mapping[str, Any]
    counts: Counts
    events: tuple[Event, ...] | None = None
    memory: "RecordedMemory | None" = None

    @property
    def rank(self) -> int:
        """The global rank that was recorded (tp innermost, pp outermost)."""
        return int(self.config["rank"])


_LARGEST = 256 << 20
"""Bytes of the largest file of records."""


def read_records(path: Path) -> list[Record]:
    """The records of a file. UsageError if it is missing or is not a list of records."""
    rows = read_document(path, "records", (".json",), _LARGEST, str(Word("records")))
    if not isinstance(rows, list):
        raise UsageError(f"{path} is not a list of records")
    return [_record(path, place, row) for place, row in enumerate(rows)]


def _record(path: Path, place: int, row: Any) -> Record:
    try:
        flops = {
            (phase, kind): int(found[kind])
            for phase, found in row["flops"].items()
            if isinstance(found, dict)
            for kind in FLOP_KINDS
            if found.get(kind)
        }
        messages: Counter[CountedMessage] = Counter()
        row = {**row, "collectives": [_on_plan_axis(sent, row["config"]) for sent in row["collectives"]]}
        for sent in row["collectives"]:
            size, result = sent["bytes_in"] or sent["bytes_out"], sent["bytes_out"] or sent["bytes_in"]
            dtype = DTYPES.get(sent["dtype"], sent["dtype"])
            messages[CountedMessage(sent["phase"], sent["op"], sent["axis"], dtype, size, result)] += sent["count"]
        events = tuple(recorded(row, DTYPES)) if row.get("timeline") is not None else None
        held = _memory(row) if row.get("memory") is not None else None
        return Record(str(row["name"]), dict(row["config"]), Counts(flops, messages), events, held)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path}: record {place} lacks or misuses a field: {shown(str(error))}") from None


def _on_plan_axis(sent: Mapping[str, Any], config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A record with ep reduces the gradients of dense weights over ep. In a plan these ranks are those of dp."""
    dense = sent["axis"] == "ep" and sent["op"] == ALL_REDUCE.name and config["dp"] == 1
    return {**sent, "axis": "dp"} if dense else sent


def _memory(row: Mapping[str, Any]) -> RecordedMemory:
    held, saved = row["memory"], row["saved_for_backward"]
    whole = row["config"]["recompute"] in ("none", "core")
    return RecordedMemory(
        parameters=int(row["params"]["local_bytes"]),
        levels={moment: dict(level["breakdown"]) for moment, level in held["at"].items()},
        peak=int(held["peak"]),
        saved=int(saved["total"]),
        layer=int(saved["one_layer"]) if whole and saved["one_layer"] is not None else None,
        recorder=None if row.get("recorder_bytes") is None else int(row["recorder_bytes"]),
    )


def card_of(config: Mapping[str, Any]) -> Card:
    """The model of a record: torch's untied embedding and head, biases and learned positions in the gpt style.

    config: the record's configuration. Raises Unsupported for another style.
    """
    style = config["style"]
    if style not in ("llama", "gpt", "moe"):
        raise Unsupported(f"models of style {style}")
    gpt, moe = style == "gpt", style == "moe"
    card = Card(
        name=config["model"],
        family=style,
        hidden=config["hidden"],
        layers=config["layers"],
        heads=config["heads"],
        kv_heads=config["kv_heads"],
        head_dim=config["head_dim"],
        ffn=config["ffn"],
        vocab=config["vocab"],
        vocab_multiple=1,
        norm="layernorm" if gpt else "rmsnorm",
        mlp="plain" if gpt else "gated",
        activation="gelu" if gpt else "silu",
        positions="learned" if gpt else "rotary",
        max_positions=config["seq"],
        tied=False,
        linear_bias=gpt,
        qkv_bias=False,
        parameters=0,
        experts=config["experts"] if moe else 0,
        top_k=config["topk"] if moe else 0,
        expert_ffn=(config.get("expert_ffn") or config["ffn"]) if moe else 0,
        source="the configuration of a record",
    )
    return dataclasses.replace(card, **_extension(config, "card"))


def _extension(config: Mapping[str, Any], of: str) -> Mapping[str, Any]:
    """What a record's `extension` has of the `card` or of the `plan`, in stagedb's words."""
    found = (config.get("extension") or {}).get(of) or {}
    if not isinstance(found, dict):
        raise Unsupported(f"an extension whose {of} is no table of words")
    return found


def _extended(words: dict[str, object], config: Mapping[str, Any]) -> dict[str, object]:
    """The words of a plan with those of the record's extension. Schedule `orders`: the record has the orders."""
    words |= _extension(config, "plan")
    if words["schedule"] == "orders":
        words |= {"schedule": EXPLICIT, "task_order": list(config["orders"])}
    return {word: value for word, value in words.items() if value is not None}


_UNSUPPORTED: tuple[tuple[str, Any, str], ...] = (
    ("dp_kind", ("none", "ddp", "fsdp"), "an unknown kind of data parallelism"),
    ("mixed", ("none", "fp32master"), "an unknown kind of mixed precision"),
    ("optimizer", tuple(map(str, GRAPH_WORDS["optimizer"].choices)), "an unknown optimizer"),
    ("recompute", tuple(RECOMPUTE), "an unknown kind of recomputation"),
)


def plan_words(config: Mapping[str, Any]) -> dict[str, object]:
    """The words of the plan for a record's configuration.

    config: as a record has it. Raises Unsupported if no plan can describe it.
    """
    for field, known, what in _UNSUPPORTED:
        if config[field] not in known:
            raise Unsupported(what)
    if config["cp"] > 1 and config["cp_impl"] not in CP_KINDS:
        raise Unsupported(f"context parallelism of kind {config['cp_impl']}")
    copies = config["dp_replicate"]
    # A record with ep has no other axis: its ranks are data-parallel in everything but their experts.
    dp = config["dp"] * copies * config["ep"]
    sharded = config["dp_kind"] == "fsdp"
    master = {"param_dtype": "fp32", "grad_dtype": "bf16", "reduce_dtype": "fp32", "opt_dtype": "fp32"}
    words = {
        **(master if config["mixed"] == "fp32master" else {}),
        **({"reduce_dtype": "fp32"} if config.get("reduce_fp32") else {}),
        "zero": (3 if config["reshard"] else 2) if sharded else 0,
        **({"reshard_to": config["reshard"]} if sharded and type(config["reshard"]) is int else {}),
        "hsdp": copies,
        "ep": config["ep"],
        "expert_unit": sharded and bool(config.get("ep_fsdp")),
        "ep_sync": config["ep"] == 1 or config["ep_sync"],
        "recipe": "torch",
        "tp": config["tp"],
        "cp": config["cp"],
        "cp_kind": config["cp_impl"] if config["cp"] > 1 else "none",
        "cp_grad_sync": config["cp"] == 1,
        "dp": dp,
        "pp": config["pp"],
        "sp": config["sp"],
        "shared_input": config["tp_plan"] == "shared",
        "loss_parallel": config["loss_parallel"],
        "attention": "math" if config["attn"] == "math" else "fused",
        "kernels": config["ops"],
        "dropout": config["dropout"],
        "recompute": RECOMPUTE[config["recompute"]],
        "early_stop": config["early_stop"],
        "dtype": config["dtype"],
        "micro_batch_size": config["batch"],
        "global_batch_size": config["batch"] * dp * config["microbatches"],
        "seq_len": config["seq"],
        "schedule": config["pp_schedule"],
        "recompute_every": config.get("every", 1),
        "layers_per_stage": list(config.get("stage_layers") or ()) or None,
        "clip_norm": bool(config.get("clip")),
        "optimizer": config["optimizer"],
    }
    return _extended(words, config)
