"""What the editor completes: labels, relationship types and properties of the store's schema, with their meanings."""

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any

from stagedb.api import QueryInfo
from stagedb.api.querying import CHOSEN
from stagedb.store import LABELS, RELATIONSHIPS


def schema_words(queries: Sequence[QueryInfo]) -> dict[str, Any]:
    """The schema in the form of Neo4j's language support, and meanings by name. queries: whose parameters it knows."""
    parameters = {name: f"id of the {name}, or of the newest one" for name in CHOSEN}
    for info in queries:
        parameters |= {field.name: field.description for field in info.takes if field.name not in parameters}
    return {**_words(), "parameters": parameters, "queries": {info.name: info.description for info in queries}}


@functools.cache
def _words() -> dict[str, Any]:
    labels = {label.name: label.description for label in LABELS}
    for label in LABELS:
        labels |= {name: f"Also labelled {label.name}." for name in label.also if name not in labels}
    types: dict[str, str] = {}
    properties: dict[str, str] = {}
    for edge in RELATIONSHIPS:
        text = f"(:{edge.source})-->(:{edge.target}) {edge.description}"
        types[edge.type] = f"{types[edge.type]}\n{text}" if edge.type in types else text
    for each in chain.from_iterable([*(row.properties for row in LABELS), *(row.properties for row in RELATIONSHIPS)]):
        unit = "" if each.unit is None else f" in {each.unit}"
        properties.setdefault(each.name, f"{each.type}{unit}: {each.description}")
    return {
        "labels": labels,
        "types": types,
        "properties": properties,
        "edges": [[edge.source, edge.type, edge.target] for edge in RELATIONSHIPS],
    }
