"""Runs of real PyTorch over gloo, clean and with faults, and their plans. `scripts/record_runs` made them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from scripts.recording.run_requests import RunRequest
from stagedb.api.importing import trace_files
from stagedb.lowering import Program
from stagedb.runs import MeasuredRun
from stagedb.runs.run_files import RunFiles
from stagedb.runs.run_match import RunMatch, match_run
from stagedb.validation.rank_counts import lowered
from stagedb.validation.records import card_of, plan_words
from tests.runs.recordings import measured
from tests.runs.stored_rows import stored

FOLDER = Path(__file__).parent / "gloo"
"""Runs of four ranks, and one step."""
PAIRS = Path(__file__).parent / "pairs"
"""Clean runs of two ranks, each with a core of its own, and three steps."""
MEMORY = Path(__file__).parent / "memory"
"""Runs of two ranks with their allocations, as `memory-ddp`."""
OF_TWO = (
    *("two-ddp", "two-ddp-deep", "two-ep", "two-ep-long", "two-fsdp", "two-fsdp-long", "two-fsdp-recompute"),
    *("two-pp", "two-pp-long", "two-tp", "two-tp-square", "two-tp-wide"),
)
CLEAN = ("ddp", "ep", "fsdp", "fsdp-mixed", "fsdp-recompute", "fsdp-tp", "hsdp", "pp", "pp-fsdp", "tp")


def folder_of(name: str) -> Path:
    if name.startswith("memory-"):
        return MEMORY / name.removeprefix("memory-")
    return next(each / name for each in (FOLDER, PAIRS) if (each / name).is_dir())


def config_of(name: str) -> dict[str, Any]:
    """The configuration of what trained: the faults are not in it."""
    folder = folder_of(name)
    about = json.loads((folder / "expected.jsonl").read_text(encoding="utf-8").splitlines()[0])
    ranks = len([*folder.glob("rank*.et.json.gz")])
    return {**RunRequest(about["program"], ranks, config=about.get("config", {})).completed(), "rank": 0}


@cache
def program_of(name: str) -> Program:
    config = config_of(name)
    return lowered(card_of(config), plan_words(config))


@cache
def run_of(name: str) -> MeasuredRun:
    return measured(RunFiles.of(trace_files([folder_of(name)])))


@cache
def match_of(name: str) -> RunMatch:
    return match_run(stored(run_of(name)), program_of(name))
