"""A word of a plan, declared once: next to the field that holds its value."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import OPTIONS, Word


@dataclass(frozen=True)
class WordSpec:
    """What a field declares in addition to its name, type and default: `tp: Annotated[int, About("…")] = 1`.

    help: one sentence for the command line.
    property: the meaning of the word as a property of the store.
    unit: the unit of that property.
    unset: the value if the word is left out, as the help shows it; None shows the field's default.
    metavar: the help's placeholder for a value; None shows the choices, or a placeholder for the type.
    off: the option that turns a switch off; empty for `no_WORD`.
    noun: the name of the word in a refusal of an unknown value; empty for the word itself.
    choices: the values, if the type is no `Literal`. listed: how a refusal lists them, if it explains one.
    least: the least valid number.
    name: the word, if the field has another name.
    symbol: the symbol of expressions that has the word's value.
    file: a text may be the name of a file with the value. numbers: a list of whole numbers is a text too.
    shares: numbers of the list may be fractions. rows: each name of the list is a row of whole numbers.
    layout: a text may be one of Megatron-Core's for the chunks of a pipeline.
    command_line: the word is an option of the command line.
    filled: an instance always has a value, even if the word may be left out.
    needs: what a workflow must have: gradients, an optimizer, a cache, or a draft. Other workflows refuse all but the
        default.
    """

    help: str
    property: str
    unit: str | None = None
    unset: str | None = None
    metavar: str | None = None
    off: str = ""
    noun: str = ""
    choices: tuple[str | int, ...] = ()
    listed: str = ""
    least: int | None = None
    name: str = ""
    symbol: str = ""
    file: bool = False
    numbers: bool = False
    shares: bool = False
    rows: bool = False
    layout: bool = False
    command_line: bool = True
    filled: bool = False
    needs: Literal["", "gradients", "optimizer", "cache", "draft"] = ""


@dataclass(frozen=True)
class PlanWord:
    """A word of a plan (one of its options, such as `tp`), as a field of an aspect declares it.

    name: in plans and on the command line. field: of the dataclass. aspect: the file that declares it. kind: the type
    of its value; `tuple` is a list of integers, `list` a list of names. optional: no value (None) is a value. choices:
    the possible values; empty: any of the type. default: of the field. about: the rest of its declaration.
    """

    name: str
    field: str
    aspect: str
    kind: type
    optional: bool
    choices: tuple[str | int, ...]
    default: Any
    about: WordSpec

    @property
    def option(self) -> str:
        """The word as an option of the command line."""
        return OPTIONS.word(self.mention())

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags on the command line. A switch has two."""
        return (f"{self.option}/{self.flag(False)}",) if self.kind is bool else (self.option,)

    def flag(self, value: object) -> str:
        """The option that gives a value. A switch has another option for off."""
        return OPTIONS.word(self.switch(value))

    def mention(self, value: object = None) -> Word:
        """The word in a message, with its value if it is not None."""
        return Word(self.name, value, self.about.off)

    def switch(self, value: object) -> Word:
        """The word in a message: a switch with its value, others without."""
        return self.mention(value if self.kind is bool else None)

    @property
    def metavar(self) -> str | None:
        """The help's placeholder for a value. A switch has none."""
        if self.kind is bool:
            return None
        if self.about.metavar is not None:
            return self.about.metavar
        return "|".join(map(str, self.choices)) or _METAVARS[self.kind]

    @property
    def help(self) -> str:
        """The sentence of the help, followed by the value if the word is left out."""
        unset = self._shown_default() if self.about.unset is None else self.about.unset
        return f"{self.about.help}  [{unset}]" if unset else self.about.help

    @property
    def property_type(self) -> str:
        """The type of the word as a property of the store."""
        return _PROPERTY_TYPES[self.kind] + ("?" if self.optional and not self.about.filled else "")

    def check(self, value: object) -> None:
        """Raise UsageError for a value that is not among the choices, or below the least."""
        if self.choices and value not in self.choices:
            listed = self.about.listed or _either(self.choices)
            raise UsageError(f"unknown {self.about.noun or self.name} {shown(value)}: {self.mention()} is {listed}")
        if self.about.least is not None and isinstance(value, int) and value < self.about.least:
            raise UsageError(f"{self.name} is {value}: {self.mention()} takes {self.about.least} or more")

    def _shown_default(self) -> str:
        if self.kind is bool:
            return self.flag(self.default).removeprefix("--")
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def aspect(class_: type[T]) -> type[T]:
    """A frozen dataclass with only fields. Its subclasses make the other methods, so that commands start fast.

    class_: with annotated fields.
    """
    return dataclass(frozen=True, init=False, repr=False, eq=False)(class_)


def words_of(class_: type) -> Iterator[PlanWord]:
    """The words that a dataclass declares, those of its bases after its own and in the order of the bases.

    class_: whose fields have a `WordSpec` each.
    """
    hints = get_type_hints(class_, include_extras=True)
    defaults = {field.name: field.default for field in dataclasses.fields(class_)}
    for owner in class_.__mro__:
        for name in vars(owner).get("__annotations__", {}):
            about = next((each for each in get_args(hints[name])[1:] if isinstance(each, WordSpec)), None)
            if about is not None:
                file = owner.__module__.rpartition(".")[2]
                yield _word(name, file, get_args(hints[name])[0], defaults[name], about)


def _word(field: str, aspect: str, type_: Any, default: Any, about: WordSpec) -> PlanWord:
    several = get_origin(type_) is not Literal and NoneType in get_args(type_)
    held = next(each for each in get_args(type_) if each is not NoneType) if several else type_
    choices = about.choices or (get_args(held) if get_origin(held) is Literal else ())
    return PlanWord(about.name or field, field, aspect, _kind(held), several, choices, default, about)


def _kind(held: Any) -> type[Any]:
    if get_origin(held) is Literal:
        return type(get_args(held)[0])
    if get_origin(held) is tuple:
        return tuple if get_args(held)[0] is int else list
    kinds: tuple[type[Any], ...] = (int, float, bool, str)
    if held in kinds:
        return kinds[kinds.index(held)]
    raise TypeError(f"a word of a plan cannot have values of {held}")


def _either(choices: tuple[str | int, ...]) -> str:
    """`none, full or core`."""
    *others, last = map(str, choices)
    return f"{', '.join(others)} or {last}"


_METAVARS = {int: "N", float: "F", str: "TEXT", tuple: "N,N,…", list: "NAME,…"}
_PROPERTY_TYPES = {
    int: "integer",
    float: "float",
    bool: "boolean",
    str: "string",
    tuple: "integer[]",
    list: "string[]",
}
