"""One process of a recorded run: it trains, and writes what PyTorch's profiler and its execution trace have of it."""

import contextlib
import ctypes
import json
import logging
import os
import platform
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule

from scripts.recording.run_requests import RunRequest
from scripts.recording.under_torch import run_faults
from scripts.recording.under_torch.run_programs import program_of
from scripts.recording.under_torch.sent_list import SentList
from scripts.recording.under_torch.slow_links import slow_down

_WARM_UP = 2
_NICE = -15
_TURN = 100_000
"""Ns of a core that a thread gets before another one has its turn."""

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
"""The system call, which neither Python nor the C library has."""


def work(rank: int, request: RunRequest, folder: Path) -> None:
    """Train, and write `rankR.json`, `rankR.et.json` and `rankR.sent.json` into a folder.

    rank: of this process. folder: is there; `store` in it is how the processes find each other.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), request.ranks), rank=rank, world_size=request.ranks
    )
    run_faults.before_it_is_made(request.fault)
    program = program_of(request.completed() | {"rank": rank}, request.sleep)
    run_faults.after_it_was_made(request.fault, program)
    for _ in range(_WARM_UP):
        program.step()
    sent = SentList()
    with sent:
        program.meet()
        program.step()
    (folder / f"rank{rank}.sent.json").write_text(json.dumps(sent.found), encoding="utf-8")
    if request.slow_link is not None:
        slow_down(request.slow_link)
    observer = ExecutionTraceObserver().register_callback(str(folder / f"rank{rank}.et.json"))
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=request.steps, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / f"rank{rank}.json")),
        execution_trace_observer=observer,
        record_shapes=request.shapes,
        profile_memory=request.memory,
    ) as profiler:
        for _ in range(1 + request.steps):
            with first() if request.first else contextlib.nullcontext():
                program.meet()
            program.step()
            profiler.step()
    observer.unregister_callback()
    dist.barrier()
    dist.destroy_process_group()


@contextlib.contextmanager
def first() -> Iterator[None]:
    """All threads of this process run before those of other programs inside, and have more of the cores after it."""
    threads = [int(each.name) for each in Path("/proc/self/task").iterdir()]
    for thread in threads:
        os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))
    yield
    for thread in threads:
        take_short_turns(thread)


def take_short_turns(thread: int) -> None:
    """A thread comes before those of other programs, and gives its core away soon, so that one that is woken runs.

    Without that a thread which has waited for a collective waits for a core as well, as long as several milliseconds.
    Raises OSError where the kernel does not allow it: it takes root, and Linux 6.12.
    """
    # size, policy, flags, nice, priority, runtime (the length of a turn), deadline, period
    attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, _NICE, 0, _TURN, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SCHED_SETATTR[platform.machine()], thread, attributes, 0):
        raise OSError(ctypes.get_errno(), f"cannot give thread {thread} short turns of a core")
