"""The library of models: the nearest ones, and a drawing of layers."""

import json
from pathlib import Path

from stagedb.api import model_blocks, model_flops, model_layers, models
from stagedb.cli.models import draw_blocks, draw_layers
from tests.cli.conftest import Run
from tests.models.own_blocks import FOLDER
from tests.models.test_deepseek_v4 import FLASH
from tests.models.test_own_blocks import written


def test_the_nearest_models_come_first(run: Run) -> None:
    rows = json.loads(run("models", "--like", "llama3.1-70b", "-f", "json").out)
    assert [row["name"] for row in rows[:2]] == ["llama3-70b", "llama3.1-70b"]
    assert [row["factor"] for row in rows] == sorted(row["factor"] for row in rows)
    assert rows[0]["factor"] == 1.0
    assert len(rows) == 10
    experts = [row["name"] for row in models(like="mixtral-8x7b")[:3]]
    assert experts == ["mixtral-8x7b", "jamba-v0.1", "phi-3.5-moe"]
    assert max(map(len, run("models", "--like", "llama3-8b").out.splitlines())) <= 80
    refused = run("models", "llama3-8b", "--like", "llama3-70b")
    assert refused.status == 2
    assert "give one of them" in refused.err
    assert "unknown model 'nothing'" in run("models", "--like", "nothing").err


def test_the_layers_of_a_model_are_drawn(run: Run) -> None:
    drawn = run("models", "gemma-3-12b-text").out.partition("\n\n")[2]
    assert "     0  " + "aaaaab" * 8 + "\n" in drawn
    assert "a  40 x local: sliding_window, then feed_forward (sandwich); qk_norm head" in drawn
    assert "b  8 x layer: attention, then feed_forward (sandwich)" in drawn
    assert "layers, from" not in run("models", "gemma-3-12b-text", "-f", "csv").out
    lines = draw_layers(model_layers("kimi-k2")).splitlines()
    assert lines[1:3] == ["     0  a" + "b" * 59, "    60  b"]
    assert max(map(len, lines)) <= 80


def test_a_kind_of_layers_for_further_tokens_is_drawn_as_that(run: Run, tmp_path: Path) -> None:
    content = {**FLASH, "num_nextn_predict_layers": 1, "compress_ratios": [4] * 43}
    (tmp_path / "config.json").write_text(json.dumps(content))
    drawn = run("models", str(tmp_path / "config.json")).out
    assert "     0  aaa" + "b" * 40 + "\n" in drawn
    assert "c  further tokens: window: shared_keys, then experts" in drawn


def test_flops_are_with_and_without_what_a_mask_leaves_out(run: Run) -> None:
    rows = json.loads(run("models", "gpt2", "--seq-len", "512", "-f", "json").out)
    assert {row["field"]: row["value"] for row in rows} == model_flops("gpt2", 512)
    assert "a forward of 1,024 tokens: " in run("models", "gpt2").out
    refused = run("models", "--seq-len", "512")
    assert refused.status == 2
    assert "give MODEL" in refused.err


def test_own_blocks_are_drawn_step_by_step(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path, (FOLDER / "two_gates.yaml").read_text())
    out = run("models", str(path)).out
    assert "layers, from" in out
    drawn = draw_blocks(model_blocks(str(path)))
    assert drawn in out
    assert "  shifted = add of second, bias: batch seq inner/tp" in drawn
    assert "  output  = einsum of bounded, back: batch seq hidden, a sum over inner/tp" in drawn
    assert max(map(len, drawn.splitlines())) <= 80
    rows = {row["field"]: row["value"] for row in json.loads(run("models", str(path), "-f", "json").out)}
    assert rows["blocks"]["mine"]["axes"] == {"inner": "ffn"}
    assert model_blocks("llama3-8b") == []
