"""The flags of serving engines: as data with the effect of each on a step, as people write them, and what they set."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, is_there, nearest, parse_document, path_text, printable, read_text, shown
from stagedb.frameworks.engines.names import ENGINES
from stagedb.mentions import Word

# A serving engine as data: its flags, the effect of each on a step, and what its numbers count.

Takes = Literal["switch", "value", "list"]
"""What follows a flag: nothing, one value, or values up to the next flag."""

_MENTION = re.compile(r"<(\w+)(?: ([^>]+))?>")


@dataclass(frozen=True)
class FlagRefusal:
    """Why a flag cannot be obeyed, and what works.

    harmless: values with which it changes nothing. needed: texts without which a value changes nothing.
    """

    why: str
    works: str
    harmless: frozenset[str] = frozenset()
    needed: tuple[str, ...] = ()

    def refuses(self, value: str, written: str) -> bool:
        """Whether a value changes a step in a way that is not built. written: the flag, which may name an inner key."""
        if value.lower() in self.harmless:
            return False
        return not self.needed or any(each in f"{written} {value}".replace("-", "_") for each in self.needed)


@dataclass(frozen=True)
class Flag:
    """A flag of an engine.

    name: with dashes; keys of nested settings have dots between them. sets: the setting that it gives; empty if it has
    no effect on a step, or is refused. values: the setting for each value; None if any value is the setting, as it is.
    suffixes: numbers may end in k, K, M, G or T. refusal: why values outside of `values` are refused. inside: the
    settings by the keys of its value, if that is a mapping; other keys have no effect on a step.
    """

    name: str
    takes: Takes
    sets: str = ""
    values: Mapping[str, str | None] | None = None
    suffixes: bool = False
    refusal: FlagRefusal | None = None
    inside: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Engine:
    """A serving engine.

    name: its word before a file. title: its name. versions: whose flags these are. commands: what its arguments may
    begin with. positional_model: the model may follow without a flag.
    tp_counts: `attention` if a rank of dp has tp ranks of its own; `all` if ranks of dp are among those of tp.
    requests_of: `groups` if the most requests are those of all groups in a pipeline; `group` if of each.
    requests_over: `rank` if they, and the tokens of a step, are those of a rank of dp; `engine` if of all its ranks.
    shared_experts: ranks of dp share each expert, unless experts are divided among ranks.
    exchange_divides: a way for tokens to reach experts divides experts among all ranks.
    share_of: `total` if the share of memory is of all that the accelerator has, with weights and activations in it;
    `weights` if activations are outside of it; `free` if it is of what weights and activations leave.
    block: tokens of a block, unless a flag has them. share: the share of memory, in the same way; empty if the engine
    chooses it by itself.
    sampling: bytes in its share from which it draws a token, for each entry of the vocabulary and each request.
    libraries: bytes that libraries and kernels take in its share, on a rank alone and with others.
    own_drafts: a pattern of the methods of speculative decoding by which layers of the model itself draft.
    default_exchange: how tokens reach experts without a flag, if that is not what a plan has; for a remark.
    """

    name: str
    title: str
    versions: str
    commands: tuple[tuple[str, ...], ...]
    flags: Mapping[str, Flag]
    positional_model: bool = False
    tp_counts: Literal["attention", "all"] = "attention"
    requests_of: Literal["groups", "group"] = "groups"
    requests_over: Literal["rank", "engine"] = "rank"
    shared_experts: bool = False
    exchange_divides: bool = False
    share_of: Literal["total", "weights", "free"] = "total"
    block: int = 16
    share: str = "0.9"
    sampling: int = 0
    libraries: tuple[int, int] = (0, 0)
    own_drafts: str = "(?!)"
    default_exchange: str = ""
    short: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The flags by name, those that a step obeys first."""
        return tuple(sorted(self.flags, key=lambda name: (not self.flags[name].sets, name)))


@lru_cache(len(ENGINES))
def find_engine(name: str) -> Engine:
    """The engine with this name, one of `ENGINES`, as its table describes it."""
    text = (files(__package__) / f"{name}.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = parse_document(text, "YAML", f"the flags of {name}")
    obeyed, refused, without = (table.pop(part) for part in ("obeyed", "refused", "without_effect"))
    flags: dict[str, Flag] = {}
    short: dict[str, str] = {}
    for row in obeyed:
        flag = _obeyed(row)
        flags |= dict.fromkeys((flag.name, *row.get("aliases", ())), flag)
        short |= dict.fromkeys(row.get("short", ()), flag.name)
    for rows in (*refused, without):
        flags |= {flag.name: flag for flag in _flags(rows, _refusal(rows))}
        short |= {letters: name for name, every in rows.get("short", {}).items() for letters in every}
    commands = tuple(tuple(command.split()) for command in table.pop("commands"))
    alone, together = table.pop("libraries", (0, 0))
    return Engine(name=name, commands=commands, flags=flags, short=short, libraries=(alone, together), **table)


def _obeyed(row: Mapping[str, Any]) -> Flag:
    return Flag(
        row["flag"],
        "switch" if row.get("switch") else "value",
        row["sets"],
        row.get("values"),
        row.get("suffixes", False),
        _refusal(row),
        row.get("inside"),
    )


def _flags(rows: Mapping[str, Any], refusal: FlagRefusal | None) -> Iterator[Flag]:
    takes: Mapping[str, Takes] = {"switches": "switch", "values": "value", "lists": "list"}
    for part, kind in takes.items():
        yield from (Flag(name, kind, refusal=refusal) for name in rows.get(part, ()))


def _refusal(row: Mapping[str, Any]) -> FlagRefusal | None:
    """The refusal of a row; None for flags without effect on a step."""
    why = row.get("why", row.get("refused"))
    if why is None:
        return None
    # A switch that is off changes nothing, and neither does an option without a value.
    harmless = frozenset({"false", "none", "null", *row.get("harmless", ())})
    return FlagRefusal(_with_words(why), _with_words(row["works"]), harmless, tuple(row.get("harmless_without", ())))


def _with_words(text: str) -> str:
    """A text of a table with its words of a plan, `<tp 1>`, as mentions."""
    return _MENTION.sub(lambda match: str(Word(match[1], match[2])), text)


# Arguments of an engine as people write them, a command line or a file of settings, as flags with their values.

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


# What the flags of an engine set, typed and checked: refused flags end here, those without effect are listed.

Setting = int | str | bool | Fraction

NUMBERS = (
    *("tp", "pp", "dp", "inner_dp", "ep", "moe_tp"),
    *("requests", "group_requests", "prefill_requests", "step_tokens", "prefill_tokens", "longest"),
    *("block_size", "blocks", "cache_tokens", "cache_bytes", "cache_most"),
    *("draft_tokens", "checked_tokens", "draft_steps", "redundant"),
)
"""Settings that are whole numbers."""

SWITCHES = ("all_ep", "attention_dp", "dp_inside", "overlap", "balanced")
"""Settings that are on or off."""

BYTES = ("cache_bytes", "cache_most")
"""Those that are bytes."""

MOST, MOST_BYTES = 1 << 31, 1 << 53
"""The largest number of ranks, requests, tokens or blocks, and of bytes."""

UNSET = ("-1", "none", "null", "auto", "")
"""Values with which an engine chooses a number by itself."""

_WHOLE = re.compile(r"\d{1,18}", re.ASCII)
_SUFFIXED = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([kKmMgGtT])", re.ASCII)
_SHARE = re.compile(r"(?:0?\.\d{1,18}|1(?:\.0{1,18})?|0)", re.ASCII)


@dataclass(frozen=True)
class EngineSettings:
    """The settings of an engine in a file.

    values: by setting (`tp`, `requests`, …). written: for each of them, its flag in the file. without_effect: flags
    that do not change a step. model: as the file names it. variables: of the environment, which are not read.
    """

    engine: Engine
    path: Path
    values: Mapping[str, Setting]
    written: Mapping[str, str]
    without_effect: tuple[str, ...]
    model: str | None
    variables: tuple[str, ...]

    @property
    def place(self) -> str:
        """The file, as a message names it."""
        return path_text(self.path)

    def number(self, setting: str, default: int = 1) -> int:
        """The value of a setting that is a number. default: for a setting that the file lacks."""
        value = self.values.get(setting, default)
        return value if isinstance(value, int) else default

    def flag(self, setting: str) -> str:
        """A setting as the file has it: its flag and value."""
        value = self.values.get(setting)
        return self.written.get(setting, setting) + ("" if isinstance(value, bool) else f" {value}")


def engine_file(word: Path) -> tuple[str, Path] | None:
    """The engine and the file of a word such as `vllm:args.txt`; None for the name of another file.

    Raises UsageError for a word that nearly has the name of an engine.
    """
    name, colon, file = str(word).partition(":")
    if colon and name in ENGINES:
        return name, Path(file)
    near = nearest(name.lower(), (*ENGINES, "tensorrt-llm")) if colon and not is_there(word) else []
    if near:
        raise UsageError(
            f"unknown engine {shown(name)}: {Word('plan')} reads {', '.join(f'{each}:FILE' for each in ENGINES)}"
        )
    return None


def read_settings(name: str, path: Path) -> EngineSettings:
    """The settings of an engine, by its name, in a file.

    Raises UsageError for files and flags that cannot be read, for values that a setting does not have, and for flags
    that change a step in a way that is not built: with the reason, and what works.
    """
    engine = find_engine(name)
    found = read_arguments(path, engine)
    values: dict[str, Setting] = {}
    written: dict[str, str] = {}
    silent: dict[str, None] = {}
    for given in chain.from_iterable(_inner(each, path) for each in _last(found)):
        where = _place(path, given)
        if given.flag.sets == "model":
            continue
        if given.flag.sets:
            value = _setting(given, where)
            if value is not None:
                values[given.flag.sets], written[given.flag.sets] = value, given.written
            continue
        refusal = given.flag.refusal
        if refusal is not None and refusal.refuses(given.value, given.written):
            raise _refused(refusal, given, where)
        silent[given.written] = None
    return EngineSettings(engine, path, values, written, tuple(silent), found.model, found.variables)


def _place(path: Path, given: Given) -> str:
    """A flag in its file, as a message names it."""
    return f"{path_text(path)}: {printable(given.written, kept='')}"


def _inner(given: Given, path: Path) -> Iterator[Given]:
    """The settings inside of a flag whose value is a mapping, or with its name and a dot before their own.

    Any other flag is itself; one without a mapping sets nothing.
    """
    if given.flag.inside is None or given.value.lower() in UNSET:
        yield given if given.flag.inside is None else replace(given, flag=replace(given.flag, sets=""))
        return
    flag, dot, inner = given.written.partition(".")
    content = {inner: given.value} if dot else parse_document(given.value, "JSON", _place(path, given))
    if not isinstance(content, dict):
        raise UsageError(f"{_place(path, given)} must be a mapping of settings, not {shown(given.value)}")
    for key, value in content.items():
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield Given(Flag(key, "value", given.flag.inside.get(str(key), "")), text, f"{flag}.{key}")


def _last(found: EngineArguments) -> tuple[Given, ...]:
    """Each flag once, with its last value, as engines read them. Nested settings of one flag are all there."""
    return tuple(
        {(given.flag.name, given.written if "." in given.written else ""): given for given in found.given}.values()
    )


def _refused(refusal: FlagRefusal, given: Given, where: str) -> UsageError:
    value = "" if given.flag.takes == "switch" else f" {shown(given.value)}"
    return UsageError(f"{where}{value} is not obeyed: {refusal.why}; what works: {refusal.works}")


def _setting(given: Given, where: str) -> Setting | None:
    flag, value = given.flag, given.value
    if flag.values is not None:
        if value in flag.values:
            return flag.values[value]
        if flag.refusal is not None:
            if not flag.refusal.refuses(value, given.written):
                return None
            raise _refused(flag.refusal, given, where)
        raise UsageError(f"{where} is not {shown(value)}: it takes {', '.join(flag.values)}")
    if flag.sets in SWITCHES:
        return value == "true"
    if value.lower() in UNSET:
        return None
    if flag.sets in NUMBERS:
        if flag.sets in ("cache_most", "redundant") and value == "0":
            return None  # 0 means no bound on the cache, or no copies of experts
        return _whole(value, flag, where)
    if flag.sets == "memory_share":
        share = read_share(value)
        if share is None:
            raise UsageError(f"{where} must be a share above 0 and up to 1, not {shown(value)}")
        return share
    return value


def read_share(text: str) -> Fraction | None:
    """A share above 0 and up to 1, exactly as it is written; None for other texts. text: a decimal, such as `0.9`."""
    return Fraction(text) if _SHARE.fullmatch(text) and Fraction(text) else None


def _whole(value: str, flag: Flag, where: str) -> int:
    scaled = _SUFFIXED.fullmatch(value) if flag.suffixes else None
    if scaled is not None:
        # vLLM reads k as thousand and K as 1,024.
        power = "kmgt".index(scaled[2].lower()) + 1
        size = Fraction(scaled[1]) * Fraction((1000 if scaled[2].islower() else 1024) ** power)
        if size.denominator == 1 and 0 < size <= (MOST_BYTES if flag.sets in BYTES else MOST):
            return int(size)
    if not _WHOLE.fullmatch(value) or not int(value):
        raise UsageError(f"{where} must be a whole number of 1 or more, not {shown(value)}")
    if int(value) > MOST and flag.sets not in BYTES:
        raise UsageError(f"{where} is {int(value):,}: at most {MOST:,} are read")
    return int(value)
