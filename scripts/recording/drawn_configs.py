"""The file of drawn configs: for each class one config whole, and the others by what differs from it.

`scripts/record_models --draw` writes it, and a test reads it without torch. A row is the parameters, the values that
differ by their path (`text_config.head_dim`), and the paths that are not there.
"""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Sequence[Any]


def packed(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The rows of one class, of which the first one is whole. Equal ones are once in it; None for no rows."""
    first: Mapping[str, Any] | None = None
    seen, made = set(), []
    for each in rows:
        if first is None:
            first = each
        values: dict[str, Any] = {}
        gone: list[str] = []
        _differ(first["config"], each["config"], "", values, gone)
        row = [each["parameters"], values, gone]
        text = json.dumps(row, sort_keys=True)
        if text not in seen:
            seen.add(text)
            made.append(row)
    return None if first is None else {"config": first["config"], "rows": made}


def _differ(
    usual: Mapping[str, Any], other: Mapping[str, Any], at: str, values: dict[str, Any], gone: list[str]
) -> None:
    for key in usual:
        if key not in other:
            gone.append(at + key)
    for key, value in other.items():
        known = usual.get(key)
        if isinstance(known, dict) and isinstance(value, dict) and key in usual:
            _differ(known, value, f"{at}{key}.", values, gone)
        elif key not in usual or known != value or type(known) is not type(value):
            values[at + key] = value


def unpacked(content: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], int, str]]:
    """Each config of a class, its parameters, and what is changed in it in words."""
    for parameters, values, gone in content["rows"]:
        config = copy.deepcopy(content["config"])
        for path, value in values.items():
            *place, key = path.split(".")
            _at(config, place)[key] = value
        for path in gone:
            *place, key = path.split(".")
            del _at(config, place)[key]
        words = [f"{path}={json.dumps(value)[:60]}" for path, value in values.items()] + [f"no {path}" for path in gone]
        yield config, parameters, ", ".join(words) or "the class's defaults"


def _at(config: dict[str, Any], place: Sequence[str]) -> dict[str, Any]:
    for each in place:
        config = config[each]
    return config


def written(version: str, drawn: Mapping[str, Mapping[str, Any]]) -> str:
    """The file as a text: a line for each row, so that two files can be compared."""
    parts = []
    for name, each in drawn.items():
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in each["rows"])
        config = json.dumps(each["config"], separators=(",", ":"))
        usual = json.dumps(each["usual"], separators=(",", ":"))
        parts.append(f'{json.dumps(name)}: {{"usual": {usual},\n"config": {config}, "rows": [\n{rows}\n]}}')
    return f'{{"transformers": {json.dumps(version)}, "drawn": {{\n' + ",\n".join(parts) + "\n}}\n"
