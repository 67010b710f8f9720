"""The trial of own blocks: what passes agrees with PyTorch, whole and on ranks, and what is wrong is found."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.recording.drawn_values import drawn, probe
from stagedb.api import model_names
from stagedb.errors import UsageError
from stagedb.graphs import block_trial
from stagedb.graphs.block_trial import MESH, BlockTrial, SimulatedRanks, check_blocks
from stagedb.ir import collective_matcher
from stagedb.ir.layouts import Layout
from stagedb.ir.operators import Array
from stagedb.ir.operators.elementwise import ActivationGradient
from stagedb.models import Card
from stagedb.plans import GraphOptions
from tests.models.own_blocks import FOLDER, MIXES, NAMES, content, with_block
from tests.models.test_own_blocks import written

RECORDED: Mapping[str, Mapping[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "models/own_blocks.json").read_text(encoding="utf-8")
)


def trial(name: str) -> BlockTrial:
    """The trial of a block with the sizes of the model, and not with tiny ones."""
    made = with_block(name)
    (block,) = made.blocks
    lengths = {block.in_graph(axis): 8 if size == "seq" else block.length(axis, made) for axis, size in block.axes}
    return BlockTrial(block, made, {"batch": 2, "seq": 8, "hidden": made.hidden, **lengths})


def in_record(name: str) -> str:
    """The name of a tensor in the record: `trial.mine.up.weight` is up."""
    return {"trial.input": "input", "trial.mine.output.gradient": "arriving"}.get(name, name.split(".")[-2])


def step(name: str, ranks: SimulatedRanks) -> dict[str, Array]:
    """The result and the gradients of a block, by the names of the record, from the values that PyTorch had."""
    tensors = (*ranks.laid.weights, *ranks.laid.given)
    given = {each.name: drawn(in_record(each.name), tuple(ranks.sizes[axis] for axis in each.axes)) for each in tensors}
    found = ranks.results(ranks.run(given))
    return {key if key in ("input", "output") else in_record(key): value for key, value in found.items()}


@pytest.mark.parametrize(
    ("degrees", "options"),
    [
        ((1, 1, 1), GraphOptions()),
        ((1, 1, 4), GraphOptions(sp=True)),
        ((2, 1, 2), GraphOptions(recipe="megatron", sp=True)),
        ((2, 2, 2), GraphOptions()),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", RECORDED)
def test_a_block_computes_what_pytorch_computes(
    name: str, degrees: tuple[int, int, int], options: GraphOptions
) -> None:
    mesh = dict(zip(MESH, degrees, strict=True)) | ({"cp": 1} if name in MIXES else {})
    found = step(name, trial(name).on(options, mesh))
    assert found.keys() == RECORDED[name].keys()
    for its, value in found.items():
        record = RECORDED[name][its]
        assert list(value.shape) == record["shape"]
        assert np.linalg.norm(value) == pytest.approx(record["norm"], rel=1e-10)
        for turn, product in enumerate(record["probes"]):
            measured = float(np.sum(value * probe(its, value.shape, turn)))
            assert measured == pytest.approx(product, rel=1e-9, abs=1e-9 * record["norm"]), its


@pytest.mark.parametrize("name", NAMES)
def test_blocks_pass(name: str) -> None:
    block_trial._try.cache_clear()
    check_blocks(with_block(name))


def refused(made: Card) -> str:
    block_trial._try.cache_clear()
    with pytest.raises(UsageError) as found:
        check_blocks(made)
    return str(found.value)


def test_a_wrong_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = ActivationGradient.run

    def halved(self: ActivationGradient, place: Any, inputs: list[Array]) -> list[Array]:
        return [each / 2 for each in usual(self, place, inputs)]

    monkeypatch.setattr(ActivationGradient, "run", halved)
    text = refused(with_block("adapter"))
    assert re.search(r"the derived backward has .* as the gradient of input .* finite differences", text)
    assert "(low, output)" in text


def test_a_wrong_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum that ranks share is taken for whole."""
    monkeypatch.setattr(collective_matcher, "left", lambda op, inputs: Layout())
    text = refused(with_block("gated"))
    assert re.search(r"step \w+: .*(on \w+ 2 it makes other values|hold different ones)", text)


def test_numbers_that_are_not_finite_are_found(tmp_path: Path) -> None:
    block = content("gated")
    grown = [{"p0": {"scale": 1e20, "of": "gate"}}]
    grown += [{f"p{number}": {"multiply": [f"p{number - 1}", f"p{number - 1}"]}} for number in range(1, 8)]
    block["steps"][1:1] = grown
    block["steps"][10]["active"]["of"] = ["p7", "up"]
    text = refused(with_block("gated", blocks={"mine": block}))
    assert "step p4: it makes numbers that are not finite: normalise or bound what it reads" in text


def test_a_card_is_accepted_only_with_blocks_that_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, (FOLDER / "adapter.yaml").read_text())
    assert model_names.card(str(path)).blocks
    block_trial._try.cache_clear()
    usual = ActivationGradient.run
    monkeypatch.setattr(ActivationGradient, "run", lambda self, place, inputs: [-usual(self, place, inputs)[0]])
    with pytest.raises(UsageError, match=r"mine\.yaml, line \d+: the derived backward"):
        model_names.card(str(path))


def test_the_first_step_that_differs_on_ranks_is_named() -> None:
    tried = trial("gated")
    whole, ranks = (
        tried.on(GraphOptions(), dict(zip(MESH, degrees, strict=True))) for degrees in ((1, 1, 1), (1, 1, 2))
    )
    given, values = tried.whole_run(whole)
    made = ranks.run(given)
    tried.check_same(ranks, made, whole, values)
    for name in ("trial.mine.up", "trial.mine.output"):
        made[name] = made[name] + 1e-3
    with pytest.raises(UsageError, match="step up: on tp 2 it makes other values than on one rank: leave `tp` out"):
        tried.check_same(ranks, made, whole, values)
