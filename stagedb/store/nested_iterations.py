"""Iterations that one engine computes to their end, however long that takes.

Neo4j looks between two rows whether a query is to end, and not within an expression. A walk through a list of the store
is bounded by what the store has. `range` makes lists of any length: a walk through a very long one, or through one in
another, may take hours. No client can end it: it takes a core of the server until it is done. A subquery in an
expression (COUNT, COLLECT, EXISTS) has rows, and is ended.
"""

from collections.abc import Iterator, Sequence

from stagedb.errors import UsageError
from stagedb.store.cypher_tokens import CLOSING, OPENING, Token, tokens

CALLED = frozenset(["REDUCE", "ALLREDUCE", "ALL", "ANY", "NONE", "SINGLE"])
"""Iterations that are written like calls. A list comprehension is the other kind."""

LONGEST = 10_000_000
"""The largest number in a call of `range` through which a query walks: less than a second of work."""


def check_iterations(text: str) -> None:
    """Raise UsageError if a query walks through a `range` that is too long, or calls it and has walks in walks.

    The text is one that `readonly.check` lets pass.
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
            f"{long.line}): {_WHY} RETURN sum(i)`, or take at most {LONGEST:,}"
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
        return int(token.text.lower(), 0) > LONGEST
    except ValueError:  # a number with a point or an exponent, which `range` does not take
        return False


def _word(token: Token) -> str:
    return token.text.upper() if token.kind == "word" else ""


def _named(token: Token) -> str:
    what = "a list comprehension" if token.text == "[" else token.text.lower()
    return f"({what}, line {token.line})"
