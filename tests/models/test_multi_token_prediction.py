"""Layers that predict further tokens: their parameters, what is read of a config, and what ranks send for them.

`tests/models/test_model_steps.py` compares their loss and gradients with PyTorch's, `tests/semantics` partitioned runs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir.expressions import evaluate
from stagedb.ir.operators import Attention, load
from stagedb.lowering import program_of
from stagedb.models import Card, from_hugging_face, load_card
from stagedb.plans import GraphOptions, Plan
from stagedb.systems import load_system
from stagedb.timing import timed_step
from tests.ir.environments import BATCH, SEQ, environment
from tests.ir.tiny import card
from tests.models.test_deepseek_v4 import FLASH
from tests.models.test_model_steps import STEPS
from tests.symbolic_rows import communication


def test_a_layer_of_deepseek_v3_has_the_parameters_of_its_checkpoint() -> None:
    """`model.layers.61` has a layer with experts, `enorm`, `hnorm`, `eh_proj` and `shared_head.norm`."""
    model = load_card("deepseek-v3")
    with_one = replace(model, multi_token_prediction=1)
    more = with_one.count_parameters() - model.count_parameters()
    last = sum(part.parameters(model, model.kinds["layer"].settings) for part in model.kinds["layer"].parts)
    assert more == last + 5 * 7168 + 2 * 7168**2
    # 8 of its 256 experts compute a token.
    active = with_one.count_active() - model.count_active()
    assert more - active == 248 * 3 * 7168 * 2048


@pytest.mark.parametrize("name", ["DeepseekV3", "DeepseekV32", "Glm4Moe"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_config_names_how_many_there_are(name: str, count: int) -> None:
    config = {**STEPS[name]["config"], "num_nextn_predict_layers": count}
    assert from_hugging_face(config, name="read").multi_token_prediction == count


def test_mimo_has_them_and_qwen_does_not() -> None:
    config = {**STEPS["Qwen2"]["config"], "num_nextn_predict_layers": 1}
    assert from_hugging_face(config, name="read").multi_token_prediction == 0
    mimo = from_hugging_face({**config, "architectures": ["MiMoForCausalLM"], "model_type": "mimo"}, name="read")
    assert mimo.multi_token_prediction == 1 and mimo.parameters == mimo.count_parameters()


def test_layers_of_deepseek_v4_have_a_window_and_two_matrices_and_merge_streams() -> None:
    """`mtp.0` has a layer of a window with a router, `e_proj`, `h_proj`, `enorm`, `hnorm`, `norm` and `hc_head`."""
    config = {**FLASH, "num_nextn_predict_layers": 1}
    model = from_hugging_face(config, name="v4")
    assert (model.multi_token_prediction, model.further_kind) == (1, "window")
    assert model.sequence[:3] == ("window_hashed", "window_hashed", "sparse_hashed")
    without = replace(model, multi_token_prediction=0)
    assert without == replace(from_hugging_face(FLASH, name="v4"), parameters=model.parameters)
    more = model.count_parameters() - without.count_parameters()
    three, two = (
        from_hugging_face({**FLASH, "num_hidden_layers": count, "compress_ratios": [0] * count}, name="v4")
        for count in (3, 2)
    )
    layer = three.count_parameters() - two.count_parameters()
    assert more == layer + 2 * 4096**2 + 3 * 4096 + 4 * (4 * 4096 + 1) + 1


@pytest.mark.parametrize(
    ("ratios", "kind"), [([0] * 44, "window"), ([0] * 43 + [4], "sparse"), ([0] * 43 + [128], "heavy")]
)
def test_the_ratio_behind_all_layers_is_that_of_further_ones(ratios: list[int], kind: str) -> None:
    config = {**FLASH, "num_nextn_predict_layers": 1, "compress_ratios": ratios}
    model = from_hugging_face(config, name="v4")
    assert model.mtp_kind.name == kind
    assert {name for name in model.kinds if name not in model.sequence} == ({kind} - {"window"})
    with pytest.raises(UsageError, match="behind those of 43 layers"):
        from_hugging_face({**config, "compress_ratios": [0] * 43 + [5]}, name="v4")


def test_a_kind_of_further_layers_alone_is_of_no_other_layer() -> None:
    kinds: Any = {"layer": {}, "ahead": {"mixer": "sliding_window", "window": 3}}
    made = replace(card("llama"), layer_kinds=kinds, multi_token_prediction=1, further_kind="ahead")
    graph = build_graph(made, GraphOptions())
    assert [block.name for block in graph.blocks] == ["embedding", "layer", "head"]
    kernels = [load(op.semantics) for op in graph.ops if op.kind == "attention" and op.phase == "forward"]
    assert [kernel.window for kernel in kernels if isinstance(kernel, Attention)] == [None, 3]
    assert Card(**made.to_dict()) == made
    assert replace(made, multi_token_prediction=0) == card("llama")
    with pytest.raises(UsageError, match="further_kind: 'other' is no kind of layer_kinds"):
        replace(made, further_kind="other")
    with pytest.raises(UsageError, match="ahead is the kind of no layer"):
        replace(made, further_kind="")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"positions": "learned"}, "without learned positions"),
        ({"embedding_norm": True}, "without a norm of the embedding"),
        ({"multi_token_prediction": 65}, "at most 64"),
        ({"multi_token_prediction": -1}, "must be positive"),
        ({"mtp_loss_factor": "a"}, "must be a number"),
    ],
)
def test_what_cannot_be_built_is_refused(fields: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        replace(card("llama"), **{"multi_token_prediction": 1, **fields})


def sent(model: Card, options: GraphOptions, tp: int = 1, pp: int = 1) -> dict[tuple[str, str], int]:
    """The bytes of the result of each message of the head's block, by kind and name, summed over both passes."""
    graph = build_graph(model, options)
    env = environment(graph, tp=tp, pp=pp)
    found: dict[tuple[str, str], int] = {}
    for op in graph.ops:
        present = op.present is None or evaluate(op.present, env) > 0
        if op.block == "head" and op.axis is not None and present:
            key = op.kind, op.axis
            found[key] = found.get(key, 0) + evaluate(communication(op).comm_out_bytes, env)
    return found


HIDDEN = 2 * BATCH * SEQ * 16
"""Bytes of a hidden state of a tiny model."""


@pytest.mark.parametrize("further", [1, 2])
@pytest.mark.parametrize("sp", [False, True])
def test_megatron_gathers_the_projection_and_its_input(sp: bool, further: int) -> None:
    """In addition to what a layer and a head send: with sp the joined input (twice: the backward gathers it again), the
    result, its gradient; without it the result, and the gradient of the joined input, which is summed."""
    options, model = GraphOptions(recipe="megatron", sp=sp), card("llama", kv_heads=4)
    plain = sent(model, options, tp=2)
    model = replace(model, multi_token_prediction=further)
    found = sent(model, options, tp=2)
    graph = build_graph(model, options)
    env = environment(graph, tp=2)
    layer: dict[str, int] = {}
    for op in graph.ops:
        if op.block == "layer" and op.axis == "tp":
            layer[op.kind] = layer.get(op.kind, 0) + evaluate(communication(op).comm_out_bytes, env)
    vocabulary = plain.get(("all_reduce", "tp"), 0)
    gathers = {kind: found.get((kind, "tp"), 0) - plain.get((kind, "tp"), 0) for kind in layer | {"all_gather": 0}}
    if sp:
        ends = plain["all_gather", "tp"]
        assert gathers["all_gather"] == further * (layer["all_gather"] + ends + HIDDEN * (2 * 2 + 1 + 1 + 1))
    else:
        assert gathers["all_gather"] == further * HIDDEN
        assert gathers["all_reduce"] == further * (layer["all_reduce"] + vocabulary + HIDDEN + 2 * HIDDEN)


@pytest.mark.parametrize("tied", [False, True])
def test_stages_add_the_gradient_of_the_embedding(tied: bool) -> None:
    model = replace(card("llama", tied=tied), multi_token_prediction=1)
    found = sent(model, GraphOptions(), pp=2)
    assert found["all_reduce", "embedding"] == 2 * 512 * 16
    assert ("all_reduce", "embedding") not in sent(model, GraphOptions())
    assert ("all_reduce", "embedding") not in sent(card("llama"), GraphOptions(), pp=2)


def test_a_further_token_may_be_alone_with_the_loss_in_a_chunk() -> None:
    """Eight chunks of four stages: the embedding alone, six with a layer, and the further token with the head."""
    model = replace(card("llama", layers=6), multi_token_prediction=1)
    words = {"recipe": "megatron", "pp": 4, "virtual_stages": 2, "layers_per_chunk": [0, 1, 1, 1, 1, 1, 1, 0]}
    plan = Plan.from_mapping({**words, "schedule": "interleaved", "global_batch_size": 8, "seq_len": 32})
    made = program_of(model, plan).workload
    last = next(each.ops for each in made.classes if "head.loss" in each.ops.name)
    chunk = int(last.chunk[last.name.index("head.loss")])
    here = [name for name, its in zip(last.name, last.chunk.tolist(), strict=True) if its == chunk]
    assert chunk == 1 and any(name.startswith("head.further_1") for name in here)
    assert not [name for name in here if name.startswith("layer.")]
    _, found = timed_step(made, load_system("h100"), None, ())
    assert found.step > 0
