"""A real ASTRA-sim runs what an export writes. It is not collected by default, because the simulator is not a package:

STAGEDB_TEST_ASTRA_SIM=BINARY scripts/test tests/traces/astra_sim_runs.py
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.traces.synthetic import workload
from tests.traces.test_congestion_aware import NAME, flat
from tests.traces.written import export_workload


@pytest.mark.parametrize("kind", ["switch", "ring", "fully-connected"])
def test_the_simulator_runs_every_rank(tmp_path: Path, kind: str) -> None:
    export_workload(workload(tp=2, dp=2, pp=2), tmp_path / "traces", system=flat(kind, 8), simulator=NAME)
    command = [str(tmp_path / "traces" / "run.sh"), os.environ["STAGEDB_TEST_ASTRA_SIM"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "8 of 8 ranks finished" in done.stdout
