"""What the nodes of graphs and instances carry as properties of their own, beside canonical JSON."""

import json
from collections.abc import Mapping
from typing import Any

from stagedb.plans.graph_options import UNSAID
from stagedb.store.graph_labels import OPTIONS, SIZES
from stagedb.store.instance_labels import PLAN_WORDS
from stagedb.store.schema import VERSION

Properties = dict[str, Any]


def graph_properties(options: str, sizes: Mapping[str, int]) -> Properties:
    """A graph's options and sizes as properties. options: canonical JSON. What is not set is left out."""
    said = {**UNSAID, **json.loads(options)}
    words = {name: said[name] for name in OPTIONS if said.get(name) is not None}
    known = {SIZES[symbol][0]: value for symbol, value in sizes.items() if symbol in SIZES}
    return {**words, **known, "schema": VERSION}


def plan_properties(words: Mapping[str, Any]) -> Properties:
    """The words of a plan as properties; what is not set is left out."""
    said = {**UNSAID, **words}
    return {row.name: said[row.name] for row in PLAN_WORDS if said.get(row.name) is not None}
