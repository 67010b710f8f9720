"""Free Cypher queries: checked, run without the right to write, ended after their time, their values plain data."""

import itertools
import queue
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import neo4j
import neo4j.exceptions

from stagedb.errors import StagedbError, UsageError
from stagedb.files import check_unicode, shown
from stagedb.mentions import Word
from stagedb.store.answer_parts import FoundGraph, Table, plain, plan_of
from stagedb.store.failures import ConnectionLost, QueryEnded, is_out_of_memory, translated

__all__ = ["Readers", "check", "one_query", "run"]

# The words of a Cypher text, separated from strings, quoted names and comments.

TokenKind = Literal["word", "name", "string", "number", "parameter", "symbol"]
KINDS = get_args(TokenKind)
OPENING, CLOSING = "([{", ")]}"

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<comment>//[^\r\n]*|/\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<parameter>\$\s*(?:\w+|`(?:[^`]|``)*`))
    | (?P<number>\d\w*)
    | (?P<word>[^\W\d]\w*)
    | (?P<unclosed>/\*|['"`])
    | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A piece of a text. `word` is a bare word: a keyword, or a name that is not quoted."""

    kind: TokenKind
    text: str
    line: int


class UnclosedError(ValueError):
    """A string, a quoted name or a comment has no end."""


def tokens(text: str) -> Iterator[Token]:
    """The pieces of a text in order, without spaces and comments. Raises UnclosedError if a piece has no end."""
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        piece = found.group()
        if kind == "unclosed":
            raise UnclosedError(f"line {line}: {piece} has no end")
        if kind in KINDS:
            yield Token(cast(TokenKind, kind), piece, line)
        line += piece.count("\n")


def returned(text: Sequence[Token]) -> Iterator[list[list[Token]]]:
    """The items of every RETURN outside brackets. A UNION has one RETURN in each branch."""
    depth = 0
    items: list[list[Token]] | None = None
    for token in text:
        word = token.text.upper() if token.kind == "word" else ""
        if depth == 0 and word == "RETURN":
            items = [[]]
            continue
        if items is not None and depth == 0 and word in ("ORDER", "SKIP", "LIMIT", "UNION"):
            yield items
            items = None
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "symbol" else 0
        if items is not None:
            if token.text == "," and depth == 0:
                items.append([])
            elif word != "DISTINCT" or items != [[]]:
                items[-1].append(token)
    if items is not None:
        yield items


# Free queries only read: a query that could write, change the schema or reach outside is refused before it is sent.
#
# One engine would refuse most such queries itself, the other through the account of a query. This check is the same for
# both, names the reason, and comes first. It refuses too much rather than too little: a text that could mean different
# things to different readers (escapes outside strings, invisible characters) is refused.

_GRAPH = ("CREATE", "MERGE", "INSERT", "SET", "REMOVE", "DELETE", "DETACH", "NODETACH", "DROP", "FOREACH", "LOAD")
_ADMINISTRATION = ("ALTER", "GRANT", "DENY", "REVOKE", "RENAME", "TRANSACTIONS", "USE")
WRITES = frozenset((*_GRAPH, *_ADMINISTRATION))
"""Words of Cypher 5 and 25 that write, change the schema, load files or change the database."""

FIRST = frozenset(["MATCH", "OPTIONAL", "UNWIND", "WITH", "RETURN", "CALL", "EXPLAIN", "PROFILE"])
"""The first words that a query may have. Other languages and administration begin with other words."""

PROCEDURES = frozenset(["db.labels", "db.relationshiptypes", "db.propertykeys"])
"""Procedures that read, on both engines, in lower case."""

NAMESPACES = frozenset(["date", "datetime", "time", "localtime", "localdatetime", "duration", "point", "vector"])
"""First parts of those names of functions with dots that belong to the language."""

_NUMBER = re.compile(r"0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|[0-9][0-9_]*(?:[eE][0-9]+)?[fFdD]?")
"""A number up to its point or its sign, such as 0x1F, 12 or 1e9."""

_EXPONENT = re.compile(r"[0-9][0-9_]*[eE]")
"""A number whose exponent follows after a sign, as in 1e-9."""

_NUMBERED = re.compile(r"\$\s*(?:[0-9]+|[^0-9].*)", re.DOTALL)
"""A parameter: a name, or digits alone."""


def check(text: str) -> None:
    """Raise UsageError, naming the word and its line, unless the text can only read."""
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn") and character not in "\t\n\r":
            raise UsageError(f"the query contains an invisible character (U+{ord(character):04X}): remove it")
    if re.search(r"\\u", text, re.IGNORECASE):
        raise UsageError(r"the query contains an escape \u…, which some servers resolve first: write the character")
    try:
        found = list(tokens(text))
    except UnclosedError as error:
        raise UsageError(f"cannot read the query: {error}") from None
    while found and found[-1].text == ";":
        found.pop()
    if not found:
        raise UsageError("the query is empty")
    first = _plain(found[0].text)
    if first not in FIRST:
        raise _refused(found[0], f"begins with {shown(found[0].text)}", f"it may begin with {', '.join(sorted(FIRST))}")
    for place, token in enumerate(found):
        _check(token, found, place)


def _check(token: Token, found: Sequence[Token], place: int) -> None:
    if token.text == ";":
        raise _refused(token, "contains more than one statement", "give them one by one")
    if token.kind in ("number", "parameter"):
        # Servers differ in where a number ends and a word begins: to some, 0CALL is a number and a call.
        if not _is_whole(token, _text(found, place + 1)):
            raise _refused(token, f"contains {shown(token.text)}", "put a space between number and word")
        return
    if token.kind == "word":
        word = _plain(token.text)
        if word in WRITES and not _is_name(found, place):
            raise _refused(
                token, f"contains {token.text.upper()}", "put a property, label or variable of that name in ``"
            )
        if word == "CALL" and not _is_name(found, place):
            _check_call(token, found, place)
    if token.kind in ("word", "name") and _text(found, place + 1) == "." and _text(found, place - 1) != ".":
        _check_function(found, place)


def _is_whole(token: Token, after: str) -> bool:
    """Whether every server reads a number, or a parameter, as one piece. after: the text of the next piece."""
    if token.kind == "parameter":
        return _NUMBERED.fullmatch(token.text) is not None
    if _EXPONENT.fullmatch(token.text):
        return after in ("+", "-")
    return _NUMBER.fullmatch(token.text) is not None


def _is_name(found: Sequence[Token], place: int) -> bool:
    """Whether the word can only be a name: after a dot or a colon that follows one, or a key of a map."""
    before, earlier = _text(found, place - 1), found[place - 2] if place >= 2 else None
    if before == "." and earlier is not None and earlier.kind != "number" and earlier.text != ".":
        return True
    if before == ":" and earlier is not None and (earlier.kind != "number"):
        return True
    return before in ("{", ",") and _text(found, place + 1) == ":"


def _check_call(token: Token, found: Sequence[Token], place: int) -> None:
    if _text(found, place + 1) in ("{", "("):
        return
    parts: list[str] = []
    place += 1
    while place < len(found) and (found[place].kind == "word" or found[place].text == "."):
        parts.append(found[place].text)
        if len(parts) % 2 == 0 and parts[-1] != ".":
            parts.pop()
            break
        place += 1
    name = "".join(parts).lower()
    if name not in PROCEDURES:
        raise _refused(
            token,
            f"calls {name or 'a quoted procedure'}",
            f"procedures that it may call: {', '.join(sorted(PROCEDURES))}",
        )


def _check_function(found: Sequence[Token], place: int) -> None:
    """A name with dots that is called must belong to the language: other functions may do anything."""
    end = place
    while _text(found, end + 1) == "." and end + 2 < len(found) and found[end + 2].kind in ("word", "name"):
        end += 2
    if end == place or _text(found, end + 1) != "(":
        return
    if _plain(_text(found, place - 1)) == "CALL":
        return  # checked as a procedure
    if found[place].text.lower() not in NAMESPACES:
        name = "".join(token.text for token in found[place : end + 1])
        raise _refused(found[place], f"calls the function {name}", "only the language's own functions may be called")


def _text(found: Sequence[Token], place: int) -> str:
    return found[place].text if 0 <= place < len(found) else ""


def _plain(word: str) -> str:
    """A word as the most generous reader sees it: look-alikes and lower case as capitals."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold()).upper()


def _refused(token: Token, what: str, hint: str) -> UsageError:
    return UsageError(f"a query can only read, and this one {what} (line {token.line}): {hint}")


LONGEST = 604_800
"""Seconds of the longest time-out: a week."""

GRACE = 1.0
"""Seconds that the server has to end a query itself. After that the caller gives up."""


RECKONING = 2.0
"""Seconds for which an engine may take to count a query that ran out of memory, after its connection was lost."""

_TOO_LARGE = ("stagedb: out of memory", "Java heap space", "OutOfMemory", "queryMaxHeap", "heap budget")
"""Words with which the embedded engine ends a query that would hold too much."""


@dataclass(frozen=True)
class Readers:
    """How the embedded engine serves free queries.

    driver: opens a connection of an account that only reads, for queries of so many seconds. ran_out: how many queries
    have run out of memory.
    """

    driver: Callable[[float], neo4j.Driver]
    ran_out: Callable[[], int]


@contextmanager
def one_query(driver: neo4j.Driver) -> Iterator[neo4j.Driver]:
    """A driver that is closed at the end, even while the thread of a query that has taken too long still uses it.

    The driver's own `close` fails if that thread is writing a message at this moment, and leaves the socket open, so
    that the query would go on.
    """
    try:
        yield driver
    finally:
        connections = [each for of_address in list(driver._pool.connections.values()) for each in list(of_address)]
        try:
            driver.close()
        except BufferError:
            for each in connections:
                each.kill()
            driver.close()


def _never() -> int:
    return 0


def run(
    driver: neo4j.Driver,
    database: str,
    uri: str,
    text: str,
    params: Mapping[str, Any],
    timeout: float,
    most: int | None = None,
    ran_out: Callable[[], int] = _never,
    graph: bool = False,
) -> Table:
    """The answer to a text that only reads (see `check`). Raises the errors of `Store.query`.

    graph: the answer also has the nodes and relationships in its rows. ran_out: as in Readers. If the connection is
    lost, it shows whether the query was the cause.
    """
    if most is not None and most < 1:
        raise UsageError(f"a query's number of rows is at least 1, not {most}")
    if not 0 < timeout <= LONGEST:
        raise UsageError(f"a query's time-out is a number of seconds above 0, at most {LONGEST:,}, not {timeout}")
    for name, value in params.items():
        check_unicode(name, "the name of a parameter")
        if isinstance(value, str):
            check_unicode(value, f"the parameter {shown(name)}")
    before = ran_out()
    answers: queue.SimpleQueue[Table | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            with driver.session(database=database, default_access_mode=neo4j.READ_ACCESS) as session:
                answers.put(_answer(session, uri, text, params, timeout, most, graph))
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            answers.put(error)

    # A server that ignores the time-out must not block the caller. The thread ends with the server's answer.
    threading.Thread(target=work, name="query", daemon=True).start()
    try:
        answer = answers.get(timeout=timeout + GRACE)
    except queue.Empty:
        raise _too_long(timeout) from None
    if isinstance(answer, _Lost):
        raise _reason(answer, uri, before, ran_out) from answer.__cause__
    if isinstance(answer, BaseException):
        raise answer
    return answer


class _Lost(Exception):
    """The connection was lost while the query ran."""


def _reason(lost: _Lost, uri: str, before: int, ran_out: Callable[[], int]) -> QueryEnded:
    """Why a connection was lost, from the count of queries that ran out of memory before the query and now."""
    end = time.monotonic() + (0 if ran_out is _never else RECKONING)
    while ran_out() == before and time.monotonic() < end:
        time.sleep(0.05)
    if ran_out() != before:
        return _too_large("the engine's heap is full")
    return QueryEnded(
        f"the connection to the store at {uri} was lost while the query ran, and it is not run again by itself, as it "
        "may be the cause: narrow it with WHERE or LIMIT, or try it once more"
    )


def _answer(
    session: neo4j.Session,
    uri: str,
    text: str,
    params: Mapping[str, Any],
    timeout: float,
    most: int | None,
    graph: bool,
) -> Table:
    try:
        with translated(uri, "the query"):
            transaction = session.begin_transaction(timeout=timeout)
    except StagedbError as error:
        raise _explained(error, timeout) from error.__cause__
    try:
        with translated(uri, "the query"), transaction:
            result = transaction.run(text, dict(params))
            # One row more than are wanted shows whether the answer is cut.
            records = itertools.islice(result, None if most is None else most + 1)
            found = FoundGraph() if graph else None
            rows = tuple(_row(record, found) for record in itertools.islice(records, most))
            cut = most is not None and next(records, None) is not None
            # One engine does not name the columns of an answer without rows.
            columns = tuple(result.keys()) or _columns(text)
            plan = None if cut else plan_of(result.consume())
            transaction.rollback()
            return Table(columns, rows, cut=cut, graph=found, plan=plan)
    except ConnectionLost as error:
        raise _Lost from error.__cause__
    except StagedbError as error:
        raise _explained(error, timeout) from error.__cause__


def _row(record: neo4j.Record, graph: FoundGraph | None) -> tuple[Any, ...]:
    if graph is not None:
        graph.add(record.values())
    return tuple(plain(value) for value in record.values())


def _columns(text: str) -> tuple[str, ...]:
    """Names of the columns that a text returns: after AS, or the expression itself."""
    items = next(returned(list(tokens(text))), [])
    return tuple(
        item[-1].text.strip("`")
        if len(item) == 1 or item[-2].text.upper() == "AS"
        else "".join(token.text for token in item)
        for item in items
        if item
    )


def _explained(error: StagedbError, timeout: float) -> StagedbError:
    cause = error.__cause__
    if not isinstance(cause, neo4j.exceptions.Neo4jError):
        return error
    code = cause.code or ""
    message = cause.message or ""
    if is_out_of_memory(cause) or any(words in message for words in _TOO_LARGE):
        words = "the engine's heap was nearly full" if "stagedb: " in message else "its bound for what queries hold"
        return _too_large(code if is_out_of_memory(cause) else words)
    if "TimedOut" in code or "Terminated" in code or "stagedb: out of time" in message:
        return _too_long(timeout)
    if "AccessMode" in code or "Forbidden" in code:
        return UsageError("a query can only read, and this one writes: the store refused it")
    if "ParameterMissing" in code and cause.message is not None:
        missing = cause.message.partition(":")[2].strip() or "a parameter"
        return UsageError(f"the query's parameters have no values: {missing} ({Word('param', 'KEY=VALUE')})")
    if code.startswith("Neo.ClientError.Statement"):
        return UsageError(f"the store does not understand the query: {cause.message}")
    return error


def _too_large(why: str) -> QueryEnded:
    return QueryEnded(
        f"the query was ended, as it needs more memory than the store has for it ({why}): narrow it with WHERE or "
        "LIMIT. It is not run again by itself. STAGEDB_HEAP sets the memory of the embedded engine when it starts"
    )


def _too_long(timeout: float) -> QueryEnded:
    return QueryEnded(f"the query was ended after {timeout:g} s: narrow it, or allow more time with {Word('timeout')}")


# Iterations that one engine computes to their end, however long that takes.
#
# Neo4j looks between two rows whether a query is to end, and not within an expression. A walk through a list of the
# store is bounded by what the store has. `range` makes lists of any length: a walk through a very long one, or through
# one in another, may take hours. No client can end it: it takes a core of the server until it is done. A subquery in an
# expression (COUNT, COLLECT, EXISTS) has rows, and is ended.

CALLED = frozenset(["REDUCE", "ALLREDUCE", "ALL", "ANY", "NONE", "SINGLE"])
"""Iterations that are written like calls. A list comprehension is the other kind."""

LONGEST_RANGE = 10_000_000
"""The largest number in a call of `range` through which a query walks: less than a second of work."""


def check_iterations(text: str) -> None:
    """Raise UsageError if a query walks through a `range` that is too long, or calls it and has walks in walks.

    The text is one that `check` lets pass.
    """
    found = list(tokens(text))
    called = [place for place in range(len(found)) if _calls_range(found, place)]
    if not called:
        return
    for inner, outer in _nested(found):
        raise UsageError(
            f"the query calls range, and walks through a list {_named(inner)} for each element of another "
            f"{_named(outer)}: {_WHY} UNWIND range(1, 9) AS j RETURN sum(i * j)`"
        )
    walk = next((first for place in range(len(found)) if (first := _iteration(found, place)) is not None), None)
    long = next((token for place in called for token in _arguments(found, place) if _is_long(token)), None)
    if walk is not None and long is not None:
        raise UsageError(
            f"the query walks through lists {_named(walk)}, and makes one with range up to {long.text} (line "
            f"{long.line}): {_WHY} RETURN sum(i)`, or take at most {LONGEST_RANGE:,}"
        )


_WHY = (
    "Neo4j does not end such an expression, not even when its time is over. It ends a query between two rows: UNWIND "
    "the lists, as in `UNWIND range(1, 9) AS i"
)


def _nested(found: Sequence[Token]) -> Iterator[tuple[Token, Token]]:
    """The first token of each iteration in the body of another one, and that of the innermost such one.

    The list of an iteration, and the initial value of a `reduce`, are computed once. What follows WHERE or | is its
    body.
    """
    begun: list[tuple[Token | None, bool]] = []
    """For each open bracket, the iteration that it belongs to, and whether its body has begun."""
    for place, token in enumerate(found):
        if token.kind == "symbol" and token.text in OPENING:
            first = _iteration(found, place)
            outer = next((each for each, in_body in reversed(begun) if in_body), None)
            if first is not None and outer is not None:
                yield first, outer
            begun.append((first, False))
        elif token.kind == "symbol" and token.text in CLOSING and begun:
            begun.pop()
        elif begun and begun[-1][0] is not None and (token.text == "|" or _word(token) == "WHERE"):
            begun[-1] = begun[-1][0], True


def _iteration(found: Sequence[Token], place: int) -> Token | None:
    """The first token of the iteration whose bracket opens at a place."""
    before = found[place - 1] if place else None
    if found[place].text == "(":
        return before if before is not None and _word(before) in CALLED else None
    if found[place].text != "[" or place + 2 >= len(found):
        return None
    variable, after = found[place + 1], found[place + 2]
    return found[place] if variable.kind in ("word", "name") and _word(after) == "IN" else None


def _calls_range(found: Sequence[Token], place: int) -> bool:
    if place + 1 >= len(found) or found[place].kind not in ("word", "name") or found[place + 1].text != "(":
        return False
    return found[place].text.strip("`").upper() == "RANGE"


def _arguments(found: Sequence[Token], place: int) -> Iterator[Token]:
    """The pieces between the brackets of the call at a place."""
    depth = 0
    for token in found[place + 1 :]:
        depth += (token.text in OPENING) - (token.text in CLOSING) if token.kind == "symbol" else 0
        if depth == 0:
            return
        yield token


def _is_long(token: Token) -> bool:
    if token.kind != "number":
        return False
    try:
        return int(token.text.lower(), 0) > LONGEST_RANGE
    except ValueError:  # a number with a point or an exponent, which `range` does not take
        return False


def _word(token: Token) -> str:
    return token.text.upper() if token.kind == "word" else ""


def _named(token: Token) -> str:
    what = "a list comprehension" if token.text == "[" else token.text.lower()
    return f"({what}, line {token.line})"
