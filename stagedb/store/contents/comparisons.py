"""Nodes and relationships that are there, compared with those that must be there."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from stagedb.files import shown
from stagedb.store.dump_contents import End

Row = Mapping[str, Any]


def differences(what: str, found: Mapping[Any, Row], expected: Mapping[Any, Row]) -> Iterator[str]:
    """What is wrong with nodes, as sentences. what: the nodes. found, expected: properties by id.

    Properties that the expected nodes do not have are not compared.
    """
    for id in expected.keys() - found.keys():
        yield f"{what} {shown(id)} is missing"
    for id in found.keys() - expected.keys():
        yield f"{what} {shown(id)} does not belong here"
    for id in expected.keys() & found.keys():
        for name, value in expected[id].items():
            if found[id].get(name) != value:
                yield f"{name} of {what} {shown(id)} is {shown(found[id].get(name))} and must be {shown(value)}"


def wrong_edges(type: str, found: Iterable[End], expected: Iterable[End]) -> Iterator[str]:
    """What is wrong with relationships of one type, as sentences.

    Each expected relationship is to be there once, and no other. type: of the relationships. found: in the store.
    expected: what is right.
    """
    there, wanted = Counter(map(_key, found)), Counter(map(_key, expected))
    for missing in sorted((wanted - there).keys()):
        yield f"{type} from {shown(missing[0])} to {shown(missing[1])} is missing or was changed"
    for extra in sorted((there - wanted).keys()):
        often = "is there twice" if extra in wanted else "does not belong here"
        yield f"{type} from {shown(extra[0])} to {shown(extra[1])} {often}"


def _key(end: End) -> tuple[str, str, str]:
    source, target, values = end
    return source, target, json.dumps(without_none(values), sort_keys=True)


def one_each(type: str, edges: Sequence[End], sources: Iterable[str]) -> Iterator[str]:
    """What is wrong if each source must have exactly one relationship of a type.

    type: of the relationships. edges: all relationships of that type. sources: ids of nodes.
    """
    counts = Counter(source for source, _, _ in edges)
    for source in sources:
        if counts[source] != 1:
            yield f"{shown(source)} has {counts[source]} {type} relationships and must have one"


def without_none(values: Row) -> dict[str, Any]:
    """The values that are not None, by name."""
    return {name: value for name, value in values.items() if value is not None}
