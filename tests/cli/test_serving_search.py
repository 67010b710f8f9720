"""`search` of engines that serve requests: the table, the commands of its steps, and what is refused."""

import json
import shlex
from pathlib import Path

import pytest

from stagedb import validation
from tests.cli.conftest import Run

ASKED = ("search", "--model", "llama3.2-1b", "--input-len", "1500", "--output-len", "200")


def test_the_commands_of_the_best_engines_give_their_steps(offline: Run, run: Run) -> None:
    found = offline(*ASKED, "--ranks", "2", "--tpot", "8ms", "--top", "2", "-f", "json")
    assert found.status == 0, found.err
    rows = json.loads(found.out)
    both = next(row for row in rows if row["role"] == "aggregated")
    steps = []
    for command in both["commands"]:
        ran = run(*shlex.split(command)[1:], "--no-keep", "--show", "merit", "-f", "json")
        assert ran.status == 0, ran.err
        steps.append(json.loads(ran.out)[0]["step"])
    mixed, decode = steps
    parts = -(-1500 // both["chunk"])
    share = both["requests"] * parts / (parts + 199)
    assert both["tpot"] == pytest.approx(share * mixed + (1 - share) * decode, abs=1)
    assert both["ttft"] == parts * mixed
    assert both["tpot"] <= 8_000_000
    rate = both["engines"] * both["requests"] * 200 / ((parts + 199) * both["tpot"] / 1e9)
    assert both["tokens_per_second"] == pytest.approx(rate, rel=1e-6)


def test_the_table_has_a_row_for_each_kind_of_engines(offline: Run) -> None:
    ran = offline(*ASKED, "--ranks", "1,2", "--tpot", "8ms", "--ttft", "300ms", "--top", "2")
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[1].startswith("the best engines on 2 ranks are ")
    head = next(line for line in lines if line.startswith("ranks"))
    for name in ("engines", "each", "batch", "chunk", "TTFT ms", "TPOT ms", "tokens/s", "GB"):
        assert name in head
    table = lines[lines.index(head) + 1 : next(at for at, line in enumerate(lines) if line.startswith("expected"))]
    assert any(line.split()[:4] == ["1", "1", "1", "aggregated"] for line in table)
    assert all(len(line) <= 80 for line in [head, *table])
    assert sum(line.startswith("steps of ") for line in lines) >= 2


def test_the_commands_count_requests_and_write_traces_too(offline: Run, run: Run, tmp_path: Path) -> None:
    found = offline(*ASKED, "--ranks", "1", "--tpot", "8ms", "--top", "1")
    assert "`memory` in place of `profile` and --memory-share 0.9 counts the requests that fit" in found.err
    decode = next(line for line in found.out.splitlines() if line.endswith("--workflow decode --system h100"))
    words = shlex.split(decode)[2:]
    memory = run("memory", *words, "--memory-share", "0.9")
    assert memory.status == 0 and " requests of " in memory.out + memory.err
    out = tmp_path / "traces"
    assert run("export", *words, "--out", str(out)).status == 0 and [*out.glob("*.et")]


def test_what_is_not_served_has_a_reason(offline: Run) -> None:
    ran = offline(*ASKED, "--ranks", "1", "--tpot", "1us")
    assert ran.status == 0, ran.err
    assert "none serves this; a request alone takes" in ran.out.replace("\n", " ")
    assert "1 of 1 layouts give no tokens: time a token 1" in ran.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--input-len", "10"), "give --output-len N"),
        (("--ttft", "2s"), "give --input-len N"),
        ((*ASKED[3:], "--ttft", "soon"), "--ttft takes such as 2s, 50ms or 500us"),
        ((*ASKED[3:], "--global-batch-size", "8"), "a search of engines has no --global-batch-size"),
        ((*ASKED[3:], "--allow", "zero", "--shard", "1/2"), "a search of engines has no --allow, --shard"),
        ((*ASKED[3:], "--by", "memory"), "a search of engines has no --by"),
        ((*ASKED[3:], "--keep"), "a search of engines has no --keep"),
        ((*ASKED[3:], "--system", "h100,h200"), "a search of engines takes one --system"),
        ((*ASKED[3:], "--fix", "cache-len=5"), "a search of serving chooses --cache-len"),
        ((), "--global-batch-size N"),
    ],
)
def test_refusals(offline: Run, arguments: tuple[str, ...], text: str) -> None:
    ran = offline("search", "--model", "llama3.2-1b", "--ranks", "1", *arguments)
    assert ran.status == 2
    assert text in " ".join(ran.err.split())


def test_measured_engines_are_compared(offline: Run, tmp_path: Path) -> None:
    lines = (Path(validation.__file__).parent / "known_served.csv").read_text(encoding="utf-8").splitlines()
    some = [line for line in lines if line.startswith("nvidia/Llama-3.1-8B")][:2]
    other = some[0].replace("nvidia/Llama-3.1-8B-Instruct-FP8", "a/b")
    (tmp_path / "rows.csv").write_text("\n".join([lines[0], *some, other]))
    ran = offline("validate", "--served", str(tmp_path / "rows.csv"))
    assert ran.status == 0, ran.err
    assert ran.out.splitlines()[1].split()[:4] == ["h200_sxm", "vllm", "Llama-3.1-8B-Instruct-FP8", "2"]
    assert "1 not compared: no card of the library is 'a/b'" in ran.err
    assert "2 of 3 rows compared: off by" in ran.err
    rows = json.loads(offline("validate", "--served", str(tmp_path / "rows.csv"), "-f", "json").out)
    assert [row["line"] for row in rows] == [2, 3, 4]
    assert rows[0]["error"] == pytest.approx(rows[0]["predicted"] / float(rows[0]["measured"]) - 1)
    none = offline("validate", "--served", str(tmp_path / "rows.csv"), "--only", "a/*")
    assert none.status == 1 and "1 rows, none with a time" in none.err
    wrong = offline("validate", "--served", str(tmp_path / "rows.csv"), "--only", "c/*")
    assert wrong.status == 2 and "no row of" in wrong.err
