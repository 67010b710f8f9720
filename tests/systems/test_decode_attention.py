"""Attentions of engines over a cache: the rule by hand, kernels that others measured, and that nothing else changes."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from stagedb.errors import UsageError
from stagedb.systems import Costs, System, Timed, Work, load_system
from stagedb.systems.system import DecodeAttention
from stagedb.systems.system_files import parse_system, system_names
from stagedb.systems.system_numbers import system_numbers, with_numbers
from stagedb.timing import step_of
from tests import lowered

KERNELS = DecodeAttention(Fraction(10_000), Fraction(1, 2), Fraction(1, 4))


def system_with(kernels: DecodeAttention | None, name: str = "h100") -> System:
    base = load_system(name)
    return replace(base, accelerator=replace(base.accelerator, decode_attention=kernels))


def attention(batch: int, heads: int, kv_heads: int, keys: int, head: int = 128, queries: int = 1) -> Work:
    """With keys and values of each head of keys in bf16."""
    moved = 2 * batch * (2 * kv_heads * keys * head + 2 * heads * queries * head)
    flops = 4 * batch * heads * queries * keys * head
    return Work("attention", "bf16", flops, moved, (batch, heads, kv_heads, queries, keys, head))


def latent(batch: int, heads: int, keys: int) -> Work:
    """Over 576 numbers of each token, the first 512 of which are its values."""
    moved, flops = 2 * batch * (576 * keys + heads * 1088), 2 * batch * heads * keys * 1088
    return Work("attention", "bf16", flops, moved, (batch, heads, 1, 1, keys, 576, 512))


def test_a_kernel_reads_its_keys_or_computes_whichever_takes_longer() -> None:
    costs = Costs(system_with(KERNELS), 8, engine=True)
    reads, computes = attention(64, 32, 8, 4096), latent(64, 128, 4096)
    assert costs.work(reads) == Timed(round(10_000 + 2 * reads.bytes / 3350), "roofline:memory")
    assert costs.work(computes) == Timed(round(10_000 + 4 * computes.flops / 989.4e3), "roofline:compute")


def test_what_is_no_attention_over_a_cache_of_an_engine_stays_as_it_is() -> None:
    with_it, without = (Costs(system_with(each), 8, engine=True) for each in (KERNELS, None))
    for work in (
        attention(4, 32, 8, 4096, queries=4096),  # a prompt
        attention(4, 32, 8, 4096, queries=128),  # a block of it
        replace(attention(64, 32, 8, 4096), kind="matmul", dims=(64, 4096, 4096)),
        replace(attention(64, 32, 8, 4096), dims=()),  # its sizes are not known
    ):
        assert with_it.work(work) == without.work(work)
    drafts = attention(64, 32, 8, 4096, queries=4)
    assert with_it.work(drafts) != without.work(drafts)
    training = Costs(system_with(KERNELS), 8)
    assert training.work(drafts) == Costs(system_with(None), 8).work(drafts)


@pytest.mark.parametrize("name", ["h100", "h200", "a100-80gb"])
def test_more_queries_over_a_cache_take_no_less_time_to_speak_of(name: str) -> None:
    costs = Costs(load_system(name), 8, engine=True)
    for cache in (1024, 7000, 30_000):
        took = []
        for queries in (64, 127, 128, 129, 192, 256, 512, 1024, 4096):
            took.append(costs.work(attention(1, 32, 8, cache + queries, queries=queries)).ns)
        # From 128 queries the time is that of another kernel, which begins up to a tenth below or a quarter above.
        assert all(0.9 * fewer < more for fewer, more in pairwise(took))
        assert took[2] < 1.25 * took[1]


@pytest.mark.parametrize(
    ("name", "work", "us"),
    [
        # aiconfigurator-core 0.12.0, generation_attention_perf of vLLM 0.24.0, SGLang 0.5.14 and TensorRT-LLM 1.3.0rc20
        ("h100", attention(64, 32, 8, 4096), (353.6, 356.4, 365.3)),
        ("h100", attention(64, 8, 1, 8192), (101.4, 99.9, 108.8)),
        ("h100", attention(8, 32, 8, 16384), (210.3, 184.1, 192.8)),
        ("h200", attention(64, 32, 8, 4096), (270.9, 251.8, 262.6)),
        ("h200", attention(64, 8, 1, 8192), (77.0, 74.3, 89.9)),
        ("h200", attention(1, 64, 8, 16384), (33.3, 28.5, 33.9)),
        # ... and generation_mla_perf of the last two
        ("h100", latent(64, 128, 4096), (140.1, 139.4)),
        ("h100", latent(128, 16, 8192), (413.8, 408.7)),
        ("h200", latent(128, 128, 2048), (147.0, 147.8)),
        # InferSim (alibaba/InferSim f2293da), bench_data/{mha,mla}/decode, of whose H800 nothing is fitted
        ("h800", attention(64, 32, 8, 4096), (351.6,)),
        ("h800", attention(64, 32, 4, 4096), (179.9,)),
        ("h800", attention(128, 16, 2, 8192), (348.3,)),
        ("h800", latent(64, 128, 4096), (155.2,)),
        ("h800", latent(128, 128, 8192), (550.4,)),
        ("h20", attention(64, 32, 8, 4096), (363.8,)),
        ("h20", attention(64, 32, 4, 4096), (190.1,)),
        ("h20", latent(64, 128, 4096), (689.6,)),
    ],
)
def test_presets_have_what_was_measured(name: str, work: Work, us: tuple[float, ...]) -> None:
    found = Costs(load_system(name), 8, engine=True).work(work).ns / 1000
    assert 0.85 * min(us) < found < 1.15 * max(us)


def test_presets_with_measured_attentions_have_it() -> None:
    apart = {"h20": True, "a100-40gb": False, "a100-80gb": False, "a100-80gb-400g": False}
    for name in system_names():
        system = load_system(name)
        measured = any(each.operator == "attention" for each in system.tables)
        assert (system.accelerator.decode_attention is not None) == apart.get(name, measured), name


def test_a_step_of_decode_has_it_and_a_prefill_has_not() -> None:
    decode = lowered.program("gpt2", workflow="decode", cache_len=1000, micro_batch_size=4).workload
    prefill = lowered.program("gpt2", workflow="prefill", seq_len=1000, micro_batch_size=4).workload
    slow = replace(KERNELS, start=Fraction(1_000_000))
    steps = [[step_of(each, system_with(kernels)) for kernels in (KERNELS, slow)] for each in (decode, prefill)]
    assert steps[0][1] - steps[0][0] == 12 * 990_000
    assert steps[1][0] == steps[1][1]


def test_its_numbers_are_those_of_a_file() -> None:
    system = system_with(KERNELS)
    assert parse_system(json.dumps(system.to_dict())) == system
    numbers = {path: each for path, each in system_numbers(system).items() if "decode_attention" in path}
    assert {path.rpartition(".")[2]: (each.value, each.unit) for path, each in numbers.items()} == {
        "start": (Fraction(10_000), "ns"),
        "read_share": (Fraction(1, 2), "share"),
        "compute_share": (Fraction(1, 4), "share"),
    }
    other = with_numbers(system, {"accelerator.decode_attention.start": Fraction(7)})
    assert other.accelerator.decode_attention == replace(KERNELS, start=Fraction(7))
    assert "decode_attention" not in system_with(None).to_dict()["accelerator"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read_share": 0}, "a share above 0 and at most 1"),
        ({"compute_share": 1.5}, "a share above 0 and at most 1"),
        ({"start": -1}, "a number of ns, 0 or more"),
        ({"shares": 1}, "unknown key accelerator.decode_attention.shares"),
    ],
)
def test_other_numbers_are_refused(change: dict[str, float], message: str) -> None:
    content = system_with(KERNELS).to_dict()
    content["accelerator"]["decode_attention"] |= change
    with pytest.raises(UsageError, match=message):
        parse_system(json.dumps(content))
