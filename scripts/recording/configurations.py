"""Random configurations of training, over products of features: `drawn(seed, count)`. Plain data, without torch.

A configuration has the fields that `tests/validation/records.json` has in `config`. Each feature is drawn on its own,
and what PyTorch or this recorder cannot combine is left out by the rules here.
"""

import random
from collections.abc import Iterator
from typing import Any

Config = dict[str, Any]

DEFAULTS: Config = {
    "model": "drawn",
    "style": "llama",
    "hidden": 1024,
    "layers": 2,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 64,
    "ffn": 2048,
    "vocab": 8192,
    "experts": 0,
    "topk": 0,
    "batch": 1,
    "seq": 128,
    "dtype": "bf16",
    "mixed": "none",
    "attn": "sdpa",
    "ops": "fused",
    "dropout": 0.0,
    "optimizer": "adamw",
    "tp": 1,
    "sp": False,
    "tp_plan": "shared",
    "loss_parallel": True,
    "dp": 1,
    "dp_kind": "none",
    "dp_replicate": 1,
    "reshard": True,
    "cp": 1,
    "cp_impl": "ring-allgather",
    "ep": 1,
    "ep_sync": True,
    "pp": 1,
    "microbatches": 1,
    "pp_schedule": "1f1b",
    "recompute": "none",
    "early_stop": True,
    "rank": 0,
    "note": "",
    "tied": False,
    "qkv_bias": False,
    "all_bias": False,
    "qk_norm": False,
    "expert_ffn": 0,
    "shared_ffn": 0,
    "dense_layers": 0,
    "stage_layers": [],
    "every": 1,
    "cp_join": False,
    "ep_fsdp": False,
    "reduce_fp32": False,
    "accumulate": "last",
    "virtual": 1,
    "clip": False,
    "orders": [],
    "placement": [],
    "reduce_bf16": False,
    "lora": [],
    "lora_rank": 16,
    "frozen": [],
    "loss_chunks": 1,
}
"""A configuration with nothing special."""


def drawn(seed: int, count: int) -> Iterator[Config]:
    """As many configurations of a seed. Those of a larger count begin with those of a smaller."""
    for place in range(count):
        chance = random.Random(f"{seed}/{place}")
        config = DEFAULTS | {"model": f"drawn-{seed}-{place}"}
        _axes(config, chance)
        _model(config, chance)
        _numbers(config, chance)
        _pipeline(config, chance)
        _parts(config, chance)
        # From numbers of their own, so that a draw that is added here leaves those above as they are.
        further = random.Random(f"{seed}/{place}/further")
        _schedules(config, further)
        _sizes(config, further)
        _precision(config, further)
        _clipping(config, further)
        _parted_experts(config, random.Random(f"{seed}/{place}/experts"))
        _reshards(config, random.Random(f"{seed}/{place}/reshards"))
        _sharded_experts(config, random.Random(f"{seed}/{place}/sharded"))
        _expert_units(config, random.Random(f"{seed}/{place}/units"))
        config["every"] = min(config["every"], most_layers(config))
        config["rank"] = chance.randrange(world(config))
        yield completed(config)


def world(config: Config) -> int:
    """The ranks of a configuration."""
    size = 1
    for axis in ("tp", "dp", "dp_replicate", "cp", "ep", "pp"):
        size *= config[axis]
    return size


def _axes(config: Config, chance: random.Random) -> None:
    config["style"] = chance.choice(("llama", "llama", "gpt", "gpt", "moe"))
    moe = config["style"] == "moe"
    if moe and chance.random() < 0.4:
        config |= {"ep": chance.choice((2, 4)), "ep_sync": chance.random() < 0.7}
    if not moe and chance.random() < 0.5:
        config |= {"tp": chance.choice((2, 3, 4)), "sp": chance.random() < 0.6}
        config |= {"tp_plan": chance.choice(("shared", "shared", "naive")), "loss_parallel": chance.random() < 0.7}
    if config["ep"] == 1 and chance.random() < 0.6:
        # DDP takes no distributed tensors.
        kind = "fsdp" if config["tp"] > 1 else chance.choice(("fsdp", "fsdp", "ddp"))
        config |= {"dp_kind": kind, "dp": chance.choice((2, 3, 4))}
        if kind == "fsdp":
            config |= {"reshard": chance.random() < 0.7, "dp_replicate": chance.choice((1, 1, 1, 2))}
    if config["ep"] == 1 and chance.random() < 0.3:
        kind = chance.choice(("allgather-kv", "ring-allgather", "ring-alltoall"))
        config |= {"cp": chance.choice((2, 4)), "cp_impl": kind}
        # Shards of weights are spread over dp and cp together.
        config["cp_join"] = config["dp_kind"] == "fsdp" or (config["dp_kind"] == "ddp" and chance.random() < 0.5)
    if chance.random() < 0.35:
        config |= {"pp": chance.choice((2, 3, 4)), "loss_parallel": config["tp"] == 1}


def _model(config: Config, chance: random.Random) -> None:
    tp, cp, moe = config["tp"], config["cp"], config["style"] == "moe"
    groups, copies = chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
    heads = tp * groups * copies
    config |= {
        "hidden": 16 * chance.randrange(64, 128),
        "layers": chance.choice((1, 2, 2, 3)),
        "heads": heads,
        "kv_heads": heads if config["style"] == "gpt" else heads // copies,
        "head_dim": chance.choice((32, 48, 64, 128)),
        "ffn": 8 * tp * chance.randrange(60, 400),
        "vocab": 8 * tp * chance.randrange(200, 1600),
        "batch": chance.randrange(1, 4),
        "seq": 2 * cp * tp * chance.randrange(8, 48),
    }
    if moe:
        config |= {"experts": config["ep"] * chance.choice((1, 2, 3)), "seq": 48 * cp * chance.randrange(1, 8)}
        config["experts"] = max(2, config["experts"])
        config["topk"] = chance.randrange(1, min(3, config["experts"]) + 1)
        config["ffn"] = 8 * chance.randrange(40, 160)


def _numbers(config: Config, chance: random.Random) -> None:
    if chance.random() < 0.15:
        config["dtype"] = "fp32"
    elif config["dp_kind"] == "fsdp" and chance.random() < 0.35:
        config |= {"mixed": "fp32master"} if chance.random() < 0.5 else {"reduce_fp32": True}
    if config["style"] != "gpt" and chance.random() < 0.2:
        config["ops"] = "eager"
    if config["style"] == "gpt" and chance.random() < 0.3:
        config["dropout"] = 0.1
    if config["cp"] == 1 and config["kv_heads"] == config["heads"] and chance.random() < 0.2:
        config["attn"] = "math"
    # A fused kernel recomputes the core of attention already.
    kinds = ("none", "none", "full", "sac", *(("core",) if config["attn"] == "math" else ()))
    config["recompute"] = chance.choice(kinds)
    if config["recompute"] == "full" and chance.random() < 0.3:
        config["early_stop"] = False


def _pipeline(config: Config, chance: random.Random) -> None:
    pp = config["pp"]
    if pp == 1:
        if config["ep"] == 1 and chance.random() < 0.25:
            config |= {"microbatches": chance.choice((2, 3)), "accumulate": chance.choice(("last", "every"))}
        return
    config |= {"pp_schedule": chance.choice(("1f1b", "1f1b", "gpipe", "interleaved"))}
    if config["pp_schedule"] == "interleaved":
        config |= {
            "virtual": 2,
            "microbatches": pp * chance.choice((1, 2)),
            "layers": 2 * pp * chance.choice((1, 1, 2)),
        }
        return
    config |= {"microbatches": pp + chance.randrange(0, 3), "layers": pp * chance.choice((1, 2))}
    if chance.random() < 0.25:
        config["stage_layers"] = [chance.choice((1, 2, 3)) for _ in range(pp)]
        config["layers"] = sum(config["stage_layers"])


def _parts(config: Config, chance: random.Random) -> None:
    single = config["pp"] == 1
    if single and chance.random() < 0.15:
        config["tied"] = True
    if config["style"] != "gpt":
        biases = chance.choice(("none", "none", "none", "qkv_bias", "all_bias"))
        # Biases of experts are no part of these models.
        if biases != "none" and not (biases == "all_bias" and config["style"] == "moe"):
            config[biases] = True
        config["qk_norm"] = config["tp"] == 1 and chance.random() < 0.2
    if config["style"] == "moe":
        config |= {"shared_ffn": chance.choice((0, 0, 8 * chance.randrange(20, 100)))}
        if single and config["layers"] > 1 and chance.random() < 0.2:
            config |= {"dense_layers": 1, "expert_ffn": 8 * chance.randrange(20, 80)}
    if config["recompute"] in ("full", "sac") and config["layers"] > 1 and chance.random() < 0.25:
        config["every"] = 2
    # One norm cannot have gradients on several meshes: a table of positions is on no tensor-parallel one, nor is a norm
    # without sequence parallelism.
    whole = config["style"] == "llama" and config["sp"]
    alike = config["tp"] == 1 or (config["dp_kind"] == "fsdp" and whole)
    if single and alike and config["ep"] == config["cp"] == 1 and chance.random() < 0.15:
        config["clip"] = True


def _schedules(config: Config, chance: random.Random) -> None:
    """Schedules of several chunks, uneven chunks, and orders and placements that nobody chose."""
    pp, copies = config["pp"], config["dp_kind"] == "ddp" or (config["ep"] > 1 and config["ep_sync"])
    # A backward that recomputes is not split, and DDP does not reduce what a second half makes.
    whole = config["recompute"] != "none" or copies
    if pp == 1 or chance.random() < 0.4:
        return
    kinds = ("interleaved", "bfs", "orders", "orders", *(() if whole else ("izb", "zbv")))
    kind = chance.choice(kinds)
    chunks = 2 if kind == "zbv" else chance.choice((1, 2, 2, 3)) if kind == "orders" else chance.choice((2, 2, 3))
    numbers = pp * chunks
    config |= {"pp_schedule": kind, "virtual": chunks, "stage_layers": [], "layers": numbers * chance.choice((1, 1, 2))}
    if chance.random() < 0.3:
        config["stage_layers"] = [chance.choice((1, 2, 3)) for _ in range(numbers)]
        config["layers"] = sum(config["stage_layers"])
    config["microbatches"] = pp * chance.choice((1, 2)) if kind in ("interleaved", "izb") else chance.randrange(1, 7)
    if kind == "orders":
        turned = chance.random() < 0.5
        loops = [list(range(pp))[:: -1 if turned and chunk % 2 else 1] for chunk in range(chunks)]
        config["placement"] = [stage for loop in loops for stage in loop]
        split = set() if whole else {number for number in range(numbers) if chance.random() < 0.5}
        config["orders"] = drawn_orders(config["placement"], config["microbatches"], split, chance)
    if _splits(config):
        config["reshard"] = config["reshard"] and config["dp_kind"] != "fsdp"


def most_layers(config: Config) -> int:
    """The layers of the chunk with the most."""
    chunks = config["pp"] * (2 if config["pp_schedule"] == "zbv" else config["virtual"])
    sizes: list[int] = config["stage_layers"] or [-(-config["layers"] // chunks)]
    return max(sizes)


def drawn_orders(placement: list[int], microbatches: int, split: set[int], chance: random.Random) -> list[str]:
    """An order for each stage that ends: in every turn one of the tasks runs that can.

    placement: the stage of each chunk of the pipeline. split: the chunks whose backwards are halves. Each chunk runs
    its micro-batches in turn.
    """
    last, stages = len(placement) - 1, max(placement) + 1
    places = [placement[:number].count(stage) for number, stage in enumerate(placement)]
    done = {(letter, number): 0 for letter in "FBW" for number in range(last + 1)}
    orders: list[list[str]] = [[] for _ in range(stages)]

    def ready() -> Iterator[tuple[str, int]]:
        for number in range(last + 1):
            turn = done["F", number]
            if turn < microbatches and (number == 0 or done["F", number - 1] > turn):
                yield "F", number
            turn = done["B", number]
            if done["F", number] > turn and (number == last or done["B", number + 1] > turn):
                yield "B", number
            if number in split and done["W", number] < turn:
                yield "W", number

    while found := list(ready()):
        letter, number = chance.choice(found)
        word = "I" if letter == "B" and number in split else letter
        chunk = f".{places[number]}" if places[number] else ""
        orders[placement[number]].append(f"{word}{done[letter, number]}{chunk}")
        done[letter, number] += 1
    return [" ".join(order) for order in orders]


def _sizes(config: Config, chance: random.Random) -> None:
    """More degrees, and rows that no degree divides."""
    if config["dp"] == 4 and chance.random() < 0.3:
        config["dp"] = 5
    if config["cp"] == 2 and config["style"] != "moe" and chance.random() < 0.3:
        config |= {"cp": 3, "seq": config["seq"] // 2 * 3}
    if chance.random() < 0.3:
        config["hidden"] += chance.randrange(1, 16)
        if config["tp"] == 1:
            config |= {"vocab": config["vocab"] + chance.randrange(1, 8), "ffn": config["ffn"] + chance.randrange(1, 8)}


def _precision(config: Config, chance: random.Random) -> None:
    """Gradients that FSDP reduces in the format of compute."""
    if config["mixed"] == "fp32master" and chance.random() < 0.4:
        config["reduce_bf16"] = True


def _clipping(config: Config, chance: random.Random) -> None:
    """Clipping in a pipeline of one chunk a stage, and with context parallelism."""
    alone = config["tp"] == config["ep"] == config["virtual"] == 1
    if alone and (config["pp"] > 1 or config["cp"] > 1) and chance.random() < 0.25:
        config["clip"] = True


def _parted_experts(config: Config, chance: random.Random) -> None:
    """Experts under tensor parallelism. DDP takes no distributed tensors."""
    copies = config["dp_kind"] == "ddp" or (config["ep"] > 1 and config["ep_sync"])
    if config["style"] != "moe" or copies or chance.random() < 0.5:
        return
    tp = chance.choice((2, 4))
    config |= {"tp": tp, "sp": chance.random() < 0.6, "qk_norm": False, "clip": False}
    config["loss_parallel"] = config["pp"] == 1 and chance.random() < 0.7
    for field in ("ffn", "vocab"):
        config[field] += -config[field] % (8 * tp)
    for field in ("heads", "kv_heads"):
        config[field] *= tp


def _reshards(config: Config, chance: random.Random) -> None:
    """Parts of parameters that fewer ranks keep for the backward. FSDP2 has none of distributed tensors."""
    ranks = config["dp"] * (config["cp"] if config["cp_join"] else 1)
    fewer = [size for size in range(2, ranks) if ranks % size == 0]
    alone = config["tp"] == config["pp"] == config["ep"] == 1
    if config["dp_kind"] == "fsdp" and config["reshard"] and alone and fewer and chance.random() < 0.5:
        config["reshard"] = chance.choice(fewer)


def _sharded_experts(config: Config, chance: random.Random) -> None:
    """Experts that ranks divide, where those with the same ones share them under FSDP."""
    if config["ep"] == 1 or config["tp"] > 1 or chance.random() < 0.5:
        return
    config |= {"dp_kind": "fsdp", "dp": chance.choice((2, 4)), "ep_sync": True, "clip": False}
    config["reshard"] = chance.random() < 0.7 and not _splits(config)
    for field in ("hidden", "ffn", "expert_ffn"):
        # More ranks than experts cut them along their second axis, in equal parts only.
        config[field] += -config[field] % config["dp"]
    if config["dtype"] == "bf16" and chance.random() < 0.5:
        config |= chance.choice(({"mixed": "fp32master"}, {"reduce_fp32": True}))
    if config["pp"] == 1 and chance.random() < 0.3:
        config |= {"microbatches": chance.choice((2, 3)), "accumulate": chance.choice(("last", "every"))}


def _expert_units(config: Config, chance: random.Random) -> None:
    """Experts that are an FSDP unit of their own.

    Selective checkpoints find neither the gather of one that is freed, nor in a pipeline what its hooks run.
    """
    lost = config["recompute"] == "sac" and (config["reshard"] or config["pp"] > 1)
    config["ep_fsdp"] = config["style"] == "moe" and config["dp_kind"] == "fsdp" and not lost and chance.random() < 0.3


def _splits(config: Config) -> bool:
    """Whether backwards run as two halves. Their first does not find the weights of units that the forward frees."""
    return config["pp_schedule"] in ("izb", "zbv") or "I" in "".join(config["orders"])


def completed(config: Config) -> Config:
    """A configuration with its label and what it is in stagedb's words."""
    card: Config = {
        word: config[word] for word in ("tied", "qkv_bias", "qk_norm", "shared_ffn", "dense_layers") if config[word]
    }
    if config["all_bias"]:
        card["linear_bias"] = True
    plan: Config = {}
    for word in ("lora", "frozen"):
        if config[word]:
            plan[word] = config[word]
    if config["lora"]:
        plan["lora_rank"] = config["lora_rank"]
    if config["loss_chunks"] > 1:
        plan["loss_chunks"] = config["loss_chunks"]
    if config["every"] > 1:
        plan["recompute_every"] = config["every"]
    chunks = 2 if config["pp_schedule"] == "zbv" else config["virtual"]
    if config["stage_layers"]:
        plan["layers_per_stage"] = config["stage_layers"] if chunks == 1 else None
        if chunks > 1:
            plan["layers_per_chunk"] = config["stage_layers"]
    if config["pp_schedule"] in ("interleaved", "bfs"):
        plan["virtual_stages"] = config["virtual"]
    if config["pp_schedule"] == "bfs":
        plan["schedule"] = "breadth-first"
    if config["pp_schedule"] in ("izb", "zbv", "orders"):
        plan["schedule"] = "orders"
    if config["pp_schedule"] == "zbv":
        plan["chunk_placement"] = "v"
    if config["placement"] and config["virtual"] > 1:
        plan["chunk_placement"] = ",".join(map(str, config["placement"]))
    if config["reduce_bf16"]:
        plan["reduce_dtype"] = "bf16"
    if config["pp"] == 1 and config["microbatches"] > 1 and config["dp_kind"] != "none":
        plan["grad_sync"] = config["accumulate"] == "every"
    if config["cp_join"]:
        plan["cp_grad_sync"] = True
    return config | {"label": label(config), "extension": {"card": card, "plan": plan}}


def label(config: Config) -> str:
    """A name that shows what is special in a configuration."""
    words = [
        f"{name}={config[name]}"
        for name, usual in DEFAULTS.items()
        if name not in _SIZES and config[name] != usual and config[name] not in (False, [], None)
    ]
    return f"{config['model']}/{config['style']}/{','.join(words) or 'single'}/rank{config['rank']}"


_SIZES = (
    *("model", "style", "hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "topk"),
    *("batch", "seq", "rank", "note", "orders", "optimizer", "expert_ffn", "shared_ffn"),
)
