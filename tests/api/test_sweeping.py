"""Sweeps: each row is the step that a profile has, or why there is none; nothing is written, all can be made again."""

import dataclasses
import shlex
from fractions import Fraction
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.api.sweeping import FIGURES
from stagedb.errors import StagedbError, UsageError
from stagedb.models import load_card
from stagedb.store import Input, Store
from stagedb.systems import load_system
from stagedb.systems.system_numbers import with_numbers
from tests.ir.tiny import card

H100 = load_system("h100")
CARD = dataclasses.replace(load_card("llama3-8b"), layers=2, name="llama3-8b-2")
WORDS: dict[str, Any] = {"ranks": 8, "global_batch_size": 8, "seq_len": 2048}


def empty(db: Stagedb) -> bool:
    return not (db.graphs() or db.instances() or db.profiles())


def test_each_row_is_a_profile_or_a_refusal(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    vary = {"tp": [1, 2, 3, 8], "zero": [0, 1], "system.network.infiniband.bandwidth": "25,50"}
    found = db.sweep(model=CARD, vary=vary, **WORDS)
    assert found.varied == tuple(vary)
    assert found.rows.columns == (*vary, *FIGURES)
    rows = list(found.rows)
    assert [tuple(row[name] for name in vary) for row in rows] == [
        (tp, zero, bandwidth) for tp in (1, 2, 3, 8) for zero in (0, 1) for bandwidth in (25, 50)
    ]
    refused = 0
    for row in rows:
        system = with_numbers(
            H100, {"network.infiniband.bandwidth": Fraction(row["system.network.infiniband.bandwidth"])}
        )
        words = {**WORDS, "tp": row["tp"], "zero": row["zero"]}
        if row["refused"] is not None:
            refused += 1
            with pytest.raises(UsageError) as error:
                db.profile(model=CARD, system=system, keep=False, **words)
            error.value.form = StagedbError.form
            assert row["refused"] == str(error.value)
            assert all(row[name] is None for name in FIGURES[:-1])
            continue
        made = db.profile(model=CARD, system=system, keep=False, **words)
        assert (row["step"], row["mfu"], row["peak"], row["fits"]) == (
            made.step,
            made.merit.mfu,
            made.memory[0].bytes,
            made.fits,
        )
        assert row["tokens_per_second_per_accelerator"] == made.merit.tokens_per_second_per_accelerator
        assert row["ranks"] == 8
        advice = db.advise(model=CARD, system=system, **words) if row["tp"] == 8 and row["zero"] == 0 else None
        if advice is not None:
            assert row["bound_share"] == advice.bound_share
            assert row["bound"] in advice.verdict
    assert refused == 6  # tp 3, and zero 1 without other ranks of dp
    assert "16 points, 6 refused" in found.verdict
    best = max((row for row in rows if row["fits"]), key=lambda row: row["tokens_per_second_per_accelerator"])
    assert f"has tp {best['tp']}, zero {best['zero']}, " in found.verdict
    assert empty(db)
    frame = found.to_pandas()
    assert list(frame.columns) == list(found.rows.columns) and len(frame) == 16


def test_more_memory_makes_a_plan_fit_and_no_faster(embedded_store: Store) -> None:
    found = Stagedb(embedded_store).sweep(
        model=CARD, vary={"system.accelerator.memory.capacity": [8, 80], "tp": [1, 8]}, **WORDS
    )
    rows = {(row["system.accelerator.memory.capacity"], row["tp"]): row for row in found.rows}
    assert {point: row["fits"] for point, row in rows.items()} == {
        (8, 1): False,
        (8, 8): True,
        (80, 1): True,
        (80, 8): True,
    }
    assert rows[8, 1]["step"] == rows[80, 1]["step"] < rows[8, 8]["step"]
    assert rows[8, 1]["bound"] == "memory" != rows[80, 1]["bound"]
    assert "4 points, 1 that do not fit; " in found.verdict
    assert "has system.accelerator.memory.capacity 80, tp 1: " in found.verdict


def test_a_system_varies_with_its_own_tables(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    found = db.sweep(
        model=CARD,
        vary={"system": ["h100", "h200", "tpu-v5p"], "system.network.nvlink.bandwidth": [450]},
        tp=8,
        **WORDS,
    )
    rows = list(found.rows)
    for row in rows[:2]:
        assert row["step"] == db.profile(model=CARD, system=row["system"], tp=8, keep=False, **WORDS).step
    assert "tpu-v5p has no number 'network.nvlink.bandwidth'" in rows[2]["refused"]
    systems = [each for each in found.provenance.inputs if each["kind"] == "system"]
    assert [each["name"] for each in systems] == ["h100", "h200", "tpu-v5p"]


@pytest.mark.parametrize("given", ["instance", "newest", "graph"])
def test_an_instance_of_the_store_is_varied(store: Store, given: str) -> None:
    db = Stagedb(store)
    made = db.instantiate(card("llama"), tp=2, pp=2, seq_len=8, global_batch_size=8, name="mine")
    before = db.ls().rows
    words: dict[str, Any] = {"tp": 2, "pp": 2, "seq_len": 8, "global_batch_size": 8} if given == "graph" else {}
    model = made.graph if given == "graph" else None
    target = made.id if given == "instance" else None
    found = db.sweep(target, model=model, vary=["micro_batch_size=1,2,3", "zero=0,1"], **words)
    rows = list(found.rows)
    assert [row["refused"] is None for row in rows] == [True, False, True, False, False, False]
    assert "--model" in rows[1]["refused"]
    for row in rows[:3:2]:
        profiled = db.profile(made.id, micro_batch_size=row["micro_batch_size"], keep=False)
        assert (row["step"], row["peak"]) == (profiled.step, profiled.memory[0].bytes)
    assert db.ls().rows == before


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({"vary": {}}, "nothing varies: name what does with vary='tp=1,2,4'"),
    "name": ({"vary": {"tpp": [1]}}, "'tpp' cannot be varied"),
    "path": ({"vary": {"system.accelerator.memory.bandwith": [1]}}, "did you mean accelerator.memory.bandwidth"),
    "system": ({"vary": {"system": ["h1000"]}}, "unknown system"),
    "model": ({"vary": {"tp": [1]}, "model": "lama3"}, "unknown model"),
    "both": ({"vary": {"tp": [1]}, "target": "mine", "model": CARD}, "cannot both be given"),
    "instance": ({"vary": {"tp": [1]}, "target": "nothing", "model": None}, "nothing"),
    "together": ({"vary": {"tp": [1, 2], "pp": [1]}, "together": True}, "lists of one length"),
    "blocking": ({"vary": {"tp": [1]}, "blocking": "tpp"}, "unknown axis"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_swept_is_refused(embedded_store: Store, name: str) -> None:
    words, message = REFUSED[name]
    target = words.get("target")
    asked = {"model": CARD, **{word: value for word, value in words.items() if word != "target"}}
    with pytest.raises(UsageError, match=message):
        Stagedb(embedded_store).sweep(target, **asked)


def test_a_sweep_without_a_plan_has_its_refusals(embedded_store: Store) -> None:
    found = Stagedb(embedded_store).sweep(model=CARD, vary={"tp": [3, 5]}, **WORDS)
    assert [bool(row["refused"]) for row in found.rows] == [True, True]
    assert found.verdict == "2 points, 2 refused: none is a plan that fits"
    with pytest.raises(UsageError, match="nothing to draw"):
        found.picture()


def test_every_point_is_reported(embedded_store: Store) -> None:
    seen: list[tuple[int, int, str]] = []
    Stagedb(embedded_store).sweep(
        model=CARD, vary={"tp": [1, 2, 3]}, progress=lambda *point: seen.append(point), **WORDS
    )
    assert [each[:2] for each in seen] == [(1, 3), (2, 3), (3, 3)]
    assert {each[2].partition(":")[0] for each in seen} == {"", "tp 1", "tp 2"}


def test_gains_name_what_to_buy(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    found = db.sensitivity(model=CARD, tp=8, sp=True, **WORDS)
    rows = list(found.rows)
    made = db.profile(model=CARD, tp=8, sp=True, keep=False, **WORDS)
    assert (found.step, found.peak, found.fits) == (made.step, made.memory[0].bytes, True)
    assert [row["step_10"] for row in rows] == sorted(row["step_10"] for row in rows)
    assert found.verdict.startswith(f"what to buy first is {rows[0]['number']}: 10 % better, it shortens the step by ")
    for row in rows:
        assert row["share_10"] == (found.step - row["step_10"]) / found.step
    times = {row["number"] for row in rows if row["unit"] == "ns"}
    assert times == {"accelerator.launch", "network.nvlink.latency", "network.infiniband.latency"}
    total = sum(row["elasticity"] * (-1 if row["number"] in times else 1) for row in rows)
    assert total == pytest.approx(-1, abs=0.01)
    assert empty(db)


def test_a_plan_that_does_not_fit_needs_memory_first(embedded_store: Store) -> None:
    found = Stagedb(embedded_store).sensitivity(
        model="llama3-8b", ranks=2, micro_batch_size=8, global_batch_size=16, seq_len=8192
    )
    assert not found.fits
    assert found.verdict.startswith("the plan does not fit: its fullest rank lacks ")


def test_a_command_of_the_provenance_makes_the_rows_again(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    vary = {"tp": [1, 2], "system.accelerator.launch": [0, 2000], "layers_per_stage": [[20, 12], [16, 16]]}
    words: dict[str, Any] = {"pp": 2, "ranks": 4, "global_batch_size": 4, "seq_len": 1024}
    found = db.sweep(model="llama3-8b", vary=vary, system="h200", **words)
    (command,) = found.provenance.commands
    parts = shlex.split(command)
    assert parts[:4] == ["stagedb", "sweep", "--model", "llama3-8b"]
    given = [parts[at + 1] for at, part in enumerate(parts) if part == "--vary"]
    assert given == ["tp=1,2", "system.accelerator.launch=0,2000", "layers_per_stage=20,12;16,16"]
    assert "--system h200" in command and "--ranks 4" in command and "--seq-len 1024" in command
    assert db.sweep(model="llama3-8b", vary=given, system="h200", **words).rows == found.rows
    inputs = {each["kind"]: each for each in found.provenance.inputs}
    assert inputs["card"] == {"kind": "card", "digest": load_card("llama3-8b").digest[:32], "name": "llama3-8b"}
    h200 = load_system("h200")
    assert inputs["system"]["digest"] == Input.of("system", h200.to_dict()).id
    assert set(found.provenance.versions) == {"stagedb", "python", "numpy"}
    assert found.provenance.seeds == {}
    gains = db.sensitivity(model="llama3-8b", tp=2, seq_len=1024)
    assert gains.provenance.commands == ("stagedb sweep --model llama3-8b --tp 2 --seq-len 1024 --sensitivity",)
    assert gains.provenance.plan["tp"] == 2


def test_what_no_command_can_name_has_none(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)
    assert db.sweep(model=CARD, vary={"tp": [1]}, **WORDS).provenance.commands == ()
    mine = with_numbers(H100, {"accelerator.launch": Fraction(1)})
    assert db.sweep(model="llama3-8b", vary={"tp": [1]}, system=mine, seq_len=64).provenance.commands == ()
