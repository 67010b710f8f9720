"""Questions about the time of a profile, asked about a run that was recorded: the same Cypher, with a run's labels.

The relationships and columns of a run are those of a profile (`run_labels`), so that only the labels differ. A question
that needs what a recording does not have, such as the instance or the bytes into each network, has no such form. One
about what a recording has otherwise has a statement of its own (`OTHERWISE`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from stagedb.store.statements import Statement, load

LABELS: Mapping[str, str] = {
    "Profile": "Run",
    "LaneTime": "RunLane",
    "OpTime": "RunOp",
    "TaskTime": "RunTask",
    "Leg": "RunLeg",
}
"""Labels of profiles, each with that of runs that has its place."""

_LABEL = re.compile(r"(?<=[(\w]):([A-Z]\w*)\b")
_RELATIONSHIP = re.compile(r"\[[^\]]*\]")
_OF_PROFILES = re.compile(r"\.(?:peak|bandwidth|dimensions|dimension_bandwidths|flops|wires)\b")
"""Properties that only a profile can have: they come from the model and the system."""


OTHERWISE: Mapping[str, str] = {
    "analyze/critical_path/critical_breakdown": "run/critical_breakdown",
    "analyze/time/longest_operators": "run/longest_operators",
}
"""Named queries whose form for a run is another statement: the critical path of a recording has gaps, and each call
of an operator takes another time."""

NOT_RECORDED = ("dimension", "wire_bytes")
"""Columns of profiles that a recording does not have."""


def of_run(statement: Statement) -> Statement | None:
    """A named query for a run, whose id is its parameter `profile`; None if the query needs what no run has.

    The answer may have the columns `NOT_RECORDED` too, which the statement does not declare: leave them out.
    """
    if statement.name in OTHERWISE:
        return load(OTHERWISE[statement.name])
    if "profile" not in {field.name for field in statement.params} or _OF_PROFILES.search(statement.text):
        return None
    found = {match[1] for match in _LABEL.finditer(_RELATIONSHIP.sub("[]", statement.text))}
    if "Profile" not in found or found - LABELS.keys():
        return None
    text = _LABEL.sub(lambda match: f":{LABELS.get(match[1], match[1])}", statement.text)
    columns = tuple(field for field in statement.columns if field.name not in NOT_RECORDED)
    return replace(statement, text=text, columns=columns)
