"""A serving engine as data: its flags, the effect of each on a step, and what its numbers count."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, Literal

from stagedb.files import parse_document
from stagedb.frameworks.engines.names import ENGINES
from stagedb.mentions import Word

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
