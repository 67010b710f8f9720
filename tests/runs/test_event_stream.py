"""Events of a file, piece by piece: the same as read whole, or an error that names the byte."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagedb.errors import UsageError
from stagedb.runs import event_stream
from stagedb.runs.event_stream import EventStream, TraceFileError


class Plain(msgspec.Struct):
    ph: str = ""
    name: int | str | None = None
    args: Any = None


def read(path: Path) -> tuple[list[tuple[Any, ...]], EventStream[Plain]]:
    stream = EventStream(path, Plain)
    every = [each for piece in stream.pieces() for each in piece]
    found = [(each.ph, each.name, each.args) for each in every if each is not None]
    return found, stream


def drawn(random_: random.Random) -> Any:
    """A value of JSON that looks like what separates events."""
    texts = ("}, {", '"traceEvents": [', "]}", "\\", '"', "a", "ü", "},{")
    kind = random_.randrange(6)
    if kind < 2:
        return "".join(random_.choice(texts) for _ in range(random_.randrange(5)))
    if kind == 2:
        return random_.choice((0, -1, 1e300, 1.5, None, True))
    if kind == 3:
        return [{"a": random_.choice(texts)} for _ in range(random_.randrange(4))]
    return {random_.choice(texts): [random_.choice(texts), {}]}


@pytest.mark.parametrize("size", (1, 7, 64, 4 << 20))
@pytest.mark.parametrize("seed", range(8))
def test_pieces_are_the_list_for_any_texts_in_it(
    seed: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "PIECE", size)
    random_ = random.Random(seed)
    events = [{"ph": "X", "name": str(number), "args": drawn(random_)} for number in range(random_.randrange(30))]
    before, after = ({f"{side}{number}": drawn(random_) for number in range(3)} for side in ("x", "y"))
    separators = random_.choice(((",", ":"), (", ", ": "), (",\n  ", ": ")))
    text = json.dumps({**before, "traceEvents": events, **after}, separators=separators)
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text.encode()) if seed % 2 else text.encode())
    found, stream = read(path)
    assert found == [("X", event["name"], event["args"]) for event in events]
    assert stream.top == {**before, **after}
    assert not stream.left_out and not stream.repaired


def test_a_list_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('\n[{"ph": "X", "name": "a"}, {"ph": "i"}]\n')
    assert read(path)[0] == [("X", "a", None), ("i", None, None)]
    path.write_text('[{"ph": "X"}] {}')
    with pytest.raises(TraceFileError, match="something after its list"):
        read(path)


def test_a_file_that_is_cut_is_refused_at_each_byte(tmp_path: Path) -> None:
    text = json.dumps({"a": 1, "traceEvents": [{"ph": "X", "name": "ü}, {"}, {"ph": "i"}], "b": [{"c": 1}]}).encode()
    path = tmp_path / "trace.json"
    for end in range(len(text)):
        path.write_bytes(text[:end])
        with pytest.raises(TraceFileError, match=r"trace\.json"):
            read(path)
    packed = gzip.compress(text)
    for end in range(3, len(packed)):
        path.write_bytes(packed[:end])
        with pytest.raises(UsageError, match=r"trace\.json"):
            read(path)


def test_the_error_names_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text = '{"traceEvents": [{"ph": "X"}, {"ph": ?}, {"ph": "X"}]}'
    path.write_text(text)
    with pytest.raises(TraceFileError, match=f"byte {text.index('?')} of its text is no JSON"):
        read(path)


def test_an_event_that_the_file_ends_in_is_refused(tmp_path: Path) -> None:
    """The bracket after a piece ends an object that the file does not end."""
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents":[{"":1},{"":{"":"",}')
    with pytest.raises(TraceFileError, match="its list of events is damaged after byte 16"):
        read(path)


def test_what_json_does_not_have_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X", "name": "a\x01\n\xffb", "args": {"x": nan, "y": -inf}}]}')
    found, stream = read(path)
    assert found == [("X", "a  \ufffdb", {"x": None, "y": None})] and stream.repaired


def test_an_event_of_another_form_is_left_out_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X"}, {"ph": 5}, 7, {"ph": "i"}]}))
    found, stream = read(path)
    assert [each[0] for each in found] == ["X", "i"]
    assert [number for number, _ in stream.left_out] == [1, 2]


def test_events_have_their_numbers_in_all_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PIECE", 16)
    path = tmp_path / "trace.json"
    path.write_text(
        json.dumps({"traceEvents": [{"ph": 5} if number % 7 == 3 else {"ph": "X"} for number in range(40)]})
    )
    stream = EventStream(path, Plain)
    every = [each for piece in stream.pieces() for each in piece]
    assert [number for number, each in enumerate(every) if each is None] == [3, 10, 17, 24, 31, 38]
    assert [number for number, _ in stream.left_out] == [3, 10, 17, 24, 31, 38]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in ("", "{}", "x", '{"a": {"traceEvents": []}}', "1", '{"traceEvents": 5}'):
        path.write_text(text)
        with pytest.raises(TraceFileError, match="no list traceEvents"):
            read(path)


def test_one_event_may_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "PIECE", 1 << 10)
    monkeypatch.setattr(event_stream, "LONGEST", 1 << 12)
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "' + "x" * (1 << 14) + '"}]}')
    with pytest.raises(TraceFileError, match="larger than"):
        read(path)
