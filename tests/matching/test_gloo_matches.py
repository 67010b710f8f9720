"""Recorded runs against their plans: clean ones have no finding, and each fault is named with its module and ranks."""

from collections import Counter

import pytest

from stagedb.runs.rank_match import WORK
from stagedb.runs.rank_trace import NONE
from stagedb.runs.run_match import _between
from tests.matching.recorded import CLEAN, FOLDER, match_of, run_of

ALL = (0, 1, 2, 3)

FAULTS: dict[str, list[tuple[str, tuple[int, ...], str, str, str]]] = {
    "fsdp-extra-gather": [("extra", ALL, "after layer.1.ffn.w2", "forward", "all_gather of 393,216 B over 4 ranks")],
    "ddp-small-buckets": [
        ("extra", ALL, "after layer.0.ffn.w3", "backward", "all_reduce of 5,508,096 B over 4 ranks"),
        ("size", ALL, "head to embedding", "backward", "all_reduce of 5,508,096 B over 4 ranks"),
        ("extra", ALL, "after layer.1.ffn.w1", "backward", "all_reduce of 4,720,128 B over 4 ranks"),
    ],
    "hsdp-wide-group": [
        ("group", (1, 3), "layer.1", "backward", "over ranks 0, 1, 2, 3"),
        ("group", (0, 2), "layer.1", "backward", "over ranks 0, 1, 2, 3"),
    ],
    "fsdp-no-prefetch": [("moved", ALL, "layer.1", "backward", "after layer.1, backward")],
    "fsdp-all-reduce": [("kind", ALL, "layer.1", "backward", "all_reduce of 7,080,960 B over 4 ranks")],
    "fsdp-recompute-no-checkpoint": [("missing", ALL, "layer.1", "recompute", "")],
    "fsdp-no-reduction": [("missing", ALL, "layer.1", "backward", "")],
}
"""What each fault is found as: kind, ranks, module, phase and what was seen; what costs most is first."""


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_run_has_no_finding(name: str) -> None:
    assert match_of(name).findings == []


@pytest.mark.parametrize("name", CLEAN)
def test_every_matmul_and_collective_has_its_op(name: str) -> None:
    """By a count of the trace itself: all that is left are barriers and sums of one number."""
    match = match_of(name)
    for rank, trace in run_of(name).ranks.items():
        (found,) = (each for (of, _), each in match.ranks.items() if of == rank)
        assert found.missing == [] and found.changed == []
        counted = Counter(trace.collectives[number].kind for number in trace.ops.collective.tolist() if number != NONE)
        alone = Counter(found.seen[place].kind for place in found.extra)
        paired = Counter(found.seen[each.seen].kind for each in found.matched)
        assert {kind: count - alone[kind] for kind, count in counted.items() if count > alone[kind]} == {
            kind: count for kind, count in paired.items() if kind not in WORK
        }
        assert all(found.seen[place].scalar for place in found.extra if found.seen[place].kind not in WORK)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_module_and_ranks(name: str) -> None:
    found = [(each.kind, each.ranks, each.module, each.phase, each.seen) for each in match_of(name).findings]
    assert found == FAULTS[name]


@pytest.mark.parametrize("name", FAULTS)
def test_a_finding_has_its_time_on_the_critical_path(name: str) -> None:
    """That of the recorded ops, as the import counts it."""
    match = match_of(name)
    differing = {
        (match.run.lane_of[rank].number, found.seen[at].place)
        for (rank, _), found in match.ranks.items()
        for at in (
            *found.beyond_plan(match.planned.stops_early),
            *(pair.seen for pair in found.changed),
            *(pair.seen for pair in found.matched if pair.moved and found.seen[pair.seen].kind not in WORK),
        )
    }
    counted = sum(match.run.lanes[lane].ops[place].critical for lane, place in differing)
    costs = [each.critical for each in match.findings]
    assert sum(each or 0 for each in costs) == counted
    assert costs == sorted(costs, key=lambda each: -(each or 0))
    assert [each is None for each in costs] == [found.kind == "missing" for found in match.findings]


def test_a_rank_that_sleeps_is_late() -> None:
    (found,) = match_of("fsdp-sleep").findings
    assert (found.kind, found.ranks, found.phase) == ("late", (2,), "forward")
    assert (found.module, found.planned) == ("layer.1", "") and found.ns > 150_000_000
    assert found.seen == (
        "rank 2 runs nothing for 150.7 ms before FusedRMSNorm (layer 1); ranks 0, 1, 3 wait for it in all_gather of "
        "layer.1, 102.3 ms at most"
    )
    assert found.reason == "the others run nothing there for 7.7 ms at most"
    assert found.critical == found.ns


@pytest.mark.parametrize(
    ("previous", "module", "between"),
    [
        ("layer.0.ffn.w2", "layer.1.attn.wq", "layer.1"),
        ("layer.1.attn.wo", "layer.1.ffn.w1", "layer.1"),
        ("layer.1.attn.wq", "layer.1.attn.wo", "layer.1.attn"),
        ("layer.1.attn.wq", "layer.1.attn.wq", "layer.1.attn.wq"),
        ("layer.1.ffn.w2", "head", "head"),
        (None, "embedding", "embedding"),
        ("layer.0.ffn.w2", "layer.0 and layer.1", "layer.0 and layer.1"),
    ],
)
def test_a_gap_is_in_the_module_that_is_around_it(previous: str | None, module: str, between: str) -> None:
    assert _between(previous, module) == between


def test_a_layer_in_another_format_is_named() -> None:
    found = match_of("fsdp-mixed-fp32-unit").findings
    assert {(each.kind, each.ranks, each.module) for each in found} == {("format", ALL, "layer.1")}
    assert {(each.planned, each.seen) for each in found} == {("all_gather of bf16", "fp32")}


def test_another_order_of_micro_batches_is_named() -> None:
    found = match_of("pp-all-forwards-first").findings
    assert {each.kind for each in found} == {"order"}
    last = next(each for each in found if 3 in each.ranks)
    assert (last.planned, last.seen) == ("F B F B F B F B", "F F F F B B B B")


def test_every_recording_has_a_test() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    others = {"fsdp-sleep", "fsdp-mixed-fp32-unit", "pp-all-forwards-first"}
    assert names == {*CLEAN, *FAULTS, *others}
