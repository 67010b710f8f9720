"""The comparison of `scripts/bench serving`: its plans, the kinds of operators, and the figures of the page."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import _bench_serving as bench
from scripts._serving_plans import CHECKPOINTS, MEASURED, PLANS, ServedPlan
from tests.test_docs import load_page_module

ROOT = Path(__file__).parents[1]
FIGURES = load_page_module("serving_estimates")


def test_there_are_thirty_plans_of_five_models() -> None:
    assert len(set(PLANS)) == 30
    assert {each.model for each in PLANS} == set(CHECKPOINTS) and len(CHECKPOINTS) == 5
    for name, least in {"prefill": 8, "decode": 8}.items():
        assert sum(each.phase == name for each in PLANS) >= least
    assert {each.fp8 for each in PLANS} == {True, False} and {each.system for each in PLANS} == {"h100", "h200"}
    for each in PLANS:
        words = each.estimate_words
        if "moe_ep_size" in words:
            assert words["moe_ep_size"] * words["moe_tp_size"] == each.tp * each.dp


def test_the_page_has_their_figures() -> None:
    rows = FIGURES._read("estimates")
    shown = [(row["model"], row["system"], row["plan"]) for row in rows]
    assert shown == [(each.model, each.system, each.short) for each in PLANS]
    assert [row["step"] for row in FIGURES._read("throughputs")] == [each.title for each in MEASURED]


@pytest.mark.parametrize("number", [3, 8, 18, 26])
def test_our_figures_are_made_again(number: int) -> None:
    row, found = FIGURES._read("estimates")[number], bench.ours(PLANS[number])
    assert row["ours"] == f"{found.ms:.3f}", "scripts/bench serving --write"
    for kind in bench.KINDS:
        assert float(row[f"our {kind}"]) == pytest.approx(found.kinds.get(kind, 0.0), abs=6e-4)


def test_our_throughputs_are_made_again() -> None:
    row = FIGURES._read("throughputs")[5]
    assert int(row["stagedb"]) == round(MEASURED[5].expected), "scripts/bench serving --write"


def test_kinds_add_up_to_the_step() -> None:
    for row in FIGURES._read("estimates"):
        for whose, step in (("their", "theirs"), ("our", "ours")):
            parts = sum(float(row[f"{whose} {kind}"]) for kind in FIGURES.KINDS)
            assert parts == pytest.approx(float(row[step]), abs=0.006), row["plan"]
        assert abs(float(row["our overlap"])) < 0.001


def test_every_difference_above_15_percent_has_a_reason() -> None:
    text, reasons = FIGURES.table(), FIGURES.reasons()
    assert text.count("\n| ") > len(PLANS)
    row = {**FIGURES._read("estimates")[2], "their head": "1.0", "our head": "1.3"}
    with pytest.raises(ValueError, match=r"head is 1\.3 next to 1\.0, without a reason"):
        FIGURES._letters(row, "head")
    for letter in FIGURES.REASONS:
        assert f"| {letter} | " in reasons, f"nothing has the reason {letter}"


def test_operators_of_aiconfigurator_have_a_kind() -> None:
    dense, latent = PLANS[0], PLANS[-1]
    kinds = {
        "context_qkv_gemm": "matmul",
        "generation_attention": "attention",
        "generation_act_gate": "elementwise",
        "context_add_norm_2": "elementwise",
        "context_embedding": "elementwise",
        "context_embedding_ar": "all-reduce",
        "generation_ar_1": "all-reduce",
        "generation_logits_gemm": "head",
        "generation_moe": "experts",
        "generation_moe_pre_dispatch": "all-reduce",
    }
    for name, kind in kinds.items():
        assert bench.their_kind(name, dense) == kind, name
    latents = {
        "generation_mla_block": "attention",
        "qkv_a_proj_gemm": "attention",
        "generation_router_gemm": "matmul",
        "generation_shared_ffn2_gemm": "matmul",
        "moe_dispatch": "exchange",
    }
    for name, kind in latents.items():
        assert bench.their_kind(name, latent) == kind, name


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    def printed(*words: str) -> str:
        command = [sys.executable, "-m", "scripts._bench_serving", *words]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        return ran.stderr

    assert "give --aiconfigurator PYTHON, --infersim DIR or both" in printed()
    assert "name an interpreter with aiconfigurator==0.12.0" in printed("--aiconfigurator", str(tmp_path / "none"))
    assert "it needs aiconfigurator==0.12.0" in printed("--aiconfigurator", sys.executable)
    assert "a checkout of InferSim (--infersim)" in printed("--infersim", str(tmp_path))


def test_a_plan_that_aiconfigurator_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_last_line", lambda *_, **__: '[{"error": "KeyError: no such table"}]')
    plan = ServedPlan("llama3.1-8b", "h100", "decode", 1, 10)
    with pytest.raises(SystemExit, match=r"refuses llama3\.1-8b on h100, bf16, decode 1 x 10 .*no such table"):
        bench.estimates(Path("python"), [plan])
