"""Trace events of a JSON file, read piece by piece: a file of any size needs the memory of one piece.

The file is an object with the list `traceEvents`, as PyTorch's profiler and Chrome write it, or that list alone. It may
be compressed with gzip. A piece of the list ends at a `}` before `,` and `{`: it has whole events exactly if it is
valid JSON with a bracket at each end, and otherwise ends at an earlier one.
"""

import gzip
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from stagedb.copied_processes import Copies
from stagedb.errors import UsageError
from stagedb.files import open_regular, path_text

PIECE = 4 << 20
"""Bytes that are decoded together."""

LONGEST = 64 << 20
"""Bytes of one event, and of all that is before or after the list, at most."""

ENDS = 64
"""Places where a piece may end that are tried before more of the file is read."""

MOST_UNKNOWN = 4
"""Pieces with an event of none of the known forms, beyond those without one, after which these are tried no longer."""

MOST_NOT_PLAIN = 4
"""Pieces that are not as most are, after which other processes get no more of them."""

_GZIP = b"\x1f\x8b"
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT = re.compile(rb"\}\s*(,)\s*\{")
_AT = re.compile(r"\(byte (\d+)\)")
_BLANK = bytes(32 if code < 32 else code for code in range(256))
_NOT_FINITE = re.compile(rb"(:\s*)-?(?:nan|inf|infinity)(?=\s*[,}\]])", re.IGNORECASE)

EventT = TypeVar("EventT")


class TraceFileError(UsageError):
    """A file is no trace, or is damaged. The text names it and the byte."""


class _Cut(Exception):
    """A text of JSON ends before its value does."""


class _Ended(Exception):
    """A text of JSON goes on after its value. value, rest: both parts, mended if the text needed it."""

    def __init__(self, text: bytes, at: int) -> None:
        super().__init__(at)
        self.value, self.rest = text[:at], text[at:]


class _Held:
    """A file of which a part was read ahead of its turn. held: this part, in its order."""

    def __init__(self, text: Any) -> None:
        self.text = text
        self.held: deque[bytes] = deque()

    def read(self, size: int) -> bytes:
        """The next bytes, fewer than `size` only at the end of the file."""
        parts = []
        while size and self.held:
            part = self.held.popleft()
            if len(part) > size:
                self.held.appendleft(part[size:])
            parts.append(part[:size])
            size -= len(parts[-1])
        return b"".join((*parts, self.text.read(size))) if size else b"".join(parts)


Question = tuple[int, bytes, Any]
"""A number, which is another one each time, a piece, and the form of its events."""


@dataclass(frozen=True)
class Elsewhere:
    """Other processes that read plain pieces. take: gets what they return of each but its number of events, in order.

    copies: get a `Question`, and return the number of events and what `take` gets, or None for a piece that is not
    plain: this process then reads it.
    """

    copies: Copies
    take: Callable[[Any], None]


@dataclass(frozen=True)
class _Asked:
    """A piece that another process reads. left: bytes that were left before `fresh` was read. used: how many are gone
    with the piece, which has the comma that follows it."""

    number: int
    left: bytes
    fresh: bytes
    used: int


@dataclass
class EventStream(Generic[EventT]):
    """The events of one file.

    path: of the file. kind: a `msgspec.Struct`, the form of an event. known: forms of most events, as a union: they are
    tried first, and have what is used of that form. top: the values next to the list, complete after the last event.
    left_out: events that do not have this form: the number of each in the list, from 0, and what is wrong. repaired:
    whether characters were replaced that JSON does not have. done: bytes of the file that were read. number: events
    before the last piece. elsewhere: reads the pieces that follow, but for those with something that is not usual.
    """

    path: Path
    kind: type[EventT]
    known: Any = None
    top: dict[str, Any] = field(default_factory=dict)
    left_out: list[tuple[int, str]] = field(default_factory=list)
    repaired: bool = False
    done: int = 0
    number: int = 0
    elsewhere: Elsewhere | None = None
    _offset: int = 0
    _not_plain: int = 0
    _piece: bytes = b""
    _unknown: int = 0

    def pieces(self) -> Iterator[Sequence[EventT | None]]:
        """The events in their order, some at a time; None in the place of one that is left out.

        Raises TraceFileError for a file that is no trace or is damaged, and UsageError for one that cannot be read.
        """
        try:
            with open_regular(self.path) as raw:
                compressed = raw.read(2) == _GZIP
                raw.seek(0)
                text = _Held(gzip.GzipFile(fileobj=raw) if compressed else raw)
                for piece in self._pieces(text):
                    self.done = raw.tell()
                    yield piece
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise self._error(f"its gzip data is cut or damaged: {error}") from None
        except OSError as error:
            raise UsageError(f"cannot read the trace {path_text(self.path)}: {error.strerror or error}") from None

    @property
    def offset(self) -> int:
        """Bytes of the text of the file before the last piece."""
        return self._offset

    def again(self, kind: type[EventT], known: Any = None) -> Sequence[EventT | None]:
        """The events of the last piece in other forms, which all later pieces have, too.

        kind, known: as `change` has.
        """
        self.change(kind, known)
        self.left_out = [each for each in self.left_out if each[0] < self.number]
        return self._decode(self._piece)

    def change(self, kind: type[EventT], known: Any = None) -> None:
        """Read what follows in other forms.

        kind: the struct of an event. known: a narrower form that most events have, which is tried first; None: none.
        """
        self.kind, self.known, self._unknown = kind, known, 0

    def _pieces(self, text: _Held) -> Iterator[Sequence[EventT | None]]:
        buffer, alone = self._head(text)
        more = True
        while more:
            if self.elsewhere is not None and self._not_plain < MOST_NOT_PLAIN:
                buffer = self._read_elsewhere(text, buffer, self.elsewhere)
            fresh = text.read(PIECE)
            more = bool(fresh)
            buffer += fresh
            # Without more text, what is left is the last piece, with the end of the list.
            for end in self._ends(buffer) if more else (len(buffer),):
                piece = b"[" + buffer[:end] + (b"]" if more else b"")
                try:
                    found = self._decode(piece)
                except _Cut:
                    continue
                except _Ended as over:
                    try:
                        last = self._decode(over.value)
                    except (_Cut, _Ended):
                        raise self._error(f"its list of events is damaged after byte {self._offset}") from None
                    yield last
                    # The reader added the last bracket of a piece; the file does not have it.
                    self._tail(text, over.rest[:-1] + buffer[end:] if more else over.rest, alone)
                    return
                yield found
                self.number += len(found)
                if not more:
                    # If the whole file is a list, nothing follows its bracket.
                    self._tail(text, b"", alone)
                    return
                used = end + buffer[end:].index(b",") + 1
                self._offset += used
                buffer = buffer[used:]
                break
            else:
                if len(buffer) > LONGEST:
                    raise self._error(f"what begins at byte {self._offset} is larger than {LONGEST >> 20} MiB")
        raise self._error(f"it ends in its list of events, at byte {self._offset + len(buffer)}: the file is cut")

    def _read_elsewhere(self, text: _Held, buffer: bytes, elsewhere: Elsewhere) -> bytes:
        """Have plain pieces read. They end where `_pieces` would have ended them: at the last place where one may.

        buffer: bytes before those that `text` has. Returns those before the first piece that is not plain.
        """
        copies = elsewhere.copies
        asked: deque[_Asked] = deque()
        answers: dict[int, Any] = {}
        count, plain = 0, True
        while plain or copies.busy:
            while plain and copies.idle:
                fresh = text.read(PIECE)
                both = buffer + fresh
                ends = self._ends(both) if fresh else []
                if not ends:
                    text.held.appendleft(fresh)
                    plain = False
                    break
                used = ends[0] + both[ends[0] :].index(b",") + 1
                asked.append(_Asked(count, buffer, fresh, used))
                copies.ask((count, b"[" + both[: ends[0]] + b"]", self.kind))
                buffer, count = both[used:], count + 1
            for question, answer in copies.answers():
                answers[question[0]] = answer
            while asked and asked[0].number in answers:
                answer = answers.pop(asked[0].number)
                if answer is None:
                    self._not_plain += 1
                    return self._given_back(text, asked, copies)
                piece = asked.popleft()
                self._offset += piece.used
                self.number += answer[0]
                elsewhere.take(answer[1])
        return buffer

    @staticmethod
    def _given_back(text: _Held, asked: Sequence[_Asked], copies: Copies) -> bytes:
        """Give back what was read of the pieces from the first one on, and wait for the answers about them."""
        while copies.busy:
            for _ in copies.answers():
                pass
        text.held.extendleft(each.fresh for each in reversed(asked))
        return asked[0].left

    def _ends(self, buffer: bytes) -> list[int]:
        """Where a piece may end, the last place first."""
        begin = max(0, len(buffer) - (PIECE >> 4))
        found = [match.start() + 1 for match in _NEXT.finditer(buffer, begin)]
        if not found:
            found = [match.start() + 1 for match in _NEXT.finditer(buffer)]
        return found[: -ENDS - 1 : -1]

    def _decode(self, piece: bytes) -> Sequence[EventT | None]:
        """The events of a list, which is kept for `again`.

        Raises _Cut or _Ended if it ends before or after the text, and TraceFileError.
        """
        self._piece = piece
        events = self.whole(piece)
        if events is not None:
            return events
        raws = self._checked(piece, list[msgspec.Raw])
        found: list[EventT | None] = []
        for number, raw in enumerate(raws, self.number):
            try:
                found.append(msgspec.json.decode(self._mended(bytes(raw)), type=self.kind))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                found.append(None)
                self.left_out.append((number, str(error)))
        return found

    def whole(self, piece: bytes) -> Sequence[EventT] | None:
        """The events of a list; None if it is no JSON, or one of them does not have the form.

        piece: the list as JSON.
        """
        if self.known is not None:
            try:
                events: Sequence[EventT] = msgspec.json.decode(piece, type=list[self.known])  # type: ignore[name-defined]
                self._unknown = max(0, self._unknown - 1)
                return events
            except msgspec.ValidationError:
                self._unknown += 1
                if self._unknown == MOST_UNKNOWN:
                    self.known = None
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
        try:
            found: Sequence[EventT] = msgspec.json.decode(piece, type=list[self.kind])  # type: ignore[name-defined]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return found

    def _checked(self, text: bytes, kind: Any) -> Any:
        """A value of JSON. What JSON does not have is replaced in a text that is wrong before its end."""
        for attempt in (text, self._mended(text)):
            try:
                return msgspec.json.decode(attempt, type=kind)
            except RecursionError:
                raise self._error(f"values after byte {self._offset} of its text are nested too deeply") from None
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = str(error)
                found = _AT.search(reason)
                at = len(text) if found is None or "truncated" in reason else int(found[1])
                if "trailing" in reason:
                    # The error's place is behind the first character after the end of the value.
                    raise _Ended(attempt, at - 1) from None
                if at >= len(text) - 1:
                    raise _Cut from None
        raise self._error(f"byte {self._offset + max(0, at - 1)} of its text is no JSON")

    def _mended(self, text: bytes) -> bytes:
        """A text without control characters and numbers that are not finite, and in UTF-8."""
        mended = _NOT_FINITE.sub(rb"\1null", text.translate(_BLANK))
        try:
            mended.decode()
        except UnicodeDecodeError:
            mended = mended.decode(errors="replace").encode()
        self.repaired = self.repaired or mended != text.translate(_SPACES)
        return mended

    def _head(self, text: Any) -> tuple[bytes, bool]:
        """What follows the bracket of the list, and whether the file is the list alone."""
        buffer = b""
        while fresh := text.read(PIECE):
            buffer = (buffer + fresh).removeprefix(b"\xef\xbb\xbf")
            start = buffer.lstrip()
            if start[:1] == b"[":
                self._offset = len(buffer) - len(start) + 1
                return start[1:], True
            if start[:1] not in (b"{", b""):
                break
            for match in _LIST.finditer(buffer):
                try:
                    self.top = self._checked(buffer[: match.end()] + b"]}", dict[str, Any])
                except (_Cut, _Ended, TraceFileError, msgspec.MsgspecError):
                    continue
                self._offset = match.end()
                return buffer[match.end() :], False
            if len(buffer) > LONGEST:
                break
        raise self._error("it has no list traceEvents, as traces of PyTorch's profiler have")

    def _tail(self, text: Any, rest: bytes, alone: bool) -> None:
        """Keep the values after the list. rest: the first bytes after its bracket."""
        rest += text.read(LONGEST)
        if alone:
            if rest.strip():
                raise self._error("there is something after its list of events")
            return
        try:
            self.top |= self._checked(b'{"traceEvents":[]' + rest, dict[str, Any])
        except (_Cut, _Ended, msgspec.MsgspecError):
            raise self._error("what follows its list of events is cut or damaged") from None
        del self.top["traceEvents"]

    def _error(self, why: str) -> TraceFileError:
        return TraceFileError(f"the trace {path_text(self.path)} cannot be imported: {why}")


_SPACES = bytes(32 if code in b"\t\n\r" else code for code in range(256))
