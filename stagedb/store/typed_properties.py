"""Options, sizes and plan words as properties of graph and instance nodes, in addition to canonical JSON."""

from collections.abc import Mapping
from typing import Any

from stagedb.files.stored_values import json_mapping
from stagedb.store.migrations import VERSION
from stagedb.store.plan_labels import OPTIONS, PLAN_WORDS, SIZES

Properties = dict[str, Any]


def graph_properties(options: str, sizes: Mapping[str, int]) -> Properties:
    """A graph's options and sizes as properties.

    options: canonical JSON. Options without a value are left out.
    """
    filled = json_mapping(options, "options")
    words = {name: filled[name] for name in OPTIONS if filled.get(name) is not None}
    known = {SIZES[symbol][0]: value for symbol, value in sizes.items() if symbol in SIZES}
    return {**words, **known, "schema": VERSION}


def plan_properties(words: Mapping[str, Any]) -> Properties:
    """The words of a plan as properties of its `Instance` node. Words that are None are left out."""
    return {row.name: words[row.name] for row in PLAN_WORDS if words.get(row.name) is not None}
