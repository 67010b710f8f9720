"""What ASTRA-sim gets means what the profile means, for every schedule, form of context parallelism and kind of group.

Groups of some ranks that span levels need the cost model's rules of ASTRA-sim (`collectives.model`).
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.plans.graph_options import CP_KINDS
from stagedb.schedules import LOOP, SCHEDULES
from stagedb.systems import Collectives, System
from stagedb.traces.set_validation import validate_traces
from tests.traces.astra_clock import finishes
from tests.traces.simulated import FLAT, MESH, RING, TWO, exported, profiled, ratio

LLAMA, EXPERTS = "llama3.2-1b", "mixtral-8x7b"
DURATIONS, ROOFLINE = (0.98, 1.02), (0.95, 1.05)


def ratios(of: System, out: Path, model: str, layers: int, **words: Any) -> dict[str, float]:
    """By where compute has its time from, the makespan of the simulator over the step."""
    form = {name: words.pop(name) for name in ("granularity",) if name in words}
    job = profiled(of, model, layers, **words)
    found = {}
    for timed, name in ((True, "durations"), (False, "roofline")):
        at = exported(job, out / name, timed=timed, **form)
        assert validate_traces(at, replayed=False).faults == ()
        found[name] = ratio(finishes(at), job)
    return found


def matched(of: System, out: Path, model: str, layers: int, **words: Any) -> bool:
    """Whether the simulator takes as long as the profile."""
    found = ratios(of, out, model, layers, **words)
    assert DURATIONS[0] < found["durations"] < DURATIONS[1]
    assert ROOFLINE[0] < found["roofline"] < ROOFLINE[1]
    return True


def simulated(of: System, parts: int = 1) -> System:
    return dataclasses.replace(of, collectives=Collectives("astra-sim", parts))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule(tmp_path: Path, schedule: str) -> None:
    chunks = 2 if SCHEDULES[schedule].several_chunks else 1
    # The weights of gpt2 are tied.
    model = "gpt2" if SCHEDULES[schedule].placement is LOOP else "llama2-7b"
    words = {"pp": 2, "schedule": schedule, "virtual_stages": chunks, "global_batch_size": 4, "seq_len": 512}
    assert matched(FLAT, tmp_path, model, 4, **words)


@pytest.mark.parametrize("kind", [kind for kind in CP_KINDS if kind != "none"])
def test_every_form_of_context_parallelism(tmp_path: Path, kind: str) -> None:
    """Its groups have every second rank of two nodes, so that rings and exchanges leave a node."""
    words = {"tp": 2, "cp": 4, "dp": 2, "cp_kind": kind, "global_batch_size": 2, "seq_len": 2048}
    both = {"ulysses": 2} if kind == "ulysses-ring" else {}
    assert matched(simulated(TWO), tmp_path, LLAMA, 1, **words, **both)


def test_ranks_that_share_caches(tmp_path: Path) -> None:
    words = {"workflow": "decode", "cache_len": 2046, "tp": 2, "cp": 4, "dp": 2, "micro_batch_size": 16}
    assert matched(simulated(TWO), tmp_path, LLAMA, 1, **words)


GROUPS: dict[str, tuple[System, str, dict[str, Any]]] = {
    "replicas on two levels": (TWO, LLAMA, {"tp": 2, "dp": 8, "global_batch_size": 8}),
    "replicas inside, tensors outside": (
        TWO,
        LLAMA,
        {"tp": 4, "pp": 2, "dp": 2, "rank_order": ("dp", "cp", "tp", "pp"), "global_batch_size": 4},
    ),
    "all ranks of two levels": (TWO, LLAMA, {"dp": 8, "global_batch_size": 8}),
    "experts of some ranks": (TWO, EXPERTS, {"tp": 2, "dp": 4, "ep": 4, "expert_tp": True, "global_batch_size": 4}),
    "experts on a ring of links": (RING, EXPERTS, {"dp": 8, "ep": 8, "global_batch_size": 8}),
    "some ranks of a mesh": (MESH, LLAMA, {"tp": 2, "dp": 4, "global_batch_size": 4}),
    "degrees that do not fill a node": (TWO, LLAMA, {"dp": 3, "pp": 4, "global_batch_size": 3}),
}


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("name", GROUPS)
def test_every_kind_of_group(tmp_path: Path, name: str, parts: int) -> None:
    of, model, words = GROUPS[name]
    assert matched(simulated(of, parts), tmp_path, model, words.get("pp", 1), seq_len=1024, **words)


def test_nodes_of_whole_blocks(tmp_path: Path) -> None:
    words = {"tp": 2, "dp": 2, "global_batch_size": 2, "seq_len": 1024}
    assert matched(FLAT, tmp_path, LLAMA, 2, granularity="block", **words)


def test_an_exchange_of_some_ranks_on_several_levels_goes_to_each_directly(tmp_path: Path) -> None:
    """With an implementation for each level the simulator would pass all bytes on around a ring."""
    words = {"tp": 2, "dp": 4, "ep": 4, "expert_tp": True, "global_batch_size": 4, "seq_len": 1024}
    out = exported(profiled(TWO, EXPERTS, 1, **words), tmp_path / "set", timed=True)
    assert json.loads((out / "system.json").read_text())["all-to-all-implementation"] == ["oneDirect1"]
