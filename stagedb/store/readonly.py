"""Free queries only read: a query that could write, change the schema or reach outside is refused before it is sent.

One engine would refuse most such queries itself, the other through the account of a query. This check is the same for
both, names the reason, and comes first. It refuses too much rather than too little: a text that could mean different
things to different readers (escapes outside strings, invisible characters) is refused.
"""

import re
import unicodedata
from collections.abc import Sequence

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.store.cypher_tokens import Token, UnclosedError, tokens

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
