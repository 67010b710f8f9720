"""`jobs`: the list of what commands do."""

import json

import pytest

from stagedb.api import jobs
from tests.cli.conftest import Run


def test_jobs_are_listed(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run("jobs", "-f", "json").out) == []
    monkeypatch.setattr(jobs, "PATIENCE", 0.0)
    end = jobs.RunningJob.end

    def slow(self: jobs.RunningJob, state: str) -> None:
        self._thread.join(0.5)
        end(self, state)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs.RunningJob, "end", slow)
    assert run("profile", "--model", tiny, "--tp", "2", "--ranks", "4", "--global-batch-size", "4").status == 0
    (row,) = json.loads(run("jobs", "-f", "json").out)
    assert (row["job"], row["of"], row["state"], row["unit"]) == ("profile", "tiny.yaml", "done", "rows")
    assert row["about"].startswith(json.loads(run("ls", "profiles", "-f", "json").out)[0]["id"])
    assert "profile" in run("jobs").out
