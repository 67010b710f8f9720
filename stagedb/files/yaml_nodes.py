"""YAML as nodes, each with its line, and as plain data. Nothing is constructed from a text but what a document has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from stagedb.files.documents import DEEPEST, LONGEST_NUMBER, Refused, named, one_line
from stagedb.files.texts import shown


def compose(text: str, where: str) -> yaml.Node | None:
    """The nodes of a YAML text, each with its line; None for an empty text. Nothing is constructed from them.

    UsageError, which begins with `where`, for what is not YAML, and for tags, anchors, aliases and deep nesting.
    """
    with named("YAML", where):
        return compose_text(text)


# The parser in C, where PyYAML has it, reads a megabyte in a second.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@contextmanager
def _refused() -> Iterator[None]:
    """Turns an error of the parser into Refused."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Refused(f"{line}: not YAML: {one_line(error.problem or error.context)}") from None
    except yaml.YAMLError as error:
        raise Refused(f": not YAML: {one_line(error)}") from None


@_refused()
def compose_text(text: str) -> yaml.Node | None:
    """The nodes of a YAML text; None for an empty text. Raises Refused for what a document cannot have."""
    level = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise Refused(f", line {line}: anchors and aliases (& and *) are not read: repeat the value")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise Refused(f", line {line}: the tag {shown(tag)} is not read: leave it out")
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > DEEPEST:
            raise Refused(f", line {line}: nested too deeply: at most {DEEPEST} levels are read")
    return yaml.compose(text, Loader=_LOADER)


def plain(node: yaml.Node) -> Any:
    """The value of a node. Raises Refused for a number that is none, and for a key that is no text or appears twice."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return [plain(each) for each in node.value]
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise Refused(f", line {line}: a key must be a text")
        name = str(key.value)
        if name in found:
            raise Refused(f", line {line}: the key {shown(name)} appears twice")
        found[name] = plain(value)
    return found


_SCALARS = yaml.constructor.SafeConstructor()


def _scalar(node: yaml.ScalarNode) -> Any:
    kind, text = node.tag.rpartition(":")[2], str(node.value)
    line = node.start_mark.line + 1
    if kind in ("int", "float") and len(text) > LONGEST_NUMBER:
        raise Refused(f", line {line}: a number with {len(text)} characters is too long")
    try:
        match kind:
            case "null":
                return None
            case "bool":
                return _SCALARS.construct_yaml_bool(node)
            case "int":
                return _SCALARS.construct_yaml_int(node)
            case "float":
                return _SCALARS.construct_yaml_float(node)
            case _:
                # Dates, and the merge key <<, are texts.
                return text
    except (ValueError, IndexError):
        raise Refused(f", line {line}: {shown(text)} is no number") from None
