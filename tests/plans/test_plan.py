"""Plans: words in and out, and refusals that name what would be valid."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.models.kinds import PARTS
from stagedb.plans.aspects import LAYOUT_WORDS
from stagedb.plans.aspects.precision import FORMATS
from stagedb.plans.dtypes import Dtypes
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.plan import Plan, plan_for_ranks
from stagedb.plans.sharding_checks import other_reductions
from stagedb.plans.written_words import read_plan_file

LLAMA3_8B = {"L": 32, "H": 4096, "A": 32, "KV": 8, "D": 128, "F": 14336, "V": 128256}


@st.composite
def formats(draw: st.DrawFn) -> Dtypes:
    """Formats that go together in every recipe."""
    act = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    param = draw(st.sampled_from(["bf16", "fp32"])) if act == "bf16" else "fp32"
    master = draw(st.sampled_from(["none", "fp32"])) if param != "fp32" else "none"
    logits = draw(st.sampled_from(["fp32", act]))
    grad = draw(st.sampled_from([param, act]))
    return Dtypes(
        act, param, grad, draw(st.sampled_from(FORMATS)), draw(st.sampled_from(["bf16", "fp32"])), master, logits
    )


plans = st.builds(
    lambda options, dp, mbs, count, **rest: Plan(
        options=options, dp=dp, micro_batch_size=mbs, global_batch_size=count and count * dp * mbs, **rest
    ),
    options=st.builds(GraphOptions, recipe=st.sampled_from(["torch", "megatron"]), sp=st.booleans()),
    dp=st.integers(1, 9),
    mbs=st.integers(1, 4),
    count=st.none() | st.integers(1, 9),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.integers(1, 8),
    seq_len=st.integers(1, 9999),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    dtypes=st.none() | formats(),
    rank_order=st.permutations(["tp", "cp", "dp", "pp"]).map(tuple),
)


def refusal(**words: object) -> str:
    """What a plan with these words is refused with, on Llama 3 8B."""
    with pytest.raises(UsageError) as caught:
        Plan.from_mapping(words).check(LLAMA3_8B)
    assert caught.value.exit_status == 2
    return str(caught.value)


@given(plans)
def test_words_and_back(plan: Plan) -> None:
    assert Plan.from_mapping(plan.to_dict()) == plan
    assert Plan.from_mapping(json.loads(plan.to_json())) == plan
    assert Plan.from_mapping(json.loads(plan.to_json())).digest == plan.digest


@given(plans)
def test_ranks_set_dp(plan: Plan) -> None:
    words = {word: value for word, value in plan.to_dict().items() if word != "dp"}
    assert plan_for_ranks(plan.world, words) == plan
    assert plan.with_ranks(plan.world) == plan


def test_digest_is_of_the_meaning() -> None:
    assert Plan(dp=4).digest == Plan(dp=4, global_batch_size=4).digest
    assert Plan(dp=4).digest != Plan(dp=4, global_batch_size=8).digest
    assert len({Plan().digest, Plan(tp=2).digest, Plan(pp=2).digest, Plan(seq_len=1).digest}) == 4


def test_batches() -> None:
    plan = Plan(dp=4, micro_batch_size=2)
    assert (plan.batch, plan.microbatches) == (8, 1)
    assert dataclasses.replace(plan, global_batch_size=24).microbatches == 3


def test_recipes_have_their_formats() -> None:
    assert Plan().dtypes == Dtypes()
    megatron = Plan(options=GraphOptions(recipe="megatron")).dtypes
    assert megatron == Dtypes(act="bf16", param="bf16", grad="fp32", reduce="fp32", opt="fp32", master="fp32")
    assert Plan.from_mapping({"dtype": "fp32"}).dtypes == Dtypes("fp32", "fp32", "fp32", "fp32", "fp32")
    mixed = Plan.from_mapping({"recipe": "megatron", "dtype": "fp16", "reduce-dtype": "bf16"}).dtypes
    assert mixed == Dtypes("fp16", "fp16", "fp32", "bf16", "fp32", "fp32")
    assert Plan.from_mapping({"recipe": "megatron", "param-dtype": "fp32"}).dtypes.master == "none"
    assert Plan.from_mapping({"dtype": "fp16"}).dtypes == Dtypes("fp16", "fp32", "fp32", "fp32", "fp32")
    assert Plan.from_mapping({"master-dtype": "fp32", "logits-dtype": "bf16"}).dtypes == Dtypes(
        master="fp32", logits="bf16"
    )


def test_environment() -> None:
    plan = Plan(dp=4, tp=2, pp=2, micro_batch_size=3, seq_len=128, options=GraphOptions(recipe="megatron"))
    assert plan.env({"L": 2, "H": 64}) == {
        "L": 2,
        "H": 64,
        "B": 12,
        "S": 128,
        "SK": 128,
        "last": 1,
        "mean_batch": 3,
        "mean_queries": 128,
        "mean_keys": 128,
        "dp": 4,
        "tp": 2,
        "pp": 2,
        "cp": 1,
        "ep": 1,
        "edp": 4,
        "capacity": 1,
        "per": 1,
        "hsdp": 1,
        "lora": 16,
        "e_act": 2,
        "e_param": 2,
        "e_grad": 4,
        "e_reduce": 4,
        "e_opt": 4,
        "e_logits": 4,
        "e_cache": 2,
        "copies": 2,
        "runs": 2,
        "cpr": 1,
        "cpa": 1,
        "epn": 1,
        "epr": 1,
        "cp_rank": 1,
        "step": 1,
    }


def test_every_kth_layer_is_counted_from_one() -> None:
    plan = Plan(options=GraphOptions(recompute="full"), recompute_every=3)
    assert [layer for layer in range(8) if plan.recomputes(layer, layer)] == [2, 5]
    assert Plan.from_mapping(plan.to_dict()) == plan


def test_the_first_layers_are_those_of_each_chunk() -> None:
    plan = Plan(options=GraphOptions(recompute="full"), recompute_first=2)
    two_chunks = [(layer, layer % 4) for layer in range(8)]
    assert [layer for layer, of_chunk in two_chunks if plan.recomputes(layer, of_chunk)] == [0, 1, 4, 5]
    assert Plan.from_mapping(plan.to_dict()) == plan
    assert plan.digest != Plan(options=GraphOptions(recompute="full")).digest


def test_operators_are_a_set() -> None:
    words = {"recompute": "operators", "recompute-operators": "ffn.gate, attn,ffn.gate"}
    plan = Plan.from_mapping(words)
    assert plan.options.recompute_operators == ("attn", "ffn.gate")
    assert Plan.from_mapping(json.loads(plan.to_json())) == plan


def test_layers_are_dealt_evenly_and_the_rest_goes_first() -> None:
    assert Plan(pp=4).stage_layers(32) == (8, 8, 8, 8)
    assert Plan(pp=4).stage_layers(30) == (8, 8, 7, 7)
    assert Plan(pp=2, layers_per_stage=(3, 1)).stage_layers(4) == (3, 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.yaml", "tp: 2\nmicro-batch-size: 4\nsp: true\nlayers_per_stage: [20, 12]\npp: 2\n"),
        ("plan.toml", "tp = 2\nmicro_batch_size = 4\nsp = true\nlayers_per_stage = [20, 12]\npp = 2\n"),
        ("plan.json", '{"tp": 2, "micro-batch-size": 4, "sp": true, "layers-per-stage": "20,12", "pp": 2}'),
    ],
)
def test_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    plan = Plan.from_mapping(read_plan_file(path))
    assert plan == Plan(tp=2, micro_batch_size=4, pp=2, layers_per_stage=(20, 12), options=GraphOptions(sp=True))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("plan.yaml", "tpp: 2", "unknown word 'tpp' in the plan: did you mean tp or pp"),
        ("plan.yaml", "tp: [", "line 2: not YAML"),
        ("plan.yaml", "- 1", "not a mapping of words to values (`word: value`)"),
        ("plan.yaml", "!!python/object/apply:os.system ['true']", "is not read: leave it out"),
        ("plan.txt", "tp: 2", "must end in .yaml, .yml, .json or .toml"),
        ("plan.toml", "tp = true", "tp must be a whole number, not True"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str, expected: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match="plan") as caught:
        read_plan_file(path)
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_plan_file(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            {"tp": 3},
            "tp 3 does not divide the 32 attention heads: the nearest for this model is --tp 2 or --tp 4",
        ),
        ({"tp": 64}, "tp 64 does not divide the 32 attention heads: the nearest for this model is --tp 32"),
        ({"sp": True, "tp": 4, "seq_len": 2046}, "take --seq-len 2044 or --seq-len 2048, or --no-sp"),
        ({"pp": 33}, "pp 33 is more than the model's 32 layers: --pp takes at most 32"),
        (
            {"ranks": 30, "tp": 2, "pp": 4},
            "30 ranks are not divisible by tp 2 x pp 4 = 8: the nearest is --ranks 24 or",
        ),
        ({"ranks": 3, "tp": 4}, "3 ranks are not divisible by tp 4 = 4: the nearest is --ranks 4"),
        ({"ranks": 0}, "the nearest is --ranks 1"),
        ({"ranks": 8, "tp": 2, "dp": 2}, "need dp 4, but the plan has dp 2: take --ranks 4, or leave --dp out"),
        (
            {"dp": 4, "micro_batch_size": 2, "global_batch_size": 20},
            "20 is not divisible by micro-batch 2 x dp 4 = 8: the nearest is --global-batch-size 16 or "
            "--global-batch-size 24",
        ),
        ({"pp": 2, "layers_per_stage": [16]}, "has 1 stages, --pp 2: they must agree"),
        ({"pp": 2, "layers_per_stage": [32, 0]}, "has a stage without a layer"),
        ({"pp": 3, "layers_per_stage": [8, 8, 8]}, "has 24 layers, the model has 32; an even split is 11,11,10"),
        ({"pp": 2, "layers_per_stage": "a,b"}, "layers_per_stage must be a list of whole numbers, not ['a', 'b']"),
        (
            {"cp_kind": "ulysses"},
            "no ranks that share a sequence: take --cp 2, or leave --cp-kind out",
        ),
        (
            {"cp": 2, "cp_kind": "spiral"},
            "unknown kind of context parallelism 'spiral': --cp-kind is none",
        ),
        (
            {"cp": 4, "cp_kind": "ulysses", "seq_len": 1026},
            "1026 tokens is not divisible by cp 4: take --seq-len 1024 or --seq-len 1028",
        ),
        (
            {"cp": 4, "seq_len": 1028},
            "1028 tokens is not divisible by cp 4 x 2 chunks: take --seq-len 1024 or --seq-len 1032",
        ),
        ({"cp": 2, "attention": "math"}, "--attention math needs --cp-kind allgather-kv"),
        ({"cp": 2, "recipe": "megatron", "cp_kind": "ring-alltoall"}, "--recipe megatron takes --cp-kind ring-p2p"),
        ({"cp": 2, "recipe": "megatron", "attention": "math"}, "ring-p2p is made of fused kernels"),
        ({"cp": 4, "cp_kind": "ring-p2p", "seq_len": 1028}, "1028 tokens is not divisible by cp 4 x 2 chunks"),
        (
            {"cp": 4, "cp_kind": "ring-p2p", "cp_chunks": "contiguous", "seq_len": 1026},
            "1026 tokens is not divisible by cp 4: take --seq-len 1024 or --seq-len 1028",
        ),
        ({"cp": 2, "cp_chunks": "striped"}, "unknown chunks 'striped': --cp-chunks is balanced or contiguous"),
        ({"cp_chunks": "balanced"}, "with cp 1 a sequence has one part: take --cp 2, or leave --cp-chunks out"),
        (
            {"cp": 2, "cp_kind": "ulysses", "cp_chunks": "balanced"},
            "with ulysses each rank has the whole sequence of its heads",
        ),
        (
            {"cp": 2, "cp_kind": "allgather-kv", "cp_chunks": "balanced"},
            "take --cp-chunks contiguous, or --recipe megatron, or leave --cp-chunks out",
        ),
        ({"ulysses": 2}, "of that number of ranks: take --cp-kind ulysses-ring --cp 4, or leave --ulysses out"),
        (
            {"cp": 4, "cp_kind": "ring-p2p", "ulysses": 2},
            "--ulysses 2 is the number of ranks that exchange heads inside a ring",
        ),
        ({"cp": 4, "cp_kind": "ulysses-ring"}, "only a ring: take --ulysses 2, or --cp-kind ring-p2p"),
        (
            {"cp": 4, "ulysses": 4},
            "--ulysses 4 of cp 4 is no ring: take --ulysses 2, or --cp-kind ulysses without",
        ),
        ({"cp": 12, "ulysses": 5, "seq_len": 1536}, "does not divide cp 12: the nearest is --ulysses 4 or --ulysses 6"),
        ({"cp": 5, "ulysses": 2, "seq_len": 1280}, "--ulysses 2 does not divide cp 5: take --cp-kind ring-p2p"),
        (
            {"cp": 12, "ulysses": 6, "seq_len": 1536},
            "over tp 1 x ulysses 6 = 6, which does not divide both: the nearest is --ulysses 4, or --cp-kind ring-p2p",
        ),
        (
            {"cp": 4, "ulysses": 2, "tp": 8},
            "over tp 8 x ulysses 2 = 16, which does not divide both: take --cp-kind ring-p2p",
        ),
        ({"cp": 4, "ulysses": 2, "attention": "math"}, "--attention math needs --cp-kind allgather-kv"),
        (
            {"cp": 4, "cp_kind": "ulysses", "tp": 2, "sp": True, "seq_len": 1028},
            "not divisible by cp 4 x tp 2, over which sp splits it: take --seq-len 1024 or --seq-len 1032, or --no-sp",
        ),
        (
            {"cp": 3, "cp_kind": "ulysses", "seq_len": 1536},
            "which does not divide both: the nearest is --cp 2 or --cp 4",
        ),
        ({"cp": 2, "tp": 32, "cp_kind": "ulysses"}, "which does not divide both: take --cp-kind allgather-kv"),
        (
            {"cp": 2, "tp": 8, "cp_kind": "ulysses", "recipe": "megatron"},
            "which does not divide both: take --cp-kind allgather-kv",
        ),
        ({"cp": 2, "zero": 3, "dp": 2, "cp_grad_sync": False}, "--no-cp-grad-sync needs --zero 0"),
        (
            {"cp": 2, "dp": 2, "rank_order": "cp,tp,dp,pp"},
            "separates cp from dp, but gradients are reduced over both together: take --rank-order tp,cp,dp,pp",
        ),
        (
            {"cp": 2, "dp": 4, "hsdp": 2, "zero": 3, "rank_order": "tp,dp,cp,pp"},
            "puts cp outside of dp, but gradients are reduced over both together",
        ),
        ({"ep": 2}, "ep 2 does not divide dp x cp = 1, the ranks with experts: the nearest is --ep 1"),
        ({"dp": 2, "zero": 4}, "unknown ZeRO stage 4: --zero is 0, 1, 2 or 3"),
        ({"zero": 3}, "zero 3 with dp 1 has nothing to shard: take --dp 2, or leave --zero out"),
        ({"dp": 8, "zero": 3, "hsdp": 3}, "hsdp 3 does not divide dp 8 into equal copies: the nearest is --hsdp 2 or "),
        (
            {"dp": 4, "zero": 3, "hsdp": 4},
            "so that ranks share nothing: take --hsdp 2, or --zero 0 without --hsdp",
        ),
        ({"dp": 4, "cp": 2, "zero": 3, "hsdp": 8}, "so that ranks share nothing: take --hsdp 4, or --zero 0"),
        ({"dp": 8, "hsdp": 2}, "zero 0 shards nothing: take --zero 3, or leave --hsdp out"),
        ({"dp": 8, "hsdp": 2, "zero": 1}, "zero 1 has no such copies in the torch recipe: take --zero 3"),
        ({"dp": 8, "zero": 2, "recipe": "megatron"}, "--zero 2 needs --recipe torch"),
        ({"dp": 8, "zero": 2, "reshard": True}, "--reshard needs --zero 3, not 2"),
        ({"dp": 8, "zero": 1, "reshard": False}, "--no-reshard needs --zero 3, not 1"),
        ({"dp": 8, "zero": 2, "reshard_to": 2}, "zero 2 frees no parameters after the forward: --reshard-to needs"),
        ({"dp": 8, "zero": 3, "reshard": False, "reshard_to": 2}, "--no-reshard frees no parameters"),
        (
            {"dp": 8, "zero": 3, "reshard_to": 3},
            "the 8 ranks that shard parameters into several equal groups: the nearest is --reshard-to 2",
        ),
        ({"dp": 8, "zero": 3, "reshard_to": 8}, "the nearest is --reshard-to 4, or leave --reshard-to out"),
        ({"dp": 8, "tp": 2, "zero": 3, "reshard_to": 2}, "to fewer ranks: take --tp 1, or leave --reshard-to out"),
        ({"dp": 8, "pp": 2, "zero": 3, "reshard_to": 2}, "does not suit pp 2: take --pp 1, or leave --reshard-to out"),
        ({"dp": 8, "ep": 2, "zero": 3, "reshard_to": 2}, "reshard_to 2 has one group for all: take --ep 1, or leave"),
        (
            {"dp": 8, "zero": 3, "reshard_to": 2, "recipe": "megatron"},
            "exist only in PyTorch: --reshard-to needs --recipe torch, or leave it out",
        ),
        ({"dp": 8, "zero": 1, "expert_unit": True}, "zero 1 has no units: --expert-unit needs --zero 2 or 3"),
        (
            {"dp": 8, "zero": 3, "expert_unit": True, "recipe": "megatron"},
            "units of experts exist only in PyTorch: --expert-unit needs --recipe torch, or leave it out",
        ),
        (
            {"dp": 8, "zero": 3, "expert_unit": True, "recompute": "pointwise"},
            "--expert-unit needs --zero 2, --no-reshard or --recompute full",
        ),
        (
            {"dp": 8, "pp": 2, "zero": 2, "expert_unit": True, "recompute": "pointwise"},
            "does not suit it: take --recompute full, or leave --expert-unit out",
        ),
        (
            {"dp": 8, "ep": 8, "zero": 3, "expert_unit": True},
            "each of the experts is on one rank alone, so that a unit of experts gathers and reduces nothing: the "
            "nearest is --ep 4, or leave --expert-unit out",
        ),
        (
            {"dp": 8, "ep": 4, "hsdp": 2, "zero": 3, "expert_unit": True},
            "on one rank of each of 2 copies alone, so that a unit of experts gathers and reduces nothing: the nearest "
            "is --ep 2, or leave --expert-unit out",
        ),
        ({"dp": 8, "zero": 1, "grad_sync": True}, "with zero 1 gradients are reduced once a step"),
        (
            {"tp": 2, "pp": 2, "scatter_gather": True},
            "scattered messages exist only in Megatron: --scatter-gather needs --recipe megatron, or leave it out",
        ),
        (
            {"tp": 2, "pp": 2, "sp": True, "recipe": "megatron", "scatter_gather": True},
            "with sp each rank of tp only has its part of the tensor for the next stage: take --no-sp, or leave",
        ),
        (
            {
                "tp": 2,
                "pp": 2,
                "recipe": "megatron",
                "scatter_gather": True,
                "strategy": '{"regions":{"between":{"batch":["dp"],"seq":["cp","tp"]}}}',
            },
            "with this strategy each rank of tp only has its part of the tensor for the next stage",
        ),
        (
            {"tp": 2, "recipe": "megatron", "scatter_gather": True},
            "with pp 1 no message goes between stages: take --pp 2, or leave --scatter-gather out",
        ),
        (
            {"pp": 2, "recipe": "megatron", "scatter_gather": True},
            "with tp 1 one rank sends the whole message: take --tp 2, or leave",
        ),
        ({"dp": 8, "zero": 3, "hsdp": 0}, "hsdp is 0: --hsdp takes 1 or more"),
        ({"tp": 0}, "tp is 0: --tp takes 1 or more"),
        ({"tp": 0, "pp": 2, "ranks": 8}, "tp is 0: --tp takes 1 or more"),
        ({"tp": -2, "pp": -2, "ranks": 8}, "tp is -2: --tp takes 1 or more"),
        ({"dp": 0, "ranks": 8}, "dp is 0: --dp takes 1 or more"),
        ({"tp": "2"}, "tp must be a whole number, not '2' (--tp)"),
        ({"sp": 1}, "sp must be true or false, not 1 (--sp)"),
        ({"schedule": "2f2b"}, "unknown schedule '2f2b': --schedule is one of gpipe, 1f1b"),
        ({"rank_order": "tp,dp"}, "--rank-order, innermost first"),
        ({"dtype": "int4"}, "unknown number format 'int4': --dtype is one of bf16, fp16, fp32"),
        ({"opt_dtype": "int8"}, "--opt-dtype is one of bf16, fp32"),
        *(
            (
                {word: "fp8"},
                f"fp8 is only a format of matmul operands, {what} have too little room in it: --{option} is",
            )
            for word, option, what in (
                ("dtype", "dtype", "activations"),
                ("param_dtype", "param-dtype", "parameters"),
                ("grad_dtype", "grad-dtype", "gradients"),
                ("reduce_dtype", "reduce-dtype", "gradients on the wire"),
                ("opt_dtype", "opt-dtype", "optimizer moments"),
                ("logits_dtype", "logits-dtype", "logits"),
            )
        ),
        ({"master_dtype": "fp8"}, "the master copy has too little room in it: --master-dtype is one of none, fp32"),
        ({"opt_dtype": "fp16"}, "both are zero in fp16: take --opt-dtype fp32 or --opt-dtype bf16"),
        ({"master_dtype": "bf16"}, "and bf16 would keep none: take --master-dtype fp32, or --master-dtype none"),
        (
            {"master_dtype": "fp32", "param_dtype": "fp32"},
            "these are fp32: take --master-dtype none, or --param-dtype bf16",
        ),
        ({"dtype": "fp32", "param_dtype": "bf16"}, "take --param-dtype fp32, or --dtype bf16"),
        ({"dtype": "fp32", "logits_dtype": "bf16"}, "take --logits-dtype fp32"),
        ({"logits_dtype": "fp16"}, "no framework mixes them: take --logits-dtype bf16 or fp32, or --dtype fp16"),
        ({"recipe": "megatron", "grad_dtype": "fp16"}, "take --grad-dtype bf16 or fp32, or --dtype fp16"),
        ({"dtype": "fp16", "param_dtype": "fp16"}, "take --param-dtype fp32, or --dtype bf16"),
        ({"grad_dtype": "fp32"}, "take --grad-dtype bf16, --param-dtype fp32, or --recipe megatron"),
        ({"matmul_dtype": "fp8", "dtype": "fp32"}, "not in fp32: take --dtype bf16, or --matmul-dtype same"),
        ({"matmul_dtype": "fp8", "dtype": "fp16"}, "not in fp16: take --dtype bf16, or --matmul-dtype same"),
        ({"matmul_dtype": "bf16"}, "unknown format of matmuls 'bf16': --matmul-dtype is same (as --dtype) or fp8"),
        (
            {"recompute": "operators"},
            "--recompute operators needs the names: add --recompute-operators, such as attn_norm,ffn.gate",
        ),
        ({"recompute": "full", "recompute_operators": "attn"}, "--recompute-operators needs --recompute operators"),
        ({"recompute": "some"}, "--recompute is none, full, core, pointwise, operators or modules"),
        ({"recompute_every": 2}, "choose it with --recompute, or leave --recompute-every out"),
        ({"recompute_every": 0}, "recompute_every is 0: --recompute-every takes 1 or more"),
        ({"recompute": "full", "recompute_every": 33}, "--recompute-every takes at most 32"),
        ({"recompute": "full", "recompute_every": 9, "pp": 4}, "--recompute-every takes at most 8"),
        ({"recompute_first": 2}, "choose it with --recompute, or leave --recompute-first out"),
        ({"recompute_first": 0}, "recompute_first is 0: --recompute-first takes 1 or more"),
        ({"recompute": "full", "recompute_first": 33}, "no stage has more than 32 layers, so that none has a first 33"),
        ({"recompute": "full", "recompute_first": 9, "pp": 4}, "--recompute-first takes at most 8"),
        (
            {"recompute": "full", "recompute_first": 5, "pp": 4, "virtual_stages": 2, "global_batch_size": 8},
            "no chunk of a stage has more than 4 layers, so that none has a first 5: --recompute-first takes at most 4",
        ),
        (
            {"recompute": "full", "recompute_first": 3, "recompute_every": 2},
            "--recompute-every 2 and --recompute-first 3 choose the layers that recompute twice: leave "
            "--recompute-every out, or leave --recompute-first out",
        ),
        (
            {"recompute": "full", "recompute_first": 2, "pp": 4, "schedule": "zb-h1"},
            "the second half of a backward cannot read what the first has recomputed (recompute full)",
        ),
        ({"zero-stage": 1}, "unknown word 'zero-stage' in the plan"),
        ({"tp": 2, "t-p": 2}, "unknown word 't-p'"),
        ({"seq-len": 2, "seq_len": 2}, "the plan has the word 'seq_len' twice"),
    ],
)
def test_refusals_name_what_is_valid(words: dict[str, object], expected: str) -> None:
    assert expected in refusal(**words)


def test_key_value_heads_may_be_shared() -> None:
    Plan(tp=16).check(LLAMA3_8B)
    sizes = {**LLAMA3_8B, "A": 96, "KV": 8, "F": 96, "V": 96}
    with pytest.raises(UsageError, match=r"neither divides the 8 key/value heads .* --tp 4 or --tp 8"):
        Plan(tp=6).check(sizes)


def test_a_padded_vocabulary_need_not_divide() -> None:
    sizes = {**LLAMA3_8B, "V": 50257}
    with pytest.raises(UsageError, match="vocabulary of 50257"):
        Plan(tp=2).check(sizes)
    Plan(tp=2, options=GraphOptions(recipe="megatron")).check(sizes)


@pytest.mark.parametrize("recipe", ["torch", "megatron"])
def test_ranks_of_cp_share_a_copy(recipe: str) -> None:
    """As many copies as dp has ranks: each is of those of one sequence."""
    plan = Plan.from_mapping({"dp": 4, "cp": 2, "zero": 3, "hsdp": 4, "recipe": recipe})
    plan.check(LLAMA3_8B)
    assert plan.shards == 2


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ({"cp": 2, "cp_kind": "none"}, "take --cp-kind ring-allgather, or leave --cp out"),
        ({"cp": 2, "cp_kind": "none", "recipe": "megatron"}, "take --cp-kind ring-p2p, or leave --cp out"),
        ({"cp": 4, "cp_kind": "none", "ulysses": 2}, "take --cp-kind ulysses-ring"),
    ],
)
def test_ranks_that_share_a_sequence_need_a_way_to_do_so(words: dict[str, object], way: str) -> None:
    with pytest.raises(UsageError, match="--cp-kind none gives them no way to compute its attention") as refused:
        Plan.from_mapping({"seq_len": 64, **words})
    assert str(refused.value).endswith(way)


def test_a_plan_that_leaves_the_kind_of_context_out_gets_the_usual_one() -> None:
    plan = Plan.from_mapping({"seq_len": 64, "cp": 2})
    assert plan.options.cp_kind == "ring-allgather"
    assert Plan.from_mapping(plan.to_dict()) == plan


def test_a_world_that_nobody_can_count_is_refused() -> None:
    with pytest.raises(UsageError, match="are too many: a plan takes at most 1048576"):
        Plan.from_mapping({"ranks": 2**21})
    with pytest.raises(UsageError, match=r"111\.\.\.111.* are too many"):
        Plan.from_mapping({"ranks": int("1" * 300)})


@pytest.mark.parametrize(
    ("order", "words", "noted"),
    [
        ("F0 F1 I0 I1 W0 W1", {}, True),
        ("F0 F1 I0 W0 I1 W1", {}, False),
        ("F0 F1 I0 I1 W0 W1", {"sp": False}, False),
        ("F0 F1 I0 I1 W0 W1", {"reduce_dtype": "bf16"}, False),
    ],
)
def test_sums_that_no_first_half_widens_are_noted(order: str, words: dict[str, object], noted: bool) -> None:
    usual = {"pp": 2, "tp": 2, "dp": 2, "sp": True, "zero": 2, "global_batch_size": 4, "reduce_dtype": "fp32"}
    plan = Plan.from_mapping({**usual, "schedule": "explicit", "task_order": [order, order], **words})
    assert ("their own format" in (other_reductions(plan) or "")) == noted


def test_a_rank_of_adapters_needs_adapters_and_is_no_wider_than_the_model() -> None:
    with pytest.raises(UsageError, match=r"no layer has an adapter of rank 8: name some with --lora"):
        Plan.from_mapping({"lora_rank": 8})
    wide = Plan.from_mapping({"lora": ["all"], "lora_rank": 65})
    with pytest.raises(UsageError, match=r"wider than the hidden size 64: --lora-rank takes at most 64"):
        wide.check({"L": 2, "H": 64, "V": 128, "A": 4, "KV": 4, "D": 16, "F": 128, "S": 16})


def test_symbols_of_plans_are_none_of_models() -> None:
    """Those of models are capitals: a plan's value under one takes the place of a size, as the length S does."""
    symbols = {word.about.symbol for word in LAYOUT_WORDS.values()} - {"", "S"}
    assert all(symbol.islower() for symbol in symbols)
    assert all(symbol.isupper() for part in PARTS for symbol in part.symbols)
