"""Strategies of users: rules as data, read, written in one form, refused with what is allowed."""

import json
from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import find_framework
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.models import load_card
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.plan import plan_for
from tests.ir.tiny import card
from tests.symbolic_rows import communication, parameter

GATHERED = """\
regions:
  ffn: {batch: [dp], seq: [cp, tp]}
weights:
  ffn: {ffn: [tp]}
"""


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "strategy.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_the_same_rules_in_other_words_are_the_same_graph(tmp_path: Path) -> None:
    options = GraphOptions(sp=True, strategy=written(tmp_path, GATHERED))
    again = GraphOptions(sp=True, strategy="{'regions'".replace("'", '"') + options.strategy.removeprefix('{"regions"'))
    other = "weights: {ffn: {ffn: tp}}\nregions: {ffn: {seq: [tp, cp], batch: dp}}\n"
    assert options == again == GraphOptions(sp=True, strategy=written(tmp_path, other))
    assert build_graph(card("llama"), options).key != build_graph(card("llama"), GraphOptions(sp=True)).key


def test_a_region_s_weights_are_gathered_before_each_use_and_their_gradients_scattered(tmp_path: Path) -> None:
    graph = build_graph(card("llama"), GraphOptions(sp=True, strategy=written(tmp_path, GATHERED)))
    found = [
        (op.kind, str(op.template), communication(op).comm_bytes)
        for op in graph.ops
        if op.type == "collective" and op.name.startswith("layer.ffn.")
    ]
    assert sorted(found) == [
        *[("all_gather", "forward", "F*H*e_param/tp")] * 3,
        *[("all_gather", "input_gradient", "F*H*e_param/tp")] * 3,
        *[("reduce_scatter", "weight_gradient", "F*H*e_grad")] * 3,
    ]
    weights = {t.name: t for t in graph.tensors if t.role == "weight"}
    assert parameter(weights["layer.ffn.w1.weight"]).elements == "F*H/tp"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no rules"),
        ("[1]", "has no rules"),
        ("regions: [", "not YAML"),
        ("rules: {}", "unknown key 'rules': it takes regions, weights"),
        ("regions: 3", "it takes rules by region"),
        ("regions: {mlp: {seq: [tp]}}", "unknown region 'mlp': it takes embedding, between"),
        ("regions: {ffn: [tp]}", "it takes mesh axes by logical axis"),
        ("regions: {ffn: {rows: [tp]}}", "unknown logical axis 'rows': it takes batch, seq, ffn, hidden"),
        ("regions: {attention: {seq: [tp]}}", "unknown logical axis 'seq'"),
        ("regions: {ffn: {seq: {tp: 1}}}", "it takes a list of mesh axes (dp, cp, tp)"),
        ("regions: {ffn: {seq: [xp]}}", "unknown mesh axis 'xp': it takes dp, cp, tp"),
        ("regions: {ffn: {seq: [tp, tp]}}", "names the same mesh axis twice"),
        ("regions: {ffn: {seq: [tp], ffn: [tp]}}", "tp cannot partition both ffn and seq"),
        ("regions: {attention: {heads: [tp]}}", "heads and kv_heads need the same rule"),
        (
            "regions: {experts: {experts: [tp]}}",
            "'experts', which follows --ep and --expert-tp: it takes",
        ),
        (
            "regions: {ffn: {ffn: [ep]}}",
            "mesh axis 'ep', which only partitions experts (--ep): it takes dp, cp, tp",
        ),
        ("regions: {between: {hidden: [tp]}}", "norms read all values of a token: leave it out there"),
        ("regions: {attention: {head_dim: [tp]}}", "weights: {attention: {head_dim: [tp]}}"),
        ("weights: {ffn: {kv: [tp]}}", "weights: ffn names an unknown logical axis 'kv'"),
    ],
)
def test_what_is_no_strategy_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        GraphOptions(strategy=written(tmp_path, text))
    assert expected in str(refused.value)
    assert "strategy.yaml" in str(refused.value)


def test_copies_of_key_value_heads_are_not_moved() -> None:
    """Where tp exceeds them, ranks hold copies, of which no gather makes the heads."""
    sizes = {"L": 2, "A": 8, "KV": 2, "F": 24, "V": 512}

    def check(strategy: str, **degrees: int) -> None:
        Plan(GraphOptions(strategy=strategy), **degrees).check(sizes)  # type: ignore[arg-type]

    parted = '{"weights": {"attention": {"hidden": ["tp"]}}}'
    check(parted, tp=2)
    with pytest.raises(UsageError, match="tp 4 is above their number, 2"):
        check(parted, tp=4)
    with pytest.raises(UsageError, match="dp 4 is above their number, 2"):
        check('{"weights": {"attention": {"heads": ["dp"], "kv_heads": ["dp"]}}}', dp=4)
    check('{"weights": {"attention": {"heads": ["tp"], "kv_heads": ["tp"], "hidden": ["dp"]}}}', tp=4, dp=2)


def test_a_weight_that_crosses_from_dp_to_tp_needs_a_hidden_axis_that_tp_divides() -> None:
    sizes = {"L": 2, "A": 8, "KV": 8, "F": 24, "V": 512, "H": 18}
    crossing, other = '{"weights": {"ffn": {"ffn": ["dp"]}}}', '{"weights": {"ffn": {"ffn": ["tp"], "hidden": ["dp"]}}}'
    Plan(GraphOptions(strategy=crossing), dp=2, tp=2).check(sizes)
    Plan(GraphOptions(strategy=other), dp=2, tp=4).check(sizes)
    with pytest.raises(UsageError, match="on their way to operators, cut hidden into tp 4 parts, and 18 is not div"):
        Plan(GraphOptions(strategy=crossing), dp=2, tp=4).check(sizes)


def test_a_strategy_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--strategy"):
        GraphOptions(strategy=str(tmp_path / "none.yaml"))
    with pytest.raises(UsageError, match="not JSON"):
        GraphOptions(strategy="{")


def refusal(**words: object) -> str:
    card = load_card(str(words.pop("model")))
    with pytest.raises(UsageError) as refused:
        plan_for(words, model_sizes(card, find_framework(str(words.get("recipe", "torch")))))
    return str(refused.value)


@pytest.mark.parametrize(
    ("strategy", "words", "expected"),
    [
        (
            {"regions": {"attention": {"batch": ["dp"], "heads": ["cp", "tp"], "kv_heads": ["cp", "tp"]}}},
            {"model": "gpt2", "recipe": "megatron", "tp": 4, "cp": 2},
            "attention cut heads into cp 2 x tp 4 parts, and 12 is not divisible by 8: take --cp 1 or --tp 3",
        ),
        (
            {"regions": {"loss": {"batch": ["dp", "tp"], "seq": ["cp"]}}},
            {"model": "llama3.2-1b", "tp": 2},
            "cut batch into dp 1 x tp 2 parts, and 1 is not divisible by 2: take --tp 1 or --micro-batch-size 2",
        ),
        (
            {"weights": {"ffn": {"ffn": ["dp", "tp"]}}},
            {"model": "llama3.2-1b", "tp": 2, "dp": 3},
            "weights of ffn cut ffn into dp 3 x tp 2 parts, and 8192 is not divisible by 6: take --dp 2 or --dp 4",
        ),
        (
            {"regions": {"between": {"batch": ["dp"], "seq": ["cp"]}}},
            {"model": "mixtral-8x7b", "tp": 2, "sp": True, "expert_tp": False},
            "experts expect them in their usual place",
        ),
    ],
)
def test_what_degrees_do_not_divide_is_refused_with_degrees_that_do(
    strategy: dict[str, object], words: dict[str, object], expected: str
) -> None:
    assert expected in refusal(**words, seq_len=256, strategy=json.dumps(strategy))


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(
    "strategy",
    [{"regions": {"ffn": {"batch": ["dp"], "ffn": ["tp"]}}}, {"weights": {"ffn": {"ffn": ["cp"], "hidden": ["tp"]}}}],
)
def test_without_context_parallelism_nothing_is_over_it(strategy: dict[str, object], zero: int) -> None:
    """Gradients pass the buckets of all others, with or without cp in a rule, and ZeRO shards what cp would hold."""
    graph = build_graph(card("llama"), GraphOptions(zero=zero, strategy=json.dumps(strategy)))
    usual = build_graph(card("llama"), GraphOptions(zero=zero))
    reduced, wanted = ([op.name for op in each.ops if op.name.startswith("bucket.")] for each in (graph, usual))
    assert reduced == wanted
    shards, theirs = (
        {t.name: t.parameter.shard for t in each.tensors if t.parameter and t.parameter.shard}
        for each in (graph, usual)
    )
    assert shards.keys() == theirs.keys()
    assert all(("dp" in shards[name]) == ("dp" in theirs[name]) for name in shards)
