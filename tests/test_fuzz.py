"""A share of scripts/fuzz: hostile inputs for each door, and proof that the fuzz finds what is wrong."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts._fuzz_doors import DOORS
from scripts._fuzz_runs import Attempt, Place, prepare, run
from stagedb.store import Store
from tests.sampling import ALL, SEED

ROOT = Path(__file__).parents[1]
INPUTS, SECONDS = 152 if ALL else 44, 60
"""Inputs at most (usually two of each door), and seconds after which no more are begun."""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watches processes as Linux does")
def test_hostile_inputs_do_no_harm(embedded_store: Store, stagedb_home: Path) -> None:
    command = [sys.executable, "-m", "scripts._fuzz", "--count", str(INPUTS), "--budget", str(SECONDS)]
    done = subprocess.run(
        [*command, "--seed", str(SEED), "--home", str(stagedb_home), "--seconds", "60"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"^([0-9,]+) inputs, 0 findings", done.stdout, re.MULTILINE)
    assert counted is not None, done.stdout
    assert int(counted[1].replace(",", "")) >= len(DOORS)


PROGRAMS = {
    "a traceback": ("raise ValueError('x')", "ended with status"),
    "a strange status": ("sys.exit(70)", "ended with status 70"),
    "a wait": ("time.sleep(60)", "did not end in time"),
    "growth": ("kept = bytearray(600 << 20); kept[::4096] = b'x' * len(kept[::4096])", "grew by"),
    "a signal": ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    "a file outside": ("open('../../sentinel/notes.txt', 'a').close()", "wrote outside"),
    "a file outside that is new": ("open('../new', 'w').close()", "wrote outside"),
    "a file that is removed": ("os.remove('../../sentinel/notes.txt')", "wrote outside"),
    "a file of its own": ("open('other', 'w').close()", "changed 'other'"),
    "an escape": ("sys.stderr.write('\\x1b[31m')", "printed control characters"),
    "an error of a library": ("sys.stderr.write('Value error, x'); sys.exit(2)", "shows an error of its libraries"),
    "a long error": ("sys.stderr.write('x' * 10000); sys.exit(2)", "printed an error of 10000 characters"),
    "nothing wrong": ("open('asked', 'w').close(); sys.exit(1)", ""),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watches processes as Linux does")
@pytest.mark.parametrize("case", PROGRAMS)
def test_the_fuzz_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    text, finding = PROGRAMS[case]

    def program() -> None:
        import time

        exec(text, {"os": os, "sys": sys, "time": time})  # noqa: S102

    monkeypatch.setattr("stagedb.cli.main", program)
    place = Place(tmp_path.resolve(), tmp_path / "home", 3.0 if case == "a wait" else 60.0)
    prepare(place)
    found = run(Attempt("values", (), {}, frozenset({"asked"})), place, forked=True)
    assert found.finding.startswith(finding) if finding else found.finding == "", found
