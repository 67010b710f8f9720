"""Chakra's traces as runs: their nodes when dependencies and durations allow, all ranks together."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.api.client import Stagedb
from stagedb.errors import UsageError
from stagedb.runs import MeasuredRun, TraceFileError
from stagedb.runs.run_files import RunFiles
from stagedb.store import Store
from tests.runs.recordings import Recording, measured, training_step
from tests.runs.replayed_run import replay_step
from tests.runs.test_run_traces import pipeline


def exported(store: Store, directory: Path, recordings: list[Recording], **more: Any) -> Path:
    directory.mkdir(exist_ok=True)
    db = Stagedb(store)
    run = db.import_run(*(each.write(directory) for each in recordings))
    return Path(db.export_run(run.id, out=directory / "out", **more).path)


def read(*paths: Path) -> MeasuredRun:
    return measured(RunFiles.of(paths))


@pytest.mark.parametrize("form", ({}, {"compress": True}, {"format": "json"}, {"format": "json", "compress": True}))
@pytest.mark.parametrize("kind", ("groups", "messages"))
def test_a_set_is_a_run_as_long_as_its_replay(store: Store, tmp_path: Path, kind: str, form: dict[str, Any]) -> None:
    recordings = (
        [training_step(rank, 120_000 * (rank == 2)) for rank in range(4)]
        if kind == "groups"
        else [pipeline(rank) for rank in range(2)]
    )
    out = exported(store, tmp_path, recordings, **form)
    run = read(*sorted(out.glob("*.[0-9].*")))
    plain = exported(store, tmp_path / "plain", recordings) if form else out
    # One slot for compute holds up nothing here: the replay has as many as it likes.
    assert run.window == replay_step(plain)
    assert len(run.ranks) == len(recordings) and all(clock.offset == 0 for clock in run.clocks.values())
    assert {len(each.members) for each in run.calls} == {len(recordings)}
    kinds = {each for ops in run.ops.values() for each in ops.kinds}
    assert "all_reduce" in kinds and "matmul" in kinds and "other" not in kinds


def test_a_directory_of_a_set_is_imported_and_asked(store: Store, tmp_path: Path) -> None:
    out = exported(store, tmp_path, [training_step(rank, 120_000 * (rank == 2)) for rank in range(4)])
    db = Stagedb(store)
    run = db.import_run(out, name="again")
    assert (run.tool, run.world, run.job_ranks, run.step) == ("chakra", 4, 4, replay_step(out))
    (late,) = db.query("late_ranks", run="again")
    assert (late["rank"], late["kind"], late["axis"]) == (2, "all_reduce", "mesh_tp")


def node(number: int, name: str, type_: int = 4, took: int = 10, **more: Any) -> dict[str, Any]:
    return {"Id": number, "Name": name, "NodeType": type_, "runtime": took, **more}


def write(path: Path, *nodes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"workload_graph": nodes}))
    return path


def test_the_form_of_other_tools_is_read(tmp_path: Path) -> None:
    """Nodes of a processor launch those of a device; some depend on themselves, on each other, and on absent ones."""
    found = read(
        write(
            tmp_path / "chakra.0.json",
            node(1, "aten::mm(0)", took=7, is_cpu_op=True, ctrlDeps=[99]),
            node(2, "ampere_sgemm_128x64_nn", took=20, is_cpu_op=False, data_deps=[1]),
            node(
                3, "ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", 7, 30, is_cpu_op=False, ctrlDeps=[3], data_deps=[2, 4]
            ),
            node(4, "aten::copy_(1)", took=5, is_cpu_op=True, dataDeps=[3]),
        )
    )
    trace = found.ranks[0]
    assert [trace.names[name] for name in trace.ops.name.tolist()] == [
        "ampere_sgemm_128x64_nn",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)",
    ]
    assert [trace.names[name] for name in trace.ops.launcher.tolist()] == ["aten::mm", "aten::copy_"]
    assert found.ops[0].timed.start.tolist() == [0, 20_000] and found.window == 50_000
    assert found.ops[0].kinds == ("matmul", "broadcast")
    assert trace.left_out == (
        "1 dependencies: nodes on themselves",
        "1 dependencies: nodes that are not in the file",
        "1 dependencies: cycles of nodes",
    )


def test_what_cannot_be_a_run_is_refused(tmp_path: Path) -> None:
    alone = write(tmp_path / "b.0.json", node(1, "recv", 6, comm_src=1, comm_tag=1), node(2, "mm"))
    other = write(tmp_path / "b.1.json", node(1, "mm"))
    with pytest.raises(TraceFileError, match="1 nodes of rank 0 wait for each other, or for a rank that does not come"):
        read(alone, other)
    with pytest.raises(UsageError, match=r"rank0.json is no trace of Chakra, and .*b.1.json is one"):
        read(other, training_step(0).write(tmp_path))
    (tmp_path / "c.0.et").write_bytes(b"\x05abc")
    with pytest.raises(TraceFileError, match="cannot be imported"):
        read(tmp_path / "c.0.et")
    (tmp_path / "d.0.et").write_bytes(gzip.compress(b"\x0a")[:-6])
    with pytest.raises(TraceFileError, match="cannot be imported"):
        read(tmp_path / "d.0.et")
