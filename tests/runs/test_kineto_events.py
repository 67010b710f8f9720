"""Numbers of PyTorch's profiler, a column at a time: not a nanosecond is lost, however a file writes its times."""

import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stagedb.runs import (
    RankTrace,
    event_stream,
    file_digest,
    kineto,
    measured_run,
    read_kineto,
    run_digest,
    run_rows,
)
from stagedb.runs.event_stream import EventStream
from stagedb.runs.kineto_events import KNOWN_FLOAT_EVENTS, FloatEvent, decimal_nanoseconds, integers, nanoseconds
from stagedb.runs.rank_trace import NONE
from tests.runs.recordings import training_step

SINCE_1970 = 1_712_195_495_997_093_217
SINCE_START = 2_915_995_412_641_159


def trace(times: list[tuple[str, str]], path: Path) -> RankTrace:
    """The trace of kernels with these starts and lengths, as they are written in a file."""
    events = ",".join(
        f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": {start}, "dur": {length}, "args": {{"stream": 7}}}}'
        for start, length in times
    )
    path.write_text(f'{{"traceEvents": [{events}]}}')
    return read_kineto(path, file_digest(path))


@pytest.mark.parametrize("base", (0, SINCE_START, (1 << 42) * 1000, (1 << 43) * 1000 - 40_000, SINCE_1970))
@pytest.mark.parametrize("written", ("{}", '"{}"'), ids=("number", "text"))
def test_times_are_exact_to_the_nanosecond(base: int, written: str, tmp_path: Path) -> None:
    starts = [base + number * 13 for number in range(3_000)]
    texts = [(written.format(Decimal(ns) / 1000), written.format(Decimal(ns % 997) / 1000)) for ns in starts]
    found = trace(texts, tmp_path / "t.json")
    assert found.ops.start.tolist() == starts and found.left_out == ()
    assert (found.ops.end - found.ops.start).tolist() == [ns % 997 for ns in starts]


def test_floats_hold_the_times_of_most_files() -> None:
    random_ = random.Random(0)
    for base in (0, SINCE_START, (1 << 43) * 1000 - 2_000_000):
        ns = [base + random_.randrange(1_000_000) for _ in range(1_000)]
        events = [msgspec.json.decode(f'{{"ts": {Decimal(each) / 1000}}}', type=FloatEvent) for each in ns]
        found = nanoseconds([event.ts for event in events])
        assert found is not None and found.tolist() == ns


@pytest.mark.parametrize(
    "column", ([1.5, None], ["1"], [1.0001], [SINCE_1970 / 1000], [1e16], [10**16], [10**30], [-1e16])
)
def test_times_that_floats_may_not_hold_are_refused(column: list[Any]) -> None:
    assert nanoseconds(column) is None


def test_a_file_changes_to_decimal_numbers_where_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PIECE", 1 << 10)
    starts = [number * 10 for number in range(50)] + [SINCE_1970 + number for number in range(50)]
    texts = [(str(Decimal(ns) / 1000), "0.001") for ns in starts]
    texts[3], texts[70] = ("null", "1"), ("1e300", "1")
    found = trace(texts, tmp_path / "t.json")
    assert found.ops.start.tolist() == [ns for at, ns in enumerate(starts) if at not in (3, 70)]
    assert found.events == {"kernel": 100}
    assert [each.partition(":")[0] for each in found.left_out] == ["event 3", "event 70"]


def test_integers_are_those_of_numbers_and_texts() -> None:
    values: list[Any] = [1, -5, "17", "x", None, True, 2.0, 1 << 70]
    assert integers(values).tolist() == [1, -5, 17, NONE, NONE, NONE, NONE, NONE]
    assert integers([3, True, False]).tolist() == [3, NONE, NONE]
    assert integers([]).dtype == np.int64 and integers([4, 5]).tolist() == [4, 5]


def test_events_are_counted_once_if_a_piece_is_read_again(tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "k", "ts": "1", "dur": 1}, {"ph": "X", "cat": "other", "ts": 1}, 5]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = read_kineto(path, file_digest(path))
    assert dict(found.events) == {"kernel": 1, "other": 1}
    assert found.left_out[1:] == ("1 event of the unknown category 'other'",) and found.left_out[0].startswith(
        "event 2"
    )


def test_decimal_numbers_are_exact_or_refused() -> None:
    assert decimal_nanoseconds([Decimal("1712195495997093.217"), Decimal("-0.5"), 7]) is not None
    found = decimal_nanoseconds([Decimal("1712195495997093.217"), Decimal("1.0019"), 7])
    assert found is not None and found.tolist() == [SINCE_1970, 1_001, 7_000]
    for wrong in (None, Decimal("NaN"), Decimal("Infinity"), Decimal("1e300"), Decimal(9_000_000_000_000_000)):
        assert decimal_nanoseconds([Decimal(1), wrong]) is None


@pytest.mark.parametrize("shift", (0, SINCE_1970))
def test_events_of_known_categories_are_read_as_any_others(
    shift: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some pieces have events of no known category, or of none.
    monkeypatch.setattr(event_stream, "PIECE", 4_000)
    written = training_step(0)
    written.shift = shift
    for number, category in enumerate(("ac2g", "overhead", "python_function", "cuda_sync", "of nobody")):
        written.span(category, f"nn.Module: Layer_{number}", 6_000 + 100 * number, 9_000)
    written.allocated(50_000, 4_096, 4_096)
    # What is in another category than its name, and arguments that are none of its category.
    args: dict[str, Any] = {"Bytes": 4, "Collective name": "send"}
    for category in ("cuda_runtime", "python_function", "ac2g"):
        written.span(category, "gloo:all_reduce", 7_000, 10, **args)
        ts = float(60_000 + shift // 1000)
        written.events.append({"ph": "i", "cat": category, "name": "[memory]", "ts": ts, "args": {"Bytes": "x"}})
    written.events.append({"ph": "M", "name": "process_name", "args": {"name": "python"}})
    path = written.write(tmp_path)
    trace = read_kineto(path, "0" * 64)
    assert dict(trace.events) == Counter(each["cat"] for each in written.events if each["ph"] == "X")
    assert trace.left_out == ("1 event of the unknown category 'of nobody'",)
    assert (len(trace.ops), len(trace.modules), len(trace.memory)) == (13, 1, 1)
    monkeypatch.setattr(kineto, "KNOWN_FLOAT_EVENTS", None)
    monkeypatch.setattr(kineto, "KNOWN_DECIMAL_EVENTS", None)
    assert content(read_kineto(path, "0" * 64)) == content(trace)


def content(trace: RankTrace) -> str:
    """The digest of a run of this rank alone."""
    rows = run_rows(measured_run([trace]), {})
    return run_digest(rows.own, {label: (row for _, row in of) for label, of in rows.nodes.items()}, rows.edges)


def test_known_forms_are_tried_no_longer_where_most_pieces_have_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "PIECE", 100)
    monkeypatch.setattr(event_stream, "MOST_UNKNOWN", 3)
    path = tmp_path / "t.json"

    def forms(*categories: str) -> list[str]:
        events = [{"ph": "X", "cat": each, "name": "x" * 90, "ts": 1} for each in categories]
        path.write_text(json.dumps({"traceEvents": events}))
        stream = EventStream(path, FloatEvent, KNOWN_FLOAT_EVENTS)
        return ["any" if isinstance(each, FloatEvent) else "known" for piece in stream.pieces() for each in piece]

    assert forms("kernel", "new", "kernel", "new", "kernel") == ["known", "any", "known", "any", "known"]
    assert forms("new", "new", "new", "kernel") == ["any"] * 4


@pytest.mark.parametrize("category", ("xpu_driver", "privateuse1_driver"))
def test_calls_of_drivers_launch_what_a_device_executes(category: str, tmp_path: Path) -> None:
    written = training_step(0)
    runtime = read_kineto(written.write(tmp_path), "0" * 64)
    for each in written.events:
        each["cat"] = category if each["cat"] == "cuda_runtime" else each["cat"]
    driver = read_kineto(written.write(tmp_path), "0" * 64)
    assert driver.ops.launched.tolist() == runtime.ops.launched.tolist() and driver.left_out == ()


def test_categories_that_are_not_known_are_named(tmp_path: Path) -> None:
    written = training_step(0)
    for number in range(8):
        written.span("collective_comm" if number < 2 else f"new {number}", "x", 100 * number, 10)
    for category in ("xpu_sync", "mtia_insight", "overhead"):
        written.span(category, "x", 100, 10)
    found = read_kineto(written.write(tmp_path), "0" * 64)
    assert found.left_out == (
        "2 events of the unknown category 'collective_comm'",
        *(f"1 event of the unknown category 'new {number}'" for number in range(2, 6)),
        "2 further categories",
    )
