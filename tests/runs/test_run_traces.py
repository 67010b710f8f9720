"""A run as Chakra traces: every rule, a replay, and a step as long as the one that was recorded."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import validate
from stagedb.api.client import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store
from stagedb.traces import chakra_pb2 as pb
from stagedb.traces import read_trace
from tests.runs.recordings import Recording, step, training_step
from tests.runs.replayed_run import replay_step


def export(store: Store, directory: Path, recordings: list[Recording], **more: Any) -> Any:
    source = directory / "source"
    source.mkdir()
    db = Stagedb(store)
    run = db.import_run(*(each.write(source) for each in recordings))
    return db.export_run(run.id, out=directory / "out", **more)


def pipeline(rank: int) -> Recording:
    """A message from rank 0 to rank 1, which waits for it, and an all-reduce of both that they do not wait for."""
    found = Recording(rank, 2)
    group: dict[str, Any] = {
        "Process Group Name": "2",
        "Process Group Description": "mesh_pp",
        "Src Rank": 0,
        "Dst Rank": 1,
    }
    found.kernel("ampere_sgemm_128x64_nn", 1_000, 50_000 if rank == 0 else 20_000)
    name, begin = ("send", 52_000) if rank == 0 else ("recv", 22_000)
    found.collective(name, begin, 60_000 - begin, (0, 1), **group)
    found.kernel("ampere_sgemm_128x64_tn", 61_000, 30_000, launched=2_000)
    found.collective("allreduce", 92_000, 40_000, (0, 1), launched=3_000)
    found.kernel("ampere_sgemm_128x64_tt", 93_000, 25_000, launched=4_000)
    return found


def test_a_run_is_exported_in_its_order_with_its_durations(store: Store, tmp_path: Path) -> None:
    recordings = [training_step(rank, 120_000 * (rank == 2)) for rank in range(4)]
    done = export(store, tmp_path, recordings)
    assert (done.world, done.files, done.replayed, done.left_out) == (4, 4, True, ())
    report = validate(done.path)
    assert (report.faults, report.replayed) == ((), True)
    assert replay_step(done.path) == done.run.step
    # The wait for rank 2 is no node: ranks that are faster than it have less to do.
    work = []
    for rank in range(4):
        trace = read_trace(next(done.path.glob(f"*.{rank}.et")))
        kinds, timed = trace.attributes["kind"], trace.attributes["duration_ns"]
        work.append(sum(ns for kind, ns in zip(kinds, timed, strict=True) if kind not in ("host", "gap")))
    assert work[0] == work[1] == work[3] == work[2] - 120_000


def test_collectives_have_their_groups_and_bytes(store: Store, tmp_path: Path) -> None:
    done = export(store, tmp_path, [training_step(rank) for rank in range(4)])
    groups = json.loads((done.path / f"{done.run.id[:12]}.json").read_text())
    assert groups == {"1": [0, 1, 2, 3]}
    trace = read_trace(next(done.path.glob("*.1.et")))
    found = [
        (trace.attributes["comm_type"][at], trace.attributes["comm_size"][at], trace.attributes["pg_name"][at])
        for at, kind in enumerate(trace.types)
        if kind == pb.COMM_COLL_NODE
    ]
    assert found == [(pb.ALL_REDUCE, 2 * 8_388_608, "1")] * 4


def test_messages_and_what_overlaps(store: Store, tmp_path: Path) -> None:
    done = export(store, tmp_path, [pipeline(rank) for rank in range(2)])
    assert validate(done.path).faults == () and done.left_out == ()
    assert replay_step(done.path) == done.run.step == 131_000
    types = [set(read_trace(next(done.path.glob(f"*.{rank}.et"))).types) for rank in range(2)]
    assert pb.COMM_SEND_NODE in types[0] and pb.COMM_RECV_NODE in types[1]


def test_ranks_that_were_not_recorded_are_named(store: Store, tmp_path: Path) -> None:
    """Two of four ranks: their collectives are among both, and the set has the ranks 0 and 1."""
    done = export(store, tmp_path, [training_step(rank) for rank in (1, 3)])
    assert (done.world, done.run.job_ranks) == (2, 4)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert (manifest["recorded"], manifest["world"], manifest["run"]) == ([1, 3], 2, done.run.id)
    assert validate(done.path).faults == () and replay_step(done.path) == done.run.step


def test_what_no_simulator_runs_is_named(store: Store, tmp_path: Path) -> None:
    recording = step(0, 2)
    done = export(store, tmp_path, [recording])
    assert done.left_out == (
        "1 collectives and messages whose other ranks were not recorded are compute nodes with their durations",
    )
    assert replay_step(done.path) == done.run.step


@pytest.mark.parametrize("format", ("parquet", "xml"))
def test_formats_without_a_file_a_rank_are_refused(store: Store, tmp_path: Path, format: str) -> None:
    with pytest.raises(UsageError, match="a run is exported as et or json"):
        export(store, tmp_path, [step(0, 1)], format=format)


def test_as_json_and_compressed(store: Store, tmp_path: Path) -> None:
    done = export(store, tmp_path, [step(rank) for rank in range(2)], format="json", compress=True)
    first = next(done.path.glob("*.0.json"))
    assert json.loads(gzip.decompress(first.read_bytes()))["workload_graph"][-1]["Name"].endswith("COMP_NODE")


def test_a_run_timed_again(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    run = db.import_run(*(training_step(rank, 120_000 * (rank == 2)).write(tmp_path) for rank in range(4)), name="r")
    assert run.step is not None
    as_it_was = db.replay_run("r")
    assert (as_it_was.measured, as_it_was.base, as_it_was.step) == (run.step,) * 3
    assert db.replay_run("r", scale=["collective=0", "host=0"]).step < run.step
    assert db.replay_run("r", scale=["collective:all_reduce=2"]).step > run.step
    assert db.replay_run("r", scale=["rank:2=0.5"]).step <= run.step
    assert db.replay_run("r", without=["member"]).step <= run.step
    for wrong, why in (
        ("collective:mesh_dp=0", "chooses nothing in the run: it has all_reduce, mesh_tp"),
        ("class:1=2", "chooses by 'class', and it must be one of compute, copy, collective.*collective:all_reduce=0.5"),
        ("matmul=2", "write compute:matmul=2$"),
        ("mesh_tp=2/3", "write collective:mesh_tp=2/3$"),
        ("backward=0.5", "write phase:backward=0.5$"),
        ("collectives=2", "did you mean collective"),
        ("collective=fast", "such as collective:all_reduce=0.5, with one of compute, copy"),
        ("collective:=2", "such as collective:all_reduce=0.5"),
        ("compute=1/0", "divides by zero"),
        ("rank=2", "does not name the rank"),
        ("rank:9=2", "chooses nothing in the run: it has rank 0, 1, 2, 3"),
    ):
        with pytest.raises(UsageError, match=why):
            db.replay_run("r", scale=[wrong])


def test_tables_of_a_run(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    db.import_run(*(training_step(rank, 120_000 * (rank == 2)).write(tmp_path) for rank in range(4)), name="r")
    ops, collectives = db.run_ops("r").to_pandas(), db.run_collectives("r").to_pandas()
    assert len(ops) == 4 * 13 and sorted(set(ops["rank"])) == [0, 1, 2, 3]
    assert (
        ops[(ops["kind"] == "all_reduce") & (ops["rank"] == 0)]["work"].sum()
        < ops[(ops["kind"] == "all_reduce") & (ops["rank"] == 0)]["duration"].sum()
    )
    assert len(collectives) == 16 and collectives["waits"].max() == 120_000 and set(collectives["last"]) >= {2}


GLOO = sorted(path for path in (Path(__file__).parent / "gloo").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", GLOO, ids=[path.name for path in GLOO])
def test_a_run_of_pytorch_replays_as_long_as_it_took(embedded_store: Store, tmp_path: Path, folder: Path) -> None:
    db = Stagedb(embedded_store)
    run = db.import_run(*sorted(folder.glob("rank*.json.gz")), name=folder.name)
    done = db.export_run(folder.name, out=tmp_path / "out")
    report = validate(done.path)
    assert run.step is not None
    assert (report.faults, report.replayed) == ((), True)
    assert abs(replay_step(done.path) / run.step - 1) <= 0.02
    found = db.replay_run(folder.name)
    assert (found.base, found.measured) == (run.step, run.step)
    assert found.gaps / found.measured <= 0.05
    # In a pipeline other ranks and threads hold up an op, in all runs the program of its own thread does.
    for kind in ("other", "host", "member"):
        assert db.replay_run(folder.name, without=[kind]).step < run.step, kind
