"""`find`: the table and the rows of the command, and what it refuses."""

import json

from tests.cli.conftest import Run

PLAN = ("--tp", "2", "--pp", "2", "--ranks", "8")


def test_profiled_instances_are_found(run: Run, tiny: str) -> None:
    assert run("profile", "--model", tiny, *PLAN).status == 0
    assert run("profile", "--scale", "compute=0.1").status == 0
    rows = json.loads(run("find", "--model", "tiny", "--tp", "2", "--system", "h100", "--fits", "-f", "json").out)
    assert [(row["model"], row["ranks"], row["fits"]) for row in rows] == [("tiny", 8, True)]
    assert json.loads(run("find", "--ranks", "4", "-f", "json").out) == []
    ran = run("find", "--tp", "2")
    assert ran.status == 0
    assert {"yes", "tiny", "h100"} <= set(ran.out.splitlines()[1].split())
    refused = run("find", "--model", "tyni")
    assert (refused.status, refused.out) == (2, "")
    assert "did you mean tiny" in refused.err
