"""Named points at which a test stops a process, to prove that what it leaves behind is sound.

`STAGEDB_FAULT=build.ops:kill` ends the process there as `kill -9` would. `:pause` suspends it (SIGSTOP), so that a test
can act meanwhile; resumed, it goes on to its end. `:pause:2` does so the second time. Each statement has two points:
`read.NAME` before one that reads, `write.NAME` after one that writes, in its open transaction. Without the variable a
point does nothing.
"""

import os
import signal

VARIABLE = "STAGEDB_FAULT"


def fault_point(name: str) -> None:
    """A point at which a test may kill or suspend this process."""
    point, _, fault = os.environ.get(VARIABLE, "").partition(":")
    if point != name:
        return
    action, _, times = fault.partition(":")
    if times not in ("", "1"):
        os.environ[VARIABLE] = f"{point}:{action}:{int(times) - 1}"
    elif action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "pause":
        del os.environ[VARIABLE]
        os.kill(os.getpid(), signal.SIGSTOP)
