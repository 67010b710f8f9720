"""A set knows its files: a change to any of them is found, and `--resume` mends it."""

import json
import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.store import Store
from stagedb.traces.bundle import CHECKSUMS, file_crc, rank_crcs, read_checksums
from stagedb.traces.encoded_class import EncodedClass, RankBytes, rank_files
from stagedb.traces.set_validation import validate_traces
from tests.ir.tiny import card
from tests.sampling import examples

FLIPS = 40
NONE = np.zeros(0, np.int32)


@given(st.randoms(use_true_random=False), st.integers(1, 40), st.integers(1, 6))
def test_checksums_of_ranks_follow_from_the_first_file(chance: random.Random, tasks: int, own: int) -> None:
    rng = np.random.default_rng(chance.getrandbits(32))
    sizes = rng.integers(own, 300, 3)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    places = [rng.choice(size, own, replace=False) for size in sizes]
    encoded = EncodedClass(
        width=np.array([2]),
        data=rng.integers(0, 256, starts[-1], dtype=np.uint8),
        data_starts=starts,
        slots=NONE,
        slot_refs=NONE,
        slot_offsets=NONE,
        slot_starts=np.zeros(4, np.int64),
        patches=np.concatenate(places).astype(np.int32),
        patch_sources=rng.integers(0, own, 3 * own).astype(np.int32),
        patch_starts=np.arange(4) * own,
        tasks=np.concatenate([[0], rng.integers(1, 3, tasks)]).astype(np.int32),
        references=np.zeros((tasks + 1, 1), np.int64),
    )
    ranks = RankBytes(np.arange(9), rng.integers(0, 256, (9, own), dtype=np.uint8))
    crcs = [zlib.crc32(data.tobytes()) for _, data in rank_files(encoded, ranks)]
    assert rank_crcs(encoded, ranks).tolist() == crcs


def export(store: Store, out: Path, **how: Any) -> Stagedb:
    db = Stagedb(store)
    db.export(model=card("llama"), tp=2, pp=2, dp=2, out=out, **how)
    return db


def test_a_set_has_the_checksums_of_its_files(embedded_store: Store, tmp_path: Path) -> None:
    forms: list[dict[str, Any]] = [{}, {"compress": True}, {"format": "json"}, {"format": "parquet"}, {"only": "0,3"}]
    for number, how in enumerate(forms):
        out = tmp_path / str(number)
        export(embedded_store, out, **how)
        known = read_checksums(out / CHECKSUMS)
        assert {name: file_crc(out / name) for name in known} == known
        assert {"tiny-llama.json", "manifest.json"} < known.keys()
        traces = [path.name for path in out.iterdir() if path.suffix in (".et", ".gz", ".parquet")]
        assert {*traces} <= known.keys()


def test_every_flipped_bit_is_found_and_mended(embedded_store: Store, tmp_path: Path) -> None:
    out, chance = tmp_path / "traces", random.Random(15)
    db = export(embedded_store, out)
    names = [*read_checksums(out / CHECKSUMS), CHECKSUMS]
    whole = {name: (out / name).read_bytes() for name in names}
    assert validate_traces(out).faults == ()
    for _ in range(examples(FLIPS)):
        name = chance.choice(names)
        data = bytearray(whole[name])
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (out / name).write_bytes(data)
        report = validate_traces(out)
        assert report.faults, name
        assert {fault.rule for fault in report.faults} <= {"checksum", "files"}
        done = db.export("tiny-llama", out=out, resume=True)
        assert name in done.mended
        assert {each: (out / each).read_bytes() for each in names} == whole
        assert validate_traces(out).faults == ()


def test_a_set_without_checksums_is_checked_by_the_rules(embedded_store: Store, tmp_path: Path) -> None:
    out = tmp_path / "traces"
    export(embedded_store, out)
    (out / CHECKSUMS).unlink()
    assert validate_traces(out).faults == ()
    manifest = out / "manifest.json"
    for text in ("{", "[]", json.dumps({"world": 2}), json.dumps({"world": 10**12}), json.dumps({"world": "all"})):
        manifest.write_text(text)
        assert [fault.rule for fault in validate_traces(out).faults][:1] == ["manifest"]


@pytest.mark.parametrize("text", ["x", "a 123", "../up 12345678", "a 12345678\na 12345678", "a 1234567g"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / CHECKSUMS).write_text(text)
    with pytest.raises(UsageError, match="not a name and its CRC-32"):
        read_checksums(tmp_path / CHECKSUMS)
