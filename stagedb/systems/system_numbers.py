"""The numbers of a system by the keys of its file, such as `network.nvlink.bandwidth`, and a system with others."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import nearest, question, shown
from stagedb.mentions import call
from stagedb.systems.system import Number, System, plain
from stagedb.systems.system_files import exact, parse_system

UNITS: Mapping[str, str] = {
    "peak": "TFLOP/s",
    "bandwidth": "GB/s",
    "link": "GB/s",
    "capacity": "GB",
    "reserve": "GB",
    "launch": "ns",
    "graph_launch": "ns",
    "latency": "ns",
    "size": "places",
    "use": "places",
    "sustained": "share",
    "power": "W",
    "reduced": "B",
    "gathered": "B",
    "stretch": "times",
    "taken": "thousandths",
    "parts": "parts",
    "one_shot": "ns",
    "two_shot": "ns",
    "share": "share",
    "limit": "B",
    "start": "ns",
    "issue": "ns",
    "issue_share": "share",
    "issued": "ns",
    "read_share": "share",
    "compute_share": "share",
}
"""Units of numbers, by the key that has them, or that has the mapping with them."""

BOUGHT = ("peak", "bandwidth", "link", "capacity", "launch", "latency")
"""Keys of numbers that other hardware may have better: rates, sizes of memories, and times."""

TIMES = ("launch", "latency")
"""Keys of numbers that are better the lower they are."""

_NEAR = 3
"""Similar paths that an error names."""


@dataclass(frozen=True)
class SystemNumber:
    """A number of a system. path: the keys of its file, with the name of a network dimension as the key of it.

    value: None where the file leaves it open. unit: of `UNITS`.
    """

    path: str
    keys: tuple[str | int, ...]
    value: Number | None

    @property
    def _kind(self) -> str:
        """Its key in `UNITS`."""
        return next((str(key) for key in self.keys if key in UNITS), "")

    @property
    def unit(self) -> str:
        return UNITS.get(self._kind, "")

    @property
    def bought(self) -> bool:
        """Whether other hardware may have it better: it is finite and not 0, and no rule or share."""
        return self._kind in BOUGHT and self.value not in (None, 0, math.inf)

    @property
    def is_time(self) -> bool:
        """Whether the number is a time, which is better the lower it is; rates and capacities are not."""
        return self._kind in TIMES


def system_numbers(system: System) -> dict[str, SystemNumber]:
    """Every number of a system by its path: those of its file, and those that a file may leave out."""
    content = system.to_dict()
    optional: list[tuple[tuple[str | int, ...], Number | None]] = [
        (("accelerator", "graph_launch"), system.accelerator.of_graphs),
        (("accelerator", "issue"), None),
        (("accelerator", "sustained"), Fraction(1)),
        *((("overlap", name), Fraction(0)) for name in ("reduced", "gathered", "taken", "issue_share")),
        (("collectives", "parts"), Fraction(1)),
    ]
    for at, each in enumerate(system.dimensions):
        optional += [(("network", at, "size"), None)] if each.size is None else []
        optional += [(("network", at, "use"), Fraction(each.size))] if each.kind == "switch" and each.size else []
    keyed: dict[tuple[str | int, ...], Number | None] = dict(_walk((), content))
    for keys, value in optional:
        keyed.setdefault(keys, value)
    names = [each.name for each in system.dimensions]
    found = (SystemNumber(_path(keys, names), keys, value) for keys, value in keyed.items())
    return {each.path: each for each in sorted(found, key=lambda each: _place(each.keys, content))}


def find_number(system: System, path: str) -> SystemNumber:
    """The number with a path. UsageError, with the nearest ones, if the system has none."""
    known = system_numbers(system)
    if path in known:
        return known[path]
    last = path.rpartition(".")[2]
    near = nearest(path, known, _NEAR)
    near += [each for each in known if each.rpartition(".")[2] == last and each not in near]
    near += [each for each in nearest(path, known, _NEAR, 0.3) if each not in near]
    hint = question(near[:_NEAR], ": {}")
    raise UsageError(
        f"the system {system.name} has no number {shown(path)}{hint} ({call('systems', system.name)} shows its keys; a "
        "network dimension has its name in a path)"
    )


def with_numbers(system: System, values: Mapping[str, Number]) -> System:
    """The system with other numbers, checked as its file would be. values: by path, as `accelerator.memory`.

    Raises UsageError for an unknown path, and for a value that the file of a system could not have.
    """
    if not values:
        return system
    content = system.to_dict()
    for path, value in values.items():
        place: Any = content
        *keys, last = find_number(system, path).keys
        for key in keys:
            place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
        place[last] = plain(value)
    named = ", ".join(f"{path} = {plain(value)}" for path, value in values.items())
    return parse_system(json.dumps(content), f"the system {system.name} with {named}")


def read_number(text: str) -> Number | None:
    """The number that a text writes as the file of a system does, `.inf` too; None for other texts."""
    return math.inf if text == ".inf" else exact(text)


def _walk(keys: tuple[str | int, ...], value: Any) -> Iterator[tuple[tuple[str | int, ...], Number]]:
    """The numbers below some keys. Curves are lists, and tables are measurements: they have no numbers to change."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key != "tables":
                yield from _walk((*keys, key), each)
    elif isinstance(value, list):
        if keys == ("network",):
            for at, each in enumerate(value):
                yield from _walk((*keys, at), each)
    elif value == ".inf":
        yield keys, math.inf
    elif isinstance(value, int | float):
        yield keys, Fraction(repr(value))


def _path(keys: tuple[str | int, ...], names: list[str]) -> str:
    return ".".join(names[key] if isinstance(key, int) else key for key in keys)


def _place(keys: tuple[str | int, ...], content: Mapping[str, Any]) -> tuple[int, int]:
    """The order of a file: accelerator, network (innermost first), rules."""
    first = [*content, "overlap", "collectives"].index(str(keys[0]))
    return first, keys[1] if isinstance(keys[1], int) else 0
