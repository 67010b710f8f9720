"""`sweep` on the command line: rows in every format, a table of 80 columns, a picture, and what is refused."""

import csv
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Run

PLAN = ("--ranks", "4", "--global-batch-size", "8", "--seq-len", "32")
VARY = ("--vary", "tp=1,2,3", "--vary", "system.accelerator.memory.bandwidth=2000,3350")


def made(run: Run, *arguments: str) -> dict[str, Any]:
    ran = run(*arguments, "-f", "json")
    assert ran.status == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_the_rows_are_the_same_in_every_format(run: Run, tiny: str, tmp_path: Path) -> None:
    words = ("sweep", "--model", tiny, *PLAN, *VARY)
    found = made(run, *words)
    rows = found["rows"]
    assert [(row["tp"], row["system.accelerator.memory.bandwidth"]) for row in rows] == [
        (tp, bandwidth) for tp in (1, 2, 3) for bandwidth in (2000, 3350)
    ]
    assert [row["refused"] is None for row in rows] == [True] * 4 + [False] * 2
    assert rows[0]["step"] > rows[1]["step"] > 0
    lines = [json.loads(line) for line in run(*words, "-f", "ndjson").out.splitlines()]
    assert lines == rows
    table = list(csv.DictReader(io.StringIO(run(*words, "-f", "csv").out)))
    assert [each["step"] for each in table] == ["" if row["step"] is None else str(row["step"]) for row in rows]
    assert run(*words, "-f", "parquet", "-o", "rows.parquet").status == 0
    table_of = pq.read_table(tmp_path / "rows.parquet")
    assert table_of.to_pylist() == rows
    assert json.loads(table_of.schema.metadata[b"stagedb.provenance"]) == found["provenance"]
    assert not made(run, "ls", "instances")


def test_a_table_of_80_columns_has_every_point(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run("sweep", "--model", tiny, *PLAN, *VARY)
    verdict, head, *lines = ran.out.splitlines()
    assert verdict.startswith("tiny: 6 points, 2 refused; most tokens a second and accelerator has tp ")
    assert head.split()[:2] == ["tp", "memory.bandwidth"]
    assert len(lines) == 6 and sum("refused: " in line for line in lines) == 2
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    narrow = run("sweep", "--model", tiny, *PLAN, *VARY).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert narrow.count("refused:") == 2


def test_what_to_buy_is_a_sentence_and_a_table(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("sweep", "--model", tiny, *PLAN, "--tp", "2", "--sensitivity")
    verdict, figures, head, *lines = run(*words).out.splitlines()
    assert verdict.startswith("what to buy first is accelerator.launch: 10 % better, it shortens the step by ")
    assert figures.startswith("step ") and figures.endswith(" of tiny on 4 ranks of h100")
    assert head.split()[:3] == ["number", "value", "elasticity"]
    assert lines[0].startswith("accelerator.launch ")
    found = made(run, *words)
    assert [line.split()[0] for line in lines] == [row["number"] for row in found["rows"]]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    narrow = run(*words).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert "elasticity" in narrow and "10 % saves" in narrow and "No room" not in narrow


def test_the_command_of_the_provenance_makes_the_rows_again(run: Run, tiny: str) -> None:
    for words in (VARY, ("--vary", "tp=1,2", "--vary", "micro_batch_size=1,2", "--together"), ("--sensitivity",)):
        found = made(run, "sweep", "--model", tiny, *PLAN, *words)
        (command,) = found["provenance"]["commands"]
        assert made(run, *shlex.split(command)[1:]) == found


def test_the_steps_are_drawn(run: Run, tiny: str, tmp_path: Path) -> None:
    ran = run("sweep", "--model", tiny, *PLAN, *VARY, "--picture", "steps.svg")
    assert ran.status == 0 and "drew steps.svg" in ran.out
    text = (tmp_path / "steps.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg ") and text.count("<circle ") == 4 and "2 points are refused" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing varies: name what does with --vary tp=1,2,4, or use --sensitivity"),
        (("--sensitivity", "--vary", "tp=1"), "leave out --vary"),
        (("--sensitivity", "--picture", "a.svg"), "leave out --vary, --together and --picture"),
        (("--vary", "tp=1", "--picture", "steps.png"), "--picture steps.png is no name of an SVG: it ends in .svg"),
        (("--vary", "tp"), "--vary 'tp' is not NAME=VALUES"),
        (("--vary", "system.accelerator.peek.bf16=1"), "did you mean accelerator.peak.bf16"),
        (("--vary", "tp=1,2", "--vary", "pp=1,2,4", "--together"), "--together takes lists of one length"),
        (("--vary", "tp=1", "-f", "parquet"), "name a file with --output"),
    ],
)
def test_what_cannot_be_swept_is_refused(run: Run, tiny: str, words: tuple[str, ...], message: str) -> None:
    ran = run("sweep", "--model", tiny, *PLAN, *words)
    assert ran.status == 2
    assert message in " ".join(ran.err.split())
