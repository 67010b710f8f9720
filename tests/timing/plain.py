"""A system on which times can be computed by hand: a FLOP takes a picosecond, a byte a nanosecond, the rest no time."""

import json
from dataclasses import replace
from fractions import Fraction

from stagedb.systems import parse_system

_TEXT = {
    "name": "plain",
    "sources": ["made up"],
    "accelerator": {"name": "plain", "peak": {"bf16": 1}, "memory": {"bandwidth": 1, "capacity": 1}, "launch": 0},
    "network": [
        {"name": "inner", "size": 2, "kind": "switch", "bandwidth": 1, "latency": 0},
        {"name": "outer", "size": None, "kind": "switch", "bandwidth": 1, "latency": 0},
    ],
}
_READ = parse_system(json.dumps(_TEXT))

PLAIN = replace(_READ, accelerator=replace(_READ.accelerator, peak={"bf16": Fraction(1), "": Fraction(1)}))
"""Made-up ops that compute in no format have a rate too."""
