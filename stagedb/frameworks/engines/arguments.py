"""Arguments of an engine as people write them, a command line or a file of settings, as flags with their values."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, parse_document, path_text, read_text, shown
from stagedb.frameworks.engines.engine import Engine, Flag
from stagedb.mentions import Word

LARGEST = 1 << 18
"""Bytes of the largest file of arguments."""

DOCUMENTS: Mapping[str, str] = {".yaml": "YAML", ".yml": "YAML", ".json": "JSON"}
"""Endings of files with settings by name. All others have arguments of a command line."""

_GAP = re.compile(r"\s+")
_JOINED = "\\\n"
_COMMENT = re.compile(r"#[^\n]*")
_PIECE = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)|([^\s'"\\]+)""", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_NUMBER = re.compile(r"-\.?\d.*")
_LEVEL = re.compile(r"-O([0-3])")


@dataclass(frozen=True)
class Given:
    """A flag in a file.

    value: as it is written; `true` or `false` for a switch. written: the flag as the file has it.
    """

    flag: Flag
    value: str
    written: str


@dataclass(frozen=True)
class EngineArguments:
    """The content of a file of an engine's arguments.

    given: its flags in order. model: None if it names none. variables: of the environment that it sets.
    """

    given: tuple[Given, ...]
    model: str | None
    variables: tuple[str, ...]


def read_arguments(path: Path, engine: Engine) -> EngineArguments:
    """The flags of a file, in the form that its name ends in.

    Raises UsageError, with the file, for a file that cannot be read, and for a flag that the engine does not have.
    """
    option, what = str(Word("plan")), f"arguments of {engine.title}"
    text = read_text(path, what, LARGEST, option)
    where = f"the {what} {path_text(path)}"
    if "\0" in text:
        raise UsageError(f"{where} has the character NUL: it is no text of a command line ({option})")
    form = DOCUMENTS.get(path.suffix.lower())
    if form is None:
        return _CommandLine(engine, where).arguments(words_of(text, where))
    content = parse_document(text, form, where)
    if content is not None and not isinstance(content, dict):
        raise UsageError(f"{where} is not a mapping of flags to values (`flag: value`)")
    given = tuple(_settings(engine, content or {}, where))
    return EngineArguments(given, next((each.value for each in given if each.flag.sets == "model"), None), ())


def words_of(text: str, where: str) -> list[str]:
    """The words of a command line, as a shell splits it: with quotes, comments, and lines that end in a backslash.

    text: the command line. where: its source, for errors. Raises UsageError, with the line, for a quote without an end.
    """
    text, at, words = text.replace("\r\n", "\n"), 0, list[str]()
    while at < len(text):
        gap = _GAP.match(text, at) or _COMMENT.match(text, at)
        if gap is not None:
            at = gap.end()
            continue
        pieces = list[str]()
        while at < len(text) and not _GAP.match(text, at):
            if text.startswith(_JOINED, at):
                at += len(_JOINED)
                continue
            piece = _PIECE.match(text, at)
            if piece is None:
                line = text.count("\n", 0, at) + 1
                mark = "a backslash at its end" if text[at] == "\\" else f"a quote ({text[at]}) without an end"
                raise UsageError(f"{where}, line {line}: {mark}")
            single, double, escaped, plain = piece.groups()
            inside = None if double is None else re.sub(r'\\(["\\$`\n])', lambda match: match[1].strip("\n"), double)
            pieces.append(next(each for each in (single, inside, escaped, plain) if each is not None))
            at = piece.end()
        words += ["".join(pieces)] if pieces else []
    return words


def find_flag(engine: Engine, written: str, where: str) -> Flag:
    """The flag of a name without leading dashes.

    written: the name as the command line has it. where: its source, for errors. Raises UsageError, with the nearest
    ones, if the engine has none.
    """
    name = written.replace("_", "-")
    head = name.partition(".")[0]
    for each in (name, head):
        if each in engine.flags:
            return engine.flags[each]
    hint = did_you_mean(name, engine.names, ": {}", most=3) or f"; it has {', '.join(engine.names[:12])}, …"
    raise UsageError(f"{where}: {engine.title} ({engine.versions}) has no flag {shown(written)}{hint}")


class _CommandLine:
    """Reads the words of a command line one after the other."""

    def __init__(self, engine: Engine, where: str) -> None:
        self.engine, self.where = engine, where
        self.model: str | None = None

    def arguments(self, words: list[str]) -> EngineArguments:
        """All words as flags."""
        variables = list[str]()
        while words and _VARIABLE.fullmatch(words[0]):
            variables.append(words.pop(0).partition("=")[0])
        for command in self.engine.commands:
            if tuple(words[: len(command)]) == command:
                words = words[len(command) :]
                break
        given = tuple(self._given(words))
        named = next((each.value for each in given if each.flag.sets == "model"), self.model)
        return EngineArguments(given, named, tuple(variables))

    def _given(self, words: list[str]) -> Iterator[Given]:
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if not _is_flag(word):
                self._positional(word)
                continue
            flag, written, value = self._flag(word)
            if flag.takes == "switch":
                yield Given(flag, value, written)
                continue
            values = [value] if value else []
            most = 1 if flag.takes == "value" else len(words)
            while len(values) < most and at < len(words) and not _is_flag(words[at]):
                values.append(words[at])
                at += 1
            if not values:
                raise UsageError(f"{self.where}: {written} has no value")
            yield Given(flag, " ".join(values), written)

    def _flag(self, word: str) -> tuple[Flag, str, str]:
        """The flag of a word, its name as written, and the value after `=`; a switch has its own."""
        level = _LEVEL.fullmatch(word)
        if level is not None and "optimization-level" in self.engine.flags:
            return self.engine.flags["optimization-level"], "-O", level[1]
        written, equals, value = word.partition("=")
        name = written.lstrip("-")
        if not written.startswith("--"):
            head, dot, inner = name.partition(".")
            name = self.engine.short.get(head, head) + dot + inner
        positive = name.replace("_", "-").removeprefix("no-")
        off = positive in self.engine.flags and name.replace("_", "-") not in self.engine.flags
        flag = self.engine.flags[positive] if off else find_flag(self.engine, name, self.where)
        if flag.takes != "switch":
            if off:
                raise UsageError(f"{self.where}: {written} is no switch: give --{positive} a value, or leave it out")
            if equals and not value:
                raise UsageError(f"{self.where}: {written} has no value")
            return flag, written, value
        if equals and (off or value.lower() not in ("true", "false")):
            raise UsageError(f"{self.where}: {written} is a switch, without a value: not {shown(value)}")
        return flag, written, value.lower() or ("false" if off else "true")

    def _positional(self, word: str) -> None:
        if word.lower() in ("true", "false"):
            raise UsageError(f"{self.where}: a switch has no value: leave {word} out, or begin its name with no-")
        if self.model is not None or not self.engine.positional_model:
            raise UsageError(
                f"{self.where}: the word {shown(word)} belongs to no flag: a file has the arguments of one "
                f"`{' '.join(self.engine.commands[0])}`"
            )
        self.model = word


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)


def _settings(engine: Engine, content: Mapping[str, Any], where: str, before: str = "") -> Iterator[Given]:
    """The flags of a mapping; those of nested mappings have dots in their names."""
    for key, value in content.items():
        written = f"{before}{key}"
        name = written.replace("_", "-")
        if isinstance(value, dict) and name not in engine.flags and _has_inside(engine, name):
            yield from _settings(engine, value, where, f"{written}.")
            continue
        flag = find_flag(engine, written, where)
        if value is None:
            continue
        if flag.takes == "switch" and not isinstance(value, bool):
            raise UsageError(f"{where}: {written} must be true or false, not {shown(value)}")
        if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
            text = " ".join(map(_plain, value))
        else:
            text = json.dumps(value) if isinstance(value, dict | list) else _plain(value)
        yield Given(flag, text, written)


def _has_inside(engine: Engine, name: str) -> bool:
    return any(each.startswith(f"{name}.") for each in engine.flags)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
