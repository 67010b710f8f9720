"""Plans of the table: exported, and run as a simulator would."""

import functools
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stagedb.api import Stagedb, validate
from stagedb.files import read_document
from stagedb.traces import Report
from tests import lowered

Plans = list[Mapping[str, Any]]


@functools.cache
def plans() -> Plans:
    """The rows of the table."""
    found: Plans = read_document(Path(__file__).with_name("plans.yaml"), "table")
    return found


def title(plan: Mapping[str, Any]) -> str:
    """A row in short: `gpt2 tp 2 seq_len 256`."""
    return " ".join([plan["model"], *(f"{word} {value}" for word, value in plan.items() if word != "model")])


def check_lowered(plan: Mapping[str, Any]) -> Report:
    """Lower a plan, and hold its traces against every rule and a replay."""
    with TemporaryDirectory(prefix="stagedb-plan-") as scratch:
        words = {word: value for word, value in plan.items() if word != "model"}
        return validate(lowered.export(lowered.workload(plan["model"], **words), Path(scratch) / "traces"))


def check(db: Stagedb, plan: Mapping[str, Any]) -> Report:
    """Export a plan and hold its traces against every rule and a replay. What was made in the store is removed."""
    with TemporaryDirectory(prefix="stagedb-plan-") as scratch:
        done = db.export(**plan, out=Path(scratch) / "traces", replay=False)
        report = validate(done.path)
    db.rm(done.instance.id)
    return report
