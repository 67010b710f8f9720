"""AdamW of 8 bits of torchao on parts of weights (FSDP2), compared with the states that it made.

`sharded_states.json` is what `scripts/recording/under_torch/sharded_states.py` recorded of `torchao.optim.AdamW8bit`
and `fully_shard`, rank by rank: a rank whose part has fewer than 4,096 numbers, or does not fill its blocks of 256,
keeps moments in the format of the weight.
"""

import dataclasses
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from stagedb.errors import UsageError
from stagedb.lowering import Program
from stagedb.memory import Category, memory_of
from stagedb.memory.class_program import SharePlace
from stagedb.systems import load_system
from stagedb.timing import profile_job
from tests import lowered
from tests.ir.tiny import card

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "sharded_states.json").read_text())
WORLDS = [2, 3, 5, 8]


def made(style: str, /, **words: Any) -> Program:
    sizes: dict[str, Any] = {"hidden": 128, "head_dim": 32, "ffn": 99, "expert_ffn": 24 if style == "moe" else 0}
    model = dataclasses.replace(card(style, layers=1), **sizes)
    return lowered.program(model, **{"optimizer": "adamw-8bit-ao", "recipe": "torch", "seq_len": 8, **words})


def moments(program: Program, rank: int) -> dict[str, list[int]]:
    """Bytes of the moments of each weight on a rank of dp."""
    found = defaultdict[str, list[int]](list)
    (of_class,) = memory_of(program, SharePlace(rank, rank))
    for state in of_class.usage.held.states:
        weight, _, word = state.name.rpartition(".")
        if state.category is Category.OPTIMIZER and word.startswith("exp_avg"):
            found[weight.removesuffix(".weight")].append(state.bytes)
    return found


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("world", WORLDS)
def test_each_rank_has_the_moments_that_torchao_makes_of_its_part(world: int, zero: int) -> None:
    program = made("llama", dp=world, zero=zero)
    for rank, row in enumerate(RECORDED["llama"][str(world)]):
        assert moments(program, rank) == row


@pytest.mark.parametrize("world", WORLDS)
def test_parts_of_experts_are_whole_matrices(world: int) -> None:
    program = made("moe", dp=world, zero=3)
    for rank, row in enumerate(RECORDED["experts"][str(world)]):
        found = moments(program, rank)
        assert {name: found.get(name, [0, 0]) for name in row} == row


@pytest.mark.parametrize("world", WORLDS)
def test_a_step_reads_and_writes_the_states_of_the_first_rank(world: int) -> None:
    """It reads a weight, its gradient and both moments, and writes the weight and both moments."""
    ops = made("llama", dp=world, zero=3).workload.class_of(0).ops
    own = sum(sum(each) for each in RECORDED["llama"][str(world)][0].values())
    rows = {128: 4, 64: 2, 99: 2, 512: 2}  # rows of matrices of 128 columns
    numbers = sum(-(-size // world) * (128 * count) for size, count in rows.items() if size != 128)
    numbers += -(-128 // world) * (2 * 128 + 99 + 3)
    found = sum(size for size, phase in zip(ops.bytes.tolist(), ops.phase, strict=True) if phase == "optimizer")
    assert found == 2 * own + 3 * 2 * numbers


def test_zero_1_shares_whole_weights_in_a_way_that_is_refused() -> None:
    with pytest.raises(UsageError, match="needs --zero 0, or --zero 2 or 3"):
        made("llama", dp=2, zero=1)


@pytest.mark.parametrize(
    "words", [{"tp": 2}, {"pp": 2, "dp": 2}, {"hsdp": 2, "dp": 4}, {"cp": 2, "cp_kind": "allgather-kv"}]
)
def test_parts_go_with_other_degrees(words: dict[str, Any]) -> None:
    model = dataclasses.replace(card("llama", layers=2), hidden=128, head_dim=32)
    common: dict[str, Any] = {"recipe": "torch", "zero": 3, "seq_len": 8, "dp": 2, **words}
    small, usual = (lowered.program(model, **common, optimizer=each) for each in ("adamw-8bit-ao", "adamw"))
    for own, wide in zip(memory_of(small), memory_of(usual), strict=True):
        assert 0 < own.usage.before()[Category.OPTIMIZER] <= wide.usage.before()[Category.OPTIMIZER] + 2 * 1024 * 40
    assert profile_job(small.workload, load_system("h100")).merit.step > 0
