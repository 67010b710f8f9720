"""`simulate`: a program that follows the simulator's rules runs the set, and its ranks come next to the profile."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stagedb.api import Stagedb
from stagedb.errors import StagedbError, UsageError
from stagedb.store import Store
from stagedb.systems import parse_system
from stagedb.traces.simulators.astra_files import BUILT
from tests.ir.tiny import card

ROOT = Path(__file__).parents[2]

CLOCK = """
import shutil, sys, tempfile
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.traces.astra_clock import Clock
given = dict(each.removeprefix("--").split("=", 1) for each in sys.argv[1:])
with tempfile.TemporaryDirectory() as place:
    traces = Path(given["workload-configuration"])
    for path in traces.parent.glob(traces.name + ".*.et"):
        (Path(place) / path.name).symlink_to(path.resolve())
    for option in ("comm-group", "system", "network"):
        shutil.copy(given[option + "-configuration"], place)
    clock = Clock(Path(place))
    for rank, finish in enumerate(clock.run()):
        exposed = finish - clock.ranks[rank].computed
        print(f"[workload] [info] sys[{{rank}}] finished, {{finish}} cycles, exposed communication {{exposed}} cycles.")
"""

SYSTEM = {
    "name": "ours",
    "sources": ["a test"],
    "accelerator": {
        "name": "chip",
        "peak": {"bf16": 1, "fp32": 1},
        "memory": {"bandwidth": 100, "capacity": 80},
        "launch": 1000,
    },
    "network": [{"name": "links", "kind": "switch", "bandwidth": 10, "latency": 500}],
}

Program = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def write(text: str) -> Path:
        path = tmp_path / "simulator"
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def db(embedded_store: Store) -> Stagedb:
    return Stagedb(embedded_store)


def exported(db: Stagedb, out: Path, **words: object) -> Path:
    system = parse_system(json.dumps(SYSTEM))
    db.export(model=card("llama"), out=out, system=system, tp=2, pp=2, seq_len=64, global_batch_size=4, **words)  # type: ignore[arg-type]
    return out


def test_the_ranks_of_a_simulator_come_next_to_the_profile(db: Stagedb, tmp_path: Path, program: Program) -> None:
    binary = program(CLOCK.format(root=str(ROOT)))
    out = exported(db, tmp_path / "set", durations_in_traces=True)
    (out / "network.yml").write_text("edited")
    found = db.simulate(out, binary=binary)
    assert (found.system, found.compute) == ("ours", "durations")
    assert sorted(found.finishes) == [0, 1, 2, 3]
    assert max(found.finishes.values()) == found.makespan
    assert found.step == next(each.step for each in db.profiles())
    rows = [dict(zip(found.ranks.columns, row, strict=True)) for row in found.ranks.rows]
    assert sum(row["ranks"] for row in rows) == 4
    for row in rows:
        assert row["computing"] + row["exposed"] + row["waiting"] == row["step"] == found.step
        assert row["simulated_computing"] == pytest.approx(row["computing"], rel=0.02)
    what, steps = zip(*((row[0], row[1]) for row in found.differences.rows), strict=True)
    assert what[0] == "profile"
    assert any("one collective or message at a time" in each for each in what)
    assert steps[-1] == found.makespan
    # The rules that are named explain the difference.
    assert steps[-2] == pytest.approx(found.makespan, rel=0.02)


def test_a_roofline_is_a_difference_that_is_named(db: Stagedb, tmp_path: Path, program: Program) -> None:
    found = db.simulate(exported(db, tmp_path / "set"), binary=program(CLOCK.format(root=str(ROOT))))
    assert found.compute == "roofline"
    assert any("without efficiencies and launches" in row[0] for row in found.differences.rows)
    assert found.differences.rows[-2][1] == pytest.approx(found.makespan, rel=0.02)


FAILURES = {
    "ranks hang": (
        "print('sys[0] finished, 5 cycles, exposed communication 1 cycles.')",
        60.0,
        "3 of 4 ranks did not finish, .* rank 1",
    ),
    "another program": ("pass", 60.0, r"4 of 4 .*no output; is .* the program AstraSim_Analytical_Cong"),
    "an error": ("import sys; sys.exit('no such option')", 60.0, r"4 of 4 ranks did not.*status 1.*no such option"),
    "no end": ("import time; time.sleep(60)", 1.0, "more than 1 s: timeout sets another limit"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_simulator_that_fails_is_named(db: Stagedb, tmp_path: Path, program: Program, failure: str) -> None:
    text, timeout, reason = FAILURES[failure]
    with pytest.raises(StagedbError, match=reason):
        db.simulate(exported(db, tmp_path / "set"), binary=program(text), timeout=timeout)


def test_the_script_of_a_set_finds_a_program_or_explains_how_to_build_one(
    db: Stagedb, tmp_path: Path, program: Program
) -> None:
    """As `simulate` does: by the path from there, the environment's, a checkout there; else it explains."""
    out = exported(db, tmp_path / "set", durations_in_traces=True)

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**{key: text for key, text in os.environ.items() if key != "ASTRA_SIM"}, **more}
        command = [str(out / "run.sh"), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    absent = run()
    assert absent.returncode == 127 and "finished" not in absent.stdout
    assert all(each in absent.stderr for each in ("git clone --recurse-submodules https", "build.sh", "PROGRAM"))
    assert "nothing, the simulator's program, is not here" in run("nothing").stderr
    binary = program(CLOCK.format(root=str(ROOT)))
    nearby = os.path.relpath(binary, tmp_path)
    for found in (run(f"./{nearby}"), run(ASTRA_SIM=f"./{nearby}"), run(str(binary))):
        assert found.stdout.endswith("4 of 4 ranks finished\n"), found.stderr
    built = tmp_path / BUILT / "AstraSim_Analytical_Congestion_Unaware"
    built.parent.mkdir(parents=True)
    built.symlink_to(binary)
    assert run().stdout.endswith("4 of 4 ranks finished\n")


def test_a_simulator_is_found_where_it_is_built(
    db: Stagedb, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a program: the environment's, the search path, a checkout here; else the way to build one."""
    out = exported(db, tmp_path / "set", durations_in_traces=True)
    monkeypatch.delenv("ASTRA_SIM", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"git clone https.*astra-sim .*/build.sh.*ASTRA_SIM=PROGRAM"):
        db.simulate(out)
    binary = program(CLOCK.format(root=str(ROOT)))
    built = tmp_path / BUILT / "AstraSim_Analytical_Congestion_Unaware"
    built.parent.mkdir(parents=True)
    built.symlink_to(binary)
    assert len(db.simulate(out).finishes) == 4
    monkeypatch.chdir("/")
    monkeypatch.setenv("PATH", f"{built.parent}:{os.environ['PATH']}")
    assert len(db.simulate(out).finishes) == 4
    monkeypatch.setenv("ASTRA_SIM", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"cannot run .*nothing: ASTRA_SIM takes the simulator's program"):
        db.simulate(out)


def test_what_a_simulator_cannot_run_is_refused(db: Stagedb, tmp_path: Path, program: Program) -> None:
    binary = program("")
    out = exported(db, tmp_path / "set")
    with pytest.raises(UsageError, match="cannot run"):
        db.simulate(out, binary=tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"has no manifest.json: .* takes a directory"):
        db.simulate(tmp_path, binary=binary)
    with pytest.raises(UsageError, match="gzipped"):
        db.simulate(exported(db, tmp_path / "gzipped", compress=True), binary=binary)
    with pytest.raises(UsageError, match="the binary traces of all ranks"):
        db.simulate(exported(db, tmp_path / "slice", only="0"), binary=binary)
    manifest = json.loads((out / "manifest.json").read_text())
    wrong: list[dict[str, object]] = [
        {"traffic": [{}]},
        {"traffic": 3},
        {"name": "../set"},
        {"world": "8"},
        {"system": {}},
        {"plan": []},
    ]
    for changes in wrong:
        shutil.copytree(out, tmp_path / "changed")
        (tmp_path / "changed" / "manifest.json").write_text(json.dumps({**manifest, **changes}))
        with pytest.raises(UsageError):
            db.simulate(tmp_path / "changed", binary=binary)
        shutil.rmtree(tmp_path / "changed")
