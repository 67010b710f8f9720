"""Refusals from each door in its own words: an error has the options of the command line, and keywords of Python."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb import api
from stagedb.errors import StagedbError
from stagedb.mentions import OPTIONS
from tests.cli.conftest import TINY, Run

REFUSALS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "refusals.yaml").read_text(encoding="utf-8"))
IDS = [" ".join(each["arguments"]) for each in REFUSALS]


@pytest.mark.parametrize("refusal", REFUSALS, ids=IDS)
def test_each_door_has_its_own_words(run: Run, tmp_path: Path, refusal: dict[str, Any]) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("notes", encoding="utf-8")
    options = refusal.get("options") or refusal["both"]
    refused = run(*refusal["arguments"])
    assert refused.status != 0
    assert refused.err.splitlines()[-1] == f"Error: {options}"
    with api.connect() as db, pytest.raises(StagedbError) as raised:
        getattr(db, refusal["verb"])(*refusal.get("target", ()), **refusal.get("words", {}))
    assert str(raised.value) == (refusal.get("keywords") or refusal["both"])
    # typer checks some values before a verb does.
    if not refusal.get("read_by_typer"):
        assert raised.value.text(OPTIONS) == options
