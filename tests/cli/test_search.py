"""`search` names the best plan, its command gives the same step, and every option is obeyed or refused."""

import json
import re
import shlex

import pytest

from stagedb import api, connect
from stagedb.cli.search import _ranks as ranks_of
from stagedb.errors import UsageError
from stagedb.search import comparisons
from tests.cli.conftest import Run

ASKED = ("--model", "llama3.2-1b", "--ranks", "4", "--global-batch-size", "4", "--seq-len", "1024")
SMALL = ("search", "--no-keep", *ASKED)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches run here, where one knows the bounds of the one before. tests/search has those in several processes."""
    for module in ("searching", "comparisons"):
        monkeypatch.setattr(f"stagedb.search.{module}.usable_cores", lambda: 1)


@pytest.mark.parametrize(
    "more", [(), ("--framework", "torchtitan", "--allow", "zero,recompute")], ids=["plain", "framework"]
)
def test_the_command_of_the_best_plan_gives_its_step(offline: Run, run: Run, more: tuple[str, ...]) -> None:
    found = offline(*SMALL, "--allow", "none", *more, "-f", "json")
    assert found.status == 0, found.err
    best = json.loads(found.out)[0]
    assert (best["fate"], best["code"]) == ("timed", "best")
    assert sum(best["terms"].values()) == best["step"]
    profiled = run(*shlex.split(best["command"])[1:], "--no-keep", "-f", "json")
    assert profiled.status == 0, profiled.err
    spent = ("busy", "exposed", "bubble", "idle")
    assert {sum(row[each] for each in spent) for row in json.loads(profiled.out)} == {best["step"]}


def test_the_command_of_a_plan_without_what_its_framework_implies_gives_its_step(offline: Run, run: Run) -> None:
    words = ("--framework", "megatron-core", "--allow", "none", "--fix", "tp=2", "--fix", "sp=false")
    best = json.loads(offline(*SMALL, *words, "-f", "json").out)[0]
    assert "--no-sp" in best["command"] and "--framework megatron-core" in best["command"]
    merit = run(*shlex.split(best["command"])[1:], "--no-keep", "--show", "merit", "-f", "json")
    assert json.loads(merit.out)[0]["step"] == best["step"]


def test_the_best_plan_is_printed_in_the_settings_of_its_framework(offline: Run) -> None:
    words = ("--allow", "none", "--fix", "tp=2", "--fix", "pp=2", "--fix", "schedule=zb-h1", "--top", "1")
    lines = offline(*SMALL, *words, "--framework", "megatron-core").out.splitlines()
    at = lines.index("in megatron-core:")
    assert lines[at + 1].startswith(
        "  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size"
    )
    assert " --seq-length 1024 " in lines[at + 1] and " --sequence-parallel" in lines[at + 1]
    # What a user fixes is there, whether the framework has a setting of it or not.
    assert lines[at + 2] == "  no setting of megatron-core is known for: schedule zb-h1"
    nemo = offline(*SMALL, "--allow", "none", "--top", "1", "--framework", "nemo").out
    assert "\nin nemo:\n  model.tensor_model_parallel_size=" in nemo and "no setting" not in nemo
    for more in ((), ("--framework", "torchtitan")):
        assert "\nin " not in offline(*SMALL, "--allow", "none", "--top", "1", *more).out


def test_a_search_shows_its_framework(run: Run) -> None:
    found = run("search", *ASKED, "--allow", "none", "--framework", "nemo", "-f", "json")
    assert found.status == 0, found.err
    (listed,) = json.loads(run("ls", "searches", "-f", "json").out)
    shown = {row["property"]: row["value"] for row in json.loads(run("show", listed["id"], "-f", "json").out)}
    assert shown["framework"] == "nemo"


def test_a_table_has_the_answer_and_why_others_lose(offline: Run) -> None:
    found = offline(*SMALL, "--allow", "zero", "--top", "2")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[1] == "all tried or ruled out, so the first is the best"
    assert lines[2].split() == ["plan", "step", "ms", "longer", "%", "peak", "GB", "loses", "by"]
    assert any(line.startswith("why the other ") for line in lines)
    assert lines[-1].startswith("  stagedb profile --model llama3.2-1b")
    assert max(map(len, lines[:5])) <= 80


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        (("--allow", "zero", "--fits", "11GB", "--where", "zero != 2"), 4),
        (("--fits", "1GB"), 1),
        (("--for", "0.01s"), 1),
    ],
    ids=["timed", "none fits", "none timed"],
)
def test_the_plans_of_the_table_and_those_that_lose_are_all(
    offline: Run, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], reasons: int
) -> None:
    """Those that were timed and are not in the table, too."""
    monkeypatch.setattr("stagedb.cli.search.LOSERS", 2)
    found = offline(*SMALL, "--top", "1", *more)
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    size = int(lines[0].split(" plans of ")[0].replace(",", ""))
    at = next(at for at, line in enumerate(lines) if line.startswith("why "))
    others, _, text = lines[at].partition(": ")
    if reasons > 2:
        assert lines[at + 1].startswith("  and for other reasons: ")
        text += f", {lines[at + 1].partition(': ')[2]}"
    lost = {code: int(plans.replace(",", "")) for code, plans in re.findall(r"([a-z ]+) ([\d,]*\d)(?:, |$)", text)}
    rows = 0 if "no rows" in lines else 1
    assert sum(lost.values()) + rows == size
    assert others == (f"why the other {size - 1:,} lose" if rows else "why all lose")
    # On more cores a few plans more are timed, which may lose by a term more.
    assert len(lost) >= reasons, lost


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (
            "cache-dtype=fp8_e4m3",
            "the workflow training has no cache, which --cache-dtype is for: leave it out, or take",
        ),
        ("cache-dtype=fp8", "--cache-dtype is one of same, fp8_e4m3"),
        ("cache-len=5", "the workflow training has no cache, which --cache-len is for"),
    ],
)
def test_why_all_plans_are_refused_is_in_the_answer(offline: Run, word: str, reason: str) -> None:
    found = offline(*SMALL, "--fix", word)
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    size = lines[0].split(" plans of ")[0]
    at = lines.index(f"why all lose: refused {size}")
    assert lines[at + 1].startswith(f"  refused {size}: ") and reason in lines[at + 1]


def test_the_error_of_the_times_and_its_ties_are_in_the_answer(offline: Run, run: Run) -> None:
    found = offline(*SMALL, "--allow", "zero", "--top", "4")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    error = next(line for line in lines if line.startswith("expected error "))
    profiled = run(*shlex.split(lines[-1])[1:], "--no-keep")
    assert error in profiled.out.replace("\n", " ") + profiled.err.replace("\n", " ")
    mean = float(error.removeprefix("expected error ").split("%")[0])
    rows = json.loads(offline(*SMALL, "--allow", "zero", "--top", "4", "-f", "json").out)
    steps = [row["step"] for row in rows if row["fate"] == "timed"][:4]
    ties = [at for at, step in enumerate(steps, 1) if step <= steps[0] * (1 + mean / 100)]
    (line,) = [line for line in lines if line.startswith("ties: ")]
    assert f"plans 1-{ties[-1]} of the table" in line if len(ties) > 1 else "no other plan" in line


def test_a_comparison_that_had_no_time_is_named(offline: Run) -> None:
    found = offline(*SMALL, "--allow", "none", "--top", "1", "--compare", "tp=2,pp=2", "--for", "0.01s")
    assert found.status == 0, found.err
    assert "  no time was left to draw plans and compare it with them" in found.out.splitlines()


def test_a_line_of_the_table_is_compared(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of the table are those of --compare: a plan that loses is copied from it."""
    monkeypatch.setattr(comparisons, "DRAWN", 5)
    asked = (*SMALL[:6], "--global-batch-size", "8", *SMALL[8:], "--allow", "none", "--fix", "pp=2", "--for", "60s")
    rows = [row for row in json.loads(offline(*asked, "--top", "4", "-f", "json").out) if row["fate"] == "timed"]
    line = next(row for row in rows if "chunks" in row["plan"] and row["code"] != "best")
    short = line["plan"].replace(" ", "=").replace(",=", ",").replace("interleaved", "schedule=interleaved")
    for given in (line["plan"], short):
        found = offline(*asked, "--top", "1", "--compare", given)
        assert found.status == 0, found.err
        (compared,) = [each for each in found.out.splitlines() if each.startswith("compared: ")]
        assert {*line["plan"].split(", ")} <= {*compared.removeprefix("compared: ").split(", ")}
        assert f"  {line['step'] / 1e6:,.1f} ms, {line['peak'] / 1e9:,.1f} GB" in found.out
    refused = offline(*SMALL, "--allow", "none", "--compare", "tp 2, fast")
    assert refused.status == 2 and "'fast' is no word of a plan: --compare takes such as tp=8,pp=2" in refused.err


def test_a_kept_search_names_what_to_ask_next(run: Run) -> None:
    found = run("search", *ASKED, "--allow", "none", "--top", "2")
    assert "`stagedb query best-plans --wide` has why each loses" in found.err
    asked = run("query", "best-plans", "--wide")
    assert asked.status == 0 and " longer than in the best plan" in asked.out
    with connect() as db:
        kept = db.query("best_plans").keep
    assert kept.index("why") < kept.index("tp")  # a narrow terminal has it
    assert "leave fewer plans" not in found.err
    ended = run("search", *ASKED, "--for", "0.01s")
    assert "nothing was timed, and bounds are made anew next time: give it longer, and --allow none" in ended.err


def test_the_terms_of_a_compared_plan_add_up_to_what_its_step_is_longer(
    offline: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparisons, "DRAWN", 5)  # its place among them is tests/search/test_comparisons.py
    found = offline(*SMALL, "--allow", "none", "--top", "1", "--compare", "tp=2,pp=2")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("term "))
    assert lines[at].split("  ")[-1] == "longer ms"
    printed = lines[at + 1 : lines.index("", at)]
    names = [line[:18].strip() for line in printed]
    columns = [*zip(*(map(float, line[18:].split()) for line in printed), strict=True)]
    assert names[-1] == "step" and len(names) > 4
    step = [column[-1] for column in columns]
    assert step == [round(sum(column[:-1]), 1) for column in columns]
    assert round(step[0] - step[1], 1) == step[2] > 0
    assert f"  {step[0]} ms, " in found.out
    best = lines[3].split()
    assert str(step[1]) in best


def test_strategies_are_in_the_table_and_in_the_command(offline: Run, run: Run) -> None:
    long = ("--seq-len", "32768", "--fix", "tp=4", "--fix", "micro_batch_size=1", "--fits", "1TB")
    found = offline(*SMALL[:-2], *long, "--allow", "strategies", "--by", "bytes", "--top", "3")
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[2].split() == ["plan", "step", "ms", "more", "%", "sent", "GB", "peak", "GB", "loses", "by"]
    assert lines[3].startswith("sp, ffn copied ") and lines[3].endswith("best")
    at = lines.index("the best plan with other rules in one region:")
    assert lines[at + 1].split()[:3] == ["region", "rules", "instead"]
    rows = [line.split() for line in lines[at + 2 : at + 9]]
    assert [row[0] for row in rows] == ["tokens", "attention", "attention", "ffn", "ffn", "head", "embedding"]
    assert [row[-1] for row in rows[:3]] == ["refused"] * 3
    command = lines[-1].strip()
    assert "--strategy" in command
    profiled = run(*shlex.split(command)[1:], "--no-keep", "-f", "json")
    assert profiled.status == 0, profiled.err
    row = json.loads(profiled.out)[0]
    step = sum(row[each] for each in ("busy", "exposed", "bubble", "idle"))
    assert f"{round(step / 1e6, 1):,}" in lines[3].split()


def test_options_choose_the_plans(offline: Run) -> None:
    fixed = offline(*SMALL, "--allow", "none", "--fix", "tp=2", "--fix", "recipe=megatron", "-f", "json")
    assert fixed.status == 0, fixed.err
    assert all("tp 2" not in row["plan"] for row in json.loads(fixed.out))  # what is fixed is no choice
    small = offline(*SMALL, "--allow", "none", "--fits", "4GB", "-f", "json")
    assert all(row["peak"] <= 4e9 for row in json.loads(small.out) if row["fate"] == "timed")
    where = offline(*SMALL, "--allow", "none", "--where", "tp == 4", "-f", "json")
    assert {row["plan"].split(",")[0] for row in json.loads(where.out) if row["fate"] == "timed"} == {"tp 4"}


@pytest.mark.parametrize(("text", "ranks"), [("2-4", [2, 4]), ("2,4", [2, 4]), ("4, 2-4,1", [1, 2, 4]), ("4", [4])])
def test_numbers_of_ranks(text: str, ranks: list[int]) -> None:
    assert ranks_of(text) == ranks


def test_each_number_of_ranks_is_searched(offline: Run) -> None:
    found = offline(*SMALL[:4], "--ranks", "2, 1-2", *SMALL[6:], "--allow", "none", "-f", "json")
    rows = json.loads(found.out)
    assert sorted({row["ranks"] for row in rows}) == [1, 2]
    assert sorted(row["ranks"] for row in rows if row["code"] == "best") == [1, 2]


def test_each_number_of_ranks_has_its_best_plan_in_the_table(run: Run) -> None:
    found = run(
        *SMALL[:1], *SMALL[2:4], "--ranks", "2,4", *SMALL[6:], "--allow", "none", "--top", "2", "--fits", "12GB"
    )
    assert found.status == 0, found.err
    lines = found.out.splitlines()
    assert lines[1] == "all tried or ruled out, so the first of each number of ranks is the best"
    assert lines[2].split()[:2] == ["ranks", "plan"]
    rows = [line.split() for line in lines[3:7]]
    assert [row[0] for row in rows] == ["2", "2", "4", "4"]
    assert [row[-1] == "best" for row in rows] == [True, False, True, False]
    assert [row[-3] == "0" for row in rows] == [True, False, True, False], "each next to the best of its ranks"
    assert [line[:15] for line in lines if line.startswith("ties")] == ["ties on 2 ranks", "ties on 4 ranks"]
    commands = [line.strip() for line in lines if line.startswith("  stagedb profile")]
    assert [json.loads(run(*shlex.split(each)[1:], "--no-keep", "-f", "json").out) != [] for each in commands] == [
        True
    ] * 2
    listed = run("ls", "searches")
    assert listed.out.splitlines()[0].split().index("ranks") > 0 and " 2,4 " in listed.out.splitlines()[1]
    (row,) = json.loads(run("ls", "searches", "--sort", "ranks", "-f", "json").out)
    assert row["ranks"] == [2, 4]


def test_a_number_of_ranks_on_which_none_fits_is_named(offline: Run) -> None:
    where = ("--allow", "none", "--where", "ranks != 2")
    found = offline(*SMALL[:4], "--ranks", "2-4", *SMALL[6:], *where)
    assert "on 2 ranks none fits" in found.out.splitlines()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "4,,8"), "no number of accelerators"),
        (("--ranks", "0"), "no number of accelerators"),
        (("--ranks", "8-4"), "no number of accelerators"),
        (("--allow", "zerro"), "unknown group of words zerro"),
        (("--by", "speed"), "unknown objective speed: --by is one of step"),
        (("--by", "tokens_per_dollar"), "--price h100=NUMBER"),
        (("--by", "tokens_per_joule", "--watts", "h200=700"), "--watts h100=NUMBER"),
        (("--price", "h100=cheap"), "has no number"),
        (("--where", "tps < 8"), "no word or figure of a plan is tps"),
        (("--fits", "many"), "--fits takes a number"),
        (("--for", "soon"), "is no time"),
        (("--top", "0"), "--top takes 1 or more"),
        (("--fix", "tp"), "is no NAME=VALUE"),
        (("--shard", "1/2"), "merged in the store: leave out --no-keep"),
        (("--on", "head:10001"), "head:10001 is no address of a Ray cluster: --on takes ray://HOST:PORT"),
        (("--fix", "tensor=2"), "tensor"),
        (("--model", "llama9"), "unknown model"),
        (("--system", "h10"), "did you mean h100"),
    ],
)
def test_what_a_search_refuses(offline: Run, options: tuple[str, ...], message: str) -> None:
    given = dict(zip(SMALL[2::2], SMALL[3::2], strict=True)) | dict(zip(options[::2], options[1::2], strict=True))
    refused = offline("search", "--no-keep", *(part for pair in given.items() for part in pair))
    assert refused.status == 2
    assert message in refused.err.replace("'", "").replace("\n", " "), refused.err


KEPT = ("search", *ASKED, "--allow", "none")


def test_a_search_is_kept_read_again_and_asked(run: Run) -> None:
    found = run(*KEPT, "-f", "json")
    assert found.status == 0, found.err
    rows = json.loads(found.out)
    again = run(*KEPT, "-f", "json")
    assert json.loads(again.out) == rows
    assert "found in the store" in again.err and "found in the store" not in found.err
    listed = json.loads(run("ls", "searches", "-f", "json").out)
    assert [(row["kind"], row["model"], row["step"], row["ranks"]) for row in listed] == [
        ("search", "llama3.2-1b", rows[0]["step"], 4)
    ]
    id = listed[0]["id"]
    assert f"search {id}" in found.err
    shown = {row["property"]: row["value"] for row in json.loads(run("show", id, "-f", "json").out)}
    assert (shown["kind"], shown["covered"], shown["global_batch_size"]) == ("search", True, 4)
    best = json.loads(run("query", "best-plans", "-f", "json").out)
    assert best[0]["step"] == rows[0]["step"] and best[0]["instance"] is None
    # What the printed command makes is the instance of the best candidate.
    assert run(*shlex.split(rows[0]["command"])[1:]).status == 0
    (made,) = json.loads(run("ls", "instances", "-f", "json").out)
    best = json.loads(run("query", "best-plans", "-p", f"search={id}", "-f", "json").out)
    assert best[0]["instance"].startswith(made["id"])
    assert run("tag", id, "kept").status == 0
    assert json.loads(run("ls", "searches", "--tag", "kept", "-f", "json").out)[0]["id"] == id
    assert "has no name" in run("name", id, "best").err
    assert f"removed search {id} llama3.2-1b" in run("rm", id).out
    assert json.loads(run("ls", "searches", "-f", "json").out) == []


def test_shards_are_merged(run: Run) -> None:
    first = run(*KEPT, "--shard", "1/2")
    assert first.status == 0, first.err
    state = first.out.splitlines()[1]
    assert state.startswith("shards 1 of 2 finished, 2 missing; what is left takes ") and len(state) <= 80
    listed = json.loads(run("ls", "searches", "-f", "json").out)
    assert {row["plan"].split(" plans, ")[1].split(" of ")[0] for row in listed} == {
        "not all tried, shards 1",
        "shard 1/2",
    }
    refused = run(*KEPT, "--shard", "1/3")
    assert refused.status == 2 and "cut into 2 shards" in refused.err.replace("\n", " ")
    assert run(*KEPT, "--shard", "3/2").status == 2
    last = run(*KEPT, "--shard", "2/2")
    assert last.out.splitlines()[1] == "all tried or ruled out, so the first is the best"
    alone = run("search", "--no-keep", *ASKED, "--allow", "none")
    assert last.out.splitlines()[2:8] == alone.out.splitlines()[2:8]
    assert [row["plan"] for row in json.loads(run("ls", "searches", "-f", "json").out)] == ["best of 25 plans"]
    again = run(*KEPT, "-f", "json")
    assert "found in the store" in again.err


def test_a_search_goes_on_with_what_shards_found(run: Run) -> None:
    assert run(*KEPT, "--shard", "2/3").status == 0
    whole, alone = run(*KEPT), run("search", "--no-keep", *ASKED, "--allow", "none")
    assert whole.out.splitlines()[1:8] == alone.out.splitlines()[1:8]
    assert len(json.loads(run("ls", "searches", "-f", "json").out)) == 1


def test_python_has_the_same_rows() -> None:
    words = {"global_batch_size": 8, "seq_len": 1024}
    found = api.search("llama3.2-1b", [4], allow=["none"], words=words)
    assert found.covered and found.left is None
    frame = found.to_pandas()
    assert int(frame["plans"].sum()) == found.size
    assert frame["step"][0] == min(frame["step"][frame["fate"] == "timed"])
    with pytest.raises(UsageError, match="ranks"):
        api.search("llama3.2-1b", [], words=words)
    with pytest.raises(UsageError, match="global_batch_size"):
        api.search("llama3.2-1b", [4])
