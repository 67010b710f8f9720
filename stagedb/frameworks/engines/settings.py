"""What the flags of an engine set, typed and checked: refused flags end here, those without effect are listed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

from stagedb.errors import UsageError
from stagedb.files import is_there, nearest, parse_document, path_text, printable, shown
from stagedb.frameworks.engines.arguments import EngineArguments, Given, read_arguments
from stagedb.frameworks.engines.engine import Engine, Flag, FlagRefusal, find_engine
from stagedb.frameworks.engines.names import ENGINES
from stagedb.mentions import Word

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
