"""`ls`: plans, figures, filters and order; the caller's own newest; options before the command; groups of the help."""

import json
from pathlib import Path
from typing import Any

import pytest

from stagedb.cli.ls_show_rm import _table
from stagedb.store import Store, current_user, user_of
from tests.cli.conftest import Run

PLAN = ("--tp", "2", "--pp", "2", "--ranks", "8")


def rows(run: Run, *arguments: str) -> list[dict[str, Any]]:
    ran = run("ls", *arguments, "-f", "json")
    assert ran.status == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


def test_plans_and_figures_are_listed_filtered_and_sorted(run: Run, tiny: str) -> None:
    assert run("memory", "--model", tiny, *PLAN).status == 0
    assert run("profile").status == 0
    assert run("profile", "--scale", "compute=2", "--blocking", "tp").status == 0
    assert run("instantiate", tiny, "--tp", "4", "--name", "other").status == 0
    graph, other, first, slow, plain = rows(run)
    assert [graph["kind"], other["kind"], slow["kind"]] == ["graph", "instance", "profile"]
    assert (first["plan"], first["model"]) == ("tp 2 pp 2 dp 2 seq-len 32", "tiny")
    assert (first["step"], first["mfu"], other["peak"]) == (None, None, None)
    assert first["peak"] == slow["peak"] > 0
    assert (slow["timing"], plain["timing"]) == ("scale compute=2 blocking tp", None)
    assert (plain["plan"], plain["instance"], plain["system"]) == (first["plan"], first["id"], "h100")
    assert slow["step"] > plain["step"] > 0
    assert 0 < slow["mfu"] < plain["mfu"]
    assert [row["id"] for row in rows(run, "profiles", "--sort", "step")] == [plain["id"], slow["id"]]
    assert [row["id"] for row in rows(run, "profiles", "--sort", "mfu", "--limit", "1")] == [plain["id"]]
    assert [row["id"] for row in rows(run, "instances", "--sort", "memory")] == [first["id"], other["id"]]
    assert {row["kind"] for row in rows(run, "--system", "h100")} == {"profile"}
    assert rows(run, "--model", "tiny") == [graph, other, first, slow, plain]
    printed = run("ls").out
    for title in ("graphs\n", "\ninstances\n", "\nprofiles\n"):
        assert title in printed
    assert "scale compute=2 blocking tp" in printed


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--model", "tyni"), "--model 'tyni': the store has nothing of it: did you mean tiny?"),
        (("--system", "H100"), "--system 'H100': the store has nothing of it"),
        (("instances", "--system", "h100"), "only profiles and searches have a system"),
    ],
)
def test_what_cannot_be_listed_is_refused(run: Run, tiny: str, arguments: tuple[str, ...], error: str) -> None:
    assert run("build", tiny).status == 0
    ran = run("ls", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert error in ran.err


def test_nobody_moves_a_name_of_somebody_else(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(user: str, *arguments: str) -> tuple[str, list[str]]:
        monkeypatch.setenv("STAGEDB_USER", user)
        ran = run(*arguments)
        assert ran.status == 0, ran.err
        row = rows(run, "instances")[0]
        return row["name"], row["names"]

    assert names("ada", "instantiate", tiny, *PLAN, "--name", "base") == ("base", ["ada/base"])
    assert names("bob", "instantiate", tiny, *PLAN) == ("ada/base", ["ada/base"])
    assert names("bob", "instantiate", tiny, *PLAN, "--name", "base") == ("base", ["ada/base", "bob/base"])
    assert names("bob", "instantiate", tiny, "--tp", "4", "--name", "base") == ("base", ["bob/base"])
    assert names("ada", "show", "base") == ("base", ["ada/base"])
    refused = run("name", "base", "bob/base")
    assert (refused.status, refused.out) == (2, "")
    assert "nobody moves a name of somebody else: yours begin with ada/" in refused.err
    monkeypatch.setenv("STAGEDB_WORKSPACE", "team")
    assert run("name", "bob/base", "team/best").status == 0
    monkeypatch.setenv("STAGEDB_USER", "eve")
    assert "is the name of more than one instance: give one of ada/base, bob/base" in run("show", "base").err
    assert json.loads(run("show", "best", "-f", "json").out)[0] == {"property": "kind", "value": "instance"}
    assert {row["name"] for row in rows(run, "instances")} == {"ada/base", "team/best"}
    assert rows(run, "instances", "--mine") == []


def test_a_name_is_removed_and_what_others_need_stays(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_user(name: str, *arguments: str, status: int = 0) -> str:
        monkeypatch.setenv("STAGEDB_USER", name)
        ran = run(*arguments)
        assert ran.status == status, ran.err
        return ran.out + ran.err

    as_user("ada", "instantiate", tiny, *PLAN, "--name", "base")
    as_user("bob", "name", "base", "mine")
    (row,) = rows(run, "instances")
    assert "removed the name bob/mine; instance" in as_user("bob", "rm", "mine")
    as_user("bob", "name", "base", "mine")
    assert "stays (bob/mine)" in as_user("ada", "rm", "base")
    assert [each["id"] for each in rows(run, "instances")] == [row["id"]]
    assert "is not yours alone (bob/mine)" in as_user("ada", "rm", row["id"], status=2)
    assert "is not yours alone (made by ada)" in as_user("bob", "rm", row["id"], status=2)
    assert "bob/mine is a name of bob" in as_user("ada", "rm", "bob/mine", status=2)
    removed = as_user("ada", "rm", row["id"], "--force")
    assert "(made by ada" in removed or "bob/mine" in removed
    assert rows(run, "instances") == []
    as_user("ada", "instantiate", tiny, *PLAN, "--name", "base")
    as_user("ada", "name", "base", "other")
    assert "stays (ada/other)" in as_user("ada", "rm", "base")
    assert as_user("ada", "rm", "other").startswith("removed instance")
    assert rows(run, "instances") == []


def test_tags_and_notes_are_everybodys(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEDB_USER", "ada")
    assert run("profile", "--model", tiny, *PLAN, "--name", "timed").status == 0
    kinds = {row["kind"]: row["id"] for row in rows(run)}
    assert kinds.keys() == {"graph", "instance", "profile"}
    for id in kinds.values():
        assert run("tag", id, "paper", "v2").status == 0
        assert run("note", id, "for the paper's table 3").status == 0
    monkeypatch.setenv("STAGEDB_USER", "bob")
    assert {row["kind"] for row in rows(run, "--tag", "paper")} == kinds.keys()
    assert "paper, v2" in run("tag", kinds["profile"], "paper").out
    assert run("tag", kinds["profile"], "paper", "--remove").out.endswith("has the tags v2\n")
    assert {row["kind"] for row in rows(run, "--tag", "paper")} == {"graph", "instance"}
    assert "has no tag 'paper'" in run("tag", kinds["profile"], "paper", "--remove").err
    assert "for the paper's table 3" in run("show", "timed").out
    for bad in ("two words", "", "x" * 65):
        assert run("tag", kinds["graph"], bad).status == 2
    assert run("note", kinds["graph"], " ").status == 2


def test_the_log_names_who_did_what(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGEDB_USER", "ada")
    assert run("profile", "--model", tiny, *PLAN, "--name", "timed").status == 0
    monkeypatch.setenv("STAGEDB_USER", "bob")
    assert run("instantiate", tiny, *PLAN).status == 0  # what exists is used, and the log does not grow
    assert run("rm", "timed", "--force").status == 0
    found = json.loads(run("store", "log", "-f", "json").out)
    assert [(row["user"], row["action"], row["kind"]) for row in found] == [
        ("bob", "removed", "profile"),
        ("ada", "named", "profile"),
        ("ada", "made", "profile"),
        ("ada", "made", "instance"),
        ("ada", "made", "graph"),
    ]
    (graph,) = {row["id"] for row in found if row["kind"] == "graph"}
    origin = json.loads(run("store", "log", graph, "--origin", "-f", "json").out)
    assert [(row["user"], row["input"], row["name"]) for row in origin] == [
        ("ada", "card", "tiny"),
        ("ada", "options", None),
    ]
    assert [row["action"] for row in json.loads(run("store", "log", "--user", "bob", "-f", "json").out)] == ["removed"]


def test_gc_needs_a_scope_and_lists_before_it_removes(run: Run, tiny: str) -> None:
    assert run("profile", "--model", tiny, *PLAN, "--name", "timed").status == 0
    assert run("instantiate", tiny, "--tp", "4", "--name", "kept").status == 0
    assert run("instantiate", tiny, "--tp", "2").status == 0
    assert "removes nothing without a scope" in run("store", "gc").err
    assert run("store", "gc", "--unnamed-older-than", "1h").out == "nothing to remove\n"
    assert "is not an age" in run("store", "gc", "--unnamed-older-than", "soon").err
    listed = run("store", "gc", "--unnamed-older-than", "0d")
    assert [line.split()[:3] for line in listed.out.splitlines()] == [["would", "remove", "instance"]]
    assert len(rows(run, "instances")) == 3
    removed = run("store", "gc", "--unnamed-older-than", "0d", "--yes")
    assert [line.split()[:2] for line in removed.out.splitlines()] == [["removed", "instance"]]
    assert run("rm", "timed").status == 0
    assert [line.split()[1] for line in run("store", "gc", "--unnamed-older-than", "0d", "--yes").out.splitlines()] == [
        "instance"
    ]
    assert [row["name"] for row in rows(run, "instances")] == ["kept"]
    assert run("rm", "kept").status == 0
    assert [line.split()[1] for line in run("store", "gc", "--unnamed-older-than", "0d", "--yes").out.splitlines()] == [
        "graph"
    ]


def test_the_newest_is_the_callers_own(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_user(name: str) -> Run:
        monkeypatch.setenv("STAGEDB_USER", name)
        return run

    def newest(name: str) -> str:
        return as_user(name)("query", "classes").err.strip()

    assert as_user("ada")("instantiate", tiny, *PLAN, "--name", "hers").status == 0
    assert newest("bob").endswith("ada/hers (tiny tp2 pp2 dp2), made by ada")  # bob has none yet
    assert as_user("bob")("instantiate", tiny, "--tp", "4", "--name", "his").status == 0
    assert newest("ada").endswith(" hers (tiny tp2 pp2 dp2)")
    assert newest("bob").endswith(" his (tiny tp4)")
    assert newest("eve").endswith(" bob/his (tiny tp4), made by bob")
    assert as_user("bob")("profile").status == 0
    assert as_user("ada")("profile").status == 0
    assert as_user("ada")("query", "hotspots").err.startswith("of the newest profile,")
    assert {(row["kind"], row["made_by"]) for row in rows(run, "profiles")} == {("profile", "ada"), ("profile", "bob")}
    assert "  ada" in run("ls", "profiles").out
    # A name that both have means the caller's own; so does an instance that a colleague asks for again.
    assert as_user("ada")("name", "hers", "same").status == 0
    assert as_user("bob")("name", "his", "same").status == 0
    shown = {name: as_user(name)("show", "same").out for name in ("ada", "bob")}
    assert shown["ada"] != shown["bob"]
    assert as_user("ada")("instantiate", tiny, "--tp", "4").status == 0
    assert newest("ada").split(" bob/")[0] == newest("bob").split(" his")[0]


def test_users_are_one_word_and_old_claims_have_none() -> None:
    assert current_user({"STAGEDB_USER": " ada lovelace\n"}) == "ada_lovelace"
    assert current_user({})
    assert user_of("machine/pid 12 34.00 abcd ada") == "ada"
    assert user_of("machine/pid 12 34.00 abcd") is None
    assert user_of(None) is None


def test_claims_have_the_user(store: Store, run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    ((builder,),) = store.query("MATCH (i:Instance) RETURN i.builder AS builder").rows
    assert user_of(builder) == current_user()


def test_a_terminals_table_has_the_columns_with_values() -> None:
    empty = dict.fromkeys(("id", "name", "model", "ranks", "step", "mfu", "peak", "plan", "system", "created", "state"))
    one = {**empty, "id": "0123456789abcdef", "model": "m", "timing": "scale a=2", "plan": "tp 2", "made_by": "ada"}
    assert _table([one]) == (["id", "model", "plan"], [["0123456789ab", "m", "tp 2 scale a=2"]])
    heads, _ = _table([{**one, "name": "m", "step": 1_500_000}, {**one, "name": "m", "made_by": "bob"}])
    assert heads == ["id", "name", "step ms", "plan", "by"]


@pytest.mark.parametrize("before", ["-q", "--quiet"])
def test_quiet_and_verbose_may_come_before_the_command(offline: Run, before: str) -> None:
    assert offline(before, "models").status == 0


def test_switches_before_the_command_count(run: Run, tiny: str) -> None:
    assert run("-q", "instantiate", tiny, *PLAN).out == ""
    assert run("instantiate", tiny, *PLAN).out != ""
    assert " in all" in run("-v", "profile").err
    assert run("-q", "store", "up").out == ""


def test_the_help_has_groups_with_the_common_ones_first(offline: Run) -> None:
    lines = offline("profile", "--help").out.splitlines()
    heads = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert heads[:4] == ["Arguments:", "Options:", "Time of a step:", "Words of the plan:"]
    assert heads[-2:] == ["Printed rows:", "Every command:"]


def test_what_is_shown_leads_to_commands_about_it(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("profile", "--model", tiny, "--name", "timed").status == 0
    listed = json.loads(run("ls", "-f", "json").out)
    for each in listed:
        note = run("show", each["id"]).err
        commands = note.split("`")[1::2]
        assert note.startswith("next: ") and commands, note
        for command in commands:
            words = command.split()[1:]
            out = ["--out", str(tmp_path / each["id"])] if words[0] == "export" else []
            assert run(*words, *out, *(["--force"] if out else [])).status == 0, command
