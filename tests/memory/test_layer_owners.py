"""Which rank updates which weights where each updates whole ones of its own (`dist-muon`), as Megatron-Core has it.

`layer_owners.json` is what `scripts/recording/under_torch/layer_owners.py` recorded of Megatron-Core 0.16.1: for each
rank the parameters in its optimizer, and the sizes of the tensors that `allgather_params` passes to `all_gather`.
"""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.lowering.rank_classes import Parameters, dealt
from stagedb.memory import memory_of
from stagedb.memory.lifetimes import Category
from stagedb.memory.usage import Usage
from tests import lowered
from tests.ir.tiny import card

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "layer_owners.json").read_text())
CASES = [name for name in RECORDED if name != "version"]

WORD = {
    "embedding.word_embeddings.weight": "embedding.word.weight",
    "embedding.position_embeddings.weight": "embedding.position.weight",
    "decoder.final_layernorm.weight": "head.norm.weight",
    "output_layer.weight": "head.out.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "self_attention.linear_qkv.weight": "attn.wqkv.weight",
    "self_attention.linear_proj.weight": "attn.wo.weight",
    "self_attention.q_layernorm.weight": "attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "attn.k_norm.weight",
    "pre_mlp_layernorm.weight": "ffn_norm.weight",
    "mlp.linear_fc1.weight": "ffn.w13.weight",
    "mlp.linear_fc2.weight": "ffn.w2.weight",
    "mlp.router.weight": "ffn.router.weight",
    "mlp.experts.linear_fc1.weight": "ffn.experts.w13.weight",
    "mlp.experts.linear_fc2.weight": "ffn.experts.w2.weight",
}
"""The weights of a graph by the names that Megatron-Core has for their parameters, without layers and experts."""

FROZEN = {"embedding": "embedding", "self_attention": "attn"}

Weight = tuple[int, str]
"""Layer of the stage (-1 outside layers) and weight."""


def words_of(name: str) -> dict[str, Any]:
    """The plan of a configuration."""
    given = RECORDED[name]["words"]
    degrees = {axis: given.get(axis, 1) for axis in ("tp", "pp", "cp", "ep")}
    words = {**degrees, "dp": given["world"] // (degrees["tp"] * degrees["pp"] * degrees["cp"]), "seq_len": 8}
    words |= {"cp_kind": "allgather-kv"} if degrees["cp"] > 1 else {}
    words |= {"virtual_stages": given["vp"], "global_batch_size": 2 * words["dp"]} if "vp" in given else {}
    if given.get("experts") and degrees["tp"] > given.get("etp", 1):
        words |= {"sp": True, "expert_tp": False}
    if "frozen" in given:
        words["frozen"] = tuple(FROZEN[part] for part in given["frozen"])
    return {**words, "recipe": "megatron", "optimizer": "dist-muon"}


def program_of(name: str) -> Program:
    given = RECORDED[name]["words"]
    styles = {"experts": "moe", "qk_norm": "qwen3", "gpt": "gpt"}
    style = next((style for word, style in styles.items() if given.get(word)), "llama")
    model = card(style, layers=4, tied=given.get("tied", False))
    sizes: dict[str, Any] = {word: given[word] for word in ("ffn", "vocab") if word in given}
    return lowered.program(dataclasses.replace(model, **sizes), **words_of(name))


def recorded_numbers(row: Mapping[str, Any], muon: bool, gpt: bool = False) -> Counter[Weight]:
    """The numbers of each weight that a rank's optimizer had: those of Muon, or of AdamW."""
    found: Counter[Weight] = Counter()
    for named, numel, of_muon in row["updates"]:
        chunk, _, name = named.partition("/")
        layer, _, word = re.sub(r"^decoder\.layers\.(\d+)\.", r"\1/", name).rpartition("/")
        word = re.sub(r"local_experts\.\d+\.", "", word)
        word = WORD[f"{word.rpartition('.')[0]}.weight"].replace("w13", "w1" if gpt else "w13").rpartition(".")[0]
        word += "." + name.rpartition(".")[2]
        if of_muon == muon:
            # Layers of a stage are counted on from chunk to chunk; each chunk of two has one here.
            found[int(layer or -1) + (int(chunk) if layer else 0), f"layer.{word}" if layer else word] += numel
    return found


def counted_numbers(usage: Usage, word: str) -> Counter[Weight]:
    """The numbers of each weight of which a rank has a state of this name."""
    found: Counter[Weight] = Counter()
    for state in usage.held.states:
        weight, _, own = state.name.rpartition(".")
        if state.category in (Category.OPTIMIZER, Category.MASTER) and own == word:
            found[-1 if state.layer is None else state.layer, weight.replace("first_layer.", "layer.")] += (
                state.bytes // 4
            )
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_rank_has_the_states_of_the_weights_that_it_has_in_megatron(name: str) -> None:
    program = program_of(name)
    of_class = {each.rank_class.number: each.usage for each in memory_of(program)}
    for rank, row in enumerate(RECORDED[name]["ranks"]):
        usage = of_class[program.workload.class_of(rank).number]
        gpt = RECORDED[name]["words"].get("gpt", False)
        muon, adamw = (recorded_numbers(row, each, gpt) for each in (True, False))
        assert counted_numbers(usage, "momentum_buffer") == muon
        assert counted_numbers(usage, "exp_avg") == counted_numbers(usage, "exp_avg_sq") == adamw
        assert counted_numbers(usage, "master") == muon + adamw


def in_model(layer: int, weight: str) -> str:
    """The name of a weight with the number of its layer."""
    return weight if layer < 0 else f"layer.{layer}.{weight.removeprefix('layer.')}"


@pytest.mark.parametrize("name", CASES)
def test_each_rank_runs_the_operators_of_its_own_weights(name: str) -> None:
    """A matrix of m rows and n columns costs 5 (4m²n + 2m³); queries, keys and values are three."""
    program = program_of(name)
    tp = RECORDED[name]["words"].get("tp", 1)
    keys = (16 if RECORDED[name]["words"].get("gpt") else 8) // tp
    rows = {"attn.wqkv": [16 // tp, keys, keys], "ffn.router": [4], "ffn.w2": [16], "attn.wo": [16], "position": [8]}
    for rank, row in enumerate(RECORDED[name]["ranks"]):
        ops = program.workload.class_of(rank).ops
        own = recorded_numbers(row, True, RECORDED[name]["words"].get("gpt", False))
        names = (name.replace("first_layer.", "layer.") for name in ops.name)
        places = zip(names, ops.kind, ops.flops.tolist(), ops.bytes.tolist(), strict=True)
        found = {name: (kind, flops, size) for name, kind, flops, size in places}
        wanted = {in_model(*each) for each in own}
        for word in ("momentum", "orthogonalisation"):
            assert {name for name, (kind, *_) in found.items() if kind == word} == {f"{each}.{word}" for each in wanted}
        for (layer, weight), numbers in own.items():
            op = in_model(layer, weight)
            assert found[f"{op}.momentum"][2] == 2 * 8 * numbers  # gradient and average, read; matrix and average
            assert f"{op}.optimizer" in found
            known = next((each for part, each in rows.items() if part in weight), None)
            if known is not None:
                columns = numbers // sum(known)
                least = [sorted((each, columns)) for each in known]
                assert found[f"{op}.orthogonalisation"][1] == sum(5 * (4 * m * m * n + 2 * m**3) for m, n in least)


@pytest.mark.parametrize("name", CASES)
def test_updated_weights_are_gathered_in_the_parts_that_megatron_gathers(name: str) -> None:
    program = program_of(name)
    for rank, row in enumerate(RECORDED[name]["ranks"]):
        ops = program.workload.class_of(rank).ops
        rows = [at for at, op in enumerate(ops.name) if op.startswith("bucket.parameters.update")]
        rows.sort(key=lambda at: int(ops.order[at]))
        assert len(rows) == len(row["gathers"])
        for at, parts in zip(rows, row["gathers"], strict=True):
            group = next(
                each
                for each, axis in zip(
                    np.split(program.workload.groups.ranks, np.cumsum(program.workload.groups.sizes)),
                    program.workload.groups.axis,
                    strict=False,
                )
                if axis == ops.axis[at] and rank in each
            ).tolist()
            assert len(group) == len(parts)
            assert int(ops.operand[at]) == 2 * parts[group.index(rank)]
            assert int(ops.result[at]) == 2 * sum(parts)
            assert int(ops.size[at]) == -(-2 * sum(parts) // len(parts))
        places = [
            (int(ops.chunk[at]), int(ops.order[at])) for at, phase in enumerate(ops.phase) if phase == "optimizer"
        ]
        last = sorted((int(ops.chunk[at]), int(ops.order[at])) for at in rows)
        assert sorted(places)[len(places) - len(last) :] == last  # all weights are updated before


Array = np.ndarray[Any, np.dtype[np.float64]]


def orthogonal(matrix: Array) -> Array:
    """Five Newton-Schulz steps (Jordan et al. 2024)."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = matrix / (np.linalg.norm(matrix) + 1e-7)
    x = x.T if len(matrix) > len(matrix.T) else x
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if len(matrix) > len(matrix.T) else x


class Updated:
    """The weights of a rank after the operators of its class have run once, in numpy: each by its own matrix or vector.

    A gather writes what the others of its group have updated.
    """

    def __init__(self, program: Program, weights: Mapping[Weight, Array], gradients: Mapping[Weight, Array]) -> None:
        self.program, self.weights, self.gradients = program, weights, gradients
        self.usages = {each.rank_class.number: each.usage for each in memory_of(program)}

    def by(self, rank: int) -> dict[Weight, Array]:
        """What a rank updates: the weights that operators of its class name, and those of which it has moments."""
        columns, found = self.program.workload.class_of(rank), dict[Weight, Array]()
        made: dict[str, Array] = {}
        for at in np.argsort(columns.ops.order).tolist():
            weight, _, word = columns.ops.name[at].rpartition(".")
            layer, name = int(columns.origins.layer[at]), columns.origins.sym[at].rpartition(".")[0]
            if word == "momentum":
                made[weight] = 1.95 * self.gradients[layer, name]
            elif word == "orthogonalisation":
                made[weight] = orthogonal(made[weight])
            elif word == "optimizer" and weight in made:
                found[layer, name] = self.weights[layer, name] - 0.1 * made[weight]
            elif word == "optimizer":
                for key in counted_numbers(self.usages[columns.number], "exp_avg"):
                    if key[0] == layer and key[1].startswith(f"{name}."):
                        found[key] = self.weights[key] - 0.1 * np.sign(self.gradients[key])
        return found

    def gathered(self) -> dict[Weight, Array]:
        """What each rank has after the gather. Fails if two ranks have updated one weight."""
        parts = [self.by(rank) for rank in range(len(self.program.workload.ranks))]
        whole = {key: value for part in parts for key, value in part.items()}
        assert len(whole) == sum(map(len, parts))
        return whole


@pytest.mark.parametrize("ranks", [2, 3, 5, 40])
def test_weights_that_ranks_update_apart_are_those_that_one_rank_updates(ranks: int) -> None:
    words = {"recipe": "megatron", "seq_len": 8, "muon_tp": "usual"}
    alone, apart = (
        lowered.program(card("llama", layers=3), **words, dp=dp, optimizer=optimizer)
        for dp, optimizer in ((1, "muon"), (ranks, "dist-muon"))
    )
    (usage,) = (each.usage for each in memory_of(alone))
    draw = np.random.default_rng(0)
    shapes = {
        each.name: [alone.plan.evaluate(size, alone.plan.env(alone.graph.sizes)) for size in each.local]
        for each in alone.graph.tensors
    }
    weights, gradients = (
        {
            key: draw.normal(size=(shapes[key[1]][0], -(-numbers // shapes[key[1]][0])))
            for key, numbers in counted_numbers(usage, "master").items()
        }
        for _ in range(2)
    )
    whole = Updated(alone, weights, gradients).gathered()
    found = Updated(apart, weights, gradients).gathered()
    assert whole.keys() == found.keys() == weights.keys()
    assert all(np.array_equal(found[key], whole[key]) for key in whole)


def test_equal_parameters_are_dealt_there_and_back_in_their_order() -> None:
    """The example of `LayerWiseDistributedOptimizer.shard_params`: ten parameters of four ranks."""
    given = [Parameters((0, 0, f"p{number}"), number, 1, 0) for number in range(10)]
    assert [sorted(name for *_, name in own) for own in dealt(given, 4)] == [
        ["p0", "p7", "p8"],
        ["p1", "p6", "p9"],
        ["p2", "p5"],
        ["p3", "p4"],
    ]


@pytest.mark.parametrize("name", ["dp", "ep", "ep over tp", "more ranks than weights"])
def test_a_rank_holds_flat_weights_while_they_are_gathered(name: str) -> None:
    """Its own in one tensor (a copy, unless it is one weight), those of each rank, and again if all are of one size."""
    program = program_of(name)
    usages = {each.rank_class.number: each.usage for each in memory_of(program)}
    for rank, row in enumerate(RECORDED[name]["ranks"]):
        usage = usages[program.workload.class_of(rank).number]
        lives = [life for life in usage.held.lives if life.name.endswith(".flat")]
        group = program.workload.class_of(rank).ops.result
        assert len(lives) == len(row["gathers"]) and group.max() > 0
        for life, parts in zip(lives, row["gathers"], strict=True):
            of_experts = "experts" in life.name
            mine = [
                numel for each, numel, _ in row["updates"] if ("local_experts" in each) == of_experts or name == "dp"
            ]
            own = 0 if len(mine) < 2 else sum(mine)
            assert life.bytes == 2 * (own + sum(parts) * (2 if len({*parts}) == 1 else 1))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a framework without it": ({"recipe": "torch"}, "recipe megatron"),
    "sharded states": ({"zero": 1, "dp": 2}, "zero 0"),
    "a scaled loss": ({"dtype": "fp16"}, "dtype bf16"),
    "the host": ({"zero": 0, "offload": "optimizer"}, "adamw"),
    "gradients that ranks of cp keep": ({"cp": 2, "cp_grad_sync": False}, "optimizer muon"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_ranks_cannot_own_names_the_way(case: str) -> None:
    words, way = REFUSED[case]
    with pytest.raises(UsageError, match=way):
        lowered.program(
            card("llama", layers=4), **{"recipe": "megatron", "optimizer": "dist-muon", "seq_len": 8, **words}
        )


def test_experts_over_ranks_of_tp_that_own_others_are_refused() -> None:
    words = {"recipe": "megatron", "optimizer": "dist-muon", "seq_len": 8, "sp": True, "expert_tp": False}
    with pytest.raises(UsageError, match="multiple of tp"):
        lowered.program(card("moe"), **words, tp=4, dp=2, ep=2)
    assert lowered.program(card("moe"), **words, tp=2, dp=4, ep=4).workload.classes


def test_muon_with_sharded_states_names_the_optimizer_that_deals_weights() -> None:
    with pytest.raises(UsageError, match="dist-muon"):
        lowered.program(card("llama"), recipe="megatron", optimizer="muon", zero=1, dp=2, seq_len=8)
