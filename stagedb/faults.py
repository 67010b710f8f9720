"""Named points at which a test stops a process: for proving that what is left behind is sound.

`STAGEDB_FAULT=build.ops:kill` ends the process there as `kill -9` would; `:pause` suspends it (SIGSTOP), so that a
test can end something else meanwhile. Without the variable a point does nothing.
"""

import os
import signal


def fault_point(name: str) -> None:
    """Where a test may have this process killed or suspended."""
    said = os.environ.get("STAGEDB_FAULT", "")
    if said == f"{name}:kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif said == f"{name}:pause":
        os.kill(os.getpid(), signal.SIGSTOP)
