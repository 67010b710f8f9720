"""The words of a Cypher text, separated from strings, quoted names and comments."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

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
