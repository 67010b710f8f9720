"""Steps that check drafts, on a simulated mesh: all their tokens get the logits of one forward, and the model's layers
for further tokens draft what they predict in it."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.operators import Array, DraftedTokens, RankPlace, Route
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.ir.tiny import card
from tests.semantics.test_serving import CACHES, KEYS, STAGES, Serving, by_position, model
from tests.semantics.variants import LATENT

STEPS = ((0, 6), (6, 8), (8, 12))
"""A prompt, a draft of one token and one of three: two ranks of sp can share each."""

KINDS = [
    name for name in CACHES if not any(each in name for each in ("scan", "delta", "recurrence", "lightning", "state"))
]
KINDS = [name for name in KINDS if "convolution" not in name]


def drafting(style: str, layers: int, **words: Any) -> Card:
    """A model with layers for further tokens."""
    own = dataclasses.replace(card(style), positions="rotary")
    kinds: Any = {"layer": words} if words else {}
    return dataclasses.replace(own, multi_token_prediction=layers, max_positions=64, layer_kinds=kinds)


def checked(serving: Serving, steps: Any = STEPS) -> dict[str, Array]:
    """What steps make, their positions joined: of drafts, which have one place a step, those of each."""
    made = []
    for start, end in steps:
        serving.step(start, end)
        made.append(serving.made)
    return {name: np.concatenate([each[name] for each in made], axis=1) for name in made[0]}


def agree(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-8, atol=1e-11, err_msg=name)


def speculative(own: Card, **words: Any) -> SymGraph:
    return build_graph(own, GraphOptions(workflow="speculative", **words))


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("name", KINDS)
def test_all_tokens_of_a_draft_have_the_logits_of_one_forward(name: str, attention: Any) -> None:
    graph = speculative(model(name), attention=attention)
    found = checked(Serving(graph))
    agree(found, checked(Serving(graph), [(0, KEYS)]))
    last, _ = Serving(build_graph(model(name), GraphOptions(workflow="prefill", attention=attention))).step(0, KEYS)
    np.testing.assert_allclose(found["head.out"][:, -1:], last, rtol=1e-8, atol=1e-11)
    np.testing.assert_array_equal(found["head.next"], found["head.out"].argmax(axis=-1))


@pytest.mark.parametrize("style", ["llama", "latent", "deepseek"])
def test_a_layer_for_further_tokens_has_a_cache_of_its_own(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "run", by_position)
    own = drafting("llama", 1, **LATENT) if style == "latent" else drafting(style, 1)
    graph = speculative(own)
    found, whole = checked(Serving(graph)), checked(Serving(graph), [(0, KEYS)])
    ends = [end - 1 for _, end in STEPS]
    agree(
        {name: each for name, each in found.items() if "further" not in name},
        {name: each for name, each in whole.items() if "further" not in name},
    )
    assert found["head.further_1.out"].shape[1] == len(ends)
    np.testing.assert_allclose(found["head.further_1.out"][:, -1:], whole["head.further_1.out"], rtol=1e-8, atol=1e-11)


def test_drafts_are_what_layers_for_further_tokens_predict_of_the_models_own_tokens() -> None:
    own = drafting("gpt", 2)
    serving = Serving(speculative(own))
    serving.step(0, KEYS)
    forward = Serving(build_graph(own, GraphOptions(workflow="forward-only")))
    names = {"head.labels": "head.next", "head.labels_1": "head.further_1.ahead"}
    forward.inputs = {name: serving.made[made].astype(np.int64) for name, made in names.items()}
    assert forward.weights.keys() == serving.weights.keys()
    forward.weights = serving.weights
    forward.step(0, KEYS)
    for depth in ("further_1.", "further_2."):
        expected = forward.made[f"head.{depth}out"][:, -1:]
        np.testing.assert_allclose(serving.made[f"head.{depth}out"], expected, rtol=1e-8, atol=1e-11)
    next_, drafted = serving.made["head.next"], serving.made["head.further_1.next"]
    np.testing.assert_array_equal(serving.made["head.further_1.ahead"], np.concatenate((next_[:, 1:], drafted), axis=1))


DEGREES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tp": ({}, {"tp": 2}),
    "dp": ({}, {"dp": 2}),
    "tp, dp": ({}, {"tp": 2, "dp": 2}),
    "tp, sp": ({"sp": True}, {"tp": 2}),
    "cp": ({"cp_kind": "allgather-lse"}, {"cp": 3}),
    "cp, tp, sp, dp": ({"cp_kind": "allgather-lse", "sp": True}, {"cp": 2, "tp": 2, "dp": 2}),
    "megatron": ({"recipe": "megatron"}, {"tp": 2}),
    "megatron, sp": ({"recipe": "megatron", "sp": True}, {"tp": 2, "dp": 2}),
}


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize("degrees", DEGREES)
@pytest.mark.parametrize("kind", ["grouped", "latent"])
def test_ranks_share_a_draft(kind: str, degrees: str, layers: int) -> None:
    options, mesh = DEGREES[degrees]
    own = drafting("llama", layers, **(LATENT if kind == "latent" else {}))
    reference = speculative(own, recipe=options.get("recipe", "torch"))
    agree(checked(Serving(speculative(own, **options), **mesh)), checked(Serving(reference)))


@pytest.mark.parametrize("layers", [0, 1])
@pytest.mark.parametrize("words", ["ep", "ep, tp", "copies to ranks", "expert tp, sp"])
def test_ranks_share_experts_of_a_draft(words: str, layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.semantics.test_serving import SHARED

    monkeypatch.setattr(Route, "run", by_position)
    options, degrees = SHARED[words]
    own = drafting("deepseek", layers)
    agree(checked(Serving(speculative(own, **options), **degrees)), checked(Serving(speculative(own))))


@pytest.mark.parametrize("degrees", [name for name in STAGES if "experts" not in name and "copies" not in name])
@pytest.mark.parametrize("layers", [0, 2])
def test_stages_share_a_draft(degrees: str, layers: int) -> None:
    style, options, mesh = STAGES[degrees]
    own = drafting(style, layers)
    found = checked(Serving(speculative(own, **options), (2,), pp=2, **mesh))
    agree(found, checked(Serving(speculative(own, recipe=options.get("recipe", "torch")))))


def test_a_drafted_token_is_put_behind_the_others() -> None:
    place = RankPlace({}, {}, {})
    tokens, drafted = np.array([[5, 6, 7], [1, 2, 3]]), np.array([[8], [4]])
    (found,) = DraftedTokens().run(place, [tokens, drafted])
    np.testing.assert_array_equal(found, [[6, 7, 8], [2, 3, 4]])


def test_layers_that_are_not_there_draft_nothing() -> None:
    with pytest.raises(UsageError, match="no layers for further tokens, which --draft own is for"):
        speculative(card("llama"), draft="own")
