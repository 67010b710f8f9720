"""Blocks of caches, and requests that fit: counted by hand, and against what running engines printed."""

from fractions import Fraction

import pytest

from stagedb.memory.request_blocks import MemoryShare, RequestFit, ShareOf, sampling_bytes, tightest

GIB = 1 << 30

# vLLM 0.19 on an RTX 4090, Llama-3.1-8B in bf16, gpu-memory-utilization 0.9: 2,588 blocks of 16 tokens.
CARD = 25_250_627_584
WEIGHTS = 16_060_522_496
TOKEN = 131_072
HELD = 1_237_612_954


def share(**words: int) -> MemoryShare:
    return MemoryShare(CARD, Fraction(9, 10), "total", WEIGHTS, words)


def fit(cache: int, tokens: int = 1000, block: int = 16) -> RequestFit:
    each = -(-tokens // block)
    return RequestFit(cache, block, block * TOKEN, tokens, each * block * TOKEN)


def test_the_blocks_of_vllm_on_a_card_of_24_gb() -> None:
    found = share(measured=HELD)
    assert found.taken == 22_725_564_826  # 0.9 of the card, rounded up
    assert found.cache == 5_427_429_376
    assert fit(found.cache).blocks == 2588
    assert fit(share(measured=HELD + 1).cache).blocks == 2587


def test_requests_take_whole_blocks() -> None:
    found = fit(share(measured=HELD).cache)
    assert found.each == 63  # 1,000 tokens are 62.5 blocks
    assert found.requests == 41  # 2,588 / 63
    assert found.missing == (42 * 63 - 2588) * 16 * TOKEN
    assert fit(found.cache + found.missing).requests == 42
    assert fit(found.cache + found.missing - 1).requests == 41


def test_no_room_is_no_request() -> None:
    found = fit(-1)
    assert (found.blocks, found.requests) == (0, 0)
    assert found.missing == 63 * 16 * TOKEN + 1


def test_a_limit_of_blocks() -> None:
    found = RequestFit(10**9, 16, 16 * TOKEN, 32, 32 * TOKEN, limit=5)
    assert (found.blocks, found.requests, found.missing) == (5, 2, 16 * TOKEN)
    assert RequestFit(4 * 16 * TOKEN, 16, 16 * TOKEN, 32, 32 * TOKEN, limit=5).blocks == 4


def test_layers_with_windows_count_by_bytes() -> None:
    """A request of 64 tokens, of which half of the layers keep 16, has 4 and 1 blocks in the two halves."""
    found = RequestFit(100, 16, 16, 64, 4 * 8 + 8, even=False)
    assert (found.requests, found.missing) == (2, 20)


@pytest.mark.parametrize(
    ("of", "taken", "cache"),
    [
        ("total", 90, 90 - 40 - 10),  # weights and the rest are in the share
        ("weights", 81, 81 - 40),  # the reserve of 10 is gone before
        ("free", 36, 36),  # of 100 - 10 - 40 - 10
    ],
)
def test_what_a_share_is_of(of: ShareOf, taken: int, cache: int) -> None:
    found = MemoryShare(100, Fraction(9, 10), of, 40, {"activations": 10}, {"context": 10})
    assert (found.taken, found.cache) == (taken, cache)
    given = MemoryShare(100, Fraction(9, 10), of, 40, {"activations": 10}, {"context": 10}, given=7)
    assert given.cache == 7
    assert MemoryShare(100, Fraction(9, 10), of, 40, {"activations": 10}, {"context": 10}, most=7).cache == 7


def test_a_share_of_one_is_the_whole() -> None:
    assert MemoryShare(CARD, Fraction(1), "total", 0).cache == CARD


# "torch peak memory increase" of vLLM 0.19.0 on an H100, 1,024 requests and 8,192 tokens a step (its defaults there):
# Llama-3.1-8B 1.89 GiB, Qwen2.5-7B 2.21 GiB, with tp 1, 2 and 4 alike.
@pytest.mark.parametrize(("vocabulary", "measured"), [(128_256, 1.89), (152_064, 2.21)])
def test_what_sampling_holds_is_nearly_all_of_the_peak_that_vllm_measures(vocabulary: int, measured: float) -> None:
    found = sampling_bytes(1024, vocabulary, 14) / GIB
    assert 0.9 * measured < found < measured


def test_the_stage_with_the_least_room_decides() -> None:
    assert tightest({0: fit(10**10), 1: fit(10**9), 2: fit(2 * 10**9)}) == 1
