"""Completion of names: what a shell gets, without an engine and without any error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stagedb.cli import completion
from stagedb.store import Store, embedded
from tests.cli.conftest import Run

PLAN = ("--tp", "2", "--pp", "2", "--ranks", "8")


def completed(environment: dict[str, str], *words: str) -> list[str]:
    """What bash would offer for the last of these words."""
    ran = subprocess.run(
        [sys.executable, "-m", "stagedb"],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith(("NEO4J_", "STAGEDB_"))},
            "_STAGEDB_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("stagedb", *words)),
            "COMP_CWORD": str(len(words)),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("export", "--model", "llama3-8"), ["llama3-8b"]),
        (("-q", "build", "gpt2"), ["gpt2"]),
        (("profile", "--system", "h1"), ["h100"]),
        (("query", "hotspots_"), ["hotspots_by_layer"]),
        (("export", "--recipe", "m"), ["megatron"]),
        (("export", "--format", "parq"), ["parquet"]),
        (("memory", ""), []),
        (("show", "x"), []),
    ],
)
def test_names_are_offered_without_an_engine(tmp_path: Path, words: tuple[str, ...], some: list[str]) -> None:
    assert completed({"STAGEDB_HOME": str(tmp_path)}, *words)[: len(some)] == some
    assert embedded.running(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_endpoint_offers_nothing(tmp_path: Path) -> None:
    (tmp_path / "endpoint.json").write_text("{", encoding="utf-8")
    assert completed({"STAGEDB_HOME": str(tmp_path)}, "memory", "") == []


def test_what_the_running_store_holds_is_offered(
    embedded_store: Store, offline: Run, stagedb_home: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGEDB_HOME", str(stagedb_home))
    assert offline("instantiate", tiny, *PLAN, "--name", "mine").status == 0
    assert offline("instantiate", tiny, "--tp", "4", "--name", "$(touch x)").status == 0
    assert offline("profile", "mine", "--name", "timed").status == 0
    environment = {"STAGEDB_HOME": str(stagedb_home), "STAGEDB_CONFIG": os.devnull}
    assert completed(environment, "memory", "m") == ["mine"]
    assert {"mine", "timed"} < set(completed(environment, "diff", ""))
    assert completed(environment, "query", "hotspots", "--profile", "t") == ["timed"]
    assert "touch" not in " ".join(completed(environment, "show", ""))
    assert completed({**environment, "NEO4J_URI": "bolt://127.0.0.1:1"}, "memory", "") == []


def test_any_error_means_no_names() -> None:
    def broken() -> list[str]:
        raise RuntimeError("broken")

    assert completion.one_of(broken)("") == []
    assert completion.one_of(lambda: ["one", "two"])("t") == ["two"]
