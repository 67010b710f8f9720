"""The page of the Python interface, from signatures and docstrings."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import stagedb
import stagedb.api

WIDTH = 100
"""Columns of a signature."""


def page() -> str:
    """Functions, the methods of an open store, and what they return."""
    functions = [name for name in sorted(stagedb.api.__all__) if inspect.isfunction(getattr(stagedb.api, name))]
    classes = [name for name in sorted(stagedb.api.__all__) if dataclasses.is_dataclass(getattr(stagedb.api, name))]
    parts = ["## Functions\n"]
    for name in functions:
        where = "stagedb" if name in stagedb.__all__ else "stagedb.api"
        owner = stagedb if name in stagedb.__all__ else stagedb.api
        parts.append(_callable(f"{where}.{name}", getattr(owner, name)))
    parts.append(f"## An open store\n\n{_text(stagedb.api.Stagedb)}\n")
    parts += [
        _callable(f"Stagedb.{name}", member)
        for kind in (stagedb.api.Stagedb, *stagedb.api.Stagedb.__bases__)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    parts.append("## Results\n")
    parts += [_result(getattr(stagedb.api, name)) for name in classes]
    return "\n".join(parts)


def _callable(name: str, function: Any) -> str:
    return f"### `{name}`\n\n```python\n{_signature(name, function)}\n```\n\n{_text(function)}\n"


def _signature(name: str, function: Any) -> str:
    """The parameters as they are called: one line, or one a line."""
    signature = inspect.signature(inspect.unwrap(function))  # with `**words`, which the page explains once
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    texts = [_parameter(parameter) for parameter in parameters]
    positional = [at for at, each in enumerate(parameters) if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    keyword = [at for at, each in enumerate(parameters) if each.kind is inspect.Parameter.KEYWORD_ONLY]
    if keyword:
        texts.insert(keyword[0], "*")
    if positional:
        texts.insert(positional[-1] + 1, "/")
    short = name.rpartition(".")[2]
    returned = _annotation(signature.return_annotation)
    line = f"{short}({', '.join(texts)}) -> {returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join((f"{short}(", *(f"    {text}," for text in texts), f") -> {returned}"))


def _parameter(parameter: inspect.Parameter) -> str:
    stars = "**" if parameter.kind is inspect.Parameter.VAR_KEYWORD else ""
    text = f"{stars}{parameter.name}: {_annotation(parameter.annotation)}"
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {parameter.default!r}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"Unpack\[(\w+)\]", r"\1", re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text))
    return text.replace("NoneType", "None").strip("'\"")


def _text(described: Any) -> str:
    return textwrap.dedent(inspect.getdoc(described) or "")


def _result(kind: type) -> str:
    rows = "\n".join(f"| `{name}` | `{type_}` |" for name, type_ in _fields(kind))
    methods = [
        _callable(f"{kind.__name__}.{name}", member)
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    return "\n".join([f"### `{kind.__name__}`\n\n{_text(kind)}\n\n| field | type |\n|---|---|\n{rows}\n", *methods])


def _fields(kind: Any) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(kind):
        yield field.name, _annotation(field.type).replace("|", "\\|")
