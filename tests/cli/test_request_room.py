"""How many requests fit: `memory` with an engine's share, against the blocks that vLLM allocated in measured runs."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run

STEP = ("--no-keep", "--show", "peaks", "-f", "csv")


def blocks(out: str, tokens: int) -> int:
    """The blocks of the line about requests of so many tokens."""
    found = re.search(rf"of {tokens:,} tokens: ([\d,]+) blocks of 16", out)
    assert found is not None, out
    return int(found[1].replace(",", ""))


# The model, the accelerator's bytes, its flags, and the blocks of 16 tokens that vLLM 0.19 had: on an RTX 4090, and in
# the logs of an H100 (476,016 and 1,096,000 tokens).
MEASURED = [
    ("llama3.1-8b", "25250627584B", "--max-num-batched-tokens 2048 --max-num-seqs 256", 2048, 2588),
    (
        "llama3.1-8b",
        "79.19GiB",
        "--max-num-batched-tokens 8192 --max-num-seqs 1024 --gpu-memory-utilization 0.95",
        8192,
        29751,
    ),
    (
        "qwen2.5-7b",
        "79.19GiB",
        "--max-num-batched-tokens 8192 --max-num-seqs 1024 --gpu-memory-utilization 0.95",
        8192,
        68500,
    ),
]


@pytest.mark.parametrize(("model", "capacity", "flags", "tokens", "measured"), MEASURED)
def test_blocks_are_within_5_percent_of_those_that_vllm_had(
    run: Run, tmp_path: Path, model: str, capacity: str, flags: str, tokens: int, measured: int
) -> None:
    (tmp_path / "args.txt").write_text(flags)
    words = ("--model", model, "--plan", "vllm:args.txt", "--workflow", "prefill", "--capacity", capacity)
    found = run("memory", *words, *STEP)
    assert found.status == 0, found.err
    assert blocks(found.out, tokens) == pytest.approx(measured, rel=0.05)


def test_with_what_was_measured_the_blocks_are_exact(run: Run) -> None:
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--capacity", "25250627584B")
    found = run("memory", *words, "--memory-share", "0.9", "--held", "1237612954B", *STEP)
    assert blocks(found.out, 1000) == 2588
    assert "fits 41 requests of 1,000 tokens: 2,588 blocks of 16; the next needs 0.12 GB more" in found.out
    assert "caches have 5.43 GB: 0.9 of 25.25 GB, without weights 16.06 GB, held 1.24 GB" in found.out


def test_more_requests_than_fit_are_refused_with_a_way_out(run: Run) -> None:
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--capacity", "25250627584B")
    share = ("--memory-share", "0.9", "--held", "1237612954B")
    fits = run("memory", *words, *share, "--micro-batch-size", "41", *STEP)
    assert fits.status == 0
    found = run("memory", *words, *share, "--micro-batch-size", "42", *STEP)
    assert found.status == 1
    assert "42 requests on a rank at once, of 1,000 tokens: take --micro-batch-size 41, or more --tp" in found.out


def test_no_room_for_a_single_request(run: Run) -> None:
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--capacity", "16GB")
    found = run("memory", *words, "--memory-share", "0.9", *STEP)
    assert found.status == 1
    assert "does not fit: no request of 1,000 tokens has room: 0 blocks of 16; one needs " in found.out
    assert "take more --tp, --cp or --pp, or fewer tokens" in found.out


def test_ranks_that_share_caches_have_a_block_each_of_the_same_tokens(run: Run) -> None:
    """A block of a request is a block of 16 tokens on each rank of cp: as many blocks, each of more tokens."""
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--capacity", "25250627584B")
    share = ("--memory-share", "0.9", "--held", "1237612954B", *STEP)
    found = run("memory", *words, *share, "--cp", "3")
    # A request of 1,000 tokens has 21 blocks of 48, and 2,588 // 21 are 123.
    assert "fits 123 requests of 1,000 tokens: 2,588 blocks of 48; the next needs 0.03 GB more" in found.out
    other = ("--model", "gpt-oss-20b", "--workflow", "decode", "--cache-len", "99", "--micro-batch-size", "3")
    room = ("--request-len", "96_000", "--capacity", "100GB", "--memory-share", "0.9", "--held", "0B", *STEP)
    fits = [re.search(r"fits (\d+) requests", run("memory", *other, *room, "--cp", cp).out) for cp in ("1", "3")]
    alone, shared = (int(each[1]) for each in fits if each is not None)
    assert shared // 3 == alone > 0, "windows are shared as well as whole caches, and experts deal requests"


def test_tensor_parallelism_makes_blocks_smaller_and_pipelines_count_the_stage_with_the_least_room(run: Run) -> None:
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--capacity", "80GB")
    share = ("--memory-share", "0.9", "--held", "0B", *STEP)
    one = run("memory", *words, *share)
    assert blocks(one.out, 1000) == (72 * 10**9 - 16_060_522_496) // (16 * 131_072)
    two = run("memory", *words, "--tp", "2", *share)
    # Norms are whole on each rank: 65 of 4,096 entries in bf16.
    weights = (16_060_522_496 + 65 * 4096 * 2) // 2
    assert blocks(two.out, 1000) == (72 * 10**9 - weights) // (16 * 65_536)
    staged = run("memory", *words, "--pp", "2", *share)
    # The last stage has the head and a norm next to its 16 layers; the first one the embedding, as large as the head.
    table, layers = 128_256 * 4096 * 2, 16 * 131_072 // 2
    last = table + (16_060_522_496 - 2 * table - 4096 * 2) // 2 + 4096 * 2
    assert blocks(staged.out, 1000) == (72 * 10**9 - last) // layers


def test_windows_have_no_blocks_of_one_size(run: Run) -> None:
    words = ("--model", "gemma-3-12b-text", "--workflow", "decode", "--cache-len", "4095", "--capacity", "80GB")
    found = run("memory", *words, "--memory-share", "0.9", *STEP)
    assert re.search(r"fits \d+ requests of 4,096 tokens; the next needs ", found.out)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--memory-share", "0.9"), "name it with --system or --capacity"),
        (("--memory-share", "90", "--capacity", "80GB"), "--memory-share takes a number above 0 and up to 1"),
        (("--held", "1.2", "--capacity", "80GB"), "is not a size: --held takes a number"),
        (("--workflow", "training", "--memory-share", "0.9", "--capacity", "80GB"), "training has no cache"),
    ],
)
def test_what_is_refused(run: Run, arguments: tuple[str, ...], expected: str) -> None:
    workflow = () if "--workflow" in arguments else ("--workflow", "decode", "--cache-len", "999")
    found = run("memory", "--model", "llama3.1-8b", *workflow, *arguments, *STEP)
    assert found.status == 2
    assert expected in found.err


def test_engines_take_their_share_of_different_memory(run: Run, tmp_path: Path) -> None:
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--system", "h100")
    (tmp_path / "s.txt").write_text("--mem-fraction-static 0.8 --page-size 16")
    (tmp_path / "t.yaml").write_text("kv_cache_config: {free_gpu_memory_fraction: 0.8, tokens_per_block: 16}\n")
    reserve = 1_649_410_048 + 33_554_432 + 411_041_792
    total = 84_922_000_000
    sglang = run("memory", *words, "--plan", "sglang:s.txt", *STEP)
    assert blocks(sglang.out, 1000) == int((total - reserve) * 0.8 - 16_060_522_496) // (16 * 131_072)
    free = total - reserve - 16_060_522_496
    trtllm = run("memory", *words, "--plan", "trtllm:t.yaml", *STEP)
    assert blocks(trtllm.out, 1000) == pytest.approx(free * 0.8 / (16 * 131_072), rel=1e-3)
    assert blocks(trtllm.out, 1000) < free * 0.8 / (16 * 131_072)  # less what the step's activations take
    # SGLang chooses its share by itself, so that nothing is counted unless it is given.
    (tmp_path / "s.txt").write_text("--page-size 16")
    assert "requests" not in run("memory", *words, "--plan", "sglang:s.txt", *STEP).out
    refused = run("memory", *words, "--plan", "sglang:s.txt", "--request-len", "1000", *STEP)
    assert "SGLang chooses its share of memory by itself: give it with --memory-share" in refused.err


def test_limits_of_a_file(run: Run, tmp_path: Path) -> None:
    words = ("--model", "llama3.1-8b", "--workflow", "decode", "--cache-len", "999", "--capacity", "80GB")
    (tmp_path / "args.txt").write_text("--num-gpu-blocks-override 100")
    assert blocks(run("memory", *words, "--plan", "vllm:args.txt", *STEP).out, 1000) == 100
    (tmp_path / "args.txt").write_text("--kv-cache-memory-bytes 1G --max-model-len 2048")
    found = run("memory", *words, "--plan", "vllm:args.txt", *STEP)
    assert blocks(found.out, 1000) == blocks(found.out, 2048) == 512
    (tmp_path / "s.txt").write_text("--mem-fraction-static 0.8 --page-size 16 --max-total-tokens 4000")
    assert blocks(run("memory", *words, "--plan", "sglang:s.txt", *STEP).out, 1000) == 250


def test_batches_of_several_lengths_and_two_that_overlap(run: Run) -> None:
    found = run(
        *("memory", "--model", "llama3.1-8b", "--workflow", "mixed", "--requests", "2x512+0,64x1+4096", "--no-keep"),
        *("--system", "h100", "--memory-share", "0.9", "--request-len", "4097", "--show", "phases"),
    )
    assert found.status == 0, found.err
    assert "requests of 4,097 tokens" in found.out
    words = (
        "--dp",
        "4",
        "--ep",
        "4",
        "--micro-batch-size",
        "4000",
        "--global-batch-size",
        "32000",
        "--overlap-experts",
    )
    both = run(
        *("memory", "--model", "mixtral-8x7b", "--workflow", "decode", "--cache-len", "999", *words, "--no-keep"),
        *("--capacity", "80GB", "--memory-share", "0.9", "--show", "phases"),
    )
    fits = int(both.out.partition("fits ")[2].split()[0].replace(",", "")) if "fits " in both.out else 0
    assert f"8,000 requests on a rank at once, of 1,000 tokens: take --micro-batch-size {fits // 2}" in both.out


@pytest.mark.parametrize(("name", "even"), [("llama3.1-8b", True), ("gpt-oss-20b", False)])
def test_memory_counts_the_requests_that_fit_behind_a_prefix(run: Run, name: str, even: bool) -> None:
    def fits(requests: str, *more: str) -> tuple[int, str]:
        words = ("--model", name, "--workflow", "decode", "--requests", requests, "--capacity", "80GB")
        out = run("memory", *words, "--memory-share", "0.9", "--held", "0B", "--no-keep", "--show", "peaks", *more).out
        line = next(each for each in out.splitlines() if each.startswith("fits ") and "requests of" in each)
        return int(line.split()[1].replace(",", "")), line

    apart, line = fits("1x1+3999")
    shared, other = fits("1x1+3999/3000")
    assert "share" not in line
    assert f"{shared:,} requests of 4,000 tokens that share 2,992" in other  # 187 whole blocks of 16
    block = fits("1x1+3999/3000", "--block-size", "1")[1]
    assert "that share 3,000" in block
    if even:
        blocks = int(other.split(": ")[1].split()[0].replace(",", ""))
        assert apart == blocks // 250
        assert shared == (blocks - 187) // (250 - 187)
    else:
        # Half of the layers keep 128 tokens of each request, all of them behind the prefix.
        token, room = 2 * 8 * 64 * 2 * 12, 0.9 * 80e9 - 41_829_514_368
        assert apart == room // (token * (4000 + 128))
        assert shared == (room - token * 2992) // (token * (4000 - 2992 + 128))
