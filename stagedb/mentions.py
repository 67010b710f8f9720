"""What a message mentions: words of a request and calls of verbs, as data that each door shows in its own form.

A message is a text. A mention in it is written as JSON between two characters that no text of people has (noncharacters
of Unicode), so that f-strings, joins and all else that puts texts together keep it whole:

    f"pp {pp} is more than the model's {layers} layers: {Word('pp')} takes at most {layers}"

`shown_in` writes the message for a door: the command line has options (`--pp`), Python keywords (`pp=4`), a page its
fields and links, a plan's file its keys.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BEGIN, _END = "\ufdd0", "\ufdd1"
_MENTION = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")


@dataclass(frozen=True)
class Word:
    """A word of a request by its name, `tp`, or with its value: a switch has True or False.

    off: the name of the option that turns the switch off; empty for `no_NAME`.
    """

    name: str
    value: object = None
    off: str = ""

    def __str__(self) -> str:
        return _written("word", *_plain_word(self))


@dataclass(frozen=True)
class Words:
    """Words that belong together in one request, shown together: `--tp 4 --pp 2`."""

    words: tuple[Word, ...]

    def __str__(self) -> str:
        return _written("words", *map(_plain_word, self.words))


@dataclass(frozen=True)
class VerbCall:
    """A call of a verb (`ls`, `store add`) with its arguments and words."""

    verb: str
    arguments: tuple[str, ...] = ()
    words: tuple[Word, ...] = ()

    def __str__(self) -> str:
        return _written("call", self.verb, self.arguments, [_plain_word(word) for word in self.words])


Mention = Word | Words | VerbCall


def call(verb: str, *arguments: str, **words: object) -> VerbCall:
    """A call with words by name; None is a word without a value.

    verb: its name. arguments: without a name, in order.
    """
    return VerbCall(verb, arguments, tuple(Word(name, value) for name, value in words.items()))


def one_of(name: str, values: Sequence[str]) -> str:
    """A word with one of several values: `--recipe torch or megatron`.

    name: the word's. values: none, or those of which one is to be taken.
    """
    if not values:
        return str(Word(name))
    first, *others = values
    last = f" or {others.pop()}" if others else ""
    return "".join([str(Word(name, first)), *(f", {each}" for each in others), last])


class Form(ABC):
    """How one door (the command line, Python, a page, a file, an agent) shows the mentions in a message."""

    @abstractmethod
    def word(self, word: Word) -> str:
        """A word, with its value if it has one."""

    @abstractmethod
    def words(self, words: tuple[Word, ...]) -> str:
        """Several words of one request."""

    @abstractmethod
    def call(self, call: VerbCall) -> str:
        """A call of a verb, with the marks around it."""

    def whole(self, text: str, message: str) -> str:
        """The final text of a message, with what this form puts around it.

        text: the message with its mentions shown. message: as it was, with mentions as data.
        """
        return text

    def mention(self, mention: Mention) -> str:
        """Show a mention: a word, several words, or a call."""
        match mention:
            case Word():
                return self.word(mention)
            case Words(words):
                return self.words(words)
            case VerbCall():
                return self.call(mention)


class Options(Form):
    """Options and commands of the command line: `--tp 4`, `stagedb ls`."""

    def word(self, word: Word) -> str:
        """Show a word as an option: `--tp 4`, `--no-sp`."""
        if word.value is False:
            return _option(word.off or f"no_{word.name}")
        if word.value is None or word.value is True:
            return _option(word.name)
        return f"{_option(word.name)} {value_text(word.value)}"

    def words(self, words: tuple[Word, ...]) -> str:
        """Show words as options of one command: `--tp 4 --pp 2`."""
        return " ".join(map(self.word, words))

    def call(self, call: VerbCall) -> str:
        """`stagedb rm ID --force`, between the marks of code."""
        return f"`{' '.join(['stagedb', call.verb, *call.arguments, *map(self.word, call.words)])}`"


OPTIONS = Options()


def parts_of(message: str) -> Iterator[str | Mention]:
    """The texts and the mentions of a message, in order."""
    for place, part in enumerate(_MENTION.split(message)):
        if place % 2:
            yield _read(part)
        elif part:
            yield part


def shown_in(form: Form, message: str) -> str:
    """A message as a door shows it. A text without mentions stays as it is."""
    if _BEGIN not in message:
        return message
    shown = [part if isinstance(part, str) else form.mention(part) for part in parts_of(message)]
    return form.whole("".join(shown), message)


def value_text(value: object) -> str:
    """A value as people write it: the items of a list with commas."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _plain_word(word: Word) -> list[object]:
    value = word.value
    if isinstance(value, tuple | list):
        value = [*map(str, value)]
    elif value is not None and not isinstance(value, bool | int | float | str):
        value = str(value)
    return [word.name, value, word.off]


def _written(*parts: object) -> str:
    # Without spaces and colons, at which messages may be split.
    text = json.dumps(parts, separators=(",", ":")).replace(" ", "\\u0020").replace(":", "\\u003a")
    return f"{_BEGIN}{text}{_END}"


def _read(text: str) -> str | Mention:
    """The mention of a written text. Other texts between these characters, which no mention wrote, stay as they are."""
    try:
        kind, *parts = json.loads(text)
        if kind == "word":
            return _read_word(parts)
        if kind == "words":
            return Words(tuple(map(_read_word, parts)))
        verb, arguments, words = parts
        return VerbCall(verb, tuple(arguments), tuple(map(_read_word, words)))
    except (ValueError, TypeError):
        return text


def _read_word(parts: list[object]) -> Word:
    name, value, off = parts
    return Word(str(name), tuple(value) if isinstance(value, list) else value, str(off))
