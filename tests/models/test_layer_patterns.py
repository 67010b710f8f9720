"""Patterns of layers: what cards take, the one form of equal models, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.models import Card, load_card
from tests.ir.tiny import card


def mixed(**words: Any) -> Card:
    return dataclasses.replace(card("moe", layers=6), **words)


@pytest.mark.parametrize(
    ("pattern", "sequence"),
    [
        (["dense", "layer"], "dense layer dense layer dense layer"),
        (["dense", "dense", "layer", "layer"], "dense dense layer layer dense dense"),
        (["layer", "dense", "layer", "layer", "dense", "dense"], "layer dense layer layer dense dense"),
        ({"every": 3, "kind": "layer", "others": "dense"}, "dense dense layer dense dense layer"),
        ({"first": 2, "kind": "dense", "others": "layer"}, "dense dense layer layer layer layer"),
    ],
)
def test_a_pattern_names_the_kind_of_every_layer(pattern: Any, sequence: str) -> None:
    made = mixed(pattern=pattern)
    assert made.sequence == tuple(sequence.split())
    dense, sparse = (dataclasses.replace(card(style), layers=6, ffn=24) for style in ("llama", "moe"))
    count = made.sequence.count("dense")
    apart = sparse.count_parameters() - dense.count_parameters()
    assert made.count_parameters() == sparse.count_parameters() - count * apart // 6
    assert made.layers_without_experts == count


def test_equal_sequences_are_one_card() -> None:
    forms = (["dense", "layer"], ["dense", "layer"] * 3, {"every": 2, "kind": "layer", "others": "dense"})
    assert len({mixed(pattern=form) for form in forms}) == len({mixed(pattern=form).digest for form in forms}) == 1
    assert mixed(pattern=["layer"] * 6) == mixed(pattern=["layer"]) == mixed()
    assert mixed(layer_kinds={"layer": {}, "dense": {}}, pattern=["dense", "layer"]) == mixed(pattern=forms[0])


def test_a_card_without_a_pattern_has_no_word_of_it() -> None:
    assert not {"pattern", "layer_kinds"} & mixed().to_dict().keys()
    assert mixed().digest != mixed(pattern=["dense", "layer"]).digest


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_a_card_with_a_pattern_is_a_file(tmp_path: Path, ending: str) -> None:
    made = mixed(
        layer_kinds={"big": {"channel_mixer": "experts"}, "small": {"channel_mixer": "feed_forward"}},
        pattern=["small", "small", "big"],
    )
    path = tmp_path / f"card.{ending}"
    path.write_text(yaml.safe_dump(made.to_dict()) if ending == "yaml" else json.dumps(made.to_dict()))
    assert load_card(path) == made
    assert made.to_dict()["pattern"] == ["small", "small", "big"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"pattern": ["dens", "layer"]}, r"unknown layer kind 'dens' \(did you mean dense\?\); it takes layer, dense"),
        ({"pattern": ["layer"] * 7}, "a pattern of 7 layers, the model has 6"),
        ({"pattern": {"every": 7, "kind": "layer", "others": "dense"}}, "every must be a whole number from 1 to 6"),
        ({"pattern": {"every": 2, "kind": "layer"}}, "pattern takes a list of layer kinds that repeats"),
        ({"pattern": "dense"}, "pattern takes a list of layer kinds that repeats"),
        ({"pattern": ["dense"]}, "experts=4, and the pattern has no layer with experts"),
        ({"pattern": ["dense", "layer"], "dense_layers": 1}, "leave dense_layers=1 out, or pattern"),
        ({"layer_kinds": {"wide": {}}}, "layer_kinds: wide is the kind of no layer: name it in pattern"),
        ({"layer_kinds": {"head": {}}, "pattern": ["head"]}, "layer_kinds: head is no name of a layer kind"),
        ({"layer_kinds": {"x": {"mixer": "mamba"}}, "pattern": ["x"]}, "x: mixer must be one of attention"),
        ({"layer_kinds": {"x": {"mixr": "attention"}}, "pattern": ["x"]}, r"unknown key 'mixr' \(did you mean mixer"),
        ({"layer_kinds": {"x": {"mixer": "sliding_window"}}, "pattern": ["x"]}, "window must be the number of keys"),
        ({"layer_kinds": {"x": {"mixer": "sliding_window", "window": 0}}, "pattern": ["x"]}, "from 1, not 0"),
        ({"layer_kinds": {"x": {"window": 4}}, "pattern": ["x"]}, "unknown key 'window'"),
        ({"layer_kinds": {"x": 3}, "pattern": ["x"]}, "layer_kinds: x takes a mapping of mixer"),
        ({"layer_kinds": ["x"], "pattern": ["x"]}, "layer_kinds takes kinds of layers by name"),
    ],
)
def test_a_pattern_that_does_not_suit_is_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"tiny-moe: .*{message}"):
        mixed(**words)


def test_a_model_without_experts_has_no_dense_kind() -> None:
    with pytest.raises(UsageError, match="unknown layer kind 'dense'; it takes layer"):
        dataclasses.replace(card("llama"), pattern=("dense",))
