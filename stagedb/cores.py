"""The cores that this process may use."""

import os


def usable_cores() -> int:
    """Number of cores that this process may run on: `taskset` and batch systems give it fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
