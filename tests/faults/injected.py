"""Variables of a process that a test kills or suspends at a seam of stagedb: see `site/sitecustomize.py` here."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def at(fault: str) -> dict[str, str]:
    """Variables for a fault such as `wrote.build/ops:kill`; without one, the process runs as it is."""
    site = str(Path(__file__).parent / "site")
    return {"STAGEDB_FAULT": fault, "PYTHONPATH": os.pathsep.join((site, str(ROOT)))}
