"""Refusals from each door in its own words: an error has the options of the command line, and keywords of Python."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from stagedb import api
from stagedb.api.python_words import KEYWORDS
from stagedb.cli.plan_options import PlanFileKeys
from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import OPTIONS, Word, call, shown_in
from stagedb.plans import Plan
from stagedb.serve.page_frames import PAGES, linked
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


def test_one_refusal_has_the_words_of_four_doors() -> None:
    with pytest.raises(UsageError) as raised:
        Plan.from_mapping({"dp": 8, "zero": 2, "reshard": False})
    reason = "only zero 3 frees parameters after the forward: "
    texts = {
        OPTIONS: "--no-reshard needs --zero 3, not 2",
        KEYWORDS: "reshard=False needs zero=3, not 2",
        PAGES: "reshard=false needs zero=3, not 2",
    }
    for form, ways in texts.items():
        assert raised.value.text(form) == reason + ways
    keys = PlanFileKeys(Path("mine.yaml"), frozenset())
    assert raised.value.text(keys) == f"mine.yaml: {reason}`reshard: false` needs `zero: 3`, not 2"


def test_a_plan_of_a_file_is_refused_with_its_keys(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text("tp: 3\npp: 2\n", encoding="utf-8")
    (tmp_path / "wrong.yaml").write_text("tp: true\n", encoding="utf-8")

    def refused(*options: str) -> str:
        return run("instantiate", "tiny.yaml", *options).err.splitlines()[-1].removeprefix("Error: ")

    reason = "does not divide the 4 attention heads: the nearest for this model is"
    assert refused("--plan", "plan.yaml") == f"plan.yaml: tp 3 {reason} `tp: 2` or `tp: 4`"
    # What the command line gives goes first.
    assert refused("--plan", "plan.yaml", "--tp", "5") == f"tp 5 {reason} --tp 4"
    assert refused("--plan", "wrong.yaml") == "wrong.yaml: tp must be a whole number, not True (tp)"
    assert refused("--plan", "none.yaml") == "cannot read the plan none.yaml: No such file or directory (--plan)"


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (f"no instance; {call('ls')} lists them", [("the page of instances", "/list/instances")]),
        (f"no profile; {call('ls', 'profiles')} lists them", [("the page of profiles", "/list/profiles")]),
        (f"{call('memory', 'a/b')} does that", [("the page of its memory", "/instances/a%2Fb/memory")]),
        (f"make one with {call('instantiate', 'MODEL')}", [("`stagedb instantiate MODEL`", None)]),
        (f"{call('rm', 'x', force=True)} removes it", [("`stagedb rm x --force`", None)]),
        (f"allow more time with {Word('timeout')}", [("the time-out of this server (ask whoever runs it)", None)]),
        (f"{Word('expert_load', (3, 1))}", [("expert_load=3,1", None)]),
    ],
)
def test_pages_have_links(message: str, parts: list[tuple[str, str | None]]) -> None:
    found = linked(message)
    assert [part for part in found if part[0] not in message] == parts
    assert "".join(text for text, _ in found) == shown_in(PAGES, message)
