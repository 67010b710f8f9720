"""Large jobs at their real size: ranks of every class, and others at random, are what the plain encoder has."""

import random
from pathlib import Path

import numpy as np
import pytest

from stagedb.api import Stagedb, unpack, validate
from stagedb.store import Store
from stagedb.store.contents.stored_programs import read_workload
from tests.traces.plain import Dependencies, parse, plain_nodes

PALM = {"model": "palm-540b", "tp": 8, "pp": 16, "micro_batch_size": 4}
LLAMA = {"model": "llama3-70b", "dp": 2, "tp": 8, "pp": 2, "global_batch_size": 256}
CASES = {
    "palm": ({**PALM, "ranks": 32768}, 20),
    "palm-131072": ({**PALM, "ranks": 131072}, 20),
    "palm-64-microbatches": ({**PALM, "ranks": 32768, "global_batch_size": 65536}, 3),
    "llama-128-microbatches": (LLAMA, 1),
}
"""Words of the plan, and how many random ranks: those of long traces take the plain encoder a while."""


@pytest.mark.parametrize("case", list(CASES))
def test_ranks_are_what_the_plain_encoder_writes(embedded_store: Store, tmp_path: Path, case: str) -> None:
    words, count = CASES[case]
    db = Stagedb(embedded_store)
    packed = db.export(**words, packed=True, out=tmp_path / "set.packed")  # type: ignore[arg-type]
    workload = read_workload(embedded_store, packed.instance.id)
    number = workload.ranks.number
    last = [int(np.flatnonzero(number == each.number)[-1]) for each in workload.classes]
    chosen = sorted({0, 1, *last, *random.Random(case).sample(range(packed.world), count)})
    only = ",".join(map(str, chosen))
    db.export(packed.instance.id, only=only, out=tmp_path / "exported")
    unpack(tmp_path / "set.packed", only=only, out=tmp_path / "unpacked")
    report = validate(tmp_path / "exported")
    assert (report.faults, report.files, report.world) == ((), len(chosen), packed.world)
    known: dict[int, Dependencies] = {}
    for rank in chosen:
        name = f"{words['model']}.{rank}.et"
        data = (tmp_path / "exported" / name).read_bytes()
        assert data == (tmp_path / "unpacked" / name).read_bytes()
        metadata, nodes = parse(data)
        assert {each.name: each.int32_val for each in metadata.attr}["rank"] == rank
        assert nodes == plain_nodes(workload, rank, known=known)
