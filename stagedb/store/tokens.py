"""The words of a Cypher text, with what is inside strings, quoted names and comments told apart from them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast, get_args

TokenKind = Literal["word", "name", "string", "number", "parameter", "symbol"]
KINDS = get_args(TokenKind)

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
    """Pieces of a text in order, without spaces and comments. Raises UnclosedError where something has no end."""
    line = 1
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        piece = found.group()
        if kind == "unclosed":
            raise UnclosedError(f"line {line}: {piece} has no end")
        if kind in KINDS:
            yield Token(cast(TokenKind, kind), piece, line)
        line += piece.count("\n")
