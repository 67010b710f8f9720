"""Rows in every format come from the same values."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.cli.printed_rows import Output, RowFormat, render, shown_column, wrapped
from stagedb.errors import StagedbError, UsageError
from stagedb.store import load

COLUMNS = ("axis", "bytes", "ranks", "sound", "note")
ROWS = [("tp", 12_345_678, [0, 1], True, None), ("dp, pp", -1, [], False, 'call "hi"')]


def printed(capsys: pytest.CaptureFixture[str], format_: RowFormat, rows: list[tuple[Any, ...]] = ROWS) -> str:
    Output(format_).write(COLUMNS, rows)
    return capsys.readouterr().out


def test_json_is_one_list_of_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, RowFormat.JSON)) == [
        {"axis": "tp", "bytes": 12_345_678, "ranks": [0, 1], "sound": True, "note": None},
        {"axis": "dp, pp", "bytes": -1, "ranks": [], "sound": False, "note": 'call "hi"'},
    ]


def test_ndjson_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, RowFormat.NDJSON).splitlines()
    assert [json.loads(line)["axis"] for line in lines] == ["tp", "dp, pp"]


def test_csv_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.reader(io.StringIO(printed(capsys, RowFormat.CSV))))
    assert rows == [
        list(COLUMNS),
        ["tp", "12345678", "[0, 1]", "true", ""],
        ["dp, pp", "-1", "[]", "false", 'call "hi"'],
    ]


def test_a_table_aligns_numbers_and_is_not_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 500
    lines = printed(
        capsys, RowFormat.TABLE, [("tp", 12_345_678, [0, 1], True, long), ("dp", 1, [], False, "")]
    ).splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert "12,345,678" in lines[1]
    assert long in lines[1]
    assert lines[1].index("12,345,678") + len("12,345,678") == lines[2].index(" 1 ") + 2
    assert all(line == line.rstrip() for line in lines)


def test_a_table_prints_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Output(RowFormat.TABLE).write(("name",), [("[red]not a style[/red]",)])
    assert "[red]not a style[/red]" in capsys.readouterr().out


def test_a_table_without_rows_names_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no rows" in printed(capsys, RowFormat.TABLE, [])


@pytest.mark.parametrize(
    ("format_", "empty"), [(RowFormat.CSV, ",".join(COLUMNS) + "\n"), (RowFormat.JSON, "[]\n"), (RowFormat.NDJSON, "")]
)
def test_no_rows_are_still_a_whole_file(capsys: pytest.CaptureFixture[str], format_: RowFormat, empty: str) -> None:
    assert printed(capsys, format_, []) == empty


def test_parquet_keeps_types(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    Output(RowFormat.PARQUET, file).write(COLUMNS, ROWS)
    table = pq.read_table(file)
    assert table.column_names == list(COLUMNS)
    assert table.to_pylist()[0] == {"axis": "tp", "bytes": 12_345_678, "ranks": [0, 1], "sound": True, "note": None}


def test_parquet_takes_a_column_of_mixed_types_as_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    Output(RowFormat.PARQUET, file).write(("value",), [(1,), ("two",), (None,)])
    assert pq.read_table(file).to_pylist() == [{"value": "1"}, {"value": "two"}, {"value": None}]


def test_parquet_needs_a_file() -> None:
    with pytest.raises(UsageError, match="--output"):
        Output(RowFormat.PARQUET).write(COLUMNS, ROWS)


@pytest.mark.parametrize("format_", [RowFormat.CSV, RowFormat.JSON, RowFormat.NDJSON, RowFormat.TABLE])
def test_a_file_holds_what_would_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], format_: RowFormat
) -> None:
    file = tmp_path / "rows"
    Output(format_, file).write(COLUMNS, ROWS)
    assert capsys.readouterr().out == ""
    assert file.read_text() == printed(capsys, format_)


def test_a_failed_write_keeps_the_old_file_and_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(StagedbError, match="--output") as caught:
        Output(RowFormat.CSV, tmp_path / "missing" / "rows.csv").write(COLUMNS, ROWS)
    assert caught.value.exit_status == 1


@given(st.lists(st.tuples(st.text(), st.integers(), st.none() | st.text()), max_size=5))
def test_csv_and_json_have_the_same_values(rows: list[tuple[Any, ...]]) -> None:

    columns = ("a", "b", "c")
    objects = json.loads(render(RowFormat.JSON, columns, rows, None))
    assert [tuple(item.values()) for item in objects] == rows
    cells = list(csv.reader(io.StringIO(render(RowFormat.CSV, columns, rows, None), newline="")))[1:]
    assert cells == [[a, str(b), c or ""] for a, b, c in rows]


CELLS = st.tuples(
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
)


@given(rows=st.lists(CELLS, min_size=1, max_size=6))
def test_every_format_has_the_same_values(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, ...]]
) -> None:
    """Numbers and texts come back from each file as they went in; a table groups digits for readers."""
    columns = ("text", "whole", "share", "sound")
    path = tmp_path_factory.mktemp("rows") / "file"
    read: dict[RowFormat, list[tuple[Any, ...]]] = {}
    for format_ in (RowFormat.CSV, RowFormat.JSON, RowFormat.NDJSON, RowFormat.PARQUET):
        Output(format_, path).write(columns, rows)
        if format_ is RowFormat.PARQUET:
            found = pq.read_table(path).to_pylist()
        elif format_ is RowFormat.CSV:
            texts = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
            found = [
                {**row, "whole": int(row["whole"]), "share": float(row["share"]), "sound": row["sound"] == "true"}
                for row in texts
            ]
        else:
            text = path.read_text(encoding="utf-8")
            found = (
                json.loads(text) if format_ is RowFormat.JSON else [json.loads(line) for line in text.split("\n")[:-1]]
            )
        read[format_] = [tuple(row[column] for column in columns) for row in found]
    assert all(found == [tuple(row) for row in rows] for found in read.values())
    Output(RowFormat.TABLE, path).write(columns, rows)
    table = path.read_text(encoding="utf-8")
    assert all(f"{whole:,}" in table for _, whole, _, _ in rows)


TEXTS = st.text(st.characters(codec="ascii", categories=("L", "Nd", "Zs")), max_size=30)
TABLES = st.integers(1, 9).flatmap(
    lambda count: st.tuples(
        st.lists(st.sampled_from(["a", "rank", "exposed_ns"]), min_size=count, max_size=count),
        st.lists(
            st.tuples(*(st.integers(0, 10**12) if at % 2 else TEXTS for at in range(count))), min_size=1, max_size=4
        ),
    )
)


@given(TABLES, st.integers(20, 120))
def test_a_table_in_a_terminal_breaks_no_number(table: tuple[list[str], list[tuple[Any, ...]]], room: int) -> None:
    columns, rows = table
    text = render(RowFormat.TABLE, columns, rows, room)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    body, _, note = plain.partition("\nNo room for")
    shown = len(columns) - (len(note.replace("\n", " ").split(":")[0].split(", ")) if note else 0)
    assert max(map(len, note.splitlines()), default=0) <= max(room, len("--format"))
    for at in range(1, shown, 2):
        for row in rows:
            assert f"{row[at]:,}" in body
    widths = [len(line) for line in body.splitlines()]
    if shown > 1:
        assert max(widths) <= room
    assert all(name in body for name in columns[:shown])


def test_columns_without_room_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, row = ["name", "first", "second"], ("x" * 30, 10**9, 10**12)
    text = render(RowFormat.TABLE, columns, [row], 50)
    assert "No room for second: --wide shows all columns, --format csv has them too." in " ".join(text.split())
    assert "1,000,000,000,000" in render(RowFormat.TABLE, columns, [row], 80)
    assert "\x1b[1m" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in render(RowFormat.TABLE, columns, [row], 80)


def test_the_columns_of_the_answer_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    columns = ["axis", "block", "layers", "calls", "time", "share"]
    row = ("tp", "layer", 32, 256, 65_564_672, 0.0309287)
    units = {"time": "ns", "share": "ratio"}
    text = render(RowFormat.TABLE, columns, [row], 36, ("share", "time", "block"), units)
    assert text.splitlines()[:2] == ["axis  block  time ms  share %", "tp    layer   65.565      3.1"]
    assert "No room for layers, calls" in " ".join(text.split())
    narrow = render(RowFormat.TABLE, columns, [row], 16, ("share", "time", "block"), units)
    assert narrow.splitlines()[0] == "axis  share %"
    # Another program gets the same with all columns, however narrow the terminal is.
    monkeypatch.setenv("COLUMNS", "16")
    piped = render(RowFormat.TABLE, columns, [row], None, ("share", "time", "block"), units)
    assert piped.splitlines() == [
        "axis  block  layers  calls  time ms  share %",
        "tp    layer      32    256   65.565      3.1",
    ]


AT_80: dict[str, tuple[dict[str, Any], str]] = {
    "communication/hotspots": (
        {"axis": "default_pg", "kind": "reduce_scatter", "phase": "backward", "layers": 1, "ranks": 4, "calls": 1,
         "block": "FSDP::post_backward_reduce (layers.1)", "bytes": 7_080_960, "time": 30_764_000,
         "exposed": 27_785_000, "critical": 0, "share": 0.032},
        "axis        kind            phase     block                 exposed ms  share %",
    ),
    "runs/idle_gaps": (
        {"name": "gloo:all_reduce", "launcher": "c10d::_reduce_scatter_base_", "gaps": 1, "idle": 5_234_000,
         "block": "FSDP::post_backward_reduce (layers.1)", "launching": 1_075_000, "longest": 5_234_000,
         "share": 0.006},
        "name             launcher         block             idle ms  launching ms  share %",
    ),
    "runs/late_ranks": (
        {"rank": 2, "axis": "default_pg", "kind": "reduce_scatter", "calls": 2, "waited": 78_261_026,
         "longest": 39_222_958, "share": 0.0227, "clock_error": 130_754},
        "rank  axis        kind            calls  waited ms  share %  clock_error us",
    ),
}  # fmt: skip
"""Rows of queries about a run, and the columns that have the answer in a terminal of 80 characters."""


@pytest.mark.parametrize("query", AT_80)
def test_answers_about_runs_fit_into_80_characters(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are broken before a column of the answer is left out."""
    monkeypatch.setenv("NO_COLOR", "1")
    row, heads = AT_80[query]
    statement = load(f"analyze/{query}")
    columns = [field.name for field in statement.columns if field.name in row]
    units = {field.name: field.unit for field in statement.columns if field.unit is not None}
    text = render(RowFormat.TABLE, columns, [[row[name] for name in columns]], 80, statement.keep, units)
    lines = text.partition("\n\n")[0].splitlines()
    assert lines[0].split() == heads.split() and max(map(len, lines)) <= 80
    assert all(part in text for part in ("post_", "reduce", "(layers.1)") if "block" in row)


def test_a_name_is_broken_after_its_marks() -> None:
    assert wrapped("FSDP::post_backward_reduce (layers.1)", 14).split("\n") == [
        "FSDP::post_",
        "backward_",
        "reduce",
        "(layers.1)",
    ]
    assert wrapped("all", 2) == "all" and wrapped("", 2) == ""


UNITS = {
    ("ns", (65_564_672, 1_000)): ("time ms", ["65.565", "0.001"]),
    ("ns", (2_000_000_000, 1)): ("time s", ["2.000", "<0.001"]),
    ("ns", (2_000_000_000, -1)): ("time s", ["2.000", ">-0.001"]),
    ("ns", (17, 0)): ("time ns", ["17", "0"]),
    ("B", (4_015_263_744, None)): ("time GB", ["4.015", ""]),
    ("flop", (549_755_813_888,)): ("time GFLOP", ["549.756"]),
    ("ratio", (0.0309287, 1.0, 0.0001)): ("time %", ["3.1", "100.0", "<0.1"]),
}


@pytest.mark.parametrize("case", UNITS, ids=str)
def test_a_table_has_units_and_other_formats_are_exact(case: tuple[str, tuple[Any, ...]], tmp_path: Path) -> None:
    unit, values = case
    assert shown_column("time", unit, values) == UNITS[case]
    path = tmp_path / "rows.csv"
    rows = [(value,) for value in values]
    Output(RowFormat.CSV, path).write(["time"], rows, keep=("time",), units={"time": unit})
    assert path.read_text(encoding="utf-8").split() == [
        "time",
        *('""' if value is None else str(value) for value in values),
    ]
    Output(output=path).write(["time"], rows, keep=("time",), units={"time": unit})
    head, shown = UNITS[case]
    assert [line.strip() for line in path.read_text(encoding="utf-8").splitlines()] == [head, *shown]


def test_a_column_with_the_name_of_its_unit_gets_a_name() -> None:
    assert shown_column("ns", "ns", [1_500]) == ("time us", ["1.500"])
    assert shown_column("name", None, ["a"]) is None
    assert shown_column("text", "ns", ["a"]) is None


def test_of_two_columns_the_second_remains() -> None:
    """A long word, such as an address, is broken: the names of fields alone are no answer."""
    rows = [("name", "h100"), ("sources[0]", "https://" + "x" * 80)]
    text = re.sub(r"\x1b\[[0-9;]*m", "", render(RowFormat.TABLE, ("field", "value"), rows, 40))
    assert "h100" in text
    assert text.count("x") == 80
    assert "No room" not in text
    assert max(map(len, text.splitlines())) <= 40
