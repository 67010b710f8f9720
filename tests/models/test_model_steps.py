"""A training step in numpy, whole and partitioned, against that of the model's own code with the same weights.

`steps.json` has the loss and the gradients of 102 architectures in double precision at tiny sizes, recorded by
`scripts/record_models --step`, and of six with layers that predict further tokens.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.recording.drawn_values import drawn, drawn_tokens, probe
from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.graphs.model_graph import build_graph
from stagedb.ir import SymGraph
from stagedb.ir.operators import Array
from stagedb.models import from_hugging_face
from stagedb.plans import GraphOptions
from stagedb.plans.plan import plan_for
from stagedb.store import Store
from tests.ir.environments import BATCH, SEQ, environment
from tests.models.checkpoint_names import weights_of
from tests.semantics.stage import Key
from tests.semantics.step import Run, run, weight_shapes
from tests.semantics.test_partitioned import agree

STEPS: Mapping[str, Mapping[str, Any]] = {
    each["name"]: each for each in json.loads((Path(__file__).parent / "steps.json").read_text(encoding="utf-8"))
}

AGREE = 1e-8
"""The largest difference, as a part of a gradient's norm. Both sides compute in double precision."""


def graph_of(name: str, options: GraphOptions) -> SymGraph:
    card = from_hugging_face(STEPS[name]["config"], name="recorded")
    return build_graph(
        replace(card, vocab_multiple=1, multi_token_prediction=STEPS[name].get("multi_token_prediction", 0)), options
    )


def weights(name: str, graph: SymGraph) -> dict[Key, Array]:
    step = STEPS[name]
    values = {its: drawn(its, tuple(each["shape"])) for its, each in step["parameters"].items()}
    return weights_of(values, step["config"], weight_shapes(graph, environment(graph)), grads=False)


def stepped(name: str, graph: SymGraph, dp: int = 1, tp: int = 1, cp: int = 1, ep: int = 1) -> Run:
    config = STEPS[name]["config"]
    vocabulary = config.get("text_config", config)["vocab_size"]
    tokens, labels = drawn_tokens(vocabulary, STEPS[name]["batch"], STEPS[name]["seq"])
    return run(graph, environment(graph, dp, tp, cp=cp, ep=ep), weights(name, graph), tokens, labels)


def differences(name: str, graph: SymGraph, found: Run) -> Iterator[tuple[str, float]]:
    """Names whose gradients differ, each with the difference as a part of its norm."""
    step, shapes = STEPS[name], weight_shapes(graph, environment(graph))
    most = max(each.get("norm", 0.0) for each in step["parameters"].values())
    for its, each in step["parameters"].items():
        if "norm" not in each:
            continue
        probes = [probe(its, tuple(each["shape"]), turn) for turn in (0, 1)]
        parts = [weights_of({**_names(step), its: value}, step["config"], shapes, grads=True) for value in probes]
        own = [key for key in parts[0] if np.any(parts[0][key])]
        # A part of a weight may have a name of its own, such as the norm of one head.
        norm = float(np.sqrt(sum((found.gradients[key][parts[0][key] != 0] ** 2).sum() for key in own)))
        products = [float(sum((found.gradients[key] * part[key]).sum() for key in own)) for part in parts]
        # A gradient that is 0 in theory, such as of the keys' bias, is noise: it is compared with the largest one.
        size = max(each["norm"], 1e-6 * most)
        pairs = zip((norm, *products), (each["norm"], *each["products"]), strict=True)
        worst = max(abs(ours - theirs) for ours, theirs in pairs) / size
        if worst > AGREE * np.sqrt(np.prod(each["shape"])):
            yield its, worst


def _names(step: Mapping[str, Any]) -> dict[str, Array]:
    """Zeros of all names, which decide together what a norm is called."""
    return {its: np.zeros(each["shape"]) for its, each in step["parameters"].items()}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_that_of_the_models_own_code(name: str) -> None:
    graph = graph_of(name, GraphOptions())
    found = stepped(name, graph)
    assert found.loss == pytest.approx(STEPS[name]["loss"], rel=1e-10)
    assert dict(differences(name, graph, found)) == {}


MESHES: Mapping[str, dict[str, Any]] = {
    "dp 2 tp 2 sp zero 3": {"dp": 2, "tp": 2, "sp": True, "zero": 3},
    "dp 2 cp 2 ulysses zero 1": {"dp": 2, "cp": 2, "cp_kind": "ulysses", "zero": 1},
    "dp 2 ep 2 tp 2": {"dp": 2, "tp": 2, "ep": 2},
}
"""Words of plans. The last is for experts alone."""


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        (name, mesh)
        for name, mesh in product(STEPS, MESHES)
        # One key/value head that is in one matrix with the queries is on one rank (below).
        if ("ep" not in mesh or ("experts" in str(STEPS[name]) and "dense" not in name)) and name != "GPTBigCode"
    ],
)
def test_a_partitioned_step_is_the_whole_one(name: str, mesh: str) -> None:
    graph = graph_of(name, GraphOptions())
    words = {**MESHES[mesh], "global_batch_size": BATCH, "micro_batch_size": BATCH // 2, "seq_len": SEQ}
    options = plan_for(words, graph.sizes).options
    degrees = {word: degree for word, degree in MESHES[mesh].items() if word in ("dp", "tp", "cp", "ep")}
    agree(stepped(name, graph_of(name, options), **degrees), stepped(name, graph))


def test_one_matrix_of_queries_keys_and_values_repeats_no_head(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    card = replace(from_hugging_face(STEPS["GPTBigCode"]["config"], name="one-key"), vocab_multiple=1)
    words: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 4, "seq_len": SEQ}
    assert db.instantiate(card, dp=2, **words).plan["dp"] == 2
    with pytest.raises(UsageError, match="tp 2 is more than the 1 key/value heads of one-key"):
        db.instantiate(card, tp=2, **words)
