"""A link that is slow: the kernel paces what one process writes to its sockets with another one (`SO_MAX_PACING_RATE`).

Nothing of PyTorch or gloo is changed by it: messages begin as usual, and arrive later.
"""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import torch.distributed as dist

from scripts.recording.run_requests import SlowLink

_PACING = getattr(socket, "SO_MAX_PACING_RATE", 47)


def slow_down(link: SlowLink) -> int:
    """Pace all sockets of the source to the target. All ranks call it. Returns how many there are."""
    own = dist.get_rank()
    addresses: list[list[tuple[object, object]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(addresses, [(each.getsockname(), each.getpeername()) for each in _sockets()])
    if own != link.source:
        return 0
    theirs = {tuple(reversed(pair)) for pair in addresses[link.target]}
    count = 0
    for each in _sockets():
        if (each.getsockname(), each.getpeername()) in theirs:
            each.setsockopt(socket.SOL_SOCKET, _PACING, link.rate)
            count += 1
    if not count:
        raise RuntimeError(f"rank {link.source} has no socket with rank {link.target}")
    return count


def _sockets() -> Iterator[socket.socket]:
    """The connected TCP sockets of this process, each as a copy of its descriptor."""
    for path in list(Path("/proc/self/fd").iterdir()):
        try:
            descriptor = int(path.name)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                    found.getpeername()
                    yield found
        except OSError:
            # Closed since it was listed, or not connected.
            continue
