"""Named points at which a test stops a process, to prove that what it leaves behind is sound.

`STAGEDB_FAULT=build.ops:kill` ends the process there as `kill -9` would. `:pause` suspends it (SIGSTOP), so that a
test can end another process meanwhile. Without the variable a point does nothing.
"""

import os
import signal


def fault_point(name: str) -> None:
    """A point at which a test may kill or suspend this process."""
    fault = os.environ.get("STAGEDB_FAULT", "")
    if fault == f"{name}:kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == f"{name}:pause":
        os.kill(os.getpid(), signal.SIGSTOP)
