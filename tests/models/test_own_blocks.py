"""Own blocks: what files take, what is refused and where, and blocks that restate those of stagedb."""

import copy
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.graphs.graph_identity import graph_key
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.operators.activations import ACTIVATIONS
from stagedb.ir.operators.activations import GATES as KNOWN_GATES
from stagedb.models import Card, load_card
from stagedb.models.kinds.own import shapes_of
from stagedb.models.kinds.own.reader import FUNCTIONS, GATES
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.models.own_blocks import FOLDER, NAMES, content, with_block

RESTATED: dict[str, dict[str, Any]] = {"gated": {}, "plain": {"mlp": "plain", "activation": "gelu"}, "packed": {}}
"""Blocks that restate the feed-forward, with the fields of a card that has it."""


def built_in(name: str) -> Card:
    kind: Any = {"layer": {"gate_up": "fused"}} if name == "packed" else ()
    return dataclasses.replace(card("llama", kv_heads=4), layer_kinds=kind, **RESTATED[name])


NAMES_THERE = {
    "gated": {"active.activation": "activation", "gate": "w1", "up": "w3", "active": "gate", "output": "w2"},
    "plain": {"up": "w1", "active": "activation", "output": "w2"},
    "packed": {"both": "w13", "active": "gate", "output": "w2"},
}
"""The names of the steps in the feed-forward of stagedb."""


def renamed(name: str, graph: SymGraph) -> tuple[str, ...]:
    """All rows of a graph, with the names of a block and of its axes as the feed-forward has them."""
    rows = "\n".join(map(repr, (*graph.blocks, *graph.tensors, *graph.ops, *graph.edges)))
    rows = rows.replace("mine__inner", "ffn").replace("mine__two", "two")
    for step, there in NAMES_THERE[name].items():
        # Parameters have the names of matmuls, and `.weight` behind them.
        rows = re.sub(rf"\bmine\.{step}(?!\.weight\b)\b", f"ffn.{there}", rows)
    rows = rows.replace("mine.", "ffn.")
    # Frameworks know the feed-forward as a part of a layer, and somebody's own block as none.
    rows = re.sub(r"part='ffn', module=(None|'[^']*')", "part=None, module=None", rows)
    return tuple(rows.split("\n"))


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"sp": True},
        {"sp": True, "zero": 3},
        {"zero": 1},
        {"recipe": "megatron", "sp": True},
        {"recipe": "megatron", "zero": 1},
        {"kernels": "eager"},
        {"matmul_dtype": "fp8", "sp": True},
        {"recompute": "full"},
        {"recompute": "pointwise"},
        {"sp": True, "cp_kind": "allgather-kv"},
        {"dropout": 0.1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", RESTATED)
def test_a_block_that_restates_the_feed_forward_is_the_same_graph(name: str, words: dict[str, Any]) -> None:
    if words.get("recipe") == "megatron" and name == "gated":
        name = "packed"  # Megatron-LM has one matmul for gate and up
    options = GraphOptions(**words)
    mine, theirs = build_graph(with_block(name, **RESTATED[name]), options), build_graph(built_in(name), options)
    ours = renamed(name, mine)
    assert [row for row in ours if "mine" in row] == []
    assert ours == renamed(name, theirs)
    assert mine.sizes == theirs.sizes


def test_parameters_are_those_of_the_block_that_is_restated() -> None:
    for name in RESTATED:
        assert with_block(name, **RESTATED[name]).count_parameters() == built_in(name).count_parameters()


def written(folder: Path, text: str, sizes: str = "{}") -> Path:
    """A card file with the block of a text in a file of its own."""
    fields = {**card("llama", kv_heads=4).to_dict(), "layer_kinds": {"layer": {"channel_mixer": "mine"}}}
    (folder / "mine.yaml").write_text(text)
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump(fields) + f"blocks: {{mine: {{file: mine.yaml, sizes: {sizes}}}}}\n")
    return path


def test_a_card_names_a_block_in_a_file(tmp_path: Path) -> None:
    text = (FOLDER / "low_rank.yaml").read_text()
    found = load_card(written(tmp_path, text))
    assert found == with_block("low_rank")
    assert found.digest == with_block("low_rank").digest
    wider = load_card(written(tmp_path, text, "{rank: 8}"))
    assert wider.count_parameters() - found.count_parameters() == 2 * 2 * (16 + 2 * 24 + 1)
    assert wider.digest != found.digest


def test_the_content_of_a_block_is_a_part_of_the_card() -> None:
    """A stored card or graph does not need the file again, and another content is another graph."""
    made = with_block("two_gates")
    again = Card(**json.loads(json.dumps(made.to_dict())))
    assert again == made and again.digest == made.digest
    changed = content("two_gates")
    changed["steps"][7]["bounded"]["softcap"] = 3.0
    other = with_block("two_gates", blocks={"mine": changed})
    assert other.digest != made.digest
    assert graph_key(other, GraphOptions()) != graph_key(made, GraphOptions())
    assert "blocks" not in card("llama").to_dict()


def test_names_of_functions_are_those_of_the_graph() -> None:
    assert set(FUNCTIONS) <= set(ACTIVATIONS)
    assert set(GATES) == {*FUNCTIONS, *KNOWN_GATES}


def test_tp_cuts_what_parameters_name() -> None:
    (block,) = with_block("crossed").blocks
    assert shapes_of(block).cuts == {
        "first": "wide",
        "shares": "",
        "sloped": "wide",
        "second": "wide",
        "third": "other",
        "both": "other",
        "normal": "",
        "output": "hidden",
    }


Change = Callable[[dict[str, Any]], object]


def at(*path: Any, to: Any) -> Change:
    """Set an entry of a block."""

    def change(block: dict[str, Any]) -> None:
        for key in path[:-1]:
            block = block[key]
        block[path[-1]] = to

    return change


def without(*path: Any) -> Change:
    def change(block: dict[str, Any]) -> None:
        for key in path[:-1]:
            block = block[key]
        del block[path[-1]]

    return change


def cross(block: dict[str, Any]) -> None:
    """Let a step pair two axes that tp cuts."""
    block["axes"]["other"] = 4
    block["parameters"]["w4"] = {"axes": "other, hidden", "tp": "other"}
    block["steps"][2:2] = [
        {"side": {"einsum": "batch seq hidden, other hidden -> batch seq other", "of": ["input", "w4"]}},
        {"both": {"einsum": "batch seq inner, batch seq other -> batch seq inner other", "of": ["up", "side"]}},
        {"low": {"einsum": "batch seq inner other, batch seq other -> batch seq inner", "of": ["both", "side"]}},
    ]
    block["steps"][5]["active"]["of"] = ["gate", "low"]


UP = ("steps", 1, "up", "einsum")
REFUSED: dict[str, tuple[Change, str]] = {
    "an unknown axis": (at(*UP, to="batch seq hidden, iner hidden -> batch seq iner"), r"'iner' \(did you mean inner"),
    "an unknown operator": (at("steps", 2, to={"active": {"swish": "gate"}}), "step active: unknown operator 'swish'"),
    "an operator near a known one": (at("steps", 2, to={"active": {"sillu": "up"}}), r"did you mean silu\?"),
    "a contracted axis in the result": (
        at(*UP, to="batch seq hidden, inner hidden -> batch seq inner seq"),
        "names an axis twice",
    ),
    "an axis of the result alone": (
        at(*UP, to="batch seq hidden, inner hidden -> batch seq inner two"),
        "unknown axis 'two'",
    ),
    "an axis that is only summed": (
        at(*UP, to="batch seq hidden, inner hidden -> batch seq hidden"),
        "inner of w3 is in neither the other operand nor the result",
    ),
    "a batch that is summed": (
        at(
            "steps", 2, to={"active": {"einsum": "batch seq inner, batch seq inner -> seq inner", "of": ["gate", "up"]}}
        ),
        "batch must be in the result",
    ),
    "other axes than the operand's": (at(*UP, to="batch hidden seq, inner hidden -> batch seq inner"), "input has the"),
    "no arrow": (at(*UP, to="batch seq hidden, inner hidden"), "einsum takes two operands and a result"),
    "a parameter that nothing reads": (
        at("parameters", "more", to={"axes": "hidden"}),
        "no step reads the parameter more",
    ),
    "a step that nothing reads": (at("steps", 2, "active", "of", to=["gate", "gate"]), "no step reads the step up"),
    "another result": (
        at("steps", 3, "output", "einsum", to="batch seq inner, hidden inner -> batch hidden seq"),
        r"step output makes \(batch hidden seq\), and a block makes \(batch seq hidden\)",
    ),
    "no output": (at("steps", 3, to={"last": {"silu": "active"}}), "the last step is last, and it must be output"),
    "an unknown operand": (at("steps", 2, "active", "of", to=["gate", "upp"]), "'upp' is unknown: up"),
    "an operand of a later step": (at("steps", 1, "up", "of", to=["active", "w3"]), "'active' is made later"),
    "a name twice": (at("steps", 1, to={"gate": {"silu": "input"}}), "the name gate appears twice"),
    "a parameter first": (at("steps", 1, "up", "of", to=["w3", "input"]), "its first operand is the parameter w3"),
    "tp of another axis": (at("parameters", "w1", "tp", to="heads"), "tp cuts one of its axes, inner, hidden"),
    "a parameter of the sequence": (at("parameters", "w1", "axes", to="seq, hidden"), "grows with seq"),
    "a parameter of an unknown axis": (at("parameters", "w1", "axes", to="inner, width"), "has the unknown axis"),
    "a size of no card": (at("axes", "inner", to="width"), "whole number from 1 or one of seq, hidden, ffn"),
    "a size of 0": (at("axes", "inner", to=0), "whole number from 1"),
    "no size": (at("axes", "inner", to=None), "inner has no size"),
    "a true size": (at("axes", "inner", to=True), "whole number from 1"),
    "an axis that nothing has": (at("axes", "more", to=4), "nothing has the axis more"),
    "an axis of the stream": (at("axes", "seq", to=4), "'seq' is no name of an axis"),
    "no steps": (without("steps"), "steps takes a list"),
    "an unknown key": (at("step", to=[]), r"unknown key 'step' \(did you mean steps\?\)"),
    "an unknown gate": (at("steps", 2, "active", "gate", to="tanh"), "gate takes one of silu"),
    "a gate of one operand": (at("steps", 2, "active", "of", to=["gate"]), "let an axis of the size 2 be the last"),
    "an operand too many": (at("steps", 2, "active", "of", to=["gate", "up", "up"]), "1 to 2 operands, not 3"),
    "an infinite factor": (at("steps", 2, to={"active": {"scale": 1e300, "of": "gate"}}), "a number other than 0"),
    "a softmax over the sequence": (
        at("steps", 2, to={"active": {"softmax": "input"}, "x": {"softmax": "gate"}}),
        "step 3 takes a name with its operator",
    ),
    "operands of other axes": (at("steps", 2, "active", "of", to=["gate", "input"]), "operands of the same axes"),
    "causal scores without keys": (
        at("steps", 2, to={"active": {"causal_softmax": "gate"}}),
        "takes scores of queries",
    ),
    "two cuts at once": (cross, "step both: tp would cut inner and other at once"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    block = copy.deepcopy(content("gated"))
    change(block)
    path = written(tmp_path, yaml.safe_dump(block, sort_keys=False))
    with pytest.raises(UsageError, match=message) as found:
        load_card(path)
    assert "mine.yaml" in str(found.value)
    if name not in ("no steps", "an axis that nothing has"):
        assert ", line " in str(found.value)
    with pytest.raises(UsageError, match=message):
        with_block("gated", blocks={"mine": block})


def test_an_error_names_the_line_of_the_step(tmp_path: Path) -> None:
    text = (FOLDER / "gated.yaml").read_text().replace("gate: silu", "gate: swish")
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "swish" in each)
    with pytest.raises(UsageError, match=rf"mine\.yaml, line {line}: step active: gate takes"):
        load_card(written(tmp_path, text))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks": {"feed_forward": content("gated")}}, "feed_forward is a part that stagedb has"),
        ({"blocks": {"attn": content("gated")}}, "'attn' is no name of a block"),
        ({"layer_kinds": ()}, "blocks: mine is a part of no layer"),
        ({"blocks": {"mine": {"file": "mine.yaml"}}}, "a file is read for a card that is a file"),
        ({"blocks": {"mine": 3}}, "takes `file` and `sizes`"),
        ({"blocks": "mine.yaml"}, "blocks takes blocks by name"),
        (
            {"layer_kinds": {"layer": {"channel_mixer": "mime"}}},
            "channel_mixer must be one of feed_forward, experts, dense_and_experts, none, mine",
        ),
        (
            {"layer_kinds": {"layer": {"channel_mixer": "mine", "mixer": "mine"}}},
            "'mine' is both mixer and channel_mixer: give the block a second name",
        ),
        ({"layer_kinds": {"layer": {"channel_mixer": "mine", "ffn_bias": "all"}}}, "unknown key 'ffn_bias'"),
    ],
)
def test_cards_are_checked_with_their_blocks(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_block("gated", **fields)


@pytest.mark.parametrize("file", ["../mine.yaml", "/etc/passwd", "mine.json", "~/x\x1b[2J.yaml", 7, "a/../../b.yaml"])
def test_files_are_those_below_the_card(file: Any, tmp_path: Path) -> None:
    path = written(tmp_path, (FOLDER / "gated.yaml").read_text())
    card_of = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**card_of, "blocks": {"mine": {"file": file}}}))
    with pytest.raises(UsageError, match=r"file takes the name of a \.yaml file in the card's directory") as found:
        load_card(path)
    assert "\x1b" not in str(found.value)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("{rang: 4}", "the file has no axis 'rang'; it has inner, rank"),
        ("{rank: -1}", "whole number from 1"),
        ("[4]", "sizes takes sizes by axis"),
    ],
)
def test_sizes_of_a_card_are_those_of_axes(sizes: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load_card(written(tmp_path, (FOLDER / "low_rank.yaml").read_text(), sizes))


def test_tp_divides_what_it_cuts() -> None:
    made = with_block("low_rank")
    made.check_tp(4)
    with pytest.raises(
        UsageError, match=r"tp 16 cuts the axis inner of gate_up .* 24 is not divisible by 16: take --tp 4"
    ):
        made.check_tp(16)


def test_a_block_that_mixes_the_sequence_is_refused_under_cp() -> None:
    with pytest.raises(UsageError, match=r"step scores reads several tokens of a sequence, .* take --cp 1"):
        build_graph(with_block("heads"), GraphOptions(cp_kind="allgather-kv"))
    assert build_graph(with_block("gated"), GraphOptions(cp_kind="allgather-kv"))


def test_every_file_of_the_tests_is_a_block() -> None:
    assert all(with_block(name).blocks for name in NAMES)
