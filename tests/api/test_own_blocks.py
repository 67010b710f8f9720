"""Own blocks in a store: an instance with one, its provenance, and figures that are those of the block it restates."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store
from tests.models.own_blocks import FOLDER, with_block
from tests.models.test_own_blocks import built_in, written

PLAN: dict[str, Any] = {"tp": 2, "sp": True, "pp": 2, "dp": 2, "zero": 1, "global_batch_size": 8}


@pytest.fixture
def db(store: Store) -> Stagedb:
    return Stagedb(store)


def test_a_restated_block_has_the_memory_and_the_step_of_the_built_in_one(db: Stagedb) -> None:
    found = []
    for model in (with_block("gated"), built_in("gated")):
        instance = db.instantiate(model, **PLAN)
        memory, profile = db.memory(instance.id), db.profile(instance.id, keep=False)
        found.append(
            ([row["peak"] for row in memory.peaks], profile.info.step, profile.lanes, instance.ranks, instance.classes)
        )
    assert found[0] == found[1]


def test_a_stored_graph_does_not_need_the_file_again(db: Stagedb, tmp_path: Path) -> None:
    path = written(tmp_path, (FOLDER / "low_rank.yaml").read_text())
    made = db.instantiate(str(path), tp=2)
    (tmp_path / "mine.yaml").unlink()
    again = db.instantiate(made.graph, tp=4)
    assert again.graph == made.graph
    query = "MATCH (:Event {thing: $graph})-[:USED]->(i:Input) RETURN i.kind AS kind, i.name AS name, i.id AS id"
    inputs = {(row["kind"], row["name"]): row["id"] for row in db.query(query, {"graph": made.graph})}
    (block,) = with_block("low_rank").blocks
    assert inputs["block", "mine"] == block.digest[:32]
    assert ("card", "tiny-llama") in inputs
    with pytest.raises(UsageError, match=r"cannot read the block .*mine\.yaml"):
        db.instantiate(str(path), tp=2)


def test_a_degree_that_divides_no_cut_axis_is_refused_before_anything_is_made(db: Stagedb, tmp_path: Path) -> None:
    text = (
        (FOLDER / "adapter.yaml")
        .read_text()
        .replace('down: {axes: "narrow, hidden"}', 'down: {axes: "narrow, hidden", tp: narrow}')
    )
    path = written(tmp_path, text, "{narrow: 6}")
    with pytest.raises(UsageError, match=r"mine\.yaml, line \d+: tp 4 cuts the axis narrow of down .* take tp=2"):
        db.instantiate(str(path), tp=4)
    assert not db.graphs()
    assert db.instantiate(str(path), tp=2).new
