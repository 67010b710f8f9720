"""Experts that the tokens of a step choose at random: how many have one, and the time that the others save."""

from dataclasses import replace

import numpy as np
import pytest

from stagedb.systems import Costs, Work, load_system
from stagedb.systems.tables.grids import chosen_experts, chosen_share


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts"), [(1, 8, 256), (16, 8, 256), (64, 8, 256), (256, 8, 256), (32, 8, 128), (40, 4, 60)]
)
def test_as_many_experts_have_a_token_as_in_a_drawing(tokens: int, chosen: int, experts: int) -> None:
    draw = np.random.default_rng(5)
    counts = [
        len(set(np.concatenate([draw.choice(experts, chosen, replace=False) for _ in range(tokens)]).tolist()))
        for _ in range(200)
    ]
    found = chosen_experts(np.array([float(experts)]), np.array([tokens * chosen / experts]))[0]
    assert found == pytest.approx(np.mean(counts), rel=0.03)
    assert found == pytest.approx(experts * chosen_share(tokens * chosen / experts))


def experts_of(choices: int, experts: int = 256, n: int = 4096, k: int = 7168) -> Work:
    """The first matmul of experts of DeepSeek-V3 in fp8, with the bytes of all weights."""
    each = -(-choices // experts)
    moved = experts * n * k + choices * (k + 2 * n)
    return Work("matmul", "fp8_e4m3", 2 * choices * n * k, moved, (experts, each, n, k), grouped=True)


@pytest.mark.parametrize("system", ["h200", "h800", "mi300x"])
def test_weights_of_experts_without_a_token_are_not_read(system: str) -> None:
    """With a table of experts, and with the roofline alone: times are those of reading the experts with a token."""
    engine, even = (Costs(load_system(system), 8, engine=each) for each in (True, False))
    whole = engine.work(experts_of(256 * 16)).ns
    for choices in (64, 128, 256, 512, 1024):
        share = 1 - np.exp(-choices / 256)
        assert engine.work(experts_of(choices)).ns == pytest.approx(share * whole, rel=0.12), choices
    assert engine.work(experts_of(256)).ns < 0.75 * even.work(experts_of(256)).ns


def test_many_tokens_and_training_are_as_they_were() -> None:
    engine, even = (Costs(load_system("h200"), 8, engine=each) for each in (True, False))
    for choices in (256 * 32, 256 * 1024):
        assert engine.work(experts_of(choices)) == even.work(experts_of(choices))
    weights = replace(experts_of(256), weights=True)
    assert engine.work(weights) == even.work(weights)
    dense = replace(experts_of(256), grouped=False)
    assert engine.work(dense) == even.work(dense)


def test_more_tokens_never_take_less_time() -> None:
    engine = Costs(load_system("h200"), 8, engine=True)
    times = [engine.work(experts_of(8 * tokens)).ns for tokens in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)]
    assert times == sorted(times)


@pytest.mark.parametrize("stored", ["int4_symmetric", "mxfp4"])
def test_weights_in_4_bits_are_not_read_either(stored: str) -> None:
    """With tables of such experts, and with those in 16 bits, whose time is scaled by bytes."""
    system = load_system("h200")
    plain = replace(system, tables=tuple(each for each in system.tables if each.dtype in ("bf16", "fp8")))

    def work(choices: int) -> Work:
        each = replace(experts_of(choices), dtype="bf16", stored=stored)
        wide = 2 * 256 * 4096 * 7168
        return replace(each, bytes=wide * 17 // 64 + 2 * choices * (7168 + 4096), spared=wide * 47 // 64)

    for each in (system, plain):
        engine = Costs(each, 8, engine=True)
        few, many = (engine.work(work(choices)).ns for choices in (128, 1024))
        assert few / many == pytest.approx(-np.expm1(-0.5) / -np.expm1(-4), rel=0.25)


def test_one_token_reads_about_its_own_experts() -> None:
    engine = Costs(load_system("h200"), 8, engine=True)
    one = engine.work(experts_of(8)).ns
    assert one == pytest.approx(8 * 4096 * 7168 / 4800, rel=0.6)  # at the peak; some us are the start of a kernel
