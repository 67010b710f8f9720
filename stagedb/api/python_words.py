"""The public functions as Python shows them: whole signatures in `help()`, and errors that name keywords.

Messages are written with the options of the command line, which are the words of a plan too. A public function changes
the text of an error that leaves it: `--global-batch-size 16` becomes `global_batch_size=16`. The command line prints
the first text, which the error keeps.
"""

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, Unpack, get_args, get_origin, get_type_hints

from stagedb.errors import StagedbError
from stagedb.mentions import OPTIONS, Form, VerbCall, Word, value_text
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.traces.formats import FORMATS
from stagedb.traces.simulators import SIMULATORS

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_SWITCHES = {
    word.flag(value): f"{word.name}={value}"
    for word in PLAN_WORDS.values()
    if word.kind is bool
    for value in (True, False)
}
_SWITCHES |= {f"--{name}": f"{name}=True" for name in ("force", "resume", "packed", "compress", "replay")}
_SWITCHES |= {"--no-replay": "replay=False", "--durations-in-traces": "durations_in_traces=True"}

_CHOICES = {
    word.option: frozenset((word.metavar or "").split("|")) | {str(each) for each in word.choices}
    for word in PLAN_WORDS.values()
}
_CHOICES["--store"] = frozenset({"embedded"})
_CHOICES["--granularity"] = frozenset({"op", "block"})
_CHOICES["--format"] = frozenset(FORMATS)
_CHOICES["--simulator"] = frozenset(SIMULATORS)

_VERBS = frozenset(
    (
        "build",
        "instantiate",
        "export",
        "query",
        "memory",
        "profile",
        "timeline",
        "report",
        "ls",
        "rm",
        "diff",
        "simulate",
    )
)
_FUNCTIONS = {"models": "stagedb.api.models()", "systems": "stagedb.api.systems()", "queries": "db.queries()"}

_COMMAND = re.compile(r"`stagedb ([a-z]+)( [^`]*)?`")
_VALUE = r"'[^']*'|[A-Z]{2,}(?:=[A-Z]+)?\b|[\w./:,=+-]*\w"
_SWITCH = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _SWITCHES))})(?![\w-])( (?=--|\w+=))?")
_OPTION = re.compile(rf"(?<![\w-])(?!{_SWITCH.pattern})(--[a-z][a-z0-9-]*)(?:[ =]({_VALUE}))?( (?=--[a-z]))?")


def python_text(text: str) -> str:
    """A message with keywords of Python in place of options and commands."""
    return _SWITCH.sub(_switch, _OPTION.sub(_keyword, _COMMAND.sub(_call, text)))


def _call(found: re.Match[str]) -> str:
    verb, rest = found[1], (found[2] or "").strip()
    if verb in _FUNCTIONS and not rest:
        return f"`{_FUNCTIONS[verb]}`"
    if verb not in _VERBS:
        return found[0]
    # The options of a call become keywords after this.
    words, dashes, options = rest.partition("--")
    called = [*map(_literal, words.split()), *([dashes + options] if dashes else [])]
    return f"`db.{verb}({', '.join(called)})`"


def _switch(found: re.Match[str]) -> str:
    return _SWITCHES[found[1]] + (", " if found[2] else "")


def _keyword(found: re.Match[str]) -> str:
    option, value, more = found[3], found[4], found[5] or ""
    name = option[2:].replace("-", "_")
    if value is None:
        return name + more
    if not _is_value(option, value):
        return f"{name} {value}{more}"
    end = ", " if more else ""
    if option == "--param":
        key, _, content = value.partition("=")
        return f"params={{{key}: {content}}}{end}"
    return f"{name}={_literal(value)}{end}"


def _is_value(option: str, value: str) -> bool:
    """Whether the word after an option is its value, and not the next word of the sentence."""
    return bool(re.search(r"[0-9,./:='A-Z]", value)) or value in _CHOICES.get(option, ())


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

    def plain(self, text: str) -> str:
        """A text whose options are no mentions yet."""
        return python_text(text)


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
    """A class whose public methods are `for_python`."""
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
    kind = inspect.Parameter.KEYWORD_ONLY
    each = [
        inspect.Parameter(name, kind, default=_Default(), annotation=type_)
        for name, type_ in get_type_hints(words).items()
    ]
    return signature.replace(parameters=[*parameters[:-1], *each])
