"""Measured times a token of engines: rows that are read, compared or left out, and the errors that ship."""

import csv
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
import yaml

from stagedb.errors import UsageError
from stagedb.systems import System, load_system
from stagedb.timing import expected_errors
from stagedb.timing.expected_errors import served_error
from stagedb.validation import ServedTime, known_served, predict_served, read_served, served_errors
from stagedb.validation.served_times import COLUMNS, is_of_experts
from tests import lowered

ROW = {
    "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm",
    "backend": "vllm",
    "precision": "fp8",
    "mode": "agg",
    "isl": "1024",
    "osl": "256",
    "gemm_quant_mode": "fp8",
    "batch_size": "16",
    "tp_size": "2",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_ep_size": "",
    "silicon_tpot_ms": "14.5",
}


def predicted(tmp_path: Path, *changes: dict[str, str]) -> list[ServedTime]:
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({**ROW, **change} for change in changes)
    return predict_served(read_served(path), lambda done, of: None, processes=1)


def test_a_time_is_the_mean_of_the_steps_of_a_profile(tmp_path: Path) -> None:
    (found,) = predicted(tmp_path, {})
    words = {"tp": 2, "matmul_dtype": "fp8"}

    def step(**own: object) -> int:
        from stagedb.timing import step_of

        return step_of(lowered.program("qwen3-32b", **words, **own).workload, load_system("h100"))

    decode = step(workflow="decode", micro_batch_size=16, cache_len=1024 + 127)
    mixed = step(workflow="mixed", requests=["1x1024+0", f"15x1+{1024 + 127}"])
    share = Fraction(16, 256)
    assert found.ms == -(-(share * mixed + (1 - share) * decode) // 1) / 1e6
    assert found.error == pytest.approx(found.ms / 14.5 - 1)


def test_experts_over_the_ranks_of_tp_are_predicted(tmp_path: Path) -> None:
    cells = {"model_path": "mixtral-8x7b", "moe_ep_size": "2", "precision": "bf16", "gemm_quant_mode": "bf16"}
    spread, cut = predicted(tmp_path, cells, {**cells, "moe_ep_size": "1"})
    assert (spread.reason, cut.reason) == ("", "")
    assert spread.ms != cut.ms and spread.ms == pytest.approx(cut.ms, rel=0.3)


def test_the_errors_that_ship_are_those_of_the_rows() -> None:
    known = known_served()
    text = (Path(expected_errors.__file__).parent / "served_errors.yaml").read_text(encoding="utf-8")
    for name, written in yaml.safe_load(text).items():
        figures = served_errors([each for each in known if is_of_experts(each.row) is (name == "experts")])
        assert figures is not None
        assert vars(figures) == pytest.approx(written, abs=1e-4)
        assert served_error(name == "experts").startswith(f"{written['median']:.1%} in the median")


def test_the_predictions_that_ship_are_made_again() -> None:
    known = known_served()
    some = known if os.environ.get("STAGEDB_TEST_ALL") else Random(7).sample(known, 12)
    again = predict_served([each.row for each in some], lambda done, of: None)
    assert [each.ms for each in again] == [each.ms for each in some], "python -m scripts._served_rows"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"precision": ""}, "the format of the weights is not named"),
        ({"precision": "fp4"}, "weights of fewer than 8 bits"),
        ({"gemm_quant_mode": "int4_wo"}, "weights of fewer than 8 bits"),
        ({"mode": "disagg"}, "prefill and of decode apart"),
        ({"model_path": "a/b"}, "no card of the library is 'a/b'"),
        ({"system": "tpu"}, "no preset is 'tpu'"),
        (
            {"model_path": "MiniMaxAI/MiniMax-M2.5", "tp_size": "4", "moe_ep_size": "2"},
            "experts on ranks of tp and dp together, or spread and cut",
        ),
        (
            {"model_path": "MiniMaxAI/MiniMax-M2.5", "attention_dp_size": "2", "moe_ep_size": "4"},
            "experts on ranks of tp and dp together",
        ),
        ({"attention_dp_size": "2"}, "ranks of dp share by tp"),
        ({"osl": "8", "batch_size": "9"}, "wait for the prompts of others"),
        ({"isl": "8192", "tp_size": "1", "batch_size": "64"}, "do not fit at once"),
        ({"silicon_tpot_ms": "1"}, "faster than the accelerator is"),
        ({"isl": "none"}, "row 2: isl is 'none'"),
        ({"batch_size": "1.5"}, "it takes a whole number"),
    ],
)
def test_rows_that_no_engine_has_come_with_a_reason(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    (found,) = predicted(tmp_path, change)
    assert found.ms is None and found.error is None
    assert reason in found.reason


def test_weights_of_experts_that_no_token_chooses_are_not_read(tmp_path: Path) -> None:
    """DeepSeek-V3 has 84 GB on each of eight H200, which read them in 17.5 ms: with two requests it takes less."""
    words = {"model_path": "deepseek-ai/DeepSeek-V3", "system": "h200_sxm", "tp_size": "8", "silicon_tpot_ms": "12"}
    few, many = (
        predicted(tmp_path, {**words, "batch_size": each, "isl": "1000", "osl": "1000"})[0] for each in ("2", "64")
    )
    assert few.ms is not None and 6 < few.ms < 17
    assert many.ms is None and "faster than the accelerator is" in many.reason


def test_caches_are_read_before_matmuls_compute(tmp_path: Path) -> None:
    """32 requests have 17 GB of keys and values, which an H200 reads in 3.5 ms. For each of 100 tokens 1,280 of prompts
    are computed, 17.9 TFLOP in the matmuls of 6.98e9 weights, which take 9.0 ms at its peak in fp8."""
    words = {"model_path": "nvidia/Llama-3.1-8B-Instruct-FP8", "system": "h200_sxm", "tp_size": "1"}
    words |= {"precision": "fp8", "gemm_quant_mode": "fp8", "isl": "4000", "osl": "100", "batch_size": "32"}
    late, early = (predicted(tmp_path, {**words, "silicon_tpot_ms": each})[0] for each in ("12.8", "12.3"))
    assert late.ms is not None
    assert early.ms is None and "faster than the accelerator is" in early.reason


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("model_path,system\n")
    with pytest.raises(UsageError, match="has no column backend"):
        read_served(path)
    path.write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(UsageError, match="has no rows"):
        read_served(path)


def test_kernels_of_a_decode_start_from_a_graph() -> None:
    from stagedb.timing import step_of

    system = load_system("h100")

    def launching(launch: int = 2000, graph_launch: int | None = None) -> System:
        of_graphs = None if graph_launch is None else Fraction(graph_launch)
        own = replace(system.accelerator, launch=Fraction(launch), graph_launch=of_graphs)
        return replace(system, accelerator=own)

    decode = lowered.program("gpt2", workflow="decode", micro_batch_size=4, cache_len=64).workload
    prefill = lowered.program("gpt2", workflow="prefill", micro_batch_size=4, seq_len=64).workload
    usual, none, slow = (step_of(decode, launching(graph_launch=ns)) for ns in (500, 0, 2000))
    assert step_of(decode, system) == usual == step_of(decode, launching(launch=9000))
    assert usual - none == pytest.approx((slow - none) / 4, rel=0.01)
    assert slow == step_of(decode, launching(launch=2000, graph_launch=2000))
    assert step_of(decode, launching(launch=100)) < usual
    assert step_of(prefill, system) == step_of(prefill, launching(graph_launch=2000))
    assert step_of(prefill, launching(launch=0)) < step_of(prefill, system)
