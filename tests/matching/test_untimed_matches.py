"""Recorded runs against their plans once their times are taken away: the same ops are found, and nothing about time."""

from dataclasses import fields, replace

import numpy as np
import pytest

from stagedb.runs.measured_run import untimed_run
from stagedb.runs.rank_trace import NONE, RankTrace, RecordedOrder
from stagedb.runs.run_match import RunMatch, match_run
from stagedb.store.contents.matches import counts
from tests.matching.recorded import match_of, program_of, run_of
from tests.matching.test_gloo_matches import FAULTS
from tests.runs.stored_rows import stored


def without_times(trace: RankTrace) -> RankTrace:
    """The ops of a rank in the order in which they were issued, which is that of an execution trace."""
    ops = trace.ops
    issued = np.argsort(np.where(ops.launched == NONE, ops.start, ops.launched), kind="stable")
    columns = {each.name: getattr(ops, each.name)[issued] for each in fields(ops)}
    place, none = np.arange(len(ops)), np.full(len(ops), NONE, np.int64)
    times = {"start": place, "end": place + 1, "launched": none, "synchronised": none}
    nothing = RecordedOrder(("",) * len(ops), (NONE,) * len(ops), ())
    return replace(trace, ops=replace(ops, **{**columns, **times}), order=nothing)


def match_without_times(name: str) -> RunMatch:
    run = untimed_run([without_times(trace) for trace in run_of(name).ranks.values()])
    return match_run(stored(run), program_of(name))


@pytest.mark.parametrize("name", ["ddp", "ep", "fsdp-recompute", "hsdp", "pp-fsdp", "tp"])
def test_all_ops_of_a_clean_run_are_found(name: str) -> None:
    found = match_without_times(name)
    assert found.findings == [] and counts(found) == counts(match_of(name))


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named_and_cost_nothing_known(name: str) -> None:
    found = match_without_times(name).findings
    assert sorted((each.kind, each.ranks, each.module, each.phase, each.seen) for each in found) == sorted(FAULTS[name])
    assert {(each.ns, each.critical) for each in found} == {(0, None)}
