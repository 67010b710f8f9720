"""`ls`: plans, figures, filters and order; the caller's own newest; options before the command; groups of the help."""

import json
import warnings
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
    assert (first["plan"], first["model"]) == ("dp 2 pp 2 seq-len 32 tp 2", "tiny")
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
        (("instances", "--system", "h100"), "only profiles have a system"),
    ],
)
def test_what_cannot_be_listed_is_refused(run: Run, tiny: str, arguments: tuple[str, ...], error: str) -> None:
    assert run("build", tiny).status == 0
    ran = run("ls", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert error in ran.err


def test_nobody_renames_what_somebody_else_has_made(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(user: str, *arguments: str) -> tuple[str, str]:
        monkeypatch.setenv("STAGEDB_USER", user)
        ran = run(*arguments)
        assert ran.status == 0, ran.err
        warned = "".join(line for line in ran.err.splitlines() if line.startswith("Warning"))
        return warned, rows(run, "instances")[0]["name"]

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert names("ada", "instantiate", tiny, *PLAN, "--name", "base") == ("", "base")
        printed, name = names("bob", "instantiate", tiny, *PLAN, "--name", "mine")
        assert ("made by ada, and keeps the name 'base'" in printed, name) == (True, "base")
        assert names("bob", "instantiate", tiny, *PLAN) == ("", "base")
        assert names("ada", "instantiate", tiny, *PLAN, "--name", "better") == ("", "better")


def test_the_newest_is_the_callers_own(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_user(name: str) -> Run:
        monkeypatch.setenv("STAGEDB_USER", name)
        return run

    def newest(name: str) -> str:
        return as_user(name)("query", "classes").err.strip()

    assert as_user("ada")("instantiate", tiny, *PLAN, "--name", "hers").status == 0
    assert newest("bob").endswith("hers, made by ada")  # bob has none yet
    assert as_user("bob")("instantiate", tiny, "--tp", "4", "--name", "his").status == 0
    assert newest("ada").endswith(" hers")
    assert newest("bob").endswith(" his")
    assert newest("eve").endswith(" his, made by bob")
    assert as_user("bob")("profile").status == 0
    assert as_user("ada")("profile").status == 0
    assert as_user("ada")("query", "hotspots").err.startswith("of the newest profile,")
    assert {(row["kind"], row["made_by"]) for row in rows(run, "profiles")} == {("profile", "ada"), ("profile", "bob")}
    assert "  ada" in run("ls", "profiles").out
    # A name that both have means the caller's own; so does an instance that a colleague asks for again.
    assert as_user("ada")("tag", "hers", "same").status == 0
    assert as_user("bob")("tag", "his", "same").status == 0
    shown = {name: as_user(name)("show", "same").out for name in ("ada", "bob")}
    assert shown["ada"] != shown["bob"]
    assert as_user("ada")("instantiate", tiny, "--tp", "4").status == 0
    assert newest("ada").split(" same")[0] == newest("bob").split(" same")[0]


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
    assert heads[:5] == ["Arguments:", "Options:", "Time of a step:", "Plan: parallelism:", "Plan: batch:"]
    assert heads[-2:] == ["Printed rows:", "Every command:"]
