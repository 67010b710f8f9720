"""Cypher statements, one a file under `cypher/`. The path is the name, and a typed header is the interface.

Those that differ only by a label of the schema have no files: `label_statements` makes them, and `listing_statements`
those of lists and look-ups.

    // What the statement does, in sentences.
    //
    // mode: reads
    // param graph: string — the graph's id
    // column flops: integer [flop] — of one rank
    // keep: flops
    MATCH …

`keep` names the columns that hold the answer, the most important first: a narrow table leaves out others before them.

Types are `string integer float boolean map`, with `[]` for a list, `[][]` for a list of lists, and `?` for a value that
may be null.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stagedb.errors import StagedbError
from stagedb.files import shown
from stagedb.places import statements_directory
from stagedb.store.listing_statements import listing_statements

Mode = Literal["reads", "writes"]

_FIELD = re.compile(
    r"^(?P<what>param|column) (?P<name>[A-Za-z_]\w*): (?P<type>[a-z]+(?:\[\]){0,2}\??)(?: \[(?P<unit>[^\]]+)\])?"
    r" — (?P<description>\S.*)$"
)
_TYPE = re.compile(r"^(string|integer|float|boolean|map)(\[\]){0,2}\??$")
_NAME = re.compile(r"^[a-z]\w*(/[a-z_]\w*)+$")


@dataclass(frozen=True)
class Field:
    """A parameter or a column of a statement. `unit` is None for counts and names."""

    name: str
    type: str
    unit: str | None
    description: str


@dataclass(frozen=True)
class Statement:
    """One parsed file of `cypher/`.

    mode: reads or writes. params, columns: those that its header declares. text: the Cypher below the header, as it is
    sent. keep: the columns that hold the answer, the most important first.
    """

    name: str
    description: str
    mode: Mode
    params: tuple[Field, ...]
    columns: tuple[Field, ...]
    text: str
    keep: tuple[str, ...] = ()

    def check(self, params: frozenset[str]) -> None:
        """Raise StagedbError unless exactly the declared parameters are given.

        params: the names of those that are given.
        """
        declared = frozenset(field.name for field in self.params)
        if params == declared:
            return
        wrong = [f"missing: {', '.join(sorted(declared - params))}"] if declared - params else []
        wrong += [f"unknown: {', '.join(sorted(params - declared))}"] if params - declared else []
        takes = ", ".join(f"{field.name} ({field.type})" for field in self.params) or "none"
        raise StagedbError(f"parameters of statement {self.name}: {'; '.join(wrong)}. It takes {takes}")


class HeaderError(StagedbError):
    """The header of a file under `cypher/` cannot be read."""


def names() -> tuple[str, ...]:
    """Names of all statements, sorted. Names whose last part starts with `_` are internal."""
    return tuple(sorted([*written_names(), *_by_label()]))


def written_names() -> tuple[str, ...]:
    """Names of the statements that have files, named queries among them, sorted."""
    root = statements_directory()
    return tuple(sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.cypher")))


@functools.cache
def load(name: str) -> Statement:
    """The statement with this name, such as `schema/store`. Raises StagedbError for an unknown name."""
    return parse(name, source(name))


def source(name: str) -> str:
    """The text of a statement, with its header. Raises StagedbError for an unknown name."""
    path = statements_directory() / f"{name}.cypher"
    if _NAME.match(name) and path.is_file():
        return path.read_text(encoding="utf-8")
    if name in listing_statements():
        return listing_statements()[name]
    if name in _by_label():
        return _by_label()[name]
    raise StagedbError(f"unknown Cypher statement {shown(name)}: names are the paths under {statements_directory()}")


def _by_label() -> Mapping[str, str]:
    # Most commands need none of these, and making them needs the whole schema.
    from stagedb.store.label_statements import label_statements

    return label_statements()


def parse(name: str, source: str) -> Statement:
    """Split a file into its header and its Cypher.

    name: of the statement. source: the text of its file. Raises HeaderError, which names the file and the line.
    """
    lines = source.splitlines()
    header = 0
    while header < len(lines) and lines[header].startswith("//"):
        header += 1
    description: list[str] = []
    fields: dict[str, list[Field]] = {"param": [], "column": []}
    mode: Mode | None = None
    keep: tuple[str, ...] = ()
    for number, line in enumerate(lines[:header], 1):
        text = line[2:].strip()
        where = f"cypher/{name}.cypher, line {number}"
        if text.startswith("mode:"):
            word = text.removeprefix("mode:").strip()
            if mode is not None or word not in ("reads", "writes"):
                raise HeaderError(
                    f"{where}: expected one line `// mode: reads` or `// mode: writes`, not {shown(text)}"
                )
            mode = "reads" if word == "reads" else "writes"
        elif re.match(r"(param|column)\b", text):
            fields[text.split()[0]].append(_field(text, where))
        elif mode is not None and text.startswith("keep:"):
            keep = tuple(text.removeprefix("keep:").replace(",", " ").split())
        elif mode is None:
            description.append(text)
        elif text:
            raise HeaderError(
                f"{where}: only `param`, `column` and `keep` lines may follow the mode, not {shown(text)}"
            )
    sentences = " ".join(part for part in description if part)
    if mode is None or not sentences:
        raise HeaderError(f"cypher/{name}.cypher: the header needs a description and a `// mode:` line")
    for what, found in fields.items():
        if len({field.name for field in found}) != len(found):
            raise HeaderError(f"cypher/{name}.cypher: a {what} is declared twice")
    strange = sorted(set(keep) - {field.name for field in fields["column"]})
    if strange:
        raise HeaderError(f"cypher/{name}.cypher: keep has {strange[0]}, which is not one of its columns")
    text = "\n".join(lines[header:]).strip()
    if not text:
        raise HeaderError(f"cypher/{name}.cypher: no Cypher below the header")
    return Statement(name, sentences, mode, tuple(fields["param"]), tuple(fields["column"]), text, keep)


def _field(text: str, where: str) -> Field:
    found = _FIELD.match(text)
    if found is None or not _TYPE.match(found["type"]):
        raise HeaderError(f"{where}: {shown(text)} does not have the form `param name: type [unit] — description`")
    return Field(found["name"], found["type"], found["unit"], found["description"])
