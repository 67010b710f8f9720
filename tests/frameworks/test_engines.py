"""Arguments of serving engines as plans: every class of flag, how ranks share a model, and files that are refused."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.frameworks.engines import ENGINES, check_experts, engine_file, find_engine, read_settings, remarks
from stagedb.frameworks.engines.flags import LARGEST, NUMBERS, SWITCHES, words_of
from stagedb.frameworks.engines.serving_steps import DRAFTS, FORMATS
from stagedb.mentions import OPTIONS, shown_in
from stagedb.plans import read_plan_file
from stagedb.plans.aspects import PLAN_WORDS
from tests import lowered

DECODE = {"workflow": "decode", "cache_len": 1023}
PREFILL = {"workflow": "prefill"}
SPECULATIVE = {"workflow": "speculative", "cache_len": 1023}

SERVE = r"""
# A server of eight accelerators.
vllm serve meta-llama/Llama-3.1-70B-Instruct \
    --tensor-parallel-size 8 \
    --max-num-seqs=64 --max_num_batched_tokens 8192   # tokens of a step
    # --enable-lora
    --host 0.0.0.0 --port 8000 --served-model-name "llama 70" 'b' \
    --no-enable-prefix-caching -O3
"""


def words(
    tmp_path: Path, text: str, given: dict[str, Any], name: str = "vllm", file: str = "args.txt"
) -> dict[str, Any]:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    return read_plan_file(Path(f"{name}:{path}"), given)


def refused(
    tmp_path: Path, text: str, given: dict[str, Any] = DECODE, name: str = "vllm", file: str = "args.txt"
) -> str:
    with pytest.raises(UsageError) as caught:
        words(tmp_path, text, given, name, file)
    assert str(tmp_path / file) in str(caught.value)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_command_line_of_several_lines_is_a_plan(tmp_path: Path) -> None:
    assert words(tmp_path, SERVE, DECODE) == {"tp": 8, "pp": 1, "dp": 1, "micro_batch_size": 64}
    found = read_settings("vllm", tmp_path / "args.txt")
    assert found.model == "meta-llama/Llama-3.1-70B-Instruct"
    assert found.without_effect == ("--host", "--port", "--served-model-name", "--no-enable-prefix-caching", "-O")
    noted = [shown_in(OPTIONS, each) for each in remarks(found)]
    assert noted[0].startswith("args.txt: without effect on a step: --host, --port, ")
    assert "'meta-llama/Llama-3.1-70B-Instruct', is not read: --model names the one of the step" in noted[1]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve M --tensor-parallel-size 4",
        "--tensor-parallel-size=4",
        "-tp 4",
        "-tp=4 --model M",
        "--tensor_parallel_size 4",
        "python -m vllm.entrypoints.openai.api_server --model M --tensor-parallel-size 2 --tensor-parallel-size 4",
        "VLLM_LOGGING_LEVEL=DEBUG vllm serve --tensor-parallel-size '4' M",
        "--tensor-\\\nparallel-size 4\r\n",
    ],
)
def test_forms_of_a_command_line(tmp_path: Path, text: str) -> None:
    assert words(tmp_path, text, DECODE) == {"tp": 4, "pp": 1, "dp": 1}


def test_a_file_of_settings_is_the_same_plan(tmp_path: Path) -> None:
    text = "model: M\ntensor-parallel-size: 8\nmax_num_seqs: 64\nenable-prefix-caching: false\nport: 8000\n"
    assert words(tmp_path, text, DECODE, file="vllm.yaml") == {"tp": 8, "pp": 1, "dp": 1, "micro_batch_size": 64}
    assert read_settings("vllm", tmp_path / "vllm.yaml").without_effect == ("enable-prefix-caching", "port")


def test_options_of_the_command_line_win(tmp_path: Path) -> None:
    assert "tp" not in words(tmp_path, SERVE, {**DECODE, "tp": 4})
    assert "micro_batch_size" not in words(tmp_path, SERVE, {**DECODE, "micro_batch_size": 16})


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        # Decode: all requests, or those of a group in flight.
        (
            "-tp 2 -pp 4 --max-num-seqs 64",
            DECODE,
            {"tp": 2, "pp": 4, "dp": 1, "micro_batch_size": 16, "global_batch_size": 64},
        ),
        (
            "-dp 2 -pp 2 --max-num-seqs 64",
            DECODE,
            {"tp": 1, "pp": 2, "dp": 2, "micro_batch_size": 32, "global_batch_size": 128},
        ),
        # Prefill: as many prompts as there is room for, or a chunk.
        ("--max-num-batched-tokens 8192", {**PREFILL, "seq_len": 1000}, {"seq_len": 1000, "micro_batch_size": 8}),
        ("--max-num-batched-tokens 8192 --max-num-seqs 4", {**PREFILL, "seq_len": 1000}, {"micro_batch_size": 4}),
        ("--max-num-batched-tokens 8192", PREFILL, {"seq_len": 8192, "micro_batch_size": 1}),
        ("--max-num-batched-tokens 8192 --max-model-len 4k", PREFILL, {"seq_len": 4000, "micro_batch_size": 2}),
        ("--max-num-batched-tokens 8192 --max-model-len 4K", PREFILL, {"seq_len": 4096, "micro_batch_size": 2}),
        # Experts: whole ones over all ranks of dp.
        ("-dp 8 --enable-expert-parallel", DECODE, {"tp": 1, "dp": 8, "ep": 8}),
        # … or over those of tp, which have the same tokens; then none are sent, whichever way.
        (
            '-dp 8 -ep --enable-eplb --eplb-config \'{"num_redundant_experts": 32, "window_size": 100}\'',
            DECODE,
            {"ep": 8, "redundant_experts": 32},
        ),
        ("-dp 8 -ep --eplb-config '{\"num_redundant_experts\": 0}'", DECODE, {"ep": 8}),
        ("-tp 8 -ep", DECODE, {"tp": 8, "dp": 1, "ep": 8, "expert_tp": False}),
        ("-tp 4 -ep -pp 2 --all2all-backend deepep_low_latency", DECODE, {"tp": 4, "ep": 4, "expert_tp": False}),
        ("-dp 8 -ep --all2all-backend deepep_high_throughput", DECODE, {"dp": 8, "ep": 8, "dispatch": "ranks"}),
        ("-dp 8 -ep --all2all-backend deepep_low_latency", DECODE, {"dp": 8, "ep": 8, "dispatch": "copies"}),
        ("--kv-cache-dtype fp8 -q fp8", DECODE, {"cache_dtype": "fp8_e4m3", "matmul_dtype": "fp8"}),
        ("--quantization awq_marlin", DECODE, {"weight_dtype": "int4"}),
        ("-q awq", PREFILL, {"weight_dtype": "int4"}),
        ("-q gptq", DECODE, {"weight_dtype": "int4"}),
        ("-q gptq_marlin", DECODE, {"weight_dtype": "int4_symmetric"}),
        ("-q mxfp4 -tp 2", DECODE, {"weight_dtype": "mxfp4", "tp": 2}),
        ("-q modelopt_fp4", DECODE, {"weight_dtype": "nvfp4"}),
        (
            "-dp 8 -ep --enable-dbo --max-num-seqs 64",
            DECODE,
            {"overlap_experts": True, "micro_batch_size": 32, "global_batch_size": 512},
        ),
        ("--dtype half", DECODE, {"dtype": "fp16"}),
        ("--dtype auto", DECODE, {}),
    ],
)
def test_what_flags_of_vllm_mean(tmp_path: Path, text: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = words(tmp_path, text, given)
    assert {**found, **given, **expected} == {**found, **given}
    assert ("dtype" in found) == ("dtype" in expected)


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        (
            '--speculative-config \'{"method": "eagle", "num_speculative_tokens": 3}\'',
            DECODE,
            "speculative decoding gives each request several tokens in a step; what works: --workflow speculative",
        ),
        ("--spec-tokens 2", PREFILL, "--spec-tokens 2: speculative decoding gives each request several tokens"),
        ("--speculative-config.method eagle", SPECULATIVE, "chooses how many tokens it drafts by itself"),
        ("--speculative-config 3", SPECULATIVE, "--speculative-config must be a mapping of settings, not '3'"),
        ("--speculative-config {", SPECULATIVE, "--speculative-config"),
        ("-dcp 2", DECODE, "than those of --cp N, which have whole weights and all new tokens; what works: 1"),
        ("--kv-cache-dtype fp8_e5m2", DECODE, "--kv-cache-dtype 'fp8_e5m2' is not obeyed: caches have the format"),
        (
            "--enable-lora",
            DECODE,
            "--enable-lora is not obeyed: adapters (LoRA) are not built; what works: leave it out",
        ),
        ("--enable-dbo --max-num-seqs 33", DECODE, "a step of 33 requests has no two halves"),
        ("--ubatch-size 4", DECODE, "two halves of a batch overlap"),
        (
            "--quantization bitsandbytes",
            DECODE,
            "or in 4 bits as AWQ, GPTQ, MXFP4 and NVFP4 have them; what works: leave",
        ),
        ("--quantization-config '{}'", DECODE, "--weight-dtype int4 and others in 4 bits"),
        ("--cpu-offload-gb 4", DECODE, "what works: 0"),
        ('-cc \'{"pass_config": {"enable_sp": true}}\'', DECODE, "passes of the compiler change collectives"),
        ("-cc.pass_config.enable_sp=true", DECODE, "passes of the compiler change collectives"),
        ("--compilation-config.pass_config.enable_sp true", DECODE, "passes of the compiler change collectives"),
        ("-ep -dp 8 --all2all-backend naive", DECODE, "'naive' is not obeyed: it moves tokens to experts"),
        (
            "-tp 2 -dp 4 -ep",
            DECODE,
            "args.txt: -ep with 2 ranks of tensor parallelism and 4 of data parallelism: vLLM gathers or cuts",
        ),
        ("--tensor-paralel-size 8", DECODE, "has no flag 'tensor-paralel-size': did you mean tensor-parallel-size"),
        ("--xyzzy", DECODE, "vLLM (0.19 to 0.33) has no flag 'xyzzy'; it has "),
        ("-tp 0", DECODE, "-tp must be a whole number of 1 or more, not '0'"),
        ("-tp $TP", DECODE, "-tp must be a whole number of 1 or more, not '$TP'"),
        ("-tp", DECODE, "-tp has no value"),
        ("-tp --port 8", DECODE, "-tp has no value"),
        ("--tensor-parallel-size=", DECODE, "has no value"),
        ("--no-port 8", DECODE, "--no-port is no switch"),
        ("-tp 8 --disable-custom-all-reduce", DECODE, "or give a --system file without custom_all_reduce"),
        ("--enforce-eager=maybe", DECODE, "--enforce-eager is a switch, without a value"),
        ("--enforce-eager True", DECODE, "a switch has no value: leave True out"),
        ("--dtype int8", DECODE, "--dtype is not 'int8': it takes auto, half, float16"),
        ("vllm serve A B", DECODE, "the word 'B' belongs to no flag"),
        ("vllm serve A -tp 2 > log", DECODE, "the word '>' belongs to no flag"),
        (
            "-pp 3 --max-num-seqs 64",
            DECODE,
            "64 requests do not divide among 3 groups in flight in the pipeline: the nearest is 63",
        ),
        (
            "--max-model-len 1024",
            {**DECODE, "cache_len": 1024},
            "a request of 1025 tokens is longer; --cache-len takes at most 1023",
        ),
        (
            "--max-num-batched-tokens 512",
            {**PREFILL, "seq_len": 1024},
            "a chunk of them is --seq-len 512 with --cache-len",
        ),
        ("--gpu-memory-utilization 1.5", DECODE, "must be a share above 0 and up to 1"),
        ("-tp 2", {}, "serves: choose its step with --workflow prefill, mixed, decode or speculative"),
        ("-tp 2", {"workflow": "training"}, "choose its step with --workflow prefill, mixed, decode or speculative"),
        ("-tp '2", DECODE, "line 1: a quote (') without an end"),
        ('\n\n-tp "2\n\n', DECODE, 'line 3: a quote (") without an end'),
        ("-tp 2\\", DECODE, "line 1: a backslash at its end"),
        ("-tp 2\0", DECODE, "has the character NUL"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, given: dict[str, Any], expected: str) -> None:
    assert expected in refused(tmp_path, text, given)


@pytest.mark.parametrize(
    "text",
    [
        "--mm-encoder-attn-dtype none",
        "-dcp 1",
        "--no-enable-lora",
        "--speculative-config null",
        "-cc '{\"mode\": 3}'",
        "--cpu-offload-gb 0",
    ],
)
def test_a_value_that_changes_nothing_is_listed(tmp_path: Path, text: str) -> None:
    words(tmp_path, text, DECODE)
    assert read_settings("vllm", tmp_path / "args.txt").without_effect == (text.split()[0],)


def test_experts_that_ranks_of_dp_share_are_refused_unless_the_model_has_none(tmp_path: Path) -> None:
    words(tmp_path, "-dp 2", DECODE)
    found = read_settings("vllm", tmp_path / "args.txt")
    check_experts(found, {}, experts=False)
    check_experts(found, {"dp": 2}, experts=True)
    with pytest.raises(
        UsageError, match="-dp 2: in a model with experts vLLM partitions each of them over all 2 ranks"
    ):
        check_experts(found, {}, experts=True)
    words(tmp_path, "-dp 2 -ep", DECODE)
    check_experts(read_settings("vllm", tmp_path / "args.txt"), {}, experts=True)


def test_a_default_that_no_plan_has_is_a_remark(tmp_path: Path) -> None:
    words(tmp_path, "-dp 2 -ep", DECODE)
    assert any("allgather_reducescatter" in each for each in remarks(read_settings("vllm", tmp_path / "args.txt")))


def test_huge_and_binary_files_are_refused(tmp_path: Path) -> None:
    assert "it is larger than 256 KiB" in refused(tmp_path, "-" * (LARGEST + 1))
    (tmp_path / "args.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        read_settings("vllm", tmp_path / "args.txt")
    with pytest.raises(UsageError, match="a directory"):
        read_settings("vllm", tmp_path)
    with pytest.raises(UsageError, match="No such file"):
        read_settings("vllm", tmp_path / "none")


@pytest.mark.parametrize(
    "text", ["'" + "\\" * 100_000, '"' + "\\a" * 50_000, "\\\n" * 50_000, "#" * 100_000, "a'b'" * 30_000]
)
def test_long_texts_are_read_in_time(text: str) -> None:
    try:
        words_of(text, "text")
    except UsageError as error:
        assert "text, line 1: " in str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\tc\nd", ["a", "b", "c", "d"]),
        ("a\\ b 'c d' \"e \\\"f\\\"\" ''", ["a b", "c d", 'e "f"', ""]),
        ("a#b #c d\ne", ["a#b", "e"]),
        ("a # b \\\nc", ["a", "c"]),
        ("a'b'\"c\"d", ["abcd"]),
        ("a \\\n  b", ["a", "b"]),
        ("a\\\nb", ["ab"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, expected: list[str]) -> None:
    assert words_of(text, "text") == expected


@pytest.mark.parametrize("name", ENGINES)
def test_a_table_is_whole(name: str) -> None:
    engine = find_engine(name)
    known = {
        *NUMBERS,
        *SWITCHES,
        *FORMATS,
        *DRAFTS,
        "draft_width",
        "model",
        "exchange",
        "exchange_mode",
        "balancing",
        "weights",
        "memory_share",
    }
    assert {flag.sets for flag in engine.flags.values() if flag.sets} <= known
    for flag in engine.flags.values():
        assert flag.refusal is None or (flag.refusal.why and flag.refusal.works), flag.name
        assert flag.name == flag.name.replace("_", "-"), flag.name
    assert set(engine.short.values()) <= engine.flags.keys()
    for flag in engine.flags.values():
        chosen = {value for value in (flag.values or {}).values() if value}
        assert flag.sets not in FORMATS or chosen <= set(PLAN_WORDS[flag.sets].choices), flag.name


LAUNCH = """
python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --enable-dp-attention --dp 8 \\
    --moe-a2a-backend deepep --max-running-requests 512 --chunked-prefill-size 65536 --mem-fraction-static 0.85 \\
    --disable-radix-cache --cuda-graph-bs 1 2 4 8 --trust-remote-code
"""


def test_a_command_line_of_sglang_is_a_plan(tmp_path: Path) -> None:
    """DP attention: all requests are divided among the ranks, and deepep divides the experts among all."""
    found = words(tmp_path, LAUNCH, DECODE, "sglang")
    assert found == {"tp": 1, "pp": 1, "dp": 8, "ep": 8, "dispatch": "copies", "micro_batch_size": 64}
    prompts = words(tmp_path, LAUNCH, {**PREFILL, "seq_len": 2048}, "sglang")
    assert (prompts["micro_batch_size"], prompts["dispatch"]) == (4, "ranks")
    found_settings = read_settings("sglang", tmp_path / "args.txt")
    assert found_settings.without_effect == ("--disable-radix-cache", "--cuda-graph-bs", "--trust-remote-code")
    assert found_settings.model == "deepseek-ai/DeepSeek-V3"


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("--tp-size 8", DECODE, {"tp": 8, "dp": 1}),
        ("--tp-size 4 --dp-size 2", DECODE, {"tp": 4, "dp": 2}),
        ("--tp-size 4 --attn-dp-size 4 --ep-size 4", DECODE, {"tp": 1, "dp": 4, "ep": 4}),
        (
            "--tp 8 --attn-dp-size 8 --ep 8 --enable-eplb --ep-num-redundant-experts 16",
            DECODE,
            {"dp": 8, "ep": 8, "redundant_experts": 16},
        ),
        ("--tp-size 8 --ep-size 8", DECODE, {"tp": 8, "dp": 1, "ep": 8, "expert_tp": False}),
        ("--tp-size 4 --ep-size 4 --dp-size 2", DECODE, {"tp": 4, "dp": 2, "ep": 4, "expert_tp": False}),
        ("--tp-size 4 --attn-dp-size 4 --ep-size 4 --dp-size 2", DECODE, {"tp": 1, "dp": 8, "ep": 4}),
        (
            "--tp-size 4 --pp-size 2 --max-running-requests 64",
            DECODE,
            {"micro_batch_size": 32, "global_batch_size": 64},
        ),
        ("--pp-size 2 --pp-max-micro-batch-size 16", DECODE, {"micro_batch_size": 16, "global_batch_size": 32}),
        ("--chunked-prefill-size -1 --max-prefill-tokens 4096", {**PREFILL, "seq_len": 1024}, {"micro_batch_size": 4}),
        ("--chunked-prefill-size 8192 --prefill-max-requests 2", {**PREFILL, "seq_len": 1024}, {"micro_batch_size": 2}),
        ("--tp 2 --attn-dp-size 2 --ep 2 --moe-a2a-backend deepep --deepep-mode normal", DECODE, {"dispatch": "ranks"}),
        ("--quantization w8a8_fp8", DECODE, {"matmul_dtype": "fp8"}),
        ("--quantization gptq_marlin", DECODE, {"weight_dtype": "int4_symmetric"}),
        ("--quantization modelopt_fp4", DECODE, {"weight_dtype": "nvfp4"}),
    ],
)
def test_what_flags_of_sglang_mean(tmp_path: Path, text: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = words(tmp_path, text, given, "sglang")
    assert {**found, **expected} == found


@pytest.mark.parametrize("word", ["matmul_dtype", "weight_dtype"])
def test_a_format_of_weights_on_the_command_line_wins(tmp_path: Path, word: str) -> None:
    for flags in ("-q fp8", "-q awq"):
        assert not {"matmul_dtype", "weight_dtype"} & words(tmp_path, flags, {**DECODE, word: "same"}).keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--speculative-algorithm EAGLE", "speculative decoding"),
        ("--speculative-num-draft-tokens 4", "speculative decoding"),
        ("--speculative-eagle-topk 4", "one chain of drafted tokens for each request, and not a tree"),
        (
            "--speculative-adaptive",
            "what works: leave it out; --workflow speculative with speculative-num-draft-tokens",
        ),
        ("--enable-single-batch-overlap", "that overlap in a step are not built"),
        ("--quantization w4afp8", "or in 4 bits as AWQ, GPTQ, MXFP4 and NVFP4 have them"),
        ("--torchao-config int4wo-128", "--weight-dtype int4 and others in 4 bits"),
        ("--kv-cache-dtype fp8_e5m2", "caches have the format of activations"),
        ("--disaggregation-mode decode", "the engines of prefill and of decode are a plan each"),
        ("--enable-hierarchical-cache", "caches outside the accelerator"),
        ("--moe-a2a-backend mooncake", "what works: none or deepep"),
        ("--disable-custom-all-reduce", "or give a --system file without custom_all_reduce"),
        ("--tp 8 --ep 4", "2 ranks with the same requests would share each expert"),
        ("--tp 8 --ep 8 --ep-num-redundant-experts 8", "without --enable-eplb the copies are of the first experts"),
        ("--tp 8 --ep 8 --enable-eplb", "without copies it moves experts to other ranks"),
        ("--tp 8 --moe-a2a-backend deepep", "SGLang cuts their tokens before it sends them"),
        ("--tp 8 --ep 8 --dp 2 --enable-dp-attention", "4 ranks of tensor parallelism and 2 of data parallelism"),
        ("--tp 8 --ep 3", "--ep 3 does not divide the 8 ranks of --tp 8"),
        ("--tp 8 --dp 8 --enable-dp-attention", "--enable-dp-attention: without expert parallelism SGLang gathers"),
        ("--tp 8 --dp 8 --enable-dp-attention --ep 4", "2 ranks with different requests would share each expert"),
        ("--tp 8 --dp 3 --enable-dp-attention", "--dp 3 does not divide the 8 ranks of --tp 8"),
        ("--tp 2 --attn-dp-size 2 --ep 2 --max-running-requests 33", "33 requests do not divide among 2 ranks of data"),
        ("--enable-two-batch-overlpa", "did you mean enable-two-batch-overlap"),
        ("serve", "the word 'serve' belongs"),
    ],
)
def test_what_is_refused_of_sglang(tmp_path: Path, text: str, expected: str) -> None:
    if text == "serve":
        text = "python -m sglang.launch_server A serve"
    assert expected in refused(tmp_path, text, DECODE, "sglang")


def test_a_default_of_sglang_that_no_plan_has_is_a_remark(tmp_path: Path) -> None:
    words(tmp_path, "--tp 2 --attn-dp-size 2 --ep 2", DECODE, "sglang")
    assert any("moe-a2a-backend none" in each for each in remarks(read_settings("sglang", tmp_path / "args.txt")))
    words(tmp_path, LAUNCH, DECODE, "sglang")
    assert not any("moe-a2a-backend none" in each for each in remarks(read_settings("sglang", tmp_path / "args.txt")))


OPTIONS_FILE = """
tensor_parallel_size: 8
moe_expert_parallel_size: 8
enable_attention_dp: true
max_batch_size: 64
max_num_tokens: 8192
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  tokens_per_block: 64
  dtype: auto
  enable_block_reuse: false
cuda_graph_config:
  enable_padding: true
  batch_sizes: [1, 2, 4]
moe_config:
  backend: CUTLASS
"""


def test_a_file_of_tensorrt_llm_is_a_plan(tmp_path: Path) -> None:
    found = words(tmp_path, OPTIONS_FILE, DECODE, "trtllm", "config.yaml")
    assert found == {"tp": 1, "pp": 1, "dp": 8, "ep": 8, "micro_batch_size": 64}
    found_settings = read_settings("trtllm", tmp_path / "config.yaml")
    assert found_settings.values["memory_share"] == Fraction(4, 5)
    assert found_settings.values["block_size"] == 64
    assert found_settings.written["block_size"] == "kv_cache_config.tokens_per_block"
    assert found_settings.without_effect == (
        "kv_cache_config.dtype",
        "kv_cache_config.enable_block_reuse",
        "cuda_graph_config",
        "moe_config",
    )


def test_experts_of_tensorrt_llm_over_ranks_of_tp(tmp_path: Path) -> None:
    text = "tensor_parallel_size: 4\nmoe_expert_parallel_size: 4\n"
    found = words(tmp_path, text, DECODE, "trtllm", "config.yaml")
    assert found == {"tp": 4, "pp": 1, "dp": 1, "ep": 4, "expert_tp": False}


def test_flags_of_ranks_with_the_same_tokens_are_a_plan_without_remarks(tmp_path: Path) -> None:
    found = words(tmp_path, "--tp 4 --ep 4", DECODE, "sglang")
    assert not any("moe-a2a-backend" in each for each in remarks(read_settings("sglang", tmp_path / "args.txt")))
    made = lowered.workload("deepseek-v3", **DECODE, **found)
    assert {axis for axis in made.classes[0].ops.axis if axis} == {"tp"}


@pytest.mark.parametrize("command", ["trtllm-serve serve M", "trtllm-serve M", "trtllm-serve --log_level info M", ""])
def test_arguments_of_trtllm_serve_are_the_same(tmp_path: Path, command: str) -> None:
    text = f"{command} --tp_size 4 --pp_size 2 --max_batch_size 16 --kv_cache_free_gpu_memory_fraction 0.85"
    found = words(tmp_path, text, DECODE, "trtllm")
    assert found == {"tp": 4, "pp": 2, "dp": 1, "micro_batch_size": 16, "global_batch_size": 32}
    found_settings = read_settings("trtllm", tmp_path / "args.txt")
    assert found_settings.values["memory_share"] == Fraction(17, 20)
    assert found_settings.model == ("M" if command else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("speculative_config:\n  decoding_type: MTP\n", "speculative decoding"),
        ("decoding_config:\n  decoding_mode: x\n", "what works: speculative_config, with decoding_type"),
        ("kv_cache_config:\n  dtype: fp8\n", "kv_cache_config.dtype 'fp8' is not obeyed: caches have the format"),
        ("kv_cache_config:\n  host_cache_size: 1000\n", "caches outside the accelerator"),
        ("kv_cache_config:\n  tokens_per_blok: 64\n", "did you mean kv-cache-config.tokens-per-block"),
        ("kv_cache_config: 1\n", "has no flag 'kv_cache_config'"),
        ("moe_config:\n  load_balancer: eplb.yaml\n", "what works: leave out load_balancer"),
        ("quant_config:\n  quant_algo: NVFP4\n", "--weight-dtype nvfp4 and others in 4 bits"),
        ("context_parallel_size: 2\n", "context parallelism"),
        ("max_beam_width: 4\n", "each beam of a request"),
        ("allreduce_strategy: LOWPRECISION\n", "sums over tp are in 16 bits"),
        ("allreduce_strategy: NCCL\n", "give a --system file without custom_all_reduce"),
        ("cache_transceiver_config:\n  backend: DEFAULT\n", "caches are sent to other engines"),
        ("tensor_parallel_size: 8\nmoe_expert_parallel_size: 4\n", "2 ranks with the same requests would share"),
        ("tensor_parallel_size: 8\nenable_attention_dp: true\n", "enable_attention_dp: without expert parallelism"),
        ("tensor_parallel_size: 8\nenable_attention_dp: true\nmoe_tensor_parallel_size: 2\n", "2 ranks with different"),
        ("enable_attention_dp: 1\n", "enable_attention_dp must be true or false, not 1"),
        ("tensor_parallel_size: [8, 4]\n", "must be a whole number of 1 or more, not '8 4'"),
        ("tensor_parallel_size: 8.5\n", "must be a whole number of 1 or more, not '8.5'"),
        ("a: &x 1\n", "anchors and aliases"),
        ("- 1\n", "is not a mapping of flags to values"),
        ("max_num_tokens: 8\nmax_num_tokens: 9\n", "appears twice"),
    ],
)
def test_what_is_refused_of_tensorrt_llm(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(tmp_path, text, DECODE, "trtllm", "config.yaml")


def test_the_word_before_a_file_names_the_engine(tmp_path: Path) -> None:
    assert engine_file(Path("vllm:a/b.txt")) == ("vllm", Path("a/b.txt"))
    assert engine_file(Path("plan.yaml")) is None
    assert engine_file(Path("C:plan.yaml")) is None
    for word in ("vlm:args.txt", "VLLM:args.txt", "tensorrt_llm:args.txt"):
        with pytest.raises(UsageError, match=r"unknown engine '\w+': --plan reads vllm:FILE, sglang:FILE, trtllm:FILE"):
            read_plan_file(Path(word), DECODE)


PIECES = (
    *("--tp-size", "--tensor-parallel-size", "-tp", "--ep", "-dp", "--enable-dp-attention", "--no-enable-lora"),
    *("--moe-a2a-backend", "deepep", "--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--no-", "-O3"),
    *("8", "4", "0", "-1", "9" * 18, "8k", "1e3", "=", "'", "\\", "#", '"', "--", "-", "--kv-cache-config.x", "M"),
    *("\n", "\0", "\x1b[31m", "\ufdd0"),
)
TEXTS = st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join)


@given(st.sampled_from(ENGINES), TEXTS, st.sampled_from(["args.txt", "args.yaml"]), st.sampled_from([DECODE, PREFILL]))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_plan_or_a_refusal(
    tmp_path: Path, name: str, text: str, file: str, given_words: dict[str, Any]
) -> None:
    try:
        found = words(tmp_path, text, given_words, name, file)
    except UsageError as error:
        assert str(error)
    else:
        assert found.keys() <= PLAN_WORDS.keys()
        assert all(not isinstance(value, int) or value < 1 << 63 for value in found.values())


@pytest.mark.parametrize(
    ("engine", "text", "given", "expected"),
    [
        ("vllm", "--spec-tokens 3 --spec-method ngram", {}, {"seq_len": 4, "draft": "other"}),
        ("vllm", '-sc \'{"method": "deepseek_mtp", "num_speculative_tokens": 1}\'', {}, {"seq_len": 2, "draft": "own"}),
        ("vllm", "-sc.method mtp -sc.num_speculative_tokens 2 -sc.x y", {}, {"seq_len": 3, "draft": "own"}),
        ("vllm", "--spec-method mtp --spec-model m --spec-tokens 1", {}, {"seq_len": 2, "draft": "other"}),
        ("vllm", "--spec-method mtp", {"seq_len": 5}, {"draft": "own"}),
        ("vllm", "--spec-method mtp --spec-tokens 1", {"draft": "other"}, {"seq_len": 2}),
        ("vllm", "-sc null", {}, {}),
        (
            "sglang",
            "--speculative-algorithm EAGLE --speculative-num-draft-tokens 4",
            {},
            {"seq_len": 4, "draft": "own"},
        ),
        (
            "sglang",
            "--speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
            {},
            {"seq_len": 4, "draft": "other"},
        ),
        ("trtllm", "--max_batch_size 8", {}, {}),
    ],
)
def test_a_draft_of_an_engine_is_that_of_the_plan(
    tmp_path: Path, engine: str, text: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = words(tmp_path, text, {**SPECULATIVE, **given}, engine)
    assert {word: found[word] for word in ("seq_len", "draft") if word in found} == expected


def test_a_draft_of_a_file_of_settings(tmp_path: Path) -> None:
    text = "speculative_config:\n  decoding_type: MTP\n  num_nextn_predict_layers: 1\nmax_batch_size: 8\n"
    found = words(tmp_path, text, SPECULATIVE, "trtllm", "args.yaml")
    assert (found["seq_len"], found["draft"], found["micro_batch_size"]) == (2, "own", 8)


def test_a_tree_of_drafted_tokens_is_refused(tmp_path: Path) -> None:
    text = "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-num-draft-tokens 8"
    with pytest.raises(UsageError, match="8 and --speculative-num-steps 3: a step checks one chain of drafted tokens"):
        words(tmp_path, text, SPECULATIVE, "sglang")
