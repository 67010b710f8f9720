"""Memory that a plan accounts for next to what real and made-up runs allocated."""

from dataclasses import replace
from pathlib import Path

import pytest

from stagedb.api.client import Stagedb
from stagedb.memory import memory_of
from stagedb.reports.seen_step import NOT_RECORDED, memory_verdict
from stagedb.runs.memory_match import MemoryAt, compared_memory
from stagedb.runs.stored_run import StoredLevel, StoredMemory, StoredRun
from stagedb.store import Store
from tests.matching.recorded import match_of, program_of, run_of
from tests.runs.stored_rows import stored

MEMORY = Path(__file__).parent / "memory"


def found_of(name: str) -> dict[str, MemoryAt]:
    match = match_of(name)
    return {each.moment: each for each in compared_memory(match.run, match.planned.program)}


def test_a_real_run_allocates_what_its_plan_accounts_for() -> None:
    """DDP of PyTorch on two ranks: to a few bytes, which are the loss and counters of the optimizer."""
    found = found_of("memory-ddp")
    assert list(found) == [
        *("forward_peak", "forward_end", "backward_peak", "backward_end", "optimizer_peak", "step_end", "peak")
    ]
    assert {each.ranks for each in found.values()} == {(0, 1)}
    assert all(each.place == "host" and each.above_start for each in found.values())
    near = {moment: each.difference for moment, each in found.items()}
    # PyTorch has 8 bytes of the mean and of its weight, where the plan has a loss for each of 256 tokens.
    assert near.pop("forward_peak") == -1_016
    assert near == {
        "forward_end": 4,
        "backward_peak": 4,
        "backward_end": 4,
        "optimizer_peak": 12,
        "step_end": -4,
        "peak": 4,
    }
    assert (found["peak"].seen, found["peak"].expected) == (22_166_024, 22_166_020)
    assert memory_verdict([*found.values()]) == (
        "memory of ranks 0-1 peaks at 22.17 MB above the start of the step, on the host "
        "(backward, FusedSwiGLUBackward), as was expected: 22.17 MB (backward, layer.0.ffn.gate.input_gradient)"
    )


def test_a_run_that_frees_later_holds_more_at_the_end_of_its_backward() -> None:
    """FSDP over gloo: gradients that were reduced are freed late, which the plan does not expect."""
    found = found_of("memory-fsdp")
    assert found["forward_peak"].difference == 0 and found["forward_end"].difference == 4
    assert found["peak"].difference == 4_584_964
    text = memory_verdict([*found.values()])
    # The allocator of one rank was later than that of the other.
    assert found["peak"].ranks == (0, 1) and found["peak"].fullest == (1,)
    assert text.startswith("memory of rank 1, the fullest of ranks 0-1, peaks at 43.28 MB above the start of the step")
    assert text.endswith(
        "11.85% more than the expected 38.7 MB (backward, layer.1.ffn.gate.input_gradient); of the ends of phases "
        "backward_end differs the most, by +18.88 MB"
    )


def test_a_device_is_compared_with_all_that_it_holds() -> None:
    """The fullest rank of a class counts, and a device comes before the host."""
    run, program = stored(run_of("memory-ddp")), program_of("memory-ddp")
    (account,) = memory_of(program)
    levels = {moment: sum(held.values()) for moment, held in (*account.ends(), *account.peaks())}

    def held(place: str, rank: int, more: int, absolute: bool = True) -> StoredMemory:
        at = {moment: StoredLevel(size + more, 0, None) for moment, size in levels.items()}
        return StoredMemory(place, absolute, (rank,), None, "backward", None, at)

    seen = (held("host", 0, 1 << 40, False), held("device 0", 0, 512), held("device 0", 1, 1024))
    found = compared_memory(replace(run, memory=seen), program)
    assert {(each.place, each.above_start, each.difference) for each in found} == {("device 0", False, 1024)}
    assert [each.moment for each in found][::7] == ["start", "peak"]
    assert found[-1].share == 1024 / levels["peak"]


def test_without_events_memory_is_not_recorded() -> None:
    run: StoredRun = stored(run_of("ddp"))
    assert compared_memory(run, program_of("ddp")) == ()
    assert memory_verdict(()) == NOT_RECORDED


@pytest.mark.parametrize(
    ("expected", "seen", "text"),
    [(1_000, 1_300, "30.00% more than the expected 1 KB"), (1_000, 990, "1.00% less than the expected 1 KB"),
     (0, 10, "instead of the expected 0 B"), (10**6, 10**6 + 2, "as was expected: 1 MB")],
)  # fmt: skip
def test_the_sentence_has_the_difference(expected: int, seen: int, text: str) -> None:
    peak = MemoryAt(0, (3,), (3,), "device 0", False, "peak", expected, seen, "backward, wq", "backward, aten::mm")
    begin, _, end = memory_verdict([peak]).partition(" on device 0 (backward, aten::mm), ")
    assert begin.startswith("memory of rank 3 peaks at ") and end == f"{text} (backward, wq)"


def test_diff_of_a_plan_and_a_run_has_their_memory(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    run = db.import_run(MEMORY / "ddp", name="seen")
    instance = db.match(run.id).instance
    found = db.diff(instance.id, run.id)
    rows = {row["moment"]: row for row in found.memory}
    assert (rows["peak"]["expected"], rows["peak"]["seen"], rows["peak"]["difference"]) == (22_166_020, 22_166_024, 4)
    assert rows["peak"]["share"] == 4 / 22_166_020
    assert rows["peak"]["seen_in"] == "backward, FusedSwiGLUBackward"
    assert found.memory_verdict.startswith("memory of ranks 0-1 peaks at 22.17 MB above the start of the step")
    assert not found.same
    # What docs/matching.md asks for: matched ops lead from the run's memory to the account.
    db.memory(instance.id)
    page = (Path(__file__).parents[2] / "docs" / "matching.md").read_text(encoding="utf-8")
    question = next(part for part in page.split("```cypher\n") if "RunMemory" in part[:400]).partition("```")[0]
    asked = {row["moment"]: (row["seen"], row["expected"]) for row in db.query(question, run=run.id)}
    start = asked["start"][1]
    assert {moment: seen for moment, (seen, _) in asked.items()} == {"start": 0} | {
        moment: row["seen"] for moment, row in rows.items()
    }
    assert {moment: each - start for moment, (_, each) in asked.items() if moment != "start"} == {
        moment: row["expected"] for moment, row in rows.items()
    }
