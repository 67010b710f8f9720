"""`profile`, and what the other commands know of profiles."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

import stagedb.systems
from stagedb import connect
from stagedb.errors import UsageError
from stagedb.store import Store
from tests.cli.conftest import Run

PLAN = ("--tp", "2", "--pp", "2", "--ranks", "8", "--global-batch-size", "8", "--seq-len", "32")


def rows(run: Run, *arguments: str) -> list[dict[str, Any]]:
    ran = run(*arguments, "-f", "json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    # Reports are objects with their provenance.
    listed: list[dict[str, Any]] = found["rows"] if isinstance(found, dict) else found
    return listed


def test_a_step_is_printed_by_lane_and_kept(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    printed = run("profile", "--name", "first")
    assert printed.status == 0, printed.err
    assert "of the newest instance" in printed.err
    first, figures, *_ = printed.out.splitlines()
    assert first.startswith("made profile ") and " first of tiny (8 ranks) on h100, in " in first
    for word in ("step ", " tokens/s (", " an accelerator)", "MFU ", "HFU ", "bf16 peak"):
        assert word in figures
    for line in ("where the step of each rank goes", "the critical path by kind", "the critical path by axis"):
        assert line in printed.out
    lanes = rows(run, "profile", "tiny")
    step = rows(run, "profile", "tiny", "--show", "merit")[0]["step"]
    assert [row["ranks"] for row in lanes] == [4, 4]
    for row in lanes:
        assert row["busy"] + row["exposed"] + row["bubble"] + row["idle"] == step
    path = rows(run, "profile", "tiny", "--show", "path")
    assert {row["by"] for row in path} == {"kind", "axis", "phase", "stage"}
    for by in ("kind", "axis", "phase", "stage"):
        assert sum(row["ns"] for row in path if row["by"] == by) == step
    listed = rows(run, "ls", "profiles")
    assert [(row["kind"], row["name"], row["ranks"]) for row in listed] == [("profile", "first", 8)]
    assert "already in the store: profile" in run("profile").out
    assert run("profile", "-q").out.startswith("step ")


def test_a_group_in_two_domains_is_a_warning_with_the_way_out(run: Run, tiny: str, tmp_path: Path) -> None:
    words = stagedb.systems.load_system("gb200-nvl72").to_dict()
    words["network"][0]["size"] = 7
    path = tmp_path / "seven.json"
    for use in (7, 4):
        words["network"][0]["use"] = use
        path.write_text(json.dumps(words), encoding="utf-8")
        printed = run("profile", "--model", tiny, *PLAN, "--system", str(path))
        assert printed.status == 0, printed.err
        warned = "warning: 1 of 4 groups of tp straddle two domains of 7 accelerators on nvlink: with use: 4 of them"
        assert (warned in printed.out) == (use == 7)


def test_a_model_is_profiled_with_what_is_missing_made(run: Run, tiny: str) -> None:
    printed = run("profile", "--model", tiny, *PLAN, "--system", "a100-80gb")
    assert printed.status == 0, printed.err
    assert " on a100-80gb, in " in printed.out
    assert [row["kind"] for row in rows(run, "ls")] == ["graph", "instance", "profile"]
    again = run("profile", "tiny", "--dp", "4", "--ranks", "16", "--system", "a100-80gb")
    assert "(16 ranks)" in again.out
    assert len(rows(run, "ls", "instances")) == 2


def test_what_if_prints_what_the_step_gains(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    before = rows(run, "profile", "--show", "merit")[0]["step"]
    faster = run("profile", "--scale", "collective:tp=0.5", "--scale", "compute=2/3")
    assert faster.status == 0, faster.err
    line = next(line for line in faster.out.splitlines() if line.startswith("with "))
    assert line.startswith("with collective:tp=0.5, compute=2/3: the step is ")
    assert line.endswith(f"shorter; it was {before / 1e6:,.3f} ms")
    longer = run("profile", "--scale", "stage:1=2")
    assert " longer; it was " in longer.out
    assert rows(run, "ls", "profiles")[0]["timing"] == "scale stage:1=2"


def test_all_views_of_a_step_name_what_blocks(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    free = rows(run, "profile", "--show", "merit")[0]["step"]
    waiting = run("profile", "--blocking", "pp,tp", "--name", "waiting")
    assert "a rank waits for its communication on tp, pp" in waiting.out.splitlines()
    step = rows(run, "profile", "--blocking", "tp,pp", "--show", "merit")[0]["step"]
    assert step > free
    assert [row["timing"] for row in rows(run, "ls", "profiles")] == ["blocking tp,pp", None]
    shown = {row["property"]: row["value"] for row in rows(run, "show", "waiting")}
    assert shown["blocking"] in (["tp", "pp"], "tp,pp", "['tp', 'pp']")
    page, trace = tmp_path / "page.html", tmp_path / "trace.pftrace"
    printed = [
        run("report", "--blocking", "tp,pp", "--out", str(page)),
        run("timeline", "--blocking", "tp,pp", "--out", str(trace)),
    ]
    (plain,) = [run("timeline", "--out", str(tmp_path / "plain.pftrace"))]
    takes = [each.out.partition(" takes ")[2].split(",")[0] for each in (*printed, plain)]
    assert takes[0] == takes[1] != takes[2]
    assert "waits for communication on" in page.read_text()
    chart = [
        run("timeline", "--format", "text", "--width", "300", *words).out for words in (("--blocking", "tp,pp"), ())
    ]
    assert chart[0] != chart[1]


def test_measured_durations_are_printed_with_their_coverage(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    table = tmp_path / "durations.csv"
    table.write_text("kind,duration_us\nmatmul,100\n", encoding="utf-8")
    printed = run("profile", "--durations", str(table))
    assert printed.status == 0, printed.err
    line = next(line for line in printed.out.splitlines() if line.startswith("measured: "))
    assert "of the modelled time" in line
    measured = rows(run, "query", "MATCH (t:OpTime {profile: $profile}) WHERE t.rule = 'measured' "
                    "RETURN DISTINCT t.kind AS kind, t.duration AS ns")  # fmt: skip
    assert measured == [{"kind": "matmul", "ns": 100_000}]


def test_a_name_without_numbers_is_measured_in_all_layers(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    table = tmp_path / "durations.csv"
    table.write_text(
        "name,duration_us\nlayer.attn.core,50\nlayer.1.attn.core,60\nlayer.9.attn.core,1\n", encoding="utf-8"
    )
    printed = run("profile", "--durations", str(table))
    assert printed.status == 0, printed.err
    assert f"1 measured row without an operator here: {table}, " in printed.out
    measured = rows(run, "query", "MATCH (t:OpTime {profile: $profile}) WHERE t.rule = 'measured' "
                    "RETURN DISTINCT t.name AS name, t.duration AS ns")  # fmt: skip
    assert {row["name"]: row["ns"] for row in measured} == {"layer.0.attn.core": 50_000, "layer.1.attn.core": 60_000}


def test_measured_rows_of_nothing_are_refused(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    for words, near in (("kind,duration_us\nmatmull,9\n", "no kind is matmull; did you mean matmul?"),
                        ("name,duration_us\nlayer.0.attn.cor,9\n", "did you mean layer.0.attn.core")):  # fmt: skip
        (tmp_path / "durations.csv").write_text(words, encoding="utf-8")
        printed = run("profile", "--durations", str(tmp_path / "durations.csv"))
        assert printed.status == 2
        assert "of nothing that runs here" in printed.err
        assert near in printed.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--scale", "tp=0.5"), "known are compute, collective"),
        (("--scale", "collective:cp=0.5"), "chooses nothing: there is collective: all_"),
        (("--scale", "tp=0.5"), "as in collective:tp"),
        (("--scale", "colective=0.5"), "did you mean collective?"),
        (("--scale", "op:layer.0.attn.cor=0.5"), "there is op: layer.0.attn.core"),
        (("llama3-70b",), "--model llama3-70b"),
        (("--recompute", "full"), "--model tiny"),
        (("--system", "h1000"), "h100"),
        (("--blocking", "tp,dpp"), "unknown axis 'dpp': --blocking takes axes on which ranks communicate, tp, kv"),
        (("--durations", "nothing.csv"), "nothing.csv"),
        (("--show", "all", "-f", "csv"), "--show lanes, merit or path"),
        (("nowhere",), "stagedb ls"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, tiny: str, arguments: tuple[str, ...], expected: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    ran = run("profile", *arguments)
    assert ran.status == 2, ran.out
    assert expected in ran.err
    assert rows(run, "ls", "profiles") == []


def test_a_system_without_room_is_refused_before_anything_is_made(run: Run, tiny: str, tmp_path: Path) -> None:
    from stagedb.systems import load_system

    system = load_system("h100").to_dict()
    system["network"][-1]["size"] = 1
    small = tmp_path / "small.json"
    small.write_text(json.dumps({**system, "network": system["network"][:1]}), encoding="utf-8")
    ran = run("profile", "--model", tiny, "--tp", "2", "--ranks", "16", "--seq-len", "32", "--system", str(small))
    assert ran.status == 2
    assert "8 places, and the job has 16 ranks" in ran.err
    assert rows(run, "ls") == []


def test_queries_are_about_the_newest_profile_or_the_named_one(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN, "--name", "one").status == 0
    none = run("query", "critical-path")
    assert none.status == 2
    assert "stagedb profile" in none.err
    assert run("profile", "one", "--name", "plain").status == 0
    assert run("profile", "one", "--name", "fast", "--scale", "compute=0.5").status == 0
    assert run("instantiate", tiny, "--tp", "2", "--seq-len", "32", "--name", "two").status == 0
    step = "MATCH (p:Profile {id: $profile}) RETURN p.name AS name"
    newest = run("query", step, "-f", "csv")
    assert newest.out.splitlines() == ["name", "fast"]
    assert "of the newest profile, " in newest.err
    assert rows(run, "query", step, "--profile", "plain") == [{"name": "plain"}]
    assert run("query", step, "--profile", "plain").err == ""
    assert rows(run, "query", step, "--instance", "one") == [{"name": "fast"}]
    of = run("query", "hotspots", "--instance", "two")
    assert of.status == 2
    assert "no profile of instance" in of.err and "(two)" in of.err
    both = "MATCH (p:Profile {id: $profile, instance: $instance}) RETURN count(p) AS there"
    assert rows(run, "query", both) == [{"there": 1}]
    path = rows(run, "query", "critical-path", "--profile", "plain")
    assert path == rows(run, "query", "critical_path", "--profile", "plain")
    assert path[0]["start"] == 0
    assert all(one["finish"] == two["start"] for one, two in pairwise(path))


def test_a_wrong_parameter_of_a_query_names_the_right_ones(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    assert run("profile").status == 0
    wrong = run("query", "hotspots", "-p", "layers=3")
    assert wrong.status == 2
    assert "'layers' is not one of its parameters: hotspots takes profile" in wrong.err
    refused = run("query", "bytes_by_axis", "--profile", "x")
    assert refused.status == 2
    assert "'profile' is not one of its parameters: bytes_by_axis takes instance" in refused.err
    text = run("query", "RETURN 1 AS one", "--profile", "x")
    assert text.status == 2
    assert "no $profile" in text.err
    near = run("query", "hot-spot")
    assert near.status == 2
    assert "did you mean hotspots" in near.err


def test_profiles_are_shown_and_removed(run: Run, tiny: str, store: Store) -> None:
    assert run("instantiate", tiny, *PLAN, "--name", "mine").status == 0
    assert run("profile", "--name", "plain").status == 0
    assert run("profile", "--scale", "compute=0.5").status == 0
    shown = {row["property"]: row["value"] for row in rows(run, "show", "plain")}
    assert (shown["kind"], shown["name"], shown["system"]) == ("profile", "plain", "h100")
    assert shown["step"] == shown["unscaled"]
    unnamed = rows(run, "ls", "profiles")[0]
    assert unnamed["name"] is None
    gone = run("rm", unnamed["id"])
    assert gone.out == f"removed profile {unnamed['id']}\n"
    assert [row["name"] for row in rows(run, "ls", "profiles")] == ["plain"]
    assert run("rm", "mine").status == 0
    left = store.query("MATCH (n) WHERE NOT n:Store AND NOT n:Graph RETURN DISTINCT labels(n)[0] AS label")
    log = {"User", "Event", "Input"}
    assert {label for (label,) in left.rows} - {"SymOp", "SymTensor", "StagedbTests"} == log, "the log alone stays"
    nothing = run("show", "nothing")
    assert nothing.status == 2
    assert "no graph, instance, profile, search or run 'nothing'" in nothing.err


def test_python_has_the_same(tiny: str, store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    with connect() as db:
        found = db.profile(model=tiny, tp=2, pp=2, ranks=8, global_batch_size=8, seq_len=32, scale=["send=0"])
        assert found.info.new
        assert found.step == found.merit.step == found.info.step
        assert found.gain == found.info.unscaled - found.info.step
        assert db.profiles()[0].id == found.info.id
        assert sum(row["ns"] for row in db.query("critical_path", profile=found.info.id)) == found.step
        with pytest.raises(UsageError, match="no profile 'x'"):
            db.query("critical_path", profile="x")


def test_a_profile_is_shown_as_it_was_made(run: Run, tiny: str, tmp_path: Path) -> None:
    table = tmp_path / "measured.csv"
    table.write_text("kind,duration_us\nmatmul,70\n", encoding="utf-8")
    plan = ("--model", tiny, "--tp", "2", "--pp", "2")
    timing = ("--durations", str(table), "--scale", "collective:tp=3", "--blocking", "pp", "--system", "a100-80gb")
    (made,) = rows(run, "profile", *plan, *timing, "--name", "odd", "--show", "merit")
    assert run("profile", *plan, "--name", "plain").status == 0
    texts = [run("timeline", *words, "--format", "text") for words in (("--profile", "odd"), (*plan, *timing), plan)]
    assert [each.status for each in texts] == [0, 0, 0]
    assert texts[0].out == texts[1].out != texts[2].out
    assert run("report", "--profile", "odd", "-o", "odd.html").status == 0
    page = (tmp_path / "odd.html").read_text(encoding="utf-8")
    assert "collective:tp=3" in page
    assert "A100" in page
    assert "of the operators" in page
    assert made["step"] > 0
    assert run("timeline", "--profile", "odd", "-o", "odd.pftrace").status == 0
    for option, value in (
        ("--system", "h100"),
        ("--durations", str(table)),
        ("--scale", "send=2"),
        ("--blocking", "tp"),
    ):
        both = run("report", "--profile", "odd", option, value)
        assert both.status == 2
        assert f"leave out {option}, or --profile" in both.err
    other = run("report", "--profile", "odd", "--tp", "1")
    assert other.status == 2
    assert "profile" in other.err
    assert "no profile 'none'" in run("timeline", "--profile", "none").err


def test_a_profile_names_what_the_memory_does_not_hold(run: Run, tiny: str, tmp_path: Path) -> None:
    assert "GB of 82.8 GB for tensors: fits" in run("profile", "--model", tiny, *PLAN).out
    small = tmp_path / "small.yaml"
    text = (Path(stagedb.systems.__file__).parent / "presets" / "h100.yaml").read_text(encoding="utf-8")
    small.write_text(
        re.sub(r"capacity: [0-9.]+, reserve: {[^}]*}", "capacity: 0.0001", text).replace("name: h100", "name: small")
    )
    line = next(line for line in run("profile", "--system", str(small)).out.splitlines() if line.startswith("peak"))
    assert "stages 0, 1 do not fit, by " in line and "most are " in line
    # The newest profile's system is the one that memory compares with; only a named one makes it fail.
    known, named = run("memory"), run("memory", "--system", str(small))
    assert "does not fit" in known.out and known.status == 0
    assert "does not fit" in named.out and named.status == 1
    assert "fits" in run("memory", "--system", "h100").out
    text = " ".join(run("profile", "--system", "h100").out.split())
    assert "expected error unknown" not in text
    assert re.search(
        r"expected error \d+\.\d% in the mean.*without the name of their framework \(--framework names", text
    )


def test_a_job_is_placed_on_whole_groups_unless_its_system_has_a_number(run: Run, tiny: str, tmp_path: Path) -> None:
    words = yaml.safe_load((Path(stagedb.systems.__file__).parent / "presets" / "h100.yaml").read_text("utf-8"))
    words["network"][0]["size"] = 3
    mine, given = tmp_path / "mine.yaml", tmp_path / "given.yaml"
    mine.write_text(yaml.safe_dump({**words, "name": "mine"}), encoding="utf-8")
    words["network"][0]["use"] = 3
    given.write_text(yaml.safe_dump({**words, "name": "given"}), encoding="utf-8")
    note = "placed on 2 of the 3 accelerators of each domain of nvlink, so that no group of tp straddles two"
    for command in ("profile", "advise"):
        ran = run(command, "--model", tiny, *PLAN, "--system", str(mine))
        assert ran.status == 0 and note in " ".join(ran.out.split())
        kept = " ".join(run(command, "--model", tiny, *PLAN, "--system", str(given)).out.split())
        assert "placed on" not in kept and "warning: 1 of 4 groups of tp straddle two domains of 3" in kept
    assert run("report", "--system", str(mine), "--out", "step.html").status == 0
    assert "2 of 3 places, switch" in (tmp_path / "step.html").read_text(encoding="utf-8")


def test_what_is_not_for_tensors_is_printed_apart(run: Run, tiny: str, tmp_path: Path) -> None:
    line = (
        "an accelerator has 84.92 GB (79.09 GiB): 82.83 GB for tensors, 2.09 GB reserved (context 1.65 GB, cublas 0.03 "
        "GB, nccl 0.41 GB)"
    )
    for words in (("profile", "--model", tiny, *PLAN), ("memory",), ("advise",)):
        assert line in run(*words).out, words
    given = run("memory", "--capacity", "80GB").out
    assert "reserved" not in given and " GB of 80.00 GB of --capacity free" in given
    assert " GB of 82.83 GB for tensors free" in run("memory").out
    assert " GB of 82.8 GB for tensors, on h100" in run("advise").out
    whole = yaml.safe_load((Path(stagedb.systems.__file__).parent / "presets" / "h100.yaml").read_text("utf-8"))
    del whole["accelerator"]["memory"]["reserve"]
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({**whole, "name": "mine"}), encoding="utf-8")
    without = run("profile", "--system", str(mine)).out
    assert "GB of 84.9 GB for tensors: fits" in without and "reserved" not in without


def test_advice_names_the_bound_and_the_best_change_first(run: Run, tiny: str) -> None:
    plan = ("--model", tiny, "--pp", "4", "--dp", "2", "--global-batch-size", "16", "--seq-len", "32")
    printed = run("advise", *plan)
    assert printed.status == 0, printed.err
    verdict, figures, *more = printed.out.splitlines()
    (expected,) = (line for line in more if line.startswith("expected error"))
    assert more.index(expected) > next(at for at, line in enumerate(more) if line.startswith("what if"))
    assert verdict.startswith("tiny on 8 ranks is bound by ") and "; the best change is " in verdict
    assert figures.startswith("step ") and " changes tried" in figures
    assert re.match(
        r"expected error \d+\.\d% in the mean, \d+\.\d% at worst, as \d+ published steps of dense", expected
    )
    changes = rows(run, "advise", *plan)
    assert changes[0]["change"] in verdict
    assert f"\n{changes[0]['change']}:\n  {changes[0]['command']}\n" in printed.out
    assert {row["what_if"] for row in rows(run, "advise", *plan, "--show", "what-ifs")} >= {"no bubble"}
    assert rows(run, "ls", "instances") == []
    assert run("advise", *plan, "--show", "all", "-f", "csv").status == 2


def test_the_commands_of_advice_make_the_steps_that_it_names(run: Run, tiny: str) -> None:
    plan = ("--model", tiny, "--tp", "2", "--pp", "2", "--dp", "2", "--global-batch-size", "8", "--seq-len", "32")
    assert run("instantiate", *plan[1:]).status == 0
    for of in (plan, ("tiny",)):
        found = rows(run, "advise", *of)
        chosen = {row["change"].partition(" ")[0]: row for row in found}
        for row in (found[0], chosen["recipe"] if of is plan else chosen["virtual-stages"]):
            command = shlex.split(row["command"])
            assert command[:2] == ["stagedb", "profile"]
            assert rows(run, *command[1:], "--show", "merit")[0]["step"] == row["step"]
        for row in rows(run, "advise", *of, "--show", "what-ifs"):
            if row["command"] and "tp" in row["what_if"]:
                merit = rows(run, *shlex.split(row["command"])[1:], "--show", "merit")
                assert merit[0]["step"] == row["step"]


@pytest.mark.parametrize("framework", ["megatron-core", "megatron-2021"])
def test_the_commands_of_advice_keep_the_framework(run: Run, tiny: str, framework: str) -> None:
    """Its words, what it hides and what it waits for; a change of what it implies is in the command."""
    degrees = ("--tp", "2", "--pp", "2", "--dp", "2")
    plan = ("--model", tiny, *degrees, "--global-batch-size", "8", "--seq-len", "32", "--framework", framework)
    found = rows(run, "advise", *plan)
    what_ifs = [row for row in rows(run, "advise", *plan, "--show", "what-ifs") if row["command"]]
    sp = next(row for row in found if row["change"] in ("sp", "no-sp"))
    for row in (found[0], sp, what_ifs[0]):
        command = shlex.split(row["command"])
        assert command[command.index("--framework") + 1] == framework and "--blocking" not in command
        assert rows(run, *command[1:], "--show", "merit")[0]["step"] == row["step"], row
