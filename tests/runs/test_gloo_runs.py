"""Runs of real PyTorch over gloo, recorded by `scripts/record_runs`: what they communicate is known from elsewhere."""

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stagedb.api.importing import trace_files
from stagedb.runs import MeasuredRun
from stagedb.runs.clocks import MESSAGES
from stagedb.runs.rank_trace import NONE, RankTrace
from stagedb.runs.run_files import RunFiles
from stagedb.runs.run_rows import ELEMENT_BYTES

FOLDER = Path(__file__).parent / "gloo"
RUNS = sorted(path.name for path in FOLDER.iterdir())
CLOSE = 100_000
"""Ns by which a clock may be wrong."""


@cache
def run_of(name: str) -> MeasuredRun:
    return read([FOLDER / name])


def read(paths: Sequence[Path]) -> MeasuredRun:
    return RunFiles.of(trace_files(paths)).read()


def sent_in(name: str) -> dict[int, Any]:
    """What each rank communicated, as the program itself listed it."""
    _, *ranks = (FOLDER / name / "expected.jsonl").read_text(encoding="utf-8").splitlines()
    return dict(enumerate(map(json.loads, ranks)))


def communicated(trace: RankTrace) -> list[dict[str, Any]]:
    """What a rank communicated, in the order of the calls, in the words of `expected.jsonl`."""
    ops = trace.ops
    rows = []
    for place in sorted((ops.collective != NONE).nonzero()[0].tolist(), key=lambda at: int(ops.launched[at])):
        each = trace.collectives[ops.collective[place]]
        row: dict[str, Any] = {"kind": each.kind, "ranks": list(each.ranks)}
        if each.kind != "barrier":
            row["bytes"] = max(each.sent or 0, each.received or 0) * ELEMENT_BYTES[each.dtype]
        if each.kind in MESSAGES:
            assert each.peer is not None
            row["peer"] = each.ranks[each.peer]
        rows.append(row)
    return rows


@pytest.mark.parametrize("name", RUNS)
def test_all_that_the_program_communicates_is_found(name: str) -> None:
    assert {rank: communicated(trace) for rank, trace in run_of(name).ranks.items()} == sent_in(name)


@pytest.mark.parametrize("name", RUNS)
def test_all_members_of_a_collective_are_matched(name: str) -> None:
    for call in run_of(name).calls:
        wanted = 2 if call.collective.kind in MESSAGES else len(call.collective.ranks)
        assert len(call.members) == wanted, call
        assert not call.by_order


def rewritten(source: Path, target: Path, content: Mapping[str, Any]) -> None:
    (target / source.name).write_bytes(gzip.compress(json.dumps(content).encode(), 1, mtime=0))


@pytest.mark.parametrize("name", RUNS)
def test_clocks_that_differ_by_up_to_a_second_are_found(name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    shifts = {}
    for path in sorted((FOLDER / name).glob("rank*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        if "traceEvents" in content:
            shift = chance.randrange(-1_000_000, 1_000_000)
            shifts[content["distributedInfo"]["rank"]] = shift * 1000
            for event in content["traceEvents"]:
                event["ts"] += shift
        rewritten(path, tmp_path, content)
    clocks = read([tmp_path]).clocks
    found = {rank: clock.offset - (shifts[rank] - shifts[0]) for rank, clock in clocks.items()}
    assert {rank: wrong for rank, wrong in found.items() if abs(wrong) > CLOSE} == {}
