"""The public functions as Python shows them: whole signatures in `help()`, and errors that name keywords.

A message has the words of a request as data (`stagedb.mentions`). An error that leaves a public function shows them as
keywords: `global_batch_size=16`.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, get_args, get_origin, get_type_hints

from stagedb.errors import StagedbError
from stagedb.mentions import OPTIONS, Form, VerbCall, Word, value_text

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_VERBS = frozenset(
    (
        "build",
        "instantiate",
        "export",
        "query",
        "memory",
        "profile",
        "advise",
        "sweep",
        "search",
        "tag",
        "timeline",
        "report",
        "ls",
        "rm",
        "diff",
        "simulate",
    )
)
_FUNCTIONS = {"models": "stagedb.api.models()", "systems": "stagedb.api.systems()", "queries": "db.queries()"}


def _literal(value: str) -> str:
    plain = value.startswith("'") or value.isupper() or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", value)
    return value if plain else f"'{value}'"


class _Keywords(Form):
    """Keywords and calls of Python: `tp=4`, `db.ls()`."""

    def word(self, word: Word) -> str:
        """`tp=4`, `sp=False`."""
        if word.value is None:
            return word.name
        if word.name == "param":
            key, _, content = value_text(word.value).partition("=")
            return f"params={{{key}: {content}}}"
        value = word.value if isinstance(word.value, bool) else _literal(value_text(word.value))
        return f"{word.name}={value}"

    def words(self, words: tuple[Word, ...]) -> str:
        """`tp=4, pp=2`."""
        return ", ".join(map(self.word, words))

    def call(self, call: VerbCall) -> str:
        """`db.rm('0123abcd', force=True)`. What Python has no function for is the command."""
        if call.verb in _FUNCTIONS and not call.arguments and not call.words:
            return f"`{_FUNCTIONS[call.verb]}`"
        if call.verb not in _VERBS:
            return OPTIONS.call(call)
        return f"`db.{call.verb}({', '.join([*map(_literal, call.arguments), *map(self.word, call.words)])})`"


KEYWORDS = _Keywords()


def for_python(function: F) -> F:
    """A public function, whose errors name keywords, and whose signature has every word of a plan."""

    @functools.wraps(function)
    def call(*arguments: Any, **words: Any) -> Any:
        try:
            return function(*arguments, **words)
        except StagedbError as error:
            error.form = KEYWORDS
            raise

    call.__signature__ = _whole(inspect.signature(function))  # type: ignore[attr-defined]  # `inspect` reads it; functions do not declare it
    return call  # type: ignore[return-value]  # it has the type of what it wraps


def all_for_python(class_: C) -> C:
    """Make each public method of a class one of `for_python`: whole signatures, and errors that name keywords.

    class_: changed in place, and returned.
    """
    for name, member in vars(class_).copy().items():
        if inspect.isfunction(member) and not name.startswith("_"):
            setattr(class_, name, for_python(member))
    return class_


class _Default:
    """The value of a word that is left out: the plan's, or the default."""

    def __repr__(self) -> str:
        return "<default>"


def _whole(signature: inspect.Signature) -> inspect.Signature:
    """A signature with the keywords of `**words: Unpack[…]` one by one."""
    parameters = list(signature.parameters.values())
    last = parameters[-1] if parameters else None
    if last is None or get_origin(last.annotation) is not Unpack:
        return signature
    (words,) = get_args(last.annotation)
    return signature.replace(parameters=[*parameters[:-1], *_keywords(words)])


@functools.cache
def _keywords(words: type) -> tuple[inspect.Parameter, ...]:
    """The keywords of a class of words. Several verbs have those of a plan."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return tuple(
        inspect.Parameter(name, kind, default=_Default(), annotation=type_)
        for name, type_ in get_type_hints(words).items()
    )
