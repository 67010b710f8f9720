"""Runs of real PyTorch over gloo, clean and with faults, and their plans. `scripts/record_runs` made them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from scripts.recording.run_requests import RunRequest
from stagedb.api.importing import trace_files
from stagedb.lowering import Program
from stagedb.matching.run_match import RunMatch, match_run
from stagedb.runs import MeasuredRun
from stagedb.runs.run_files import RunFiles
from stagedb.validation.programs import lowered
from stagedb.validation.records import card_of, plan_words
from tests.runs.stored_rows import stored

FOLDER = Path(__file__).parent / "gloo"
CLEAN = ("ddp", "ep", "fsdp", "fsdp-mixed", "fsdp-recompute", "fsdp-tp", "hsdp", "pp", "pp-fsdp", "tp")


def config_of(name: str) -> dict[str, Any]:
    """The configuration of what trained: the faults are not in it."""
    about = json.loads((FOLDER / name / "expected.jsonl").read_text(encoding="utf-8").splitlines()[0])
    ranks = len([*(FOLDER / name).glob("rank*.et.json.gz")])
    return {**RunRequest(about["program"], ranks).completed(), "rank": 0}


@cache
def program_of(name: str) -> Program:
    config = config_of(name)
    return lowered(card_of(config), plan_words(config))


@cache
def run_of(name: str) -> MeasuredRun:
    return RunFiles.of(trace_files([FOLDER / name])).read()


@cache
def match_of(name: str) -> RunMatch:
    return match_run(stored(run_of(name)), program_of(name))
