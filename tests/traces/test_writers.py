"""Processes that write files of ranks: what they read, and how little they import."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from stagedb.traces.encoded_class import EncodedClass, RankBytes, rank_files
from stagedb.traces.rank_files import TraceTarget, WriteJob, save_classes, writers


def small(shift: int) -> tuple[EncodedClass, RankBytes]:
    """A class of two templates, one of which has an id and a byte of each rank."""
    encoded = EncodedClass(
        width=np.array([2]),
        data=np.arange(10, dtype=np.uint8) + np.uint8(shift),
        data_starts=np.array([0, 3, 10]),
        slots=np.array([1], np.int32),
        slot_refs=np.array([0], np.int32),
        slot_offsets=np.array([5], np.int32),
        slot_starts=np.array([0, 0, 1]),
        patches=np.array([2, 4], np.int32),
        patch_sources=np.array([0, 1], np.int32),
        patch_starts=np.array([0, 1, 2]),
        tasks=np.array([0, 1, 1], np.int32),
        references=np.array([[0], [300], [70]]),
    )
    return encoded, RankBytes(np.array([4, 9, 2]) + 100 * shift, np.array([[1, 2], [1, 3], [7, 8]], np.uint8))


def test_shared_classes_give_the_bytes_of_each_rank(tmp_path: Path) -> None:
    classes = {"0": small(0), "1.5": small(1)}
    saved, out = tmp_path / "classes", tmp_path / "out"
    out.mkdir()
    save_classes(saved, ((key, encoded, ranks) for key, (encoded, ranks) in classes.items()))
    counts: list[int] = []
    with writers(2, counts.append) as pool:
        pool.aim(TraceTarget(out, "t"))
        for key in classes:
            pool.give(WriteJob(str(saved), key, 0, 3))
        pool.finish()
    wanted = {
        f"t.{rank}.et": bytes(data) for encoded, ranks in classes.values() for rank, data in rank_files(encoded, ranks)
    }
    assert {path.name: path.read_bytes() for path in out.iterdir()} == wanted
    assert len({*wanted.values()}) == 6
    assert sum(counts) == 6


def test_a_writer_imports_neither_systems_nor_graphs() -> None:
    code = (
        "import sys, stagedb.traces.rank_files\n"
        "heavy = ('stagedb.systems', 'stagedb.ir', 'stagedb.models', 'stagedb.plans', 'yaml', 'google', 'zipfile')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
